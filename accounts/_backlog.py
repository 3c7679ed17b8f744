"""The backlog of a lagging consumer: a peer, or a local consumer, that does not take its messages.

Theory of operation. A holder whose patience (slow-consumer timeout) has run out is *relieved* if
its policy says so, and is behind from then on, until it has caught up: until its whole backlog has
been taken. Rules of this file:

1. No reader waits on a holder that is behind. A separate account owes for its backlog, apart from
   publishers' debt (`at_rest`), as a queue owes for its messages on disk. For the publishers these
   loans end as `stored`, in the turn in which they came, or when the holder is relieved. Messages
   that are not kept end as `dropped`.
2. The backlog is bounded by the limit of that account, and of the one above it if that has one.
   Work caused by consuming it (`LoanedItem.turn`) is charged to the same account, and bounded by
   it, too.
3. Messages that have been begun stay and are finished: those partly offered to the kernel, and
   those that a consumer has in hand. They change accounts in place (to the one above that of the
   holder, so that they do not count against the bound).
4. Order is kept: the delivered sequence is the sent sequence with gaps. The latest message of a key
   comes at its own place.
5. Nothing is lost in silence: each loss is counted, for the holder and for the ledger, and holders
   that count gaps hear where each is (`LoanQueue.missed`). The log has a line when the spell
   begins, and one with the amounts when it ends.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from ._loan import lent
from ._outcome import Outcome
from .limits._limit import DEFAULT_LIMIT_BYTES, NO_LIMIT, Limit
from .watch._stuck_policy import StuckPolicy

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ._account import Account
    from ._holder import Holder, LoanQueue
    from ._loan import LoanedItem

logger = logging.getLogger("clearfunds.accounts")

RETAIN_ITEMS: Final = 1_000
"""Same as mosquitto's max_queued_messages."""

RETAIN_BYTES: Final = DEFAULT_LIMIT_BYTES
"""Same as Redis's soft limit on the output of a pub/sub client."""

RETAIN_LIMIT: Final = Limit(items=RETAIN_ITEMS, bytes=RETAIN_BYTES)
"""Default bound on the backlog of a lagging holder."""

LAGGING: Final = "behind"
"""The parent of the accounts of lagging holders, which are called `behind/<holder>`. Its limit
bounds all backlogs together: `ledger.open(LAGGING, limit=..., at_rest="ram")`."""

Part = tuple[Any, int, int]
"""An entry of a loan, and the items and bytes that it stands for."""

_DOES: Final = {
    StuckPolicy.DROP_OLDEST: "it keeps the latest {} and drops what is older",
    StuckPolicy.DROP_NEWEST: "it keeps {} and drops what comes",
    StuckPolicy.CONFLATE: "it keeps the latest of each key, {} in all",
    StuckPolicy.SPILL: "what it does not take is put aside",
}


@attrs.define(slots=True)
class Relief:
    """Counts of messages that a holder could not take; the counters never fall."""

    spells: int = 0
    """How often it has been relieved."""
    dropped_items: int = 0
    """Events that were dropped."""
    dropped_bytes: int = 0
    """Their bytes."""
    stored_items: int = 0
    """Events that were spilled."""
    stored_bytes: int = 0
    """Their bytes."""

    @property
    def items(self) -> int:
        """Events that it could not take."""
        return self.dropped_items + self.stored_items

    @property
    def bytes(self) -> int:
        """Their bytes."""
        return self.dropped_bytes + self.stored_bytes

    def add(self, other: Relief) -> None:
        """Add the counts of `other`."""
        self.spells += other.spells
        self.dropped_items += other.dropped_items
        self.dropped_bytes += other.dropped_bytes
        self.stored_items += other.stored_items
        self.stored_bytes += other.stored_bytes


def open_lagging(holder: Holder, retain_limit: Limit) -> tuple[Account, Account]:
    """Open the account of a lagging holder; return it, and the one above it.

    Args:
        holder: The lagging holder.
        retain_limit: The bound on its backlog; see rule 2 of this file.
    """
    ledger = holder.ledger
    # An application may have opened it before, with a limit on all backlogs.
    limit = None if LAGGING in ledger.accounts else NO_LIMIT
    above = ledger.open(LAGGING, limit=limit, at_rest="ram")
    # Each holder has a bound of its own, even if several have the same name.
    name = first = f"{LAGGING}/{holder.name}"
    # Thousands may have the same name: start at a number that no earlier spell has had.
    number = sum([relief.spells for relief in ledger.relief.values()])
    while name in ledger.accounts:
        number += 1
        name = f"{first} {number}"
    return ledger.open(name, limit=retain_limit, parent=above), above


class Backlog:
    """One spell of lagging, of one `LoanQueue`.

    Attributes:
        policy: The policy by which the holder was relieved.
        account: The holder's own account: it owes for the backlog.
        above: The account above it, which owes for messages that had been begun.
        since: When the spell began.
        lost: Messages dropped and spilled since.
    """

    __slots__ = (
        "_ended", "_holder", "_latest", "_max_bytes", "_max_items", "above", "account", "lost",
        "policy", "since",
    )  # fmt: skip

    def __init__(
        self, holder: LoanQueue, why: str, fields: Mapping[str, object] | None = None
    ) -> None:
        ledger = holder.ledger
        self._ended = True  # it has not begun
        self._holder = holder
        self.policy = holder.policy
        self.since = ledger.clock()
        self.lost = Relief()
        self._latest: dict[Hashable, LoanedItem[list[Any]]] = {}
        retain_limit = holder.retain_limit
        self._max_items, self._max_bytes, _, _ = retain_limit.marks()
        self.account, self.above = open_lagging(holder, retain_limit)
        self._ended = False
        self._count(self.policy, Relief(spells=1))
        what = "everything"
        if retain_limit.items is not None:
            what = f"{retain_limit.items:,}"
        elif retain_limit.bytes is not None:
            what = f"{retain_limit.bytes:,} bytes"
        logger.warning(
            "%s; it is behind now: %s", why, _DOES[self.policy].format(what),
            extra={**(fields or {}), "event": "behind", "holder": holder.name,
                   "kind": holder.kind, "policy": str(self.policy)},
        )  # fmt: skip

    def __del__(self) -> None:
        # As for loans, this may run at any point: only append.
        if not self._ended:
            self._ended = True
            self.account.ledger.abandoned.extend((self.account, self.above))

    def end(self, why: str) -> None:
        """End the spell; the account owes for remaining loans until they are settled."""
        holder, lost = self._holder, self.lost
        self._ended = True
        self.account.close()
        self.above.close()
        seconds = holder.ledger.clock() - self.since
        found: list[str] = []
        if lost.dropped_items:
            found.append(f"{lost.dropped_items} items, {lost.dropped_bytes} bytes were dropped")
        if lost.stored_items:
            found.append(f"{lost.stored_items} items, {lost.stored_bytes} bytes were put aside")
        logger.log(
            logging.WARNING if lost.dropped_items else logging.INFO,
            "%s %s %s after %.1f s behind; %s", holder.kind, holder.name, why, seconds,
            " and ".join(found) or "nothing was lost",
            extra={"event": "behind_ended", "holder": holder.name, "kind": holder.kind,
                   "policy": str(self.policy), "seconds": round(seconds, 3),
                   "dropped_items": lost.dropped_items, "dropped_bytes": lost.dropped_bytes,
                   "stored_items": lost.stored_items, "stored_bytes": lost.stored_bytes},
        )  # fmt: skip

    # -- what is here when it begins ------------------------------------------------------------

    def take_over_begun(self) -> None:
        """Charge the loans that have been begun to `above`."""
        for loan in list(self._holder.under_way()):
            if loan.items and not self.owes_for(loan):
                loan.transfer(self.above)

    def relieve(self) -> None:
        """Take over the loans that have been begun, and apply the policy to the rest."""
        self.take_over_begun()
        holder = self._holder
        rest: deque[LoanedItem[list[Any]]] = deque()
        queue = holder.queue
        while len(queue) > holder.begun:
            rest.appendleft(queue.pop())
        if self.policy is StuckPolicy.SPILL:
            self._spill_all(rest)
        else:
            self._choose(rest)

    def _choose(self, rest: deque[LoanedItem[list[Any]]]) -> None:
        """Keep the part of `rest` that the policy keeps, one event in a loan; drop the others."""
        holder = self._holder
        conflates = self.policy is StuckPolicy.CONFLATE
        forward = self.policy is StuckPolicy.DROP_NEWEST
        kept: deque[LoanedItem[list[Any]]] = deque()
        put_back = kept.append if forward else kept.appendleft
        after: LoanedItem[list[Any]] | None = None
        full = False
        for loan in rest if forward else reversed(rest):
            if not self._is_ours(loan):
                if loan.items:
                    put_back(loan)
                continue
            parts = None if full else holder.apart(loan.item, loan.items, loan.bytes)
            if parts is None and not full and not conflates and self.fits(loan.items, loan.bytes):
                loan.transfer(self.account)
                put_back(loan)
                after = None if forward else loan
                continue
            for entry, items, nbytes in (parts or ()) if forward else reversed(parts or ()):
                key = holder.key_of(entry) if conflates else None
                if conflates and key in self._latest:
                    holder.missed(items, after)
                    self._drop(loan, items, nbytes, self.policy)
                    continue
                if not self.fits(items, nbytes):
                    full = True
                    break
                part = self._part_of(loan, entry, items, nbytes)
                put_back(part)
                if conflates:
                    self._latest[key] = part
                after = None if forward else part
            if loan.items:
                full = True
                holder.missed(loan.items, after)
                self._drop(loan, loan.items, loan.bytes, self.policy)
        holder.queue.extend(kept)

    def _spill_all(self, rest: deque[LoanedItem[list[Any]]]) -> None:
        for loan in rest:
            if not self._is_ours(loan):
                self._holder.queue.append(loan)
                continue
            whole = Relief(stored_items=loan.items, stored_bytes=loan.bytes)
            if self._holder.spill_whole(loan):
                self._count(StuckPolicy.SPILL, whole)
                continue
            parts = self._holder.apart(loan.item, loan.items, loan.bytes)
            for entry, items, nbytes in parts or [(loan.item, loan.items, loan.bytes)]:
                # Its publisher still owes for it, until it is safe elsewhere.
                loan.items -= items
                loan.bytes -= nbytes
                loan.continued(self._spill, loan.account, entry, items, nbytes, loan.opened)

    def owes_for(self, loan: LoanedItem[Any]) -> bool:
        """Whether one of the two accounts of this backlog owes for `loan`."""
        return loan.account is self.account or loan.account is self.above

    def _is_ours(self, loan: LoanedItem[Any]) -> bool:
        # Loans of other holders only pass through; a loan settled in place belongs to nobody.
        return loan.holder is self._holder and loan.items > 0

    def _part_of(
        self, loan: LoanedItem[list[Any]], entry: Any, items: int, nbytes: int
    ) -> LoanedItem[list[Any]]:
        """Take one entry out of `loan`, to keep it: its publisher no longer owes for it."""
        part = loan.continued(lent, loan.account, [entry], items, nbytes, self._holder, loan.opened)
        loan.items -= items
        loan.bytes -= nbytes
        part.transfer(self.account)
        return part

    # -- what comes from then on ----------------------------------------------------------------

    def take(
        self,
        account: Account,
        item: Any,
        items: int,
        nbytes: int,
        now: float,
        policy: StuckPolicy,
        key: Hashable,
    ) -> None:
        """Take a new delivery for the holder, just charged to `account`."""
        parts = self._holder.apart([item], items, nbytes)
        if parts is None:
            self._take_one(account, item, items, nbytes, now, policy, key)
        else:
            for entry, some, size in parts:
                self._take_one(account, entry, some, size, now, policy, key)

    def put(self, loan: LoanedItem[list[Any]]) -> None:
        """Take a loan from another holder, or take one back."""
        holder = self._holder
        if self.owes_for(loan):
            holder.append(loan)
            return
        parts = holder.apart(loan.item, loan.items, loan.bytes)
        if parts is None:
            loan.transfer(self.account)
            holder.append(loan)
            return
        for entry, items, nbytes in parts:
            loan.items -= items
            loan.bytes -= nbytes
            loan.continued(
                self._take_one, loan.account, entry, items, nbytes, loan.opened, self.policy,
                holder.key_of(entry),
            )  # fmt: skip

    def _take_one(
        self,
        account: Account,
        item: Any,
        items: int,
        nbytes: int,
        now: float,
        policy: StuckPolicy,
        key: Hashable,
    ) -> None:
        holder = self._holder
        if policy is StuckPolicy.SPILL:
            self._spill(account, item, items, nbytes, now)
            return
        if policy is StuckPolicy.CONFLATE:
            if key is None:
                key = holder.key_of(item)
            self._drop_latest_of(key)
        if policy is not StuckPolicy.DROP_NEWEST and self._could_fit(items, nbytes):
            while not self.fits(items, nbytes) and self._drop_first(policy):
                pass
        if not self.fits(items, nbytes):
            self._count(policy, Relief(dropped_items=items, dropped_bytes=nbytes))
            holder.missed(items, None)
            account.repay(items, nbytes, Outcome.DROPPED, holder)
            return
        loan = lent(account, [item], items, nbytes, holder, now)
        loan.transfer(self.account)
        if policy is StuckPolicy.CONFLATE:
            self._remember(key, loan)
        holder.append(loan)

    def _remember(self, key: Hashable, loan: LoanedItem[list[Any]]) -> None:
        latest = self._latest
        latest[key] = loan
        if len(latest) > 2 * len(self._holder.queue) + 64:
            # Most of these loans have been taken: forget them.
            here = set(map(id, self._holder.queue)) | {id(loan)}
            self._latest = {key: each for key, each in latest.items() if id(each) in here}

    def _drop_latest_of(self, key: Hashable) -> None:
        old = self._latest.pop(key, None)
        if old is None or not old.items:
            return
        queue = self._holder.queue
        try:
            place = queue.index(old, self._holder.begun)
        except ValueError:
            return  # it has been taken
        self._drop_at(place, StuckPolicy.CONFLATE)

    def _drop_first(self, policy: StuckPolicy) -> bool:
        """Drop the oldest loan that has not been begun; return whether there was one."""
        holder = self._holder
        queue = holder.queue
        for place in range(holder.begun, len(queue)):
            if queue[place].holder is holder:
                self._drop_at(place, policy)
                return True
        return False

    def _drop_at(self, place: int, policy: StuckPolicy) -> None:
        queue = self._holder.queue
        loan = queue[place]
        del queue[place]
        self._holder.missed(loan.items, queue[place] if place < len(queue) else None, loan)
        self._drop(loan, loan.items, loan.bytes, policy)

    def _could_fit(self, items: int, nbytes: int) -> bool:
        return items <= self._max_items and nbytes <= self._max_bytes

    def fits(self, items: int, nbytes: int) -> bool:
        """Whether there is room for so much more (rule 2)."""
        account, above = self.account, self.above
        return (
            account.debt_items + items <= self._max_items
            and account.debt_bytes + nbytes <= self._max_bytes
            and above.debt_items + items <= above.mark_items
            and above.debt_bytes + nbytes <= above.mark_bytes
        )

    def _drop(self, loan: LoanedItem[Any], items: int, nbytes: int, policy: StuckPolicy) -> None:
        """Drop a part of a loan; that does not count as progress of the holder."""
        self._count(policy, Relief(dropped_items=items, dropped_bytes=nbytes))
        progressed_at = self._holder.progressed_at
        loan.settle(items, Outcome.DROPPED, nbytes)
        self._holder.progressed_at = progressed_at

    def _spill(self, account: Account, entry: Any, items: int, nbytes: int, now: float) -> None:
        self._count(StuckPolicy.SPILL, Relief(stored_items=items, stored_bytes=nbytes))
        self._holder.spill(account, entry, items, nbytes, now)

    def _count(self, policy: StuckPolicy, some: Relief) -> None:
        self.lost.add(some)
        self._holder.relief.add(some)
        self._holder.ledger.relief[policy].add(some)
