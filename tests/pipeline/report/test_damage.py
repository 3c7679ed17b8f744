"""A damaged file of a journal is named in one sentence, and left out or fatal; by both engines."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearfunds._cli import run
from clearfunds.pipeline._arrow import arrow
from clearfunds.pipeline.journal import TABLES
from clearfunds.pipeline.journal._damage import find_damage, why_damaged
from clearfunds.pipeline.journal._listing import folders
from clearfunds.pipeline.journal._place import Place
from clearfunds.pipeline.ledger._read import damaged, remote
from tests.pipeline.journal.small_files import BEGIN, SECOND, settlements, write_file, write_small

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR = 3600 * SECOND
NUMBERS = count()


def truncated(content: bytes) -> bytes:
    return content[: len(content) // 2]


def empty(_: bytes) -> bytes:
    return b""


def text(_: bytes) -> bytes:
    return b"mqtt: this is no Parquet at all\n" * 20


def flipped(content: bytes) -> bytes:
    at = len(content) // 3
    return content[:at] + bytes([content[at] ^ 16]) + content[at + 1 :]


def flipped_at_the_end(content: bytes) -> bytes:
    return content[:-20] + bytes([content[-20] ^ 1]) + content[-19:]


def of_something_else(_: bytes) -> bytes:
    pa = arrow()
    sink = pa.BufferOutputStream()
    arrow("pyarrow.parquet").write_table(pa.table({"price": [1, 2]}), sink)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def of_other_types(_: bytes) -> bytes:
    pa = arrow()
    sink = pa.BufferOutputStream()
    columns = {field.name: ["x"] for field in TABLES["settlements"].schema}
    arrow("pyarrow.parquet").write_table(pa.table(columns), sink)
    found: bytes = sink.getvalue().to_pybytes()
    return found


#: By the damage, what is said of it: with a checksum in the file's name, and without.
KINDS: dict[Callable[[bytes], bytes], tuple[str, str]] = {
    truncated: ("is truncated: it has", "is truncated: it has"),
    empty: ("is empty", "is empty"),
    text: ("is no Parquet file", "is no Parquet file"),
    flipped: ("is damaged: the checksum of its bytes is", "is damaged: "),
    flipped_at_the_end: ("is damaged: the checksum of its bytes is", "is damaged: "),
    of_something_else: ("is damaged: the checksum", "is no file of settlements: it has no column"),
    of_other_types: ("is damaged: the checksum", "is no file of settlements: its column settled"),
}


@pytest.fixture
def elsewhere(spark: SparkSession) -> Callable[[Path], str]:
    """Return what gives a folder the URL of a file system that only Spark knows."""

    def url(folder: Path) -> str:
        server = f"s{next(NUMBERS)}"  # Hadoop keeps what it knows of one
        context: Any = spark.sparkContext
        mounted = f"fs.viewfs.mounttable.{server}.link./{folder.name}"
        context._jsc.hadoopConfiguration().set(mounted, folder.as_uri())
        return f"viewfs://{server}/{folder.name}"

    return url


def test_spark_finds_elsewhere_what_is_found_here(
    spark: SparkSession, elsewhere: Callable[[Path], str], tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    url = elsewhere(journal)
    kinds = [*KINDS, bytes]
    for number, path in enumerate(write_small(journal, pieces=2 * len(kinds))):
        path.write_bytes(kinds[number // 2](path.read_bytes()))
        if number % 2:
            path.rename(path.with_name(f"part-20251009T090000.000000-1-{number:06}.parquet"))
    entries = remote(spark)
    assert entries is not None
    some = folders(Place(url, url, None), "settlements", None, entries)
    there = damaged(spark, "settlements", some)
    here = find_damage({"settlements": map(str, journal.rglob("*.parquet"))})
    # Without a checksum in the name, a flipped bit in the footer may pass.
    assert len(there) == len(here) >= 2 * len(KINDS) - 1
    assert {str(each).replace(url, str(journal)) for each in there} == set(map(str, here))


@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize(
    ("damage", "engine"),
    [
        *((each, "local") for each in KINDS),
        *(pytest.param(each, "spark", marks=pytest.mark.long) for each in KINDS),
        pytest.param(flipped, "elsewhere", marks=pytest.mark.long),
    ],
)
def test_each_kind(
    damage: Callable[[bytes], bytes],
    engine: str,
    elsewhere: Callable[[Path], str],
    tmp_path: Path,
    capsys: Any,
) -> None:
    journal, out = tmp_path / "journal", tmp_path / "out"
    where = elsewhere(journal) if engine == "elsewhere" else str(journal)
    files = write_small(journal)
    said = KINDS[damage]
    files[2].write_bytes(damage(files[2].read_bytes()))
    old = files[4].rename(files[4].with_name("part-20251009T090000.000000-1-000009.parquet"))
    sound = old.read_bytes()
    command = ["report", where, "--out", str(out)]
    command += ["--engine", engine.replace("elsewhere", "spark")]
    if damage is not flipped_at_the_end:
        # Nothing but a checksum of the whole file finds some of these.
        old.write_bytes(damage(sound))
    assert run([*command, "--damaged", "fail"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert told.err.startswith("clearfunds report: ")
    assert "--damaged skip" in told.err
    assert not (out / "report.html").exists()
    if engine == "spark" and damage not in (flipped, truncated):
        return  # the files were chosen before Spark began: what follows is the same
    assert run(command) == 0
    told = capsys.readouterr()
    kept = 50 if damage is flipped_at_the_end else 40
    assert f": {kept} settlements, " in told.out
    lines = sorted(told.err.splitlines())
    assert len(lines) == (60 - kept) // 10
    for path, why in ((files[2], said[0]), (old, said[1])):
        if path is old and damage is flipped_at_the_end:
            continue
        name = str(path).replace(str(journal), where)
        assert any(f"left out: {name} {why}" in line for line in lines)
        page = (out / "report.html").read_text("utf-8")
        assert f"{path.name} {why}" in page


@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=pytest.mark.long)])
@pytest.mark.usefixtures("ours")
def test_hours_that_are_not_asked_for_are_not_read(
    engine: str, tmp_path: Path, capsys: Any
) -> None:
    journal, out = tmp_path / "journal", tmp_path / "out"
    for hour in range(4):
        for path in write_small(journal, begin=BEGIN + hour * HOUR):
            if hour < 2:
                path.write_bytes(b"nobody reads this")
    # In no folder of an hour, as an old journal was copied.
    write_file(settlements(3, BEGIN + 2 * HOUR + 60 * SECOND), journal / "settlements", 99)
    command = ["report", str(journal), "--out", str(out), "--engine", engine]
    # 59 s of the last hour, and of the one before: all but its first second, and the three.
    assert run([*command, "--last", "3658s", "--damaged", "fail"]) == 0
    told = capsys.readouterr()
    assert ": 122 settlements, " in told.out
    assert told.err == ""
    assert run([*command, "--last", "30", "--damaged", "fail"]) == 0
    assert ": 31 settlements, " in capsys.readouterr().out


def test_nothing_but_damage(tmp_path: Path, capsys: Any) -> None:
    journal = tmp_path / "journal"
    (path,) = write_small(journal, pieces=1)
    path.write_bytes(b"")
    assert run(["report", str(journal), "--out", str(tmp_path / "out"), "--engine", "local"]) == 1
    assert f"nothing to read in the journal {journal}: {path} is empty" in capsys.readouterr().err


@pytest.fixture(scope="module")
def one_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("journal"), pieces=1)[0]


@given(at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_any_flipped_bit_is_found(one_file: Path, at: float, bit: int) -> None:
    content = bytearray(one_file.read_bytes())
    content[int(at * len(content))] ^= 1 << bit
    copy = one_file.parent / "copy" / one_file.name
    copy.parent.mkdir(exist_ok=True)
    copy.write_bytes(content)
    assert why_damaged(TABLES["settlements"], str(copy)) is not None
    assert why_damaged(TABLES["settlements"], str(one_file)) is None
