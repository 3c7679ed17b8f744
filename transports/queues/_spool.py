"""What a connection has not taken yet, put aside on a shelf, in order (`StuckPolicy.SPILL`).

Rules of this file:
1. What comes is its publisher's until the shelf has it for good; from then on it is owed for by the
   spool's own account, at rest, whose limit is how much may be spilled.
2. A record is a stretch of whole packets, as long as a loan may grow: one write and one read for
   hundreds of messages. What is read back is erased at once: nobody acknowledges it.
3. It is there for as long as its connection is. Nothing of it is taken up after a restart.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Any, Final, Protocol

from ...accounts import JOIN_BYTES, Account, Holder, LoanedItem, Outcome
from ...dataspace import Publication
from ...dataspace.queues import Marks, Message

logger = logging.getLogger("clearfunds.transports.queues")

SPOOL_PREFIX: Final = "spill/"
"""How the shelves of spools are called, before the connection's name."""

READ_BYTES: Final = 256 << 10
"""What is read back at once: as much as one send."""

READ_RECORDS: Final = 256
"""How many records that may be."""

HURRY_ITEMS: Final = 1_000
HURRY_BYTES: Final = 1 << 20
"""With so much written and not on disk yet, the shelf is asked not to wait for the next interval: a
tenth of what a publisher may owe, and an eighth of its bytes."""


class SpoolKeeping(Protocol):
    """Where spools have their shelves: `Shelves`, or `RamShelves`."""

    def shelf(self, name: str) -> Any:
        """Return a shelf."""
        ...

    def drop(self, shelf: Any) -> None:
        """Erase a shelf."""
        ...

    def hurry(self) -> None:
        """Let what was written be durable soon."""
        ...


OpenSpool = Callable[[Holder, Callable[[], object], Callable[[str], object]], "Spool"]
"""Opens a spool for a holder, given what `Spool` calls `on_more` and `on_over`."""


class Spool:
    """What one holder has put aside.

    Args:
        holder: Whose it is: the outlet. What is here is in its hands, to the books.
        keeping: Where the shelf is.
        account: The spool's own, for what is at rest. It is closed with the spool.
        name: What the shelf is called.
        on_more: Called when something can be taken that could not be before.
        on_over: Called with a sentence, out of any commit, when no more can be put aside.

    Attributes:
        account: See above.
        over: Why no more can be put aside; None as long as it can.
        spilled_items: How many messages ever came.
    """

    __slots__ = (
        "_closed", "_fresh", "_holder", "_items", "_keeping", "_name", "_nbytes", "_next",
        "_on_more", "_on_over", "_read_next", "_ready", "_rest", "_said_over", "_shelf",
        "_unsynced", "_unsynced_bytes", "_unsynced_items", "_waiting", "account", "over",
        "spilled_items",
    )  # fmt: skip

    def __init__(
        self,
        holder: Holder,
        keeping: SpoolKeeping,
        account: Account,
        name: str,
        *,
        on_more: Callable[[], object],
        on_over: Callable[[str], object],
    ) -> None:
        self._holder = holder
        self._keeping = keeping
        self.account = account
        self._name = name
        self._on_more = on_more
        self._on_over = on_over
        self._shelf: Any = keeping.shelf(name)
        self._shelf.queue = self
        # What has come and is not written; what is written and not durable, by its number; what is
        # durable, as one loan; what has been read back.
        self._fresh: deque[LoanedItem[list[bytes]]] = deque()
        self._unsynced: dict[int, tuple[int, LoanedItem[list[bytes]]]] = {}
        self._unsynced_items = self._unsynced_bytes = 0
        self._rest: LoanedItem[list[bytes]] | None = None
        self._ready: deque[LoanedItem[list[bytes]]] = deque()
        self._items = self._nbytes = 0
        # A shelf of this name may have been there before: its numbers go on.
        self._next = self._read_next = getattr(self._shelf, "last_seq", 0) + 1
        self._waiting = False
        self._closed = False
        # The disk may be in trouble already; that is said when there is something to be put aside.
        self.over: str | None = getattr(keeping, "trouble", None)
        self._said_over = False
        self.spilled_items = 0

    def __repr__(self) -> str:
        return f"<Spool {self._name}: {self._items} messages, {self._nbytes} bytes>"

    @property
    def holder(self) -> Holder:
        """Whose it is."""
        return self._holder

    def __len__(self) -> int:
        """Return how many messages are here."""
        return self._items

    @property
    def nbytes(self) -> int:
        """Their bytes."""
        return self._nbytes

    # -- what comes -----------------------------------------------------------------------------

    def hold(self, account: Account, chunk: bytes, items: int, nbytes: int, now: float) -> None:
        """Take custody of whole packets, for which `account` has been charged."""
        self._items += items
        self._nbytes += nbytes
        self.spilled_items += items
        fresh = self._fresh
        if fresh:
            tail = fresh[-1]
            if tail.account is account and tail.bytes < JOIN_BYTES:
                tail.item.append(chunk)
                tail.items += items
                tail.bytes += nbytes
                return
        fresh.append(LoanedItem(account, [chunk], items, nbytes, self._holder, now, charged=True))

    def write(self) -> None:
        """Hand what has come to the shelf: after a commit, never inside one."""
        fresh = self._fresh
        if fresh and self.over is not None and not self._said_over:
            self._tell_over(self.over)
        while fresh and self.over is None:
            loan = fresh[0]
            items_left, bytes_left = self.account.room()
            if (
                self._unsynced_items + loan.items > items_left
                or self._unsynced_bytes + loan.bytes > bytes_left
            ):
                self._say_over(
                    f"{self._items} messages ({self._nbytes} bytes) are put aside for it, and more "
                    "may not be (max_queued, max_queued_bytes, disk_limit or kept_limit)"
                )
                return
            fresh.popleft()
            seq = self._next
            self._next += 1
            chunks = loan.item
            payload = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            # How many messages a record is stands where a publication has its topic.
            event = Publication(str(loan.items), payload)
            # What reads it back, from RAM or from disk, makes it anew.
            loan.item = [payload]
            ticket = self._shelf.put(Message(seq, event, loan.bytes, True, time.time()))
            self._unsynced[seq] = ticket, loan
            self._unsynced_items += loan.items
            self._unsynced_bytes += loan.bytes
        if self._unsynced_items > HURRY_ITEMS or self._unsynced_bytes > HURRY_BYTES:
            self._keeping.hurry()

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

    # -- what goes ------------------------------------------------------------------------------

    def take(self) -> LoanedItem[list[bytes]] | None:
        """Take out what comes next, to be sent; None: nothing is here now (see `on_more`)."""
        loan = None
        if self._ready:
            loan = self._ready.popleft()
        elif self._read_next < self._next:
            if not self._waiting:
                self._waiting = True
                self._shelf.want(self._read_next, READ_RECORDS, READ_BYTES)
        elif self._fresh:
            # Nothing is on the shelf that comes before it.
            loan = self._fresh.popleft()
        if loan is not None:
            self._items -= loan.items
            self._nbytes -= loan.bytes
            self._own(loan)
        return loan

    def _own(self, loan: LoanedItem[list[bytes]]) -> None:
        # Whoever is to take it now may not do so: that is not what its publisher waits for.
        if loan.account is not self.account:
            loan.transfer(self.account)

    # -- for the shelf --------------------------------------------------------------------------

    def durable(self, ticket: int) -> None:
        while self._unsynced:
            seq, (written, loan) = next(iter(self._unsynced.items()))
            if written > ticket:
                break
            del self._unsynced[seq]
            self._unsynced_items -= loan.items
            self._unsynced_bytes -= loan.bytes
            self._rest_grows(loan)

    def _rest_grows(self, loan: LoanedItem[list[bytes]]) -> None:
        items, nbytes = loan.items, loan.bytes
        # There before it is repaid here: debt never touches zero in between.
        self.account.borrow(items, nbytes)
        rest = self._rest
        if rest is None:
            self._rest = LoanedItem(
                self.account, [], items, nbytes, self._holder, loan.opened, charged=True
            )
        else:
            rest.items += items
            rest.bytes += nbytes
        progressed_at = self._holder.progressed_at
        loan.settle(outcome=Outcome.STORED)
        # The holder's peer has taken nothing by it.
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
            unsynced = self._unsynced.pop(seq, None)
            if unsynced is not None:
                loan = unsynced[1]
                self._unsynced_items -= loan.items
                self._unsynced_bytes -= loan.bytes
                self._own(loan)
            else:
                loan = self._out_of_rest(int(message.event.topic), message.size)
            loan.item = [message.event.payload]
            self._ready.append(loan)
        if found:
            self._shelf.done(found)
        else:
            self._read_next = self._next
        self._find_lost()
        self._on_more()

    def _out_of_rest(self, items: int, nbytes: int) -> LoanedItem[list[bytes]]:
        rest = self._rest
        assert rest is not None
        rest.items -= items
        rest.bytes -= nbytes
        if not rest.items:
            self._rest = None
        return LoanedItem(self.account, [], items, nbytes, self._holder, rest.opened, charged=True)

    def _find_lost(self) -> None:
        """Give up what was passed over: it cannot be read."""
        passed = takewhile(lambda seq: seq < self._read_next, list(self._unsynced))
        gone = [self._unsynced.pop(seq)[1] for seq in passed]
        self._unsynced_items -= sum(loan.items for loan in gone)
        self._unsynced_bytes -= sum(loan.bytes for loan in gone)
        if self._rest is not None and self._read_next == self._next and not self._unsynced:
            gone.append(self._rest)
            self._rest = None
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
        """See `ShelfUser.recovered`: nothing is taken up."""
        del first_seq, next_seq, count, nbytes, marks

    def shelf_trouble(self, sentence: str | None) -> None:
        """Hear that the disk is in trouble: publishers must not wait until it is not."""
        if sentence is not None:
            self._say_over(sentence)

    # -- looking, and the end -------------------------------------------------------------------

    def loans(self) -> Iterator[LoanedItem[list[bytes]]]:
        """Yield all that is here."""
        yield from self._ready
        if self._rest is not None:
            yield self._rest
        for _, loan in self._unsynced.values():
            yield loan
        yield from self._fresh

    def close(self, outcome: Outcome = Outcome.CANCELLED) -> None:
        """Settle all that is here with `outcome`, and erase it. Idempotent."""
        if self._closed:
            return
        self._closed = True
        loans = list(self.loans())
        self._ready.clear()
        self._fresh.clear()
        self._unsynced.clear()
        self._rest = None
        self._items = self._nbytes = 0
        for loan in loans:
            loan.settle(outcome=outcome)
        self._keeping.drop(self._shelf)
        self.account.close()


def forget_spools(keeping: Any) -> None:
    """Erase what the last run of a relay has left: its connections are gone. For `Shelves`."""
    store = keeping.store
    for name in [name for name in store.queues if name.startswith(SPOOL_PREFIX)]:
        keeping.drop(keeping.shelf(name))
