"""A lagging consumer: a subscription whose reader does not acknowledge while publishers wait.

Theory of operation. When its patience has run out, publishers do not wait for it until it has
caught up (rule 11). Its unacknowledged messages are bounded from then on; the oldest are dropped,
and the reader gets a loss when it asks for them. Rules of this file:

1. In RAM it keeps as much as any holder that is behind (`RETAIN_LIMIT`), on an account of its own
   (`accounts/_backlog.py`, rules 1 and 2): the publishers' loans end as `stored`.
2. On disk it has a quota already, and debt of its own; without room for new messages, the oldest
   make room. Until a message is on the disk its publishers owe for it, as ever.
3. It has caught up when its unacknowledged messages are down to a quarter of what it may keep; on
   disk, to half of what it had at the beginning. An acknowledgement now and then is not enough.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ...accounts import Account, LoanAtRest, LoanedItem, Outcome, Relief, StuckPolicy, open_lagging

if TYPE_CHECKING:
    from ._subscription import RangeSubscription

logger = logging.getLogger("clearfunds.dataspace.subscriptions")

LEFT_IN_RAM: Final = 4
"""In RAM, it has caught up when a fourth of what it may keep is left."""

LEFT_ON_DISK: Final = 2
"""On disk, when half of what it had at the beginning is left."""

DROPPED_PART: Final = 8
"""The part of the messages in RAM, an eighth, that is dropped when there are too many: not a few
for each new message."""

ROOM_PART: Final = 64
"""The same on disk: a 64th makes room."""


class LaggingSpell:
    """The time during which one subscription is behind.

    Attributes:
        account: Owes for the messages kept in RAM.
    """

    __slots__ = ("_above", "_had", "_holder", "_lost", "_since", "account")

    def __init__(
        self, holder: RangeSubscription, why: str, fields: Mapping[str, object] | None = None
    ) -> None:
        self._holder = holder
        self._lost = Relief()
        self._since = holder.ledger.clock()
        self._had = holder.rest_bytes
        self.account, self._above = open_lagging(holder, holder.limits.retain_limit)
        self._count(Relief(spells=1))
        logger.warning(
            "%s; it is behind now: its oldest unacknowledged messages are dropped", why,
            extra={**(fields or {}), "event": "behind", "holder": holder.name,
                   "kind": holder.kind, "policy": str(holder.policy)},
        )  # fmt: skip

    def take(self, account: Account, items: int, nbytes: int) -> Account:
        """Move the charge of a message from `account`; return the account that owes now."""
        self.account.borrow(items, nbytes)
        account.repay(items, nbytes, Outcome.STORED, self._holder)
        return self.account

    def take_over(self, loan: LoanedItem[Any]) -> None:
        """Take over a loan that the holder has."""
        if loan.items and loan.account is not self.account:
            loan.transfer(self.account)

    def excess(self, items: int, nbytes: int) -> int:
        """Return the number of surplus messages in RAM, of `items` with `nbytes`."""
        own, above = self.account, self._above
        most_items = own.mark_items
        most_bytes = min(own.mark_bytes, above.mark_bytes - above.debt_bytes + own.debt_bytes)
        if items <= most_items and nbytes <= most_bytes:
            return 0
        most_items -= most_items // DROPPED_PART
        most_bytes = max(0, most_bytes - most_bytes // DROPPED_PART)
        too_many = max(items - most_items, items * (nbytes - most_bytes) // max(1, nbytes))
        return min(items, max(1, too_many))

    @staticmethod
    def room(rest: LoanAtRest, nbytes: int) -> int:
        """Return the number of messages at rest whose removal makes room for `nbytes`."""
        wanted = max(nbytes, rest.bytes // ROOM_PART)
        return min(rest.items, max(1, rest.items * wanted // max(1, rest.bytes)))

    def dropped(self, items: int, nbytes: int) -> None:
        """Count dropped messages."""
        self._count(Relief(dropped_items=items, dropped_bytes=nbytes))

    def _count(self, some: Relief) -> None:
        self._lost.add(some)
        self._holder.relief.add(some)
        self._holder.ledger.relief[StuckPolicy.DROP_OLDEST].add(some)

    def is_over(self) -> bool:
        """Whether the subscription has caught up; call it after an acknowledgement."""
        holder, own = self._holder, self.account
        if holder.options.durable:
            return LEFT_ON_DISK * holder.rest_bytes <= self._had
        return (
            LEFT_IN_RAM * holder.unpaid_items <= own.mark_items
            and LEFT_IN_RAM * holder.unpaid_bytes <= own.mark_bytes
        )

    def end(self, why: str) -> None:
        """End it; the account goes on owing for kept messages until they are acknowledged."""
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
