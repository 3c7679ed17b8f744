"""Sets of numbers as ranges, against sets of numbers."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearfunds.store import _intervals
from clearfunds.store._intervals import Intervals

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True, params=[2, 3, 512], scope="module")
def block(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have few ranges in a block, so that few fill several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_intervals, "_BLOCK", request.param)
        yield


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
    assert len(intervals) == len(ranges)
    assert bool(intervals) == bool(ranges)


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


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(st.booleans(), st.builds(_range, st.integers(0, 120), st.integers(0, 9))),
        max_size=60,
    ),
    st.builds(_range, st.integers(0, 130), st.integers(-1, 60)),
)
def test_they_are_as_a_set_of_numbers(
    steps: list[tuple[bool, tuple[int, int]]], window: tuple[int, int]
) -> None:
    intervals, wanted = Intervals(), set[int]()
    for more, (first, last) in steps:
        before = intervals.copy()
        if more:
            intervals.add(first, last)
            wanted.update(range(first, last + 1))
        else:
            intervals.remove(first, last)
            wanted.difference_update(range(first, last + 1))
        check(intervals, wanted)
        assert len(wanted ^ numbers(list(before))) <= last + 1 - first  # A copy is its own.
    low, high = window
    inside = set(range(low, high + 1))
    assert numbers(intervals.missing(low, high)) == inside - wanted
    assert numbers(intervals.within(low, high)) == inside & wanted
    assert [number in intervals for number in range(140)] == [n in wanted for n in range(140)]


def test_twenty_thousand_one_by_one_in_any_order() -> None:
    order = list(range(0, 40_000, 2))
    random.Random(1).shuffle(order)
    intervals = Intervals()
    for number in order[:10_000]:
        intervals.add(number, number)
    assert len(intervals) == 10_000
    assert list(intervals) == sorted((number, number) for number in order[:10_000])
    for number in order[:10_000:2]:
        intervals.remove(number, number)
    assert [first for first, _ in intervals] == sorted(order[1:10_000:2])
    for number in range(1, 40_000, 2):
        intervals.add(number, number)
    for number in order:
        intervals.add(number, number)
    assert list(intervals) == [(0, 39_999)]
