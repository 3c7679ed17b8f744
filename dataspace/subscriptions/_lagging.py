"""A subscription whose reader does not acknowledge what others wait for: it is behind.

Theory of operation. When its patience has run out, nobody waits on it any more until it has caught
up (rule 11); what its reader has not acknowledged is bounded from then on, and the oldest of it is
dropped, which the reader is told as a loss when it asks for that. Rules of this file:

1. In RAM it keeps as much as any holder that is behind (`KEEP`), on an account of its own
   (`accounts/_backlog.py`, rules 1 and 2): for those who publish what they send ends as `stored`.
2. On disk it is bounded already, and its own debt; when there is no room for what comes, the oldest
   makes room. Until it is on the disk its publishers owe for it, as ever.
3. It has caught up when its reader has acknowledged so much that a quarter of what it keeps is
   left; on disk, half of what was there at the beginning. One acknowledgement now and then does
   not help it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ...accounts import Account, LoanedItem, Outcome, Relief, StuckPolicy, open_behind

if TYPE_CHECKING:
    from ._subscription import RangeSubscription

logger = logging.getLogger("clearfunds.dataspace.subscriptions")

LEFT_IN_RAM: Final = 4
"""It has caught up when one part of so many is left of what it keeps in RAM."""

LEFT_ON_DISK: Final = 2
"""And on disk."""

DROPPED_AT_ONCE: Final = 8
"""When there is too much, a part of so many is dropped: not something for each message that
comes."""

ROOM_AT_ONCE: Final = 64
"""The same on disk: a part of so many makes room."""


class Behind:
    """One spell of being behind, of one subscription.

    Attributes:
        account: Owes for what is kept in RAM.
    """

    __slots__ = ("_above", "_had", "_holder", "_lost", "_since", "account")

    def __init__(
        self, holder: RangeSubscription, why: str, fields: Mapping[str, object] | None = None
    ) -> None:
        self._holder = holder
        self._lost = Relief()
        self._since = holder.ledger.clock()
        self._had = holder.rest_bytes
        self.account, self._above = open_behind(holder, holder.limits.keep)
        self._count(Relief(spells=1))
        logger.warning(
            "%s; it is behind now: of what is not acknowledged the oldest is dropped", why,
            extra={**(fields or {}), "event": "behind", "holder": holder.name,
                   "kind": holder.kind, "policy": str(holder.policy)},
        )  # fmt: skip

    def take(self, account: Account, items: int, nbytes: int) -> Account:
        """Owe for what `account` has just been charged for; return who owes now."""
        self.account.borrow(items, nbytes)
        account.repay(items, nbytes, Outcome.STORED, self._holder)
        return self.account

    def take_over(self, loan: LoanedItem[Any]) -> None:
        """Owe for a loan that is in the holder's hands."""
        if loan.items and loan.account is not self.account:
            loan.transfer(self.account)

    def excess(self, items: int, nbytes: int) -> int:
        """Return how many of `items` messages in RAM, which have `nbytes`, are too many."""
        own, above = self.account, self._above
        most_items = own.mark_items
        most_bytes = min(own.mark_bytes, above.mark_bytes - above.debt_bytes + own.debt_bytes)
        if items <= most_items and nbytes <= most_bytes:
            return 0
        most_items -= most_items // DROPPED_AT_ONCE
        most_bytes = max(0, most_bytes - most_bytes // DROPPED_AT_ONCE)
        too_many = max(items - most_items, items * (nbytes - most_bytes) // max(1, nbytes))
        return min(items, max(1, too_many))

    @staticmethod
    def room(rest: LoanedItem[Any], nbytes: int) -> int:
        """Return how many of the messages at rest make room for `nbytes`."""
        wanted = max(nbytes, rest.bytes // ROOM_AT_ONCE)
        return min(rest.items, max(1, rest.items * wanted // max(1, rest.bytes)))

    def dropped(self, items: int, nbytes: int) -> None:
        """Count what was dropped."""
        self._count(Relief(dropped_items=items, dropped_bytes=nbytes))

    def _count(self, some: Relief) -> None:
        self._lost.add(some)
        self._holder.relief.add(some)
        self._holder.ledger.relief[StuckPolicy.DROP_OLDEST].add(some)

    def is_over(self) -> bool:
        """Whether the subscription has caught up; to be asked after an acknowledgement."""
        holder, own = self._holder, self.account
        if holder.options.durable:
            return LEFT_ON_DISK * holder.rest_bytes <= self._had
        return (
            LEFT_IN_RAM * holder.unpaid_items <= own.mark_items
            and LEFT_IN_RAM * holder.unpaid_bytes <= own.mark_bytes
        )

    def end(self, why: str) -> None:
        """End the spell; what is still kept is the account's until it is acknowledged."""
        holder, lost = self._holder, self._lost
        self.account.close()
        self._above.close()
        seconds = holder.ledger.clock() - self._since
        logger.log(
            logging.WARNING if lost.dropped_items else logging.INFO,
            "%s %s %s after %.1f s behind; %d items, %d bytes were dropped", holder.kind,
            holder.name, why, seconds, lost.dropped_items, lost.dropped_bytes,
            extra={"event": "behind_ended", "holder": holder.name, "kind": holder.kind,
                   "policy": str(holder.policy), "seconds": round(seconds, 3),
                   "dropped_items": lost.dropped_items, "dropped_bytes": lost.dropped_bytes,
                   "stored_items": 0, "stored_bytes": 0},
        )  # fmt: skip
