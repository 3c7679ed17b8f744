"""From MQTT publishers through a relay into a Spark query that is slower than they are."""

from __future__ import annotations

import time
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from tests.pipeline.publishers import Flood, until
from tests.pipeline.relays import RelayProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

LIMIT = 200
FAN_OUT = 2
"""What one packet may cause beyond the limit: itself while it is handled, and its one copy."""


class Slow:
    """What a query does with its batches: it keeps the rows, and takes its time.

    Attributes:
        batches: The rows of each batch, as they came.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.batches: list[list[Any]] = []

    def __call__(self, frame: DataFrame, number: int) -> None:
        from pyspark.sql.functions import spark_partition_id

        rows = frame.select("*", spark_partition_id().alias("partition")).collect()
        assert number == len(self.batches)
        self.batches.append(rows)
        time.sleep(self._seconds)

    @property
    def rows(self) -> list[Any]:
        return [row for batch in self.batches for row in batch]


def reading(spark: SparkSession, relay: RelayProcess, folder: Path, each: Slow) -> DataStreamWriter:
    """Return a query that reads all that is published below `in/`."""
    return (
        spark.readStream.format("clearfunds")
        .option("relay", f"127.0.0.1:{relay.ranges}")
        .option("subscription", "everything")
        .option("subscribe", "in/#")
        .option("minPartitions", "2")
        .load()
        .writeStream.foreachBatch(each)
        .option("checkpointLocation", str(folder / "checkpoint"))
    )


def debts(relay: RelayProcess) -> int:
    """Return what all owe together, but for what is under way to readers."""
    return int(relay.ledger()["totals"]["debt"]["items"])


def account(relay: RelayProcess, client: str) -> dict[str, Any]:
    """Return the statement of one publisher."""
    (found,) = [each for each in relay.ledger()["accounts"] if each["name"].endswith(f"/{client}")]
    return dict(found)


def batches_done(query: StreamingQuery) -> int:
    """Return how many batches Spark has written down as done."""
    progress = query.lastProgress
    return 0 if progress is None else progress["batchId"] + 1


def until_rows(query: StreamingQuery, each: Slow, count: int) -> None:
    until(lambda: len(each.rows) >= count or not query.isActive)
    assert query.exception() is None
    assert len(each.rows) == count


@pytest.mark.relay(f"--limit-items={LIMIT}")
def test_publishers_go_at_the_pace_of_a_slow_query(
    spark: SparkSession, relay: RelayProcess, tmp_path: Path
) -> None:
    slow = Slow(1.0)
    count = 2 * LIMIT + 50
    query = reading(spark, relay, tmp_path, slow).trigger(processingTime="0 seconds").start()
    until(lambda: query.lastProgress is not None)  # it is subscribed
    with (
        Flood(relay.mqtt, "in/a", count, "a") as first,
        Flood(relay.mqtt, "in/b", count, "b") as second,
    ):
        until_rows(query, slow, 2 * count)
        until(lambda: batches_done(query) >= len(slow.batches))
        query.stop()
        for name in "a", "b":
            told = account(relay, name)
            # It was made to wait, and owed no more than it may meanwhile.
            assert LIMIT <= told["peak"]["items"] <= LIMIT + FAN_OUT
            assert told["waited_seconds"] > 1.0
        # The last batch is done; Spark says so when it plans another one, which is not to come.
        last = Slow(0.0)
        last.batches = [[] for _ in slow.batches]
        done = reading(spark, relay, tmp_path, last).trigger(availableNow=True).start()
        assert done.awaitTermination(30)
        assert last.rows == []
        assert debts(relay) == 0
    # No batch had more than all may owe together, so it took that many at least.
    assert all(len(batch) <= 2 * (LIMIT + FAN_OUT) for batch in slow.batches)
    for flood in first, second:
        mine = [row for row in slow.rows if row.topic == flood.topic]
        assert [bytes(row.value) for row in mine] == flood.values
    for batch in slow.batches:
        for _, part in groupby(batch, lambda row: row.partition):
            offsets = [row.offset for row in part]
            assert offsets == sorted(set(offsets))
    assert [row.offset for row in slow.rows] == list(range(1, 2 * count + 1))
