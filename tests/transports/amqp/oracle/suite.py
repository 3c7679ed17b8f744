"""All cases, area by area."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Final

from tests.transports.amqp.oracle.play import CASES, Case

for module in sorted(Path(__file__).with_name("cases").glob("*.py")):
    importlib.import_module(f"tests.transports.amqp.oracle.cases.{module.stem}")

ALL: Final[tuple[Case, ...]] = tuple(CASES)
NAMES: Final[dict[str, Case]] = {case.name: case for case in ALL}
