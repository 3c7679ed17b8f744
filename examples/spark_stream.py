"""A slow Spark query, and publishers that backpressure slows to its pace.

    pip install "clearfunds[pipeline,relay]"      # and Java 17 or newer
    python examples/spark_stream.py

It starts `clearfunds relay`, three publishers, each of which would send `--rate` messages a second,
and a query that takes `--work` seconds a batch, whatever its size. Each publisher may owe for
`--limit-items` (its high-water mark). Once that many of its messages wait for Spark, it is not read
until it owes for half of that, so it sends as many as Spark gets done. A batch has a third of what
all may owe for, so they go on at every second one. The printed rates are those of the last two
batches. At the end the publishers stop, the query takes the rest, and no debt is left.
docs/spark.md explains it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING

import trio
from pyspark.sql import SparkSession

from clearfunds.ranges.client import RangeReader, Ticket
from clearfunds.transports.mqtt import open_mqtt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HALLS = ("hall-1", "hall-2", "hall-3")
SETTINGS = (
    ("spark.log.level", "ERROR"),
    ("spark.sql.shuffle.partitions", "2"),  # by default 200: most would be empty tasks
    ("spark.ui.enabled", "false"),
    ("spark.ui.showConsoleProgress", "false"),
)
PAYLOAD = b'{"celsius": 21.5, "sensor": "north wall, two metres above the floor"}'


@contextlib.contextmanager
def relay(limit_items: int) -> Generator[tuple[int, int]]:
    """Run a relay for the length of the block; yield its ports for MQTT and for readers."""
    command = [sys.executable, "-m", "clearfunds", "relay", "--log-level", "warning"]
    command += ["--limit-items", str(limit_items)]
    command += ["--listen", "mqtt+tcp://127.0.0.1:0", "--listen", "subscribe+tcp://127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = [json.loads(line) for line in iter(process.stdout.readline, '{"ready": true}\n')]
        mqtt, ranges = (int(line["listening"].rpartition(":")[2]) for line in said)
        yield mqtt, ranges
    finally:
        process.terminate()
        process.wait()


async def publish(port: int, hall: str, rate: int, until: float, sent: Counter[str]) -> None:
    """Publish twenty times a second, or as fast as the relay lets it; until then."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with open_mqtt(stream, client_id=hall, keep_alive=0) as client:
        while trio.current_time() < until:
            for _ in range(rate // 20):
                # Until the relay has acknowledged it: backpressure is felt here. It is not
                # cancelled: for an unacknowledged message it would be unknown whether it came.
                await client.publish(f"plant/{hall}", PAYLOAD, qos=1)
                sent[hall] += 1
            await trio.sleep(1 / 20)


async def publish_all(port: int, rate: int, seconds: float, sent: Counter[str]) -> None:
    """Let all of them publish for `seconds`."""
    until = trio.current_time() + seconds
    async with trio.open_nursery() as nursery:
        for hall in HALLS:
            nursery.start_soon(publish, port, hall, rate, until, sent)


def main(options: argparse.Namespace) -> None:
    """Run it all, and print a line for each batch."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").appName("spark_stream")
    for setting in SETTINGS:
        builder = builder.config(*setting)
    spark = builder.getOrCreate()
    sent: Counter[str] = Counter()
    received: Counter[str] = Counter()
    with relay(options.limit_items) as (mqtt, ranges), tempfile.TemporaryDirectory() as folder:
        readings = (
            spark.readStream.format("clearfunds")
            .option("relay", f"127.0.0.1:{ranges}")
            .option("subscription", "halls")
            .option("subscribe", "plant/#")
            .option("maxOffsetsPerTrigger", options.limit_items * len(HALLS) // 3)
            .load()
        )
        # When each of the last two batches began, and the counts sent by then.
        begun = deque([(time.monotonic(), sent.copy())], maxlen=2)

        def work(batch: DataFrame, number: int) -> None:
            for row in batch.groupBy("topic").count().collect():
                received[row["topic"]] += row["count"]
            time.sleep(options.work)
            with RangeReader.join("127.0.0.1", ranges, Ticket("halls")) as onlooker:
                owed = onlooker.owed()
            began, before = begun[0]
            now, seconds = sent.copy(), time.monotonic() - began
            rates = ", ".join(f"{h} {(now[h] - before[h]) / seconds:4.0f}" for h in HALLS)
            print(f"batch {number:2}: sent a second: {rates}; owed: {owed.items}", flush=True)
            begun.append((time.monotonic(), now))

        query = (
            readings.writeStream.foreachBatch(work)
            .option("checkpointLocation", f"{folder}/checkpoint")
            .start()
        )
        query.processAllAvailable()  # it is attached: it reads all messages from here on
        run = partial(publish_all, mqtt, options.rate, options.seconds, sent)
        publishers = threading.Thread(target=trio.run, args=(run,))
        publishers.start()
        publishers.join()
        query.processAllAvailable()
        with RangeReader.join("127.0.0.1", ranges, Ticket("halls")) as onlooker:
            print(f"{received.total()} came, of {sent.total()}; owed: {onlooker.owed().items}")
        query.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rate", type=int, default=500, help="messages a second, each publisher")
    parser.add_argument("--limit-items", type=int, default=200, help="limit of each publisher")
    parser.add_argument("--work", type=float, default=1.0, help="seconds that a batch takes")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long they publish")
    main(parser.parse_args())
