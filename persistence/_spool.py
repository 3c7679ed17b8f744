"""A slow consumer's messages, spilled to a shelf, in order (`StuckPolicy.SPILL`).

Rules of this file:
1. New messages stay their publisher's debt until the shelf has them for good. From then on the
   spool's own account owes for them, at rest; its limit is how much may be spilled.
2. A record is a stretch of whole packets, as long as a loan may grow: one write and one read for
   hundreds of messages. Few new messages wait for more to make one, unless their publisher has to
   wait for that. Records read back are erased at once: nobody acknowledges them.
3. A spool lives as long as its connection. Nothing of it is restored after a restart.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Any, Final, Protocol

from ..accounts import (
    DEFAULT_PATIENCE,
    JOIN_BYTES,
    Account,
    Holder,
    LoanAtRest,
    LoanedItem,
    Outcome,
    lent,
)
from ..dataspace import Publication
from ..dataspace.queues import Marks, Message

logger = logging.getLogger("clearfunds.transports.queues")

SPOOL_PREFIX: Final = "spill/"
"""Prefix of the names of spools' shelves, before the connection's name."""

READ_BYTES: Final = 256 << 10
"""Bytes read back at once: as much as one send."""

READ_RECORDS: Final = 256
"""Most records read back at once."""

WRITE_BYTES: Final = 4 << 20
"""Bytes handed to the shelf at once: copying them takes some milliseconds. A consumer that is
relieved may have a backlog of hundreds of megabytes, of many publishers."""

HURRY_ITEMS: Final = 1_000
HURRY_BYTES: Final = 1 << 20
"""With this much written and not on disk yet, the shelf is asked not to wait for the next interval:
a tenth of what a publisher may owe, and an eighth of its bytes."""


SHORT_BYTES: Final = 16 << 10
SHORT_LOANS: Final = 32
"""New messages that may wait for more. A record takes about 1 KB beside its messages in memory."""


class SpoolPersistence(Protocol):
    """Keeps the shelves of spools: `Shelves`, or `RamShelves`."""

    def shelf(self, name: str) -> Any:
        """Return a shelf."""
        ...

    def drop(self, shelf: Any) -> None:
        """Erase a shelf."""
        ...

    def hurry(self) -> None:
        """Make everything written until now durable soon."""
        ...


OpenSpool = Callable[[Holder, Callable[[], object], Callable[[str], object]], "Spool"]
"""Opens a spool for a holder, with the `on_more` and `on_over` of `Spool`."""


class Spool:
    """The spilled messages of one holder.

    Args:
        holder: The owner: an outlet. To the books, the messages here are in its hands.
        persistence: Keeps the shelf.
        account: The spool's own, for messages at rest. It is closed with the spool.
        name: The name of the shelf.
        on_more: Called when `take` can return something again.
        on_over: Called with a sentence, out of any commit, when no more can be spilled.
        full_patience: How long readers wait when there is no room (`Holder.full_patience`).
        part: Accounts above `account` have room until 1 / part of their limits is owed for.

    Attributes:
        account: See above.
        over: Why no more can ever be spilled; None as long as it can.
        spilled_items: The number of messages ever spilled.
    """

    __slots__ = (
        "_ahead", "_closed", "_fresh", "_fresh_of", "_full_patience", "_holder", "_items",
        "_last", "_name", "_nbytes", "_next", "_on_more", "_on_over", "_part", "_persistence",
        "_read_next", "_ready", "_rest", "_said_full", "_said_over", "_shelf",
        "_unsynced", "_unsynced_bytes", "_unsynced_items", "_waiting", "account", "over",
        "spilled_items",
    )  # fmt: skip

    def __init__(
        self,
        holder: Holder,
        persistence: SpoolPersistence,
        account: Account,
        name: str,
        *,
        on_more: Callable[[], object],
        on_over: Callable[[str], object],
        full_patience: float = DEFAULT_PATIENCE,
        part: int = 1,
    ) -> None:
        self._holder = holder
        self._persistence = persistence
        self.account = account
        self._name = name
        self._on_more = on_more
        self._on_over = on_over
        self._full_patience = full_patience
        self._part = part
        self._shelf: Any = persistence.shelf(name)
        self._shelf.queue = self
        # Messages not yet written; written and not durable, by number; durable, as one loan; and
        # read back.
        self._fresh: deque[LoanedItem[list[bytes]]] = deque()
        self._fresh_of: Counter[Account] = Counter()
        self._unsynced: dict[int, tuple[int, list[LoanedItem[list[bytes]]]]] = {}
        self._unsynced_items = self._unsynced_bytes = 0
        self._rest = LoanAtRest(account, holder)
        self._ready: deque[tuple[int, LoanedItem[list[bytes]]]] = deque()
        # The record with the last messages of each account that has any, in the records' order.
        self._last: OrderedDict[Account, int] = OrderedDict()
        self._items = self._nbytes = 0
        # A shelf of this name may have existed before: its numbers continue.
        self._next = self._read_next = getattr(self._shelf, "last_seq", 0) + 1
        self._waiting = False
        # With so many records left of those read back, the next are asked for.
        self._ahead = 0
        self._closed = False
        # The disk may be in trouble already; that is reported when there is something to spill.
        self.over: str | None = getattr(persistence, "trouble", None)
        self._said_full = self._said_over = False
        self.spilled_items = 0

    def __repr__(self) -> str:
        return f"<Spool {self._name}: {self._items} messages, {self._nbytes} bytes>"

    @property
    def holder(self) -> Holder:
        """The holder that owns it."""
        return self._holder

    def __len__(self) -> int:
        """Return the number of messages here."""
        return self._items

    @property
    def nbytes(self) -> int:
        """Their bytes."""
        return self._nbytes

    def has_messages_of(self, account: Account) -> bool:
        """Whether messages of an account may be here: later ones have to come behind them."""
        return account in self._fresh_of or self._last.get(account, -1) >= self._first

    @property
    def is_waited_for(self) -> bool:
        """Whether a publisher waits until there is room for its messages."""
        return not all(account.debt_is_clear() for account in self._fresh_of)

    @property
    def _first(self) -> int:
        """The number of the first record that is left, or will be."""
        return self._ready[0][0] if self._ready else self._read_next

    # -- input ----------------------------------------------------------------------------------

    def hold(self, account: Account, chunk: bytes, items: int, nbytes: int, now: float) -> None:
        """Take custody of whole packets, for which `account` has been charged."""
        self._items += items
        self._nbytes += nbytes
        self.spilled_items += items
        fresh = self._fresh
        if fresh:
            tail = fresh[-1]
            if tail.account is account and tail.bytes < tail.grows_to and account.tracing is None:
                tail.item.append(chunk)
                tail.items += items
                tail.bytes += nbytes
                return
        self._fresh_of[account] += 1
        fresh.append(lent(account, [chunk], items, nbytes, self._holder, now))

    def write(self, *, now: bool = False) -> None:
        """Hand new messages to the shelf: after a commit, never inside one.

        Args:
            now: Even if they are few.
        """
        fresh = self._fresh
        if fresh and self.over is not None and not self._said_over:
            self._tell_over(self.over)
        holder = self._holder
        if not now and holder.full_patience is None and self._may_wait():
            return
        holder.full_patience = None
        most = self._unsynced_bytes + WRITE_BYTES
        # The rest, if there is one, follows when these are durable.
        while fresh and self.over is None and self._unsynced_bytes < most:
            loans = self._record()
            items, nbytes = sum(each.items for each in loans), sum(each.bytes for each in loans)
            if not self._has_room(items, nbytes):
                holder.full_patience = self._full_patience
                self._say_full()
                return
            seq = self._next
            self._next += 1
            for loan in loans:
                self._take_fresh()
                self._last[loan.account] = seq
                self._last.move_to_end(loan.account)
            payload = b"".join([chunk for loan in loans for chunk in loan.item])
            # The record's number of messages takes the place of a publication's topic.
            event = Publication(str(items), payload)
            # Reading it back, from RAM or from disk, makes a new copy.
            for loan in loans:
                loan.item = []
            ticket = self._shelf.put(Message(seq, event, nbytes, True, time.time()))
            self._unsynced[seq] = ticket, loans
            self._unsynced_items += items
            self._unsynced_bytes += nbytes
        if self._unsynced_items > HURRY_ITEMS or self._unsynced_bytes > HURRY_BYTES:
            self._persistence.hurry()

    def _has_room(self, items: int, nbytes: int) -> bool:
        items += self._unsynced_items
        nbytes += self._unsynced_bytes
        items_left, bytes_left = self.account.room()
        above = [each for each in self.account.limited if each is not self.account]
        return (
            items <= items_left
            and nbytes <= bytes_left
            and all(
                each.debt_items + items <= each.mark_items / self._part
                and each.debt_bytes + nbytes <= each.mark_bytes / self._part
                for each in above
            )
        )

    def _may_wait(self) -> bool:
        """Whether the new messages are few, and no publisher has to wait until they are spilled."""
        fresh = self._fresh
        return (
            len(fresh) <= SHORT_LOANS
            and sum(loan.bytes for loan in fresh) < SHORT_BYTES
            and all(loan.account.debt_is_clear() for loan in fresh)
        )

    def _record(self) -> list[LoanedItem[list[bytes]]]:
        """Return the next new loans that make a record."""
        found: list[LoanedItem[list[bytes]]] = []
        nbytes = 0
        for loan in self._fresh:
            # A traced loan stays one of its own.
            if found and (nbytes + loan.bytes > JOIN_BYTES or loan.trace or found[-1].trace):
                break
            found.append(loan)
            nbytes += loan.bytes
        return found

    def _take_fresh(self) -> LoanedItem[list[bytes]]:
        loan = self._fresh.popleft()
        self._fresh_of[loan.account] -= 1
        if not self._fresh_of[loan.account]:
            del self._fresh_of[loan.account]
        return loan

    def _say_full(self) -> None:
        if self._said_full:
            return
        self._said_full = True
        holder = self._holder
        logger.warning(
            "%s %s has %d messages (%d bytes) spilled, and no more may be (spill_limit, "
            "disk_limit, kept_limit or retain_limit): publishers wait for it",
            holder.kind, holder.name, self._items, self._nbytes,
            extra={"event": "spill_full", "holder": holder.name, "kind": holder.kind,
                   "items": self._items, "bytes": self._nbytes},
        )  # fmt: skip

    def _say_over(self, why: str) -> None:
        if self.over is None:
            self.over = why
            self._tell_over(why)

    def _tell_over(self, why: str) -> None:
        self._said_over = True
        holder = self._holder
        logger.warning(
            "%s %s is disconnected: %s", holder.kind, holder.name, why,
            extra={"event": "spill_over", "holder": holder.name, "kind": holder.kind,
                   "reason": why, "items": self._items, "bytes": self._nbytes},
        )  # fmt: skip
        self._on_over(why)

    # -- output ---------------------------------------------------------------------------------

    def take(self) -> LoanedItem[list[bytes]] | None:
        """Take out the next messages to send; None: there are none now (see `on_more`)."""
        loan = None
        if self._ready:
            loan = self._ready.popleft()[1]
        elif self._fresh and self._read_next == self._next:
            # The shelf has no earlier messages.
            loan = self._take_fresh()
        if len(self._ready) <= self._ahead and self._read_next < self._next and not self._waiting:
            # The next ones are read while these are sent.
            self._waiting = True
            self._shelf.want(self._read_next, READ_RECORDS, READ_BYTES)
        if loan is not None:
            self._items -= loan.items
            self._nbytes -= loan.bytes
            self._own(loan)
        while self._last and next(iter(self._last.values())) < self._first:
            self._last.popitem(last=False)
        return loan

    def _own(self, loan: LoanedItem[list[bytes]]) -> None:
        # The peer may still not take it, but the publisher does not wait for that.
        if loan.account is not self.account:
            loan.transfer(self.account)

    # -- for the shelf --------------------------------------------------------------------------

    def durable(self, ticket: int) -> None:
        """See `ShelfUser.durable`; more is written then, if there is any."""
        while self._unsynced:
            seq, (written, _) = next(iter(self._unsynced.items()))
            if written > ticket:
                break
            for loan in self._synced(seq):
                self._rest_grows(loan)
        if self._fresh and self._holder.full_patience is None:
            self.write()

    def _synced(self, seq: int) -> list[LoanedItem[list[bytes]]]:
        """Take the loans of a record that is no longer to be synced."""
        loans = self._unsynced.pop(seq)[1]
        self._unsynced_items -= sum(loan.items for loan in loans)
        self._unsynced_bytes -= sum(loan.bytes for loan in loans)
        return loans

    def _rest_grows(self, loan: LoanedItem[list[bytes]]) -> None:
        # Charged here before it is repaid there: debt never touches zero in between.
        self._rest.add(loan.items, loan.bytes, loan.opened)
        progressed_at = self._holder.progressed_at
        loan.settle(outcome=Outcome.STORED)
        # This is not progress of the holder's peer.
        self._holder.progressed_at = progressed_at

    def paged_in(self, messages: Sequence[Message]) -> None:
        self._waiting = False
        if self._closed:
            return
        found: list[int] = []
        for message in messages:
            seq = message.seq
            if not self._read_next <= seq < self._next:
                continue
            self._read_next = seq + 1
            found.append(seq)
            if seq in self._unsynced:
                loan, *others = self._synced(seq)
                self._own(loan)
                for other in others:
                    self._own(other)
                    loan.items += other.items
                    loan.bytes += other.bytes
                    other.items = other.bytes = 0
            else:
                loan = self._rest.take([], int(message.event.topic), message.size)
            loan.item = [message.event.payload]
            self._ready.append((seq, loan))
        self._ahead = len(found) // 2
        if found:
            self._shelf.done(found)
        else:
            self._read_next = self._next
        self._find_lost()
        self._on_more()

    def _find_lost(self) -> None:
        """Give up messages that the shelf has skipped: they cannot be read."""
        passed = takewhile(lambda seq: seq < self._read_next, list(self._unsynced))
        gone = [loan for seq in passed for loan in self._synced(seq)]
        rest = self._rest
        if rest.loan is not None and self._read_next == self._next and not self._unsynced:
            gone.append(rest.loan)
            rest.loan = None
        if not gone:
            return
        items = sum(loan.items for loan in gone)
        self._items -= items
        self._nbytes -= sum(loan.bytes for loan in gone)
        for loan in gone:
            loan.settle(outcome=Outcome.LEAKED)
        logger.error(
            "%s: %d messages are not to be found on disk", self._name, items,
            extra={"event": "spill_lost", "holder": self._holder.name, "items": items},
        )  # fmt: skip

    def recovered(
        self, first_seq: int, next_seq: int, count: int, nbytes: int, marks: Marks
    ) -> None:
        """See `ShelfUser.recovered`: nothing is restored."""
        del first_seq, next_seq, count, nbytes, marks

    def shelf_trouble(self, sentence: str | None) -> None:
        """Note that the disk is in trouble: publishers must not wait for its repair."""
        if sentence is not None:
            self._say_over(sentence)

    # -- inspection and end ---------------------------------------------------------------------

    def loans(self) -> Iterator[LoanedItem[list[bytes]]]:
        """Yield all loans here."""
        for _, loan in self._ready:
            yield loan
        if self._rest.loan is not None:
            yield self._rest.loan
        for _, loans in self._unsynced.values():
            yield from loans
        yield from self._fresh

    def close(self, outcome: Outcome = Outcome.CANCELLED) -> None:
        """Settle all loans here with `outcome`, and erase the shelf. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._holder.full_patience = None
        loans = list(self.loans())
        self._ready.clear()
        self._fresh.clear()
        self._fresh_of.clear()
        self._unsynced.clear()
        self._rest.loan = None
        self._items = self._nbytes = 0
        for loan in loans:
            loan.settle(outcome=outcome)
        self._persistence.drop(self._shelf)
        self.account.close()


def forget_spools(persistence: Any) -> None:
    """Erase the spools of a relay's last run: their connections are gone. For `Shelves`."""
    store = persistence.store
    for name in [name for name in store.queues if name.startswith(SPOOL_PREFIX)]:
        persistence.drop(persistence.shelf(name))
