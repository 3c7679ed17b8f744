"""Sets of whole numbers that are mostly runs: where each begins and ends."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


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
