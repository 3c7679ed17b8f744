"""How fast Spark writes to a relay, `df.write.format("clearfunds")`, beside its Kafka sink.

The same cached rows are written by one Spark session, `local[CORES]`, in jobs that take turns: one
to the relay, one to a Kafka broker (one node, KRaft), and so on; the first of each is a warm-up.
For each the median is printed of

    rows/s      rows by the time of the whole job, commit included
    server us   CPU time of the relay, or of the broker, a row
    Spark us    CPU time of Spark a row: the JVM, and its Python workers

Rates depend on what else the machine does; compare CPU times, and the two rates of one run.

`--reader` lets a subscription take what the relay publishes, and acknowledges it after each job; as
it comes nobody subscribes. Kafka and Spark's connector come from Maven, into `build/maven`;
`--no-kafka` measures the relay alone.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the root is not yet where modules are looked for
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.maven import NoJarsError, jars
from benchmarks.servers import free_port
from benchmarks.spark_source import relay_process
from clearfunds.pipeline._environment import session
from clearfunds.ranges.client import RangeReader

KAFKA = "org.apache.kafka:kafka_2.13:4.1.0"
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
"""The newest that Maven has."""

START_SECONDS = 60.0
SPARKS_OWN = ("hadoop-", "scala-", "slf4j-")
"""Jars that Spark has already."""

SHARE = 0.5
"""The part of the rate of Kafka's sink that `--check` asks for."""


@contextlib.contextmanager
def broker() -> Generator[tuple[subprocess.Popen[str], int]]:
    """Run a Kafka broker; give its process and its port."""
    port, control = free_port(), free_port()
    path = ":".join(map(str, jars("kafka", KAFKA)))
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "server.properties"
        settings.write_text(
            "process.roles=broker,controller\nnode.id=1\nnum.partitions=2\n"
            f"controller.quorum.voters=1@127.0.0.1:{control}\n"
            f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{control}\n"
            f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}\n"
            "controller.listener.names=CONTROLLER\n"
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n"
            f"log.dirs={folder}/logs\n"
        )
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        java = ["java", "-cp", path]
        form = ["kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qk"]
        subprocess.run([*java, *form, "-c", str(settings)], check=True, **quiet)
        process = subprocess.Popen([*java, "kafka.Kafka", str(settings)], text=True, **quiet)
        try:
            deadline = time.monotonic() + START_SECONDS
            while True:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                if process.poll() is not None or time.monotonic() > deadline:
                    sys.exit("the broker has not started")
                time.sleep(0.2)
            yield process, port
        finally:
            process.terminate()
            process.wait(START_SECONDS)


def cpu_of_tree(pid: int) -> float:
    """Return the CPU seconds so far of a process, of those below it, and of those that ended."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            parents[int(stat.parent.name)] = int(fields[1])
            ticks[int(stat.parent.name)] = sum(map(int, fields[11:15]))
    below = {pid}
    while more := {each for each, parent in parents.items() if parent in below} - below:
        below |= more
    return sum(ticks.get(each, 0) for each in below) / os.sysconf("SC_CLK_TCK")


class Sink:
    """One way to write, and what was measured of it.

    Args:
        write: Runs one job.
        server: The process that takes the rows.
        jvm: The process of Spark's driver.
        after: Called after each job.
    """

    def __init__(
        self, write: Callable[[], object], server: int, jvm: int, after: Callable[[], object] = int
    ) -> None:
        self._write = write
        self._pids = server, jvm
        self._after = after
        self.rates: list[float] = []
        self.server: list[float] = []
        self.spark: list[float] = []

    def run(self, rows: int) -> None:
        """Run one job, and measure it."""
        before = [cpu_of_tree(pid) for pid in self._pids]
        began = time.perf_counter()
        self._write()
        self.rates.append(rows / (time.perf_counter() - began))
        for pid, seconds, spent in zip(self._pids, before, (self.server, self.spark), strict=True):
            spent.append((cpu_of_tree(pid) - seconds) / rows * 1e6)
        self._after()


def take_all(reader: RangeReader) -> None:
    """Acknowledge everything that has come."""
    reader.ack(reader.head().next)


def main() -> None:
    """Measure, as the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=500_000, help="rows of a job")
    parser.add_argument("--size", type=int, default=100, help="bytes of each value")
    parser.add_argument("--jobs", type=int, default=6, help="jobs of each, after the warm-up")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--reader", action="store_true")
    parser.add_argument("--no-kafka", action="store_true")
    parser.add_argument("--check", action="store_true", help=f"fail below {SHARE} of Kafka's rate")
    given = parser.parse_args()
    settings = {
        "spark.master": f"local[{given.cores}]",
        "spark.driver.memory": "2g",
        "spark.default.parallelism": str(given.cores),
    }
    with contextlib.ExitStack() as stack:
        sinks: dict[str, Sink] = {}
        kafka = None if given.no_kafka else stack.enter_context(broker())
        if kafka is not None:
            own = [
                each
                for each in jars("spark-kafka", CONNECTOR)
                if not each.name.startswith(SPARKS_OWN)
            ]
            settings["spark.jars"] = ",".join(map(str, own))
        process, _, port = stack.enter_context(relay_process())
        spark: Any = session("spark_sink", **settings)
        stack.callback(spark.stop)
        jvm = spark.sparkContext._gateway.proc.pid
        rows = spark.range(given.rows, numPartitions=given.cores).selectExpr(
            "concat('plant/hall-', id % 10, '/temperature') AS topic",
            f"CAST(rpad(CAST(id AS string), {given.size}, 'x') AS binary) AS value",
        )
        rows.cache().count()
        after: Callable[[], object] = int
        if given.reader:
            reader = stack.enter_context(
                RangeReader("127.0.0.1", port, "bench", filters=["plant/#"])
            )
            after = partial(take_all, reader)
        ours = rows.write.format("clearfunds").mode("append").option("url", f"127.0.0.1:{port}")
        sinks["clearfunds"] = Sink(ours.save, process.pid, jvm, after)
        if kafka is not None:
            theirs = rows.selectExpr("'bench' AS topic", "topic AS key", "value").write
            theirs = theirs.format("kafka")
            theirs = theirs.option("kafka.bootstrap.servers", f"127.0.0.1:{kafka[1]}")
            sinks["kafka"] = Sink(theirs.save, kafka[0].pid, jvm)
        for _ in range(given.jobs + 1):
            for each in sinks.values():
                each.run(given.rows)
        print(f"{given.rows:,} rows of {given.size} bytes a job, {given.jobs} jobs, medians\n")
        print(f"{'':12} {'rows/s':>10} {'server us':>10} {'Spark us':>10}")
        for name, each in sinks.items():
            figures = [statistics.median(of[1:]) for of in (each.rates, each.server, each.spark)]
            print(f"{name:12} {figures[0]:10,.0f} {figures[1]:10.2f} {figures[2]:10.2f}")
    if given.check and kafka is not None:
        ours_rate, kafka_rate = (statistics.median(each.rates[1:]) for each in sinks.values())
        if ours_rate < SHARE * kafka_rate:
            sys.exit(f"{ours_rate / kafka_rate:.2f} of the rate of Kafka's sink")


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        main()
    except NoJarsError as error:
        sys.exit(str(error))
