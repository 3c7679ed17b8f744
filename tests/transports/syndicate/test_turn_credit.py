"""Whose turns credit is due, and how little is kept to know that."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearfunds.transports.syndicate._turn_credit import CreditGiven

FOREVER = float("inf")


def kept(giving: CreditGiven) -> int:
    """How many entries there are."""
    return len(giving._waiting)  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("seconds", [1, 10_000])
def test_not_every_turn_is_told_apart(seconds: int) -> None:
    """A peer whose debt is not paid may go on with what causes nothing, for as long as it likes."""
    count = 50_000
    giving = CreditGiven()
    for n in range(count):
        giving.took(1, n * seconds / count)
    assert len(giving) == count
    assert kept(giving) <= 1_000
    assert giving.due(0.0) == 0
    assert giving.due(FOREVER) == count
    assert len(giving) == kept(giving) == 0


@given(
    st.lists(st.tuples(st.floats(0, 0.05), st.integers(1, 5)), max_size=50),
    st.lists(st.floats(0, 2), max_size=5),
    st.integers(1, 20),
)
def test_no_turn_is_credited_before_its_time(
    steps: list[tuple[float, int]], looks: list[float], apart: int
) -> None:
    """Whatever is kept together, credit is for turns that came before what is still owed."""
    giving = CreditGiven()
    taken: list[tuple[float, int]] = []
    now = 0.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clearfunds.transports.syndicate._turn_credit.MAX_APART", apart)
        for pause, turns in steps:
            now += pause
            giving.took(turns, now)
            taken.append((now, turns))
    assert kept(giving) <= apart
    given_so_far = 0
    for oldest in sorted(looks):
        given_so_far += giving.due(oldest)
        assert given_so_far <= sum(turns for at, turns in taken if at < oldest)
    # None is forgotten: a moment after the last of them all are due.
    given_so_far += giving.due(now + 1e-6)
    assert given_so_far == sum(turns for _, turns in taken)
