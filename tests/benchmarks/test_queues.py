"""benchmarks/queues.py as a user runs it: what it writes, that it drains, what it cleans up.

Figures are not judged here (a busy machine would), only that they are there and make sense.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

QUEUES = Path(__file__).parents[2] / "benchmarks" / "queues.py"


def measured(tmp_path: Path, command: str, *options: str) -> tuple[dict[str, Any], str]:
    """Run it; return what it wrote, and what it printed."""
    scratch, written = tmp_path / "scratch", tmp_path / f"{command}.json"
    scratch.mkdir(exist_ok=True)
    done = subprocess.run(
        [
            sys.executable,
            str(QUEUES),
            command,
            f"--json={written}",
            f"--scratch={scratch}",
            *options,
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert list(scratch.iterdir()) == [], "what was on disk is removed"
    found: dict[str, Any] = json.loads(written.read_text())
    return found, done.stdout


def drawn(tmp_path: Path, name: str) -> str:
    """Return the picture of what was written."""
    done = subprocess.run(
        [sys.executable, str(QUEUES), "plot", f"--data={tmp_path}", f"--to={tmp_path}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return (tmp_path / f"queues-{name}.svg").read_text()


@pytest.mark.long
def test_a_backlog_is_built_and_drained_under_both_policies(tmp_path: Path) -> None:
    result, printed = measured(
        tmp_path, "backlog", "--rate=600", "--backlog=1000", "--steady=1.2", "--after=1.2"
    )
    assert [run["settings"]["paging"] for run in result["runs"]] == ["steady", "classic"]
    for run in result["runs"]:
        assert run["drained"]
        assert list(run["phases"]) == ["steady", "paused", "draining", "drained"]
        assert max(run["samples"]["ready"]) >= 1000
        last = {name: values[-1] for name, values in run["samples"].items()}
        assert last["published"] >= last["acked"] + last["ready"]
        assert last["acked"] > 1000
        assert last["rss"] > 1 << 20
    assert printed.count("drained\n") == 2
    assert {"cpu", "cores", "kernel", "python", "trio"} <= result["machine"].keys()
    pytest.importorskip("matplotlib")
    picture = drawn(tmp_path, "backlog")
    assert "classic paging" in picture
    assert "consumers are back" in picture


@pytest.mark.long
def test_messages_are_queued_for_a_client_that_is_away_and_taken_in_order(tmp_path: Path) -> None:
    # More than there are packet identifiers in flight, and not a multiple of a run.
    result, printed = measured(tmp_path, "ten-million", "--messages=30001", "--take=2000")
    assert printed.startswith("30,001 messages of 200 bytes queued")
    assert result["taken"] >= 2000
    assert result["rss_peak"] >= result["rss_before"] > 1 << 20
    assert result["stored"] > 28_000 * 200


@pytest.mark.long
def test_a_point_of_a_sweep(tmp_path: Path) -> None:
    result, printed = measured(
        tmp_path, "sweeps", "--only=in-flight", "--values=20", "--runs=1", "--seconds=0.5",
        "--warm-up=0.5",
    )  # fmt: skip
    assert [(p["kind"], p["sweep"], p["value"]) for p in result["points"]] == [
        ("disk", "in-flight", 20),
        ("memory", "in-flight", 20),
    ]
    for point in result["points"]:
        (run,) = point["runs"]
        assert run["received"] > 0
        assert 0 < run["p50"] <= run["p95"] <= run["p99"]
    assert "| disk | in-flight | 20 |" in printed
    pytest.importorskip("matplotlib")
    assert "in-flight window" in drawn(tmp_path, "sweeps")


def test_who_has_no_room_is_told_so_before_anything_is_written(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(QUEUES), "ten-million", f"--scratch={tmp_path}", "--size=16000",
         "--messages=1000000000000"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert "MiB free and this may take" in done.stderr
    assert list(tmp_path.iterdir()) == []
