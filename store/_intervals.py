"""Sets of whole numbers that are mostly runs: where each begins and ends."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: From so many ranges on, adding them one by one takes longer than going through all there are.
_MANY = 8


class Intervals:
    """A set of numbers below 2**64, kept as disjoint ranges: 16 bytes a range.

    The ranges are sorted, inclusive, and neither overlap nor touch.
    """

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts = array("Q")
        self._lasts = array("Q")

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._lasts, strict=True)

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self._firsts)

    def __repr__(self) -> str:
        return f"<Intervals {list(self)}>"

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._firsts, number) - 1
        return at >= 0 and self._lasts[at] >= number

    def copy(self) -> Intervals:
        """Return a set of its own with the same numbers."""
        twin = Intervals()
        twin._firsts = self._firsts[:]
        twin._lasts = self._lasts[:]
        return twin

    def add(self, first: int, last: int) -> None:
        """Add the numbers from `first` to `last`."""
        firsts, lasts = self._firsts, self._lasts
        if not lasts or first > lasts[-1] + 1:
            firsts.append(first)
            lasts.append(last)
            return
        low = bisect_left(lasts, first - 1) if first else 0
        high = bisect_right(firsts, last + 1)
        if low < high:
            first = min(first, firsts[low])
            last = max(last, lasts[high - 1])
        firsts[low:high] = array("Q", (first,))
        lasts[low:high] = array("Q", (last,))

    def add_all(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Add ranges that are sorted and do not overlap, in one pass if they are many."""
        if len(ranges) < _MANY:
            for first, last in ranges:
                self.add(first, last)
            return
        firsts, lasts = self._firsts, self._lasts
        new_firsts, new_lasts = array("Q"), array("Q")
        at = 0
        for first, last in ranges:
            low = bisect_left(lasts, first - 1, at) if first else at
            high = bisect_right(firsts, last + 1, low)
            new_firsts.extend(firsts[at:low])
            new_lasts.extend(lasts[at:low])
            if low < high:
                first = min(first, firsts[low])
                last = max(last, lasts[high - 1])
            if new_lasts and first <= new_lasts[-1] + 1:
                new_lasts[-1] = max(last, new_lasts[-1])
            else:
                new_firsts.append(first)
                new_lasts.append(last)
            at = high
        new_firsts.extend(firsts[at:])
        new_lasts.extend(lasts[at:])
        self._firsts, self._lasts = new_firsts, new_lasts

    def without(self, ranges: Iterable[tuple[int, int]]) -> Intervals:
        """Return a set of its own without these ranges, which may come in any order."""
        gone = Intervals()
        for first, last in sorted(ranges):
            gone.add(first, last)
        twin = Intervals()
        firsts, lasts = self._firsts, self._lasts
        at = 0
        for first, last in gone:
            low = bisect_left(lasts, first, at)
            high = bisect_right(firsts, last, low)
            twin._firsts.extend(firsts[at:low])
            twin._lasts.extend(lasts[at:low])
            for place in range(low, high):
                for begin, end in gone.missing(firsts[place], lasts[place]):
                    twin._firsts.append(begin)
                    twin._lasts.append(end)
            at = high
        twin._firsts.extend(firsts[at:])
        twin._lasts.extend(lasts[at:])
        return twin

    def remove_all(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Take ranges out that are sorted and do not overlap, in one step."""
        if not ranges:
            return
        firsts, lasts = self._firsts, self._lasts
        low = bisect_left(lasts, ranges[0][0])
        high = bisect_right(firsts, ranges[-1][1], low)
        some = Intervals()
        some._firsts, some._lasts = firsts[low:high], lasts[low:high]
        some = some.without(ranges)
        firsts[low:high] = some._firsts
        lasts[low:high] = some._lasts

    def remove(self, first: int, last: int) -> None:
        """Take the numbers from `first` to `last` out."""
        firsts, lasts = self._firsts, self._lasts
        low = bisect_left(lasts, first)
        high = bisect_right(firsts, last)
        if low >= high:
            return
        new_firsts, new_lasts = array("Q"), array("Q")
        if firsts[low] < first:
            new_firsts.append(firsts[low])
            new_lasts.append(first - 1)
        if lasts[high - 1] > last:
            new_firsts.append(last + 1)
            new_lasts.append(lasts[high - 1])
        firsts[low:high] = new_firsts
        lasts[low:high] = new_lasts

    def missing(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the ranges between `first` and `last` that are not in the set."""
        firsts, lasts = self._firsts, self._lasts
        at = bisect_left(lasts, first)
        if at == len(firsts) or firsts[at] > last:  # The usual case.
            return [(first, last)] if first <= last else []
        found: list[tuple[int, int]] = []
        while at < len(firsts) and firsts[at] <= last:
            if firsts[at] > first:
                found.append((first, firsts[at] - 1))
            first = lasts[at] + 1
            at += 1
        if first <= last:
            found.append((first, last))
        return found

    def within(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the ranges between `first` and `last` that are in the set."""
        firsts, lasts = self._firsts, self._lasts
        at = bisect_left(lasts, first)
        found: list[tuple[int, int]] = []
        while at < len(firsts) and firsts[at] <= last:
            found.append((max(first, firsts[at]), min(last, lasts[at])))
            at += 1
        return found
