"""The source as Spark has it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import AnalysisException, StreamingQueryException

from clearfunds.ranges.client import RangeReader, Ticket
from tests.pipeline.relays import RelayProcess
from tests.pipeline.source.queries import publish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SECONDS = 180
"""More than anything here takes on a busy machine."""


@pytest.fixture(scope="module")
def shared() -> Iterator[RelayProcess]:
    with RelayProcess() as relay:
        yield relay


def options(relay: RelayProcess, name: str, **more: str) -> dict[str, str]:
    return {
        "relay": f"127.0.0.1:{relay.ranges}",
        "subscription": name,
        "subscribe": f"{name}/#",
        **more,
    }


def ended(query: StreamingQuery) -> None:
    try:
        assert query.awaitTermination(SECONDS)
    finally:
        query.stop()


def owed(relay: RelayProcess, name: str) -> int:
    with RangeReader.join("127.0.0.1", relay.ranges, Ticket(name)) as reader:
        return reader.owed().items


def make(relay: RelayProcess, name: str) -> None:
    RangeReader("127.0.0.1", relay.ranges, name, filters=[f"{name}/#"]).close()


def test_available_now_a_failed_batch_and_a_restart(
    spark: SparkSession, shared: RelayProcess, tmp_path: Path
) -> None:
    make(shared, "s")
    publish(shared.mqtt, [b"%d" % n for n in range(30)], "s/x")
    wanted = options(shared, "s", maxOffsetsPerTrigger="20", minPartitions="2")
    batches: list[tuple[int, list[list[Any]]]] = []
    fail_at: list[int] = [1]

    def take(rows: DataFrame, batch: int) -> None:
        parts: list[list[Any]] = rows.rdd.glom().collect()
        batches.append((batch, [[(row.offset, row.value, row.topic) for row in p] for p in parts]))
        assert batch not in fail_at, "as was to be"

    def run() -> None:
        # No format is registered: Spark has found it.
        rows = spark.readStream.format("clearfunds").options(**wanted).load()
        writer = rows.writeStream.foreachBatch(take)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        ended(writer.trigger(availableNow=True).start())

    with pytest.raises(StreamingQueryException, match="as was to be"):
        run()
    assert owed(shared, "s") == 10  # the first batch is done, the second one is not
    fail_at.clear()
    publish(shared.mqtt, [b"%d" % n for n in range(30, 35)], "s/x")
    run()
    assert [batch for batch, _ in batches] == [0, 1, 1, 2]
    assert batches[1] == batches[2]
    assert [[len(part) for part in parts] for _, parts in batches] == [
        [10, 10],
        [5, 5],
        [5, 5],
        [2, 3],
    ]
    rows = [row for _, parts in (*batches[:1], *batches[2:]) for part in parts for row in part]
    assert rows == [(n + 1, b"%d" % n, "s/x") for n in range(35)]
    assert owed(shared, "s") == 0


def test_the_second_query_on_a_subscription_puts_the_first_one_out(
    spark: SparkSession, shared: RelayProcess, tmp_path: Path
) -> None:
    queries: list[StreamingQuery] = []
    try:
        for which in range(2):
            rows = spark.readStream.format("clearfunds").options(**options(shared, "f")).load()
            writer = rows.writeStream.format("noop")
            writer = writer.option("checkpointLocation", str(tmp_path / str(which)))
            queries.append(writer.start())
            queries[-1].processAllAvailable()
        with pytest.raises(StreamingQueryException) as found:
            queries[0].awaitTermination(SECONDS)
        said = "another query reads from subscription 'f' of the relay"
        assert said in str(found.value)
        assert queries[1].isActive
    finally:
        for query in queries:
            query.stop()


def test_a_batch_and_sentences(spark: SparkSession, shared: RelayProcess) -> None:
    make(shared, "b")
    publish(shared.mqtt, [b"%d" % n for n in range(7)], "b/x")
    wanted = options(shared, "b")
    del wanted["subscribe"]
    rows = spark.read.format("clearfunds").options(**wanted)
    assert rows.load().count() == 7
    assert rows.load().where("offset > 5").select("topic").collect() == [("b/x",)] * 2
    assert rows.option("startingOffsets", "latest").load().count() == 0
    assert owed(shared, "b") == 7
    assert "account" not in rows.option("includeAccount", "false").load().columns
    with pytest.raises(AnalysisException, match="did you mean 'subscription'"):
        rows.option("subscribtion", "b").load()
    with pytest.raises(Exception, match=r"leave `.schema\(...\)` out"):
        spark.read.format("clearfunds").schema("value STRING").options(**wanted).load().count()
    with pytest.raises(Exception, match=r"'subscribe' is one of spark.readStream; a batch"):
        spark.read.format("clearfunds").options(**options(shared, "b")).load().count()
