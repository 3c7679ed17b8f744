"""Sections of docs/evidence.md about queues and flow: what their sentences say, and when.

From figures that are made up, so that each verdict is seen both ways; the long tests measure, for a
few seconds, and look only whether there is something that makes sense.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.evidence import backlog, flow, sweeps
from benchmarks.evidence._data import dumped
from benchmarks.evidence._plot import styled
from benchmarks.evidence._section import Rendered, Section, Setting
from benchmarks.fanout import Cores
from benchmarks.queues import SWEEPS, value_of
from benchmarks.servers import Relay

# -- sweeps ----------------------------------------------------------------------------------------

AS_IN_THE_POST = {
    "in-flight": {1: 1000, 5: 2000, 20: 4000, 200: 9500, 1000: 10_000, 10_000: 10_000},
    "prefetch": {1: 1000, 10: 4000, 100: 9800, 1000: 10_000, 10_000: 10_000},
    "ack-interval": {1: 7000, 10: 9000, 50: 10_000, 100: 9900, 250: 9800, 500: 9500},
}


def run(received: float, *, p50: float = 10.0, confirmed: float | None = None) -> dict[str, Any]:
    """Return what one run of a sweep's point has found."""
    return {
        "received": received,
        "confirmed": received if confirmed is None else confirmed,
        "p50": p50 if received else None,
        "p95": 2 * p50 if received else None,
        "p99": 3 * p50 if received else None,
        "server_cpu": 0.5,
        "client_cpu": 0.3,
        "rss": 50 << 20,
        "load": 1.0,
    }


def swept(found: dict[str, dict[int, int]]) -> dict[str, Any]:
    """Return data of sweeps with these messages a second, three runs each."""
    points: list[dict[str, Any]] = []
    for name, values in found.items():
        for value, received in values.items():
            deep = (name, value) == ("in-flight", 10_000)
            behind = received if value > 1 or name != "prefetch" else 5 * received
            runs = [
                run(received + spread, p50=40.0 if deep else 10.0, confirmed=behind)
                for spread in (-50, 0, 50)
            ]
            points.append({"kind": "disk", "sweep": name, "value": value, "runs": runs})
    settings = {"size": 1000, "seconds": 0.8, "warm_up": 0.4, "runs": 3}
    return {"settings": settings, "points": points, "skipped": []}


def verdicts(data: dict[str, Any]) -> dict[str, list[str]]:
    by_name = {name: sweeps.Sweep(name, data["points"]) for name in sweeps.NAMES}
    return {name: [line[-1] for line in lines] for name, lines in sweeps.findings(by_name).items()}


def test_what_is_as_the_post_says_is_called_so() -> None:
    assert verdicts(swept(AS_IN_THE_POST)) == {
        "in-flight": ["yes", "yes", "yes"],
        "prefetch": ["yes", "yes", "yes"],
        "ack-interval": ["yes", "yes", "yes", "as quorum queues"],
    }
    text = sweeps.render(swept(AS_IN_THE_POST)).text
    assert "nine tenths of that from a window of 200 on" in text
    assert "It is from 20 to 200: 4,000 to 9,500 a second." in text
    assert "of what was confirmed meanwhile, 80% stayed in the queue" in text
    assert "| received/s | 1,000 | 2,000 | 4,000 | 9,500 | 10,000 | 10,000 |" in text
    assert "they were not the limit" in text


def test_what_is_not_as_the_post_says_is_called_so_too() -> None:
    other = {
        # It only ever rises, most at the beginning and at the end.
        "in-flight": {1: 1000, 5: 6000, 20: 6500, 200: 6600, 1000: 7000, 10_000: 11_500},
        # One at a time is as good as any.
        "prefetch": {1: 8000, 10: 8000, 100: 8100, 1000: 10_000, 10_000: 10_000},
        # Nothing but the last one is any good.
        "ack-interval": {1: 3000, 10: 3000, 50: 3100, 100: 3200, 250: 5000, 500: 9000},
    }
    assert verdicts(swept(other)) == {
        "in-flight": ["**no**", "**no**", "**no**"],
        "prefetch": ["**no**", "**no**", "yes"],
        "ack-interval": ["**no**", "**no**", "**no**", "as quorum queues"],
    }


def test_the_best_ack_interval_may_be_within_the_spread() -> None:
    acks = {1: 9000, 10: 10_000, 50: 9990, 100: 9000, 250: 9000, 500: 9000}
    text = sweeps.render(swept(AS_IN_THE_POST | {"ack-interval": acks})).text
    assert "The best median has 10; so had 50 in some pass. | within the spread |" in text


def test_a_run_in_which_nothing_came_counts_for_throughput_and_for_nothing_else() -> None:
    data = swept(AS_IN_THE_POST)
    for point in data["points"]:
        if (point["sweep"], point["value"]) == ("prefetch", 10):
            point["runs"] = [run(0), run(0), run(4000)]
        if (point["sweep"], point["value"]) == ("in-flight", 1):
            point["runs"] = [run(0)] * 3
    prefetch = sweeps.Sweep("prefetch", data["points"])
    assert prefetch.at(10) == 0
    assert prefetch.at(10, "p50") == 10
    text = sweeps.render(data).text
    assert "| p50, ms | - | 10.0 |" in text
    assert "nan" not in text


def test_of_a_trial_some_points_are_enough_for_a_page() -> None:
    few = {
        name: {value: values[value] for value in map(value_of, sweeps.some(SWEEPS[name], 0.05))}
        for name, values in AS_IN_THE_POST.items()
    }
    assert [len(values) for values in few.values()] == [3, 3, 3]
    assert "| in-flight window |" in sweeps.render(swept(few)).text


# -- backlog ---------------------------------------------------------------------------------------

MIB = 1 << 20


def backlog_run(paging: str, *, grown: int, acked: int, drained: bool = True) -> dict[str, Any]:
    """Return a run: 4 s, 10 s in which 3,000 a second pile up, some seconds of draining."""
    samples: list[dict[str, Any]] = []
    ready = gone = 0
    for second in range(1, 31):
        phase = "steady" if second <= 4 else "paused" if second <= 14 else "draining"
        if phase == "paused":
            ready += 3000
        elif phase == "steady":
            gone += 3000
        else:
            gone += acked
            ready = max(0, ready + 3000 - acked)
        samples.append(
            {
                "t": float(second),
                "phase": phase,
                "rss": 40 * MIB + (grown * min(ready, 30_000) // 30_000),
                "cpu": 0.5 * second,
                "due": 1000 * second + 100,
                "ready": ready,
                "in_memory": ready // 2,
                "on_disk": ready,
                "published": 3000 * second,
                "acked": gone,
            }
        )
    phases = {"steady": 0.0, "paused": 4.0, "draining": 14.0, "drained": 28.0}
    settings = {
        "paging": paging, "rate": 1000.0, "backlog": 30_000, "steady_seconds": 4.0,
        "after_seconds": 2.0, "queues": 3, "consumers": 20, "size": 200, "memory": 104 * MIB,
        "limit_seconds": 60.0, "sample_seconds": 1.0,
    }  # fmt: skip
    return {
        "load": 1.0,
        "settings": settings,
        "phases": phases,
        "drained": drained,
        "samples": {name: [s[name] for s in samples] for name in samples[0]},
    }


def shown(*runs: dict[str, Any], full_size: Path = Path("/nowhere.json")) -> Rendered:
    return backlog.render({"runs": list(runs), "skipped": []}, full_size)


def test_a_backlog_that_drains_in_flat_memory() -> None:
    found = shown(
        backlog_run("steady", grown=2 * MIB, acked=10_000),
        backlog_run("classic", grown=30 * MIB, acked=8_000),
    )
    text = found.text
    assert (
        "**steady**: memory is flat. RSS rose by 2 MiB until consumers came back, when 30,000 "
        "messages waited; 15,000 of them were in memory at most." in text
    )
    assert "**classic**: memory grows. RSS rose by 30 MiB" in text
    assert "**steady**: the backlog drains while publishing goes on, in 14 s, at 10,000" in text
    assert "publications were at most 0.1 s late" in text
    assert "As in 2011: steady paging had 0.60 times the RSS" in text
    assert "At full size" not in text
    assert [claim.word for claim in found.claims] == ["held", "held"]


def test_a_backlog_that_does_not_drain_in_memory_that_grows() -> None:
    found = shown(
        backlog_run("steady", grown=20 * MIB, acked=2_000, drained=False),
        backlog_run("classic", grown=30 * MIB, acked=8_000),
    )
    assert "**steady**: memory grows." in found.text
    assert "did **not** drain: 46,000 messages were left when it was given up" in found.text
    assert "2011: steady" not in found.text
    assert [claim.word for claim in found.claims] == ["MISSED", "MISSED"]


def test_one_policy_is_not_both() -> None:
    found = shown(backlog_run("classic", grown=0, acked=8_000))
    assert [claim.word for claim in found.claims] == ["not measured", "not measured"]


def test_policies_that_are_alike_are_not_told_apart_by_a_per_cent() -> None:
    found = shown(
        backlog_run("steady", grown=2 * MIB, acked=10_000),
        backlog_run("classic", grown=30 * MIB, acked=9_900),
    )
    assert "Memory as in 2011, the rest alike" in found.text


def test_what_is_said_of_the_full_size_is_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "backlog.json"
    run = backlog_run("steady", grown=3 * MIB, acked=10_000)
    run["settings"]["backlog"] = 500_000
    machine = {"cpu": "Abacus 9", "cores": "2", "kernel": "Linux 1.0", "python": "CPython 3.99"}
    path.write_text(json.dumps({"machine": machine, "runs": [run]}))
    text = " ".join(shown(run, full_size=path).text.split())
    assert "At full size (500,000 messages, on Abacus 9, 2 cores, Linux 1.0, CPython 3.99" in text
    assert "steady drained, and steady memory rose by 3 MiB" in text


def test_the_file_of_the_full_size_can_be_shown() -> None:
    if not backlog.FULL_SIZE.exists():
        pytest.skip("it is not in this copy")
    found = backlog.render({"runs": [backlog_run("steady", grown=0, acked=9_000)], "skipped": []})
    assert "At full size (500,000 messages" in found.text


# -- flow ------------------------------------------------------------------------------------------


def flow_rows(*, debt_mib: float = 4.0, gap: float = 1.3, ended: bool = False) -> dict[str, Any]:
    """Return what might be found: debt stops late, credit early, nothing never."""
    rows: list[dict[str, Any]] = []
    cpu = {"debt": 0.11, "credit": 0.2, "nothing": 0.1}
    gaps = {"debt": gap, "credit": 3.8, "nothing": 0.02}
    grown = {"debt": debt_mib, "credit": 0.1, "nothing": 8.0}
    for scheme in ("debt", "credit", "nothing"):
        for fan_out in (1, 100):
            same = {"scheme": scheme, "fan_out": fan_out}
            for number in range(3):
                dear = 2.0 if (scheme, fan_out) == ("debt", 100) else 1.0
                figures = {"deliveries": 1e6, "cpu": dear * cpu[scheme], "rss": 45e6}
                rows.append({"load": "keep-up", "pass": number, **same, **figures})
            silent = {"gap_same": gaps[scheme], "gap_other": 0.02, "gap_after": 2.6}
            figures = {"pass": 0, "rss": grown[scheme] * MIB, "ended": False, "cpu_share": 0.05}
            rows.append(
                {"load": "stall", **same, **silent, **figures, "published": 3e3, "delivered": 9e3}
            )
            figures["ended"] = ended and scheme == "nothing"
            rows.append(
                {"load": "queues", **same, **silent, **figures, "confirmed": 50.0, "cpu": None}
            )
    return {
        "seconds": {"keep-up": 0.5, "stall": 4.0, "queues": 3.0}, "passes": 3,
        "fsync_interval": 1.0, "paced": 4000, "paced_bytes": 500, "most_bytes": 1 << 30,
        "machine_bytes": 16 << 30, "rows": rows, "skipped": [],
    }  # fmt: skip


def flow_text(data: dict[str, Any]) -> str:
    return " ".join(flow.render(data).text.split())


def test_each_scheme_is_shown_with_what_it_buys_and_costs() -> None:
    found = flow.render(flow_rows())
    text = " ".join(found.text.split())
    assert "debt takes 1.10 to 2.20 times the CPU, credit 2.00 times (fan-out 1 and 100)" in text
    assert "Debt's 2.20 at 100 is its limit: 50,000 deliveries are 500 messages" in text
    assert "With *debt* the connection was not read any more after 2.6 s and the innocent" in text
    assert "With *nothing* nobody was stopped" in text
    # 2 MiB a second.
    assert "*Nothing* takes 2 MiB a second" in text
    assert "16 GiB of this machine are gone in 2.3 hours. Debt ends at 4 MiB" in text
    assert "**debt** buys memory that its limits bound at any fan-out: 4.0 MiB" in text
    assert "(none did)" in text
    assert "| 100 | nothing | 50 | - | 0.02 | 0.02 | 8.0 |" in text
    assert list(found.figures) == ["flow-keep-up", "flow-stall", "flow-queues"]
    assert [claim.word for claim in found.claims] == ["held"]


def test_a_stall_that_was_too_short_for_debt_says_nothing_of_its_end() -> None:
    text = flow_text(flow_rows(gap=0.03))
    assert "With *debt* nobody was stopped: silence of 0.03 s" in text
    assert "It was too short for debt to come to its limit." in text
    assert "Debt ends at" not in text


def test_memory_that_debt_does_not_bound_is_missed() -> None:
    found = flow.render(flow_rows(debt_mib=60.0))
    assert "**debt** buys **no** bound of memory here" in found.text
    (claim,) = found.claims
    assert (claim.word, claim.found) == ("MISSED", 60.0)


def test_a_load_that_had_to_be_ended_is_told_of() -> None:
    text = flow_text(flow_rows(ended=True))
    assert "so ended: queues, nothing, fan-out 1; queues, nothing, fan-out 100" in text


def test_a_scheme_that_could_not_be_measured_leaves_the_others() -> None:
    data = flow_rows()
    data["rows"] = [row for row in data["rows"] if row["scheme"] != "nothing"]
    found = flow.render(data)
    assert "**credit** buys" in found.text
    assert "**nothing**" not in found.text
    data["rows"] = [row for row in data["rows"] if row["load"] == "keep-up"]
    assert list(flow.render(data).figures) == ["flow-keep-up"]
    data["rows"] = []
    assert flow.render(data).text == "Nothing could be measured."


# -- measured --------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("section", [sweeps.SECTION, backlog.SECTION, flow.SECTION])
def test_a_section_is_measured_and_shown(section: Section) -> None:
    said: list[str] = []
    data = section.measure(Setting((Relay(),), Cores.choose(), said.append, 0.05))
    assert said
    if section is not sweeps.SECTION:
        assert data["skipped"] == []
    kept = json.loads(dumped(data))
    found = section.render(kept)
    assert found.text == section.render(data).text, "what is kept is enough"
    for name in found.figures:
        assert f"(evidence-{name}.svg)" in found.text
    pytest.importorskip("matplotlib")
    with styled():
        for make in found.figures.values():
            assert make().axes
