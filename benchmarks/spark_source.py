"""How fast Spark reads a filled subscription: `spark.readStream.format("clearfunds")`.

A relay without limits is started, a subscription attached, and messages are published over MQTT
until it holds them all. Then each of these reads everything, beginning with a warm-up of one batch:

    client     `clearfunds.ranges.client` in one process, columns left as they came
    arrow      the same into record batches, as a task of Spark's makes them
    spark      a stream into the `noop` sink, `local[CORES]`, `--batch` messages at a time:
               Spark's own count of rows and time of each trigger, planning and checkpoint included

It prints rows a second: the best batch, the median one, and all batches together. The relay is
another process on the same cores, and meanwhile repays all rows that are read.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from clearfunds.pipeline._environment import session
from clearfunds.pipeline.source import ReadOptions
from clearfunds.pipeline.source._columns import Columns
from clearfunds.pipeline.source._options import Chosen
from clearfunds.pipeline.source._ranges import Range, read_range
from clearfunds.ranges.client import RangeReader

TOPIC = b"plant/hall-3/temperature"
START_SECONDS = 30.0
TARGET = 300_000
"""Rows a second that the source has to reach on two cores."""


@contextlib.contextmanager
def relay_process() -> Generator[tuple[subprocess.Popen[str], int, int]]:
    """Run a relay without limits; give its process, and its ports for MQTT and for readers."""
    command = [
        *(sys.executable, "-m", "clearfunds", "relay", "--log-level", "warning"),
        *("--listen", "mqtt+tcp://127.0.0.1:0", "--listen", "subscribe+tcp://127.0.0.1:0"),
        *("--limit-items", "none", "--limit-bytes", "none"),
        *("--server-limit-items", "none", "--server-limit-bytes", "none"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        ports: list[int] = []
        for line in process.stdout:
            said: dict[str, Any] = json.loads(line)
            if "listening" in said:
                ports.append(int(said["listening"].rpartition(":")[2]))
            if said.get("ready"):
                break
        if len(ports) != 2:
            sys.exit("the relay has not started")
        yield process, ports[0], ports[1]
    finally:
        process.terminate()
        process.wait(START_SECONDS)


def fill(port: int, messages: int, size: int) -> None:
    """Publish so many messages, over one connection of MQTT 3.1.1, QoS 0."""
    body = struct.pack(">H", len(TOPIC)) + TOPIC + os.urandom(size)
    length, rest = bytearray(), len(body)
    while True:
        length.append(rest & 127 | (128 if rest > 127 else 0))
        rest >>= 7
        if not rest:
            break
    packet = b"\x30" + bytes(length) + body
    many = packet * 1000
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(b"\x10\x10\x00\x04MQTT\x04\x02\x00\x00\x00\x04fill")
        if sock.recv(4) != b"\x20\x02\x00\x00":
            sys.exit("the relay has refused the publisher")
        for _ in range(messages // 1000):
            sock.sendall(many)
        sock.sendall(packet * (messages % 1000) + b"\xe0\x00")
        while sock.recv(1 << 16):
            pass


def wait_for(reader: RangeReader, end: int) -> None:
    """Wait until so many messages are there."""
    deadline = time.monotonic() + 300
    while reader.head().next < end:
        if time.monotonic() > deadline:
            sys.exit(f"only {reader.head().next - 1} messages have come")
        time.sleep(0.1)


def by_client(reader: RangeReader, start: int, end: int) -> int:
    """Fetch a range, and return how many rows came."""
    return sum(block.count for block in reader.fetch(start, end))


def in_arrow(options: ReadOptions, reader: RangeReader, start: int, end: int) -> int:
    """Read a range as a task of Spark's does, and return how many rows came."""
    Columns(options.columns)  # pyarrow is imported
    return sum(batch.num_rows for batch in read_range(options, Range(start, end, reader.ticket)))


def by_spark(
    relay_at: str, batch: int, cores: int, account: bool, folder: Path
) -> list[tuple[int, float]]:
    """Read all there is by a query; return each batch's rows and seconds."""
    spark = session(
        "spark_source",
        **{
            "spark.master": f"local[{cores}]",
            "spark.driver.memory": "1g",
            "spark.sql.streaming.numRecentProgressUpdates": "10000",
        },
    )
    try:
        rows = spark.readStream.format("clearfunds").options(
            relay=relay_at,
            subscription="bench",
            maxOffsetsPerTrigger=batch,
            minPartitions=cores,
            includeAccount=account,
        )
        writer = rows.load().writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
        query.awaitTermination()
        told: list[Any] = list(query.recentProgress)
        return [
            (progress["numInputRows"], progress["durationMs"]["triggerExecution"] / 1000)
            for progress in told
            if progress["numInputRows"]
        ]
    finally:
        stop: Any = spark.stop  # which has no types
        stop()


def say(name: str, batches: list[tuple[int, float]]) -> float:
    """Print what was measured, without the first batch; return the best rate."""
    measured = batches[1:] or batches
    rates = [rows / seconds for rows, seconds in measured]
    together = sum(rows for rows, _ in measured) / sum(seconds for _, seconds in measured)
    print(
        f"{name:8} {max(rates):12,.0f} {statistics.median(rates):12,.0f} {together:12,.0f}"
        f" {len(measured):8}",
        flush=True,
    )
    return max(rates)


def main() -> None:
    """Measure, as the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of each payload")
    parser.add_argument("--batch", type=int, default=500_000, help="messages of one batch")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--without-account", action="store_true")
    parser.add_argument("--check", action="store_true", help=f"fail below {TARGET:,} rows a second")
    given = parser.parse_args()
    end = given.messages + 1
    edges = [*range(1, end, given.batch), end]
    with tempfile.TemporaryDirectory() as folder, relay_process() as (_, mqtt, port):
        with RangeReader("127.0.0.1", port, "bench", filters=["plant/#"]) as reader:
            filler = threading.Thread(target=fill, args=(mqtt, given.messages, given.size))
            began = time.perf_counter()
            filler.start()
            filler.join()
            wait_for(reader, end)
            rate = given.messages / (time.perf_counter() - began)
            print(f"{given.messages:,} messages of {given.size} bytes, {rate:,.0f} a second\n")
            print(f"{'':8} {'best':>12} {'median':>12} {'together':>12} {'batches':>8}")
            options = ReadOptions(
                "127.0.0.1", port, "bench", columns=Chosen(not given.without_account)
            )
            ways: dict[str, Callable[[int, int], int]] = {
                "client": partial(by_client, reader),
                "arrow": partial(in_arrow, options, reader),
            }
            for name, read in ways.items():
                batches: list[tuple[int, float]] = []
                for start, stop in pairwise(edges):
                    began = time.perf_counter()
                    rows = read(start, stop)
                    batches.append((rows, time.perf_counter() - began))
                    assert rows == stop - start
                say(name, batches)
        measured = by_spark(
            f"127.0.0.1:{port}", given.batch, given.cores, not given.without_account, Path(folder)
        )
        assert sum(rows for rows, _ in measured) == given.messages
        best = say("spark", measured)
    if given.check and best < TARGET:
        sys.exit(f"the target is {TARGET:,} rows a second")


if __name__ == "__main__":
    main()
