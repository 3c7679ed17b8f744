"""Sets of numbers as ranges, against sets of numbers."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from clearfunds.store._intervals import Intervals


def _range(first: int, more: int) -> tuple[int, int]:
    return first, first + more


RANGES = st.lists(
    st.builds(_range, st.integers(0, 80), st.integers(0, 6)),
    max_size=30,
)


def numbers(ranges: list[tuple[int, int]]) -> set[int]:
    return {number for first, last in ranges for number in range(first, last + 1)}


def made(ranges: list[tuple[int, int]]) -> Intervals:
    intervals = Intervals()
    for first, last in ranges:
        intervals.add(first, last)
    return intervals


def check(intervals: Intervals, wanted: set[int]) -> None:
    """It has these numbers, in as few ranges as they take."""
    ranges = list(intervals)
    assert numbers(ranges) == wanted
    assert all(first <= last for first, last in ranges)
    assert all(one[1] + 1 < other[0] for one, other in pairwise(ranges))


@settings(max_examples=300, deadline=None)
@given(RANGES, RANGES)
def test_many_at_once_are_as_many_one_by_one(
    some: list[tuple[int, int]], more: list[tuple[int, int]]
) -> None:
    intervals = made(some)
    intervals.add_all(list(made(more)))
    check(intervals, numbers(some) | numbers(more))
    # Neighbours that touch need not be one.
    single = made(some)
    single.add_all([(number, number) for number in sorted(numbers(more))])
    check(single, numbers(some) | numbers(more))
    check(intervals.without(some), numbers(more) - numbers(some))
    check(made(some).without(more), numbers(some) - numbers(more))
    left = made(some)
    left.remove_all(list(made(more)))
    check(left, numbers(some) - numbers(more))
