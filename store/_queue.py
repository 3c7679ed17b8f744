"""One queue of the store."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import attrs

from ._changes import Puts
from ._detail import fitting, indices, number, shared, weight
from ._extents import Extent, Extents
from ._intervals import Intervals

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Iterator, Sequence

_last = attrgetter("last")


class Record(NamedTuple):
    """A message as returned by a read."""

    seq: int
    header: bytes
    body: bytes
    nbytes: int
    """Its size: header and body together, unless its `put` gave another."""


class Columns(NamedTuple):
    """Messages as returned by a read, in columns of equal length."""

    seqs: Sequence[int]
    headers: Sequence[bytes]
    bodies: Sequence[bytes]
    sizes: Sequence[int]
    """The size of each, see `Record.nbytes`."""


class OnDisk(NamedTuple):
    """Messages to read from an extent: those with numbers in `ranges`."""

    extent: Extent
    ranges: list[tuple[int, int]]
    number: int
    """Number of messages."""
    bodies: set[int]


class InMemory(NamedTuple):
    """Messages to read from those that are not durable yet: `start` up to `stop`."""

    puts: Puts
    start: int
    stop: int


Plan: TypeAlias = "list[OnDisk | InMemory]"


@attrs.define(slots=True, eq=False)
class StoredQueue:
    """One queue of the store: its committed messages, durable or not.

    Attributes:
        id: Never reused for another queue.
        name: The name that its owner gave it.
        meta: The owner's note about it.
        next_seq: Above all sequence numbers it has had.
        live_count: Messages that are not done.
        live_bytes: Their size, in bytes.
    """

    id: int
    name: str
    meta: bytes
    lock: threading.RLock = attrs.field(repr=False)
    next_seq: int = 0
    live_count: int = 0
    live_bytes: int = 0
    extents: Extents = attrs.field(factory=Extents, repr=False)
    """The durable messages; only the writer changes it, under the lock."""
    pending: deque[Puts] | tuple[()] = attrs.field(default=(), repr=False)
    """Messages that are committed but not durable; a deque has 760 bytes even without any."""
    durable_seq: int = 0
    """Above all sequence numbers that are durable."""
    finished: Intervals = attrs.field(factory=Intervals, repr=False)
    """Numbers of done messages, among those in `extents` and `pending`."""

    @property
    def first_live_seq(self) -> int | None:
        """The lowest sequence number that is not done; None: all are done."""
        with self.lock:
            for place in self.extents.from_place(0):
                extent = self.extents.at(place)
                for low, high in self.finished.missing(extent.first, extent.last):
                    start, stop = indices(extent.first, extent.items, extent.detail, low, high)
                    if start < stop:
                        return number(extent.first, extent.detail, start)
            for puts in self.pending:
                for low, high in self.finished.missing(puts.first, puts.last):
                    start, stop = puts.indices(low, high)
                    if start < stop:
                        return puts.seqs[start]
        return None

    def put(self, puts: Puts) -> None:
        """Add committed messages."""
        if self.pending:
            self.pending.append(puts)
        else:
            self.pending = deque((puts,))
        self.next_seq = puts.last + 1
        self.live_count += puts.count
        self.live_bytes += puts.size

    def finish(self, ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Record messages as done; return the ranges in which some were not done before.

        The ranges are sorted and do not overlap.
        """
        found: list[tuple[int, int]] = []
        for first, last in ranges:
            self._find(found, max(first, 0), min(last, self.next_seq - 1))
        for first, last in found:
            self.finished.add(first, last)
        return found

    def _find(self, found: list[tuple[int, int]], first: int, last: int) -> None:
        for low, high in self.finished.missing(first, last):
            for place in self.extents.places(low, high):
                extent = self.extents.at(place)
                a, b = max(low, extent.first), min(high, extent.last)
                start, stop = indices(extent.first, extent.items, extent.detail, a, b)
                if start < stop:
                    self.live_count -= stop - start
                    self.live_bytes -= weight(extent.detail, start, stop)
                    found.append((a, b))
            for puts in self._pending_from(low):
                if puts.first > high:
                    break
                a, b = max(low, puts.first), min(high, puts.last)
                start, stop = puts.indices(a, b)
                if start < stop:
                    self.live_count -= stop - start
                    self.live_bytes -= weight(puts.detail, start, stop)
                    found.append((a, b))

    def _pending_from(self, first: int) -> Iterator[Puts]:
        """Yield the messages that are not durable yet, from number `first` on."""
        # There may be thousands, of which only a few have the numbers asked for.
        pending = self.pending
        for at in range(bisect_left(pending, first, key=_last), len(pending)):
            yield pending[at]

    def plan(self, first: int, count: int, nbytes: int) -> Plan:
        """Return the places of the first live messages from `first` on, within both limits."""
        plan: Plan = []
        taken = 0
        for place in self.extents.from_place(first):
            extent = self.extents.at(place)
            ranges: list[tuple[int, int]] = []
            bodies: set[int] = set()
            before = taken
            full = False
            for low, high in self.finished.missing(max(first, extent.first), extent.last):
                start, stop = indices(extent.first, extent.items, extent.detail, low, high)
                end = min(stop, start + count - taken)
                end = fitting(extent.detail, start, end, nbytes, 0 if taken else 1)
                if start < end:
                    last = number(extent.first, extent.detail, end - 1)
                    ranges.append((low, last))
                    bodies.update(shared(extent.detail, start, end) or ())
                    taken += end - start
                    nbytes -= weight(extent.detail, start, end)
                if end < stop:
                    full = True
                    break
            if ranges:
                plan.append(OnDisk(extent, ranges, taken - before, bodies - {0}))
            if full or taken >= count:
                return plan
        for puts in self._pending_from(first):
            for low, high in self.finished.missing(max(first, puts.first), puts.last):
                start, stop = puts.indices(low, high)
                end = min(stop, start + count - taken)
                end = fitting(puts.detail, start, end, nbytes, 0 if taken else 1)
                if start < end:
                    plan.append(InMemory(puts, start, end))
                    taken += end - start
                    nbytes -= weight(puts.detail, start, end)
                if end < stop or taken >= count:
                    return plan
        return plan

    def live_bodies(self, extent: Extent) -> array[int]:
        """Return the shared bodies of the messages of an extent that are not done."""
        found = array("Q")
        for low, high in self.finished.missing(extent.first, extent.last):
            start, stop = indices(extent.first, extent.items, extent.detail, low, high)
            found.extend(shared(extent.detail, start, stop) or ())
        return found
