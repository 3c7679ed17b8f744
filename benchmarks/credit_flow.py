"""Debt and credit flow under the same load: a relay with each, side by side.

    python benchmarks/credit_flow.py                     # three loads, fan-out 1 to 100
    python benchmarks/credit_flow.py --only stall --fan-outs 1,10
    python benchmarks/credit_flow.py --schemes debt,credit,nothing --json /tmp/three.json
    python benchmarks/credit_flow.py --plot docs         # the pictures, from what was measured

Three loads, each with a fan-out of 1, 3, 10, 30 and 100:

- `keep-up`: one publisher, all subscribers read as fast as they can; 200 bytes of payload, QoS 0.
  Measured by the load generator (loadgen.c): deliveries a second, the server's CPU.
- `stall`: one paced publisher, and one of the subscribers stops reading for a while. The publisher
  also publishes to an innocent subscriber, and so does another connection: for how long does the
  innocent one get nothing from either (head-of-line blocking)? Over Unix sockets, in which the
  kernel keeps little (0.2 MB); over TCP it keeps some megabytes first, under both schemes.
- `queues`: one publisher of QoS 1, as fast as it is confirmed, into the queues of as many
  persistent sessions, in a slow store: written messages are on disk after a second. The innocent
  subscribers are the same.

A third scheme is `nothing`: a relay without limits, which reads all input. Its memory is bounded by
the duration and the rate of the load, and the load ends when the relay has a GiB more than before
(`ended` in the output).

Each measurement has a fresh relay, on its own core. Passes are interleaved: all fan-outs under all
schemes in turn, and then again; the tables have medians. The results are written as JSON
(docs/data/credit-flow.json), with the machine; docs/credit-flow.md explains them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import select
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import attrs

if not __package__:  # run as a file: the root is not yet where modules are looked for
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.credit_flow_plots import draw
from benchmarks.fanout import Cores, machine
from benchmarks.loadgen import GeneratorError, Load, run
from benchmarks.servers import CREDIT_FLOW, Relay, ServerError, pinned
from clearfunds.transports.mqtt import Connect, Publish, Subscribe, encode

ROOT: Final = Path(__file__).resolve().parent.parent
DATA: Final = ROOT / "docs" / "data" / "credit-flow.json"
UNLIMITED: Final = (
    "--limit-items=none",
    "--limit-bytes=none",
    "--server-limit-bytes=none",
    "--max-queued=none",
    "--max-queued-bytes=none",
    "--disk-limit=none",
    "--memory-alarm=none",
    "--disk-alarm=none",
    "--stuck=wait",
)
"""A relay without backpressure, drops and disconnects."""
SCHEMES: Final[dict[str, Relay]] = {
    "debt": Relay(protocols=("mqtt",)),
    "credit": Relay(protocols=("mqtt",), program=CREDIT_FLOW),
    "nothing": Relay(protocols=("mqtt",), options=UNLIMITED),
}
"""The relay of each scheme; all other options have their defaults."""
BESIDE: Final = ("debt", "credit")
FAN_OUTS: Final = (1, 3, 10, 30, 100)
LOADS: Final = ("keep-up", "stall", "queues")

PAGE: Final = os.sysconf("SC_PAGE_SIZE")
TICK: Final = os.sysconf("SC_CLK_TCK")
STEP_SECONDS: Final = 0.005
"""Seconds between two writes of a paced publisher."""
INNOCENT_SECONDS: Final = 0.01
"""Seconds between two innocent messages."""
READ_BYTES: Final = 256 << 10
MOST_BYTES: Final = 1 << 30
"""The growth of the relay's memory at which a load ends."""
SAMPLE_SECONDS: Final = 0.05

PACED: Final = 4_000
"""Messages a second, while one subscriber stalls: with 500 bytes, 2 MB/s to each."""
PACED_BYTES: Final = 500
BEFORE_SECONDS: Final = 1.0
STALL_SECONDS: Final = 4.0
AFTER_SECONDS: Final = 1.0

UNCONFIRMED: Final = 20_000
"""The most unconfirmed messages of a publisher with QoS 1: fewer than packet identifiers exist."""
QUEUE_SECONDS: Final = 4.0
QUEUED_BYTES: Final = 200
WRITE_BYTES: Final = 64 << 10
"""The most bytes that wait to be written by that publisher, without innocent messages."""
SLOW_STORE_SECONDS: Final = 1.0

STAMP: Final = struct.Struct(">d")


class BenchmarkError(Exception):
    """Nothing could be measured; the message says why."""


FAILURES: Final = (BenchmarkError, ServerError, GeneratorError, ImportError, OSError)


# ---- Clients -------------------------------------------------------------------------------------


class Client:
    """A connection that is written to and read from without blocking."""

    def __init__(self, path: Path, name: str, *, clean: bool = True) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(path))
        self.sock.sendall(encode(Connect(name, clean)))
        self._expect(4)
        self.sock.setblocking(True)
        self.pending = bytearray()
        self.received = 0

    def _expect(self, size: int) -> None:
        left = size
        while left:
            data = self.sock.recv(left)
            if not data:
                raise BenchmarkError("the relay closed a connection that had done nothing wrong")
            left -= len(data)

    def subscribe(self, topic: str, qos: int = 0) -> None:
        """Subscribe, and wait until that is confirmed."""
        self.sock.sendall(encode(Subscribe(1, ((topic, qos),))))
        self._expect(5)

    def flush(self) -> None:
        """Write as much as the kernel takes."""
        if self.pending:
            try:
                sent = self.sock.send(self.pending)
            except BlockingIOError:
                return
            del self.pending[:sent]

    def read(self) -> bytes:
        """Read as much as the kernel has."""
        try:
            data = self.sock.recv(READ_BYTES)
        except BlockingIOError:
            return b""
        self.received += len(data)
        return data


class Probe(Client):
    """An innocent subscriber, which notes when its messages come."""

    def __init__(self, path: Path, topic: str) -> None:
        super().__init__(path, f"probe-{topic}")
        self.subscribe(topic)
        self.frame = len(stamped(topic, 0.0))
        self.came: list[float] = []
        self._rest = 0

    def read(self) -> bytes:
        """Read, and note when each came."""
        data = super().read()
        count, self._rest = divmod(self._rest + len(data), self.frame)
        self.came += [time.monotonic()] * count
        return data

    def longest_gap(self, start: float, end: float) -> tuple[float, float]:
        """Return the longest time between two that came, and when it began."""
        times = [start, *(each for each in self.came if start <= each <= end), end]
        gaps = [(after - before, before) for before, after in pairwise(times)]
        return max(gaps)


def stamped(topic: str, at: float) -> bytes:
    """Return a message with the time in it."""
    return encode(Publish(topic, STAMP.pack(at)))


@attrs.define
class Usage:
    """The CPU time of a process, and its peak memory."""

    pid: int
    most: int = MOST_BYTES
    rss_before: int = 0
    rss_peak: int = 0
    _due: float = 0.0

    def rss(self) -> int:
        """Return the bytes it has in RAM."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * PAGE

    def cpu(self) -> float:
        """Return the seconds of CPU it has used, all threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    @property
    def too_much(self) -> bool:
        """Whether its memory has grown so much that the load has to end."""
        return self.rss_peak - self.rss_before > self.most

    def begin(self) -> None:
        """Note its memory before the load."""
        self.rss_before = self.rss_peak = self.rss()

    def sample(self, now: float) -> None:
        """Look at its memory now and then."""
        if now >= self._due:
            self._due = now + SAMPLE_SECONDS
            self.rss_peak = max(self.rss_peak, self.rss())


class Loop:
    """Reads from and writes to clients until it is time to end."""

    def __init__(self, usage: Usage) -> None:
        self.usage = usage
        self.epoll = select.epoll()
        self.clients: dict[int, Client] = {}

    def add(self, client: Client) -> None:
        """Serve a client from now on."""
        client.sock.setblocking(False)
        self.clients[client.sock.fileno()] = client
        self.epoll.register(client.sock, select.EPOLLIN)

    def pause(self, client: Client) -> None:
        """Read no more from it."""
        self.epoll.modify(client.sock, 0)

    def resume(self, client: Client) -> None:
        """Read from it again."""
        self.epoll.modify(client.sock, select.EPOLLIN)

    def run(self, until: float, tick: Callable[[float], object]) -> None:
        """Serve them until then, or the server has too much; call `tick` each step."""
        due = time.monotonic()
        while (now := time.monotonic()) < until and not self.usage.too_much:
            if now >= due:
                tick(now)
                self.usage.sample(now)
                due = max(due + STEP_SECONDS, now)
            for fd, _ in self.epoll.poll(max(0.0, min(due, until) - time.monotonic())):
                self.clients[fd].read()

    def close(self) -> None:
        """Close all connections."""
        self.epoll.close()
        for client in self.clients.values():
            client.sock.close()


class Innocents:
    """Messages to two innocent ones: by a connection that is under test, and by another."""

    def __init__(self, path: Path, loop: Loop, under_test: Client) -> None:
        self.same, self.other = Probe(path, "innocent"), Probe(path, "other")
        self._under_test = under_test
        self._another = Client(path, "another")
        for each in (self.same, self.other, self._another):
            loop.add(each)
        self._due = 0.0

    def tick(self, now: float, most: int) -> None:
        """Publish what is due; on the connection under test unless so much waits to be written."""
        if now < self._due:
            return
        self._due = max(self._due + INNOCENT_SECONDS, now)
        if len(self._under_test.pending) <= most:
            self._under_test.pending += stamped("innocent", now)
        self._another.pending += stamped("other", now)
        self._another.flush()

    def gaps(self, start: float, end: float) -> dict[str, float]:
        """Return for how long each heard nothing, and how far into that time it began."""
        same, at = self.same.longest_gap(start, end)
        other, _ = self.other.longest_gap(start, end)
        return {"gap_same": same, "gap_other": other, "gap_after": at - start}


# ---- The loads -----------------------------------------------------------------------------------


@attrs.frozen
class Point:
    """One thing to measure."""

    load: str
    scheme: str
    fan_out: int

    def relay(self, scratch: Path) -> Relay:
        """Return the relay that it is measured with."""
        relay = SCHEMES[self.scheme]
        options = list(relay.options)
        if self.load != "keep-up":
            options += ["--listen", f"mqtt+unix://{scratch}/sock"]
        if self.load == "queues":
            options += ["--store", str(scratch / "store")]
            options += ["--fsync-interval", str(SLOW_STORE_SECONDS)]
        return dataclasses.replace(relay, options=tuple(options))


def keep_up(point: Point, port: int, pid: int, seconds: float) -> dict[str, Any]:
    """Measure a load that all subscribers keep up with."""
    few = point.fan_out <= 9
    load = Load("mqtt", point.fan_out, window=8_000 if few else 2_000, seconds=seconds)
    found = run(load, port=port, pid=pid)
    if not found.whole:
        raise BenchmarkError(f"{point}: not everything arrived")
    return {
        "deliveries": found.deliveries_per_second,
        "cpu": found.cpu_seconds_per_million,
        "rss": found.rss_peak_mb * 1e6,
        "rss_before": found.rss_before_mb * 1e6,
        "queued": found.kept_waiting,
    }


def stall(point: Point, path: Path, pid: int, seconds: float) -> dict[str, Any]:
    """Measure a load while one subscriber stops reading."""
    usage = Usage(pid)
    loop = Loop(usage)
    try:
        subscribers = [Client(path, f"sub-{n}") for n in range(point.fan_out)]
        for each in subscribers:
            each.subscribe("load")
            loop.add(each)
        publisher = Client(path, "publisher")
        loop.add(publisher)
        innocents = Innocents(path, loop, publisher)
        message = encode(Publish("load", bytes(PACED_BYTES)))
        most = 4 * len(message)
        made, last = 0, time.monotonic()

        def tick(now: float) -> None:
            nonlocal made, last
            # What could not be published when it was due is not made up for.
            count = int(min(now - last, 10 * STEP_SECONDS) * PACED)
            if count:
                last = now
                if len(publisher.pending) <= most:
                    publisher.pending += message * count
                    made += count
            innocents.tick(now, most + len(message) * count)
            publisher.flush()

        usage.begin()
        began, cpu = time.monotonic(), usage.cpu()
        loop.run(began + BEFORE_SECONDS, tick)
        loop.pause(subscribers[0])
        stalled = time.monotonic()
        loop.run(stalled + seconds, tick)
        loop.resume(subscribers[0])
        resumed = time.monotonic()
        loop.run(resumed + AFTER_SECONDS, tick)
        end = time.monotonic()
        others = subscribers[1:]
        return {
            **innocents.gaps(stalled, end),
            "rss": usage.rss_peak - usage.rss_before,
            "ended": usage.too_much,
            "published": made / (end - began),
            "delivered": sum(each.received for each in others) / len(message) / (end - began),
            "cpu_share": (usage.cpu() - cpu) / (end - began),
        }
    finally:
        loop.close()


def queues(point: Point, path: Path, pid: int, seconds: float) -> dict[str, Any]:
    """Measure messages through that many queues on disk, whose clients are away."""
    for number in range(point.fan_out):
        client = Client(path, f"queue-{number}", clean=False)
        client.subscribe("load", 1)
        client.sock.close()
    time.sleep(0.3)
    usage = Usage(pid)
    loop = Loop(usage)
    try:
        publisher = Client(path, "publisher")
        loop.add(publisher)
        innocents = Innocents(path, loop, publisher)
        ids = range(1, 60_001)
        ring = [encode(Publish("load", bytes(QUEUED_BYTES), 1, packet_id=n)) for n in ids]
        made = 0

        def tick(now: float) -> None:
            nonlocal made
            room = min(UNCONFIRMED - (made - publisher.received // 4), 300)
            if room > 0 and len(publisher.pending) < WRITE_BYTES:
                at = made % len(ring)
                some = ring[at : at + room]
                publisher.pending += b"".join(some)
                made += len(some)
            innocents.tick(now, 4 * WRITE_BYTES)
            publisher.flush()

        usage.begin()
        began, cpu = time.monotonic(), usage.cpu()
        loop.run(began + seconds, tick)
        end = time.monotonic()
        confirmed = publisher.received // 4
        used = usage.cpu() - cpu
        return {
            **innocents.gaps(began, end),
            "rss": usage.rss_peak - usage.rss_before,
            "ended": usage.too_much,
            "confirmed": confirmed / (end - began),
            # The first is confirmed when all that came with it is on the disk; maybe none was.
            "cpu": 1e6 * used / (confirmed * point.fan_out) if confirmed else None,
            "cpu_share": used / (end - began),
        }
    finally:
        loop.close()


@attrs.frozen
class Plan:
    """A measurement to make."""

    fan_outs: tuple[int, ...]
    seconds: dict[str, float]
    """For how long, by load: these loads are measured, in this order."""
    schemes: tuple[str, ...] = BESIDE
    passes: int = 3
    slow_passes: int = 1
    """The same, of the loads that take long; at most as many."""

    def points(self) -> Iterator[tuple[int, Point]]:
        """Return the measurements in order, each with the number of its pass."""
        for number in range(self.passes):
            # In turn: who comes first is warm for the others.
            turn = number % len(self.schemes)
            for load in self.seconds:
                if load != "keep-up" and number >= self.slow_passes:
                    continue
                for fan_out in self.fan_outs:
                    for scheme in self.schemes[turn:] + self.schemes[:turn]:
                        yield number, Point(load, scheme, fan_out)


def measure(point: Point, scratch: Path | None, cores: Cores, seconds: float) -> dict[str, Any]:
    """Measure one point, with a fresh relay.

    Raises:
        BenchmarkError, ServerError, GeneratorError, OSError: It could not be measured.
    """
    with tempfile.TemporaryDirectory(dir=scratch) as place, pinned(cores.generator):
        here = Path(place)
        with point.relay(here).running(here, cores.server) as running:
            if point.load == "keep-up":
                return keep_up(point, running.port, running.pid, seconds)
            of = stall if point.load == "stall" else queues
            return of(point, here / "sock", running.pid, seconds)


# ---- The command line ----------------------------------------------------------------------------

COLUMNS: Final[dict[str, tuple[tuple[str, str, float, str], ...]]] = {
    "keep-up": (
        ("deliveries/s", "deliveries", 1, ",.0f"),
        ("CPU s per million", "cpu", 1, ".2f"),
    ),
    "stall": (
        ("same connection: silent for, s", "gap_same", 1, ".2f"),
        ("other connection: silent for, s", "gap_other", 1, ".2f"),
        ("published/s", "published", 1, ",.0f"),
        ("RSS, MB", "rss", 1e6, ",.1f"),
    ),
    "queues": (
        ("confirmed/s", "confirmed", 1, ",.0f"),
        ("CPU s per million", "cpu", 1, ".1f"),
        ("same connection: silent for, s", "gap_same", 1, ".2f"),
        ("other connection: silent for, s", "gap_other", 1, ".2f"),
        ("RSS, MB", "rss", 1e6, ",.1f"),
    ),
}


def middle(rows: list[dict[str, Any]], load: str, scheme: str, fan_out: int, what: str) -> float:
    """Return the median of something over passes."""
    found = [
        row[what]
        for row in rows
        if (row["load"], row["scheme"], row["fan_out"]) == (load, scheme, fan_out)
        and row[what] is not None
    ]
    return statistics.median(found) if found else float("nan")


def schemes_in(rows: list[dict[str, Any]]) -> list[str]:
    """Return the schemes that were measured, in the order of tables."""
    return [scheme for scheme in SCHEMES if any(row["scheme"] == scheme for row in rows)]


def table(rows: list[dict[str, Any]], load: str) -> str:
    """Return medians of one load, as Markdown: all schemes in each cell."""
    columns = COLUMNS[load]
    those = schemes_in(rows)
    lines = [
        f"| fan-out | {' | '.join(name for name, *_ in columns)} |",
        f"| -: |{' -: |' * len(columns)}",
    ]
    for fan_out in sorted({row["fan_out"] for row in rows if row["load"] == load}):
        cells = [
            " / ".join(
                format(middle(rows, load, scheme, fan_out, what) / unit, shape).replace("nan", "-")
                for scheme in those
            )
            for _, what, unit, shape in columns
        ]
        lines.append(f"| {fan_out} | {' | '.join(cells)} |")
    return "\n".join(lines)


def numbers(text: str) -> list[int]:
    """Read `1,3,10`."""
    return [int(each) for each in text.split(",")]


def schemes(text: str) -> tuple[str, ...]:
    """Read `debt,nothing`."""
    found = tuple(text.split(","))
    for each in found:
        if each not in SCHEMES:
            raise argparse.ArgumentTypeError(f"{each} is none of {', '.join(SCHEMES)}")
    return found


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(LOADS), help="loads, separated by commas")
    parser.add_argument(
        "--schemes", type=schemes, default=BESIDE, help=f"of {', '.join(SCHEMES)}, by commas"
    )
    parser.add_argument("--fan-outs", type=numbers, default=list(FAN_OUTS))
    parser.add_argument("--passes", type=int, default=3, help="how often each point is measured")
    parser.add_argument(
        "--slow-passes", type=int, default=1, help="the same, of stalls and queues; at most as many"
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="of keeping up")
    parser.add_argument(
        "--stall", type=float, default=STALL_SECONDS, help="seconds without reading"
    )
    parser.add_argument("--queue-seconds", type=float, default=QUEUE_SECONDS)
    parser.add_argument("--json", type=Path, default=DATA, help="where to write what was measured")
    parser.add_argument("--scratch", type=Path, help="where there is room for the stores")
    parser.add_argument("--plot", type=Path, help="draw the pictures there, and measure nothing")
    return parser


def everything(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure all that was asked for."""
    seconds = {"keep-up": given.seconds, "stall": given.stall, "queues": given.queue_seconds}
    plan = Plan(
        tuple(given.fan_outs),
        {load: seconds[load] for load in given.only.split(",")},
        given.schemes,
        given.passes,
        given.slow_passes,
    )
    cores = Cores.choose()
    rows: list[dict[str, Any]] = []
    for number, point in plan.points():
        found = measure(point, given.scratch, cores, plan.seconds[point.load])
        rows.append({**attrs.asdict(point), "pass": number, **found})
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def main() -> None:
    """Measure, or draw."""
    given = arguments().parse_args()
    try:
        if given.plot is not None:
            draw(json.loads(given.json.read_text()), given.plot)
            return
        began = time.time()
        rows = everything(given)
    except FAILURES as error:
        sys.exit(f"credit_flow: {error}")
    settings = {
        "passes": given.passes,
        "slow_passes": given.slow_passes,
        "fsync_interval": SLOW_STORE_SECONDS,
        "stall_seconds": given.stall,
        "paced": PACED,
        "paced_bytes": PACED_BYTES,
        "queue_seconds": given.queue_seconds,
        "seconds": round(time.time() - began),
    }
    given.json.parent.mkdir(parents=True, exist_ok=True)
    given.json.write_text(
        json.dumps({"machine": machine(), "settings": settings, "rows": rows}, indent=1) + "\n"
    )
    for load in given.only.split(","):
        print(f"\n{load}, {' / '.join(schemes_in(rows))}:\n\n{table(rows, load)}")


if __name__ == "__main__":
    main()
