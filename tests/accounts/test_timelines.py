"""What has happened to each client in the last day: bounded, whatever happens."""

from __future__ import annotations

import tracemalloc
from itertools import count

import pytest

from clearfunds.accounts import Ledger, Limit, Relief, StuckPolicy
from clearfunds.accounts.watch._incidents import GivenUp, Incidents, Relieved
from clearfunds.accounts.watch._timelines import (
    CLIENTS_MAX,
    DAY_SECONDS,
    HAPPENINGS_MAX,
    TOGETHER_SECONDS,
    WORDS_MAX,
    Timelines,
)
from clearfunds.testing import Box


@pytest.fixture
def timelines() -> Timelines:
    found = Timelines()
    found.keep()
    return found


def told(timelines: Timelines, client: str, now: float = 0.0) -> list[tuple[str, str | None]]:
    return [(each.what, each.whom) for each in timelines.of(client, now)]


def test_incidents_are_in_the_timelines_of_both_sides(timelines: Timelines) -> None:
    ledger = Ledger()
    incidents = Incidents(timelines)
    slow, gone = Box(ledger, "slow"), Box(ledger, "gone")
    timelines.came("slow", 0.0, "10.0.0.1:99")
    incidents.add_wait("pub", "slow", 3.5, 10.0, clear=True)
    lost = Relief()
    relieved = Relieved("box", StuckPolicy.DROP_OLDEST, lost, ("pub",), 0, 5.0, 0)
    incidents.add_relieved(slow, relieved, 20.0)
    incidents.add_given_up(gone, GivenUp("box", 7, 70, ("pub",), 0, 9.0, 0, "why"), 30.0)
    timelines.left("slow", 40.0, "it left")
    assert told(timelines, "pub") == [("waited", "slow")]
    assert told(timelines, "gone") == [("given_up", "why")]
    assert told(timelines, "slow") == [
        ("left", "it left"),
        ("relieved", "drop_oldest"),
        ("blocked", "pub"),
        ("connected", "10.0.0.1:99"),
    ]
    # What is lost while it is behind is counted on.
    lost.dropped_items = 12
    relief = timelines.of("slow", 40.0)[1].lost
    assert relief is not None
    assert relief.dropped_items == 12


def test_the_same_again_is_counted(timelines: Timelines) -> None:
    for number in range(5):
        timelines.waited("pub", "slow", 1.0 + number, 50.0 * number)
    timelines.waited("pub", "slow", 2.0, 200.0 + TOGETHER_SECONDS + 1)
    (late, early) = timelines.of("pub", 300.0)
    assert (early.times, early.seconds, early.at) == (5, 5.0, 200.0)
    assert (late.times, late.seconds) == (1, 2.0)


def test_it_goes_back_a_day(timelines: Timelines) -> None:
    timelines.came("pub", 0.0, "address")
    timelines.waited("pub", "slow", 1.0, 100.0)
    assert len(timelines.of("pub", DAY_SECONDS)) == 2
    assert told(timelines, "pub", DAY_SECONDS + 50) == [("waited", "slow")]
    assert told(timelines, "pub", DAY_SECONDS + 101) == []


def test_who_comes_and_goes_pushes_out_no_trouble(timelines: Timelines) -> None:
    timelines.waited("pub", "slow", 1.0, 1.0)
    for number in range(3 * CLIENTS_MAX):
        timelines.came(f"client {number}", 2.0 + number, "address")
        timelines.came("pub", 2.5 + number, f"address {number}")
    assert len(timelines) == 2 + CLIENTS_MAX
    assert ("waited", "slow") in told(timelines, "pub")
    assert len(timelines.of("pub", 0.0)) == HAPPENINGS_MAX + 1
    assert told(timelines, "client 0") == []
    assert told(timelines, f"client {3 * CLIENTS_MAX - 1}") == [("connected", "address")]


def test_nothing_is_kept_without_somebody_to_look() -> None:
    ledger = Ledger()
    ledger.open("pub", limit=Limit(items=1))
    ledger.incidents.add_wait("pub", "slow", 3.5, 10.0, clear=True)
    ledger.timelines.came("pub", 1.0, "address")
    assert len(ledger.timelines) == 0
    assert ledger.timelines.of("pub", 10.0) == []


def worst_of(characters: int) -> int:
    """Return what full timelines take, in bytes, if no name comes twice."""
    numbers = count()

    def name() -> str:
        return str(next(numbers)).ljust(characters, "x")

    tracemalloc.start()
    timelines = Timelines()
    timelines.keep()
    for _ in range(CLIENTS_MAX):
        coming, waiting = name(), name()
        for number in range(HAPPENINGS_MAX + 1):
            timelines.came(coming, 1e6 + number, name())
            timelines.waited(waiting, None, 0.5 + number, 1e6 + 100 * number)
            timelines.given_up(waiting, name(), 0.5 + number, 10**6 + number, 1e6 + number)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return used


def test_what_is_kept_is_bounded_in_bytes() -> None:
    """As the docstring of the module says."""
    assert worst_of(24) < 8 * 2**20
    assert worst_of(2 * WORDS_MAX) < 12.5 * 2**20
