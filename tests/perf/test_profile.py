"""What is due when."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearfunds.perf import Profile, ScenarioError, Step

RATES = st.floats(0, 5_000)
STEPS = st.builds(Step, RATES, RATES, st.floats(0.1, 20))
PROFILES = (
    st.lists(STEPS, min_size=1, max_size=4)
    .filter(lambda steps: sum(step.count for step in steps) > 0.5)
    .map(lambda steps: Profile(tuple(steps)))
)


def test_a_rate_alone_holds_for_ever() -> None:
    profile = Profile.parse("10")
    assert [profile.time_of(n) for n in (0, 1, 25)] == pytest.approx([0.0, 0.1, 2.5])
    assert [profile.due(at) for at in (-1, 0, 0.05, 0.1001, 1.05, 100.05)] == [0, 1, 1, 2, 11, 1001]
    assert profile.mean_rate() == 10


def test_a_cycle_with_a_pause() -> None:
    profile = Profile.parse("2:1,0:3")
    assert [profile.time_of(n) for n in range(5)] == pytest.approx([0, 0.5, 4.0, 4.5, 8.0])
    assert [profile.due(at) for at in (0.6, 3.9, 4.1, 4.6)] == [2, 2, 3, 4]


def test_a_ramp() -> None:
    profile = Profile.parse("0-10:2,10:1")
    # Ten messages within the first two seconds, ever faster; ten more in the third.
    assert profile.time_of(10) == pytest.approx(2.0)
    assert profile.time_of(5) == pytest.approx(2**0.5)
    assert profile.time_of(15) == pytest.approx(2.5)
    assert profile.due(3.0) == 21  # the first of the next cycle


@given(PROFILES, st.integers(0, 10_000))
def test_messages_are_due_one_after_the_other(profile: Profile, number: int) -> None:
    now, then = profile.time_of(number), profile.time_of(number + 1)
    assert 0 <= now <= then


@given(PROFILES, st.floats(0, 60))
def test_what_is_due_are_those_whose_time_has_come(profile: Profile, at: float) -> None:
    due = profile.due(at)
    assert profile.time_of(due) >= at - 1e-6
    assert due == 0 or profile.time_of(due - 1) <= at + 1e-6


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not RATE:SECONDS"),
        ("-5", "is not RATE:SECONDS"),
        ("10:0", "is not RATE:SECONDS"),
        ("10:5,fast", '"fast" is not RATE:SECONDS'),
        ("0", "without a message"),
        ("0:5,0-0:3", "without a message"),
    ],
)
def test_what_is_no_profile(text: str, said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        Profile.parse(text)
