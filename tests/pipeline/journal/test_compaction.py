"""Many small files become few: the rows stay, whoever reads meanwhile, wherever it is killed."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from clearfunds._cli import run
from clearfunds.pipeline._arrow import arrow
from clearfunds.pipeline.journal import JournalSettings
from clearfunds.pipeline.journal._compact import DATED_BACK, Compacted, alone, compact
from clearfunds.pipeline.journal._housekeeping import keep_house
from clearfunds.pipeline.journal._lock import reading
from clearfunds.pipeline.journal._names import Name, current, parse
from clearfunds.pipeline.ledger import read, read_stream
from tests.pipeline.journal.small_files import BEGIN, RUN, SECOND, seen, there, write_small

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

LATER = BEGIN / SECOND + 7200.0
ALL = list(range(60))


def merge(folder: Path, max_bytes: int = 1 << 20, before: float = LATER) -> Compacted:
    with alone(folder) as nobody_else:
        assert nobody_else
        return compact(folder, before=before, max_bytes=max_bytes, patience=0.0)


def test_the_files_of_an_hour_become_one(tmp_path: Path) -> None:
    before = write_small(tmp_path)
    write_small(tmp_path, begin=BEGIN + 3600 * SECOND)
    newest = max(path.stat().st_mtime for path in before)
    assert len(there(tmp_path)) == 12
    result = merge(tmp_path, before=BEGIN / SECOND + 3600)
    assert (result.files, result.into, result.damaged, result.waits) == (6, 1, [], 0)
    (merged,) = before[0].parent.iterdir()
    assert merged.name.startswith(f"part-{RUN}-000001+000006.")
    assert merged.stat().st_mode & 0o777 == 0o640
    # So that no stream takes it for a new one.
    assert merged.stat().st_mtime == pytest.approx(newest - DATED_BACK, abs=1)
    assert seen(tmp_path) == sorted(2 * ALL)
    assert merge(tmp_path, before=BEGIN / SECOND + 3600).files == 0
    table = arrow("pyarrow.parquet").ParquetFile(merged).read()
    assert table["items"].to_pylist() == ALL


def test_a_merged_file_has_a_size_and_one_run(tmp_path: Path) -> None:
    files = write_small(tmp_path)
    other = RUN.replace("4711", "5000")
    write_small(tmp_path, run=other)
    size = 7 * files[0].stat().st_size // 2
    assert merge(tmp_path, max_bytes=size).into == 4
    names = [parse(name) for name in there(tmp_path)]
    assert [(n.run, n.first, n.last) for n in names if n is not None] == [
        (RUN, 1, 3), (RUN, 4, 6), (other, 1, 3), (other, 4, 6)
    ]  # fmt: skip
    assert seen(tmp_path) == sorted(2 * ALL)


def test_names_say_who_stands_for_whom() -> None:
    one, both = Name(RUN, 1, 1, 7), Name(RUN, 1, 2, 8)
    assert both.stands_for(one)
    assert not one.stands_for(both)
    assert not both.stands_for(both)
    assert not both.stands_for(Name(RUN, 3, 3, 9))
    assert not both.stands_for(Name("20251009T090000.000000-1", 1, 1))
    assert current([str(one), str(both), ".hidden.parquet", "_x.parquet", "mine.parquet", "x"]) == [
        "mine.parquet",
        str(both),
    ]
    old = f"part-{RUN}-000012.parquet"
    assert str(parse(old)) == old
    assert parse("part-1.parquet") is None


class Killed(BaseException):
    """Ends everything, as a kill does: nothing that should come afterwards happens."""


def test_a_kill_at_any_step_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = tmp_path / "origin"
    write_small(origin)
    steps = 0

    def dying(real: Callable[..., object]) -> Callable[..., object]:
        def step(*args: object, **kwargs: object) -> object:
            nonlocal steps
            if steps == 0:
                raise Killed
            steps -= 1
            return real(*args, **kwargs)

        return step

    survived = 0
    for survived in range(100):
        folder = tmp_path / f"journal {survived}"
        shutil.copytree(origin, folder)
        steps = survived
        with monkeypatch.context() as patch:
            for owner, name in (
                (Path, "rename"), (Path, "unlink"), (os, "fsync"), (os, "utime"), (os, "fchmod"),
            ):  # fmt: skip
                patch.setattr(owner, name, dying(getattr(owner, name)))
            try:
                merge(folder)
                ended = True
            except Killed:
                ended = False
        assert seen(folder) == ALL
        merge(folder)
        assert seen(folder) == ALL
        assert len(there(folder)) == 1
        shutil.rmtree(folder)
        if ended:
            break
    assert survived > 9  # six files were deleted, and more


def test_a_damaged_merged_file_is_made_again(tmp_path: Path) -> None:
    files = write_small(tmp_path)
    kept = {path: path.read_bytes() for path in files}
    merge(tmp_path)
    (merged,) = files[0].parent.iterdir()
    merged.write_bytes(merged.read_bytes()[:-1])
    for path, content in kept.items():  # it was killed before it deleted them
        path.write_bytes(content)
    merge(tmp_path)
    assert len(there(tmp_path)) == 1
    assert seen(tmp_path) == ALL


def test_damaged_files_stay_where_they_are(tmp_path: Path) -> None:
    files = write_small(tmp_path)
    content = bytearray(files[2].read_bytes())
    content[len(content) // 2] ^= 1
    files[2].write_bytes(content)
    result = merge(tmp_path)
    assert [damage.path for damage in result.damaged] == [str(files[2])]
    assert (result.files, result.into) == (5, 2)
    assert files[2].read_bytes() == content
    assert seen(tmp_path) == [n for n in ALL if not 20 <= n < 30]


def test_it_waits_for_readers(tmp_path: Path) -> None:
    write_small(tmp_path)
    before = there(tmp_path)
    with reading(tmp_path):
        result = merge(tmp_path)
        assert (result.into, result.waits) == (0, 1)
        assert there(tmp_path) == before
    assert merge(tmp_path).into == 1


async def test_a_relay_does_it_by_itself(tmp_path: Path) -> None:
    write_small(tmp_path)
    now = int(time.time())
    fresh = (now - now % 3600) * SECOND
    write_small(tmp_path, begin=fresh)
    settings = JournalSettings(compact_after=3600.0)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_house, tmp_path, settings, 0.01)
            while len(there(tmp_path)) != 7:  # noqa: ASYNC110
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    assert seen(tmp_path) == sorted(2 * ALL)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = write_small(tmp_path)
    assert run(["journal", "compact", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"{tmp_path}: 6 files merged into 1 (")
    assert run(["journal", "verify", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}: 1 files, all is well\n"
    (merged,) = files[0].parent.iterdir()
    merged.write_bytes(b"")
    assert run(["journal", "verify", str(tmp_path)]) == 1
    assert capsys.readouterr().out == f"{merged} is empty\n{tmp_path}: 1 files, 1 damaged\n"
    with alone(tmp_path):
        assert run(["journal", "compact", str(tmp_path)]) == 1
    assert "the relay is merging files" in capsys.readouterr().err


@pytest.mark.long
def test_streams_see_each_row_once(spark: SparkSession, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    write_small(journal)
    write_small(journal, begin=BEGIN + 3600 * SECOND)
    counted: list[int] = []

    def count(rows: DataFrame, _: int) -> None:
        counted.append(rows.count())

    def follow(checkpoint: str) -> int:
        counted.clear()
        query = (
            read_stream(spark, journal)
            .settlements.writeStream.foreachBatch(count)
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        return sum(counted)

    assert follow("old") == 120
    assert merge(journal).into == 2
    assert follow("old") == 0
    write_small(journal, begin=BEGIN + 7200 * SECOND)
    assert follow("old") == 60
    assert follow("new") == 180
    assert read(spark, journal).settlements.count() == 180
