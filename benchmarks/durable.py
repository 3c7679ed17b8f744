"""Confirmed and durable: how long a publisher waits for its PUBACK when messages are kept on disk.

Publishers send QoS 1 to a persistent session that is away, each with one message in flight: one
publisher, then a hundred. At the end the session's client comes back, and every message is counted.
Every server has its own store switched on, with its defaults. Since these differ in what an
acknowledgement is worth, the calls that bring data to the disk (`fsync`, `fdatasync` and the like)
are counted with `strace` in a run of its own; and the disk's own `fdatasync` is timed in each pass.

    python benchmarks/durable.py
    python benchmarks/durable.py --servers relay,mosquitto+autosave --passes 1
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if not __package__:  # run as a file: the root is not yet where modules are looked for
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.fanout import Cores, machine, middle, positive, progress, table
from benchmarks.loadgen import GeneratorError, ManyLoad, build, run_many
from benchmarks.many import Setting, before_others
from benchmarks.servers import (
    DURABLE,
    RABBITMQ,
    AnyServer,
    Relay,
    Server,
    ServerError,
    pinned,
    those_here,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

RELAY: Final = Relay(options=("--store={scratch}/store",))
PEERS: Final[tuple[AnyServer, ...]] = (*DURABLE, RABBITMQ)
PUBLISHERS: Final = (1, 100)
SYNCS: Final = 200
SYNC_SECONDS: Final = 1.0
"""Of the disk, timed in each pass: so many, within so long."""
CALLS: Final = ("fsync", "fdatasync", "msync", "sync_file_range", "io_submit")
"""What brings data to the disk; `io_submit` does when the file is open for direct writing."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One measurement."""

    number: int
    """Of the pass, from 1."""

    server: str
    publishers: int
    found: dict[str, Any]
    """All that the generator says (`run_many`)."""


@dataclasses.dataclass
class Results:
    """All that was measured, and what could not be."""

    runs: list[Run] = dataclasses.field(default_factory=list[Run])
    disk: list[float] = dataclasses.field(default_factory=list[float])
    """Seconds of a `fdatasync`, the median of each pass."""

    calls: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict[str, dict[str, Any]])
    """By server: "messages" that were acknowledged, and the "calls" meanwhile by name."""

    failures: list[str] = dataclasses.field(default_factory=list[str])

    def of(self, server: str, publishers: int) -> list[dict[str, Any]]:
        """Return the measurements of one server with so many publishers."""
        return [r.found for r in self.runs if (r.server, r.publishers) == (server, publishers)]


def disk_sync(folder: Path, count: int = SYNCS) -> float:
    """Append 300 bytes to a file and sync it, again and again; return the median in seconds."""
    times: list[float] = []
    end = time.perf_counter() + SYNC_SECONDS
    with (folder / "sync").open("wb", buffering=0) as file:
        for _ in range(count):
            file.write(b"x" * 300)
            begin = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - begin)
            if time.perf_counter() > end:
                break
    return statistics.median(times)


def load_of(server: AnyServer, publishers: int, setting: Setting) -> ManyLoad:
    """Return the load: one in flight for each publisher, to a persistent session that is away."""
    warmup = server.warmup if isinstance(server, Server) and server.warmup is not None else 0.5
    return ManyLoad(
        protocol="mqtt",
        kind="fan-in",
        publishers=publishers,
        qos=1,
        window=1,
        away=True,
        drain=10.0,
        seconds=setting.seconds,
        warmup=warmup,
        sleep=setting.sleep,
    )


@contextlib.contextmanager
def counted(pid: int) -> Generator[dict[str, int]]:
    """Count the calls of a process that sync, in a dictionary that is filled at the end.

    Raises:
        ServerError: `strace` cannot be attached.
    """
    found: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "counts"
        traced = f"trace={','.join(CALLS)}"
        command = ["strace", "-f", "-c", "-e", traced, "-o", str(output), "-p", str(pid)]
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
        try:
            assert process.stderr is not None
            if b"attached" not in process.stderr.readline():
                raise ServerError("strace could not be attached")
            yield found
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)
        for line in output.read_text().splitlines():
            if (row := re.match(r"\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+).*\s(\w+)$", line)) and row[
                2
            ] in CALLS:
                found[row[2]] = int(row[1])


def visit(
    server: AnyServer, setting: Setting, *, counting: bool
) -> tuple[dict[int, dict[str, Any]], dict[str, Any] | None]:
    """Start the server with an empty store, put all loads on it in turn, stop it.

    Returns what was found, by the number of publishers; and, if asked for, how often the server
    synced while one more publisher had messages confirmed one by one, or None: `strace` has stopped
    it for good (with mosquitto 2.0 and strace 6.1 each time, nobody knows why).

    Raises:
        ServerError: It did not start or stop as it should, or `strace` could not be attached.
        GeneratorError: Nothing could be measured.
    """
    counts: dict[str, Any] | None = None
    with (
        tempfile.TemporaryDirectory(prefix="durable-") as scratch,
        server.running(Path(scratch), setting.cores.server) as running,
        pinned(setting.cores.generator),
    ):
        port, pid = running.ports["mqtt"], running.pid
        found = {
            publishers: run_many(load_of(server, publishers, setting), port=port, pid=pid)
            for publishers in PUBLISHERS
        }
        if any(each["confirmation"] is None for each in found.values()):
            raise GeneratorError("nothing was confirmed that was sent while it was measured")
        if counting:
            load = load_of(server, 1, setting)
            # Not fetched: to forget messages takes syncs, too.
            load = dataclasses.replace(load, warmup=0.0, seconds=1.0, leave=True)
            with contextlib.suppress(GeneratorError):
                with counted(pid) as calls:
                    confirmed = run_many(load, port=port, pid=pid, patience=10)["confirmed"]
                counts = {"messages": confirmed, "calls": calls}
    return found, counts


def measure_all(
    servers: Sequence[AnyServer],
    setting: Setting,
    report: Callable[[str], None],
    once: Sequence[AnyServer] = (),
) -> Results:
    """Measure everything, interleaved, those of ``once`` in the first pass only.

    What fails is noted and left out.
    """
    results = Results()
    traced = shutil.which("strace") is not None
    if not traced:
        results.failures.append("calls that sync: there is no strace (Debian: apt install strace)")
    for number in range(1, setting.passes + 1):
        with tempfile.TemporaryDirectory(prefix="durable-") as scratch:
            results.disk.append(disk_sync(Path(scratch)))
        turn = number % len(servers) if servers else 0
        for server in (*servers[turn:], *servers[:turn], *(once if number == 1 else ())):
            where = f"{server.name}, pass {number}"
            try:
                found, counts = visit(server, setting, counting=traced and number == 1)
            except (ServerError, GeneratorError) as error:
                results.failures.append(f"{where}: {error}")
                report(f"{where}: could not be measured")
                continue
            if counts is not None:
                results.calls[server.name] = counts
            elif traced and number == 1:
                results.failures.append(f"{where}: strace stopped it, and calls were not counted")
            for publishers, each in found.items():
                results.runs.append(Run(number, server.name, publishers, each))
                report(
                    f"{where}, {publishers} publishers: PUBACK p50 "
                    f"{each['confirmation']['p50'] * 1e3:.2f} ms, {rate(each):,.0f}/s"
                    + ("" if each["whole"] else " (NOT ALL ARRIVED)")
                )
    return results


def rate(found: dict[str, Any]) -> float:
    """Return confirmed messages a second."""
    return float(found["confirmed"]) / float(found["seconds"])


def calls_per_message(counts: dict[str, Any]) -> str:
    """Return in words how many calls of which kind there were for a confirmed message."""
    calls: dict[str, int] = counts["calls"]
    said = [f"{name} {number / counts['messages']:.2g}" for name, number in calls.items() if number]
    return ", ".join(said) or "none"


def results_table(results: Results, servers: Sequence[str]) -> str:
    """Return a line for each server."""
    head = ["server", "PUBACK p50 ms", "p99 ms", "x fdatasync", "rate, one"]
    head += ["rate, 100", "x the one's", "PUBACK p50 ms, 100", "syncs for a message", "not whole"]
    disk = statistics.median(results.disk)
    lines: list[list[str]] = []
    for server in servers:
        one, many = (results.of(server, publishers) for publishers in PUBLISHERS)
        if not one or not many:
            continue
        p50 = statistics.median(found["confirmation"]["p50"] for found in one)
        single, together = (statistics.median(map(rate, found)) for found in (one, many))
        lines.append(
            [
                server,
                middle((found["confirmation"]["p50"] * 1e3 for found in one), ".3f"),
                middle((found["confirmation"]["p99"] * 1e3 for found in one), ".2f"),
                f"{p50 / disk:.1f}",
                f"{single:,.0f}/s",
                f"{together:,.0f}/s",
                f"{together / single:.1f}",
                middle((found["confirmation"]["p50"] * 1e3 for found in many), ".2f"),
                calls_per_message(results.calls[server]) if server in results.calls else "-",
                str(sum(not found["whole"] for found in (*one, *many))),
            ]
        )
    return table(head, lines)


def main() -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(description="What a durable confirmation costs.")
    parser.add_argument("--passes", type=int, default=3, help="how often all is measured (3)")
    parser.add_argument("--seconds", type=positive, default=2.0, help="of a measurement (2)")
    names = ["relay", *(peer.name for peer in PEERS)]
    parser.add_argument("--servers", help=f"names, separated by commas, of {','.join(names)} (all)")
    parser.add_argument("--sleep", action="store_true", help="as many.py has it")
    parser.add_argument("--nice", type=int, default=0, metavar="N", help="as many.py has it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was measured")
    arguments = parser.parse_args()
    chosen: list[str] = arguments.servers.split(",") if arguments.servers else names
    if unknown := [name for name in chosen if name not in names]:
        parser.error(f"--servers: {unknown[0]} is not one of {', '.join(names)}")
    try:
        build()
    except GeneratorError as error:
        sys.exit(f"durable: {error}")
    known: tuple[AnyServer, ...] = (RELAY, *PEERS)
    servers = those_here(server for server in known if server.name in chosen)
    if not servers:
        sys.exit("durable: none of the chosen servers is here, so there is nothing to measure.")
    setting = Setting(Cores.choose(), arguments.passes, arguments.seconds, arguments.sleep)
    first = before_others(arguments.nice) if arguments.nice else contextlib.nullcontext()
    with first, progress(len(PUBLISHERS) * arguments.passes * len(servers)) as report:
        results = measure_all(servers, setting, report)
    about = machine()
    print("## Confirmed and durable\n")
    print("; ".join(f"{name} {value}" for name, value in about.items()))
    print("; ".join(f"{server.name}: {server.version()}" for server in servers))
    print(f"fdatasync of the disk, p50: {middle((s * 1e3 for s in results.disk), '.3f')} ms\n")
    print(results_table(results, [server.name for server in servers]))
    for failure in results.failures:
        print(f"durable: could not be measured: {failure}", file=sys.stderr)
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        content = {"machine": about, **dataclasses.asdict(results)}
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")
    return 1 if results.failures else 0


if __name__ == "__main__":
    sys.exit(main())
