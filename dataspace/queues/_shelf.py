"""The shelf, a queue's part of a disk; and one in memory for tests, under the test's control."""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import attrs

if TYPE_CHECKING:
    from ._message import Message


@attrs.frozen(slots=True)
class Marks:
    """A shelf's record of which messages consumers may have had."""

    attached: bool = False
    """Whether a consumer was there: it may have had any message."""
    delivered_upto: int = 0
    """Messages with a lower `seq` than this may have been delivered."""


class ShelfUser(Protocol):
    """The owner of the messages on a shelf, which the shelf notifies: a `Queue`."""

    def durable(self, ticket: int) -> None:
        """Take note that all writes with this ticket, or an earlier one, are durable."""
        ...

    def paged_in(self, messages: Sequence[Message]) -> None:
        """Take the answer to the oldest unanswered `Shelf.want`."""
        ...

    def recovered(
        self, first_seq: int, next_seq: int, count: int, nbytes: int, marks: Marks
    ) -> None:
        """Take over the messages found after a restart, before anything else.

        There are `count` of them, of `nbytes` bytes. They are numbered from `first_seq` to below
        `next_seq`, with gaps; new ones from `next_seq`.
        """
        ...


class Shelf(Protocol):
    """One queue's part of a disk. It never blocks, calls back, or raises errors of the disk.

    Writes are ordered: if the writes of one ticket are found after a crash, so are those of all
    earlier tickets; of one ticket everything is found, or nothing.
    """

    def put(self, message: Message) -> int:
        """Write a message, and return a ticket (from 1, never decreasing).

        The event and the fields that have to come back are copied now; the object may be unloaded
        as soon as this returns. It is durable when `Queue.durable` is called with this ticket or a
        later one. Mostly in the order of `seq`, but a message may be written after some that follow
        it: one that was not to be written until it was paged out, or that had to wait for room in
        the disk budget. The fields that have to come back: `seq`, `event`, `size`, `persistent`,
        `enqueued`, `expires`, `tag`, `deaths`.

        Raises:
            ValueError: If the event has no form as bytes. It stays in RAM then, as if it were
                transient.
        """
        ...

    def done(self, seqs: Sequence[int]) -> None:
        """Erase messages; a long one may be a `range`, of which some were never written.

        Ordered with the other writes; nobody waits for it to be durable.
        """
        ...

    def mark(self, attached: bool, delivered_upto: int) -> int:
        """Write which messages consumers may have had, see `Marks`, and return a ticket.

        A queue waits for it before it delivers older messages, except with the disk in trouble:
        messages that it delivers then may come again after a crash as if nobody had had them.
        """
        ...

    def want(self, first_seq: int, count: int, nbytes: int) -> None:
        """Ask for the messages from `first_seq` on; `Queue.paged_in` is called once with them.

        At most `count`, and no more after `nbytes` bytes are reached; at least one if there is one.
        Messages that are done are skipped; messages that were put and are not written yet are
        included. The answer comes later, never from inside this call. Each is a new `Message` with
        `loan` None, `ticket` 0 and `at_rest` true.
        """
        ...


@attrs.define(slots=True)
class _Write:
    """One entry of the log: a message, an erasure, or a mark."""

    ticket: int
    message: Message | None = None
    done: Sequence[int] = ()
    marks: Marks | None = None


class MemoryShelf:
    """A shelf as slow, and as forgetful, as a test wants it.

    Nothing is durable until `sync`, and nothing is answered until `answer`. `crash` gives the shelf
    that a restart would find: with the durable writes, and none of the rest.

    Attributes:
        queue: The queue to notify; set by the code that makes both.
        wants: The reads that were asked for and not answered, the oldest first.
    """

    def __init__(self) -> None:
        self.queue: ShelfUser | None = None
        self.wants: deque[tuple[int, int, int]] = deque()
        self._ticket = 0
        self._durable = 0
        self._log: deque[_Write] = deque()
        # The contents for a reader, and those that a restart would find.
        self._written = _Contents()
        self._safe = _Contents()

    def __len__(self) -> int:
        """Return the number of messages on it, durable or not."""
        return len(self._written.messages)

    @property
    def messages(self) -> list[Message]:
        """The messages on it, durable or not, in order."""
        return self._written.following(0)

    @property
    def unsynced(self) -> int:
        """The number of writes that are not durable."""
        return len(self._log)

    @property
    def last_ticket(self) -> int:
        """The ticket of the last write."""
        return self._ticket

    # -- a shelf --------------------------------------------------------------------------------

    def put(self, message: Message) -> int:
        """See `Shelf.put`."""
        assert message.event is not None
        copy = attrs.evolve(
            message, loan=None, confirm=None, ticket=0, at_rest=True, pending=False,
            deliveries=0, failures=0, redelivered=False,
        )  # fmt: skip
        return self._write(message=copy)

    def done(self, seqs: Sequence[int]) -> None:
        """See `Shelf.done`."""
        self._write(done=seqs if isinstance(seqs, range) else tuple(seqs))

    def mark(self, attached: bool, delivered_upto: int) -> int:
        """See `Shelf.mark`."""
        return self._write(marks=Marks(attached, delivered_upto))

    def want(self, first_seq: int, count: int, nbytes: int) -> None:
        """See `Shelf.want`."""
        assert count > 0
        assert nbytes > 0
        self.wants.append((first_seq, count, nbytes))

    def _write(
        self,
        message: Message | None = None,
        done: Sequence[int] = (),
        marks: Marks | None = None,
    ) -> int:
        self._ticket += 1
        write = _Write(self._ticket, message, done, marks)
        self._log.append(write)
        self._written.apply(write)
        return self._ticket

    # -- for the test ---------------------------------------------------------------------------

    def sync(self, upto: int | None = None) -> None:
        """Make writes with tickets up to `upto` durable (None: all), and notify the queue."""
        upto = self._ticket if upto is None else min(upto, self._ticket)
        while self._log and self._log[0].ticket <= upto:
            self._safe.apply(self._log.popleft())
        if upto > self._durable:
            self._durable = upto
            if self.queue is not None:
                self.queue.durable(upto)

    def answer(self) -> bool:
        """Answer the oldest read that was asked for; return whether there was one."""
        if not self.wants:
            return False
        first_seq, count, nbytes = self.wants.popleft()
        found: list[Message] = []
        size = 0
        for message in self._written.following(first_seq):
            if len(found) >= count or size >= nbytes:
                break
            found.append(attrs.evolve(message))
            size += message.size
        if self.queue is not None:
            self.queue.paged_in(found)
        return True

    def settle(self) -> None:
        """Make everything durable and answer everything, until no reads are left."""
        self.sync()
        while self.answer() or self._log:
            self.sync()

    def crash(self) -> MemoryShelf:
        """Return the shelf that is found after a crash at this moment."""
        found = MemoryShelf()
        found._safe = self._safe.copy()
        found._written = self._safe.copy()
        found._ticket = found._durable = self._ticket
        return found

    def recover(self, queue: ShelfUser) -> None:
        """Become the shelf of `queue`, new after a restart, and hand over its messages."""
        self.queue = queue
        messages = self._written.messages
        if messages or self._written.highest:
            queue.recovered(
                min(messages, default=self._written.highest + 1),
                self._written.highest + 1,
                len(messages),
                sum(message.size for message in messages.values()),
                self._written.marks,
            )


class _Contents:
    """The contents of a shelf."""

    def __init__(self) -> None:
        self.messages: dict[int, Message] = {}
        self.marks = Marks()
        self.highest = 0
        # In the order of their numbers, with those of erased messages among them until a clean-up
        # pays: late writes (the disk had been full) may go in between.
        self._order: list[int] = []

    def apply(self, write: _Write) -> None:
        if write.message is not None:
            seq = write.message.seq
            self.messages[seq] = write.message
            self.highest = max(self.highest, seq)
            bisect.insort(self._order, seq)
        for seq in write.done:
            self.messages.pop(seq, None)
        if write.marks is not None:
            self.marks = write.marks
        if len(self._order) > 2 * len(self.messages) + 100:
            self._order = sorted(self.messages)

    def following(self, first_seq: int) -> list[Message]:
        start = bisect.bisect_left(self._order, first_seq)
        return [self.messages[s] for s in self._order[start:] if s in self.messages]

    def copy(self) -> _Contents:
        other = _Contents()
        other.messages = {seq: attrs.evolve(m) for seq, m in self.messages.items()}
        other.marks = self.marks
        other.highest = self.highest
        other._order = sorted(other.messages)
        return other
