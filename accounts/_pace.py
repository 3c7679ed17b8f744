"""How fast what a reader waits for is cleared: a sign of life now and then is no progress.

A subscriber that acknowledges one message every eighteen seconds is never idle for its patience of
twenty; and yet those who wait for eight thousand of them wait for days. So progress is a rate: how
much of what stands before a waiting account's last event a holder clears, against how much that is.

Theory of operation. Settling must cost nothing more, so nothing is counted there. An account says
by itself what it has repaid (what it has borrowed less what it owes), and its reader's waiting adds
nothing to it; so what comes to a holder later stands behind its last event. Twice a second those
who wait are looked at. Only for an account that has been cleared of too little its holders are
walked over: how much is there until its last event, and how much was there a patience ago?
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs

from ._account import Account
from ._holder import Holder

HORIZON: Final = 90
"""Patiences within which what is waited for must be cleared at the present rate. With the default
of twenty seconds half an hour, RabbitMQ's `consumer_timeout`."""


@attrs.frozen(slots=True)
class Slow:
    """A holder that clears too slowly what a reader waits for."""

    holder: Holder
    account: Account
    """Whose reader waits."""
    cleared: int
    """How many items the holder has cleared."""
    ahead: int
    """Of so many, until the account's last."""
    seconds: float
    """In this time."""


@attrs.frozen(slots=True)
class _Seen:
    """How much there was at some time: of an account's debt, or before its last event."""

    since: float
    items: int
    bytes: int

    def is_fast(self, cleared_items: int, cleared_bytes: int) -> bool:
        """Whether enough of it has been cleared since."""
        return cleared_items * HORIZON >= self.items or cleared_bytes * HORIZON >= self.bytes > 0


def _repaid(account: Account) -> tuple[int, int]:
    return (
        account.borrowed_items - account.debt_items,
        account.borrowed_bytes - account.debt_bytes,
    )


def _until_last(holder: Holder, accounts: Iterable[Account]) -> dict[Account, tuple[int, int]]:
    """Return how much of a holder stands before the last event of each account, and with it."""
    found: dict[Account, tuple[int, int]] = {}
    items = nbytes = 0
    for loan in holder.waited_for():
        items += loan.items
        nbytes += loan.bytes
        if loan.account in accounts:
            found[loan.account] = items, nbytes
    return found


class Paces:
    """How fast that is cleared which readers wait for."""

    __slots__ = ("_debts", "_places")

    def __init__(self) -> None:
        # What accounts owed, with what they had repaid then; and what stood before their last.
        self._debts: dict[Account, tuple[_Seen, tuple[int, int]]] = {}
        self._places: dict[tuple[Account, Holder], _Seen] = {}

    def look(self, waiting: Iterable[Account], holders: Iterable[Holder], now: float) -> list[Slow]:
        """Return the holders that are too slow at `now`, for the accounts whose readers wait.

        To be called once in a while, with all of them.
        """
        before, self._debts = self._debts, {}
        suspect: set[Account] = set()
        least = min((each.patience for each in holders if each.patience), default=0.0)
        for account in waiting:
            # What others borrow below it says nothing of what it waits for itself.
            if account.below or not account.debt_items:
                continue
            seen, repaid = before.get(account) or (None, (0, 0))
            items, nbytes = _repaid(account)
            if seen is None or seen.is_fast(items - repaid[0], nbytes - repaid[1]):
                seen, repaid = _Seen(now, account.debt_items, account.debt_bytes), (items, nbytes)
            elif now - seen.since >= least / 2:
                suspect.add(account)
            self._debts[account] = seen, repaid
        if not suspect:
            self._places.clear()
            return []
        return self._slow(suspect, holders, now)

    def _slow(self, suspect: set[Account], holders: Iterable[Holder], now: float) -> list[Slow]:
        before, self._places = self._places, {}
        found: list[Slow] = []
        for holder in holders:
            for account, (items, nbytes) in _until_last(holder, suspect).items():
                seen = before.get((account, holder))
                if seen is None or seen.is_fast(seen.items - items, seen.bytes - nbytes):
                    seen = _Seen(now, items, nbytes)
                elif now - seen.since >= holder.patience and seen.items > items:
                    # One that clears nothing is idle, which has a patience of its own.
                    cleared = seen.items - items
                    found.append(Slow(holder, account, cleared, seen.items, now - seen.since))
                    seen = _Seen(now, items, nbytes)  # another patience until the next time
                self._places[account, holder] = seen
        return found
