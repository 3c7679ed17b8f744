"""Who owes most, who holds most, how old the oldest loan is: what takes a walk through the books.

The walk is done in steps, in which the books go on moving: each account, each holder is read at one
instant, but not all of them together. It makes no objects to keep, but for the names of holders.
"""

from __future__ import annotations

from heapq import heappush, heappushpop, nlargest
from typing import TYPE_CHECKING, Any, Final

import attrs

from ._histogram import COUNT_BUCKETS, Histogram
from ._latency_limit import LIMIT_STATES
from ._ledger import LOOSE
from ._loan import LoanedItem
from ._waits_for import count_rings_in_steps

if TYPE_CHECKING:
    from collections.abc import Container, Generator, Iterable

    from ._account import Account
    from ._ledger import Ledger
    from ._limit_policy import MovingLimit

TOP_MAX: Final = 10
"""Ranks told of: as many as an operator reads, and all that is ever told of names that peers
choose."""

STEP_ACCOUNTS: Final = 512
"""A fifth of a millisecond."""

STEP_LOANS: Final = 64
"""Loans, or holders that have none: less than that."""


@attrs.frozen
class Tops:
    """What a walk has found."""

    debts: Histogram
    """Debts in events of the accounts with none below them, but for those at rest."""
    debtors: tuple[tuple[str, int], ...]
    """Those that owe most of these, and how many events, the most first."""
    holders: tuple[tuple[str, int], ...]
    """Who holds most, and how many events, the most first. Holders of one name are one. What is at
    rest does not count: nobody else owes for it."""
    oldest_seconds: float
    """The age of the oldest loan that is not at rest, or of the oldest open turn; 0.0 if there is
    none."""
    rings: int
    """How many rings of readers there are that wait on each other."""
    moving: MovingLimits
    """Of the accounts whose limits are moved."""


@attrs.define
class MovingLimits:
    """What a walk has found of accounts whose limits are moved (`LatencyLimit`)."""

    states: dict[str, int] = attrs.field(factory=lambda: dict.fromkeys(LIMIT_STATES, 0))
    """How many there are in each state."""
    age_seconds: float = 0.0
    """The highest of the ages of what they owe."""
    target_seconds: float | None = None
    """The lowest of their targets; None for no such account."""

    def add(self, seen: MovingLimit) -> None:
        """Count one of them."""
        self.states[seen.state] = self.states.get(seen.state, 0) + 1
        self.age_seconds = max(self.age_seconds, seen.age_seconds)
        target = self.target_seconds
        self.target_seconds = min(seen.target_seconds, target or seen.target_seconds)


def tops_in_steps(ledger: Ledger) -> Generator[None, None, Tops]:
    """Walk through the books; in between, others may go on. Returns what was found.

    An account with others below it owes for them: it is a level, not one of those who cause debt.
    Neither is one for what is at rest; that may be for as long as nobody wants it.
    """
    at_rest = ledger.at_rest
    debts = Histogram(COUNT_BUCKETS)
    debtors: list[tuple[int, int, Account]] = []
    moving = MovingLimits()
    moved = 0
    for number, account in enumerate(list(ledger.accounts.values())):
        if not number % STEP_ACCOUNTS:
            yield
        if account.control is not None:
            moved += 1
            if not moved % STEP_LOANS:
                yield
            moving.add(account.control.statistics())
        if account.children or account in at_rest:
            continue
        debt = account.debt_items
        debts.add(debt)
        if debt > 0:
            # The number stands between two that owe the same: accounts have no order.
            if len(debtors) < TOP_MAX:
                heappush(debtors, (debt, -number, account))
            elif debt > debtors[0][0]:
                heappushpop(debtors, (debt, -number, account))
    held: dict[str, int] = {}
    now = oldest = ledger.clock()
    for number, holder in enumerate(list(ledger.holders)):
        if not number % STEP_LOANS:
            yield
        # A holder's loans may not change while they are walked, hence the copy.
        loans: list[Any] = list(holder.loans())
        if not loans:
            continue
        if len(loans) > 1:
            yield
        items = 0
        for start in range(0, len(loans), STEP_LOANS):
            if start:
                yield
            some, opened = _sum(loans[start : start + STEP_LOANS], now, at_rest)
            items += some
            oldest = min(oldest, opened)
        if items:
            held[holder.name] = held.get(holder.name, 0) + items
    for turn in list(ledger.turns):
        if turn.input_items:
            name = ledger.router.name
            held[name] = held.get(name, 0) + turn.input_items
            oldest = min(oldest, turn.opened)
    loose, opened = _sum(list(ledger.loose), now, at_rest)
    if loose:
        held[LOOSE] = held.get(LOOSE, 0) + loose
        oldest = min(oldest, opened)
    yield
    rings = yield from count_rings_in_steps(ledger)
    return Tops(
        debts,
        tuple((account.name, debt) for debt, _, account in sorted(debtors, reverse=True)),
        tuple(nlargest(TOP_MAX, held.items(), key=lambda each: each[1])),
        now - oldest,
        rings,
        moving,
    )


def _sum(loans: Iterable[Any], now: float, at_rest: Container[Account]) -> tuple[int, float]:
    """Return how many events they are, and when the oldest was made, at the latest `now`.

    Without those that are at rest.
    """
    items = 0
    oldest = now
    for loan in loans:
        # What is no loan is the audit's to tell of; one may have been settled meanwhile.
        if isinstance(loan, LoanedItem) and loan.items and loan.account not in at_rest:
            items += loan.items
            oldest = min(oldest, loan.opened)
    return items, oldest
