"""All cases, area by area."""

from __future__ import annotations

from typing import Final

from tests.transports.amqp.oracle.cases import acknowledging as acknowledging
from tests.transports.amqp.oracle.cases import arguments as arguments
from tests.transports.amqp.oracle.cases import channels as channels
from tests.transports.amqp.oracle.cases import confirms as confirms
from tests.transports.amqp.oracle.cases import connections as connections
from tests.transports.amqp.oracle.cases import consuming as consuming
from tests.transports.amqp.oracle.cases import dead_letters as dead_letters
from tests.transports.amqp.oracle.cases import exchanges as exchanges
from tests.transports.amqp.oracle.cases import expiry as expiry
from tests.transports.amqp.oracle.cases import lengths as lengths
from tests.transports.amqp.oracle.cases import properties as properties
from tests.transports.amqp.oracle.cases import publishing as publishing
from tests.transports.amqp.oracle.cases import queues as queues
from tests.transports.amqp.oracle.cases import routing as routing
from tests.transports.amqp.oracle.cases import transactions as transactions
from tests.transports.amqp.oracle.play import CASES as CASES
from tests.transports.amqp.oracle.play import Case

NAMES: Final[dict[str, Case]] = {case.name: case for case in CASES}
