"""benchmarks/credit_flow.py as a user runs it: what it measures under each scheme, and draws.

Figures are not judged here (a busy machine would), only that they are there and make sense.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import attrs
import pytest

from benchmarks.credit_flow import Loop, Plan, Point, Usage, arguments, schemes
from clearfunds._cli import run as clearfunds_run
from clearfunds.relay import RelaySettings

CREDIT_FLOW = Path(__file__).parents[2] / "benchmarks" / "credit_flow.py"


def run(*options: str) -> str:
    done = subprocess.run(
        [sys.executable, str(CREDIT_FLOW), *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_all_schemes_are_measured_under_each_load(tmp_path: Path) -> None:
    scratch, written = tmp_path / "scratch", tmp_path / "found.json"
    scratch.mkdir()
    printed = run(
        "--schemes=debt,credit,nothing",
        "--fan-outs=2",
        "--passes=1",
        "--seconds=0.2",
        "--stall=1",
        "--queue-seconds=2.5",
        f"--json={written}",
        f"--scratch={scratch}",
    )
    assert list(scratch.iterdir()) == [], "what was on disk is removed"
    found = json.loads(written.read_text())
    rows = {(row["load"], row["scheme"]): row for row in found["rows"]}
    assert {load for load, _ in rows} == {"keep-up", "stall", "queues"}
    assert len(rows) == 9
    for scheme in ("debt", "credit", "nothing"):
        assert rows["keep-up", scheme]["deliveries"] > 0
        assert rows["queues", scheme]["confirmed"] > 0
        assert rows["stall", scheme]["delivered"] > 0
    # Who has no credit left is not read, and so nobody hears of it.
    assert rows["stall", "credit"]["gap_same"] > 0.3
    assert not any(row.get("ended") for row in rows.values())
    assert "| fan-out | deliveries/s |" in printed
    assert printed.count("\n| 2 | ") == 3
    if importlib.util.find_spec("matplotlib") is None:
        pytest.skip("there is no matplotlib")
    run(f"--json={written}", f"--plot={tmp_path}")
    for load in ("keep-up", "stall", "queues"):
        picture = (tmp_path / f"credit-flow-{load}.svg").read_text()
        assert "fan-out" in picture
        assert "nothing" in picture


def test_passes_are_interleaved_and_who_comes_first_changes() -> None:
    seconds = {"keep-up": 1.0, "stall": 4.0}
    plan = Plan((1, 10), seconds, ("debt", "credit", "nothing"), passes=2, slow_passes=1)
    points = list(plan.points())
    assert len(points) == 18
    first = [each for number, each in points if number == 0 and each.load == "keep-up"]
    again = [each for number, each in points if number == 1]
    assert [(each.fan_out, each.scheme) for each in first[:4]] == [
        (1, "debt"),
        (1, "credit"),
        (1, "nothing"),
        (10, "debt"),
    ]
    assert [each.scheme for each in again[:3]] == ["credit", "nothing", "debt"]
    assert set(again) == set(first), "what takes long is not measured again"


def test_a_relay_without_limits_has_none_and_others_have_their_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[RelaySettings] = []

    def instead(_: object, settings: RelaySettings, __: object) -> int:
        found.append(settings)
        return 0

    monkeypatch.setattr("clearfunds._cli._relay.run_async", instead)
    assert clearfunds_run(["relay"]) == 0
    relays = [Point("keep-up", name, 1).relay(tmp_path) for name in ("debt", "credit", "nothing")]
    for relay in relays:
        assert clearfunds_run(["relay", *relay.options]) == 0
    defaults, debt, credit, nothing = found
    assert debt == credit == defaults
    assert [relay.program[1] for relay in relays] == [
        "clearfunds",
        "experiments.credit_flow",
        "clearfunds",
    ]
    none = [name for name, value in attrs.asdict(nothing).items() if value is None]
    limits = {
        *("limit_items", "limit_bytes", "server_limit_items", "server_limit_bytes", "max_queued"),
        *("max_queued_bytes", "disk_limit", "memory_alarm", "disk_alarm"),
    }
    assert limits <= set(none)
    assert nothing.stuck == "wait"


def test_a_load_ends_when_the_server_has_too_much() -> None:
    usage = Usage(os.getpid(), most=1 << 20)
    usage.begin()
    loop = Loop(usage)
    kept: list[bytearray] = []
    began = time.monotonic()
    loop.run(began + 60, lambda _: kept.append(bytearray(1 << 20)))
    loop.close()
    assert time.monotonic() - began < 50
    assert usage.too_much
    assert usage.rss_peak > usage.rss_before + (1 << 20)


def test_a_scheme_that_there_is_not() -> None:
    parser = arguments()
    assert parser.parse_args(["--schemes=nothing,debt"]).schemes == ("nothing", "debt")
    with pytest.raises(argparse.ArgumentTypeError, match="hope is none of debt, credit, nothing"):
        schemes("debt,hope")
