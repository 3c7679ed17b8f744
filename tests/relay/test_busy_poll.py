"""A loop that stays awake after each read, and sleeps when nothing has come for a while."""

from __future__ import annotations

import socket
import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from clearfunds.relay._busy_poll import BusyPoll
from clearfunds.transports.mqtt import Publish
from tests.transports.peers import connected, running


class Rounds(trio.abc.Instrument):
    """Of each round of the loop, for how long it would have slept."""

    def __init__(self) -> None:
        self.sleeps: list[float] = []

    def before_io_wait(self, timeout: float) -> None:
        self.sleeps.append(timeout)


@contextmanager
def rounds() -> Generator[list[float]]:
    instrument = Rounds()
    trio.lowlevel.add_instrument(instrument)
    yield instrument.sleeps
    trio.lowlevel.remove_instrument(instrument)


async def test_it_is_awake_for_as_long_as_was_said_and_sleeps_then() -> None:
    busy = BusyPoll(0.1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(busy.run)
        await wait_all_tasks_blocked()
        with rounds() as before:
            await trio.sleep(0.02)
        assert max(before) > 0
        busy.touch()
        with rounds() as awake:
            await trio.sleep(0.02)
        assert set(awake) == {0}
        assert len(awake) > len(before)
        await wait_all_tasks_blocked()  # which it would not be if it stayed awake
        with rounds() as after:
            await trio.sleep(0.02)
        assert max(after) > 0
        nursery.cancel_scope.cancel()


async def test_what_comes_meanwhile_counts_from_then_on(mock_clock: MockClock) -> None:
    """The clock stands still but where it jumps."""
    busy = BusyPoll(1.0)

    async def awake() -> bool:
        with rounds() as seen:
            await trio.to_thread.run_sync(partial(time.sleep, 0.01))
        return max(seen) == 0

    async with trio.open_nursery() as nursery:
        nursery.start_soon(busy.run)
        await wait_all_tasks_blocked()
        assert not await awake()
        for _ in range(3):
            busy.touch()
            assert await awake()
            mock_clock.jump(0.9)
            assert await awake()
        mock_clock.jump(0.2)
        assert not await awake()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("seconds", [0.0, 0.2])
async def test_a_relay_stays_awake_after_what_it_reads(seconds: float) -> None:
    async with (
        running(busy_poll=seconds) as relay,
        connected(relay.port, "sub") as sub,
        connected(relay.port, "pub") as pub,
    ):
        await sub.subscribe("t")
        await pub.publish("t", b"hello")
        assert await sub.publication() == Publish("t", b"hello")
        with rounds() as seen:
            await trio.sleep(0.05)
        assert (max(seen) == 0) is (seconds > 0)
        await trio.sleep(2 * seconds)
        with rounds() as seen:
            await trio.sleep(0.05)
        assert max(seen) > 0


async def test_the_link_reads_as_any_other() -> None:
    busy = BusyPoll(1.0)
    ours, theirs = socket.socketpair()
    with theirs:
        ours.setblocking(False)
        link = busy.link(ours, "peer")
        theirs.send(b"one")
        assert await link.receive() == b"one"
        theirs.close()
        assert await link.receive() == b""
        link.close()
