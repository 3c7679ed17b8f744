"""The way of a durable subscription's chunks to the disk: to be written, being written, at rest."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ...accounts import LoanAtRest, Outcome
from ._chunk import Chunk
from ._log import SubscriptionLog

if TYPE_CHECKING:
    from ._subscription import RangeSubscription


class WriteBehind:
    """Writes chunks to the log, in order, as far as there is room on disk.

    Args:
        subscription: Their holder.
        rest: The loan for those at rest.
        log: The subscription's place on the disk.

    Attributes:
        log: See above.
        dirty: Whether the log's owner knows that there is something to write.
        no_room_since: The time since which a message has waited for room on disk.
        unwritten: Chunks to be written.
    """

    __slots__ = (
        "_cached_bytes", "_rest", "_subscription", "_writing", "_writing_bytes", "_writing_items",
        "dirty", "log", "no_room_since", "unwritten",
    )  # fmt: skip

    def __init__(
        self, subscription: RangeSubscription, rest: LoanAtRest, log: SubscriptionLog
    ) -> None:
        self._subscription = subscription
        self._rest = rest
        self.log = log
        self.dirty = False
        self.no_room_since: float | None = None
        self.unwritten: deque[Chunk] = deque()
        self._writing: deque[Chunk] = deque()
        self._writing_items = 0
        self._writing_bytes = 0
        self._cached_bytes = 0

    def wake(self) -> None:
        """Note that there is something to write; once, until it is written."""
        self.dirty = True
        self.log.dirty()

    def write(self) -> None:
        """See `RangeSubscription.write`."""
        subscription = self._subscription
        self.dirty = False
        if not self.unwritten:
            subscription.seal_tail()
        while self.unwritten:
            chunk = self.unwritten[0]
            block = chunk.block
            assert block is not None
            if not self._make_room(chunk.end - chunk.first, len(block)):
                if self.no_room_since is None:
                    self.no_room_since = subscription.ledger.clock()
                return  # Until acknowledgements make room.
            self.unwritten.popleft()
            chunk.ticket = self.log.put(chunk.end - 1, block, chunk.confirms)
            self._writing.append(chunk)
            self._writing_items += chunk.end - chunk.first
            self._writing_bytes += len(block)
            if not self.unwritten:
                subscription.seal_tail()
        self.no_room_since = None

    def _make_room(self, items: int, nbytes: int) -> bool:
        """Return whether there is room on disk; while it is behind, the oldest make some."""
        while not self._has_room(items, nbytes):
            if self._rest.loan is None or not self._subscription.make_room(nbytes):
                return False
        return True

    def _has_room(self, items: int, nbytes: int) -> bool:
        if self._rest.loan is None and not self._writing:
            return True  # Otherwise one larger than the whole quota would wait for ever.
        room_items, room_bytes = self._rest.account.room()
        return (
            room_items - self._writing_items >= items and room_bytes - self._writing_bytes >= nbytes
        )

    # -- at rest --------------------------------------------------------------------------------

    def next_durable(self, ticket: int) -> Chunk | None:
        """Lay the next chunk to rest, if its ticket is this or an earlier one; return it."""
        writing = self._writing
        if not writing or (writing[0].ticket or 0) > ticket:
            return None
        chunk = writing.popleft()
        self._no_longer_written(chunk)
        self.lay_to_rest(chunk)
        return chunk

    def _no_longer_written(self, chunk: Chunk) -> None:
        assert chunk.block is not None
        self._writing_items -= chunk.end - chunk.first
        self._writing_bytes -= len(chunk.block)

    def lay_to_rest(self, chunk: Chunk) -> None:
        """Charge the subscription's own account for a chunk, before its publishers are repaid."""
        chunk.at_rest = True
        chunk.rest_items = chunk.end - chunk.first
        chunk.rest_bytes = chunk.upto - chunk.before
        self._rest.add(chunk.rest_items, chunk.rest_bytes)

    def keeps_in_ram(self, chunk: Chunk) -> bool:
        """Whether a chunk at rest stays in RAM, too; else forget its block."""
        block = chunk.block
        assert block is not None
        if self._cached_bytes + len(block) > self._subscription.limits.cache_bytes:
            chunk.block = None
            return False
        self._cached_bytes += len(block)
        return True

    def settle(self, chunk: Chunk, items: int, outcome: Outcome) -> None:
        """Repay a part of a chunk at rest."""
        nbytes = chunk.rest_bytes
        if items < chunk.rest_items:
            nbytes = nbytes * items // chunk.rest_items
        chunk.rest_items -= items
        chunk.rest_bytes -= nbytes
        self._rest.settle(items, nbytes, outcome)

    def forget(self, chunk: Chunk, outcome: Outcome) -> None:
        """Forget the oldest chunk; repay it if it is at rest."""
        if chunk.at_rest:
            self.settle(chunk, chunk.rest_items, outcome)
            if chunk.block is not None:
                self._cached_bytes -= len(chunk.block)
        elif self._writing and self._writing[0] is chunk:
            self._writing.popleft()
            self._no_longer_written(chunk)
        elif self.unwritten and self.unwritten[0] is chunk:
            self.unwritten.popleft()

    def clear(self) -> None:
        """Forget all chunks."""
        self._writing.clear()
        self.unwritten.clear()
