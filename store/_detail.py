"""The sizes and numbers of the messages of one extent, in the shortest form."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from itertools import chain, repeat
from typing import TypeAlias

import attrs


@attrs.define(slots=True, eq=False)
class Mixed:
    """The messages of an extent with gaps, different sizes or shared bodies."""

    offsets: array[int] | None
    """Their sequence numbers, counted from the first; None: there are no gaps."""
    sizes: int | array[int]
    """The size of each, in bytes."""
    bodies: array[int] | None
    """The ids of the shared bodies, 0 for a message with its own; None: none is shared."""


Detail: TypeAlias = int | Mixed
"""A number is the size of each message, without gaps and shared bodies."""


def detail_of(
    offsets: array[int] | None, sizes: int | array[int], bodies: array[int] | None
) -> Detail:
    """Return a detail in its shortest form."""
    if offsets is None and bodies is None and isinstance(sizes, int):
        return sizes
    return Mixed(offsets, sizes, bodies)


def indices(first: int, count: int, detail: Detail, low: int, high: int) -> tuple[int, int]:
    """Return the range of indices with sequence numbers from `low` to `high`: from, up to.

    `first` and `count` are those of the extent.
    """
    if isinstance(detail, int) or detail.offsets is None:
        start, stop = max(low - first, 0), min(high - first + 1, count)
    else:
        start = bisect_left(detail.offsets, max(low - first, 0))
        stop = bisect_right(detail.offsets, high - first) if high >= first else 0
    return start, max(start, stop)


def number(first: int, detail: Detail, index: int) -> int:
    """Return the sequence number of one message."""
    if isinstance(detail, int) or detail.offsets is None:
        return first + index
    return first + detail.offsets[index]


def weight(detail: Detail, start: int, stop: int) -> int:
    """Return the size of these messages together."""
    sizes = detail if isinstance(detail, int) else detail.sizes
    if isinstance(sizes, int):
        return sizes * (stop - start)
    return sum(sizes[start:stop])


def fitting(detail: Detail, start: int, stop: int, room: int, least: int) -> int:
    """Return the end of the messages that fit into `room` bytes, but `least` of them at least."""
    sizes = detail if isinstance(detail, int) else detail.sizes
    if isinstance(sizes, int):
        if sizes == 0:
            return stop
        return min(stop, start + max(room // sizes, least))
    at = start
    while at < stop:
        room -= sizes[at]
        if room < 0 and at - start >= least:
            return at
        at += 1
    return stop


def shared(detail: Detail, start: int, stop: int) -> array[int] | None:
    """Return the shared bodies of these messages, 0 for a message without one."""
    if isinstance(detail, int) or detail.bodies is None:
        return None
    return detail.bodies[start:stop]


def slice_of(first: int, count: int, detail: Detail, start: int, stop: int) -> tuple[int, Detail]:
    """Return the first sequence number and the detail of some messages of an extent."""
    if start == 0 and stop == count:
        return first, detail
    if isinstance(detail, int):
        return first + start, detail
    sizes = detail.sizes if isinstance(detail.sizes, int) else detail.sizes[start:stop]
    bodies = None if detail.bodies is None else detail.bodies[start:stop]
    if detail.offsets is None:
        return first + start, detail_of(None, sizes, bodies)
    base = detail.offsets[start]
    offsets = array("I", [offset - base for offset in detail.offsets[start:stop]])
    return first + base, detail_of(offsets, sizes, bodies)


def joined(first: int, count: int, one: Detail, second: int, more: int, other: Detail) -> Detail:
    """Return the detail of two neighbours together: `count` from `first`, `more` from `second`."""
    gap = second - first
    a = one if isinstance(one, Mixed) else Mixed(None, one, None)
    b = other if isinstance(other, Mixed) else Mixed(None, other, None)
    offsets: array[int] | None = None
    if gap != count or a.offsets is not None or b.offsets is not None:
        offsets = array("I", range(count) if a.offsets is None else a.offsets)
        if b.offsets is None:
            offsets.extend(range(gap, gap + more))
        else:
            offsets.extend([gap + offset for offset in b.offsets])
    sizes: int | array[int]
    if isinstance(a.sizes, int) and a.sizes == b.sizes:
        sizes = a.sizes
    else:
        sizes = array("I", chain(_each(a.sizes, count), _each(b.sizes, more)))
    bodies: array[int] | None = None
    if a.bodies is not None or b.bodies is not None:
        none_a, none_b = repeat(0, count), repeat(0, more)
        bodies = array("Q", none_a if a.bodies is None else a.bodies)
        bodies.extend(none_b if b.bodies is None else b.bodies)
    return detail_of(offsets, sizes, bodies)


def _each(sizes: int | array[int], count: int) -> array[int] | repeat[int]:
    return repeat(sizes, count) if isinstance(sizes, int) else sizes
