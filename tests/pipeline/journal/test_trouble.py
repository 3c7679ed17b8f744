"""Nothing waits for the journal: not where rows come too fast, nor where its disk is away."""

from __future__ import annotations

import errno
import io
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import attrs
import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock, wait_all_tasks_blocked

from clearfunds.accounts import Ledger, commit_run
from clearfunds.pipeline._errors import PipelineError
from clearfunds.pipeline.journal import JournalSettings, open_journal
from clearfunds.pipeline.journal._sample import MAX_ROWS
from tests.pipeline.journal.conftest import Box, Scene, files, hidden, rows, sums

ALL = JournalSettings(snapshot_every=None, rows_per_second=None)
MODULE = "clearfunds.pipeline.journal._journal"


class Disk:
    """A disk that can be full, and slow."""

    def __init__(self) -> None:
        self.error: int | None = None
        self.moves = threading.Event()
        self.moves.set()

    def open(self, path: Path) -> io.FileIO:
        disk = self

        class File(io.FileIO):
            def write(self, data: object, /) -> int:
                disk.moves.wait()
                if disk.error is not None:
                    raise OSError(disk.error, os.strerror(disk.error))
                return super().write(data)  # type: ignore[arg-type] # pyright: ignore

        return File(path, "x")


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk()
    yield disk
    disk.moves.set()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look, and try again, sooner than any disk would like."""
    monkeypatch.setattr(f"{MODULE}.TICK", 0.05)
    monkeypatch.setattr(f"{MODULE}.RETRY", (0.05, 0.1))


async def until(found: Callable[[], bool]) -> None:
    with trio.fail_after(20):
        while not found():  # noqa: ASYNC110
            await trio.sleep(0.02)


def told(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    """Return the lines of an event."""
    return [r.getMessage() for r in caplog.records if getattr(r, "event", None) == event]


def settle(scene: Scene, count: int) -> None:
    for _ in range(count):
        scene.alice.lend("", nbytes=3).settle()


async def test_of_more_than_is_allowed_a_sample_is_kept(
    tmp_path: Path, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    scene = Scene(Ledger(clock=trio.current_time))
    chosen = attrs.evolve(ALL, rows_per_second=1_000)
    kept: list[int] = []
    async with open_journal(scene.ledger, tmp_path, chosen, random=Random(5)) as journal:

        def of(second: int) -> int:
            figures = journal.figures()
            return 20_000 * second - figures.sampled_out["settlements"]

        for second in range(1, 11):
            settle(scene, 20_000)
            kept.append(of(second) - sum(kept))
            await wait_all_tasks_blocked()
            mock_clock.jump(1)
            await wait_all_tasks_blocked()
            await journal.flush()
        # Ever fewer within the first second, and as many as are allowed from then on.
        assert kept[0] < 7_000
        assert sum(kept[1:]) == pytest.approx(9_000, rel=0.1)
        assert journal.figures().one_in == 20
        (line,) = told(caplog, "journal_samples")
        assert "more than 1,000 rows a second" in line
        assert "--journal-rows-per-second allows more" in line
        for _ in range(12):
            settle(scene, 500)
            await wait_all_tasks_blocked()
            mock_clock.jump(1)
            await wait_all_tasks_blocked()
            await journal.flush()
        assert journal.figures().one_in == 1
        (line,) = told(caplog, "journal_keeps_all")
        assert "keeps every row again; in 10 s it did not keep" in line
    items, nbytes = sums(tmp_path)
    assert items == pytest.approx(200_000 + 6_000, rel=0.05)
    assert nbytes == 3 * items
    found = rows(tmp_path, "settlements")
    assert len(found) == journal.figures().written["settlements"].rows
    assert len(found) + journal.figures().sampled_out["settlements"] == 206_000
    assert {row["weight"] for row in found} >= {1.0, 20.0}


async def test_a_sample_of_what_is_delivered_together(tmp_path: Path) -> None:
    """Nine subscribers who get everything at once; each is stood for."""
    scene = Scene(Ledger())
    boxes = [Box(scene.ledger, f"subscriber {number}") for number in range(9)]
    chosen = attrs.evolve(ALL, rows_per_second=500)
    async with open_journal(scene.ledger, tmp_path, chosen, random=Random(5)) as journal:
        for number in range(6_000):
            scene.alice.borrow(9, 27)
            now = scene.ledger.clock()
            assert scene.ledger.recorder is not None
            scene.ledger.recorder.delivered(scene.alice, [(box, 1, 3, now) for box in boxes])
            scene.alice.repay(9, 27, holder=boxes[0], lent=True, recorded=True)
            if not number % 500:
                await trio.lowlevel.checkpoint()
        assert journal.figures().one_in > 4
    assert not scene.alice.debt_items
    found = rows(tmp_path, "settlements")
    assert len(found) < 6_000
    assert sum(row["weight"] for row in found) == pytest.approx(54_000, rel=0.1)
    assert {row["outcome"] for row in found} == {"delivered"}
    for box in boxes:
        mine = sum(row["weight"] for row in found if row["holder"] == box.name)
        assert mine == pytest.approx(6_000, rel=0.3)


async def test_a_slow_disk_holds_nobody_up(
    tmp_path: Path, disk: Disk, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(Ledger())
    settings = attrs.evolve(ALL, roll_every=0.01)
    async with open_journal(
        scene.ledger, tmp_path, settings, opener=disk.open, random=Random(5)
    ) as journal:
        disk.moves.clear()
        settle(scene, 1)
        await until(lambda: bool(hidden(tmp_path)))
        slowest = 0.0
        for _ in range(40):
            settle(scene, 5_000)
            began = time.monotonic()
            await trio.lowlevel.checkpoint()
            slowest = max(slowest, time.monotonic() - began)
            assert journal.figures().waiting["settlements"] <= MAX_ROWS + 5_000
        assert journal.figures().one_in > 1
        (line,) = told(caplog, "journal_samples")
        assert "is not written as fast as rows come" in line
        disk.moves.set()
        await until(lambda: journal.figures().one_in == 1)
    assert not hidden(tmp_path)
    items, _ = sums(tmp_path)
    assert items == pytest.approx(200_001, rel=0.05)
    assert journal.figures().errors == 0


@pytest.mark.parametrize(
    ("error", "sentence", "advice"),
    [
        (errno.ENOSPC, "No space left on device", "make room on its disk"),
        (errno.EROFS, "Read-only file system", "make its disk writable"),
        (errno.EIO, "Input/output error", "check its disk"),
    ],
)
async def test_a_disk_that_takes_nothing(
    tmp_path: Path,
    disk: Disk,
    quick: None,
    caplog: pytest.LogCaptureFixture,
    error: int,
    sentence: str,
    advice: str,
) -> None:
    caplog.set_level(logging.INFO)
    scene = Scene(Ledger())
    settings = attrs.evolve(ALL, roll_every=0.01)
    async with open_journal(scene.ledger, tmp_path, settings, opener=disk.open) as journal:
        settle(scene, 10)
        await until(lambda: len(files(tmp_path, "settlements")) == 1)
        disk.error = error
        settle(scene, 20)
        await until(lambda: journal.figures().errors >= 3)
        settle(scene, 30)
        with pytest.raises(PipelineError, match=sentence):
            await journal.flush()
        (line,) = told(caplog, "journal_fails")
        assert f"cannot be written ({sentence}); the relay goes on" in line
        assert advice in line
        assert not hidden(tmp_path)
        disk.error = None
        await until(lambda: bool(told(caplog, "journal_writes")))
        await until(lambda: journal.figures().waiting["settlements"] == 0)
        settle(scene, 40)
    written = journal.figures().written["settlements"]
    assert len(rows(tmp_path, "settlements")) == written.rows == 100 - written.lost
    # What a file had taken before it could take no more went with it; the rest was kept.
    assert written.lost <= 50


async def test_a_folder_that_is_gone_and_comes_back(
    tmp_path: Path, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(Ledger())
    folder = tmp_path / "journal"
    settings = attrs.evolve(ALL, roll_every=0.01)
    async with open_journal(scene.ledger, folder, settings) as journal:
        shutil.rmtree(folder)
        settle(scene, 10)
        await until(lambda: journal.figures().errors >= 2)
        assert not folder.exists()
        (line,) = told(caplog, "journal_fails")
        assert "the directory is gone" in line
        assert "mount its disk, or make the directory" in line
        folder.mkdir()
        await until(lambda: bool(files(folder, "settlements")))
    assert len(rows(folder, "settlements")) == 10


async def test_rows_that_cannot_be_written_are_lost_alone(
    tmp_path: Path, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(Ledger())
    settings = attrs.evolve(ALL, roll_every=0.01)
    labels: list[object] = [["no", "label"], "one"]
    async with open_journal(
        scene.ledger,
        tmp_path,
        settings,
        label=lambda _: labels.pop(0),  # type: ignore[arg-type, return-value] # pyright: ignore
    ) as journal:
        commit_run(scene.alice, [], "run", 1, 0)
        await until(lambda: journal.figures().errors == 1)
        assert "rows of the journal's table publications are lost" in caplog.text
        commit_run(scene.alice, [], "run", 1, 0)
        await until(lambda: bool(files(tmp_path, "publications")))
    assert [row["topic"] for row in rows(tmp_path, "publications")] == ["one"]
    assert journal.figures().written["publications"].lost == 1


async def test_a_disk_that_never_comes_back_does_not_hold_up_the_end(
    tmp_path: Path,
    disk: Disk,
    quick: None,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"{MODULE}.FINISH_SECONDS", 0.2)
    scene = Scene(Ledger())
    began = time.monotonic()
    async with open_journal(
        scene.ledger, tmp_path, attrs.evolve(ALL, roll_every=0.01), opener=disk.open
    ):
        disk.moves.clear()
        settle(scene, 7)
        await until(lambda: bool(hidden(tmp_path)))
    assert time.monotonic() - began < 10
    (line,) = told(caplog, "journal_incomplete")
    assert "could not be written within 0.2 s, and are lost" in line
    disk.moves.set()


async def test_what_waits_for_a_thread_when_all_ends_is_not_lost(
    scene: Scene, tmp_path: Path, quick: None
) -> None:
    limiter = trio.to_thread.current_default_thread_limiter()
    with trio.CancelScope() as scope:
        async with open_journal(scene.ledger, tmp_path, ALL) as journal:
            others = [object() for _ in range(int(limiter.available_tokens))]
            for each in others:
                limiter.acquire_on_behalf_of_nowait(each)
            settle(scene, 5)
            await until(lambda: limiter.statistics().tasks_waiting > 0)
            settle(scene, 2)
            assert journal.figures().waiting["settlements"] == 7
            scope.cancel()
            for each in others:
                limiter.release_on_behalf_of(each)
    assert len(rows(tmp_path, "settlements")) == 7
