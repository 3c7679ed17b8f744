"""benchmarks/scaling.py: what it makes of its figures, and one short run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.scaling import Row, exponent, main

FOLDER = Path(__file__).parents[2] / "benchmarks"


def test_growth() -> None:
    sizes = (10, 100, 1_000)
    assert exponent(sizes, (5.0, 5.0, 5.0)) == pytest.approx(0)
    assert exponent(sizes, (1.0, 10.0, 100.0)) == pytest.approx(1)
    assert exponent(sizes, (1.0, 10.0**0.5, 10.0)) == pytest.approx(0.5)


def test_a_row() -> None:
    row = Row("topics", "pipelined", {10: [2.0, 1.0, 9.0], 1000: [3.0, 2.0, 4.0]})
    assert row.medians() == [2.0, 3.0]
    assert row.ratio == 1.5
    assert row.line() == (
        "| topics, pipelined | 2.000 (1.000-9.000) | 3.000 (2.000-4.000) | 1.50 | +0.088 |"
    )


@pytest.mark.long
@pytest.mark.skipif(shutil.which("cc") is None, reason="the load generator needs a C compiler")
def test_a_short_run(tmp_path: Path) -> None:
    file = tmp_path / "scaling.json"
    done = subprocess.run(
        [
            *(sys.executable, str(FOLDER / "scaling.py"), "--passes", "1", "--most", "100"),
            *("--json", str(file)),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(file.read_text())
    assert len(rows) == 8
    assert {row["dimension"] for row in rows} == {
        "connections",
        "subscriptions",
        "topics",
        "accounts",
    }
    assert len(done.stdout.splitlines()) == 10


def test_one_size_is_nothing_to_compare(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["scaling.py", "--most", "10"])
    assert main() == 2
    assert "at least two sizes" in capsys.readouterr().err
