"""The growth of what there is: the cost and the memory of each client, filter, topic and account.

    connecting    10,000 clients, one after the other
    crowd         10,000 clients, a hundred at a time
    plain, plus, hash         100,000 filters of one client: without a wildcard, with +, with #
    many plain, plus, hash    the same of 1,000 clients
    shared        100,000 subscriptions of 1,000 clients to the same hundred filters
    retained      1,000,000 topics with a retained message of 100 bytes
    accounts      100,000 accounts that each owe for a message, in a process without a network

Beside the relay are mosquitto, NATS where it has the like, and two programs that accept clients and
do nothing else: `trio` with a task for each, `bare` without Trio. They show what of the cost is
Trio's, Python's and the kernel's.

Each run has a fresh server. The server's CPU time and its resident memory are read when a part of
the whole is there: a 32nd, a 16th, ... all of it. Passes are interleaved: each server in turn, then
again. Printed are, for all of it, the CPU time in microseconds and the memory in bytes of each, the
ratio of that CPU time to mosquitto's in the same pass, and the exponent b of the fitted `cost = a *
number ** b`, of the whole cost: 1 is linear, below 1 each further one is cheaper than those before.

    python benchmarks/growth.py                       # everything: six minutes
    python benchmarks/growth.py --only connecting --passes 2
    python benchmarks/growth.py --part 0.1 --check --json growth.json
"""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final, Protocol

import attrs

if not __package__:  # run as a file: the root is not yet where modules are looked for
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.fanout import Cores, table
from benchmarks.idle import ACCEPTED, resident_kib, utf8
from benchmarks.scaling import exponent, many_files, packet
from benchmarks.servers import (
    BARE,
    MOSQUITTO,
    NATS,
    ROOT,
    TRIO,
    AnyServer,
    Relay,
    Running,
    ServerError,
    from_the_root,
    pinned,
    those_here,
)

STEPS: Final = 6
"""How many numbers are looked at: a 32nd of the whole, and twice as many from step to step."""

CROWD: Final = 100
"""Clients that connect at the same time."""

SUBSCRIBERS: Final = 1_000
"""The clients that share the filters, where it is not one."""

A_PACKET: Final = 10
"""Filters in one SUBSCRIBE."""

IN_FLIGHT: Final = 100
"""SUBSCRIBEs that are sent before the first answer is waited for."""

SHARED: Final = 100
"""Different filters, where all clients have the same."""

RETAINED_BYTES: Final = 100
"""Of the payload of a retained message."""

RETAINED_AT_ONCE: Final = 5_000
"""Retained messages that are sent before the server has to say that it has handled them."""

ADDRESS_PORTS: Final = 20_000
"""Connections from one address, which has some 28,000 ports."""

OTHER_FILES: Final = 300
"""Descriptors that a server and this process need besides those of the clients."""

TIMEOUT: Final = 60.0
"""Seconds in which a server has to answer."""

LINEAR: Final = 1.1
"""The highest exponent that is called linear: a fit to six numbers is not more exact."""

OPTIONS: Final = (
    *("--max-connections=20000", "--connect-rate=none", "--listener-connect-rate=none"),
    *("--max-subscriptions=1000000", "--max-retained=2000000", "--max-retained-bytes=1GiB"),
    *("--quota-items=none", "--quota-bytes=none"),
)
"""The relay's limits are above what is measured; all else is as it is by default."""


# ---- Protocols -----------------------------------------------------------------------------------


class Wire(Protocol):
    """What is said to a server in its protocol, as bytes."""

    def hello(self, number: int) -> bytes:
        """Return what a client says first."""
        ...

    def welcome(self, sock: socket.socket) -> None:
        """Wait until the client has been let in."""
        ...

    def subscribe(self, filters: Sequence[str], first: int) -> bytes:
        """Return what subscribes to filters, of which the client has `first` already."""
        ...

    def subscribed(self, sock: socket.socket, count: int) -> None:
        """Wait for the answer to that."""
        ...


def received(sock: socket.socket, count: int) -> bytes:
    """Read so many bytes.

    Raises:
        ServerError: The server has closed the connection, or says nothing.
    """
    try:
        data = sock.recv(count, socket.MSG_WAITALL)
    except OSError as error:
        raise ServerError(f"the server did not answer: {error}") from error
    if len(data) < count:
        raise ServerError("the server has closed a connection")
    return data


class Mqtt:
    """MQTT 3.1.1."""

    def hello(self, number: int) -> bytes:
        """See `Wire.hello`."""
        return packet(0x10, utf8("MQTT") + b"\x04\x02\x00\x00" + utf8(f"client-{number:06}"))

    def welcome(self, sock: socket.socket) -> None:
        """See `Wire.welcome`."""
        answer = received(sock, len(ACCEPTED))
        if answer != ACCEPTED:
            raise ServerError(f"a client was answered with {answer!r}")

    def subscribe(self, filters: Sequence[str], first: int) -> bytes:
        """See `Wire.subscribe`."""
        return packet(0x82, b"\x00\x01" + b"".join(utf8(each) + b"\x00" for each in filters))

    def subscribed(self, sock: socket.socket, count: int) -> None:
        """See `Wire.subscribed`."""
        answer = received(sock, 4 + count)
        if answer[4:] != bytes(count):
            raise ServerError(f"a subscription was answered with {answer!r}")


class Nats:
    """NATS, in which a PONG is the answer to everything before the PING."""

    def hello(self, number: int) -> bytes:
        """See `Wire.hello`."""
        return (
            b'CONNECT {"verbose":false,"pedantic":false,"name":"client-%06d"}\r\nPING\r\n' % number
        )

    def welcome(self, sock: socket.socket) -> None:
        """See `Wire.welcome`; what the server is stands before it."""
        self._until_pong(sock)

    def subscribe(self, filters: Sequence[str], first: int) -> bytes:
        """See `Wire.subscribe`."""
        subjects = (each.replace("/", ".").replace("+", "*").replace("#", ">") for each in filters)
        lines = (f"SUB {each} {first + place}\r\n" for place, each in enumerate(subjects))
        return ("".join(lines) + "PING\r\n").encode()

    def subscribed(self, sock: socket.socket, count: int) -> None:
        """See `Wire.subscribed`."""
        self._until_pong(sock)

    def _until_pong(self, sock: socket.socket) -> None:
        line = b""
        while line != b"PONG\r\n":
            line = b""
            while not line.endswith(b"\n"):
                line += received(sock, 1 if line else 6)
            if line.startswith(b"-ERR"):
                raise ServerError(f"the server said {line.decode(errors='replace').strip()}")


WIRES: Final[dict[str, Wire]] = {"mqtt": Mqtt(), "nats": Nats()}


# ---- What grows ----------------------------------------------------------------------------------


@attrs.frozen
class Client:
    """This end of what is measured: connections to one server."""

    port: int
    wire: Wire
    socks: list[socket.socket] = attrs.field(factory=list[socket.socket])

    def open(self, number: int) -> socket.socket:
        """Open a connection, and say who it is."""
        source = (f"127.0.0.{1 + number // ADDRESS_PORTS}", 0) if number >= ADDRESS_PORTS else None
        try:
            sock = socket.create_connection(("127.0.0.1", self.port), TIMEOUT, source)
            self.socks.append(sock)
            sock.sendall(self.wire.hello(number))
        except OSError as error:
            raise ServerError(f"client {number} could not connect: {error}") from error
        return sock

    def connect(self, first: int, end: int, at_once: int) -> None:
        """Connect clients, so many at a time, and wait until they have been let in."""
        for start in range(first, end, at_once):
            fresh = [self.open(number) for number in range(start, min(start + at_once, end))]
            for sock in fresh:
                self.wire.welcome(sock)

    def close(self) -> None:
        """Close them all."""
        for sock in self.socks:
            sock.close()


Drive = Callable[[Client, Sequence[int]], Iterator[None]]
"""Prepares, yields, brings as many as the first number says, yields, ... up to the last number."""


def connecting(at_once: int) -> Drive:
    """Return what connects clients, so many at a time."""

    def drive(client: Client, marks: Sequence[int]) -> Iterator[None]:
        client.connect(0, 1, 1)  # what is made once does not count
        yield
        before = 0
        for mark in marks:
            client.connect(1 + before, 1 + mark, at_once)
            before = mark
            yield

    return drive


def subscribing(form: str, clients: int = 1, different: int | None = None) -> Drive:
    """Return what subscribes clients, in turn, to filters of a form, all `different` or so many."""

    def drive(client: Client, marks: Sequence[int]) -> Iterator[None]:
        wire = client.wire
        client.connect(0, clients, CROWD)
        had = [0] * clients
        # What is made once does not count.
        client.socks[0].sendall(wire.subscribe(["first"], 0))
        wire.subscribed(client.socks[0], 1)
        had[0] = 1
        yield
        place, turn = 0, 0
        for mark in marks:
            while place < mark:
                asked: list[tuple[socket.socket, int]] = []
                while place < mark and len(asked) < IN_FLIGHT:
                    who, sock = turn % clients, client.socks[turn % clients]
                    end = min(place + A_PACKET, mark)
                    if different is None:
                        numbers: Iterable[int] = range(place, end)
                    else:
                        # Each client has each of them once.
                        start = A_PACKET * (turn // clients)
                        numbers = (each % different for each in range(start, start + end - place))
                    filters = [form.format(each) for each in numbers]
                    sock.sendall(wire.subscribe(filters, had[who]))
                    had[who] += len(filters)
                    asked.append((sock, len(filters)))
                    place, turn = end, turn + 1
                for sock, count in asked:
                    wire.subscribed(sock, count)
            yield

    return drive


def retaining(client: Client, marks: Sequence[int]) -> Iterator[None]:
    """Retain a message on each topic: a `Drive`."""
    client.connect(0, 1, 1)
    sock = client.socks[0]
    payload = bytes(RETAINED_BYTES)
    yield
    place = 0
    for mark in marks:
        while place < mark:
            end = min(place + RETAINED_AT_ONCE, mark)
            packets = [packet(0x31, topic(each) + payload) for each in range(place, end)]
            sock.sendall(b"".join(packets) + b"\xc0\x00")  # PINGREQ is answered after all of them
            received(sock, 2)
            place = end
        yield


def topic(number: int) -> bytes:
    """Return the topic of a retained message, as a string of MQTT: a site, a device, a sensor."""
    return utf8(f"site-{number % 97}/device-{number // 10:06}/sensor-{number % 10}")


@attrs.frozen
class Growth:
    """Something that there comes to be more and more of."""

    name: str
    words: str
    """In a table: what there is so much of."""

    most: int
    drive: Drive
    files: int = 0
    """Descriptors of a server for each."""

    servers: tuple[str, ...] = ("relay", "mosquitto", "nats")
    passes: int = 1

    def marks(self, part: float, files: int) -> tuple[int, ...]:
        """Return the numbers to look at, for a part of the whole and so many descriptors.

        Raises:
            ServerError: There are too few descriptors.
        """
        most = max(2 ** (STEPS - 1), round(self.most * part))
        if self.files:
            most = min(most, (files - OTHER_FILES) // self.files)
        if most < 2 ** (STEPS - 1):
            raise ServerError(f"{files} descriptors are too few (ulimit -n)")
        return tuple(most >> step for step in reversed(range(STEPS)))


ALL: Final = ("relay", "mosquitto", "nats", TRIO.name, BARE.name)
OF_MQTT: Final = ("relay", "mosquitto")
ACCOUNTS: Final = "accounts"
FORMS: Final = {
    "plain": "devices/{0:06}/commands/reset",
    "plus": "devices/{0:06}/+/reset",
    "hash": "devices/{0:06}/commands/#",
}

GROWTHS: Final = (
    Growth("connecting", "clients, one after the other", 10_000, connecting(1), 1, ALL, 2),
    Growth("crowd", f"clients, {CROWD} at a time", 10_000, connecting(CROWD), 1, ALL, 2),
    Growth("plain", "filters of one client", 100_000, subscribing(FORMS["plain"])),
    Growth("plus", "filters with + of one client", 100_000, subscribing(FORMS["plus"])),
    Growth("hash", "filters with # of one client", 100_000, subscribing(FORMS["hash"])),
    *(
        Growth(
            f"many-{name}",
            f"{words} of {SUBSCRIBERS:,} clients",
            100_000,
            subscribing(FORMS[name], SUBSCRIBERS),
        )
        for name, words in (
            ("plain", "filters"),
            ("plus", "filters with +"),
            ("hash", "filters with #"),
        )
    ),
    Growth(
        "shared",
        f"subscriptions of {SUBSCRIBERS:,} clients to {SHARED} filters",
        100_000,
        subscribing(FORMS["plain"], SUBSCRIBERS, SHARED),
    ),
    Growth("retained", "retained topics", 1_000_000, retaining, servers=OF_MQTT),
    Growth(ACCOUNTS, "accounts that owe", 100_000, connecting(1), servers=("relay",)),
)


# ---- Measuring -----------------------------------------------------------------------------------


@attrs.frozen
class Sample:
    """One run: what there was at each mark."""

    growth: str
    server: str
    number: int
    """Of the pass."""

    marks: Sequence[int]
    cpu: Sequence[float]
    """CPU seconds of the server since there was nothing, at each mark."""

    kib: Sequence[int]
    """KiB of resident memory that it had grown by, at each mark."""

    total_kib: int
    """Resident memory of the whole process at the end."""

    @property
    def each_us(self) -> float:
        """CPU time of each of all of them, in microseconds."""
        return self.cpu[-1] / self.marks[-1] * 1e6

    @property
    def each_bytes(self) -> float:
        """Memory of each of all of them."""
        return self.kib[-1] / self.marks[-1] * 1024

    @property
    def exponent(self) -> float:
        """How the whole cost grows: 1 is linear."""
        return exponent(self.marks, self.cpu)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has taken, with all of its threads."""
    # clock_getcpuclockid(3), which Python has not got: exact, where /proc has hundredths.
    return time.clock_gettime((~pid << 3) | 2)


class Measuring:
    """Measures growths.

    Args:
        cores: Where servers and this process run.
        part: Of each whole.
        report: Takes a line about each finished run.
    """

    def __init__(self, cores: Cores, part: float, report: Callable[[str], None]) -> None:
        self.cores = cores
        self.part = part
        self.report = report

    def growth(
        self, growth: Growth, servers: Sequence[AnyServer], passes: int | None = None
    ) -> list[Sample]:
        """Measure one, with each server in turn, so many times (None: as often as it says).

        Raises:
            ServerError: A server did not start, did not stop or did not do what it was told to.
        """
        samples: list[Sample] = []
        with many_files() as files:
            marks = growth.marks(self.part, files)
            passes = passes or growth.passes
            for number in range(passes):
                for server in servers:
                    if server.name not in growth.servers:
                        continue
                    if growth.name == ACCOUNTS:
                        sample = self._accounts(growth, marks)
                    else:
                        sample = self._once(growth, server, marks)
                    samples.append(attrs.evolve(sample, number=number))
                    self.report(
                        f"{growth.name}, pass {number + 1} of {passes}, {server.name}: "
                        f"{sample.each_us:.1f} us, {sample.each_bytes:,.0f} bytes each"
                    )
        return samples

    def _once(self, growth: Growth, server: AnyServer, marks: tuple[int, ...]) -> Sample:
        with (
            tempfile.TemporaryDirectory() as scratch,
            server.running(Path(scratch), self.cores.server) as running,
            pinned(self.cores.generator),
        ):
            return drive(growth, server.name, running, marks)

    def _accounts(self, growth: Growth, marks: tuple[int, ...]) -> Sample:
        """Measure accounts, in a process of their own."""
        words = [sys.executable, str(Path(__file__).resolve()), "--accounts"]
        words += map(str, marks)
        with pinned(self.cores.server):
            done = subprocess.run(
                words,
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, **from_the_root()},
                cwd=ROOT,
            )
        if done.returncode != 0:
            raise ServerError(f"accounts could not be measured: {done.stderr.strip()[-300:]}")
        return Sample(growth.name, "relay", 0, marks, **json.loads(done.stdout))


def drive(growth: Growth, name: str, running: Running, marks: tuple[int, ...]) -> Sample:
    """Bring a server what grows, and look at it at each mark.

    Raises:
        ServerError: It did not do what it was told to.
    """
    client = Client(running.port, WIRES[next(iter(running.ports))])
    cpu: list[float] = []
    kib: list[int] = []
    try:
        for _ in growth.drive(client, marks):
            cpu.append(cpu_seconds(running.pid))
            kib.append(resident_kib(running.pid))
    finally:
        client.close()
    return Sample(
        growth.name,
        name,
        0,
        marks,
        [each - cpu[0] for each in cpu[1:]],
        [each - kib[0] for each in kib[1:]],
        kib[-1],
    )


def accounts_here(marks: Sequence[int]) -> dict[str, Any]:
    """Open accounts in this process, each with a message that has still to be delivered.

    Each has a parent, and a name and a limit as those of a connection. The garbage collector is set
    as in a relay.
    """
    from clearfunds._cli._collector import spare_the_collector
    from clearfunds.accounts import Ledger, Limit
    from clearfunds.dataspace import Mailbox

    spare_the_collector()
    ledger = Ledger()
    server = ledger.open("server", limit=Limit(items=None, bytes=None), shared=True)
    limit = Limit(items=10_000, bytes=8 << 20)
    mailbox: Mailbox[bytes] = Mailbox(ledger, "consumer")
    cpu, kib = [time.process_time()], [resident_kib(os.getpid())]
    place = 0
    for mark in marks:
        for number in range(place, mark):
            account = ledger.open(f"mqtt:1883/-/client-{number:06}", limit=limit, parent=server)
            with account.turn(items=1, nbytes=100) as turn:
                turn.send(mailbox, b"message", nbytes=100)
        place = mark
        cpu.append(time.process_time())
        kib.append(resident_kib(os.getpid()))
    assert server.debt_items == marks[-1]
    return {
        "cpu": [each - cpu[0] for each in cpu[1:]],
        "kib": [each - kib[0] for each in kib[1:]],
        "total_kib": kib[-1],
    }


# ---- What comes of it ----------------------------------------------------------------------------


@attrs.frozen
class Found:
    """All passes of one growth with one server."""

    growth: str
    server: str
    samples: tuple[Sample, ...]

    @classmethod
    def of(cls, samples: Iterable[Sample]) -> list[Found]:
        """Sort runs by growth and server."""
        sorted_: dict[tuple[str, str], list[Sample]] = {}
        for sample in samples:
            sorted_.setdefault((sample.growth, sample.server), []).append(sample)
        return [cls(*names, tuple(each)) for names, each in sorted_.items()]

    @property
    def marks(self) -> Sequence[int]:
        """The numbers that were looked at."""
        return self.samples[0].marks

    @property
    def each_us(self) -> list[float]:
        """CPU time of each, in microseconds, in each pass."""
        return [sample.each_us for sample in self.samples]

    @property
    def each_bytes(self) -> list[float]:
        """Memory of each, in each pass."""
        return [sample.each_bytes for sample in self.samples]

    @property
    def total_mib(self) -> float:
        """Memory of the whole process, in MiB."""
        return median(sample.total_kib for sample in self.samples) / 1024

    @property
    def exponent(self) -> float:
        """How the whole cost grows: 1 is linear."""
        return median(sample.exponent for sample in self.samples)

    def times(self, other: Found | None) -> list[float]:
        """Return how often as dear each is as with another server, in each pass."""
        if other is None:
            return []
        theirs = {sample.number: sample.each_us for sample in other.samples}
        return [
            sample.each_us / theirs[sample.number]
            for sample in self.samples
            if sample.number in theirs
        ]


def find(found: Iterable[Found], growth: str, server: str) -> Found | None:
    """Return that of one growth and one server, if it was measured."""
    return next((each for each in found if (each.growth, each.server) == (growth, server)), None)


def rows(found: Sequence[Found]) -> list[list[str]]:
    """Return the rows of the table, without a head."""
    words = {growth.name: growth.words for growth in GROWTHS}
    made: list[list[str]] = []
    for each in found:
        times = each.times(find(found, each.growth, "mosquitto"))
        made.append(
            [
                words[each.growth],
                each.server,
                f"{each.marks[-1]:,}",
                _median(each.each_us, ".1f"),
                _median(times, ".2f"),
                f"{each.exponent:.2f}",
                _median(each.each_bytes, ",.0f"),
                f"{each.total_mib:,.0f}",
            ]
        )
    return made


def _median(values: Sequence[float], form: str) -> str:
    return f"{median(values):{form}}" if values else "-"


HEAD: Final = [
    "", "server", "number", "CPU us each", "x mosquitto", "exponent", "bytes each", "MiB in all",
]  # fmt: skip

CONNECTING_TIMES: Final = 1.5
"""What a connecting client may cost, as a multiple of mosquitto's CPU time."""

RETAINED_MIB: Final = 1024
"""What the relay may have in memory with all retained topics."""


def missed(found: Sequence[Found]) -> list[str]:
    """Return a sentence for each budget that is missed."""
    made: list[str] = []
    for each in found:
        if each.server != "relay":
            continue
        if each.exponent > LINEAR:
            made.append(f"{each.growth}: exponent {each.exponent:.2f}, at most {LINEAR:g}")
        if each.growth == "retained" and each.total_mib > RETAINED_MIB:
            made.append(f"retained: {each.total_mib:,.0f} MiB, at most {RETAINED_MIB:,}")
        times = each.times(find(found, each.growth, "mosquitto"))
        if each.growth == "connecting" and times and median(times) > CONNECTING_TIMES:
            made.append(
                f"connecting: {median(times):.2f} times mosquitto's CPU, at most "
                f"{CONNECTING_TIMES:g}"
            )
    return made


def servers_here(peers: Iterable[AnyServer]) -> list[AnyServer]:
    """Return the servers that are measured beside each other; says which peers are missing."""
    found = those_here([Relay(protocols=("mqtt",), options=OPTIONS), *peers])
    return [*found, TRIO, BARE]


def main() -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [growth.name for growth in GROWTHS]
    parser.add_argument("--passes", type=int, help="with each server (2 of connecting, else 1)")
    parser.add_argument("--part", type=float, default=1.0, help="of each whole (1)")
    parser.add_argument("--only", choices=names, action="append", help="may be repeated")
    parser.add_argument("--server", action="append", help="of these only; may be repeated")
    parser.add_argument("--check", action="store_true", help="fail above a budget")
    parser.add_argument("--json", type=Path, help="write every single figure there")
    parser.add_argument("--accounts", type=int, nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.accounts:
        print(json.dumps(accounts_here(options.accounts)))
        return 0
    if not (0 < options.part < math.inf and (options.passes is None or options.passes > 0)):
        parser.error("--part and --passes are above 0")
    servers = [
        server
        for server in servers_here((MOSQUITTO, NATS))
        if not options.server or server.name in options.server
    ]
    measuring = Measuring(Cores.choose(), options.part, lambda text: print(text, file=sys.stderr))
    samples: list[Sample] = []
    try:
        for growth in GROWTHS:
            if not options.only or growth.name in options.only:
                samples += measuring.growth(growth, servers, options.passes)
                if options.json is not None:
                    words = json.dumps([attrs.asdict(each) for each in samples])
                    options.json.write_text(words + "\n")
    except ServerError as error:
        print(f"growth: {error}", file=sys.stderr)
        return 1
    found = Found.of(samples)
    print(table(HEAD, rows(found)))
    sentences = missed(found)
    for sentence in sentences:
        print(f"growth: {sentence}", file=sys.stderr)
    return 1 if options.check and sentences else 0


if __name__ == "__main__":
    sys.exit(main())
