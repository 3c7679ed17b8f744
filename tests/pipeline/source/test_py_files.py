"""What is sent to a cluster's machines that have no clearfunds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyspark

from clearfunds.pipeline._errors import PipelineError
from clearfunds.pipeline.py_files import main, write_py_files
from clearfunds.ranges.client import RangeReader, Ticket
from tests.pipeline.conftest import why_no_spark
from tests.pipeline.relays import RelayProcess
from tests.pipeline.source.queries import publish

SITE_PACKAGES = str(Path(pyspark.__file__).parents[1])

QUERY = """\
import sys

from pyspark.sql import SparkSession

relay, folder = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
stream = spark.readStream.format("clearfunds").options(relay=relay, subscription="s")
stream = stream.option("minPartitions", 4).load().writeStream.format("parquet")
stream = stream.option("path", folder + "/out").option("checkpointLocation", folder + "/ck")
stream.trigger(availableNow=True).start().awaitTermination()
rows = spark.read.parquet(folder + "/out")
print("rows", rows.count(), rows.select("offset").distinct().count())
executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
print("executors", executors)
"""


def without_clearfunds(code: str, path: str = SITE_PACKAGES) -> subprocess.CompletedProcess[str]:
    """Run Python with what is installed beside clearfunds, but not clearfunds."""
    return subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_they_are_enough_to_import_it(tmp_path: Path) -> None:
    path = write_py_files(tmp_path / "clearfunds.zip")
    code = (
        "import sys, pyspark_clearfunds\n"
        "source = pyspark_clearfunds.DefaultSource({'relay': 'a:1', 'subscription': 's'})\n"
        "print(source.name(), source.streamReader(source.schema()).getDefaultReadLimit())\n"
        "print(sorted({'attr', 'attrs', 'trio'} & set(sys.modules)))\n"
    )
    assert "No module named" in without_clearfunds(code).stderr
    run = without_clearfunds(code, path=f"{path}{os.pathsep}{SITE_PACKAGES}")
    assert (run.stdout, run.stderr) == ("clearfunds ReadAllAvailable()\n[]\n", "")


def test_where_they_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PipelineError, match=r"must end in \.zip"):
        write_py_files(tmp_path / "clearfunds.tar")
    with pytest.raises(SystemExit, match=r"cannot be written: .*No such file"):
        main([str(tmp_path / "no" / "clearfunds.zip")])
    main([str(tmp_path / "clearfunds.zip")])
    assert capsys.readouterr().out == f"{tmp_path / 'clearfunds.zip'}\n"


@pytest.mark.long
@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]"])
def test_workers_without_clearfunds_read(master: str, tmp_path: Path) -> None:
    why = why_no_spark()
    if why is not None:
        pytest.skip(why)
    write_py_files(tmp_path / "clearfunds.zip")
    (tmp_path / "query.py").write_text(QUERY)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    with RelayProcess() as relay:
        RangeReader("127.0.0.1", relay.ranges, "s", filters=["a/#"]).close()
        publish(relay.mqtt, [b"%d" % number for number in range(4000)])
        submit = [
            *(str(Path(sys.executable).parent / "spark-submit"), "--master", master),
            *("--driver-memory", "768m", "--conf", "spark.executor.memory=512m"),
            *("--conf", "spark.ui.enabled=false", "--conf", "spark.log.level=ERROR"),
            *("--conf", "spark.driver.host=127.0.0.1", "--py-files", "clearfunds.zip"),
        ]
        run = subprocess.run(
            [*submit, "query.py", f"127.0.0.1:{relay.ranges}", str(tmp_path)],
            # By a name that only the driver's processes find: executors have another folder.
            env={
                **os.environ,
                "PYTHONPATH": f"clearfunds.zip{os.pathsep}{SITE_PACKAGES}",
                "PYSPARK_PYTHON": str(python),
                "PYSPARK_DRIVER_PYTHON": str(python),
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert run.returncode == 0, run.stderr[-2000:]
        executors = 2 if "cluster" in master else 0
        assert run.stdout == f"rows 4000 4000\nexecutors {executors}\n"
        with RangeReader.join("127.0.0.1", relay.ranges, Ticket("s")) as reader:
            assert reader.owed().items == 0
