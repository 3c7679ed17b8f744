"""Accounts: what they owe, their limits, their parents, their ends. (The line: test_waiters.)"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from trio.testing import MockClock

from clearfunds.accounts import (
    NO_LIMIT,
    AccountError,
    ClosedAccountError,
    Ledger,
    Limit,
    LoanedItem,
    Outcome,
    SelfWaitError,
)
from clearfunds.accounts._line import MAX_BLAMED, OTHERS, add_blame
from tests.accounts.conftest import Box, boxes, owed, publish
from tests.loops import open_nursery

# -- what is owed ---------------------------------------------------------------------------------


@pytest.mark.rule(1)
def test_debt_is_in_items_and_bytes_and_has_a_peak(ledger: Ledger) -> None:
    """Rule 1."""
    account = ledger.open("a")
    assert (account.state, owed(account)) == ("clear", (0, 0))
    first = account.lend("", items=3, nbytes=100)
    second = account.lend("", items=1, nbytes=900)
    assert (account.state, owed(account)) == ("owing", (4, 1000))
    second.settle()
    first.settle(2)
    assert owed(account) == (1, 34)
    first.settle()
    assert (account.state, owed(account)) == ("clear", (0, 0))
    assert (account.peak_items, account.peak_bytes) == (4, 1000)
    assert (account.borrowed_items, account.borrowed_bytes) == (4, 1000)


@pytest.mark.rule(13)
def test_debt_counts_for_every_ancestor(ledger: Ledger) -> None:
    """Rule 13."""
    server = ledger.open("server")
    tenant = ledger.open("tenant", parent=server)
    a, b = ledger.open("a", parent=tenant), ledger.open("b", parent=tenant)
    of_a, of_b = a.lend("", items=3, nbytes=30), b.lend("", items=4, nbytes=40)
    of_tenant = tenant.lend("", items=5, nbytes=50)
    assert [owed(x) for x in (a, b, tenant, server)] == [(3, 30), (4, 40), (12, 120), (12, 120)]
    of_a.settle()
    assert [owed(x) for x in (a, b, tenant, server)] == [(0, 0), (4, 40), (9, 90), (9, 90)]
    assert server.peak_items == 12
    # What was charged to it directly: the totals add up without counting anything twice.
    assert [x.borrowed_items for x in (a, b, tenant, server)] == [3, 4, 5, 0]
    assert ledger.statistics().borrowed_items == 12
    ledger.audit()
    of_b.settle()
    of_tenant.settle()


@pytest.mark.rule(8, 15)
def test_what_is_borrowed_without_a_loan_is_found_by_the_audit() -> None:
    """Rules 8 and 15."""
    ledger = Ledger()
    account = ledger.open("a", parent=ledger.open("server"))
    account.borrow(2, 20)
    assert [d.partition(", but")[0] for d in ledger.discrepancies()] == [
        "account server owes 2 items and 20 bytes",
        "account a owes 2 items and 20 bytes",
    ]
    account.repay(2, 20)
    ledger.audit()


# -- limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "items", "nbytes", "passes"),
    [
        (Limit(items=5), 5, 0, True),  # at the limit still passes
        (Limit(items=5), 6, 0, False),
        (Limit(items=None, bytes=100), 999, 100, True),
        (Limit(items=None, bytes=100), 1, 101, False),
        (Limit(items=5, bytes=100), 6, 1, False),
        (Limit(items=0), 0, 0, True),
        (Limit(items=0), 1, 0, False),
        (NO_LIMIT, 1 << 40, 1 << 60, True),
    ],
)
async def test_readers_wait_above_the_limit_in_either_unit(
    ledger: Ledger, limit: Limit, items: int, nbytes: int, passes: bool
) -> None:
    account = ledger.open("a", limit=limit)
    loan = account.lend("", items=items, nbytes=nbytes) if items else None
    with anyio.move_on_after(0) as scope:
        await account.ensure_clear_funds()
    assert scope.cancelled_caught is not passes
    assert account.waits == (not passes)
    if loan is not None:
        loan.settle()


async def test_it_wakes_at_the_lower_mark_in_both_units(ledger: Ledger) -> None:
    account = ledger.open("a", limit=Limit(items=10, bytes=100, low_items=2, low_bytes=80))
    few = account.lend("", items=1, nbytes=81)
    many = account.lend("", items=10, nbytes=1)
    async with open_nursery() as nursery:
        nursery.start_soon(account.ensure_clear_funds)
        await wait_all_tasks_blocked()
        many.settle()  # (1, 81): the bytes are above their lower mark
        await wait_all_tasks_blocked()
        assert account.waiting == 1
        few.settle()
    assert (account.waiting, account.waits) == (0, 1)


async def test_clear_funds_are_no_checkpoint(ledger: Ledger) -> None:
    """It is called more often than anything is read: said so in its docstring."""
    account = ledger.open("a", parent=ledger.open("server"))
    with anyio.CancelScope() as scope:
        scope.cancel()
        await account.ensure_clear_funds()
        with pytest.raises(StopIteration):
            account.ensure_clear_funds().send(None)
    assert not scope.cancelled_caught
    assert account.waits == 0


async def test_a_wait_that_has_to_be_is_a_checkpoint(ledger: Ledger) -> None:
    account = ledger.open("a", limit=Limit(items=0))
    loan = account.lend("")
    with anyio.CancelScope() as scope:
        scope.cancel()
        await account.ensure_clear_funds()
    assert scope.cancelled_caught
    assert (account.waiting, account.waits, owed(account)) == (0, 1, (1, 0))
    loan.settle()
    await account.ensure_clear_funds()


def test_room_is_the_least_over_the_ancestors(ledger: Ledger) -> None:
    server = ledger.open("server", limit=Limit(items=None, bytes=1000))
    tenant = ledger.open("tenant", limit=NO_LIMIT, parent=server)
    a = ledger.open("a", limit=Limit(items=10, bytes=None), parent=tenant)
    b = ledger.open("b", limit=Limit(items=10, bytes=None), parent=tenant)
    assert a.room() == (10, 1000)
    loan = a.lend("", items=4, nbytes=300)
    assert (a.room(), b.room()) == ((6, 700), (10, 700))
    more = b.lend("", items=12, nbytes=800)
    assert (a.room(), b.room()) == ((6, -100), (-2, -100))
    loan.settle()
    more.settle()
    assert tenant.room() == (1 << 62, 1000)


@pytest.mark.parametrize("fan_out", [1, 2, 3, 7, 9, 10, 11, 100])
@pytest.mark.parametrize("nbytes", [0, 1, 30, 1000])
async def test_rule_9_cutting_a_run_by_arithmetic_admits_as_much_as_looking_at_each(
    fan_out: int, nbytes: int
) -> None:
    """A run of events is cut where looking before each of them would have stopped."""
    limit = Limit(items=57, bytes=2000)
    by_looking = Ledger().open("a", limit=limit)
    admitted = 0
    with anyio.move_on_after(0):
        while admitted < 10_000:
            await by_looking.ensure_clear_funds()
            by_looking.borrow(fan_out, fan_out * nbytes)
            admitted += 1

    account = Ledger().open("a", limit=limit)
    items, room = account.room()
    by_arithmetic = 1 + items // fan_out
    if nbytes:
        by_arithmetic = min(by_arithmetic, 1 + room // (fan_out * nbytes))
    assert admitted == by_arithmetic
    assert by_looking.debt_items <= 57 + fan_out  # the overshoot: one packet's fan-out


@pytest.mark.rule(13)
def test_a_limit_below_gives_each_account_its_own_chain(ledger: Ledger) -> None:
    """Only accounts with a limit are looked at; who has one is known below it (rule 13)."""
    server = ledger.open("server", limit=NO_LIMIT)
    tenant = ledger.open("tenant", limit=NO_LIMIT, parent=server)
    a = ledger.open("a", limit=Limit(items=1), parent=tenant)
    b = ledger.open("b", limit=NO_LIMIT, parent=tenant)
    assert (a.limited, b.limited, tenant.limited) == ((a,), (), ())
    server.limit = Limit(items=9)
    assert (a.limited, b.limited, tenant.limited) == ((a, server), (server,), (server,))
    b.limit = Limit(bytes=1)
    a.limit = NO_LIMIT
    assert (a.limited, b.limited, tenant.limited) == ((server,), (b, server), (server,))
    server.limit = NO_LIMIT
    assert (a.limited, b.limited, tenant.limited) == ((), (b,), ())
    assert server.limit is NO_LIMIT


def test_moving_a_limit_costs_the_same_however_many_accounts_are_below(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []
    monkeypatch.setattr(ledger, "limits_changed", told.append)
    server = ledger.open("server", limit=Limit(items=9))
    for i in range(1, 5):
        server.limit = Limit(items=i)
        server.limit = Limit(items=None, bytes=i)
    assert server.mark_bytes == 4
    assert not told
    server.limit = NO_LIMIT
    server.limit = Limit(items=None, bytes=None)  # the same
    assert told == [server]
    server.limit = Limit(items=None, bytes=4)
    assert told == [server, server]


# -- waiting for oneself (rule 5) -----------------------------------------------------------------


async def test_waiting_inside_a_loan_raises(ledger: Ledger) -> None:
    account = ledger.open("a")
    with account.lend(""), pytest.raises(SelfWaitError, match="a inside an open loan or turn of a"):
        await account.ensure_clear_funds()
    await account.ensure_clear_funds()


async def test_waiting_inside_a_turn_raises(ledger: Ledger) -> None:
    account = ledger.open("a")
    with account.turn(), pytest.raises(SelfWaitError):
        await account.ensure_clear_funds()
    loan = account.lend("")
    with loan.turn(), pytest.raises(SelfWaitError):
        await account.ensure_clear_funds()
    loan.settle()
    await account.ensure_clear_funds()


@pytest.mark.rule(13)
async def test_waiting_for_an_ancestor_or_a_sibling_under_a_limit_raises(ledger: Ledger) -> None:
    """What is owed inside counts there too (rule 13)."""
    server = ledger.open("server", limit=Limit(items=9))
    a = ledger.open("a", limit=NO_LIMIT, parent=server)
    b = ledger.open("b", limit=NO_LIMIT, parent=server)
    with a.lend(""):
        for account in (a, b, server):
            with pytest.raises(SelfWaitError):
                await account.ensure_clear_funds()
        server.limit = NO_LIMIT
        await b.ensure_clear_funds()  # nothing that is owed inside would be waited for
        with pytest.raises(SelfWaitError):
            await a.ensure_clear_funds()


async def test_another_account_may_be_waited_for(ledger: Ledger) -> None:
    a, b = ledger.open("a"), ledger.open("b")
    with a.lend(""):
        await b.ensure_clear_funds()
        with b.lend(""), pytest.raises(SelfWaitError):
            await a.ensure_clear_funds()
        await b.ensure_clear_funds()


async def test_another_task_is_not_affected(ledger: Ledger) -> None:
    account = ledger.open("a", limit=Limit(items=0))
    went_on = False

    async def reader() -> None:
        nonlocal went_on
        await account.ensure_clear_funds()
        went_on = True

    async with open_nursery() as nursery:
        with account.lend(""):
            nursery.start_soon(reader)
            await wait_all_tasks_blocked()
            assert account.waiting == 1
    assert went_on
    assert not ledger.inside


async def test_a_block_may_be_left_by_another_task(ledger: Ledger) -> None:
    """One in a generator, for example: the task that entered it is not inside for ever."""
    account, other = ledger.open("a"), ledger.open("b")

    def work(loan: LoanedItem[list[int]]) -> Iterator[int]:
        with loan as events:
            yield from events

    running = [work(account.lend([1, 2], items=2)) for _ in range(2)]
    assert [next(generator) for generator in running] == [1, 1]

    async def finish(generator: Iterator[int]) -> None:
        with other.lend(""):
            assert list(generator) == [2]
            with pytest.raises(SelfWaitError):
                await other.ensure_clear_funds()

    async with open_nursery() as nursery:
        nursery.start_soon(finish, running[0])
    with pytest.raises(SelfWaitError):
        await account.ensure_clear_funds()
    async with open_nursery() as nursery:
        nursery.start_soon(finish, running[1])
    await account.ensure_clear_funds()
    assert not ledger.inside
    assert account.debt_items == 0


def test_blocks_work_without_an_event_loop(ledger: Ledger) -> None:
    account = ledger.open("a")
    with account.lend(""), account.turn():
        assert account.debt_items == 2
        assert not ledger.inside


# -- opening and closing --------------------------------------------------------------------------


@pytest.mark.rule(14)
def test_opening_again_takes_over_the_debt(ledger: Ledger) -> None:
    """Rule 14."""
    account = ledger.open("mqtt/alice/1", limit=Limit(items=5))
    box = Box(ledger, "b")
    publish(account, [box], items=6, nbytes=60)
    account.close()
    assert account.state == "closing"
    assert ledger.accounts["mqtt/alice/1"] is account

    again = ledger.open("mqtt/alice/1")
    assert again is account
    assert (again.state, owed(again)) == ("owing", (6, 60))
    assert again.limit == Limit(items=5)
    box.work(6)
    assert again.state == "clear"
    assert ledger.accounts["mqtt/alice/1"] is account
    again.close()
    assert not ledger.accounts


@pytest.mark.rule(14)
async def test_reconnecting_does_not_get_around_the_limit(ledger: Ledger) -> None:
    """Rule 14: a client that fills its limit and reconnects finds its debt waiting."""
    box = Box(ledger, "b")
    with ledger.open("alice", limit=Limit(items=5)) as account:
        publish(account, [box], items=6)
    with ledger.open("alice", limit=Limit(items=5)) as account:
        with anyio.move_on_after(0) as scope:
            await account.ensure_clear_funds()
        assert scope.cancelled_caught
        box.work(6)
        await account.ensure_clear_funds()


def test_each_opening_has_its_closing(ledger: Ledger) -> None:
    account = ledger.open("a")
    assert ledger.open("a") is account
    account.close()
    assert account.state == "clear"
    account.lend("").settle()
    account.close()
    assert not ledger.accounts
    account.close()  # once too often does no harm
    assert ledger.open("a") is not account


def test_the_limit_of_an_open_account_does_not_change_by_opening_it(ledger: Ledger) -> None:
    account = ledger.open("a", limit=Limit(items=5))
    assert ledger.open("a", limit=Limit(items=5)) is account
    assert ledger.open("a") is account
    with pytest.raises(AccountError, match=r"a is open with Limit\(items=5.*set its `limit`"):
        ledger.open("a", limit=Limit(items=7))
    assert account.opens == 3
    account.limit = Limit(items=7)
    assert account.mark_items == 7
    # One that is only paying off takes the limit of those who come.
    loan = account.lend("")
    for _ in range(3):
        account.close()
    assert ledger.open("a", limit=Limit(items=9)) is account
    assert account.mark_items == 9
    loan.settle()


@pytest.mark.parametrize("limit", [5, "5", (5, 5)])
def test_a_number_is_no_limit(limit: Any, ledger: Ledger) -> None:
    with pytest.raises(TypeError, match=r"limit is a Limit, .*write limit=Limit\(items="):
        ledger.open("a", limit=limit)
    account = ledger.open("a")
    with pytest.raises(TypeError, match=r"write limit=Limit\("):
        account.limit = limit


@pytest.mark.parametrize("items", ["5", 2.5])
def test_a_limit_is_a_whole_number(items: Any) -> None:
    with pytest.raises(TypeError, match="items must be a whole number"):
        Limit(items=items)


def test_what_a_ledger_says_of_itself(ledger: Ledger) -> None:
    account = ledger.open("a")
    loan = account.lend("", items=3, nbytes=3000)
    ledger.open("b")
    assert repr(ledger) == (
        "<Ledger: 1 of 2 accounts owe 3 items and 3,000 bytes; 0 have readers that wait>"
    )
    loan.settle()


@pytest.mark.rule(2)
def test_a_closed_account_pays_off_and_then_sends_nothing_more(ledger: Ledger) -> None:
    """Rule 2: a departed connection's clean-up is charged to it, while it still owes."""
    account = ledger.open("a")
    box = Box(ledger, "b")
    loan = account.lend("")
    account.close()
    publish(account, [box])
    box.work()
    loan.settle()
    assert "a" not in ledger.accounts
    with pytest.raises(ClosedAccountError, match="account a is closed; open it again"):
        account.lend("")
    with pytest.raises(ClosedAccountError):
        publish(account, [box])
    assert not box.queue
    assert not ledger.turns


@pytest.mark.rule(14)
def test_a_name_is_known_under_one_parent(ledger: Ledger) -> None:
    """Rule 14: or a debt would be left behind by changing tenants."""
    tenant = ledger.open("t1")
    loan = ledger.open("a", parent=tenant).lend("")
    with pytest.raises(AccountError, match="account a is under t1; close it"):
        ledger.open("a", parent=ledger.open("t2"))
    with pytest.raises(AccountError, match="before opening it under no parent"):
        ledger.open("a")
    loan.settle()
    ledger.accounts["a"].close()
    assert ledger.open("a", parent=ledger.open("t2")).chain[-1].name == "t2"


def test_a_parent_stays_until_its_last_child_is_gone(ledger: Ledger) -> None:
    server = ledger.open("server")
    a, b = ledger.open("a", parent=server), ledger.open("b", parent=server)
    loan = b.lend("", nbytes=7)
    server.close()
    a.close()
    b.close()
    assert server.state == "closing"
    assert sorted(ledger.accounts) == ["b", "server"]
    ledger.audit()
    loan.settle()
    assert not ledger.accounts
    assert ledger.statistics().borrowed_bytes == 7


def test_a_parent_closed_before_a_child_that_owes_nothing(ledger: Ledger) -> None:
    server = ledger.open("server")
    child = ledger.open("a", parent=ledger.open("tenant", parent=server))
    server.close()
    ledger.accounts["tenant"].close()
    assert len(ledger.accounts) == 3
    child.lend("").settle()  # still open
    child.close()
    assert not ledger.accounts


@pytest.mark.rule(2)
def test_a_block_keeps_its_account_open(ledger: Ledger) -> None:
    """For what has to be paid at its end, whoever closes the account meanwhile (rule 2)."""
    account = ledger.open("a", limit=Limit(items=5), parent=ledger.open("server"))
    with account.kept_open() as kept:
        assert kept is account
        account.close()
        assert account.state == "clear"
        account.lend("").settle()
    assert "a" not in ledger.accounts
    with pytest.raises(ClosedAccountError), account.kept_open():
        pass


def test_a_block_keeps_an_account_open_that_is_being_paid_off(ledger: Ledger) -> None:
    account = ledger.open("a", limit=Limit(items=5))
    loan = account.lend("")
    account.close()

    def serve() -> None:
        with account.kept_open():
            loan.settle()
            account.lend("").settle()
            assert account.limit == Limit(items=5)
            raise LookupError

    with pytest.raises(LookupError):
        serve()
    assert not ledger.accounts


@pytest.mark.rule(8)
async def test_an_account_is_not_forgotten_while_its_reader_waits() -> None:
    """Rule 8: what was waited is in the totals, which never fall."""
    clock = MockClock()
    ledger = Ledger(clock=clock.current_time)
    server = ledger.open("server", limit=Limit(items=1, low_items=0))
    account = ledger.open("a", limit=Limit(items=0), parent=server)
    loan, of_server = account.lend(""), server.lend("", items=2)
    async with open_nursery() as nursery:
        nursery.start_soon(account.ensure_clear_funds)
        await wait_all_tasks_blocked()
        account.close()
        clock.jump(5)
        assert ledger.statistics().waited_seconds == 5
        loan.settle()
        assert ledger.statistics().waited_seconds == 5
        await wait_all_tasks_blocked()
        # It owes nothing any more, and waits for its server's debt: still to be seen (rule 11).
        assert ledger.statistics().waiting == 1
        assert account.state == "closing"
        with pytest.raises(ClosedAccountError):
            account.lend("")
        clock.jump(2)
        of_server.settle()
        assert ledger.statistics().waited_seconds == 7
    assert list(ledger.accounts) == ["server"]
    assert (ledger.statistics().waited_seconds, ledger.statistics().waits) == (7, 1)
    ledger.audit()


# -- the statement --------------------------------------------------------------------------------


async def test_the_statement() -> None:
    clock = MockClock()
    ledger = Ledger(clock=clock.current_time)
    server = ledger.open("server", limit=NO_LIMIT)
    account = ledger.open("a", limit=Limit(items=4, low_items=1), parent=server)
    account.standing().add(2, 200)
    loan = account.lend("", items=5, nbytes=50)
    async with open_nursery() as nursery:
        nursery.start_soon(account.ensure_clear_funds)
        await wait_all_tasks_blocked()
        clock.jump(2)
        nursery.start_soon(account.ensure_clear_funds)
        await wait_all_tasks_blocked()
        clock.jump(3)

        statement = account.statistics()
        assert (statement.name, statement.parent, statement.state) == ("a", "server", "throttled")
        assert (statement.debt_items, statement.debt_bytes) == (5, 50)
        assert (statement.peak_items, statement.peak_bytes) == (5, 50)
        assert (statement.borrowed_items, statement.borrowed_bytes) == (5, 50)
        assert (statement.limit_items, statement.low_items) == (4, 1)
        assert (statement.limit_bytes, statement.low_bytes) == (8 << 20, 4 << 20)
        assert (statement.waiting, statement.waits) == (2, 2)
        assert (statement.waiting_seconds, statement.waited_seconds) == (5.0, 8.0)
        assert (statement.standing_items, statement.standing_bytes) == (2, 200)
        assert statement.blame == {}  # no stretch has ended

        above = server.statistics()
        assert (above.parent, above.state, above.debt_items) == (None, "owing", 5)
        assert (above.limit_items, above.limit_bytes) == (None, None)
        assert (above.low_items, above.low_bytes) == (None, None)
        loan.settle()
    statement = account.statistics()
    assert (statement.state, statement.waiting, statement.waits) == ("clear", 0, 2)
    assert (statement.waiting_seconds, statement.waited_seconds) == (0.0, 8.0)
    assert "a: clear, owes 0 items and 0 bytes, 0 waiting" in repr(account)


# -- who was waited on ----------------------------------------------------------------------------


async def test_blame_adds_up_to_the_time_waited() -> None:
    """Each stretch of a wait counts for the holder whose repayment ended it."""
    clock = MockClock()
    ledger = Ledger(clock=clock.current_time)
    account = ledger.open("a", limit=Limit(items=2, low_items=0))
    fast, slow, unseen = boxes(ledger, 3)
    publish(account, [fast, slow, slow, slow])
    async with open_nursery() as nursery:
        nursery.start_soon(account.ensure_clear_funds)
        await wait_all_tasks_blocked()
        clock.jump(1)
        fast.work()
        clock.jump(2)
        slow.work()
        clock.jump(4)
        slow.work()
        # It is charged for meanwhile and says nothing about who is waited on.
        publish(account, [unseen])
        clock.jump(8)
        slow.work()
        clock.jump(16)
        unseen.work()
    statement = account.statistics()
    # The router ended no stretch that took any time.
    blame = {name: seconds for name, seconds in statement.blame.items() if seconds}
    assert blame == {fast.name: 1.0, slow.name: 14.0, unseen.name: 16.0}
    assert sum(blame.values()) == statement.waited_seconds == 31.0
    # Nobody waits any more: nothing is added.
    publish(account, [slow])
    clock.jump(32)
    slow.work()
    assert sum(account.statistics().blame.values()) == 31.0


async def test_what_an_ancestors_holders_kept_it_waiting_for_is_on_its_statement() -> None:
    clock = MockClock()
    ledger = Ledger(clock=clock.current_time)
    server = ledger.open("server", limit=Limit(items=2, low_items=1))
    a = ledger.open("a", limit=Limit(items=1, low_items=0), parent=server)
    b = ledger.open("b", limit=NO_LIMIT, parent=server)
    of_a, of_b = boxes(ledger, 2)
    publish(a, [of_a, of_a])
    publish(b, [of_b, of_b, of_b])
    async with open_nursery() as nursery:
        nursery.start_soon(a.ensure_clear_funds)
        await wait_all_tasks_blocked()
        clock.jump(1)
        of_a.work(2)  # its own account is clear, the server's is not yet
        await wait_all_tasks_blocked()
        clock.jump(2)
        of_b.work(2)
    assert a.statistics().blame == {of_a.name: 1.0, of_b.name: 2.0}
    assert a.statistics().waited_seconds == 3.0
    of_b.work()


async def test_nobody_is_blamed_for_what_was_over_when_the_reader_came() -> None:
    """The later of two that wait for their server has not waited as long as the line exists."""
    clock = MockClock()
    ledger = Ledger(clock=clock.current_time)
    server = ledger.open("server", limit=Limit(items=1, low_items=0))
    a, b, c = (ledger.open(name, limit=NO_LIMIT, parent=server) for name in "abc")
    first, second = boxes(ledger, 2)
    publish(server, [first, second])
    async with open_nursery() as nursery:
        nursery.start_soon(a.ensure_clear_funds)
        await wait_all_tasks_blocked()
        clock.jump(9)
        nursery.start_soon(b.ensure_clear_funds)
        await wait_all_tasks_blocked()
        clock.jump(1)
        first.work()
        clock.jump(2)
        with anyio.move_on_after(0):  # comes, and goes before anything is repaid
            await c.ensure_clear_funds()
        second.work()
    assert a.statistics().blame == {first.name: 10.0, second.name: 2.0}
    assert b.statistics().blame == {first.name: 1.0, second.name: 2.0}
    assert c.statistics().blame == {}
    assert server.statistics().blame == {first.name: 10.0, second.name: 2.0}
    assert [x.statistics().waited_seconds for x in (a, b)] == [12.0, 3.0]


def test_blame_is_bounded() -> None:
    blame: dict[str, float] = {}
    for i in range(1000):
        add_blame(blame, f"peer {i}", 1.0)
    assert len(blame) == MAX_BLAMED + 1
    assert blame[OTHERS] == 1000 - MAX_BLAMED
    add_blame(blame, "peer 0", 1.0)
    assert blame["peer 0"] == 2.0


def test_the_default_clock_is_monotonic() -> None:
    assert Ledger().clock is time.monotonic


@pytest.mark.rule(7)
def test_repaying_counts_by_outcome(ledger: Ledger) -> None:
    """Rule 7: everything ends in a counted outcome."""
    account = ledger.open("a")
    for outcome in Outcome:
        account.lend("", items=1 + outcome, nbytes=10).settle(outcome=outcome)
    totals = ledger.statistics()
    assert totals.repaid_items == {o.label: 1 + o for o in Outcome}
    assert set(totals.repaid_bytes.values()) == {10}
