"""Confirmed and durable: a relay with a store is measured, and what the page makes of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks import durable
from benchmarks.durable import RELAY, Results, Run
from benchmarks.evidence import durable as section
from benchmarks.fanout import Cores
from benchmarks.many import Setting
from benchmarks.servers import DURABLE, NATS


@pytest.mark.long
def test_a_relay_with_a_store_syncs_each_message_that_comes_alone() -> None:
    if shutil.which("cc") is None:
        pytest.skip("the load generator is a C program, and there is no cc here to compile it")
    said: list[str] = []
    setting = Setting(Cores.choose(), 1, 0.3, sleep=True)
    results = durable.measure_all([RELAY], setting, said.append)
    assert [(run.server, run.publishers) for run in results.runs] == [("relay", 1), ("relay", 100)]
    assert all(run.found["whole"] for run in results.runs), results
    assert results.disk[0] > 0
    if shutil.which("strace") is None:
        assert "there is no strace" in results.failures[0]
        return
    if results.failures:
        pytest.skip(f"strace may not be attached here: {results.failures}")
    counts = results.calls["relay"]
    synced = sum(counts["calls"].values())
    assert synced >= counts["messages"] > 0, "nothing is acknowledged that is not on the disk"
    table = durable.results_table(results, ["relay"])
    assert "| relay |" in table
    assert "fdatasync" in table


def test_calls_are_said_for_a_message() -> None:
    calls = {"fsync": 30, "fdatasync": 1, "msync": 0}
    assert durable.calls_per_message({"messages": 10, "calls": calls}) == "fsync 3, fdatasync 0.1"
    assert durable.calls_per_message({"messages": 10, "calls": {}}) == "none"


def test_every_server_that_is_measured_has_a_promise() -> None:
    names = {"relay", *(peer.name for peer in durable.PEERS)}
    assert names == set(section.PROMISES)
    assert set(section.ONCE) < names


def test_stores_are_switched_on(tmp_path: Path) -> None:
    by_name = {server.name: server for server in DURABLE}
    by_name["mosquitto+autosave"].arguments(tmp_path, 1)
    config = (tmp_path / "mosquitto.conf").read_text()
    assert "persistence true" in config
    assert "max_queued_messages 0" in config
    by_name["nats+jetstream"].arguments(tmp_path, 7777)
    assert f'jetstream {{ store_dir: "{tmp_path}" }}' in (tmp_path / "nats.conf").read_text()
    assert by_name["nats+jetstream"].speaks("mqtt") == "mqtt"
    assert NATS.speaks("mqtt") == "nats"


def run(server: str, publishers: int, p50: float, rate: float, *, whole: bool = True) -> Any:
    """Return a run of a second, as it is kept."""
    return {
        "number": 1, "server": server, "publishers": publishers, "p50": p50, "p99": 2 * p50,
        "confirmed": rate, "seconds": 1.0, "cpu": 40.0, "whole": whole, "lost": 0,
    }  # fmt: skip


def data_of(*runs: dict[str, Any]) -> dict[str, Any]:
    """Return a section's data, with a disk that syncs in a millisecond."""
    calls = {"relay": {"messages": 100, "calls": {"fdatasync": 110}}}
    return {"passes": 1, "seconds": 1.0, "disk": [0.001], "runs": list(runs), "calls": calls}


def test_the_page_holds_the_relay_to_its_disk() -> None:
    page = section.render(
        data_of(
            run("relay", 1, 0.002, 400),
            run("relay", 100, 0.009, 10_000),
            run("mosquitto+autosave", 1, 0.0001, 9000),
            run("mosquitto+autosave", 100, 0.001, 50_000),
        )
    )
    found = [(round(claim.found or 0, 2), claim.word) for claim in page.claims]
    assert found == [(2.0, "held"), (0.04, "held"), (0.91, "held")]
    assert "| the relay | 2.00 | 4.00 | 2.0 | 400 | 10,000 | 25.0 |" in page.text
    assert "fdatasync 1.1" in page.text
    assert "not counted" in page.text, "the other server's calls"
    assert "All 69,400 acknowledged messages came" in page.text


def test_the_page_says_what_does_not_hold_and_what_did_not_come() -> None:
    data = data_of(run("relay", 1, 0.004, 1000, whole=False), run("relay", 100, 0.009, 19_000))
    data["calls"] = {"relay": {"messages": 100, "calls": {"fdatasync": 5}}}
    page = section.render(data)
    assert [claim.word for claim in page.claims] == ["MISSED", "MISSED", "MISSED"]
    assert "**Not all that was acknowledged came** from the relay." in page.text
    empty = section.render(data_of() | {"calls": {}})
    assert {claim.word for claim in empty.claims} == {"not measured"}


def test_results_are_of_one_server_and_load() -> None:
    results = Results([Run(1, "relay", 1, {"a": 1}), Run(1, "relay", 100, {"a": 2})])
    assert results.of("relay", 100) == [{"a": 2}]
