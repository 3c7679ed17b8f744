"""The source as Spark has it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

pytest.importorskip("pyspark")

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import Row, functions

from clearfunds.ranges.client import RangeReader, Ticket, encode_properties
from tests.pipeline.relays import RelayProcess
from tests.pipeline.source.queries import publish, until

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


def test_headers_are_read_and_written_on(spark: SparkSession, shared: RelayProcess) -> None:
    make(shared, "h")
    properties: Any = cast("Any", Properties)(PacketTypes.PUBLISH)  # without types
    properties.ContentType = "text/plain"
    properties.UserProperty = [("k", "v"), ("k", "ü")]
    client = mqtt.Client(CallbackAPIVersion.VERSION2, "with-headers", protocol=mqtt.MQTTv5)
    client.connect("127.0.0.1", shared.mqtt)
    client.loop_start()
    client.publish("h/x", b"1", 1, retain=True, properties=properties).wait_for_publish(SECONDS)
    client.publish("h/y", b"2", 0).wait_for_publish(SECONDS)
    client.disconnect()
    client.loop_stop()
    wanted = options(shared, "h")
    del wanted["subscribe"]
    source = spark.read.format("clearfunds").options(**wanted)
    assert source.load().columns == ["topic", "value", "offset", "timestamp", "account"]
    rows = source.options(
        includeHeaders="true", includeIncarnation="true", includeAccount="false"
    ).load()
    until(lambda: rows.count() == 2)
    headers = [Row(key="k", value=bytearray(b"v")), Row(key="k", value=bytearray("ü".encode()))]
    first, second = rows.orderBy("offset").drop("timestamp", "incarnation").collect()
    assert first == ("h/x", b"1", 1, 1, True, "text/plain", headers)
    assert second == ("h/y", b"2", 2, 0, False, None, None)
    with RangeReader("127.0.0.1", shared.ranges, "h-copy", filters=["copy/#"]) as copy:
        (life,) = rows.select("incarnation").distinct().collect()
        with RangeReader.join("127.0.0.1", shared.ranges, Ticket("h")) as reader:
            assert life.incarnation == reader.ticket.incarnation.hex()
        written = rows.drop("offset", "timestamp", "incarnation").withColumn(
            "topic", functions.concat(functions.lit("copy/"), "topic")
        )
        where = f"127.0.0.1:{shared.ranges}"
        written.coalesce(1).write.format("clearfunds").mode("append").option("url", where).save()
        until(lambda: copy.head().next == 3)
        found = [row for block in copy.fetch(1, 3) for row in block.rows()]
        told = encode_properties("text/plain", [("k", "v"), ("k", "ü")])
        assert sorted(
            (row.key, row.value, row.qos, row.retain, row.properties) for row in found
        ) == [
            (b"copy/h/x", b"1", 1, True, told),
            (b"copy/h/y", b"2", 0, False, b""),
        ]
        copy.ack(3)


def test_an_error_comes_behind_a_short_trace(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.readStream.format("clearfunds").options(
        url="127.0.0.1:1", subscription="s", subscribe="a", timeoutSeconds="0.2"
    )
    writer = rows.load().writeStream.format("noop")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(StreamingQueryException) as found:
        query.awaitTermination(SECONDS)
    said, _, _ = str(found.value).partition("the relay at 127.0.0.1:1 did not answer within 0.2 s")
    assert said.count("\n") < 12
    assert "the above exception" not in said.lower()
