"""A sample stands for all: every row's weight is the inverse of its chance."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearfunds.pipeline.journal._sample import MAX_ROWS, Sample


def nobody() -> None:
    """Whom to tell when it is full."""


def append(sample: Sample, row: tuple[Any, ...]) -> None:
    """As the journal does."""
    if sample.skip:
        sample.skip -= 1
        return
    sample.rows.append(row)
    if len(sample.rows) >= sample.look_at or sample.one_in > 1:
        sample.appended()


def test_every_row_is_kept_while_nobody_says_otherwise() -> None:
    full: list[int] = []
    sample = Sample(10, lambda: full.append(len(sample)), Random(1))
    for number in range(95):
        append(sample, (number,))
    assert full == [10, 20, 30, 40, 50, 60, 70, 80, 90]
    assert len(sample) == sample.seen == 95
    (taken,) = sample.take()
    assert (taken.weight, taken.rows) == (1, [(number,) for number in range(95)])
    assert (len(sample), sample.seen, sample.sampled_out) == (0, 95, 0)
    assert not sample.take()


@pytest.mark.parametrize("k", [2, 3, 9, 50])
def test_each_of_those_who_get_everything_in_turn_is_stood_for(k: int) -> None:
    """Nine subscribers, one after the other: every third or ninth row would be of the same ones."""
    sample = Sample(1 << 30, nobody, Random(k))
    sample.keep_one_in(k)
    count = 20_000
    for _ in range(count):
        for subscriber in range(9):
            append(sample, (subscriber,))
    assert sample.seen == 9 * count
    (part,) = sample.take()
    assert part.weight == k
    for subscriber in range(9):
        estimate = k * part.rows.count((subscriber,))
        # Four standard deviations of a binomial's estimate.
        assert abs(estimate - count) < 4 * math.sqrt(count * (k - 1)) + 1


def test_weights_are_right_whatever_happens_meanwhile() -> None:
    """Lots are drawn anew, rows given up and taken, at any time; sums by weight stay the same."""
    random = Random(7)
    total = rounds = 0
    estimates: list[float] = []
    for seed in range(300):
        sample = Sample(64, nobody, Random(seed))
        total = 0
        estimate = 0.0
        for number in range(400):
            append(sample, (1 + number % 7,))
            total += 1 + number % 7
            if random.random() < 0.02:
                sample.keep_one_in(random.choice([1, 1, 2, 5, 8]))
            if random.random() < 0.005:
                sample.thin()
            if random.random() < 0.01:
                estimate += sum(p.weight * row[0] for p in sample.take() for row in p.rows)
        estimate += sum(p.weight * row[0] for p in sample.take() for row in p.rows)
        estimates.append(estimate)
        rounds += 1
    mean = sum(estimates) / rounds
    spread = math.sqrt(sum((e - mean) ** 2 for e in estimates) / (rounds - 1) / rounds)
    assert abs(mean - total) < 4 * spread
    assert spread < total / 20  # else the line above says nothing


changes = st.lists(
    st.tuples(st.sampled_from(["append", "one in", "thin", "take"]), st.integers(1, 40)),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(changes=changes, seed=st.integers(0, 1 << 16))
def test_every_row_is_accounted_for(changes: list[tuple[str, int]], seed: int) -> None:
    sample = Sample(16, nobody, Random(seed))
    came = taken = 0
    for what, number in changes:
        if what == "append":
            for _ in range(number):
                append(sample, (0,))
            came += number
        elif what == "one in":
            sample.keep_one_in(number)
        elif what == "thin":
            sample.thin()
        else:
            parts = sample.take()
            assert all(part.rows and part.weight >= 1 for part in parts)
            taken += sum(len(part.rows) for part in parts)
        assert sample.seen == came
        assert taken + len(sample) + sample.sampled_out == came


@settings(max_examples=30, deadline=None)
@given(changes=changes, seed=st.integers(0, 1 << 16))
def test_rows_that_are_no_objects_are_kept_as_those_that_are(
    changes: list[tuple[str, int]], seed: int
) -> None:
    """With the same lots, of two values each."""
    tuples, flat = (Sample(16, nobody, Random(seed), width=width) for width in (1, 2))
    for what, number in changes:
        for sample in (tuples, flat):
            if what == "append":
                for each in range(number):
                    if sample.skip:
                        sample.skip -= 1
                        continue
                    row = number, each
                    sample.rows += [row] if sample is tuples else row
                    if sample.one_in > 1:
                        sample.appended()
            elif what == "one in":
                sample.keep_one_in(number)
            elif what == "thin":
                sample.thin()
        assert (len(flat), flat.seen, flat.sampled_out) == (
            *(len(tuples), tuples.seen, tuples.sampled_out),
        )
        if what == "take":
            for one, other in zip(tuples.take(), flat.take(), strict=True):
                assert (one.weight, len(one)) == (other.weight, len(other))
                assert [value for row in one.rows for value in row] == other.rows


def test_what_is_full_gives_up_half_for_ever() -> None:
    def full() -> None:
        if len(sample) >= MAX_ROWS:
            sample.thin()

    sample = Sample(1024, full, Random(3))
    count = 8 * MAX_ROWS
    for _ in range(count):
        append(sample, ())
        if not len(sample.rows):
            assert len(sample) < MAX_ROWS
    parts = sample.take()
    kept = sum(len(part.rows) for part in parts)
    assert kept <= MAX_ROWS
    assert sum(part.weight * len(part.rows) for part in parts) == pytest.approx(count, rel=0.05)
