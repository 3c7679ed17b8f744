"""A query as a process of its own, to be killed: it forwards what is below `in/` to `out/`.

The subscription `forwarded` has to be there.

`python -m tests.pipeline.query_process RELAY FOLDER [--master ...] [--seconds 1] [--once]`
says a line of JSON for each batch that is done, and one for its end. A line `finish` for it to read
ends the query, and starts it again for what is left, as with `--once`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tests.pipeline.conftest import ROOT, spark_session
from tests.pipeline.publishers import until
from tests.pipeline.relays import RelayProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SECONDS = 180
"""More than a session takes to start on a busy machine, with a batch or two."""


FAILING = "failing"


def slowed(rows: DataFrame, seconds: float, failing: Path) -> DataFrame:
    """Let each task of the rows take some time, and one fail at its end if there is this file."""

    def pause(batches: Iterator[Any]) -> Iterator[Any]:
        time.sleep(seconds)
        yield from batches
        try:
            failing.unlink()
        except FileNotFoundError:
            return
        raise RuntimeError("it was to fail")

    untyped: Any = rows
    made: DataFrame = untyped.mapInArrow(pause, rows.schema)
    return made


def run(relay: str, folder: Path, master: str, seconds: float, once: bool) -> None:
    """Run it until it ends."""
    from pyspark.sql import functions as f

    with spark_session(folder, master) as spark:
        rows = (
            spark.readStream.format("clearfunds")
            .option("relay", relay)
            .option("subscription", "forwarded")
            .option("minPartitions", "2")
            .load()
        )
        changed = slowed(
            rows.select(f.regexp_replace("topic", "^in/", "out/").alias("topic"), "value"),
            seconds,
            folder / FAILING,
        )
        writer = (
            changed.writeStream.format("clearfunds")
            .option("relay", relay)
            .option("qos", "2")  # with 1 a client whose connection breaks may get a message again
            .option("checkpointLocation", str(folder / "checkpoint"))
        )
        query = (
            writer.trigger(availableNow=True)
            if once
            else writer.trigger(processingTime="0 seconds")
        ).start()
        to_finish = threading.Event()
        threading.Thread(target=_hear, args=(to_finish,), daemon=True).start()
        said = -1
        while query.isActive:
            time.sleep(0.1)
            if to_finish.is_set() and not once:
                once = True
                query.stop()
                query = writer.trigger(availableNow=True).start()
            progress = query.lastProgress
            if progress is not None and progress.batchId > said and progress.numInputRows:
                said = progress.batchId
                print(json.dumps({"batch": said, "rows": progress.numInputRows}), flush=True)
        fault = query.exception()
        print(json.dumps({"failed": None if fault is None else str(fault)}), flush=True)


def _hear(to_finish: threading.Event) -> None:
    """Wait to be told `finish`."""
    for line in sys.stdin:
        if line.strip() == "finish":
            to_finish.set()


class QueryProcess:
    """One run of it.

    Attributes:
        batches: The numbers of the batches that are done.
        ended: Whether it has ended of itself.
        failed: Of what, then.
    """

    def __init__(self, relay: RelayProcess, folder: Path, *options: str) -> None:
        self.batches: list[int] = []
        self.ended = False
        self.failed: str | None = None
        command = (sys.executable, "-m", "tests.pipeline.query_process")
        self._log = folder / "log"
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                (*command, f"127.0.0.1:{relay.ranges}", str(folder), *options),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                # It and its JVM are a group, to be killed together. Workers end with the JVM.
                start_new_session=True,
            )
        self._listening = threading.Thread(target=self._listen)
        self._listening.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said: dict[str, Any] = json.loads(line)
            if "batch" in said:
                self.batches.append(said["batch"])
            else:
                self.failed = said["failed"]
                self.ended = True

    def has_run(self) -> bool:
        """Return whether it has done a batch."""
        return bool(self.batches)

    def until(self, condition: Callable[[], Any]) -> None:
        """Wait for something that happens while it runs."""

        def look() -> bool:
            assert self._process.poll() is None, self._log.read_text()[-3000:]
            return bool(condition())

        until(look, SECONDS)

    def finish(self) -> None:
        """Stop the query, and start it again, in the same session, for what there is left."""
        assert self._process.stdin is not None
        self._process.stdin.write("finish\n")
        self._process.stdin.flush()

    def wait(self) -> str | None:
        """Wait for its end; return of what it failed."""
        self._process.wait(SECONDS)
        self._listening.join(SECONDS)
        assert self.ended, self._log.read_text()[-3000:]
        return self.failed

    def kill(self) -> None:
        """End it as nobody should, its JVM, too."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(SECONDS)
        self._listening.join(SECONDS)
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        self._process.stdout.close()
        self._process.stdin.close()

    def kill_runner(self) -> None:
        """Kill the process that Spark runs the source in, beside its driver."""
        runner = "python_streaming_source_runner"
        (found,) = [pid for pid in _below(self._process.pid) if runner in _command(pid)]
        os.kill(found, signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()


def _below(pid: int) -> set[int]:
    """Return the processes that come of this one."""
    parents: dict[int, int] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                stat = (place / "stat").read_text()
            except OSError:
                continue  # it has ended meanwhile
            parents[int(place.name)] = int(stat.rpartition(")")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _command(pid: int) -> str:
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("relay")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--once", action="store_true")
    options = parser.parse_args()
    run(options.relay, options.folder, options.master, options.seconds, options.once)


if __name__ == "__main__":
    main()
