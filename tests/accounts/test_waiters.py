"""Rule 6: all waiters go on, first come first served, each after looking again.

Trio runs the tasks of a batch in random order, so each scenario is run under many seeds.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from functools import partial

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from anyio.abc import TaskGroup

from clearfunds.accounts import NO_LIMIT, Account, Ledger, Limit, LoanedItem
from clearfunds.accounts._gate import gate_of
from clearfunds.accounts._line import readers_of
from clearfunds.accounts._waiters import NOBODY, ticket_of
from tests.accounts.conftest import run_seeded
from tests.loops import open_nursery

pytestmark = pytest.mark.rule(6)


SEEDS = range(50)
TEN = Limit(items=10, low_items=4)


class Bank:
    """A ledger, loans to settle at will, and readers that note in which order they go on."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.went_on: list[str] = []
        self.cancelled: list[str] = []
        self.loans: list[LoanedItem[str]] = []
        self.scopes: dict[str, anyio.CancelScope] = {}

    def owe(self, account: Account, items: int) -> LoanedItem[str]:
        loan = account.lend("", items=items)
        self.loans.append(loan)
        return loan

    async def read(self, name: str, account: Account, borrow: int) -> None:
        with anyio.CancelScope() as scope:
            self.scopes[name] = scope
            await account.ensure_clear_funds()
            self.went_on.append(name)
            if borrow:
                self.owe(account, borrow)
        if scope.cancelled_caught:
            self.cancelled.append(name)

    async def arrive(
        self, nursery: TaskGroup, account: Account, *names: str, borrow: int = 0
    ) -> None:
        """Let readers come, one after the other, and wait until none can go further."""
        for name in names:
            nursery.start_soon(self.read, name, account, borrow)
            await wait_all_tasks_blocked()

    def close(self) -> None:
        """Nothing is left of anybody's wait, and the books balance."""
        for account in self.ledger.accounts.values():
            assert account.waiting == 0
            assert not account.line
            assert account.gated == gate_of(account).throttled
        self.ledger.audit()
        for loan in self.loans:
            if loan.items:
                loan.settle()
        self.ledger.audit()


Scenario = Callable[[Bank], Awaitable[None]]


async def one_large_repayment(bank: Bank) -> None:
    account = bank.ledger.open("a", limit=TEN)
    debt = bank.owe(account, 50)
    async with open_nursery() as nursery:
        await bank.arrive(nursery, account, "1", "2", "3", "4", "5", borrow=1)
        assert account.waiting == 5
        debt.settle(45)
        await wait_all_tasks_blocked()
        assert account.waiting == 5  # five are owed, four is the mark
        debt.settle()
    assert bank.went_on == ["1", "2", "3", "4", "5"]
    assert (account.waits, account.debt_items) == (5, 5)


async def one_that_borrows_past_the_limit_keeps_the_rest_waiting(bank: Bank) -> None:
    account = bank.ledger.open("a", limit=TEN)
    debt = bank.owe(account, 11)
    async with open_nursery() as nursery:
        await bank.arrive(nursery, account, "1")
        await bank.arrive(nursery, account, "greedy", borrow=20)
        await bank.arrive(nursery, account, "3", "4")
        debt.settle()
        await wait_all_tasks_blocked()
        assert bank.went_on == ["1", "greedy"]
        assert gate_of(account).throttled
        # In place: who comes now stands behind those who looked again and stayed.
        await bank.arrive(nursery, account, "newcomer")
        assert account.waiting == 3
        bank.loans[-1].settle(15)
        await wait_all_tasks_blocked()
        assert bank.went_on == ["1", "greedy"]  # five are owed, four is the mark
        bank.loans[-1].settle()
    assert bank.went_on == ["1", "greedy", "3", "4", "newcomer"]
    assert account.waits == 5  # each waited once, however often it looked


async def a_newcomer_stands_behind(bank: Bank) -> None:
    account = bank.ledger.open("a", limit=TEN)
    debt = bank.owe(account, 11)
    async with open_nursery() as nursery:
        await bank.arrive(nursery, account, "1", "2", "3")
        debt.settle()
        # The account is open again and those in line have not run yet: no overtaking.
        assert not gate_of(account).throttled
        nursery.start_soon(bank.read, "newcomer", account, 0)
    assert bank.went_on == ["1", "2", "3", "newcomer"]


async def a_newcomer_from_the_same_task_stands_behind(bank: Bank) -> None:
    account = bank.ledger.open("a", limit=TEN)
    debt = bank.owe(account, 11)
    async with open_nursery() as nursery:
        await bank.arrive(nursery, account, "1", "2")
        debt.settle()
        await bank.read("newcomer", account, 0)
        assert bank.went_on == ["1", "2", "newcomer"]


async def a_cancelled_head_passes_the_baton(bank: Bank) -> None:
    account = bank.ledger.open("a", limit=TEN)
    debt = bank.owe(account, 11)
    async with open_nursery() as nursery:
        await bank.arrive(nursery, account, "1", "2", "3")
        bank.scopes["1"].cancel()
        debt.settle()
    assert bank.went_on == ["2", "3"]
    assert bank.cancelled == ["1"]


async def a_head_cancelled_after_it_was_woken(bank: Bank) -> None:
    account = bank.ledger.open("a", limit=TEN)
    debt = bank.owe(account, 11)
    async with open_nursery() as nursery:
        await bank.arrive(nursery, account, "1", "2", "3")
        debt.settle()
        bank.scopes["1"].cancel()
    assert bank.went_on == ["1", "2", "3"]  # it had been let through: not a checkpoint any more


async def one_cancelled_in_the_middle(bank: Bank) -> None:
    account = bank.ledger.open("a", limit=TEN)
    debt = bank.owe(account, 11)
    async with open_nursery() as nursery:
        await bank.arrive(nursery, account, "1", "2", "3")
        bank.scopes["2"].cancel()
        await wait_all_tasks_blocked()
        assert account.waiting == 2
        debt.settle()
    assert bank.went_on == ["1", "3"]


async def all_cancelled_at_once(bank: Bank) -> None:
    account = bank.ledger.open("a", limit=TEN)
    bank.owe(account, 11)
    async with open_nursery() as nursery:
        await bank.arrive(nursery, account, "1", "2", "3")
        nursery.cancel_scope.cancel()
    assert bank.went_on == []
    assert account.waiting == 0
    assert account.statistics().waited_seconds > 0


async def waiters_at_parent_and_child(bank: Bank) -> None:
    """Rule 13: a child whose own account is clear waits for its parent's."""
    parent = bank.ledger.open("tenant", limit=Limit(items=20, low_items=10))
    a = bank.ledger.open("a", limit=TEN, parent=parent)
    b = bank.ledger.open("b", limit=TEN, parent=parent)
    of_a, of_b = bank.owe(a, 15), bank.owe(b, 10)
    async with open_nursery() as nursery:
        await bank.arrive(nursery, a, "a1")  # over its own limit
        await bank.arrive(nursery, b, "b1")  # its tenant is
        await bank.arrive(nursery, a, "a2")
        await bank.arrive(nursery, b, "b2")
        of_b.settle()  # the tenant owes 15
        await wait_all_tasks_blocked()
        assert bank.went_on == []
        of_a.settle(5)  # the tenant owes 10, and a's account as much
        await wait_all_tasks_blocked()
        assert bank.went_on == ["b1", "b2"]
        assert a.waiting == 2
        of_a.settle(6)
    assert bank.went_on == ["b1", "b2", "a1", "a2"]


async def who_moves_on_to_the_parent_keeps_the_place(bank: Bank) -> None:
    parent = bank.ledger.open("tenant", limit=Limit(items=20, low_items=10))
    a = bank.ledger.open("a", limit=TEN, parent=parent)
    b = bank.ledger.open("b", limit=NO_LIMIT, parent=parent)
    of_a, of_b = bank.owe(a, 15), bank.owe(b, 20)
    async with open_nursery() as nursery:
        await bank.arrive(nursery, a, "a1")
        await bank.arrive(nursery, b, "b2")
        await bank.arrive(nursery, a, "a3")
        await bank.arrive(nursery, b, "b4")
        of_a.settle()  # a's readers have to wait for their tenant now, in front of b's
        await wait_all_tasks_blocked()
        assert bank.went_on == []
        assert parent.line is not None
        assert [w.account.name for w in parent.line.waiters] == ["a", "b", "a", "b"]
        of_b.settle(10)
    assert bank.went_on == ["a1", "b2", "a3", "b4"]
    assert (a.waits, b.waits, parent.waits) == (2, 2, 0)


async def throttled_again_in_between(bank: Bank) -> None:
    """Who looked again and found the funds gone keeps the place."""
    account = bank.ledger.open("a", limit=TEN)
    debt = bank.owe(account, 11)
    async with open_nursery() as nursery:
        await bank.arrive(nursery, account, "1", "2")
        for _ in range(3):
            debt.settle()
            debt = bank.owe(account, 11)  # before anyone could look
            await wait_all_tasks_blocked()
            assert bank.went_on == []
            assert gate_of(account).throttled
        await bank.arrive(nursery, account, "3")
        debt.settle()
    assert bank.went_on == ["1", "2", "3"]


async def between_the_marks_nobody_enters(bank: Bank) -> None:
    account = bank.ledger.open("a", limit=TEN)
    debt = bank.owe(account, 11)
    async with open_nursery() as nursery:
        await bank.arrive(nursery, account, "1")
        debt.settle(5)  # six are owed: below the limit, above the lower mark
        await bank.arrive(nursery, account, "2")
        assert bank.went_on == []
        debt.settle(2)
    assert bank.went_on == ["1", "2"]


async def a_throttled_account_without_readers_opens_by_itself(bank: Bank) -> None:
    account = bank.ledger.open("a", limit=TEN)
    debt = bank.owe(account, 11)
    with anyio.move_on_after(0):
        await account.ensure_clear_funds()
    assert gate_of(account).throttled
    debt.settle(7)
    assert not gate_of(account).throttled
    await bank.read("1", account, 0)
    assert bank.went_on == ["1"]


async def a_raised_limit_lets_go(bank: Bank) -> None:
    parent = bank.ledger.open("tenant", limit=TEN)
    account = bank.ledger.open("a", limit=NO_LIMIT, parent=parent)
    bank.owe(account, 11)
    async with open_nursery() as nursery:
        await bank.arrive(nursery, account, "1", "2")
        parent.limit = Limit(items=20, low_items=10)  # eleven are owed, ten is the mark
        await wait_all_tasks_blocked()
        assert bank.went_on == []
        parent.limit = Limit(items=22)
    assert bank.went_on == ["1", "2"]


async def a_limit_taken_away_lets_go(bank: Bank) -> None:
    parent = bank.ledger.open("tenant", limit=TEN)
    account = bank.ledger.open("a", limit=NO_LIMIT, parent=parent)
    bank.owe(account, 11)
    async with open_nursery() as nursery:
        await bank.arrive(nursery, account, "1", "2")
        parent.limit = NO_LIMIT
        late = bank.ledger.open("b", limit=NO_LIMIT, parent=parent)
        await bank.read("newcomer", late, 0)
    assert bank.went_on == ["1", "2", "newcomer"]


async def a_limit_given_later_holds(bank: Bank) -> None:
    parent = bank.ledger.open("tenant", limit=NO_LIMIT)
    account = bank.ledger.open("a", limit=NO_LIMIT, parent=parent)
    debt = bank.owe(account, 11)
    await bank.read("1", account, 0)
    parent.limit = TEN
    async with open_nursery() as nursery:
        await bank.arrive(nursery, account, "2")
        assert bank.went_on == ["1"]
        debt.settle()
    assert bank.went_on == ["1", "2"]


SCENARIOS: list[Scenario] = [
    one_large_repayment,
    one_that_borrows_past_the_limit_keeps_the_rest_waiting,
    a_newcomer_stands_behind,
    a_newcomer_from_the_same_task_stands_behind,
    a_cancelled_head_passes_the_baton,
    a_head_cancelled_after_it_was_woken,
    one_cancelled_in_the_middle,
    all_cancelled_at_once,
    waiters_at_parent_and_child,
    who_moves_on_to_the_parent_keeps_the_place,
    throttled_again_in_between,
    between_the_marks_nobody_enters,
    a_throttled_account_without_readers_opens_by_itself,
    a_raised_limit_lets_go,
    a_limit_taken_away_lets_go,
    a_limit_given_later_holds,
]


@pytest.mark.rule(5, 6, 13)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_waiting(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules 5, 6 and 13."""

    async def main() -> None:
        bank = Bank()
        with anyio.fail_after(10):
            await scenario(bank)
        bank.close()

    for seed in SEEDS:
        run_seeded(main, seed, monkeypatch)


async def anything(bank: Bank, chance: random.Random) -> None:
    """Do what comes, and check after each step that nobody is left behind and nobody overtakes."""
    ledger = bank.ledger
    server = ledger.open("server", limit=Limit(items=30))
    tenants = [
        ledger.open("t1", limit=Limit(items=15), parent=server),
        ledger.open("t2", limit=NO_LIMIT, parent=server),
    ]
    leaves = [
        ledger.open(f"c{i}", limit=chance.choice([Limit(items=8), NO_LIMIT]), parent=tenants[i % 2])
        for i in range(4)
    ]
    names = iter(range(1_000_000))
    arrived: dict[str, Account] = {}

    async with open_nursery() as nursery:
        for _ in range(60):
            for _ in range(chance.randrange(1, 4)):
                step = chance.random()
                alive = [loan for loan in bank.loans if loan.items]
                if step < 0.3:
                    bank.owe(chance.choice(leaves), chance.randrange(1, 12))
                elif step < 0.6 and alive:
                    loan = chance.choice(alive)
                    loan.settle(chance.randrange(1, loan.items + 1))
                elif step < 0.85:
                    name = str(next(names))
                    arrived[name] = chance.choice(leaves)
                    nursery.start_soon(bank.read, name, arrived[name], chance.randrange(3))
                elif step < 0.95 and bank.scopes:
                    bank.scopes[chance.choice(list(bank.scopes))].cancel()
                elif step < 0.96:
                    account = chance.choice([server, *tenants, *leaves])
                    alarm = chance.choice(["memory", "disk"])
                    chance.choice([account.halt, account.resume, account.resume])(alarm)
                elif step < 0.975:
                    account = chance.choice(leaves)
                    ledger.open(account.name, parent=account.parent)
                    account.close()
                else:
                    account = chance.choice([server, *tenants, *leaves])
                    account.limit = chance.choice([Limit(items=8), Limit(items=20), NO_LIMIT])
            await wait_all_tasks_blocked()
            ledger.audit()
            check_lines(ledger)
        for account in (server, *tenants, *leaves):
            account.resume("memory")
            account.resume("disk")
        for loan in bank.loans:
            if loan.items:
                loan.settle()
        # What the last ones borrow may keep others waiting: they go on as that is repaid.
        while any(a.waiting for a in leaves):
            await wait_all_tasks_blocked()
            for loan in bank.loans:
                if loan.items:
                    loan.settle()
    assert sorted(bank.went_on + bank.cancelled, key=int) == sorted(arrived, key=int)


def check_lines(ledger: Ledger) -> None:
    """When no task can run, whoever waits does so at a closed account of its own chain."""
    totals = ledger.statistics()
    states = [account.state for account in ledger.accounts.values()]
    assert totals.accounts == {state: states.count(state) for state in totals.accounts}
    assert totals.waiting == sum(account.waiting for account in ledger.accounts.values())
    for account in ledger.accounts.values():
        for waiter in readers_of(account):
            assert waiter.at is not None
            assert waiter.at in account.chain
            closed = gate_of(waiter.at).throttled or waiter.at.halted
            assert closed, f"a reader of {account} is left behind at {waiter.at}"
        line = account.line.waiters if account.line else []
        tickets = [w.ticket for w in line]
        assert tickets == sorted(tickets)
        assert all(w.at is account for w in line)
        assert account.gated == (gate_of(account).throttled or bool(account.halted) or bool(line))
        if gate_of(account).throttled:
            low = (account.low_items, account.low_bytes)
            assert account.debt_items > low[0] or account.debt_bytes > low[1]


@pytest.mark.rule(5, 6, 8, 13)
@pytest.mark.parametrize("seed", range(40))
def test_nobody_is_left_behind_whatever_comes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules 5, 6, 8 and 13."""

    async def main() -> None:
        bank = Bank()
        with anyio.fail_after(30):
            await anything(bank, random.Random(seed))
        bank.close()

    run_seeded(main, seed, monkeypatch)


def test_each_goes_first_at_its_place_in_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many readers at random accounts under one tenant: let go one by one, by ticket."""

    async def main(chance: random.Random) -> None:
        bank = Bank()
        parent = bank.ledger.open("tenant", limit=Limit(items=0))
        leaves = [bank.ledger.open(f"c{i}", limit=NO_LIMIT, parent=parent) for i in range(3)]
        bank.owe(parent, 1)
        names = [str(i) for i in range(12)]
        async with open_nursery() as nursery:
            for name in names:
                await bank.arrive(nursery, chance.choice(leaves), name, borrow=1)
            for n in range(1, len(names) + 1):
                bank.loans[-1].settle()
                await wait_all_tasks_blocked()
                assert bank.went_on == names[:n]
        bank.close()

    for seed in SEEDS:
        run_seeded(partial(main, random.Random(seed)), seed, monkeypatch)


async def test_a_ticket_is_not_kept_for_a_task_that_comes_later_at_the_same_address() -> None:
    """It is its reader's alone: of the task that was let through."""
    alice = Ledger().open("alice", limit=TEN)
    at: list[int] = []

    async def read() -> None:
        at.append(id(alice.ledger.task()))
        await alice.ensure_clear_funds()
        assert ticket_of(alice) != NOBODY

    async def come_later() -> None:
        at.append(id(alice.ledger.task()))
        assert ticket_of(alice) == NOBODY

    loan = alice.lend("", items=11)
    async with open_nursery() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        loan.settle()
    for _ in range(100):
        async with open_nursery() as nursery:
            nursery.start_soon(come_later)
        if at[-1] == at[0]:
            break
    assert at.count(at[0]) == 2  # or nothing has been tried
