"""The largest debtors, the largest holders, the oldest loan: figures that need a walk of the books.

The walk goes in steps, between which the books change: each account and each holder is read at one
instant, but not all of them together. It keeps no objects except the names of holders.
"""

from __future__ import annotations

from heapq import heappush, heappushpop, nlargest
from typing import TYPE_CHECKING, Any, Final

import attrs

from .._histogram import COUNT_BUCKETS, Histogram
from .._loan import LOOSE, LoanedItem
from ..limits._latency_limit import LIMIT_STATES
from ._waits_for import count_rings_in_steps

if TYPE_CHECKING:
    from collections.abc import Container, Generator, Iterable

    from .._account import Account
    from .._ledger import Ledger
    from ..limits._limit_policy import MovingLimit

TOP_MAX: Final = 10
"""Number of ranks: as many as an operator reads, and a bound on metrics named by peers."""

STEP_ACCOUNTS: Final = 512
"""Accounts in one step: a fifth of a millisecond."""

STEP_LOANS: Final = 64
"""Loans, or holders without loans, in one step: less than that."""


@attrs.frozen
class Tops:
    """The results of a walk."""

    debts: Histogram
    """Debts in events of the accounts with none below them, but for those at rest."""
    debtors: tuple[tuple[str, int], ...]
    """The largest debtors among these, with their events, the most first."""
    holders: tuple[tuple[str, int], ...]
    """The largest holders, with their events, the most first. Holders of one name are one. Messages
    at rest do not count: no publisher owes for them."""
    oldest_seconds: float
    """The age of the oldest loan that is not at rest, or of the oldest open turn; 0.0 if there is
    none."""
    rings: int
    """Number of rings of readers that block each other (flow-control deadlocks)."""
    moving: MovingLimits
    """The accounts with moving limits."""


@attrs.define
class MovingLimits:
    """The results of a walk for accounts with moving limits (`LatencyLimit`)."""

    states: dict[str, int] = attrs.field(factory=lambda: dict.fromkeys(LIMIT_STATES, 0))
    """Number of accounts in each state."""
    age_seconds: float = 0.0
    """The highest age of their debt."""
    target_seconds: float | None = None
    """The lowest of their targets; None for no such account."""

    def add(self, seen: MovingLimit) -> None:
        """Count one of them."""
        self.states[seen.state] = self.states.get(seen.state, 0) + 1
        self.age_seconds = max(self.age_seconds, seen.age_seconds)
        target = self.target_seconds
        self.target_seconds = min(seen.target_seconds, target or seen.target_seconds)


def tops_in_steps(ledger: Ledger) -> Generator[None, None, Tops]:
    """Walk through the books; other tasks may run in between. Returns the results.

    An account with others below it does not count: it owes for those. Nor does one for messages at
    rest, which may lie there for as long as nobody wants them.
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
        if account.below or account in at_rest:
            continue
        debt = account.debt_items
        debts.add(debt)
        if debt > 0:
            # The number breaks ties between equal debts: accounts have no order.
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
    """Return the number of events, and when the oldest loan was made, at the latest `now`.

    Without those that are at rest.
    """
    items = 0
    oldest = now
    for loan in loans:
        # The audit reports things that are no loans; a loan may have been settled meanwhile.
        if isinstance(loan, LoanedItem) and loan.items and loan.account not in at_rest:
            items += loan.items
            oldest = min(oldest, loan.opened)
    return items, oldest
