"""`--journal-keep`: the oldest files go, whole, and never one that is being written or read."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest
import trio

from clearfunds._cli._app import read_arguments
from clearfunds._cli._errors import UsageError
from clearfunds.pipeline.journal import JournalSettings
from clearfunds.pipeline.journal._housekeeping import keep_house
from clearfunds.pipeline.journal._keep import Deleted, delete_old
from clearfunds.pipeline.journal._lock import reading
from tests.pipeline.journal.small_files import BEGIN, SECOND, there, write_small

HOUR = 3600 * SECOND


@pytest.fixture
def files(tmp_path: Path) -> list[list[Path]]:
    """Write four hours of two files."""
    return [write_small(tmp_path, pieces=2, begin=BEGIN + at * HOUR) for at in range(4)]


def at(hours: float) -> float:
    return BEGIN / SECOND + hours * 3600


def test_by_age(tmp_path: Path, files: list[list[Path]]) -> None:
    assert delete_old(tmp_path, now=at(2.9), seconds=7200.0, nbytes=None) == Deleted()
    result = delete_old(tmp_path, now=at(4), seconds=7200.0, nbytes=None)
    assert (result.files, result.until) == (4, at(2))
    assert [path.exists() for hour in files for path in hour] == [False] * 4 + [True] * 4
    assert not files[0][0].parent.exists()
    assert files[2][0].parent.exists()


def test_by_size(tmp_path: Path, files: list[list[Path]]) -> None:
    sizes = [sum(path.stat().st_size for path in hour) for hour in files]
    most = sum(sizes[2:])
    result = delete_old(tmp_path, now=at(10), seconds=None, nbytes=most)
    assert (result.files, result.bytes) == (4, sum(sizes[:2]))
    assert [path.exists() for hour in files for path in hour] == [False] * 4 + [True] * 4
    assert delete_old(tmp_path, now=at(10), seconds=None, nbytes=most).files == 0


def test_of_the_present_hour_file_by_file(tmp_path: Path, files: list[list[Path]]) -> None:
    first, second = files[3]
    result = delete_old(tmp_path, now=at(3.5), seconds=None, nbytes=second.stat().st_size)
    assert result.files == 7
    assert (first.exists(), second.exists()) == (False, True)


def test_what_is_hidden_or_foreign_stays(tmp_path: Path, files: list[list[Path]]) -> None:
    hour = files[0][0].parent
    for name in (".part-1.parquet", "_part-2.parquet", "mine.parquet", "part-1.parquet"):
        (hour / name).write_bytes(b"mine")
    (tmp_path / "settlements" / "old.parquet").write_bytes(b"mine")
    delete_old(tmp_path, now=at(100), seconds=1.0, nbytes=None)
    assert there(tmp_path) == [
        ".part-1.parquet", "_part-2.parquet", "mine.parquet", "part-1.parquet"
    ]  # fmt: skip
    assert (tmp_path / "settlements" / "old.parquet").exists()


def test_it_waits_for_readers(tmp_path: Path, files: list[list[Path]]) -> None:
    with reading(tmp_path):
        assert delete_old(tmp_path, now=at(100), seconds=1.0, nbytes=None) == Deleted(waits=True)
    assert all(path.exists() for hour in files for path in hour)


async def test_a_relay_does_it_by_itself(
    tmp_path: Path, files: list[list[Path]], caplog: pytest.LogCaptureFixture
) -> None:
    now = int(time.time())
    fresh = write_small(tmp_path, begin=(now - now % 3600) * SECOND)
    caplog.set_level(logging.INFO, "clearfunds.journal")
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_house, tmp_path, JournalSettings(keep_seconds=86_400.0), 0.01)
            while len(there(tmp_path)) != len(fresh):  # noqa: ASYNC110
                await trio.sleep(0.01)
            while not caplog.records:  # noqa: ASYNC110
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    (line,) = [r for r in caplog.records if getattr(r, "event", "") == "journal_deleted"]
    assert line.getMessage().startswith(f"8 files of the journal in {tmp_path}, up to 2025-10-09")
    assert all(path.exists() for path in fresh)


@pytest.mark.parametrize(
    ("options", "seconds", "nbytes"),
    [
        ([], None, None),
        (["7d"], 604_800.0, None),
        (["10GB"], None, 10**10),
        (["2h", "1.5GiB", "90min"], 5400.0, 3 << 29),
    ],
)
def test_the_option(options: list[str], seconds: float | None, nbytes: int | None) -> None:
    from clearfunds._cli._bounds import least_age, least_size

    argv = ["relay", *(f"--journal-keep={option}" for option in options)]
    bounds = read_arguments(argv)["journal"].journal_keep if options else ()
    assert (least_age(bounds), least_size(bounds)) == (seconds, nbytes)


@pytest.mark.parametrize("wrong", ["7", "7x", "0d", "-1d", "GB", "none"])
def test_what_is_no_bound(wrong: str) -> None:
    with pytest.raises(UsageError, match="is neither an age"):
        read_arguments(["relay", f"--journal-keep={wrong}"])
