"""`clearfunds report` of journals that are given by a URL."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from clearfunds._cli import run
from clearfunds.pipeline._arrow import arrow
from tests.pipeline.conftest import needs_spark
from tests.pipeline.report import overload, storage
from tests.ports import lasting_port

SETTLEMENTS = 25_200
COMMAND = (sys.executable, "-m", "clearfunds", "report")
SMALL = ("--spark-conf", "spark.driver.memory=512m", "--spark-conf", "spark.executor.memory=512m")


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A journal with something in it."""
    folder = tmp_path / "journal"
    overload.write(folder)
    return folder


def tables(out: Path) -> dict[str, list[Any]]:
    """Return the rows of some tables of a report."""
    read = arrow("pyarrow.parquet").read_table
    return {
        name: sorted(map(str, read(str(out / "tables" / f"{name}.parquet")).to_pylist()))
        for name in ("overview", "peak_debt", "hold", "stall_time", "tenants")
        if (out / "tables" / f"{name}.parquet").exists()
    }


def report(url: str, out: Path, *options: str) -> dict[str, list[Any]]:
    """Run the command as a user does, and return the tables that it wrote."""
    done = subprocess.run(
        [*COMMAND, url, "--out", str(out), *options],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{SETTLEMENTS:,} settlements, 1 limit to change (Spark)" in done.stdout
    return tables(out)


def refused(url: str, *options: str) -> str:
    """Run the command, which fails, and return the one line that it says."""
    done = subprocess.run(
        [*COMMAND, url, *options], capture_output=True, text=True, timeout=900, check=False
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    return done.stderr


@needs_spark
def test_a_file_url(journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("duckdb")
    out = tmp_path / "out"
    assert run(["report", journal.as_uri(), "--out", str(out)]) == 0
    assert f"{SETTLEMENTS:,} settlements" in capsys.readouterr().out
    assert run(["report", f"{journal.as_uri()}-not"]) == 1
    assert f"the journal {journal.as_uri()}-not is not there" in capsys.readouterr().err


@pytest.mark.long
@needs_spark
def test_a_file_system_that_spark_does_not_have() -> None:
    said = refused("s3a://journals/journal")
    assert said.startswith("clearfunds report: Spark has no file system for s3a:// here; name the ")
    assert "--spark-conf spark.jars.packages=org.apache.hadoop:hadoop-aws:3." in said


@needs_spark
@pytest.mark.long  # It starts a JVM of its own, which `test_command.py` does, too.
def test_a_server_that_is_not_there() -> None:
    url = f"hdfs://127.0.0.1:{lasting_port()}/journal"
    said = refused(url, "--spark-conf", "spark.hadoop.ipc.client.connect.max.retries=0")
    assert said.startswith(f"clearfunds report: the journal {url} could not be read: Connect")


def test_a_setting_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "hdfs://h/j", "--spark-conf", "master=local"]) == 2
    assert '"master=local" is not a setting of Spark' in capsys.readouterr().err


@pytest.mark.long  # HDFS, a cluster of four JVMs, and a report: minutes
@needs_spark
def test_hdfs_and_a_cluster(journal: Path, tmp_path: Path) -> None:
    here = report(str(journal), tmp_path / "here", "--engine", "spark")
    with storage.hdfs(tmp_path / "hdfs") as store:
        assert "there is nothing in the journal" in refused(store.url)
        store.put(journal)
        assert report(store.url, tmp_path / "hdfs-out", *SMALL, "--last", "60min") == here
        with storage.standalone(tmp_path / "spark") as master:
            cluster = ("--spark-conf", f"spark.master={master}", *SMALL)
            assert report(store.url, tmp_path / "cluster-out", *cluster) == here


@pytest.mark.long
@needs_spark
def test_an_object_store(journal: Path, tmp_path: Path) -> None:
    here = report(str(journal), tmp_path / "here", "--engine", "spark")
    with storage.s3(tmp_path / "s3") as store:
        store.put(journal)
        assert report(store.url, tmp_path / "s3-out", *store.options(), *SMALL) == here
        said = refused("s3a://nowhere/journal", *store.options())
        assert said.startswith("clearfunds report: the journal s3a://nowhere/journal could not be ")
