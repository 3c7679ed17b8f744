"""Queues under load: a backlog built and drained, ten million messages, three sweeps.

    python benchmarks/queues.py backlog       # the experiment of 2011, under both paging policies
    python benchmarks/queues.py ten-million   # through the relay, for a client that is away
    python benchmarks/queues.py sweeps        # in-flight window, prefetch, ack interval
    python benchmarks/queues.py plot          # the plots in docs/, from the results

Each command writes its results as JSON to docs/data/ (`--json FILE`: elsewhere), with the machine;
docs/queues.md explains them. Servers are processes. Their files are in one temporary directory (in
`--scratch DIR`), which is removed at the end; free space is checked first. Needs Linux.

The backlog and the sweeps run against examples/work_queue.py, because MQTT 3.1.1 has no competing
consumers with a prefetch, and no acks with a multiple flag. The ten million messages go through
`clearfunds relay`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import random
import selectors
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import trio

if not __package__:  # run as a file: the root is not yet where modules are looked for
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.fanout import Cores, machine, positive
from benchmarks.queue_plots import draw, rows
from benchmarks.servers import (
    CLASSIC_PAGING,
    Relay,
    ServerError,
    from_the_root,
    lines_until,
    pinned,
)
from clearfunds.dataspace.queues import AckBatcher
from examples.work_queue import NUMBER, PREFETCH, Client, Frames, connect, frame

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE: tuple[str, ...] = (str(ROOT / "examples" / "work_queue.py"),)
CLASSIC_EXAMPLE = ("-m", "experiments.classic_paging.work_queue")
DATA = ROOT / "docs" / "data"
HOST = "127.0.0.1"
PAGE = os.sysconf("SC_PAGE_SIZE")
TICK = os.sysconf("SC_CLK_TCK")
START_SECONDS = 30.0
STOP_SECONDS = 60.0
MIB = 1 << 20
DISK_LIMIT = f"--disk-limit={1 << 34}"
"""More than is written, so that nothing waits for it."""


ANYWHERE = Cores(None, None)


class BenchmarkError(Exception):
    """It could not be measured; the message says why."""


# ---- What is measured of a process ---------------------------------------------------------------


@attrs.frozen
class Process:
    """A process that is looked at from outside."""

    pid: int

    def rss(self) -> int:
        """Return its bytes in memory."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * PAGE

    def cpu(self) -> float:
        """Return the CPU seconds it has used, in all its threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK


def check_disk(directory: Path, needed: int) -> None:
    """See whether there is room.

    Raises:
        BenchmarkError: There is not.
    """
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise BenchmarkError(
            f"{directory} has {free / MIB:,.0f} MiB free and this may take {needed / MIB:,.0f}; "
            "choose another place with --scratch, or less with the options"
        )


@contextlib.contextmanager
def scratch(where: Path | None, needed: int) -> Generator[Path]:
    """Give a directory that is removed at the end."""
    where = Path(tempfile.gettempdir()) if where is None else where
    check_disk(where, needed)
    with tempfile.TemporaryDirectory(prefix="queues-", dir=where) as directory:
        yield Path(directory)


@contextlib.contextmanager
def work_queue(
    directory: Path | None,
    *options: str,
    program: tuple[str, ...] = EXAMPLE,
    core: int | None = None,
) -> Generator[tuple[int, Process]]:
    """Run the example's server, on that core if one is given; give its port, and it.

    Raises:
        ServerError: It did not start.
    """
    where = [] if directory is None else [f"--directory={directory}"]
    command = [sys.executable, *program, "serve", f"{HOST}:0", *where, *options]
    with tempfile.TemporaryFile() as log:
        with pinned(core):
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, env={**os.environ, **from_the_root()}
            )
        assert process.stdout is not None
        try:
            for line in lines_until(process.stdout, time.monotonic() + START_SECONDS):
                yield int(line.rpartition(b":")[2]), Process(process.pid)
                break
            else:
                log.seek(0)
                raise ServerError(f"the work queue did not start: {log.read().decode()[-500:]}")
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()


def say(text: str) -> None:
    """Report on stderr."""
    print(text, file=sys.stderr, flush=True)


def write(path: Path, result: dict[str, Any]) -> None:
    """Write what was measured."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, separators=(",", ":")) + "\n")
    say(f"written to {path}")


# ---- The experiment of 2011 ----------------------------------------------------------------------


@attrs.frozen
class BacklogSettings:
    """How the experiment is scaled."""

    paging: str
    rate: float
    """Messages published a second, each to all queues, for as long as it lasts."""
    backlog: int
    """Messages in all queues together at which consumers come back."""
    steady_seconds: float
    """For how long they keep up at first."""
    after_seconds: float
    """For how long it goes on when all is drained."""
    queues: int = 3
    consumers: int = 20
    """Of each queue, with a prefetch of 1 and one ack for each message."""
    size: int = 200
    memory: int = 256 * MIB
    """What the classic policy aims below; it pages from half of it on."""
    limit_seconds: float = 900.0
    """When it is given up: a backlog that never drains."""
    sample_seconds: float = 1.0
    """How often it is looked at."""


class Peer:
    """One connection of the load: frames in, frames out, never waiting."""

    def __init__(self, port: int, selector: selectors.BaseSelector) -> None:
        self.sock = socket.create_connection((HOST, port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setblocking(False)
        self.frames = Frames()
        self.out = bytearray()
        self._selector = selector
        selector.register(self.sock, selectors.EVENT_READ, self)

    def send(self, data: bytes = b"") -> None:
        """Send what the kernel takes, and keep the rest."""
        self.out += data
        while self.out:
            try:
                sent = self.sock.send(self.out)
            except BlockingIOError:
                return
            del self.out[:sent]

    def receive(self) -> Generator[bytes]:
        """Yield the frames that have come."""
        data = self.sock.recv(1 << 16)
        if not data:
            raise BenchmarkError("the server has closed a connection")
        self.frames.feed(data)
        while (body := self.frames.take()) is not None:
            if body[:1] == b"E":
                raise BenchmarkError(f"the server says: {body[1:].decode()}")
            yield body

    def close(self) -> None:
        """Leave."""
        self._selector.unregister(self.sock)
        self.sock.close()


class Backlog:
    """One run of the experiment."""

    def __init__(
        self,
        settings: BacklogSettings,
        port: int,
        server: Process,
        report: Callable[[str], None] = say,
    ) -> None:
        self.settings = settings
        self.report = report
        self.server = server
        self.port = port
        self.selector = selectors.DefaultSelector()
        self.names = [f"queue-{number}" for number in range(settings.queues)]
        self.control = Peer(port, self.selector)
        self.publisher = Peer(port, self.selector)
        self.workers: list[Peer] = []
        self.published = self.confirmed = self.acked = 0
        self.phase = "steady"
        self.phases: dict[str, float] = {}
        self.samples: list[dict[str, Any]] = []
        self.began = self.sampled = time.monotonic()
        self.job = frame(b"P", b"fanout/all", b"\0", bytes(settings.size))

    def run(self) -> dict[str, Any]:
        """Do it, and return what was measured."""
        for name in self.names:
            self.control.send(frame(b"D", name.encode(), b"\0", b"fanout/#"))
        declared = 0
        while declared < len(self.names):
            for key, _ in self.selector.select(1.0):
                declared += sum(body[:1] == b"D" for body in key.data.receive())
        self.begin("steady")
        self.attach()
        self.go_on(lambda: self.now() >= self.settings.steady_seconds)
        self.begin("paused")
        for worker in self.workers:
            worker.close()
        self.workers.clear()
        self.go_on(lambda: self.ready() >= self.settings.backlog)
        self.begin("draining")
        self.attach()
        self.go_on(lambda: self.ready() < 100 * len(self.names))
        drained = self.ready() < 100 * len(self.names)
        self.begin("drained")
        end = self.now() + self.settings.after_seconds
        self.go_on(lambda: self.now() >= end)
        for peer in (self.control, self.publisher, *self.workers):
            peer.close()
        self.selector.close()
        return {
            "settings": attrs.asdict(self.settings),
            "phases": self.phases,
            "drained": drained,
            "published": self.published,
            "acked": self.acked,
            # Column by column, which takes a third of the room.
            "samples": {name: [s[name] for s in self.samples] for name in self.samples[0]},
        }

    def now(self) -> float:
        return time.monotonic() - self.began

    def ready(self) -> int:
        return self.samples[-1]["ready"] if self.samples else 0

    def begin(self, phase: str) -> None:
        self.phase = phase
        self.phases[phase] = round(self.now(), 2)
        self.report(
            f"{self.settings.paging}: {phase} at {self.now():.0f} s, {self.ready():,} ready"
        )

    def attach(self) -> None:
        for name in self.names:
            for _ in range(self.settings.consumers):
                worker = Peer(self.port, self.selector)
                worker.send(frame(b"C", PREFETCH.pack(1), name.encode()))
                self.workers.append(worker)

    def go_on(self, done: Callable[[], bool]) -> None:
        """Publish at the rate, acknowledge what comes, and take samples, until it is done."""
        while not done() and self.now() < self.settings.limit_seconds:
            self.publish()
            for key, _ in self.selector.select(0.002):
                peer: Peer = key.data
                for body in peer.receive():
                    self.take(peer, body)
            if time.monotonic() - self.sampled >= self.settings.sample_seconds:
                self.sampled = time.monotonic()
                self.control.send(frame(b"S"))

    def publish(self) -> None:
        """Send what is due; who is not read for a while catches up afterwards."""
        due = int(self.now() * self.settings.rate) - self.published
        if due > 0 and len(self.publisher.out) < MIB:
            self.published += due
            self.publisher.send(self.job * due)
        else:
            self.publisher.send()

    def take(self, peer: Peer, body: bytes) -> None:
        kind = body[:1]
        if kind == b"M":
            # One ack for each message, and no other.
            peer.send(frame(b"A", body[1:9], b"\0"))
            self.acked += 1
        elif kind == b"K":
            number, multiple = NUMBER.unpack_from(body, 1)
            self.confirmed = number if multiple else self.confirmed + 1
        elif kind == b"S":
            self.sample(json.loads(body[1:]))

    def sample(self, found: dict[str, dict[str, int]]) -> None:
        def all_of(what: str) -> int:
            return sum(queue[what] for queue in found.values())

        self.samples.append(
            {
                "t": round(self.now(), 2),
                "phase": self.phase,
                "rss": self.server.rss(),
                "cpu": round(self.server.cpu(), 2),
                "due": int(self.now() * self.settings.rate),
                **{what: all_of(what) for what in ("ready", "in_memory", "on_disk")},
                **{what: all_of(what) for what in ("published", "acked")},
            }
        )


def measure_backlog(
    settings: BacklogSettings,
    where: Path | None = None,
    cores: Cores = ANYWHERE,
    report: Callable[[str], None] = say,
) -> dict[str, Any]:
    """Run the experiment under one policy, with a fresh server; return what was measured.

    Raises:
        BenchmarkError, ServerError: It could not be measured.
    """
    # Three copies of each, and what is copied forward before it is removed.
    most = settings.backlog + int(settings.queues * settings.rate * settings.limit_seconds)
    with scratch(where, 2 * most * (settings.size + 100)) as directory:
        options, program = [DISK_LIMIT], EXAMPLE
        if settings.paging == "classic":
            program = (*CLASSIC_EXAMPLE, f"--memory={settings.memory}")
        serving = work_queue(directory / "store", *options, program=program, core=cores.server)
        with (
            serving as (port, server),
            pinned(cores.generator),
        ):
            run = Backlog(settings, port, server, report)
            return {"load": os.getloadavg()[0], **run.run()}


def backlog(given: argparse.Namespace) -> None:
    """Run the experiment under each policy."""
    runs: list[dict[str, Any]] = []
    for paging in given.paging.split(","):
        settings = BacklogSettings(
            paging, given.rate, given.backlog, given.steady, given.after, memory=given.memory * MIB,
            limit_seconds=given.limit,
        )  # fmt: skip
        runs.append(measure_backlog(settings, given.scratch))
        print(backlog_lines(runs[-1]))
    write(given.json or DATA / "backlog.json", {"machine": machine(), "runs": runs})


@attrs.frozen
class Phase:
    """What a part of the experiment came to."""

    name: str
    seconds: float
    """From the first sample in it to the last."""
    published: float
    """Messages that came into the queues a second, all queues together."""
    acked: float
    """The same of those that were acknowledged."""
    ready: tuple[int, int]
    """Messages that waited, at its begin and at its end."""
    rss: tuple[int, int]
    """The least and the most bytes of the server in memory."""
    cpu: float
    """Of the server, in cores."""

    @property
    def cpu_each(self) -> float:
        """Microseconds of CPU for each message that came or was acknowledged."""
        moved = self.published + self.acked
        return 1e6 * self.cpu / moved if moved else float("nan")


def phases(run: dict[str, Any]) -> dict[str, Phase]:
    """Return the parts of a run that were long enough for two samples, by name."""
    samples = rows(run["samples"])
    found: dict[str, Phase] = {}
    for name in run["phases"]:
        those = [sample for sample in samples if sample["phase"] == name]
        if len(those) < 2:
            continue
        first, last = those[0], those[-1]
        seconds = last["t"] - first["t"]
        memory = [sample["rss"] for sample in those]
        found[name] = Phase(
            name,
            seconds,
            (last["published"] - first["published"]) / seconds,
            (last["acked"] - first["acked"]) / seconds,
            (first["ready"], last["ready"]),
            (min(memory), max(memory)),
            (last["cpu"] - first["cpu"]) / seconds,
        )
    return found


def backlog_lines(run: dict[str, Any]) -> str:
    """Return a run's phases as text."""
    paging = run["settings"]["paging"]
    lines = [
        f"{paging:8} {phase.name:9} {phase.seconds:6.0f} s  "
        f"in {phase.published:7,.0f}/s  out {phase.acked:7,.0f}/s  "
        f"ready {phase.ready[0]:8,} -> {phase.ready[1]:8,}  "
        f"RSS {phase.rss[0] / MIB:5.0f}..{phase.rss[1] / MIB:5.0f} MiB  CPU {phase.cpu:4.2f}"
        for phase in phases(run).values()
    ]
    return "\n".join([*lines, f"{paging:8} {'drained' if run['drained'] else 'DID NOT DRAIN'}"])


# ---- Ten million messages ------------------------------------------------------------------------

CYCLE = 65_535
"""Packet identifiers: 1 to 65,535."""
RUN = 1_285
"""Packets written at a time: a divisor of `CYCLE`."""
UNACKED = 20_000
"""Packets that may be on their way and unacknowledged."""


def mqtt_connect(port: int, client_id: bytes) -> socket.socket:
    """Connect with a session that is kept."""
    sock = socket.create_connection((HOST, port))
    variable = b"\0\x04MQTT\x04\0\0\0" + struct.pack(">H", len(client_id)) + client_id
    sock.sendall(bytes([0x10, len(variable)]) + variable)
    answer = sock.recv(4, socket.MSG_WAITALL)
    if answer[:2] != b"\x20\x02" or answer[3]:
        raise BenchmarkError(f"the relay answered CONNECT with {answer!r}")
    return sock


def publications(size: int) -> list[bytes]:
    """Return QoS 1 publications with all packet identifiers, a run in each element."""
    packets: list[bytes] = []
    for number in range(1, CYCLE + 1):
        body = b"\0\x05ten/m" + struct.pack(">HI", number, number) + bytes(size - 4)
        length = len(body)
        assert 128 <= length < 16_384
        packets.append(bytes([0x32, 128 | length & 127, length >> 7]) + body)
    return [b"".join(packets[at : at + RUN]) for at in range(0, CYCLE, RUN)]


def ten_million(given: argparse.Namespace) -> None:
    """Queue messages for a client that is away; then let it come, and take some."""
    number: int = given.messages
    needed = int(number * (given.size + 150) * 1.2)
    no_limits = ("max-queued", "max-queued-bytes", "disk-limit")
    with scratch(given.scratch, needed) as directory:
        options = [f"--store={directory / 'store'}", *(f"--{name}=none" for name in no_limits)]
        options += ["--session-expiry=none", "--max-inflight=1000"]
        relay = Relay(protocols=("mqtt",), options=tuple(options))
        if given.paging == "classic":
            relay = dataclasses.replace(relay, program=CLASSIC_PAGING)
        with relay.running(directory, None) as running:
            server = Process(running.pid)
            subscriber = mqtt_connect(running.port, b"away")
            subscriber.sendall(b"\x82\x0a\0\x01\0\x05ten/m\x01")
            assert subscriber.recv(5, socket.MSG_WAITALL)[-1] == 1
            subscriber.sendall(b"\xe0\0")
            subscriber.close()
            result = queue_all(number, given.size, running.port, server)
            result.update(take_some(given.take, running.port, server))
            stored = sum(f.stat().st_size for f in (directory / "store").iterdir())
    result.update(
        paging=given.paging, messages=number, size=given.size, stored=stored, machine=machine()
    )
    grown = result["rss_peak"] - result["rss_before"]
    print(
        f"{number:,} messages of {given.size} bytes queued in {result['seconds']:.0f} s "
        f"({number / result['seconds']:,.0f}/s), {stored / MIB:,.0f} MiB on disk; RSS "
        f"{result['rss_before'] / MIB:.0f} -> {result['rss_after'] / MIB:.0f} MiB, peak growth "
        f"{grown / MIB:.0f} MiB; {result['taken']:,} taken back at {result['take_rate']:,.0f}/s, "
        f"in order, RSS then up to {result['rss_taking'] / MIB:.0f} MiB"
    )
    write(given.json or DATA / "ten-million.json", result)


def queue_all(number: int, size: int, port: int, server: Process) -> dict[str, Any]:
    """Publish, and wait for each PUBACK."""
    runs = publications(size)
    before = peak = server.rss()
    samples: list[tuple[float, int, int]] = []
    with mqtt_connect(port, b"publisher") as sock:
        sock.setblocking(False)
        out = memoryview(b"")
        sent = acked = at = 0
        rest = b""
        began = said = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE)
            while acked < number:
                if not out and sent < number and sent - acked < UNACKED:
                    count = min(RUN, number - sent)
                    data = runs[at]
                    out = memoryview(data)[: len(data) // RUN * count]
                    sent += count
                    at = (at + 1) % len(runs)
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if out else 0)
                selector.modify(sock, wanted)
                ready = selector.select(60.0)
                if not ready:
                    raise BenchmarkError(f"no PUBACK for 60 s, after {acked:,}")
                for _, events in ready:
                    if events & selectors.EVENT_WRITE:
                        out = out[sock.send(out) :]
                    if events & selectors.EVENT_READ:
                        data = sock.recv(1 << 18)
                        if not data:
                            raise BenchmarkError(f"the relay closed it after {acked:,} PUBACKs")
                        data = rest + data
                        whole = len(data) // 4 * 4
                        for place in range(0, whole, 4):
                            # In the order of publication [MQTT-4.6.0-2].
                            expected = b"\x40\x02" + struct.pack(">H", acked % CYCLE + 1)
                            if data[place : place + 4] != expected:
                                raise BenchmarkError(f"PUBACK {acked + 1} is another")
                            acked += 1
                        rest = data[whole:]
                now = time.monotonic()
                if now - said >= 2.0:
                    said = now
                    rss = server.rss()
                    peak = max(peak, rss)
                    samples.append((round(now - began, 1), acked, rss))
                    if len(samples) % 10 == 0:
                        say(f"{acked:,} queued after {now - began:.0f} s, {rss / MIB:.0f} MiB")
        seconds = time.monotonic() - began
        sock.setblocking(True)
        sock.sendall(b"\xe0\0")
    return {
        "seconds": round(seconds, 2),
        "cpu_seconds": server.cpu(),
        "rss_before": before,
        "rss_after": server.rss(),
        "rss_peak": max(peak, server.rss()),
        "samples": samples,
    }


def take_some(number: int, port: int, server: Process) -> dict[str, Any]:
    """Come back, take messages and acknowledge them; see that they are in order."""
    taken = 0
    peak = server.rss()
    buffer = bytearray()
    began = time.monotonic()
    with mqtt_connect(port, b"away") as sock:
        sock.settimeout(60.0)
        while taken < number:
            data = sock.recv(1 << 18)
            if not data:
                raise BenchmarkError(f"the relay closed it after {taken:,} messages")
            buffer += data
            acks = bytearray()
            at = 0
            while len(buffer) - at >= 3:
                end = at + 3 + (buffer[at + 1] & 127) + (buffer[at + 2] << 7)
                if len(buffer) < end:
                    break
                packet_id, value = struct.unpack_from(">HI", buffer, at + 10)
                if value != taken % CYCLE + 1:
                    raise BenchmarkError(f"message {taken + 1} is another: {value}")
                acks += b"\x40\x02" + struct.pack(">H", packet_id)
                taken += 1
                at = end
            del buffer[:at]
            sock.sendall(acks)
            if taken % 1000 < 100:
                peak = max(peak, server.rss())
        seconds = time.monotonic() - began
        sock.sendall(b"\xe0\0")
    return {"taken": taken, "take_rate": round(taken / seconds), "rss_taking": peak}


# ---- Three sweeps --------------------------------------------------------------------------------


@attrs.frozen
class Point:
    """One setting of a publisher and a consumer."""

    sweep: str
    in_flight: int = 1000
    prefetch: int = 1000
    every: int = 1


SWEEPS: dict[str, list[Point]] = {
    "in-flight": [Point("in-flight", in_flight=n) for n in (1, 5, 20, 200, 1000, 10_000)],
    "prefetch": [Point("prefetch", prefetch=n) for n in (1, 10, 100, 1000, 10_000)],
    "ack-interval": [Point("ack-interval", every=n) for n in (1, 10, 50, 100, 250, 500)],
}
"""As the post that they are from has them."""

STAMP = struct.Struct(">d")


class Flow:
    """One publisher and one consumer, as fast as they are let."""

    def __init__(self, point: Point, size: int, seconds: float, warm_up: float) -> None:
        self.point = point
        self.payload = bytes(size - STAMP.size)
        self.seconds = seconds
        self.warm_up = warm_up
        self.latencies: list[float] = []
        self.confirmed = 0
        self.measuring = False

    async def run(self, port: int, server: Process) -> dict[str, Any]:
        """Do it, and return what was measured."""
        in_flight = self.point.in_flight
        async with (
            connect(HOST, port, in_flight=in_flight) as publisher,
            connect(HOST, port) as consumer,
            trio.open_nursery() as nursery,
        ):
            await consumer.declare("sweep", "sweep")
            publisher.on_confirm = self._confirmed
            nursery.start_soon(self._consume, consumer)
            nursery.start_soon(self._publish, publisher)
            await trio.sleep(self.warm_up)
            self.measuring = True
            began, cpu = time.monotonic(), server.cpu()
            own = time.process_time()
            await trio.sleep(self.seconds)
            self.measuring = False
            seconds = time.monotonic() - began
            cpu, own = server.cpu() - cpu, time.process_time() - own
            nursery.cancel_scope.cancel()
        found = sorted(self.latencies)
        return {
            "received": round(len(found) / seconds, 1),
            "confirmed": round(self.confirmed / seconds, 1),
            **{f"p{share}": percentile(found, share / 100) for share in (50, 95, 99)},
            "server_cpu": round(cpu / seconds, 2),
            "client_cpu": round(own / seconds, 2),
            "rss": server.rss(),
        }

    async def _publish(self, client: Client) -> None:
        while True:
            await client.publish("sweep", STAMP.pack(time.monotonic()) + self.payload)

    def _confirmed(self, numbers: list[int], refused: bool) -> None:
        if self.measuring and not refused:
            self.confirmed += len(numbers)

    async def _consume(self, client: Client) -> None:
        prefetch, every = self.point.prefetch, self.point.every
        client.consume("sweep", prefetch)
        async with trio.open_nursery() as nursery:
            with AckBatcher(client.acknowledge, prefetch=prefetch, every=every) as acks:
                nursery.start_soon(acks.run)
                while True:
                    job = await client.job()
                    acks.delivered(job.tag)
                    if self.measuring:
                        sent = STAMP.unpack_from(job.payload)[0]
                        self.latencies.append(time.monotonic() - sent)
                    acks.ack(job.tag)


def percentile(ordered: list[float], share: float) -> float | None:
    """Return a percentile of what is in order, in milliseconds."""
    if not ordered:
        return None
    return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)


@attrs.frozen
class SweepSettings:
    """How each point is measured."""

    size: int = 1000
    seconds: float = 5.0
    warm_up: float = 1.0
    runs: int = 3


def measure_points(
    points: list[tuple[str, Point]],
    settings: SweepSettings,
    where: Path | None = None,
    cores: Cores = ANYWHERE,
    report: Callable[[str], None] = say,
) -> list[dict[str, Any]]:
    """Measure each point in each kind of queue, in a mixed order, several times.

    Each time with a fresh server.

    Raises:
        BenchmarkError, ServerError: It could not be measured.
    """
    results: dict[tuple[str, Point], list[dict[str, Any]]] = {}
    # What a prefetch of 1 leaves behind, at a rate that nothing here reaches.
    needed = int((settings.seconds + settings.warm_up) * 50_000 * (settings.size + 100))
    for number in range(settings.runs):
        order = list(points)
        random.Random(number).shuffle(order)
        for place, (kind, point) in enumerate(order):
            with scratch(where, needed) as directory:
                store = None if kind == "memory" else directory / "store"
                with (
                    work_queue(store, DISK_LIMIT, core=cores.server) as (port, server),
                    pinned(cores.generator),
                ):
                    flow = Flow(point, settings.size, settings.seconds, settings.warm_up)
                    found = trio.run(flow.run, port, server)
            found["load"] = os.getloadavg()[0]
            results.setdefault((kind, point), []).append(found)
            report(
                f"run {number + 1}, {place + 1}/{len(order)}: {kind:6} {point.sweep:12} "
                f"{value_of(point):6,}: {found['received']:9,.0f}/s, p50 {found['p50']} ms"
            )
    return [
        {"kind": kind, "sweep": point.sweep, "value": value_of(point), "runs": runs}
        for (kind, point), runs in sorted(
            results.items(), key=lambda item: (item[0][0], item[0][1].sweep, value_of(item[0][1]))
        )
    ]


def sweeps(given: argparse.Namespace) -> None:
    """Measure the sweeps that were asked for."""
    points = [point for name in given.only.split(",") for point in SWEEPS[name]]
    if given.values is not None:
        wanted = [int(value) for value in given.values.split(",")]
        points = [point for point in points if value_of(point) in wanted]
    both = [(kind, point) for kind in given.kinds.split(",") for point in points]
    settings = SweepSettings(given.size, given.seconds, given.warm_up, given.runs)
    found = measure_points(both, settings, given.scratch)
    print(sweeps_table(found))
    said = {"size": given.size, "seconds": given.seconds, "runs": given.runs}
    write(
        given.json or DATA / "sweeps.json",
        {"machine": machine(), "settings": said, "points": found},
    )


def value_of(point: Point) -> int:
    """Return what is swept."""
    if point.sweep == "in-flight":
        return point.in_flight
    return point.prefetch if point.sweep == "prefetch" else point.every


def middle(runs: Iterable[dict[str, Any]], what: str) -> float:
    """Return the median of something over runs."""
    found = [run[what] for run in runs if run[what] is not None]
    return statistics.median(found) if found else float("nan")


def sweeps_table(rows: list[dict[str, Any]]) -> str:
    """Return medians, as Markdown."""
    lines = [
        "| | | | received/s | confirmed/s | p50 ms | p95 ms | p99 ms | server CPU | client CPU |",
        "|-|-|-:|-:|-:|-:|-:|-:|-:|-:|",
    ]
    for row in rows:
        runs = row["runs"]
        lines.append(
            f"| {row['kind']} | {row['sweep']} | {row['value']:,} | "
            + " | ".join(f"{middle(runs, what):,.0f}" for what in ("received", "confirmed"))
            + " | "
            + " | ".join(f"{middle(runs, what):,.1f}" for what in ("p50", "p95", "p99"))
            + " | "
            + " | ".join(f"{middle(runs, what):.2f}" for what in ("server_cpu", "client_cpu"))
            + " |"
        )
    return "\n".join(lines)


# ---- The command line ----------------------------------------------------------------------------


def arguments() -> argparse.ArgumentParser:
    """Say what may be written on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", type=Path, help="where to write what was measured")
    common.add_argument("--scratch", type=Path, help="where there is room for the stores")

    one = commands.add_parser("backlog", parents=[common], help="build a backlog, and drain it")
    one.add_argument("--paging", default="steady,classic", help="policies, separated by commas")
    one.add_argument("--rate", type=positive, default=1000.0, help="messages published a second")
    one.add_argument("--backlog", type=int, default=500_000, help="messages in all three queues")
    one.add_argument("--steady", type=positive, default=20.0, help="seconds with consumers before")
    one.add_argument("--after", type=positive, default=10.0, help="seconds when it is drained")
    one.add_argument("--memory", type=int, default=256, help="MiB that classic aims below")
    one.add_argument("--limit", type=positive, default=900.0, help="seconds until it is given up")

    two = commands.add_parser("ten-million", parents=[common], help="queue for a client away")
    two.add_argument("--messages", type=int, default=10_000_000)
    two.add_argument("--size", type=int, default=200, help="bytes of payload")
    two.add_argument("--take", type=int, default=200_000, help="messages taken back at the end")
    two.add_argument("--paging", choices=("steady", "classic"), default="steady")

    three = commands.add_parser("sweeps", parents=[common], help="windows, prefetch, ack interval")
    three.add_argument("--only", default=",".join(SWEEPS), help="sweeps, separated by commas")
    three.add_argument("--values", help="only these values of what is swept, as 1,10,100")
    three.add_argument("--kinds", default="disk,memory", help="queues: on disk, in memory")
    three.add_argument("--runs", type=int, default=3, help="how often each point is measured")
    three.add_argument("--seconds", type=positive, default=5.0, help="for how long")
    three.add_argument("--warm-up", type=positive, default=1.0, help="seconds before that")
    three.add_argument("--size", type=int, default=1000, help="bytes of payload")

    four = commands.add_parser("plot", help="draw the pictures in docs/ (needs matplotlib)")
    four.add_argument("--data", type=Path, default=DATA, help="where the JSON is")
    four.add_argument("--to", type=Path, default=ROOT / "docs", help="where the pictures go")
    return parser


def main() -> None:
    """Do what was asked for."""
    given = arguments().parse_args()
    try:
        if given.command == "plot":
            draw(given.data, given.to)
        else:
            {"backlog": backlog, "ten-million": ten_million, "sweeps": sweeps}[given.command](given)
    except (BenchmarkError, ServerError, ImportError, OSError) as error:
        sys.exit(f"queues: {error}")


if __name__ == "__main__":
    main()
