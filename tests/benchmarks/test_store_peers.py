"""benchmarks/store_peers.py as a user runs it. Figures are not judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "store_peers.py"
NAMES = {"store", "SQLite, a row a message"}
"""And LMDB, where it is installed."""


def measured(tmp_path: Path, command: str, *options: str) -> dict[str, list[dict[str, Any]]]:
    """Run it; return what it wrote."""
    scratch, written = tmp_path / "scratch", tmp_path / "written.json"
    scratch.mkdir()
    common = ["--passes=1", f"--scratch={scratch}", f"--json={written}"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), command, *common, *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert list(scratch.iterdir()) == [], "what was on disk is removed"
    found: dict[str, list[dict[str, Any]]] = json.loads(written.read_text())
    return found


@pytest.mark.long
def test_each_engine_does_all_of_the_work(tmp_path: Path) -> None:
    rows = measured(tmp_path, "work", "--messages=600", "--batches=10")["work"]
    assert {row["engine"] for row in rows} >= NAMES
    assert {row["part"] for row in rows} == {"put", "read", "ack", "ack, mixed", "put and ack"}
    assert {(row["queues"], row["size"]) for row in rows} == {
        *((1, 200), (9, 200), (100, 200)),
        *((9, 4096), (100, 4096)),
    }
    assert all(0 < row["cpu_least"] <= row["cpu_median"] for row in rows)


def test_a_wrong_byte_and_a_full_disk(tmp_path: Path) -> None:
    found = measured(tmp_path, "damage", "--messages=1000", "--flips=8")
    damage = {row["engine"]: row for row in found["damage"]}
    assert damage["store"]["silent"] == 0
    # Its rows have checksums; those of a plain table have none.
    assert damage["SQLite, a row a message"]["silent"] > 0
    full = {row["engine"]: row for row in found["full"]}
    assert all(row["there"] >= row["durable"] > 0 for row in full.values())
    assert full["store"]["there"] == full["store"]["put"]


@pytest.mark.long
def test_a_killed_process_loses_nothing_that_it_said_was_durable(tmp_path: Path) -> None:
    rows = measured(tmp_path, "recovery", "--messages=1000", "--seconds=0.2")["recovery"]
    assert {row["engine"] for row in rows} >= NAMES
    assert all(row["lost"] == 0 for row in rows)
