"""All features at once: the books balance after each step, and nobody pays for another."""

from __future__ import annotations

import pytest
import trio
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.transports.mqtt.mixed import NAMES, RELAYS, WORDS, Step, count, machine
from tests.transports.mqtt.whole_packets import quietly

EVERY_CHECK = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)

steps = st.builds(
    Step,
    doing=st.sampled_from(WORDS),
    who=st.integers(0, len(NAMES) - 1),
    seed=st.integers(0, (1 << 30) - 1),
)


def run(which: str, played: list[Step]) -> None:
    """Do steps with one relay, in a loop of its own."""

    async def play() -> None:
        async with machine(which) as found:
            await found.play(played)

    with quietly():
        trio.run(play)


# A relay keeps real time: what went wrong once need not when it is done again.
@pytest.mark.parametrize("which", RELAYS)
@settings(
    max_examples=2,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    suppress_health_check=EVERY_CHECK,
)
@given(played=st.lists(steps, min_size=1, max_size=60))
def test_the_books_balance_whatever_comes_together(which: str, played: list[Step]) -> None:
    run(which, played)


@pytest.mark.long
@pytest.mark.parametrize("which", RELAYS)
@settings(max_examples=300, deadline=None, suppress_health_check=EVERY_CHECK)
@given(played=st.lists(steps, min_size=1, max_size=200))
def test_the_books_balance_for_longer(which: str, played: list[Step]) -> None:
    run(which, played)


@pytest.mark.parametrize("which", RELAYS)
def test_made_up_steps(which: str) -> None:
    """As `python -m tests.transports.mqtt.mixed` does them, by the hundred thousand."""
    with quietly():
        found = trio.run(count, which, 5, 150)
    assert found["steps"] == 150


@pytest.mark.long
@pytest.mark.parametrize("which", RELAYS)
def test_made_up_steps_for_longer(which: str) -> None:
    with quietly():
        found = trio.run(count, which, 6, 15_000)
    assert found["steps"] == 15_000
    seen = found["seen"]
    assert seen["waits"]
    assert seen["shared"]
    assert any(word.startswith("behind") for word in seen)
