"""All cases, area by area."""

from __future__ import annotations

from typing import Final

from tests.transports.amqp.oracle.cases import channels, connections
from tests.transports.amqp.oracle.play import CASES, Case

AREAS: Final = (channels, connections)
"""The modules of cases; each registers its own."""

__all__ = ["AREAS", "CASES", "NAMES"]

NAMES: Final[dict[str, Case]] = {case.name: case for case in CASES}
