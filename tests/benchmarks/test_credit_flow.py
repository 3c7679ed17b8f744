"""benchmarks/credit_flow.py as a user runs it: what it measures under both schemes, and draws.

Figures are not judged here (a busy machine would), only that they are there and make sense.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

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
def test_both_schemes_are_measured_under_each_load(tmp_path: Path) -> None:
    scratch, written = tmp_path / "scratch", tmp_path / "found.json"
    scratch.mkdir()
    printed = run(
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
    assert len(rows) == 6
    for scheme in ("debt", "credit"):
        assert rows["keep-up", scheme]["deliveries"] > 0
        assert rows["queues", scheme]["confirmed"] > 0
        assert rows["stall", scheme]["delivered"] > 0
    # Who has no credit left is not read, and so nobody hears of it.
    assert rows["stall", "credit"]["gap_same"] > 0.3
    assert "| fan-out | deliveries/s |" in printed
    assert printed.count("\n| 2 | ") == 3
    if importlib.util.find_spec("matplotlib") is None:
        pytest.skip("there is no matplotlib")
    run(f"--json={written}", f"--plot={tmp_path}")
    for load in ("keep-up", "stall", "queues"):
        assert "fan-out" in (tmp_path / f"credit-flow-{load}.svg").read_text()
