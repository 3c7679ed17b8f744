"""benchmarks/latency_limit.py: its figures, and that it measures at all."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from benchmarks.latency_limit import by_second, got, percentile, run, summary

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="it sets options of Linux's sockets"
)


def test_percentiles_are_of_messages_not_of_settlements() -> None:
    assert percentile([], 0.99) == 0.0
    assert percentile([(5.0, 1), (1.0, 98), (2.0, 1)], 0.99) == 2.0
    assert percentile([(5.0, 1), (1.0, 98), (2.0, 1)], 0.995) == 5.0


def test_a_pace_is_summed_up_as_a_whole_and_once_it_has_settled() -> None:
    seen: dict[str, Any] = {
        "changes": [0.0, 4.0, 8.0],
        "settlements": [(1.0, 0.9, 10), (3.0, 0.2, 990), (5.0, 7.0, 1)],
        "taken": [(at / 4, at * 25.0) for at in range(33)],
    }
    first, second = summary(seen, [100.0, 200.0], 0.1)
    assert first == {"pace": 100.0, "age": 0.2, "settled_age": 0.2, "got": 1.0}
    assert second == {"pace": 200.0, "age": 7.0, "settled_age": 0.0, "got": 0.5}
    assert got(seen, 0.0, 2.0) == 100.0
    assert by_second(seen)[2] == (1.25, 0.9, 100.0)
    assert by_second(seen)[3] == (1.75, None, 100.0)


@pytest.mark.long
def test_a_real_relay_is_measured() -> None:
    # Two processes start meanwhile.
    seen = run({"limit_latency": 0.05}, [2_000.0], 6.0)
    assert sum(items for _, _, items in seen["settlements"]) > 200
    assert seen["limits"]
    assert got(seen, 4.0, 6.0) > 200
