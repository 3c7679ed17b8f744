"""A real process, killed while it writes."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clearfunds.store import Store
from tests.store.writing import SETTINGS, WINDOW, body_of

ROOT = Path(__file__).parents[2]


def live_and_die(directory: Path, seconds: float) -> int:
    """Let a process write for a while, and return how many commits it said were durable."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.store.writing", str(directory)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        said = process.stdout.readline()
        assert said, "it ended by itself"
        time.sleep(seconds)
    finally:
        process.send_signal(signal.SIGKILL)
    lines = [said, *process.stdout]
    process.stdout.close()
    assert process.wait(60) == -signal.SIGKILL
    whole = [line for line in lines if line.endswith("\n")]
    return int(whole[-1])


def check(directory: Path, durable: int) -> None:
    """Look whether what is there is what was there after some commit, no older than `durable`."""
    store = Store.open(directory, SETTINGS)
    assert store.damages == ()
    queue, kept = store.queues["q"], store.queues["kept"]
    commits = queue.next_seq
    assert commits >= durable
    assert store.values() == {"number": b"%d" % (commits - 1)}
    found = store.read(queue.id, 0, count=1000, nbytes=1 << 30)
    expected = range(max(0, commits - WINDOW), commits)
    assert [record.seq for record in found] == list(expected)
    assert all(r.header == b"%d" % r.seq and r.body == body_of(r.seq) for r in found)
    count = at = 0
    while records := store.read(kept.id, at, count=1000, nbytes=1 << 30):
        for record in records:
            assert record.seq == 10 * count
            assert record.body == body_of(record.seq) * 9
            count += 1
        at = records[-1].seq + 1
    assert count == (commits + 9) // 10
    # Killed before it closed anything: as it was at the next start, too.
    store.close()


def rounds(directory: Path, number: int) -> None:
    chance = random.Random(number)
    for _ in range(number):
        check(directory, live_and_die(directory, chance.uniform(0.0, 0.3)))


def test_killed_while_writing(tmp_path: Path) -> None:
    rounds(tmp_path, 4)


@pytest.mark.long
def test_killed_while_writing_a_hundred_times(tmp_path: Path) -> None:
    for number in range(10):
        rounds(tmp_path / str(number), 10)
