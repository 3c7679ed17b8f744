"""Whole, legal packets in one write, cut anywhere: no internal error, whatever comes together."""

from __future__ import annotations

import pytest
import trio
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.transports.mqtt.whole_packets import (
    HELLOS,
    MOST_SAYINGS,
    RELAYS,
    Write,
    count,
    machine,
    quietly,
)

EVERY_CHECK = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)

numbers = st.integers(0, MOST_SAYINGS - 1)
writes = st.builds(
    Write,
    client=st.integers(0, 2),
    hello=st.integers(-1, len(HELLOS) - 1),
    sayings=st.lists(numbers, max_size=8).map(tuple),
    cut=st.integers(-60, 200),
    between=st.integers(0, 2),
    then=st.integers(0, 4),
)
sequences = st.lists(st.lists(writes, min_size=1, max_size=5), min_size=1, max_size=8)


def run(which: str, played: list[list[Write]]) -> None:
    """Play sequences with one relay, in a loop of its own."""

    async def play() -> None:
        async with machine(which) as found:
            for steps in played:
                await found.play(steps)

    with quietly():
        trio.run(play)


# A relay keeps real time: what went wrong once need not when it is played again.
@pytest.mark.parametrize("which", RELAYS)
@settings(
    max_examples=8,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    suppress_health_check=EVERY_CHECK,
)
@given(played=sequences)
def test_no_sequence_is_an_internal_error(which: str, played: list[list[Write]]) -> None:
    run(which, played)


@pytest.mark.long
@pytest.mark.parametrize("which", RELAYS)
@settings(max_examples=2_000, deadline=None, suppress_health_check=EVERY_CHECK)
@given(played=sequences)
def test_no_sequence_is_an_internal_error_for_longer(which: str, played: list[list[Write]]) -> None:
    run(which, played)


@pytest.mark.parametrize("which", RELAYS)
def test_made_up_sequences(which: str) -> None:
    """As `python -m tests.transports.mqtt.whole_packets` plays them, by the million."""
    with quietly():
        found = trio.run(count, which, 1, 100, 60.0, 1)
    assert found["writes"] >= 100


@pytest.mark.long
@pytest.mark.parametrize("which", RELAYS)
def test_made_up_sequences_for_longer(which: str) -> None:
    with quietly():
        found = trio.run(count, which, 2, 100_000, 600.0, 20)
    assert found["writes"] > 0
