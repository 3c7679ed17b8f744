"""benchmarks/evidence/recovery.py: when all is as before, and that it can be found out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks.evidence import recovery
from benchmarks.evidence._section import Setting
from benchmarks.fanout import Cores
from benchmarks.servers import MOSQUITTO, Relay

BEGINS, RETURNS = 0.5, 1.0


def run(
    stalled: Sequence[float | None], others: Sequence[float | None] = (), **more: Any
) -> dict[str, Any]:
    """Return a run of a hundred messages due in each interval, with these latencies."""
    others = others or [1.0] * len(stalled)
    columns: dict[str, Any] = {
        "at": [index / 10 for index in range(len(stalled))],
        "due": [100] * len(stalled),
        "behind": [0.0] * len(stalled),
        "rss_mb": [10.0] * len(stalled),
    }
    for who, latencies, readers in (("others", others, 3), ("stalled", stalled, 1)):
        columns[f"{who}_p99"] = columns[f"{who}_p50"] = latencies
        columns[f"{who}_came"] = columns[f"{who}_arrived"] = [
            0 if each is None else 100 * readers for each in latencies
        ]
    return {
        "server": "relay",
        "lost": 0,
        "unsent": 0,
        "reconnected": 0,
        "publishers_waited_most": 0.0,
        "rss_before_mb": 10.0,
        "rss_peak_mb": 25.0,
        "kept_waiting": 0.0,
        "columns": columns,
    } | more


def test_it_is_as_before_when_half_a_second_is_at_most_twice_as_late() -> None:
    before, away = [2.0] * 5, [500.0] * 5
    good = [4.0] * 5
    assert recovery.recovered(run(before + away + good), "stalled", BEGINS, RETURNS) == 0.0
    # One that is late begins it again, and so does one that never comes.
    for bad in (4.1, None):
        found = run([*before, *away, 3.0, 3.0, bad, *good])
        assert recovery.recovered(found, "stalled", BEGINS, RETURNS) == pytest.approx(0.3)
    short = run(before + away + good[:4])
    assert recovery.recovered(short, "stalled", BEGINS, RETURNS) is None


def test_next_to_nothing_may_be_a_millisecond_more() -> None:
    assert recovery.bound(run([0.1] * 10), "stalled", BEGINS) == 1.1
    assert recovery.bound(run([5.0] * 10), "stalled", BEGINS) == 10.0


def test_who_was_late_before_is_never_as_before() -> None:
    for late in (600.0, None):
        found = run([late] * 20)
        assert recovery.recovered(found, "stalled", BEGINS, RETURNS) is None
        text = recovery.render(measured(found)).text
        assert "Even before it stopped all came late with the relay." in text


def measured(*runs: dict[str, Any]) -> dict[str, Any]:
    return {
        "rate": 1000,
        "payload": 5000,
        "subscribers": 4,
        "topics": 50,
        "interval": 0.1,
        "before": BEGINS,
        "away": RETURNS - BEGINS,
        "after": 1.0,
        "runs": list(runs),
        "skipped": [],
    }


def test_who_lost_who_waited_and_who_did_neither_is_said() -> None:
    before, good = [2.0] * 5, [2.0] * 10
    waits = run([*before, *[500.0] * 5, *good], [*before, *[450.0] * 5, *good], server="relay")
    loses = run([*before, *[None] * 5, *good], server="mosquitto", reconnected=1)
    keeps = run([*before, *[500.0] * 5, 300.0, *good], server="nats")
    shown = recovery.render(measured(waits, loses, keeps))
    text = " ".join(shown.text.split())
    assert "Messages never came to the one that stopped with mosquitto." in text
    assert "The others got messages more than 100 ms late with the relay." in text
    assert "Neither was so with NATS, which kept it all meanwhile." in text
    assert "| the relay | at once | 0 | 0 | 450 ms | - | 15 | - |" in text
    assert "| mosquitto | at once | 500 | 0 | 1 ms | - | 15 | yes |" in text
    assert "| NATS | 0.1 s | 0 | 0 | 1 ms | - | 15 | - |" in text
    assert "busy" not in text
    assert shown.beside == {
        "as before after a stall": {"relay": "at once", "mosquitto": "at once", "nats": "0.1 s"}
    }
    assert shown.figures["recovery"]().axes


def test_who_gave_the_others_nothing_did_not_keep_it_all() -> None:
    fine = [2.0] * 20
    silent = run(fine, [*[2.0] * 5, *[None] * 15])
    text = " ".join(recovery.render(measured(silent)).text.split())
    assert "Messages never came to one of the others with the relay." in text
    assert "late with nobody." in text
    assert "Neither" not in text
    # Late all the time is late, whether it was so before or not.
    text = " ".join(recovery.render(measured(run(fine, [300.0] * 20))).text.split())
    assert "more than 100 ms late with the relay." in text
    assert "Neither" not in text


def test_nothing_measured_is_nothing_shown() -> None:
    assert recovery.render(measured()).text == "Nothing could be measured."


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="the load generator needs Linux")
def test_real_servers_are_measured() -> None:
    if MOSQUITTO.missing():
        pytest.skip("there is no mosquitto")
    steps: list[str] = []
    servers = (Relay(), MOSQUITTO)
    data = recovery.measure(Setting(servers, Cores.choose(), steps.append, scale=0.05))
    assert data["skipped"] == ["There was no NATS, Redis and RabbitMQ."]
    assert [each["server"] for each in data["runs"]] == ["relay", "conflate", "spill", "mosquitto"]
    assert len(steps) == 4
    for each in data["runs"]:
        columns = each["columns"]
        assert sum(columns["due"]) > 1000
        assert recovery.missing(each, "others") == 0
        assert max(late for late in columns["stalled_p99"] if late is not None) > 300
    assert "| the relay |" in recovery.render(data).text
