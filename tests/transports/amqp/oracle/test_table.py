"""docs/rabbitmq.md lists the differences, and each has a case."""

from __future__ import annotations

from tests.transports.amqp.oracle.differences import DIFFERENCES
from tests.transports.amqp.oracle.suite import NAMES
from tests.transports.amqp.oracle.table import PAGE, page


def test_the_page_lists_them() -> None:
    assert PAGE.read_text("utf-8") == page(), "python -m tests.transports.amqp.oracle.table --write"


def test_each_has_a_case() -> None:
    assert DIFFERENCES.keys() <= NAMES.keys()
