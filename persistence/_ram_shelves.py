"""Shelves in RAM: for a relay without a directory to store anything in.

Messages here count as at rest: their publisher is repaid, and the queue owes for them within its
own budget. They are lost with the process. Such a relay can promise no more, and promises its
clients no more.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import trio

from ..accounts import Faults
from ..dataspace.queues import Message, Queue
from ._owner import TELLING, owner_of
from ._sending import Sending

TOLD_A_STEP: Final = 128
"""Shelves that report before other tasks may run: about a millisecond's worth."""


def _at_rest(message: Message) -> Message:
    """Return a message as it comes from a shelf; `attrs.evolve` takes four times as long."""
    return Message(
        message.seq, message.event, message.size, message.persistent, message.enqueued,
        message.expires, tag=message.tag, deaths=message.deaths, ticket=0, at_rest=True,
        doomed=message.doomed, ram_only=message.ram_only, finished=message.finished,
    )  # fmt: skip


class RamShelf:
    """One queue's view of memory that is not its own (`clearfunds.dataspace.queues.Shelf`)."""

    __slots__ = ("_messages", "_order", "_shelves", "_ticket", "queue", "wants")

    def __init__(self, shelves: RamShelves) -> None:
        self._shelves = shelves
        self._messages: dict[int, Message] = {}
        # Numbers in order; some belong to erased messages.
        self._order: list[int] = []
        self._ticket = 0
        self.queue: Queue | None = None
        self.wants: list[tuple[int, int, int]] = []

    def __len__(self) -> int:
        """The number of messages here."""
        return len(self._messages)

    def put(self, message: Message) -> int:
        self._messages[message.seq] = _at_rest(message)
        if not self._order or message.seq > self._order[-1]:
            self._order.append(message.seq)
        else:
            self._order.insert(bisect_left(self._order, message.seq), message.seq)
        return self._next_ticket()

    def done(self, seqs: Sequence[int]) -> None:
        for seq in seqs:
            self._messages.pop(seq, None)
        if len(self._order) > 2 * len(self._messages) + 64:
            self._order = [seq for seq in self._order if seq in self._messages]

    def mark(self, attached: bool, delivered_upto: int) -> int:
        """See `Shelf.mark`: nothing survives a restart, so there is nothing to write."""
        del attached, delivered_upto
        return self._next_ticket()

    def want(self, first_seq: int, count: int, nbytes: int) -> None:
        self.wants.append((first_seq, count, nbytes))
        self._shelves.has_to_tell(self)

    def recover(self, queue: Queue) -> None:
        """Become the shelf of `queue`; a new shelf is empty."""
        self.queue = queue

    def _next_ticket(self) -> int:
        self._ticket += 1
        self._shelves.has_to_tell(self)
        return self._ticket

    def tell(self) -> None:
        """Report durability, and answer requests for messages."""
        queue = self.queue
        if queue is None:
            return
        queue.durable(self._ticket)
        wants, self.wants = self.wants, []
        for first_seq, count, nbytes in wants:
            found: list[Message] = []
            size = 0
            for seq in self._order[bisect_left(self._order, first_seq) :]:
                if len(found) >= count or size >= nbytes:
                    break
                message = self._messages.get(seq)
                if message is not None:
                    found.append(_at_rest(message))
                    size += message.size
            queue.paged_in(found)


class RamShelves:
    """The shelves of a relay without a store, in place of `Shelves`.

    Attributes:
        faults: See `Shelves`.
    """

    def __init__(self, flusher: Sending) -> None:
        self.faults = Faults()
        self._flusher = flusher
        self._to_tell: set[RamShelf] = set()
        self._something = trio.Event()

    def shelf(self, name: str) -> RamShelf:
        """Return a new shelf."""
        del name
        return RamShelf(self)

    def drop(self, shelf: RamShelf) -> None:
        """Forget a shelf."""
        shelf.queue = None

    def set(self, key: str, value: bytes) -> None:
        """Store nothing: only this process would read it, and it knows the value."""

    def delete(self, key: str) -> None:
        """See `set`."""

    def when_durable(self, callback: Callable[[], object], whose: object = None) -> None:
        """Call back at once: nothing becomes more durable later."""
        del whose  # the callback runs in the caller's own task
        callback()

    def hurry(self) -> None:
        """Do nothing: see `when_durable`."""

    def has_to_tell(self, shelf: RamShelf) -> None:
        """Note that a shelf has something to report, in the next round of the event loop."""
        self._to_tell.add(shelf)
        self._something.set()

    def tell(self, most: int = sys.maxsize) -> bool:
        """Let at most `most` shelves report; return whether there are more."""
        with self._flusher.corked():
            # Those that have something to report meanwhile have their turn in the next round.
            for shelf in [self._to_tell.pop() for _ in range(min(most, len(self._to_tell)))]:
                self.faults.call(owner_of(shelf.queue), TELLING, shelf.tell)
        self._flusher.flush_now()
        return bool(self._to_tell)

    async def run(self) -> None:
        """Let the shelves report, once for each round of the event loop, until cancelled."""
        while True:
            await self._something.wait()
            self._something = trio.Event()
            while self.tell(TOLD_A_STEP):
                await trio.lowlevel.checkpoint()


@asynccontextmanager
async def open_ram_shelves(flusher: Sending) -> AsyncGenerator[RamShelves]:
    """Let shelves in RAM report for as long as the block lasts."""
    shelves = RamShelves(flusher)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shelves.run)
        try:
            yield shelves
        finally:
            nursery.cancel_scope.cancel()
