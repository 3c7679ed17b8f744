"""Each case holds for a real RabbitMQ: that is what proves the cases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.servers import RABBITMQ_AMQP
from tests.transports.amqp.oracle.play import Case, played
from tests.transports.amqp.oracle.scene import Server
from tests.transports.amqp.oracle.suite import ALL

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        RABBITMQ_AMQP.missing() is not None, reason=f"not installed: {RABBITMQ_AMQP.missing()}"
    ),
]


@pytest.fixture(scope="module")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run a node of its own, and its port mapper."""
    with RABBITMQ_AMQP.running(tmp_path_factory.mktemp("rabbitmq"), None) as running:
        yield Server("rabbitmq", running.port)


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_rabbitmq(case: Case, rabbitmq: Server) -> None:
    played(case, rabbitmq)
