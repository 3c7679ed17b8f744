"""Queues do what is due by time when it is due."""

from __future__ import annotations

import math

import pytest
import trio

from clearfunds.accounts import Ledger, Limit
from clearfunds.dataspace import Dataspace
from clearfunds.dataspace.exchanges import Message, QueueMaker
from clearfunds.transports import ServerSettings, open_flusher
from clearfunds.transports.amqp import AmqpServer

NO_LIMIT = Limit(items=None, bytes=None)


async def test_a_delay_by_ttl_and_dead_letter_is_exact(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only at the next of the common ticks, which are half a second apart."""
    # What the work takes on a busy machine is no time of this clock.
    monkeypatch.setattr("clearfunds.transports.amqp._server.TICK_SHARE", math.inf)
    ledger = Ledger(clock=trio.current_time)
    async with open_flusher() as flusher, trio.open_nursery() as nursery:
        account = ledger.open("server", limit=NO_LIMIT)
        server = AmqpServer(Dataspace(ledger), flusher, account, ServerSettings())
        server.open_hosts(lambda _: QueueMaker(ledger, wall=trio.current_time))
        host = server.hosts["/"]
        host.declare_queue("now")
        host.declare_queue(
            "later", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "now"}
        )
        nursery.start_soon(server.keep_time)
        publisher = ledger.open("publisher", limit=NO_LIMIT)
        late: list[float] = []
        for number in range(20):
            await trio.sleep(0.137)
            began = trio.current_time()
            with publisher.turn() as turn:
                host.publish(turn, "", Message("", "later", b"", b"body", expiration=0.7))
            while len(host.queues["now"].queue) <= number:  # noqa: ASYNC110 (the clock jumps)
                await trio.sleep(0.001)
            late.append(trio.current_time() - began - 0.7)
        # One wake-up may come just before, by a rounding error.
        assert all(-0.001 <= each <= 0.012 for each in late), late
        nursery.cancel_scope.cancel()
    ledger.audit()
    server.close_hosts()
    ledger.audit()
