"""The load generator, from Python: compile it on demand, run it, read what it measured.

As a command (``python benchmarks/loadgen.py --protocol mqtt --port 1883 ...``) it builds the
generator if need be and hands over to it; ``--help`` lists its options.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("loadgen.c")
INCLUDED = Path(__file__).with_name("loadgen_many.c")
BINARY = Path(__file__).with_name("loadgen")

PATIENCE_SECONDS = 60.0
"""Beyond the run: for warm-up, and a drain of a few seconds. After it the generator is stuck."""


class GeneratorError(Exception):
    """The generator could not be built, or could not measure; the message says why."""


@dataclasses.dataclass(frozen=True)
class Stall:
    """Some subscribers who stop reading for a while, with a pace only."""

    subscribers: int
    begins: float
    """Seconds into the time that is measured."""

    seconds: float
    buffer: int = 0
    """Bytes of their sockets' buffers; 0: the kernel's own."""


@dataclasses.dataclass(frozen=True)
class Load:
    """What to put on a server."""

    protocol: str
    """``mqtt``, ``nats``, ``redis`` or ``syndicate``."""

    subscribers: int
    window: int
    """Messages in flight to the slowest subscriber, at most."""

    payload: tuple[int, int] = (200, 200)
    """Bytes of payload, least and most."""

    topics: int = 1
    wildcard: bool = False
    """Subscribe once with a wildcard, not to each topic by name. (With Syndicate one pattern has
    all topics, either way.)"""

    single: bool = False
    """Each message is a write of its own."""

    seconds: float = 3.0
    warmup: float = 0.2
    """Seconds of publishing before that, which are not measured."""

    rate: float | None = None
    """Messages a second, each sent when it is due, whatever the server does; None: as many as the
    window lets through."""

    publishers: int = 1
    """With a rate only; they take turns."""

    interval: float | None = None
    """With a rate: seconds of each line of a series over time; None: no series."""

    stall: Stall | None = None
    reconnect: bool = False
    """With a rate: whether a subscriber comes back that the server cut off."""

    drain: float = 3.0
    """How long to wait for more when nothing comes."""

    def arguments(self) -> list[str]:
        """Return the generator's options for this load."""
        least, most = self.payload
        options = {
            "protocol": self.protocol,
            "subscribers": self.subscribers,
            "window": self.window,
            "payload": f"{least}:{most}",
            "topics": self.topics,
            "seconds": self.seconds,
            "warmup": self.warmup,
            "drain": self.drain,
        }
        if self.rate is not None:
            options["rate"] = self.rate
            options["publishers"] = self.publishers
        if self.interval is not None:
            options["interval"] = self.interval
        if self.stall is not None:
            options["stalled"] = self.stall.subscribers
            options["stall"] = f"{self.stall.begins:g}:{self.stall.seconds:g}"
            if self.stall.buffer:
                options["stall-buffer"] = self.stall.buffer
        flags = {"wildcard": self.wildcard, "single": self.single, "reconnect": self.reconnect}
        return [
            *(f"--{name}={value}" for name, value in options.items()),
            *(f"--{name}" for name, given in flags.items() if given),
        ]


@dataclasses.dataclass(frozen=True)
class ManyLoad:
    """Many publishers, each with a topic of its own."""

    protocol: str
    """``mqtt``, or with QoS 0 ``nats`` or ``redis``."""

    kind: str
    """``pairs``: each topic has one subscriber; ``fan-in``: one subscriber has all topics."""

    publishers: int
    qos: int = 0
    """With 1 both sides acknowledge."""

    rate: float | None = None
    """Messages a second of all publishers together, each sent when it is due; None: as many as
    the window lets through."""

    window: int = 1
    """Without a rate: messages in flight of each publisher, at most."""

    away: bool = False
    """With persistent sessions, whose clients are away while messages are published: these are done
    when they are acknowledged ("delivered" is their number then), and are fetched at the end."""

    leave: bool = False
    """With ``away``: they are never fetched, so that it is not known what is there."""

    sleep: bool = False
    """Whether the generator sleeps whenever there is nothing to do: latencies have its wake-ups in
    them then."""

    payload: int = 200
    seconds: float = 3.0
    warmup: float = 0.5
    drain: float = 3.0

    def arguments(self) -> list[str]:
        """Return the generator's options for this load."""
        pace = f"--rate={self.rate}" if self.rate is not None else f"--window={self.window}"
        return [
            f"--protocol={self.protocol}",
            f"--{self.kind}={self.publishers}",
            f"--qos={self.qos}",
            pace,
            f"--payload={self.payload}",
            f"--seconds={self.seconds}",
            f"--warmup={self.warmup}",
            f"--drain={self.drain}",
            *(["--away"] if self.away else []),
            *(["--leave"] if self.leave else []),
            *(["--sleep"] if self.sleep else []),
        ]


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What the generator measured in one run: the fields of its JSON that the tables use."""

    deliveries_per_second: float
    cpu_seconds_per_million: float
    """User and system time of the server and its children, per million deliveries."""

    cpu_seconds: float
    cpu_user_seconds: float
    cpu_system_seconds: float
    server_share: float
    """CPU seconds of the server per second of the run."""

    generator_share: float
    """The same of the generator: near 1, the figures are about the generator."""

    generator_queued: float | None
    """The share of the time in which the generator was ready to run and had no core; None where
    the kernel does not say."""

    server_queued: float | None
    """The same of the server."""

    seconds: float
    published: int
    delivered: int
    lost: int
    """Deliveries that never came, over the whole run, warm-up included."""

    surplus: int
    reordered: int
    altered: int
    subscribers_closed: int
    publisher_closed: bool
    rss_before_mb: float
    rss_peak_mb: float

    @property
    def whole(self) -> bool:
        """Whether everything that was published reached every subscriber, once."""
        wrong = self.lost + self.surplus + self.reordered + self.altered + self.subscribers_closed
        return wrong == 0 and not self.publisher_closed

    @property
    def kept_waiting(self) -> float:
        """The share of the time that other processes took from the server or the generator."""
        return max(self.generator_queued or 0.0, self.server_queued or 0.0)

    @classmethod
    def from_json(cls, text: str) -> Measurement:
        """Read the generator's line of JSON."""
        found: dict[str, Any] = json.loads(text)
        return cls(**{field.name: found[field.name] for field in dataclasses.fields(cls)})


def build() -> Path:
    """Compile the generator unless it is newer than its source; return where it is.

    Raises:
        GeneratorError: There is no C compiler, or it refused the source.
    """
    changed = max(SOURCE.stat().st_mtime, INCLUDED.stat().st_mtime)
    if BINARY.exists() and BINARY.stat().st_mtime >= changed:
        return BINARY
    compiler = os.environ.get("CC") or shutil.which("cc")
    if compiler is None:
        raise GeneratorError(
            "no C compiler: the load generator is a C program that is compiled when it is first "
            "needed. Install one (Debian: apt install gcc libc6-dev) or set CC."
        )
    # Renamed into place, so that two builds at once do not run each other's half-written file.
    fresh = BINARY.with_name(f"loadgen.{os.getpid()}.tmp")
    command = [compiler, "-std=gnu11", "-O2", "-Wall", "-o", str(fresh), str(SOURCE)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise GeneratorError(f"cannot run the C compiler {compiler}: {error}") from error
    if done.returncode != 0:
        fresh.unlink(missing_ok=True)
        raise GeneratorError(f"{compiler} could not compile {SOURCE}:\n{done.stderr}")
    fresh.replace(BINARY)
    return BINARY


def run(load: Load, *, port: int, pid: int) -> Measurement:
    """Put ``load`` on the server at ``port`` whose process is ``pid``.

    The generator inherits the affinity of the caller.

    Raises:
        GeneratorError: Nothing could be measured. (Losses are not errors: see ``Measurement``.)
    """
    return Measurement.from_json(_output(load, port, pid))


def run_paced(load: Load, *, port: int, pid: int) -> dict[str, Any]:
    """Put a ``load`` that has a rate on a server, as ``run``; return all that the generator says.

    That is what ``Measurement`` has, and under "latency" (and "latency_stalled", of those who
    stopped reading) seconds from when messages were due to when they were read: "count", "mean",
    "p50", "p90", "p99", "p99.9" and some between, "max", and a "curve" of [part, seconds]. In the
    same form "generator_late" is by how much messages were sent late by the generator's own fault,
    "generator_turn" for how long it did not look at its sockets, and "behind" by how much they
    were sent late, whoever's fault it was. "series" has what became of the messages that were due
    in each interval.

    Raises:
        GeneratorError: Nothing could be measured.
    """
    found: dict[str, Any] = json.loads(_output(load, port, pid))
    return found


def run_many(
    load: ManyLoad, *, port: int, pid: int, patience: float = PATIENCE_SECONDS
) -> dict[str, Any]:
    """Put many publishers on a server, as ``run``; return all that the generator says.

    "cpu_seconds_per_million" is of deliveries. "latency" is from when messages were due (without a
    rate: sent) to when they were read, "confirmation" to when the publisher was acknowledged, both
    in the form that ``run_paced`` describes, or None. "whole" says whether everything arrived once,
    in order, and was acknowledged once.

    Raises:
        GeneratorError: Nothing could be measured.
    """
    found: dict[str, Any] = json.loads(_output(load, port, pid, patience))
    return found


def _output(load: Load | ManyLoad, port: int, pid: int, patience: float = PATIENCE_SECONDS) -> str:
    command = [str(build()), *load.arguments(), f"--port={port}", f"--pid={pid}"]
    timeout = load.seconds + patience
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)
    except subprocess.TimeoutExpired as error:
        raise GeneratorError(f"the load generator was still running after {timeout:g} s") from error
    if not done.stdout:
        raise GeneratorError(done.stderr.strip() or f"loadgen ended with {done.returncode}")
    return done.stdout


def main() -> None:
    """Build the generator and become it."""
    try:
        binary = build()
    except GeneratorError as error:
        sys.exit(f"loadgen: {error}")
    os.execv(binary, [str(binary), *sys.argv[1:]])


if __name__ == "__main__":
    main()
