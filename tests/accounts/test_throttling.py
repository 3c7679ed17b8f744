"""What is counted of readers that wait: why, for how long, and how far over the limit it went."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from clearfunds.accounts import NO_LIMIT, Ledger, Limit
from clearfunds.accounts._waiters import REASONS
from clearfunds.testing import Clock
from tests.loops import open_nursery

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clearfunds.accounts import Account


def by_reason(ledger: Ledger) -> tuple[dict[str, int], dict[str, float]]:
    statistics = ledger.statistics()
    assert statistics.waits == sum(statistics.waits_by_reason.values())
    assert statistics.waited_seconds == sum(statistics.waited_by_reason.values())
    return statistics.waits_by_reason, statistics.waited_by_reason


def only(**reasons: float) -> dict[str, float]:
    """Return counts by reason; those not given are 0."""
    return {**dict.fromkeys(REASONS, 0), **reasons}


async def read(account: Account) -> None:
    await account.ensure_clear_funds()


async def test_a_wait_is_parted_by_where_it_is() -> None:
    clock = Clock()
    ledger = Ledger(clock=clock)
    server = ledger.open("server", limit=Limit(items=100, low_items=100))
    alice = ledger.open("alice", limit=Limit(items=10, low_items=10), parent=server)
    bob = ledger.open("bob", limit=NO_LIMIT, parent=server)
    alice.borrow(12, 0)
    async with open_nursery() as nursery:
        nursery.start_soon(read, alice)
        await anyio.wait_all_tasks_blocked()
        clock.now = 2.0
        assert by_reason(ledger) == (only(account=1), only(account=2.0))
        # Her own account clears when the server's has become too much.
        bob.borrow(100, 0)
        nursery.start_soon(read, bob)
        await anyio.wait_all_tasks_blocked()
        clock.now = 3.0
        alice.repay(2, 0)
        await anyio.wait_all_tasks_blocked()
        clock.now = 3.5
        # Alice: 3 s at home, 0.5 s at the server. Bob: 1.5 s at the server.
        waits, waited = by_reason(ledger)
        assert waits == only(account=1, parent=1)
        assert waited == only(account=3.0, parent=2.0)
        assert alice.statistics().waited_by_reason == only(account=3.0, parent=0.5)
        assert bob.statistics().waited_by_reason == only(account=0.0, parent=1.5)
        assert ledger.wait_seconds.count == 0  # Neither wait has ended.
        clock.now = 4.0
        bob.repay(100, 0)
    clock.now = 9.0
    assert by_reason(ledger)[1] == only(account=3.0, parent=3.0)
    assert alice.statistics().waited_seconds == 4.0
    assert ledger.wait_seconds.total == 6.0
    assert dict(ledger.wait_seconds.cumulative())["2.5"] == 1
    assert dict(ledger.wait_seconds.cumulative())["5.0"] == 2
    # What was counted stays when the accounts have gone.
    alice.repay(10, 0)
    alice.close()
    bob.close()
    assert by_reason(ledger)[1] == only(account=3.0, parent=3.0)


async def test_a_cancelled_wait_counts_for_as_long_as_it_was() -> None:
    clock = Clock()
    ledger = Ledger(clock=clock)
    alice = ledger.open("alice", limit=Limit(items=0))
    alice.borrow(1, 0)
    async with open_nursery() as nursery:
        nursery.start_soon(read, alice)
        await anyio.wait_all_tasks_blocked()
        clock.now = 0.3
        nursery.cancel_scope.cancel()
    assert (ledger.wait_seconds.count, ledger.wait_seconds.total) == (1, 0.3)
    assert by_reason(ledger)[1] == only(account=0.3, parent=0.0)


def totals(ledger: Ledger) -> Iterator[tuple[int, float]]:
    for histogram in (ledger.overshoot_items, ledger.overshoot_bytes):
        yield histogram.count, histogram.total


async def wait_and_go(ledger: Ledger, account: Account, readers: int) -> None:
    """Let readers come, and go on when all is repaid."""
    async with open_nursery() as nursery:
        for _ in range(readers):
            nursery.start_soon(read, account)
        await anyio.wait_all_tasks_blocked()
        account.repay(account.debt_items, account.debt_bytes)


async def test_overshoot_is_counted_once_for_each_time_the_limit_is_reached() -> None:
    ledger = Ledger()
    alice = ledger.open("alice", limit=Limit(items=10, bytes=1000))
    # At the limit still passes.
    alice.borrow(10, 1000)
    await alice.ensure_clear_funds()
    assert list(totals(ledger)) == [(0, 0), (0, 0)]
    alice.borrow(7, 0)
    # Three readers wait, but the account has gone over its limit once: by 7 items and no bytes.
    await wait_and_go(ledger, alice, 3)
    assert list(totals(ledger)) == [(1, 7), (0, 0)]
    alice.borrow(1, 1500)
    await wait_and_go(ledger, alice, 1)
    assert list(totals(ledger)) == [(1, 7), (1, 500)]
    alice.borrow(11, 1001)
    await wait_and_go(ledger, alice, 2)
    assert list(totals(ledger)) == [(2, 8), (2, 501)]
    assert dict(ledger.overshoot_items.cumulative())["5.0"] == 1
    assert dict(ledger.overshoot_items.cumulative())["10.0"] == 2


async def test_overshoot_of_a_parent_is_its_own() -> None:
    ledger = Ledger()
    server = ledger.open("server", limit=Limit(items=None, bytes=100))
    alice = ledger.open("alice", limit=Limit(items=10, bytes=1000), parent=server)
    alice.borrow(1, 150)
    await wait_and_go(ledger, alice, 1)
    assert list(totals(ledger)) == [(0, 0), (1, 50)]
    assert by_reason(ledger)[0] == only(account=0, parent=1)


def test_nobody_waits_and_nothing_is_counted() -> None:
    ledger = Ledger()
    alice = ledger.open("alice", limit=Limit(items=1))
    alice.borrow(5, 0)
    assert not alice.funds_are_clear()
    # Only a reader that has to wait makes it an overshoot.
    assert list(totals(ledger)) == [(0, 0), (0, 0)]
    assert by_reason(ledger) == (only(account=0, parent=0), only(account=0.0, parent=0.0))
