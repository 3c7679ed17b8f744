"""The pace of slow consumers: an occasional sign of life is no progress.

A subscriber that acknowledges one message every eighteen seconds is never idle for its patience of
twenty; and yet a reader that waits for eight thousand of them waits for days. So progress is a
rate: the amount that a holder clears of the events up to a waiting account's last one, relative to
their total.

Theory of operation. Settling must cost nothing more, so nothing is counted there. The repaid total
of an account is known (borrowed less owed). A waiting reader borrows nothing, so later deliveries
to a holder stand behind the account's last event. Twice a second the waiting accounts are checked.
Only if too little of an account's debt has been cleared, its holders are walked: how much is there
until its last event, and how much was there a patience ago?
"""

from __future__ import annotations

from collections.abc import Generator, Iterable

import attrs

from .._account import Account
from .._holder import Holder
from ._profile import HORIZON


@attrs.frozen(slots=True)
class Slow:
    """A holder that clears too slowly what a reader waits for."""

    holder: Holder
    account: Account
    """The account whose reader waits."""
    cleared: int
    """Items that the holder has cleared."""
    ahead: int
    """Items there were, up to the account's last."""
    seconds: float
    """Duration in which it cleared them."""


@attrs.frozen(slots=True)
class _Seen:
    """An amount at some time: an account's debt, or the events up to its last one."""

    since: float
    items: int
    bytes: int

    def is_fast(self, cleared_items: int, cleared_bytes: int, horizon: int) -> bool:
        """Whether enough of it has been cleared since."""
        return cleared_items * horizon >= self.items or cleared_bytes * horizon >= self.bytes > 0


def _repaid(account: Account) -> tuple[int, int]:
    return (
        account.borrowed_items - account.debt_items,
        account.borrowed_bytes - account.debt_bytes,
    )


def _until_last(holder: Holder, accounts: Iterable[Account]) -> dict[Account, tuple[int, int]]:
    """Return (items, bytes) in a holder up to and including the last event of each account."""
    found: dict[Account, tuple[int, int]] = {}
    items = nbytes = 0
    for loan in holder.waited_for():
        items += loan.items
        nbytes += loan.bytes
        if loan.account in accounts:
            found[loan.account] = items, nbytes
    return found


class ClearingRates:
    """Clearing rates of the debt that readers wait for."""

    __slots__ = ("_debts", "_places")

    def __init__(self) -> None:
        # Accounts' debts, with the totals repaid then; and the amounts up to their last events.
        self._debts: dict[Account, tuple[_Seen, tuple[int, int]]] = {}
        self._places: dict[tuple[Account, Holder], _Seen] = {}

    def look_in_steps(
        self, waiting: Iterable[Account], holders: Iterable[Holder], now: float
    ) -> Generator[None, None, list[Slow]]:
        """Return the holders that are too slow at `now`, for the accounts whose readers wait.

        To be called once in a while, with all of them.
        """
        before, self._debts = self._debts, {}
        # Debt of accounts below it says nothing about its own waiting.
        waiting = [each for each in waiting if each.debt_items and not each.below]
        if not waiting:
            # No look at the holders, then: ten thousand would take 3 % of a core (measured).
            self._places.clear()
            return []
        holders = list(holders)
        suspect: set[Account] = set()
        least = min((each.patience for each in holders if each.patience), default=0.0)
        horizon = min((each.horizon for each in holders), default=HORIZON)
        for account in waiting:
            seen, repaid = before.get(account) or (None, (0, 0))
            items, nbytes = _repaid(account)
            if seen is None or seen.is_fast(items - repaid[0], nbytes - repaid[1], horizon):
                seen, repaid = _Seen(now, account.debt_items, account.debt_bytes), (items, nbytes)
            elif now - seen.since >= least / 2:
                suspect.add(account)
            self._debts[account] = seen, repaid
        if not suspect:
            self._places.clear()
            return []
        return (yield from self._slow(suspect, holders, now))

    def _slow(
        self, suspect: set[Account], holders: Iterable[Holder], now: float
    ) -> Generator[None, None, list[Slow]]:
        before, self._places = self._places, {}
        found: list[Slow] = []
        for holder in holders:
            yield
            for account, (items, nbytes) in _until_last(holder, suspect).items():
                seen = before.get((account, holder))
                if seen is None or seen.is_fast(
                    seen.items - items, seen.bytes - nbytes, holder.horizon
                ):
                    seen = _Seen(now, items, nbytes)
                elif now - seen.since >= holder.patience and seen.items > items:
                    # A holder that clears nothing is idle, for which there is a separate check.
                    cleared = seen.items - items
                    found.append(Slow(holder, account, cleared, seen.items, now - seen.since))
                    seen = _Seen(now, items, nbytes)  # another patience until the next time
                self._places[account, holder] = seen
        return found
