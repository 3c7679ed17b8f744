"""How the cost of a delivery grows with what else there is: from 10 to 10,000 of each.

    connections    clients that are connected and say nothing
    subscriptions  subscriptions that do not match, of ten clients
    topics         topics that the messages take in turn, all taken by one wildcard
    accounts       publishers that owe: each has published something that a subscriber, who does not
                   read, still has

The load beside them is always the same: one publisher and nine subscribers, pipelined and with one
message in flight. A relay of its own for each measurement; sizes are interleaved, and their order
turns round from pass to pass. Printed are CPU seconds of the relay per million deliveries, medians
with the least and the most, how often as dear the most is as the fewest, and the exponent b of the
fitted `cost = a * size ** b`: 0 is no growth, 1 is linear.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import resource
import socket
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from statistics import median
from typing import Final

import attrs

if not __package__:  # run as a file: the root is not yet where modules are looked for
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.idle import connect, utf8
from benchmarks.loadgen import GeneratorError, Load, run
from benchmarks.servers import Relay, Running, ServerError
from clearfunds.transports.mqtt import encode_remaining_length

BUDGET: Final = 1.5
"""How often as dear the largest size may be as the smallest."""

SIZES: Final = (10, 100, 1_000, 10_000)

CLIENTS: Final = 10
"""Who have all the subscriptions that do not match."""

STUCK_BYTES: Final = 512
"""Of each message that is owed: together more than sockets take, from a hundred on."""

LOADS: Final = {
    "pipelined": Load("mqtt", subscribers=9, window=2_000, seconds=2.0),
    "one in flight": Load("mqtt", subscribers=9, window=1, seconds=2.0),
}

Surroundings = Callable[[Running, int], list[socket.socket]]


def _packet(first: int, body: bytes) -> bytes:
    return bytes((first,)) + encode_remaining_length(len(body)) + body


def _subscribe(sock: socket.socket, filters: Sequence[str]) -> None:
    """Subscribe to at most 100 filters, so that the answer's length is one byte."""
    body = b"\x00\x01" + b"".join(utf8(each) + b"\x00" for each in filters)
    sock.sendall(_packet(0x82, body))
    sock.recv(4 + len(filters), socket.MSG_WAITALL)


def idle(running: Running, count: int) -> list[socket.socket]:
    """Connect clients that say nothing."""
    return [connect(running.port, number) for number in range(count)]


def subscriptions(running: Running, count: int) -> list[socket.socket]:
    """Subscribe to what nobody publishes."""
    socks = idle(running, CLIENTS)
    each = count // CLIENTS
    for number, sock in enumerate(socks):
        for start in range(0, each, 100):
            some = range(start, min(start + 100, each))
            _subscribe(sock, [f"devices/{number}/{place}/commands" for place in some])
    return socks


def owing(running: Running, count: int) -> list[socket.socket]:
    """Let publishers owe for what somebody does not read."""
    stuck = socket.socket()
    stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stuck.connect(("127.0.0.1", running.port))
    stuck.sendall(_packet(0x10, utf8("MQTT") + b"\x04\x02\x00\x00" + utf8("stuck")))
    stuck.recv(4, socket.MSG_WAITALL)
    _subscribe(stuck, ["owed/#"])
    # More than the sockets on the way take, so that everything after it stays where it is.
    filler = connect(running.port, 999_999)
    filler.sendall(_packet(0x30, utf8("owed/filler") + bytes(1 << 20)) * 8)
    socks = [stuck, filler]
    for number in range(count):
        sock = connect(running.port, number)
        sock.sendall(_packet(0x30, utf8("owed/a") + bytes(STUCK_BYTES)))
        socks.append(sock)
    return socks


def nothing(running: Running, count: int) -> list[socket.socket]:
    """Have nothing else there."""
    return []


@attrs.frozen
class Dimension:
    """Something that there can be much of."""

    name: str
    surroundings: Surroundings = nothing
    is_topics: bool = False
    options: tuple[str, ...] = ()


DIMENSIONS: Final = (
    Dimension("connections", idle),
    Dimension("subscriptions", subscriptions),
    Dimension("topics", is_topics=True),
    Dimension("accounts", owing, options=("--stuck=wait", "--limit-bytes=64MiB")),
)


@contextlib.contextmanager
def surrounded(dimension: Dimension, size: int) -> Generator[Running]:
    """Run a relay with so much of something."""
    options = ("--log-level=error", "--max-connections=20000", *dimension.options)
    relay = Relay(protocols=("mqtt",), options=options)
    with (
        tempfile.TemporaryDirectory() as scratch,
        relay.running(Path(scratch), None) as running,
    ):
        socks = dimension.surroundings(running, size)
        try:
            yield running
        finally:
            for sock in socks:
                sock.close()


def cost(dimension: Dimension, size: int, load: Load) -> float:
    """Return CPU seconds per million deliveries.

    Raises:
        GeneratorError: A delivery was lost.
    """
    if dimension.is_topics:
        load = Load(
            load.protocol, load.subscribers, load.window,
            topics=size, wildcard=True, seconds=load.seconds,
        )  # fmt: skip
    with surrounded(dimension, size) as running:
        found = run(load, port=running.port, pid=running.pid)
    if not found.whole:
        msg = f"{dimension.name}, {size}: not everything was delivered"
        raise GeneratorError(msg)
    return found.cpu_seconds_per_million


def exponent(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """Return b of `cost = a * size ** b`, by least squares of the logarithms."""
    xs = [math.log(size) for size in sizes]
    ys = [math.log(value) for value in costs]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    above = sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True))
    return above / sum((a - x) ** 2 for a in xs)


@attrs.frozen
class Row:
    """What one thing costs with one load."""

    dimension: str
    load: str
    costs: dict[int, list[float]]
    """CPU seconds per million deliveries of all passes, by size."""

    def medians(self) -> list[float]:
        """Return the median of each size."""
        return [median(values) for values in self.costs.values()]

    @property
    def ratio(self) -> float:
        """How often as dear the most is as the fewest."""
        found = self.medians()
        return found[-1] / found[0]

    @property
    def exponent(self) -> float:
        """How it grows."""
        return exponent(list(self.costs), self.medians())

    def line(self) -> str:
        """Return a row of the table."""
        cells = " | ".join(
            f"{median(values):.3f} ({min(values):.3f}-{max(values):.3f})"
            for values in self.costs.values()
        )
        return (
            f"| {self.dimension}, {self.load} | {cells} | {self.ratio:.2f} | {self.exponent:+.3f} |"
        )


def measure(dimensions: Sequence[Dimension], sizes: Sequence[int], passes: int) -> list[Row]:
    """Measure them all."""
    rows: list[Row] = []
    for dimension in dimensions:
        found = {name: {size: list[float]() for size in sizes} for name in LOADS}
        for number in range(passes):
            for size in sizes if number % 2 == 0 else reversed(sizes):
                for name, load in LOADS.items():
                    found[name][size].append(cost(dimension, size, load))
        for name in LOADS:
            rows.append(Row(dimension.name, name, found[name]))
            print(rows[-1].line(), flush=True)
    return rows


def main() -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [dimension.name for dimension in DIMENSIONS]
    parser.add_argument("--passes", type=int, default=3, help="of each measurement (3)")
    parser.add_argument("--only", choices=names, action="append", help="may be repeated")
    parser.add_argument("--most", type=int, default=SIZES[-1], help="of each (10000)")
    parser.add_argument("--check", action="store_true", help="fail above the budget")
    parser.add_argument("--json", type=Path, help="write every single figure there")
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    sizes = [size for size in SIZES if size <= min(options.most, most - 200)]
    if not sizes or (len(sizes) < len(SIZES) and options.most >= SIZES[-1]):
        print(f"no more than {sizes[-1] if sizes else 0}: {most} descriptors (ulimit -n)")
    if len(sizes) < 2:
        print("scaling: nothing to compare: at least two sizes", file=sys.stderr)
        return 2
    # The relay inherits it.
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    chosen = [each for each in DIMENSIONS if not options.only or each.name in options.only]
    print(f"| CPU s per M deliveries | {' | '.join(map(str, sizes))} | times | exponent |")
    print(f"|-|{'-|' * (len(sizes) + 2)}")
    try:
        rows = measure(chosen, sizes, options.passes)
    except (ServerError, GeneratorError) as error:
        print(f"scaling: {error}", file=sys.stderr)
        return 1
    if options.json is not None:
        options.json.write_text(json.dumps([attrs.asdict(row) for row in rows], indent=1) + "\n")
    too_much = [row for row in rows if row.ratio > BUDGET]
    for row in too_much:
        print(
            f"scaling: {row.dimension}, {row.load}: {row.ratio:.2f} times, at most {BUDGET:g}",
            file=sys.stderr,
        )
    return 1 if options.check and too_much else 0


if __name__ == "__main__":
    sys.exit(main())
