"""Spark Connect: the source needs no SparkContext, and is found on the server's side."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="pyspark[connect] is not installed")

from clearfunds.ranges.client import RangeReader, Ticket
from tests.pipeline.conftest import why_no_spark
from tests.pipeline.relays import RelayProcess
from tests.pipeline.source.queries import publish

QUERY = """\
import sys

from pyspark.sql import SparkSession

from pyspark_clearfunds import DefaultSource

relay, checkpoint = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
options = {"relay": relay, "subscription": "s"}
print(spark.read.format("clearfunds").options(**options).load().count())
stream = spark.readStream.format("clearfunds").options(maxOffsetsPerTrigger=15, **options).load()
writer = stream.writeStream.format("memory").queryName("t")
query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
query.awaitTermination(120)
print(spark.table("t").count())
spark.dataSource.register(DefaultSource)
print(spark.read.format("clearfunds").options(**options).load().count())
"""


@pytest.mark.long
def test_it_reads_and_is_registered(tmp_path: Path) -> None:
    why = why_no_spark()
    if why is not None:
        pytest.skip(why)
    with RelayProcess() as relay:
        RangeReader("127.0.0.1", relay.ranges, "s", filters=["a/#"]).close()
        publish(relay.mqtt, [b"%d" % number for number in range(40)])
        where = f"127.0.0.1:{relay.ranges}"
        run = subprocess.run(
            [sys.executable, "-c", QUERY, where, str(tmp_path / "checkpoint")],
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        assert run.returncode == 0, run.stderr[-2000:]
        assert run.stdout.split() == ["40", "40", "0"]
        with RangeReader.join("127.0.0.1", relay.ranges, Ticket("s")) as reader:
            assert reader.owed().items == 0
