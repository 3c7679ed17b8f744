"""The growth of the cost of a delivery with connections, subscriptions and so on, 10 to 10,000.

    connections    clients that are connected and silent
    subscriptions  subscriptions that do not match, of ten clients
    topics         topics that the messages take in turn, all taken by one wildcard
    accounts       publishers that owe: each has published something that a subscriber, who does not
                   read, still has
    deliveries     subscribers that each message goes to, from 1 to 1,000
    raised         the same, and a publisher may owe for a thousand messages to each of them: by
                   default it may owe for 10,000 deliveries, so that a write holds no more than ten
                   messages where each goes to 1,000 subscribers

The load beside the first four is always the same: one publisher and nine subscribers, pipelined and
with one message in flight.

The relays of all sizes run at the same time, and get the load in turn, for a short while each. The
order is reversed from pass to pass, and measurements compared are seconds apart. A measurement that
other processes disturbed is repeated (at most a third of them are). After some passes there is
another round, with fresh relays. Printed are CPU seconds of the relay per million deliveries,
medians with the least and the most; the ratio of the cost at the largest size to that at the
smallest, the median over passes; and the exponent b of the fitted `cost = a * size ** b`: 0 is no
growth, 1 is linear.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import resource
import socket
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Final

import attrs

if not __package__:  # run as a file: the root is not yet where modules are looked for
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.fanout import BUSY, Cores, middle
from benchmarks.idle import ACCEPTED, connect, utf8
from benchmarks.loadgen import GeneratorError, Load, run
from benchmarks.servers import Relay, Running, ServerError, pinned
from clearfunds.transports.mqtt import encode_remaining_length

BUDGET: Final = 1.5
"""The highest ratio of the cost at the largest size to that at the smallest."""

SIZES: Final = (10, 1_000, 10_000)

FANS: Final = (1, 10, 100, 1_000)
"""Subscribers to each message, where their number is compared."""

RAISED: Final = ("--limit-items=1000000", "--limit-bytes=512MiB", "--server-limit-bytes=1GiB")
"""A thousand messages to a thousand subscribers, of more bytes than they have."""

CLIENTS: Final = 10
"""The clients with all the subscriptions that do not match."""

STUCK_BYTES: Final = 512
"""Of each message that is owed: together more than sockets take, from a hundred on."""

BATCH: Final = 100
"""How many clients connect before the first of them is waited for."""

WINDOW: Final = 2_000
"""Messages in flight to a subscriber, pipelined."""

MANY: Final = 200_000
"""Deliveries in flight in all, at most: 40 MB."""

LOADS: Final = {
    "pipelined": Load("mqtt", subscribers=9, window=WINDOW),
    "one in flight": Load("mqtt", subscribers=9, window=1),
}

RETRIED: Final = 3
"""One of this many measurements may be repeated."""

OTHER_FILES: Final = 1_100
"""Descriptors that a relay needs besides those of the clients of a size."""

FIRST_SECONDS: Final = {"pipelined": 30e-6, "one in flight": 200e-6}
"""Of warming up, for each topic: so that each has been published to before it is measured."""

Surroundings = Callable[[Running, int], list[socket.socket]]


# ---- What there is besides -----------------------------------------------------------------------


def packet(first: int, body: bytes) -> bytes:
    """Return an MQTT packet."""
    return bytes((first,)) + encode_remaining_length(len(body)) + body


def _subscribe(sock: socket.socket, filters: Sequence[str]) -> None:
    """Subscribe to at most 100 filters, so that the answer's length is one byte."""
    body = b"\x00\x01" + b"".join(utf8(each) + b"\x00" for each in filters)
    sock.sendall(packet(0x82, body))
    sock.recv(4 + len(filters), socket.MSG_WAITALL)


def idle(running: Running, count: int) -> list[socket.socket]:
    """Connect clients that say nothing.

    Raises:
        ServerError: One was not let in.
    """
    socks: list[socket.socket] = []
    for start in range(0, count, BATCH):
        some = range(start, min(start + BATCH, count))
        fresh = [socket.create_connection(("127.0.0.1", running.port)) for _ in some]
        socks += fresh
        for number, sock in zip(some, fresh, strict=True):
            name = utf8(f"client-{number:06}")
            sock.sendall(packet(0x10, utf8("MQTT") + b"\x04\x02\x00\x00" + name))
        for sock in fresh:
            answer = sock.recv(len(ACCEPTED), socket.MSG_WAITALL)
            if answer != ACCEPTED:
                raise ServerError(f"of {count} connections one was answered with {answer!r}")
    return socks


def subscriptions(running: Running, count: int) -> list[socket.socket]:
    """Subscribe to topics that no client publishes to."""
    socks = idle(running, CLIENTS)
    each = count // CLIENTS
    for number, sock in enumerate(socks):
        for start in range(0, each, 100):
            some = range(start, min(start + 100, each))
            _subscribe(sock, [f"devices/{number}/{place}/commands" for place in some])
    return socks


def owing(running: Running, count: int) -> list[socket.socket]:
    """Let publishers owe for messages that a subscriber does not read."""
    stuck = socket.socket()
    stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stuck.connect(("127.0.0.1", running.port))
    stuck.sendall(packet(0x10, utf8("MQTT") + b"\x04\x02\x00\x00" + utf8("stuck")))
    stuck.recv(4, socket.MSG_WAITALL)
    _subscribe(stuck, ["owed/#"])
    # More than the sockets on the way take, so that everything after it stays where it is.
    filler = connect(running.port, 999_999)
    filler.sendall(packet(0x30, utf8("owed/filler") + bytes(1 << 20)) * 8)
    publishers = idle(running, count)
    for sock in publishers:
        sock.sendall(packet(0x30, utf8("owed/a") + bytes(STUCK_BYTES)))
    return [stuck, filler, *publishers]


def nothing(running: Running, count: int) -> list[socket.socket]:
    """Have nothing else there."""
    return []


# ---- What is compared ----------------------------------------------------------------------------


def same(load: Load, size: int, name: str) -> Load:
    """Put the same load on all sizes."""
    return load


def in_turn(load: Load, size: int, name: str) -> Load:
    """Let the messages take that many topics in turn, all of them known before measuring."""
    warmup = load.warmup + size * FIRST_SECONDS[name]
    return dataclasses.replace(load, topics=size, wildcard=True, warmup=warmup)


def fanned(load: Load, size: int, name: str) -> Load:
    """Let that many subscribers have each message."""
    return dataclasses.replace(load, subscribers=size, window=min(load.window, MANY // size))


@attrs.frozen
class Dimension:
    """Something that there can be much of."""

    name: str
    surroundings: Surroundings = nothing
    load: Callable[[Load, int, str], Load] = same
    sizes: tuple[int, ...] = SIZES
    loads: tuple[str, ...] = tuple(LOADS)
    passes: int = 2
    """Of each round."""
    options: tuple[str, ...] = ()

    def within(self, most: int) -> tuple[int, ...]:
        """Return the sizes up to `most`, and `most` itself in place of what is above it."""
        return tuple(dict.fromkeys(min(size, most) for size in self.sizes))


DIMENSIONS: Final = (
    Dimension("connections", idle, passes=3),
    Dimension("subscriptions", subscriptions, passes=3),
    Dimension("topics", load=in_turn),
    Dimension("accounts", owing, options=("--stuck=wait", "--limit-bytes=64MiB")),
    Dimension("deliveries", load=fanned, sizes=FANS),
    Dimension("raised", load=fanned, sizes=FANS, loads=("pipelined",), options=RAISED),
)


# ---- Measuring -----------------------------------------------------------------------------------


@attrs.frozen
class Sample:
    """One measurement: its place and its result."""

    dimension: str
    load: str
    size: int
    number: int
    """Of the pass; those of the second round count on."""
    cpu: float
    """CPU seconds of the relay per million deliveries."""
    kept_waiting: float
    """The share of the time that other processes took from the relay or the generator."""


@attrs.frozen
class Effort:
    """The amount of measuring."""

    seconds: float = 0.3
    """Of each measurement."""
    rounds: int = 2
    most: int = SIZES[-1]
    """Of each size."""
    passes: int | None = None
    """Of a round; None: as many as the dimension says."""

    @property
    def is_enough(self) -> bool:
        """Whether each dimension has two sizes."""
        return all(len(dimension.within(self.most)) > 1 for dimension in DIMENSIONS)


@contextlib.contextmanager
def surrounded(dimension: Dimension, size: int, core: int | None) -> Generator[Running]:
    """Run a relay with that many connections, subscriptions, ... of the dimension.

    Raises:
        ServerError: It did not start, or refused a client.
    """
    options = ("--log-level=error", "--max-connections=20000", *dimension.options)
    relay = Relay(protocols=("mqtt",), options=options)
    with (
        tempfile.TemporaryDirectory() as scratch,
        relay.running(Path(scratch), core) as running,
    ):
        socks = dimension.surroundings(running, size)
        try:
            yield running
        finally:
            for sock in socks:
                sock.close()


@contextlib.contextmanager
def many_files() -> Generator[int]:
    """Allow as many descriptors as there may be, for as long as the block runs; yield how many."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Relays inherit it.
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    try:
        yield before[1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def room(files: int) -> int:
    """Return the largest size for that many descriptors: one process has those of all sizes."""
    return (files - OTHER_FILES) * SIZES[-1] // sum(SIZES)


class Measuring:
    """Measures, and counts how often it may be done again.

    Args:
        effort: How much.
        cores: Where relays and the generator run.
        report: Takes a line about each finished dimension and round.
    """

    def __init__(self, effort: Effort, cores: Cores, report: Callable[[str], None]) -> None:
        self.effort = effort
        self.cores = cores
        self.report = report
        self._credit = 0.0

    def dimension(self, dimension: Dimension) -> list[Sample]:
        """Measure all sizes of one thing.

        Raises:
            GeneratorError: Nothing could be measured, or a delivery was lost.
            ServerError: A relay did not start or stop as it should.
        """
        samples: list[Sample] = []
        passes = self.effort.passes or dimension.passes
        sizes = dimension.within(self.effort.most)
        for round_ in range(self.effort.rounds):
            with contextlib.ExitStack() as stack:
                relays = {
                    size: stack.enter_context(surrounded(dimension, size, self.cores.server))
                    for size in sizes
                }
                for number in range(round_ * passes, (round_ + 1) * passes):
                    for name in dimension.loads:
                        for size in sizes if number % 2 == 0 else reversed(sizes):
                            found = self.quietly(dimension, name, size, relays[size])
                            samples.append(attrs.evolve(found, number=number))
            self.report(f"{dimension.name}: round {round_ + 1} of {self.effort.rounds}")
        return samples

    def quietly(self, dimension: Dimension, name: str, size: int, running: Running) -> Sample:
        """Measure, and once more if it was disturbed; the less disturbed counts.

        Raises as `dimension`.
        """
        self._credit += 1 / RETRIED
        best = self.once(dimension, name, size, running)
        if best.kept_waiting > BUSY and self._credit >= 1:
            self._credit -= 1
            again = self.once(dimension, name, size, running)
            best = min(best, again, key=lambda sample: sample.kept_waiting)
        return best

    def once(self, dimension: Dimension, name: str, size: int, running: Running) -> Sample:
        """Measure; raises as `dimension`."""
        load = dataclasses.replace(LOADS[name], seconds=self.effort.seconds)
        with pinned(self.cores.generator):
            found = run(dimension.load(load, size, name), port=running.port, pid=running.pid)
        if not found.whole:
            msg = f"{dimension.name}, {name}, {size}: not everything was delivered"
            raise GeneratorError(msg)
        cpu = found.cpu_seconds_per_million
        return Sample(dimension.name, name, size, 0, cpu, found.kept_waiting)


# ---- What comes of it ----------------------------------------------------------------------------


def exponent(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """Return b of `cost = a * size ** b`, by least squares of the logarithms."""
    xs = [math.log(size) for size in sizes]
    ys = [math.log(value) for value in costs]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    above = sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True))
    return above / sum((a - x) ** 2 for a in xs)


@attrs.frozen
class Growth:
    """The cost at each size of one dimension, with one load."""

    dimension: str
    load: str
    costs: dict[int, list[float]]
    """CPU seconds per million deliveries by size, in each pass."""

    @classmethod
    def of(cls, samples: Iterable[Sample]) -> list[Growth]:
        """Sort the measurements by dimension and load."""
        found: dict[tuple[str, str], dict[int, dict[int, float]]] = {}
        for sample in samples:
            sizes = found.setdefault((sample.dimension, sample.load), {})
            sizes.setdefault(sample.size, {})[sample.number] = sample.cpu
        return [
            cls(
                dimension,
                load,
                {size: [sizes[size][n] for n in sorted(sizes[size])] for size in sorted(sizes)},
            )
            for (dimension, load), sizes in found.items()
        ]

    @property
    def sizes(self) -> list[int]:
        """All of them, the smallest first."""
        return list(self.costs)

    def times(self, size: int, than: int | None = None) -> list[float]:
        """Return how often as dear a size is as another (the smallest), pass by pass."""
        least = self.costs[self.sizes[0] if than is None else than]
        return [cost / base for cost, base in zip(self.costs[size], least, strict=True)]

    @property
    def ratio(self) -> float:
        """How often as dear the most is as the fewest."""
        return median(self.times(self.sizes[-1]))

    @property
    def exponent(self) -> float:
        """How it grows."""
        return exponent(self.sizes, [median(self.times(size)) for size in self.sizes])


def head(sizes: Sequence[int]) -> str:
    """Return the head of the table of a dimension."""
    return (
        f"| CPU s per M deliveries | {' | '.join(f'{size:,}' for size in sizes)} | times | "
        f"exponent |\n|-|{'-|' * (len(sizes) + 2)}"
    )


def line(growth: Growth) -> str:
    """Return a row of the table."""
    cells = " | ".join(middle(values, ".3f") for values in growth.costs.values())
    times = middle(growth.times(growth.sizes[-1]), ".2f")
    return f"| {growth.dimension}, {growth.load} | {cells} | {times} | {growth.exponent:+.3f} |"


def main() -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [dimension.name for dimension in DIMENSIONS]
    standard = Effort()
    parser.add_argument("--rounds", type=int, default=standard.rounds, help="with fresh relays (2)")
    parser.add_argument("--passes", type=int, help="of each round (3 or 2)")
    parser.add_argument(
        "--seconds", type=float, default=standard.seconds, help="of each measurement (0.4)"
    )
    parser.add_argument("--only", choices=names, action="append", help="may be repeated")
    parser.add_argument("--most", type=int, default=standard.most, help="of each (10000)")
    parser.add_argument("--check", action="store_true", help="fail above the budget")
    parser.add_argument("--json", type=Path, help="write every single figure there")
    options = parser.parse_args()
    with many_files() as files:
        most = min(options.most, room(files))
        if most < options.most:
            print(f"no more than {most}: {files} descriptors (ulimit -n)")
        effort = Effort(options.seconds, options.rounds, most, options.passes)
        if not effort.is_enough:
            print("scaling: nothing to compare: at least two sizes", file=sys.stderr)
            return 2
        chosen = [each for each in DIMENSIONS if not options.only or each.name in options.only]
        measuring = Measuring(effort, Cores.choose(), lambda text: print(text, file=sys.stderr))
        samples: list[Sample] = []
        try:
            for dimension in chosen:
                samples += (found := measuring.dimension(dimension))
                print(head(dimension.within(most)))
                print("\n".join(map(line, Growth.of(found))), flush=True)
        except (ServerError, GeneratorError) as error:
            print(f"scaling: {error}", file=sys.stderr)
            return 1
    if options.json is not None:
        options.json.write_text(json.dumps([attrs.asdict(each) for each in samples]) + "\n")
    too_much = [growth for growth in Growth.of(samples) if growth.ratio > BUDGET]
    for growth in too_much:
        print(
            f"scaling: {growth.dimension}, {growth.load}: {growth.ratio:.2f} times, "
            f"at most {BUDGET:g}",
            file=sys.stderr,
        )
    return 1 if options.check and too_much else 0


if __name__ == "__main__":
    sys.exit(main())
