"""All cases, area by area."""

from __future__ import annotations

from typing import Final

from tests.transports.amqp.oracle.cases import connections as connections
from tests.transports.amqp.oracle.play import CASES as CASES
from tests.transports.amqp.oracle.play import Case

NAMES: Final[dict[str, Case]] = {case.name: case for case in CASES}
