"""The state of one account, without Spark: fed in any pieces it tells what was true, once."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from clearfunds.pipeline.ledger._running import RunningDebt

STEP = 10**9
#: Moments of today are beyond what a float tells apart.
NOW = 1_760_000_000 * STEP
Loan = tuple[int, int, int]
"""Opened, settled (ns), items."""

LOANS = st.lists(
    st.tuples(
        st.integers(0, 20 * STEP), st.sampled_from([0, 1, STEP // 3, STEP, 7 * STEP]),
        st.integers(1, 50),
    ).map(
        lambda each: (
            NOW + each[0] // (STEP // 4) * (STEP // 4), NOW + each[0] + each[1], each[2]
        )
    ),
    min_size=1, max_size=30,
).map(lambda loans: sorted(loans, key=lambda each: each[1]))  # fmt: skip
"""In the order in which the journal tells of them, many at the same moments."""


def feed(debt: RunningDebt, loans: list[Loan]) -> None:
    columns = np.array(loans, dtype="int64").reshape(-1, 3).T
    items = columns[2].astype("float64")
    debt.add(columns[0], columns[1], items, items * 10)


def run(loans: list[Loan], cuts: list[int], horizon: int) -> list[tuple[int, ...]]:
    """Feed loans in batches, the watermark at the last one; the state goes through its bytes."""
    told: list[tuple[int, ...]] = []
    kept: tuple[int, float, float, bytes] = (0, 0.0, 0.0, b"")
    watermark = 0
    ends = sorted({min(cut, len(loans)) for cut in cuts} | {len(loans)})
    for begin, end in zip([0, *ends], ends, strict=False):
        debt = RunningDebt(STEP, horizon, *kept)
        feed(debt, loans[begin:end])
        due = debt.due_ms()
        rows = debt.tell(watermark)
        # Something is told of exactly when that was announced.
        assert bool(rows) == (due is not None and watermark >= due)
        told += rows
        kept = debt.kept()
        if end:
            watermark = max(watermark, loans[end - 1][1] // 10**6)
    debt = RunningDebt(STEP, horizon, *kept)
    told += debt.tell(NOW // 10**6 + 10**9)
    assert debt.due_ms() is None
    assert debt.kept()[1:] == (0.0, 0.0, b"")
    return told


def alive(loans: list[Loan], at: int) -> int:
    return sum(n for opened, settled, n in loans if opened <= at <= settled)


@settings(max_examples=150, deadline=None)
@given(LOANS, st.lists(st.integers(0, 30), max_size=6))
def test_with_a_horizon_that_is_long_enough_it_is_exact(loans: list[Loan], cuts: list[int]) -> None:
    told = run(loans, cuts, 8 * STEP)
    moments = sorted({m for opened, settled, _ in loans for m in (opened, settled)})
    assert [row[0] for row in told] == sorted({(m // STEP + 1) * STEP for m in moments})
    for at, items, nbytes, peak, peak_ns, peak_bytes, peak_bytes_ns, late in told:
        assert items == sum(n for opened, settled, n in loans if opened < at <= settled)
        begin = at - STEP
        # As it was just before, and at each moment within at which something was borrowed.
        before = sum(n for opened, settled, n in loans if opened < begin <= settled)
        highs = [alive(loans, m) for m in moments if begin <= m < at]
        assert peak == max([before, *highs])
        if before < peak:
            assert alive(loans, peak_ns) == peak
            assert all(alive(loans, m) < peak for m in moments if begin <= m < peak_ns)
        else:
            assert peak_ns == begin
        assert (nbytes, peak_bytes, peak_bytes_ns) == (items * 10, peak * 10, peak_ns)
        assert late == 0


@settings(max_examples=100, deadline=None)
@given(LOANS, st.lists(st.integers(0, 30), max_size=6))
def test_with_one_that_is_too_short_it_is_too_low_for_a_time(
    loans: list[Loan], cuts: list[int]
) -> None:
    told = run(loans, cuts, 0)
    ends = [row[0] for row in told]
    assert ends == sorted(set(ends))  # no interval twice, none out of order
    for at, items, *_ in told:
        assert 0 <= items <= sum(n for opened, settled, n in loans if opened < at <= settled)
    assert told[-1][1] == 0  # what was taken off had been put on


def test_a_loan_longer_than_the_horizon_counts_from_where_the_telling_is() -> None:
    debt = RunningDebt(STEP, 2 * STEP)
    feed(debt, [(0, STEP // 2, 1), (5 * STEP, 5 * STEP + 1, 1)])
    assert debt.due_ms() == 3000
    assert [row[:2] for row in debt.tell(3000)] == [(STEP, 0)]
    feed(debt, [(STEP // 4, 6 * STEP, 7)])
    rows = debt.tell(20_000)
    # at, items, late
    assert [(row[0], row[1], row[7]) for row in rows] == [
        (2 * STEP, 7, 7),
        (6 * STEP, 7, 0),
        (7 * STEP, 0, 0),
    ]
