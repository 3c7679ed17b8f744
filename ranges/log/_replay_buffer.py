"""A subscription's messages in order: sealed chunks and the tail; found by number, and by size."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from ...accounts import LoanedItem
from ..wire import OpenBlock
from ._block import Columns, cut_block, join_block
from ._chunk import ROW_BYTES, Chunk, Tail

MAX_BLOCKS = 64
"""Chunks on disk in one answer, at most."""

JOINED_BYTES = 1 << 20
"""Chunks on disk are joined up to this size: 2.5 MB of RAM for 10 GiB. Within such a chunk, bytes
are repaid in proportion."""


class AtRest(NamedTuple):
    """Messages that are only on disk: read them there, from `start` to before `end`."""

    start: int
    end: int


class ReplayBuffer:
    """The messages of one subscription that may be fetched again.

    Attributes:
        chunks: All sealed ones, in order: first those at rest, then those being written, then those
            to be written.
        tail: The growing one.
    """

    __slots__ = ("_sealed_bytes", "chunks", "tail")

    def __init__(self) -> None:
        self.chunks: deque[Chunk] = deque()
        self.tail = Tail(1)
        # Bytes of the blocks of all chunks ever, without the tail.
        self._sealed_bytes = 0

    def loans(self) -> Iterator[LoanedItem[Any]]:
        """Yield all loans of publishers."""
        for chunk in self.chunks:
            for loan in chunk.loans:
                if loan.items:
                    yield loan
        yield from self.tail.loans

    # -- growing and shrinking ------------------------------------------------------------------

    def seal(self, end: int) -> Chunk:
        """Seal the tail, which ends before `end`; return the new chunk."""
        tail = self.tail
        block = join_block(tail, tail.first, end)
        chunk = Chunk(tail.first, end, block, self._sealed_bytes, len(block))
        self._sealed_bytes = chunk.upto
        chunk.loans = tail.loans
        chunk.confirms = tail.confirms
        self.chunks.append(chunk)
        self.tail = Tail(end)
        return chunk

    def recover(self, low: int, end: int, nbytes: int) -> Chunk:
        """Take the messages from `low` to before `end`, found on disk; return their chunk."""
        chunk = Chunk(low, end, None, 0, nbytes)
        self._sealed_bytes = nbytes
        self.chunks.append(chunk)
        return chunk

    def join_on_disk(self, chunk: Chunk) -> None:
        """Join a chunk with the one before it, if both are only on disk.

        The bookkeeping in RAM for messages on disk has to be small, however small the records are.
        """
        place = self._place_of(chunk.first)
        if not place:
            return
        before = self.chunks[place - 1]
        if before.block is None and before.rest_bytes < JOINED_BYTES:
            before.end = chunk.end
            before.upto = chunk.upto
            before.rest_items += chunk.rest_items
            before.rest_bytes += chunk.rest_bytes
            del self.chunks[place]

    def clear(self, following: int) -> None:
        """Forget all messages; the next is `following`."""
        for chunk in self.chunks:
            chunk.loans.clear()
            chunk.confirms.clear()
        self.chunks.clear()
        self.tail = Tail(following)

    # -- reading --------------------------------------------------------------------------------

    def fetch(self, start: int, end: int, max_bytes: int) -> list[bytes] | AtRest:
        """See `RangeSubscription.fetch`; `start` and `end` exist."""
        blocks: list[bytes] = []
        size = 0
        for place in range(self._place_of(start), len(self.chunks)):
            chunk = self.chunks[place]
            if chunk.first >= end:
                break
            block = chunk.block
            if block is None:
                if not blocks:
                    return AtRest(start, min(end, self._end_on_disk(place)))
                return blocks
            block = cut_block(block, start, end)
            if blocks and size + len(block) > max_bytes:
                return blocks
            blocks.append(block)
            size += len(block)
        tail = self.tail
        if end > tail.first and (not blocks or size + tail.nbytes <= max_bytes):
            blocks.append(join_block(tail, max(start, tail.first), end))
        return blocks

    def _end_on_disk(self, place: int) -> int:
        """Return the number after the last of the chunks from this one on that are only on disk.

        It looks at no more chunks than fit into one answer.
        """
        end = self.chunks[place].end
        for following in range(place + 1, min(place + MAX_BLOCKS, len(self.chunks))):
            chunk = self.chunks[following]
            if chunk.block is not None:
                break
            end = chunk.end
        return end

    def reach(self, start: int, max_bytes: int) -> int:
        """Return the first message, from `start` on, whose end is beyond `max_bytes`."""
        place = self._place_of(start)
        most = max(0, max_bytes) + self._bytes_before(place, start)
        low, high = place, len(self.chunks)
        while low < high:
            middle = (low + high) // 2
            if self.chunks[middle].upto <= most:
                low = middle + 1
            else:
                high = middle
        return self._number_at(low, most)

    def _place_of(self, number: int) -> int:
        """Return the index of a message's chunk; for the tail, the number of chunks."""
        chunks = self.chunks
        low, high = 0, len(chunks)
        while low < high:
            middle = (low + high) // 2
            if chunks[middle].end <= number:
                low = middle + 1
            else:
                high = middle
        return low

    def _bytes_before(self, place: int, number: int) -> int:
        """Return the number of bytes before a message, ever; `place` is its chunk."""
        if place == len(self.chunks):
            columns: Columns = self.tail
            before = self._sealed_bytes
        else:
            chunk = self.chunks[place]
            before = chunk.before
            if chunk.block is None:
                share = number - chunk.first, chunk.end - chunk.first
                return before + (chunk.upto - before) * share[0] // share[1]
            columns = OpenBlock(chunk.block)
        count = number - columns.first
        keys, values = columns.key_lengths[:count], columns.value_lengths[:count]
        return before + sum(keys) + sum(values) + count * ROW_BYTES

    def _number_at(self, place: int, most: int) -> int:
        """Return the first message of a chunk before whose end there are more than `most` bytes."""
        if place == len(self.chunks):
            columns: Columns = self.tail
            before = self._sealed_bytes
        else:
            chunk = self.chunks[place]
            before = chunk.before
            if chunk.block is None:
                count = chunk.end - chunk.first
                return chunk.first + count * (most - before) // max(1, chunk.upto - before)
            columns = OpenBlock(chunk.block)
        number = columns.first
        for key, value in zip(columns.key_lengths, columns.value_lengths, strict=True):
            before += key + value + ROW_BYTES
            if before > most:
                break
            number += 1
        return number
