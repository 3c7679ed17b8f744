"""benchmarks/soak.py: a run, and what it makes of what it has seen."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

pytest.importorskip("hdrh")
pytest.importorskip("pyarrow")

from benchmarks.servers import Running
from benchmarks.soak import Look, Soak, flatness, judge, steady, watch

FOLDER = Path(__file__).parents[2] / "benchmarks"


def looks(*mib: float, descriptors: int = 20) -> list[Look]:
    return [
        Look(
            at=10.0 * (place + 1), rss_mib=each, descriptors=descriptors, threads=5, cpu=1.0,
            accounts=1, debt_items=0, balanced=True,
        )
        for place, each in enumerate(mib)
    ]  # fmt: skip


def test_the_warm_up_does_not_count() -> None:
    found = flatness(looks(*([100.0] * 3), *([150.0] * 17)))
    assert found == (150.0, 150.0)
    assert flatness(looks(1.0, 2.0)) is None
    assert flatness([]) is None


@pytest.mark.parametrize(("last", "wrong"), [(104.0, []), (107.0, ["memory has grown by 7.0%"])])
def test_memory_that_grows(last: float, wrong: list[str]) -> None:
    soak = Soak(Running({"mqtt": 1}, 1), 100.0)
    soak.looks = looks(*([100.0] * 12), *([last] * 8))
    judge(soak, soak.looks[0])
    assert [each.split(",")[0] for each in soak.wrong] == wrong


def test_descriptors_that_are_left() -> None:
    soak = Soak(Running({"mqtt": 1}, 1), 100.0)
    soak.looks = looks(*([100.0] * 20), descriptors=40)
    judge(soak, looks(100.0)[0])
    assert soak.wrong == ["20 descriptors at the start, 40 left"]


async def test_a_round_that_fails_and_a_page_that_does_not_answer_end_nothing() -> None:
    soak = Soak(Running({"mqtt": 1}, os.getpid()), 1.5)  # nobody listens there
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch, soak, "http://127.0.0.1:1", 0.1, soak.looks.append)
        await steady(soak)
        nursery.cancel_scope.cancel()
    assert soak.looks == []
    assert any("is a server listening there?" in each for each in soak.wrong)
    assert any(each.startswith("no look at") for each in soak.wrong)


@pytest.mark.long
def test_a_short_one(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, str(FOLDER / "soak.py"), "--minutes", "0.5", "--every", "2"),
            *("--csv", str(tmp_path / "looks.csv")),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all is as it should be" in done.stdout
    with (tmp_path / "looks.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) >= 10
    assert {row["balanced"] for row in rows} == {"True"}
