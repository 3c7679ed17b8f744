"""Weighted shares, whatever happens: nothing is lost, nobody is stuck, nobody gets too little.

A tree of two levels, of which each account may be shared or not, has a random life: loans come and
go, readers come, go on and are cancelled, weights and limits change, accounts are closed and opened
again. After each step what shares keep is compared with what there is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest
import trio
from anyio import wait_all_tasks_blocked
from anyio.abc import TaskGroup
from hypothesis import given, settings
from hypothesis import strategies as st

from clearfunds.accounts import NO_LIMIT, Account, Ledger, Limit, LoanedItem
from clearfunds.accounts._gate import gate_of
from clearfunds.accounts.limits._shares import HARD, HARD_STEP, OVER, RELEASE, RISE, wants_more
from tests.accounts.gates import is_full, is_tight
from tests.loops import open_nursery

if TYPE_CHECKING:
    from collections.abc import Iterable

LEAVES = 5
PARENTS = ("server", "red", "blue")

limits = st.builds(
    Limit,
    items=st.none() | st.integers(0, 40),
    bytes=st.none() | st.integers(0, 4000),
)
leaves = st.integers(0, LEAVES - 1)
weights = st.sampled_from([0.5, 1, 2, 3, 10])
steps = st.one_of(
    st.tuples(st.just("lend"), leaves, st.integers(1, 20), st.integers(0, 1500)),
    st.tuples(st.just("lend"), leaves, st.integers(1, 20), st.integers(0, 1500)),
    st.tuples(st.just("settle"), st.integers(0, 50), st.integers(1, 20)),
    st.tuples(st.just("settle"), st.integers(0, 50), st.integers(1, 20)),
    st.tuples(st.just("read"), leaves, st.integers(0, 10)),
    st.tuples(st.just("read"), leaves, st.integers(0, 10)),
    st.tuples(st.just("cancel"), st.integers(0, 50)),
    st.tuples(st.just("weight"), st.integers(0, LEAVES + 1), weights),
    st.tuples(st.just("limit"), st.sampled_from(PARENTS), limits),
    st.tuples(st.just("share"), st.sampled_from(PARENTS), st.booleans()),
    st.tuples(st.just("close"), leaves),
)


def part_of(child: Account, parent: Account) -> float:
    """Return which part of its parent's limit a child has at least, by the weights."""
    owing = [c for c in parent.below or () if c is child or c.debt_items or c.debt_bytes]
    return child.weight / sum(each.weight for each in owing)


def marks_of(account: Account) -> tuple[float, float]:
    """Return what there is at least to share below an account: its limit, or its own part."""
    parent = account.parent
    if not wants_more(account) or parent is None:
        return account.mark_items, account.mark_bytes
    part = part_of(account, parent)
    items, nbytes = marks_of(parent)
    return min(account.mark_items, part * items), min(account.mark_bytes, part * nbytes)


def is_above(account: Account, marks: tuple[float, float], times: float = 1) -> bool:
    """Whether an account owes more than so much of something."""
    times *= 1 + 1e-9
    return account.debt_items > times * marks[0] or account.debt_bytes > times * marks[1]


class Tree:
    """A server, two tenants and five leaves, one of which is the server's own child."""

    def __init__(self, limit: Limit) -> None:
        self.ledger = Ledger(clock=lambda: 0.0)
        self.server = self.ledger.open("server", limit=limit, shared=True)
        self.tenants = [
            self.ledger.open("red", limit=NO_LIMIT, parent=self.server, shared=True),
            self.ledger.open("blue", limit=NO_LIMIT, parent=self.server),
        ]
        self.loans: list[LoanedItem[None]] = []
        self.scopes: list[anyio.CancelScope] = []

    def leaf(self, number: int) -> Account:
        """Return a leaf, which is opened if it is not."""
        name = f"leaf{number}"
        account = self.ledger.accounts.get(name)
        if account is None or account.opens <= 0:
            parent = [*self.tenants, self.server][number % 3]
            account = self.ledger.open(name, limit=NO_LIMIT, parent=parent)
        return account

    def lend(self, account: Account, items: int, nbytes: int) -> None:
        self.loans.append(account.lend(None, items=items, nbytes=nbytes))

    async def read(self, account: Account, items: int) -> None:
        with anyio.CancelScope() as scope:
            self.scopes.append(scope)
            await account.ensure_clear_funds()
            for above in account.chain:
                if above.shares is not None:
                    assert not is_above(above, (above.mark_items, above.mark_bytes), HARD)
            if items and account.opens > 0:
                self.lend(account, items, 10 * items)

    def do(self, step: tuple[object, ...], nursery: TaskGroup) -> None:
        match step:
            case ("lend", int(number), int(items), int(nbytes)):
                self.lend(self.leaf(number), items, nbytes)
            case ("settle", int(number), int(items)) if self.loans:
                loan = self.loans[number % len(self.loans)]
                loan.settle(min(items, loan.items))
                if not loan.items:
                    self.loans.remove(loan)
            case ("read", int(number), int(items)):
                nursery.start_soon(self.read, self.leaf(number), items)
            case ("cancel", int(number)) if self.scopes:
                self.scopes[number % len(self.scopes)].cancel()
            case ("weight", int(number), float(weight) | int(weight)):
                some = [*(self.leaf(n) for n in range(LEAVES)), *self.tenants]
                some[number].weight = weight
            case ("limit", str(name), Limit() as limit):
                self.ledger.accounts[name].limit = limit
            case ("share", str(name), bool(shared)):
                self.ledger.accounts[name].shared = shared
            case ("close", int(number)):
                self.leaf(number).close()
            case _:
                pass

    # -- what has to be so --------------------------------------------------------------------

    def check(self) -> None:
        self.ledger.audit()
        for account in list(self.ledger.accounts.values()):
            self.check_books(account)
            if account.shares is not None:
                self.check_parts(account, account.below or ())
            else:
                assert not any(gate_of(child).squeezed for child in account.below or ())
        for waiter in self.ledger.waiters:
            # When nothing moves, nobody stands where nothing is closed.
            assert waiter.at is not None
            assert gate_of(waiter.at).closed
            assert waiter.at.gated

    @staticmethod
    def check_books(account: Account) -> None:
        shares = account.shares
        children = account.below or {}
        assert is_tight(account) == (
            shares is not None and (gate_of(account).throttled or wants_more(account))
        )
        wanting = {child for child in children if wants_more(child)}
        if shares is None or not is_tight(account):
            assert not wanting
            assert not any(gate_of(child).squeezed for child in children)
            assert shares is None or not (shares.active or shares.wanting)
            return
        assert wanting == set(shares.wanting)
        assert all(child.debt_items or child.debt_bytes for child in shares.active)
        assert shares.active.keys() <= children.keys()
        assert shares.wanting.keys() <= children.keys()
        assert shares.weight == pytest.approx(sum(child.weight for child in shares.active))
        squeezed = {child for child in children if gate_of(child).squeezed}
        assert {c for c, want in shares.wanting.items() if want.entry is not None} == squeezed
        assert shares.squeezed == len(squeezed)
        for child, want in shares.wanting.items():
            assert (want.items, want.bytes) <= (child.debt_items, child.debt_bytes)
        assert not is_full(account) or is_above(account, marks_of(account), shares.hard - HARD_STEP)

    @staticmethod
    def check_parts(account: Account, children: Iterable[Account]) -> None:
        """Nobody is held to less than its weight's part of the limit."""
        shares = account.shares
        if shares is None or not is_tight(account) or gate_of(account).closed:
            return
        if is_above(account, marks_of(account), shares.hard):
            return
        # Of a part's own parts a child hears when they have become so much larger.
        late = RISE if wants_more(account) else 1
        for child in children:
            items, nbytes = marks_of(account)
            part = part_of(child, account)
            marks = part * items, part * nbytes
            if gate_of(child).squeezed:
                assert is_above(child, marks, (RELEASE - OVER) / late)
            elif not is_above(child, marks) and not (
                is_above(child, (child.mark_items, child.mark_bytes))
            ):
                # It goes on, unless something above is closed to it.
                above = account.parent
                if not gate_of(child).closed and (
                    above is None or not is_above(above, marks_of(above))
                ):
                    assert child.funds_are_clear()


@given(limits, st.lists(steps, max_size=60))
@settings(max_examples=120, deadline=None)
def test_whatever_happens_nobody_is_stuck_and_nobody_gets_less_than_its_part(
    limit: Limit, life: list[tuple[object, ...]]
) -> None:
    async def live() -> None:
        tree = Tree(limit)
        async with open_nursery() as nursery:
            for step in life:
                tree.do(step, nursery)
                await wait_all_tasks_blocked()
                tree.check()
            # Who goes on may owe anew; in the end everything is repaid.
            while tree.loans:
                for loan in tree.loans:
                    loan.settle()
                tree.loans.clear()
                await wait_all_tasks_blocked()
                tree.check()
            assert not tree.ledger.waiters
            assert not any(
                account.gated
                or gate_of(account).throttled
                or gate_of(account).squeezed
                or is_tight(account)
                for account in tree.ledger.accounts.values()
            )
            nursery.cancel_scope.cancel()

    trio.run(live)
