"""Ranges of numbers, (first, last), in sorted lists."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges, which come in any order, sorted; those that overlap or touch are joined."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            if last > found[-1][1]:
                found[-1] = found[-1][0], last
        else:
            found.append((first, last))
    return found


def missing(ranges: Sequence[tuple[int, int]], first: int, last: int) -> list[tuple[int, int]]:
    """Return the ranges between `first` and `last` that are not in some `merged` ones."""
    found: list[tuple[int, int]] = []
    for at in range(max(bisect_right(ranges, (first,)) - 1, 0), len(ranges)):
        begin, end = ranges[at]
        if begin > last:
            break
        if begin > first:
            found.append((first, begin - 1))
        first = max(first, end + 1)
    if first <= last:
        found.append((first, last))
    return found
