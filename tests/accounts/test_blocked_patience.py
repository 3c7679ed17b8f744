"""Rule 11 where readers wait for credit: they wait on those who block them, and on nobody else."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from trio.testing import MockClock

from clearfunds.accounts import NO_LIMIT, Ledger, overdue, rings, wait_for_graph
from clearfunds.accounts._gate import gate_of
from tests.accounts.conftest import Box, balance, boxes, publish
from tests.loops import LoopClock, open_nursery

pytestmark = pytest.mark.rule(11)


@pytest.fixture
def timed(autojump_clock: MockClock) -> Iterator[Ledger]:
    """A ledger on the loop's own clock. (A test has to name `autojump_clock`, too.)"""
    ledger = Ledger(clock=LoopClock())
    yield ledger
    for holder in list(ledger.holders):
        if isinstance(holder, Box):
            holder.close()
    balance(ledger)


async def test_only_who_blocks_is_waited_on(autojump_clock: MockClock, timed: Ledger) -> None:
    account = timed.open("publisher", limit=NO_LIMIT)
    slow, other = boxes(timed, 2)
    publish(account, [slow, other], items=3, nbytes=30)
    gate_of(account).block(slow.name)
    async with open_nursery() as nursery:
        nursery.start_soon(account.ensure_clear_funds)
        await wait_all_tasks_blocked()
        await anyio.sleep(slow.patience + 1)
        (stuck,) = overdue(timed, timed.clock())
        assert stuck.holder is slow
        assert (stuck.waiting, stuck.items) == (("publisher",), 3)
        (wait,) = wait_for_graph(timed)
        assert [on.name for on in wait.on] == [slow.name]
        gate_of(account).unblock(slow.name)
        await wait_all_tasks_blocked()
        assert overdue(timed, timed.clock()) == []
        assert wait_for_graph(timed) == ()


async def test_who_blocks_and_has_others_messages_only_is_waited_on_as_well(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    """A queue that the store blocks grants nobody anything, whose messages ever it has."""
    account = timed.open("publisher", limit=NO_LIMIT)
    other = timed.open("other", limit=NO_LIMIT)
    full, empty = boxes(timed, 2)
    publish(other, [full])
    gate_of(account).block(full.name)
    gate_of(account).block(empty.name)
    async with open_nursery() as nursery:
        nursery.start_soon(account.ensure_clear_funds)
        await wait_all_tasks_blocked()
        await anyio.sleep(full.patience + 1)
        # Who holds nothing is not failing to make progress.
        (stuck,) = overdue(timed, timed.clock())
        assert (stuck.holder, stuck.waiting, stuck.items) == (full, ("publisher",), 0)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("way", ["both", "one"])
async def test_two_that_block_each_other_are_a_ring(
    way: str, autojump_clock: MockClock, timed: Ledger
) -> None:
    accounts = [timed.open(name, limit=NO_LIMIT) for name in "ab"]
    outlets = boxes(timed, 2)
    for account, outlet in zip(accounts, outlets, strict=True):
        outlet.owner = account
    elsewhere = Box(timed, "elsewhere")
    # Each has something of the other's; but it counts only whether it blocks it.
    for account, outlet in zip(accounts, reversed(outlets), strict=True):
        publish(account, [outlet, elsewhere])
    gate_of(accounts[0]).block(outlets[1].name)
    gate_of(accounts[1]).block(outlets[0].name if way == "both" else elsewhere.name)
    async with open_nursery() as nursery:
        for account in accounts:
            nursery.start_soon(account.ensure_clear_funds)
        await anyio.sleep(5)
        found = rings(timed)
        if way == "one":
            assert found == ()
        else:
            (ring,) = found
            assert ring.members == ("a", "b")
            assert [[on.holder for on in wait.on] for wait in ring.waits] == [
                [outlets[1]],
                [outlets[0]],
            ]
        nursery.cancel_scope.cancel()
