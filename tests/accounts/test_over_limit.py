"""Accounts that are read on above their limits, and stand in line for what is refused."""

from __future__ import annotations

import anyio
import pytest
import trio
import trio.testing

from clearfunds.accounts import (
    MEMORY,
    Account,
    Ledger,
    Limit,
    Outcome,
    OverLimitWatch,
    RateLimit,
    StuckPolicy,
    watch_patience,
)
from tests.accounts.conftest import Box
from tests.loops import open_nursery

LOOPS = ("trio",)  # as `OverLimitWatch` is


def send(account: Account, box: Box) -> None:
    with account.turn(items=1, nbytes=10) as turn:
        turn.send(box, b"", nbytes=10)


async def looked() -> None:
    """Let the watch look for holders."""
    await anyio.sleep(1.1)
    await anyio.wait_all_tasks_blocked()


@pytest.mark.rule(11)
async def test_it_stands_in_line_until_its_funds_are_clear(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ledger = Ledger(clock=anyio.current_time)
    box = Box(ledger, "box")
    watch = OverLimitWatch(ledger)
    alice = ledger.open("alice", limit=Limit(items=2))
    watch.note(alice)
    assert len(watch) == 0  # nothing runs
    async with open_nursery() as nursery:
        nursery.start_soon(watch.run, nursery.start_soon)
        await anyio.wait_all_tasks_blocked()
        for _ in range(4):
            send(alice, box)
        for _ in range(3):
            watch.note(alice)
        await anyio.wait_all_tasks_blocked()
        assert alice.waiting == 1
        assert len(watch) == 1
        await anyio.sleep(7)
        held = watch.largest(alice)
        assert held is not None
        assert (held.holder, held.items) == ("box", 4)
        assert watch.seconds(alice) == pytest.approx(7)
        assert watch.reason(alice).startswith("box has 40 bytes of yours outstanding, for 7 s")
        ledger.audit()
        box.settle_all(Outcome.DELIVERED)
        await anyio.wait_all_tasks_blocked()
        assert alice.waiting == 0
        assert len(watch) == 0
        nursery.cancel_scope.cancel()
    ledger.audit()


@pytest.mark.rule(11)
async def test_a_slow_consumer_is_given_up_for_it(autojump_clock: trio.testing.MockClock) -> None:
    ledger = Ledger(clock=anyio.current_time)
    box = Box(ledger, "box", patience=2, policy=StuckPolicy.DISCONNECT)
    watch = OverLimitWatch(ledger)
    alice = ledger.open("alice", limit=Limit(items=1))
    async with open_nursery() as nursery:
        nursery.start_soon(watch.run, nursery.start_soon)
        nursery.start_soon(watch_patience, ledger)
        await anyio.wait_all_tasks_blocked()
        for _ in range(3):
            send(alice, box)
        await anyio.sleep(10)
        assert alice.debt_items == 3  # nobody waits
        watch.note(alice)
        await anyio.sleep(10)
        assert alice.debt_items == 0
        assert ledger.repaid_items[Outcome.WRITTEN_OFF] == 3
        nursery.cancel_scope.cancel()
    ledger.audit()


async def test_who_has_gone_stands_no_more(autojump_clock: trio.testing.MockClock) -> None:
    ledger = Ledger(clock=anyio.current_time)
    box = Box(ledger, "box")
    watch = OverLimitWatch(ledger)
    alice = ledger.open("alice", limit=Limit(items=1))
    async with open_nursery() as nursery:
        nursery.start_soon(watch.run, nursery.start_soon)
        await anyio.wait_all_tasks_blocked()
        for _ in range(3):
            send(alice, box)
        watch.note(alice)
        await anyio.wait_all_tasks_blocked()
        alice.close()
        watch.forget(alice)
        watch.forget(alice)
        assert watch.seconds(alice) == 0
        await anyio.wait_all_tasks_blocked()
        assert not ledger.waiters
        box.settle_all(Outcome.DELIVERED)
        assert "alice" not in ledger.accounts
        nursery.cancel_scope.cancel()
    ledger.audit()


async def test_cancelled_it_leaves_nobody_in_line(autojump_clock: trio.testing.MockClock) -> None:
    ledger = Ledger(clock=anyio.current_time)
    box = Box(ledger, "box")
    watch = OverLimitWatch(ledger)
    alice = ledger.open("alice", limit=Limit(items=1))
    async with open_nursery() as nursery:
        nursery.start_soon(watch.run, nursery.start_soon)
        await anyio.wait_all_tasks_blocked()
        for _ in range(3):
            send(alice, box)
        watch.note(alice)
        await anyio.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert not ledger.waiters
    assert len(watch) == 0
    watch.note(alice)
    assert len(watch) == 0
    box.settle_all(Outcome.DELIVERED)
    ledger.audit()


async def test_the_reason_says_which_gate_is_closed(autojump_clock: trio.testing.MockClock) -> None:
    ledger = Ledger(clock=anyio.current_time)
    box = Box(ledger, "box")
    watch = OverLimitWatch(ledger)
    server = ledger.open("server", limit=Limit(items=3))
    shared = ledger.open("shared", limit=Limit(items=3), shared=True)
    alice = ledger.open("alice", limit=Limit(items=2))
    bob = ledger.open("bob", parent=server)
    carol = ledger.open("carol", parent=shared)
    dave = ledger.open("dave")
    erin = ledger.open("erin")
    erin.rate = RateLimit(items_per_s=0.001)
    async with open_nursery() as nursery:
        nursery.start_soon(watch.run, nursery.start_soon)
        await anyio.wait_all_tasks_blocked()
        assert "messages (0 bytes) of yours are outstanding" in watch.reason(alice)
        for account in (bob, carol):
            for _ in range(4):
                send(account, box)
        for _ in range(2):
            send(erin, box)
        dave.halt(MEMORY)
        for account in (bob, carol, dave, erin):
            watch.note(account)
        await looked()
        assert watch.reason(bob).startswith("server is above its limit; box has ")
        assert watch.reason(carol).startswith("you are above your share of the limit of shared;")
        assert watch.reason(dave) == "there is an alarm (memory), for 1 s"
        assert watch.reason(erin).startswith("your rate limit is reached; box has ")
        nursery.cancel_scope.cancel()
    box.settle_all(Outcome.DELIVERED)
    ledger.audit()
