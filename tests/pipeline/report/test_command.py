"""`clearfunds report`: what is said where there is none to be had, and the report of a journal."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import tomllib
from typing import TYPE_CHECKING, Any

import pytest

from clearfunds._cli import run
from clearfunds.pipeline._arrow import arrow
from clearfunds.pipeline.report._compute import TABLES
from tests.pipeline.conftest import needs_spark
from tests.pipeline.report import overload

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Said = Callable[..., str]


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Said:
    """Return what calls the command, which cannot do it, and gives the one line that it says."""

    def call(*options: str, status: int = 1, engine: str = "spark") -> str:
        engines = ["--engine", engine] if engine else []
        assert run(["report", *options, *engines, "--out", str(tmp_path / "out")]) == status
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.count("\n") == 1
        assert said.err.startswith("clearfunds report: ")
        assert not (tmp_path / "out" / "report.html").exists()
        return said.err

    return call


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A journal with something in it."""
    folder = tmp_path / "journal"
    overload.write(folder)
    return folder


def test_no_directory(refused: Said, tmp_path: Path) -> None:
    said = refused(str(tmp_path / "nowhere"))
    assert f"{tmp_path / 'nowhere'} is not there; give the folder that `clearfunds relay" in said
    file = tmp_path / "file"
    file.write_text("")
    assert f"{file} is a file, not a folder" in refused(str(file), "--follow")


@needs_spark
def test_an_empty_directory(refused: Said, tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    folder.mkdir()
    assert f"there is nothing in the journal {folder} yet" in refused(str(folder))
    hidden = folder / "settlements" / "date=2026-11-21" / "hour=14"
    hidden.mkdir(parents=True)
    (hidden / ".part-1.parquet").write_bytes(b"half of")
    assert "there is nothing in the journal" in refused(str(folder))


@needs_spark
def test_nowhere_to_write_to(refused: Said, journal: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    said = refused(str(journal))
    assert f"cannot write to {tmp_path / 'out'}" in said
    assert "--out" in said


def test_no_java(
    refused: Said, journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "there is no Java here, and Spark needs one: install Java 17" in refused(str(journal))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert "JAVA_HOME is" in refused(str(journal))


def test_the_wrong_java(
    refused: Said, journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark")
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert "is Java 11, too old for Spark; install Java 17" in refused(str(journal))


def test_no_pyspark(refused: Said, journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert 'pyspark is not installed here, and Spark needs it: pip install "clearfunds' in refused(
        str(journal)
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--target", "soon"], '"soon" is not a length of time'),
        (["--target", "0"], "--target"),
        (["--target", "100MiB"], "is not a length of time"),
        (["--margin", "1.5"], "--margin"),
        (["--every", "0.1"], "--every"),
        (["--last", "-1"], "--last"),
        (["--folow"], "--follow"),
    ],
)
def test_called_wrongly(options: list[str], said: str, refused: Said, tmp_path: Path) -> None:
    assert said in refused(str(tmp_path), *options, status=2)


def test_without_a_directory(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report"]) == 2
    assert "DIRECTORY" in capsys.readouterr().err


def test_no_duckdb(refused: Said, journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    said = refused(str(journal), engine="local")
    assert "the local engine needs DuckDB" in said
    assert "pip install 'clearfunds[report]'" in said


def test_neither_engine(
    refused: Said, journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    said = refused(str(journal), "--local-up-to", "1000", engine="auto")
    assert "there is no Java here" in said
    assert "or --engine local, for its" in said
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert 'or the local engine: pip install "clearfunds[report]"' in refused(
        str(journal), engine="auto"
    )


def test_elsewhere(refused: Said) -> None:
    said = refused("s3a://bucket/journal", engine="local")
    assert "the local engine reads journals on this machine" in said


@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize(("engine", "name"), [("spark", "Spark"), ("local", "DuckDB")])
def test_a_report(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: str, name: str
) -> None:
    out = tmp_path / "out"
    options = ["--out", str(out), "--target", "200ms", "--engine", engine]
    assert run(["report", str(journal), *options]) == 0
    said = capsys.readouterr()
    assert said.out == f"{out / 'report.html'}: 25,200 settlements, 1 limit to change ({name})\n"
    assert said.err == ""
    page = (out / "report.html").read_text("utf-8")
    assert f"Computed by {name}." in page
    assert "archive</span></bdi> held 100 % of all that was owed" in page
    assert "weather/&lt;b&gt;7&lt;/b&gt;" in page
    tables = {path.stem: path for path in (out / "tables").glob("*.parquet")}
    assert set(tables) == set(TABLES)
    read = arrow("pyarrow.parquet").read_table

    def rows(name: str) -> list[dict[str, Any]]:
        return list(read(str(tables[name])).to_pylist())

    (overview,) = rows("overview")
    assert (overview["items"], overview["bytes"]) == (25_200.0, 25_200_000.0)
    assert (overview["accounts"], overview["holders"]) == (2, 2)
    assert overview["began_ns"] == overload.BEGAN_NS
    stalls = [{"account": overload.TICKER, "culprit": overload.ARCHIVE, "stalls": 14}]
    assert rows("stall_time") == [{**stalls[0], "seconds": 7.0}]
    assert {row["account"] for row in rows("peak_debt")} == {overload.TICKER, overload.STATION}
    assert {row["tenant"] for row in rows("tenants")} == {overload.TICKER, overload.STATION}
    (limit,) = tomllib.loads((out / "limits.toml").read_text())["relay"]["account_limit"]
    account, _, amounts = limit.rpartition("=")
    assert account == overload.TICKER
    items, nbytes = map(int, amounts.split(","))
    # The archive takes 100 a second when it is slow: of what comes in 200 ms, these.
    assert 5 <= items <= 40
    assert 5_000 <= nbytes <= 40_000


@pytest.mark.long
@pytest.mark.usefixtures("ours")
def test_followed_until_it_is_stopped(journal: Path, tmp_path: Path) -> None:
    from clearfunds.pipeline.report import Engines, Written, follow_report

    stopped = threading.Event()
    seen: list[Written] = []
    files = sorted((journal / "settlements").rglob("*.parquet"))
    moved = [path.rename(path.with_name(f".{path.name}")) for path in files]

    def written(one: Written) -> None:
        seen.append(one)
        stopped.set()

    def note(what: str) -> None:
        if what.startswith("waiting for the journal's first file"):
            for path in moved:
                path.rename(path.with_name(path.name.removeprefix(".")))

    follow_report(
        journal,
        tmp_path / "out",
        engines=Engines(engine="spark"),
        last=3600.0,
        every=1.0,
        progress=note,
        written=written,
        stopped=stopped,
    )
    assert [(one.settlements, one.again) for one in seen] == [(25_200, False)]
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert '<meta http-equiv="refresh" content="1">' in page


@pytest.mark.parametrize(
    "engine", ["local", pytest.param("spark", marks=[pytest.mark.long, needs_spark])]
)
def test_ctrl_c_ends_it_in_good_order(journal: Path, tmp_path: Path, engine: str) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "clearfunds", "report", str(journal), "--follow"]
    with subprocess.Popen(
        [*command, "--out", str(out), "--threads", "2", "--every", "1", "--engine", engine],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(f"{out / 'report.html'}: 25,200 settlements")
        process.send_signal(signal.SIGINT)
        said, log = process.communicate(timeout=120)
    assert (process.returncode, said, log) == (0, "", "")
    assert not list(out.glob(".*"))
