"""The sink as Spark has it: failures of tasks and of commits, and each batch once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import AnalysisException, StreamingQueryException

from clearfunds.ranges.client import RangeReader
from tests.pipeline.publishers import until
from tests.pipeline.relays import SECONDS, RelayProcess
from tests.pipeline.sink import failing
from tests.pipeline.sink.subscribers import Rows, Subscribers
from tests.pipeline.source.queries import publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TOPIC = "out/plant"


def forwarding(spark: SparkSession, relay: RelayProcess, folder: Path) -> StreamingQuery:
    """Start a query that forwards what is published below `in/` now, with some of it changed."""
    from pyspark.sql import functions as f

    where = f"127.0.0.1:{relay.ranges}"
    rows = (
        spark.readStream.format("clearfunds")
        .option("relay", where)
        .option("subscription", "forwarded")
        .option("minPartitions", "2")
        .load()
    )
    changed = rows.select(
        f.regexp_replace("topic", "^in/", "out/").alias("topic"),
        f.concat(f.lit("<"), f.col("value").cast("string"), f.lit(">")).alias("value"),
    )
    spark.dataSource.register(failing.FailingDataSource)
    return (
        changed.writeStream.format("clearfunds_failing")
        .option("relay", where)
        .option("qos", "2")  # with 1 a client whose connection breaks may get a message again
        .option(failing.OPTION, str(folder))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def subscribe(relay: RelayProcess, durable: bool = False) -> None:
    """Let there be the query's subscription before the query, so that it misses nothing."""
    RangeReader("127.0.0.1", relay.ranges, "forwarded", filters=["in/#"], durable=durable).close()


def run(query: StreamingQuery) -> None:
    try:
        assert query.awaitTermination(4 * SECONDS)
    finally:
        query.stop()


class Feed:
    """Publishes rows to be forwarded; knows what is to come of them all."""

    def __init__(self, relay: RelayProcess) -> None:
        self._relay = relay
        self.expected: Rows = []

    def more(self, count: int = 5) -> None:
        first = len(self.expected)
        values = [b"%d" % number for number in range(first, first + count)]
        publish(self._relay.mqtt, values, "in/plant")
        self.expected += [(TOPIC, b"<%b>" % value) for value in values]


def fail_and_go_on(
    spark: SparkSession, relay: RelayProcess, folder: Path, failures: list[str]
) -> None:
    """Let a query fail, in each of these ways; start it again from its checkpoint each time."""
    with Subscribers(relay) as subscribers:
        subscribe(relay)
        feed = Feed(relay)
        for name in failures:
            # Perhaps not to be mixed with a batch that is to be written again first.
            feed.more()
            (folder / name).touch()
            with pytest.raises(StreamingQueryException, match=f"it was to fail {name}"):
                run(forwarding(spark, relay, folder))
        feed.more()
        run(forwarding(spark, relay, folder))
        subscribers.expect(feed.expected)


def test_each_batch_once_though_a_task_and_a_commit_fail(
    spark: SparkSession, relay: RelayProcess, tmp_path: Path
) -> None:
    fail_and_go_on(spark, relay, tmp_path, [failing.IN_WRITE, failing.AFTER_COMMIT])


@pytest.mark.long
def test_each_batch_once_in_every_way_to_fail(
    spark: SparkSession, relay: RelayProcess, tmp_path: Path
) -> None:
    ways = [
        failing.BEFORE_WRITE,
        failing.IN_WRITE,
        failing.AFTER_WRITE,
        failing.BEFORE_COMMIT,
        failing.AFTER_COMMIT,
    ]
    fail_and_go_on(spark, relay, tmp_path, ways)


@pytest.mark.long
def test_a_relay_with_a_store_that_is_killed_between_staging_and_commit(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = ("--store", str(tmp_path / "store"))
    with RelayProcess(*store) as relay, Subscribers(relay, durable=True) as subscribers:
        subscribe(relay, durable=True)
        feed = Feed(relay)
        feed.more()
        (tmp_path / failing.HALT).touch()
        query = forwarding(spark, relay, tmp_path)
        until(lambda: (tmp_path / failing.HALTED).exists(), 4 * SECONDS)
        relay.kill()
        with RelayProcess(*store, mqtt=relay.mqtt, ranges=relay.ranges) as relay:
            (tmp_path / failing.HALT).unlink()
            run(query)
            subscribers.expect(feed.expected)
            # Its commit reaches a relay that dies before Spark hears of it.
            feed.more()
            (tmp_path / failing.AFTER_COMMIT).touch()
            with pytest.raises(StreamingQueryException, match="it was to fail after-commit"):
                run(forwarding(spark, relay, tmp_path))
            relay.kill()
            with RelayProcess(*store, mqtt=relay.mqtt, ranges=relay.ranges) as relay:
                feed.more()
                run(forwarding(spark, relay, tmp_path))
                subscribers.expect(feed.expected)


def test_a_job_and_sentences(spark: SparkSession, relay: RelayProcess) -> None:
    where = f"127.0.0.1:{relay.ranges}"
    with Subscribers(relay) as subscribers:
        rows = spark.range(0, 6, 1, 2).selectExpr("cast(id as string) value", "1 qos")
        job = rows.write.format("clearfunds").option("relay", where)
        job.option("topic", TOPIC).mode("append").save()
        expected = [(TOPIC, b"%d" % number) for number in range(6)]
        subscribers.expect(expected)
        # The same job twice, by its name and number: on which it depends, not on its rows.
        for _ in range(2):
            again = rows.write.format("clearfunds").option("relay", where).option("topic", TOPIC)
            again.option("writer", "daily").option("batch", "7").mode("append").save()
        subscribers.expect(expected * 2)
        with pytest.raises(AnalysisException, match="the columns id mean nothing here: choose"):
            rows.selectExpr("value", "qos id").write.format("clearfunds").option(
                "relay", where
            ).option("topic", TOPIC).mode("append").save()
        with pytest.raises(AnalysisException, match="what was published cannot be overwritten"):
            job.mode("overwrite").save()
        subscribers.expect(expected * 2)
