"""Present waits of some accounts' readers, which may be the reason why a trace shows nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypedDict

from ..accounts import LoanedItem
from ..accounts._gate import gate_of
from ._holdings import BREATH_EVERY
from ._survey import clipped

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..accounts import Account, Holder, Ledger
    from ._cooperative import Pace

WAITS_MAX: Final = 10

HOLDERS_MAX: Final = 5


class WaitedOnRow(TypedDict):
    """A holder of some of the debt where a reader waits."""

    holder: str
    kind: str
    items: int
    bytes: int
    idle_seconds: float


class WaitingRow(TypedDict):
    """An account whose readers wait."""

    account: str
    at: str
    """The throttled account: this one, or one above it."""
    seconds: float
    """How long the first of them has waited."""
    debt_items: int
    debt_bytes: int
    """The debt there."""
    on: list[WaitedOnRow]
    """Its holders, the fullest first."""
    on_more: int
    """The number of other holders."""


async def waiting(
    ledger: Ledger, matches: Callable[[str], bool], pace: Pace
) -> tuple[list[WaitingRow], int]:
    """Return matching accounts that wait, the longest first, and the number of others.

    Cancellation: at any step; nothing has changed.
    """
    now = ledger.clock()
    since: dict[Account, float] = {}
    places: dict[Account, Account] = {}
    for number, waiter in enumerate(list(ledger.waiters)):
        if not number % BREATH_EVERY:
            await pace.breathe()
        if (
            waiter.at is not None
            and gate_of(waiter.at).waits_for_repayment
            and matches(waiter.account.name)
        ):
            since[waiter.account] = min(waiter.since, since.get(waiter.account, now))
            places[waiter.account] = waiter.at
    longest = sorted(since, key=lambda account: since[account])
    shown = longest[:WAITS_MAX]
    holders = await _holders(ledger, {places[account] for account in shown}, pace)
    rows: list[WaitingRow] = []
    for account in shown:
        at = places[account]
        most = sorted(holders[at].items(), key=lambda each: each[1], reverse=True)
        rows.append(
            {
                "account": clipped(account.name),
                "at": clipped(at.name),
                "seconds": round(now - since[account], 3),
                "debt_items": at.debt_items,
                "debt_bytes": at.debt_bytes,
                "on": [
                    {
                        "holder": clipped(holder.name),
                        "kind": holder.kind,
                        "items": items,
                        "bytes": nbytes,
                        "idle_seconds": round(max(0.0, now - holder.progressed_at), 3),
                    }
                    for holder, (items, nbytes) in most[:HOLDERS_MAX]
                ],
                "on_more": max(0, len(most) - HOLDERS_MAX),
            }
        )
    return rows, len(longest) - len(shown)


async def _holders(
    ledger: Ledger, places: set[Account], pace: Pace
) -> dict[Account, dict[Holder, tuple[int, int]]]:
    """Return each holder's part of the debt at each place."""
    found: dict[Account, dict[Holder, tuple[int, int]]] = {at: {} for at in places}
    if not places:
        return found
    for holder in list(ledger.holders):
        await pace.breathe()
        for number, loan in enumerate(list(holder.loans())):
            if not number % BREATH_EVERY:
                await pace.breathe()
            # The audit reports entries that are not loans.
            if not isinstance(loan, LoanedItem) or not loan.items:  # pyright: ignore[reportUnnecessaryIsInstance]
                continue
            for at in loan.account.chain:
                if at in found:
                    items, nbytes = found[at].get(holder, (0, 0))
                    found[at][holder] = items + loan.items, nbytes + loan.bytes
    return found
