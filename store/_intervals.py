"""Sets of whole numbers that are mostly runs, kept as ranges."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: Ranges in a block. To add one among a million moves a few thousand bytes then, and not millions.
_BLOCK: Final = 512


class Intervals:
    """A set of numbers below 2**64, kept as disjoint ranges: 16 bytes a range.

    The ranges are sorted, inclusive, and neither overlap nor touch. They are kept in blocks; no
    block is empty.
    """

    __slots__ = ("_ends", "_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[array[int]] = []
        self._lasts: list[array[int]] = []
        # The last number of each block.
        self._ends: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for firsts, lasts in zip(self._firsts, self._lasts, strict=True):
            yield from zip(firsts, lasts, strict=True)

    def __len__(self) -> int:
        """Return the number of ranges."""
        return sum(map(len, self._firsts))

    def __bool__(self) -> bool:
        """Return whether the set has any number."""
        return bool(self._ends)

    def __repr__(self) -> str:
        return f"<Intervals {list(self)}>"

    def __contains__(self, number: int) -> bool:
        block = bisect_left(self._ends, number)
        if block == len(self._ends):
            return False
        return self._firsts[block][bisect_left(self._lasts[block], number)] <= number

    def copy(self) -> Intervals:
        """Return a copy."""
        twin = Intervals()
        twin._firsts = [firsts[:] for firsts in self._firsts]
        twin._lasts = [lasts[:] for lasts in self._lasts]
        twin._ends = self._ends[:]
        return twin

    def add(self, first: int, last: int) -> None:
        """Add the numbers from `first` to `last`."""
        ends = self._ends
        if not ends or first > ends[-1] + 1:
            self._append(first, last)
            return
        block, low = self._from(first - 1) if first else (0, 0)
        until, high = self._upto(last + 1)
        if (block, low) == (until, high):
            firsts, lasts = self._firsts[block], self._lasts[block]
            firsts.insert(low, first)
            lasts.insert(low, last)
            if len(firsts) >= 2 * _BLOCK:
                self._split(block)
            return
        # Ranges that it touches are joined with it.
        first = min(first, self._firsts[block][low])
        last = max(last, self._lasts[until][high - 1] if high else ends[until - 1])
        if block == until and high == low + 1:
            self._firsts[block][low] = first
            self._lasts[block][low] = last
            ends[block] = self._lasts[block][-1]
        else:
            self._replace(block, low, until, high, [(first, last)])

    def _append(self, first: int, last: int) -> None:
        if self._ends and len(self._firsts[-1]) < _BLOCK:
            self._firsts[-1].append(first)
            self._lasts[-1].append(last)
            self._ends[-1] = last
        else:
            self._firsts.append(array("Q", (first,)))
            self._lasts.append(array("Q", (last,)))
            self._ends.append(last)

    def add_all(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Add ranges."""
        for first, last in ranges:
            self.add(first, last)

    def without(self, ranges: Iterable[tuple[int, int]]) -> Intervals:
        """Return a copy without these ranges, which may come in any order."""
        twin = self.copy()
        twin.remove_all(ranges)
        return twin

    def remove_all(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Remove ranges."""
        for first, last in ranges:
            self.remove(first, last)

    def remove(self, first: int, last: int) -> None:
        """Remove the numbers from `first` to `last`."""
        if not self._ends or first > self._ends[-1]:
            return
        block, low = self._from(first)
        until, high = self._upto(last)
        if (block, low) >= (until, high):
            return
        left: list[tuple[int, int]] = []
        begin = self._firsts[block][low]
        end = self._lasts[until][high - 1] if high else self._ends[until - 1]
        if begin < first:
            left.append((begin, first - 1))
        if end > last:
            left.append((last + 1, end))
        self._replace(block, low, until, high, left)

    # -- places: a block, and a place in it -----------------------------------------------------

    def _from(self, number: int) -> tuple[int, int]:
        """Return the place of the first range that ends at `number` or later; one exists."""
        block = bisect_left(self._ends, number)
        return block, bisect_left(self._lasts[block], number)

    def _upto(self, number: int) -> tuple[int, int]:
        """Return the place after the last range that begins at `number` or before."""
        block = bisect_left(self._ends, number)
        if block == len(self._ends):
            return block - 1, len(self._firsts[-1])
        return block, bisect_right(self._firsts[block], number)

    def _replace(
        self, block: int, low: int, until: int, high: int, ranges: Sequence[tuple[int, int]]
    ) -> None:
        """Replace all ranges from one place up to another."""
        firsts, lasts = self._firsts[block], self._lasts[block]
        new_firsts = array("Q", [first for first, _ in ranges])
        new_lasts = array("Q", [last for _, last in ranges])
        if block == until:
            firsts[low:high] = new_firsts
            lasts[low:high] = new_lasts
        else:
            firsts[low:] = new_firsts + self._firsts[until][high:]
            lasts[low:] = new_lasts + self._lasts[until][high:]
            for column in (self._firsts, self._lasts, self._ends):
                del column[block + 1 : until + 1]
        if not firsts:
            for column in (self._firsts, self._lasts, self._ends):
                del column[block]
            return
        self._ends[block] = lasts[-1]
        if len(firsts) >= 2 * _BLOCK:
            self._split(block)

    def _split(self, block: int) -> None:
        firsts, lasts = self._firsts[block], self._lasts[block]
        middle = len(firsts) // 2
        self._firsts[block : block + 1] = firsts[:middle], firsts[middle:]
        self._lasts[block : block + 1] = lasts[:middle], lasts[middle:]
        self._ends[block : block + 1] = lasts[middle - 1], lasts[-1]

    # -- looking --------------------------------------------------------------------------------

    def _overlapping(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges with numbers between `first` and `last`."""
        for block in range(bisect_left(self._ends, first), len(self._ends)):
            firsts, lasts = self._firsts[block], self._lasts[block]
            for at in range(bisect_left(lasts, first), len(firsts)):
                if firsts[at] > last:
                    return
                yield firsts[at], lasts[at]

    def missing(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the ranges between `first` and `last` that are not in the set."""
        block = bisect_left(self._ends, first)
        if block == len(self._ends):  # The usual cases.
            return [(first, last)] if first <= last else []
        if self._firsts[block][bisect_left(self._lasts[block], first)] > last:
            return [(first, last)] if first <= last else []
        found: list[tuple[int, int]] = []
        for begin, end in self._overlapping(first, last):
            if begin > first:
                found.append((first, begin - 1))
            first = end + 1
        if first <= last:
            found.append((first, last))
        return found

    def within(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the ranges between `first` and `last` that are in the set."""
        return [(max(first, a), min(last, b)) for a, b in self._overlapping(first, last)]
