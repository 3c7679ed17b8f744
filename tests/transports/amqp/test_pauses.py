"""A publisher pauses while the consumers of its queue are behind."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from pamqp.commands import Basic

from clearfunds.transports.amqp import _pausing
from tests.transports.amqp.clients import client, publication, serving, side
from tests.transports.peers import until

BACKLOG = 400
FAST = 100_000.0


def queue_of(relay: Any) -> Any:
    return side(relay).hosts["/"].queues["q"].queue


async def test_what_is_slow_or_short_is_no_lag() -> None:
    """A backlog of jobs is what a queue is for."""
    async with serving() as relay, client(relay) as raw:
        await raw.declare("q")
        queue = queue_of(relay)
        await raw.raw(b"".join(publication("q") for _ in range(BACKLOG)))
        await raw.sync()
        assert len(queue) == BACKLOG
        queue.rates.egress = FAST
        assert queue.lag() == 0.0, "nobody consumes"
        await raw.send(1, Basic.Qos(prefetch_count=1))
        await raw.expect(Basic.QosOk)
        await raw.consume("q", tag="t")
        await raw.deliveries(1)
        queue.rates.egress = FAST
        assert queue.lag() == pytest.approx((BACKLOG - 1) / FAST)
        queue.rates.egress = 10.0
        assert queue.lag() == 0.0, "its consumers are not fast"
        await raw.send(1, Basic.Ack(1))
        await raw.deliveries(1)


async def test_acknowledgements_are_taken_while_it_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the same connection, too; and what it publishes is handled when the pause is over."""
    # Long enough that all of the rest happens within the first pause.
    monkeypatch.setattr(_pausing, "MAX_PAUSE_SECONDS", 1.0)
    monkeypatch.setattr(_pausing, "LAG_SHARE", 1e9)
    async with serving() as relay, client(relay) as raw, client(relay, user="other") as other:
        await raw.declare("q")
        queue = queue_of(relay)
        await raw.raw(b"".join(publication("q") for _ in range(BACKLOG)))
        await raw.send(1, Basic.Qos(prefetch_count=1))
        await raw.expect(Basic.QosOk)
        await raw.consume("q", tag="t")
        await raw.deliveries(1)
        queue.rates.egress = FAST
        await raw.raw(publication("q"))
        await until(lambda: queue.counters.published == BACKLOG + 1)
        began = trio.current_time()
        await raw.raw(publication("q"))
        for tag in range(1, 20):
            await raw.send(1, Basic.Ack(tag))
            await raw.deliveries(1)
        # Others are not held up.
        await other.raw(publication("elsewhere"))
        await other.sync()
        if trio.current_time() - began < 0.9:  # else the machine was busy for so long
            assert queue.counters.published == BACKLOG + 1
        await until(lambda: queue.counters.published == BACKLOG + 2)
        relay.audit()
