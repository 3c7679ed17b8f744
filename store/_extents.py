"""The places of the messages of one queue: a table of extents, a few dozen bytes each."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from ._detail import Detail, indices, joined, shared, slice_of

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Neighbouring extents are joined, up to this many bytes of their segment...
_JOIN_BYTES: Final = 64 << 10
#: ...of which at least a quarter is their own, unless they are this small...
_JOIN_ANYHOW: Final = 16 << 10
#: ...and up to this many messages.
_JOIN_COUNT: Final = 4096

#: Emptied rows at the front of the table are kept until there are this many.
_SPARE: Final = 1024


class Extent(NamedTuple):
    """Messages of a queue that lie together in a segment."""

    first: int
    last: int
    segment: int
    offset: int
    """The start of the first of their records."""
    length: int
    """Bytes from there to the end of the last; records of other queues may lie between."""
    own: int
    """Bytes of these that belong to the messages."""
    items: int
    """Messages that it was made with."""
    live: int
    """Messages that are not durably done."""
    detail: Detail

    @property
    def live_bytes(self) -> int:
        """Bytes of the segment that it keeps from being freed."""
        return self.own * self.live // self.items


class Freed(NamedTuple):
    """Bytes that an operation made dead."""

    segment: int
    nbytes: int
    bodies: array[int] | None


class Extents:
    """The extents of a queue, in the order of their sequence numbers; they do not overlap.

    Columns take 56 bytes an extent: one object each would take five times as much.
    """

    __slots__ = ("_columns", "_details", "_head")

    def __init__(self) -> None:
        # first, last, segment, offset, length, own, count, live
        self._columns = (
            *(array("Q"), array("Q"), array("I"), array("I")),
            *(array("I"), array("I"), array("I"), array("I")),
        )
        self._details: list[Detail] = []
        # Rows before this one are empty: extents mostly go at the front.
        self._head = 0

    def __len__(self) -> int:
        return len(self._details) - self._head

    def __iter__(self) -> Iterator[Extent]:
        for at in range(self._head, len(self._details)):
            yield self.at(at)

    @property
    def columns(self) -> tuple[array[int], ...]:
        """The columns of the table, not copied: for a snapshot."""
        return tuple(column[self._head :] for column in self._columns)

    @property
    def details(self) -> list[Detail]:
        """The details of the rows."""
        return self._details[self._head :]

    @classmethod
    def restored(cls, columns: list[array[int]], details: list[Detail]) -> Extents:
        """Make a table from the columns and details of a snapshot."""
        made = cls()
        for mine, theirs in zip(made._columns, columns, strict=True):
            mine.extend(theirs)
        made._details = details
        return made

    def at(self, place: int) -> Extent:
        """Return the extent at a place."""
        first, last, segment, offset, length, own, count, live = self._columns
        return Extent(
            *(first[place], last[place], segment[place], offset[place], length[place], own[place]),
            *(count[place], live[place], self._details[place]),
        )

    def places(self, first: int, last: int) -> range:
        """Return the places of the extents with numbers between `first` and `last`."""
        firsts, lasts = self._columns[0], self._columns[1]
        low = bisect_left(lasts, first, self._head)
        high = bisect_right(firsts, last, self._head)
        return range(low, max(low, high))

    def from_place(self, first: int) -> range:
        """Return the places of the extents with numbers from `first` on."""
        return range(bisect_left(self._columns[1], first, self._head), len(self._details))

    def append(self, extent: Extent) -> int:
        """Add an extent behind all others, or join it with the last.

        Returns:
            the additional bytes needed in its segment. If some messages of the last extent are
            done, its needed bytes are a share, which changes when the two are joined.
        """
        if len(self):
            more = self._join(extent)
            if more is not None:
                return more
        for column, value in zip(self._columns, extent[:8], strict=True):
            column.append(value)
        self._details.append(extent.detail)
        return extent.live_bytes

    def _join(self, new: Extent) -> int | None:
        old = self.at(len(self._details) - 1)
        length = new.offset + new.length - old.offset
        if (
            new.segment != old.segment
            or new.offset < old.offset + old.length
            or length > _JOIN_BYTES
            or old.items + new.items > _JOIN_COUNT
            or (length > _JOIN_ANYHOW and (old.own + new.own) * 4 < length)
            or new.last - old.first >> 32
        ):
            return None
        detail = joined(old.first, old.items, old.detail, new.first, new.items, new.detail)
        own, count, live = old.own + new.own, old.items + new.items, old.live + new.live
        both = Extent(
            *(old.first, new.last, old.segment, old.offset, length, own, count, live, detail)
        )
        self._set(len(self._details) - 1, both)
        return both.live_bytes - old.live_bytes

    def _set(self, place: int, extent: Extent) -> None:
        for column, value in zip(self._columns, extent[:8], strict=True):
            column[place] = value
        self._details[place] = extent.detail

    def insert(self, extent: Extent) -> None:
        """Insert an extent at its place; no other extent has any of its numbers."""
        place = bisect_left(self._columns[1], extent.first, self._head)
        for column, value in zip(self._columns, extent[:8], strict=True):
            column.insert(place, value)
        self._details.insert(place, extent.detail)

    def _remove(self, start: int, stop: int) -> None:
        if start == self._head:
            self._details[start:stop] = [0] * (stop - start)
            self._head = stop
            if self._head < min(_SPARE, len(self._details)):
                return
            if self._head * 2 < len(self._details):
                return
            start, stop, self._head = 0, self._head, 0
        for column in self._columns:
            del column[start:stop]
        del self._details[start:stop]

    def done(self, first: int, last: int) -> tuple[list[Freed], list[tuple[int, int]]]:
        """Count live messages between `first` and `last` as done; each number only once.

        Returns:
            the bytes that became dead, and the ranges of the extents that went with them.
        """
        freed: list[Freed] = []
        gone: list[tuple[int, int]] = []
        lives = self._columns[7]
        dead: list[int] = []
        for place in self.places(first, last):
            extent = self.at(place)
            start, stop = indices(extent.first, extent.items, extent.detail, first, last)
            if start == stop:
                continue
            left = max(extent.live - (stop - start), 0)
            bodies = shared(extent.detail, start, stop)
            nbytes = extent.live_bytes - extent.own * left // extent.items
            freed.append(Freed(extent.segment, nbytes, bodies))
            lives[place] = left
            if left == 0:
                gone.append((extent.first, extent.last))
                dead.append(place)
        while dead:  # From the back, as later rows move up; neighbours at once.
            stop = dead.pop()
            start = stop
            while dead and dead[-1] == start - 1:
                start = dead.pop()
            self._remove(start, stop + 1)
        return freed, gone

    def cut(self, first: int, last: int) -> list[Freed]:
        """Remove everything between `first` and `last`, done or not."""
        freed: list[Freed] = []
        places = self.places(first, last)
        if not places:
            return freed
        kept: list[Extent] = []
        for place in places:
            extent = self.at(place)
            freed.append(Freed(extent.segment, extent.live_bytes, None))
            for low, high in ((extent.first, first - 1), (last + 1, extent.last)):
                if low <= high:
                    kept += self._part(extent, low, high)
        self._remove(places.start, places.stop)
        for extent in kept:
            self.insert(extent)
            freed.append(Freed(extent.segment, -extent.live_bytes, None))
        return freed

    @staticmethod
    def _part(extent: Extent, low: int, high: int) -> list[Extent]:
        start, stop = indices(extent.first, extent.items, extent.detail, low, high)
        if start == stop:
            return []
        count = stop - start
        first, detail = slice_of(extent.first, extent.items, extent.detail, start, stop)
        last = first + count - 1
        if not isinstance(detail, int) and detail.offsets is not None:
            last = first + detail.offsets[-1]
        live = min(extent.live, count)
        own = extent.own * count // extent.items
        where = (extent.segment, extent.offset, extent.length)
        return [Extent(first, last, *where, own, count, live, detail)]

    def in_segment(self, segment: int, start: int = 0) -> int | None:
        """Return the place of the first extent in a segment, from the place `start` on."""
        try:
            return self._columns[2].index(segment, max(start, self._head))
        except ValueError:
            return None
