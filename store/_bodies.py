"""The places of bodies that several queues share, and their reference counts."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Places of removed bodies are kept until there are this many.
_SPARE = 1024


class Place(NamedTuple):
    """The place of a body on disk."""

    segment: int
    offset: int
    length: int


class Bodies:
    """The shared bodies by id, in columns: 24 bytes each."""

    __slots__ = ("_columns", "_dead")

    def __init__(self) -> None:
        # id, segment, offset, length, references
        self._columns = (array("Q"), array("I"), array("I"), array("I"), array("I"))
        self._dead = 0

    def __len__(self) -> int:
        return len(self._columns[0]) - self._dead

    @property
    def columns(self) -> tuple[array[int], ...]:
        """The columns of the table, not copied: for a snapshot."""
        return self._columns

    @classmethod
    def restored(cls, columns: list[array[int]]) -> Bodies:
        """Make a table from the columns of a snapshot."""
        made = cls()
        for mine, theirs in zip(made._columns, columns, strict=True):
            mine.extend(theirs)
        made._dead = made._columns[4].count(0)
        return made

    def _place(self, body: int) -> int | None:
        ids = self._columns[0]
        place = bisect_left(ids, body)
        return place if place < len(ids) and ids[place] == body else None

    def where(self, body: int) -> Place | None:
        """Return the place of a body, or None if it is gone."""
        place = self._place(body)
        if place is None or not self._columns[4][place]:
            return None
        _, segment, offset, length, _ = self._columns
        return Place(segment[place], offset[place], length[place])

    def add(self, body: int, place: Place) -> None:
        """Add a body; its id is above all others. It is kept once a message refers to it."""
        for column, value in zip(self._columns, (body, *place, 0), strict=True):
            column.append(value)
        self._dead += 1

    def move(self, body: int, place: Place) -> Place | None:
        """Change the place of a body; return the old one, or None if the body is gone."""
        old = self.where(body)
        at = self._place(body)
        if old is not None and at is not None:
            for column, value in zip(self._columns[1:4], place, strict=True):
                column[at] = value
        return old

    def refer(self, body: int) -> Place | None:
        """Add a reference; return the body's place if it is the first."""
        at = self._place(body)
        if at is None:
            return None
        references = self._columns[4]
        references[at] += 1
        if references[at] > 1:
            return None
        self._dead -= 1
        return self.where(body)

    def release(self, body: int) -> Place | None:
        """Remove a reference; return the body's place if it was the last."""
        at = self._place(body)
        if at is None or not self._columns[4][at]:
            return None
        place = self.where(body)
        references = self._columns[4]
        references[at] -= 1
        if references[at]:
            return None
        self._dead += 1
        if self._dead > _SPARE and self._dead * 2 > len(references):
            self._tidy()
        return place

    def places(self) -> Iterator[Place]:
        """Yield the place of each body."""
        _, segments, offsets, sizes, references = self._columns
        for at, count in enumerate(references):
            if count:
                yield Place(segments[at], offsets[at], sizes[at])

    def within(self, segment: int, limit: int) -> list[tuple[int, Place]]:
        """Return the first bodies in a segment, up to `limit` bytes of them, but one at least."""
        found: list[tuple[int, Place]] = []
        ids, segments, offsets, sizes, references = self._columns
        at = 0
        while limit > 0:
            try:
                at = segments.index(segment, at)
            except ValueError:
                break
            if references[at]:
                found.append((ids[at], Place(segment, offsets[at], sizes[at])))
                limit -= sizes[at]
            at += 1
        return found

    def _tidy(self) -> None:
        references = self._columns[4]
        kept = [place for place, count in enumerate(references) if count]
        for column in self._columns[:4]:
            column[:] = array(column.typecode, [column[place] for place in kept])
        references[:] = array("I", [references[place] for place in kept])
        self._dead = 0
