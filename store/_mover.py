"""Copying forward the live messages of one segment, in pieces."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from itertools import repeat
from typing import TYPE_CHECKING, Final

from ._decode import runs_of
from ._encode import RUN_BYTES
from ._errors import CorruptRecordError
from ._intervals import Intervals
from ._records import (
    MOVE,
    MOVE_BODY,
    Run,
    alike,
    embedded,
    lengths,
    pieces,
    read_head,
    read_payload,
    sums,
    total,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ._encode import Batch
    from ._extents import Extent
    from ._index import Index, Segment
    from ._queue import StoredQueue

_REACH: Final = (1 << 32) - 1


class BadExtentError(CorruptRecordError):
    """An extent that was to be copied is corrupt."""

    def __init__(self, why: str, queue: int, extent: Extent) -> None:
        super().__init__(why)
        self.queue = queue
        self.extent = extent


class _Columns:
    """Messages to be copied, from one run or several."""

    def __init__(self) -> None:
        self.seqs: list[int] = []
        self.headers: list[bytes] = []
        self.bodies: list[bytes] = []
        self.lengths: list[int] = []
        self.sizes: list[int] = []
        self.shared: list[int] = []

    def add(self, run: Run, payload: bytes, start: int, stop: int) -> None:
        """Add the messages `start` up to `stop` of a run."""
        offsets = range(run.count) if run.offsets is None else run.offsets
        self.seqs += [run.first + offset for offset in offsets[start:stop]]
        self.headers += pieces(payload, run.blob, run.headers, start, stop)
        blob = run.blob + total(run.headers, run.count)
        self.bodies += pieces(payload, blob, embedded(run), start, stop)
        self.lengths += _part(run.bodies, start, stop)
        self.sizes += _part(run.sizes, start, stop)
        self.shared += repeat(0, stop - start) if run.shared is None else run.shared[start:stop]


def _part(values: int | array[int], start: int, stop: int) -> Iterable[int]:
    return repeat(values, stop - start) if isinstance(values, int) else values[start:stop]


class Mover:
    """Puts the live messages of one segment into batches, a bounded piece at a time.

    Use it only when everything written is durable. Acknowledgements that are written after such a
    batch are applied after it, to the new places.
    """

    def __init__(
        self,
        index: Index,
        segment: Segment,
        read: Callable[[int, int], bytes],
        pending: Callable[[int, int, int], Intervals],
    ) -> None:
        """Make one.

        Args:
            index: The index of the messages.
            segment: The segment to copy.
            read: Reads a number of bytes at an offset of the segment.
            pending: Returns a queue's numbers in a range that are done, but not durably.
        """
        self.index = index
        self.segment = segment
        self.total = segment.live
        self._read = read
        self._pending = pending
        self._queues = list(index.durable)

    def step(self, batch: Batch, limit: int) -> bool:
        """Put about `limit` bytes more into a batch; return whether any were left.

        Raises:
            OSError: The segment cannot be read.
            CorruptRecordError: Something in it is corrupt (`BadExtentError`: a message).
        """
        number = self.segment.number
        while self._queues:
            queue = self.index.durable.get(self._queues[-1])
            place = None if queue is None else queue.extents.in_segment(number)
            if queue is None or place is None:
                self._queues.pop()
                continue
            while place is not None:
                extents = self._neighbours(queue, place)
                self._copy(batch, queue, extents)
                if batch.size >= limit:
                    return True
                place = queue.extents.in_segment(number, place + len(extents))
            return True
        for body, where in self.index.bodies.within(number, limit):
            data = self._read(where.length, where.offset)
            payload = read_payload(read_head(self.segment.salt, data, 0), data, 0)
            batch.record(MOVE_BODY, payload, first=body, last=body, count=1)
        return bool(batch.ops)

    def _neighbours(self, queue: StoredQueue, place: int) -> list[Extent]:
        """Return adjacent extents that together make one record."""
        found: list[Extent] = []
        size = 0
        for at in queue.extents.from_place(queue.extents.at(place).first):
            extent = queue.extents.at(at)
            size += extent.live_bytes
            if found and (
                extent.segment != self.segment.number
                or size > RUN_BYTES
                or extent.last - found[0].first > _REACH
            ):
                break
            found.append(extent)
        return found

    def _copy(self, batch: Batch, queue: StoredQueue, extents: list[Extent]) -> None:
        first, last = extents[0].first, extents[-1].last
        gone: list[tuple[int, int]] = []
        with self.index.lock:
            pending = self._pending(queue.id, first, last)
            for low, high in queue.finished.within(first, last):
                gone += pending.missing(low, high)
        dead = Intervals()
        for low, high in gone:
            dead.add(low, high)
        columns = _Columns()
        for extent in extents:
            try:
                self._add(columns, queue.id, extent, dead)
            except CorruptRecordError as error:
                raise BadExtentError(str(error), queue.id, extent) from error
        if len(columns.seqs) != sum(extent.live for extent in extents):
            msg = f"{len(columns.seqs)} messages where others belong"
            raise BadExtentError(msg, queue.id, extents[0])
        self._record(batch, queue.id, columns, (first, last))
        batch.ops[-1].gone = gone

    def _add(self, columns: _Columns, queue: int, extent: Extent, dead: Intervals) -> None:
        data = self._read(extent.length, extent.offset)
        for head, run, payload in runs_of(self.segment.salt, queue, extent, data)[0]:
            for low, high in dead.missing(head.first, head.last):
                if run.offsets is None:
                    start, stop = low - head.first, min(high - head.first + 1, run.count)
                else:
                    start = bisect_left(run.offsets, low - head.first)
                    stop = bisect_right(run.offsets, high - head.first)
                if start < stop:
                    columns.add(run, payload, start, stop)

    @staticmethod
    def _record(batch: Batch, queue: int, columns: _Columns, reach: tuple[int, int]) -> None:
        seqs = columns.seqs
        first, last, count = seqs[0], seqs[-1], len(seqs)
        offsets: array[int] | None = None
        if last - first >= count:
            offsets = array("I", [seq - first for seq in seqs])
        shared = array("Q", columns.shared) if any(columns.shared) else None
        headers, bodies, sizes = (
            lengths(columns.headers),
            alike(columns.lengths),
            alike(columns.sizes),
        )
        own = sums(headers, bodies, count)
        embedded_bodies = columns.bodies
        if shared is not None:
            embedded_bodies = [
                body for body, ref in zip(columns.bodies, columns.shared, strict=True) if not ref
            ]
        run = Run(first, count, offsets, headers, bodies, sizes, shared, 0)
        batch.run(
            *(MOVE, queue, run, last, columns.headers, embedded_bodies),
            explicit=_each(own, count) != _each(sizes, count),
            reach=reach,
        )


def _each(values: int | array[int], count: int) -> list[int]:
    return [values] * count if isinstance(values, int) else values.tolist()
