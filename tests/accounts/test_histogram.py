"""Histograms, against the lists of what was observed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearfunds.accounts._histogram import (
    AGE_BUCKETS,
    BYTE_BUCKETS,
    COUNT_BUCKETS,
    Histogram,
)

BOUNDS = (0, 1, 2.5, 10)


@given(
    st.lists(
        st.tuples(
            st.one_of(st.integers(0, 12), st.sampled_from(BOUNDS), st.floats(0, 12)),
            st.integers(1, 5),
        )
    )
)
def test_it_counts_as_a_list_of_the_values_would(observed: list[tuple[float, int]]) -> None:
    histogram = Histogram(BOUNDS)
    values: list[float] = []
    for value, n in observed:
        histogram.add(value, n)
        values += [value] * n
    expected = [(repr(float(b)), sum(v <= b for v in values)) for b in BOUNDS]
    assert histogram.cumulative() == [*expected, ("+Inf", len(values))]
    assert histogram.count == len(values)
    assert math.isclose(histogram.total, math.fsum(values), abs_tol=1e-9)


def test_what_is_taken_back_was_never_there() -> None:
    histogram = Histogram(BOUNDS)
    histogram.add(3, 4)
    histogram.add(3, -3)
    assert histogram.cumulative() == [
        ("0.0", 0),
        ("1.0", 0),
        ("2.5", 0),
        ("10.0", 1),
        ("+Inf", 1),
    ]
    assert histogram.total == 3


@pytest.mark.parametrize("bounds", [AGE_BUCKETS, COUNT_BUCKETS, BYTE_BUCKETS])
def test_bounds_rise(bounds: tuple[float, ...]) -> None:
    assert list(bounds) == sorted(set(bounds))


def test_copies_are_counted_as_anything_else() -> None:
    quick, plain = Histogram(COUNT_BUCKETS), Histogram(COUNT_BUCKETS)
    for copies in (*range(120), 999, 1_000, 1_001, 10**6):
        quick.add_copies(copies, 3)
        plain.add(copies, 3)
    assert (quick.counts, quick.total) == (plain.counts, plain.total)
