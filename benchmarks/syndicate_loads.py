"""The relay's Syndicate port under loads that are not alike, beside the Rust syndicate-server.

The figure is the server's CPU in microseconds for each delivery (for each ping, in both
directions), over a stretch of seconds, with fresh servers that take turns: so it hardly depends on
the generator, which is slow, nor on other work.

    python benchmarks/syndicate_loads.py                        # all loads, three passes
    python benchmarks/syndicate_loads.py --loads state-1,ping-1 --passes 1
    python benchmarks/syndicate_loads.py --other CHECKOUT --loads state-1

The Rust server is found on the PATH, or at $SYNDICATE_SERVER (RUSTC_BOOTSTRAP=1 cargo install
syndicate-server --version 0.50.1 --locked); without it the relay is measured alone, and the output
says so.

Every client shows a sturdyref to a gatekeeper, as the example clients of the Rust crate do, and the
loads are theirs: `producer -a N` and `consumer`, `state-producer` and `state-consumer`, `pingpong`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import selectors
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

if not __package__:  # run as a file: the root is not yet where modules are looked for
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.fanout import Cores
from benchmarks.journal import cpu_seconds
from benchmarks.servers import (
    Running,
    ServerError,
    free_port,
    from_the_root,
    pinned,
    started,
    those_here,
    wait_until_it_accepts,
)
from clearfunds.transports.syndicate import (
    NEED_DATA,
    Assert,
    Connection,
    Embedded,
    Packet,
    Record,
    Turn,
    Value,
    WireRef,
    decode,
    encode,
    mint,
)

OID: Final = "syndicate"
KEY: Final = bytes(range(16))
ONLY_SAYS: Final = "<rewrite <bind <rec Says [<_> <_>]>> <ref 0>>"
"""A caveat: nothing but records of this label, unchanged."""

BLOB_BYTES: Final = 32 << 10
"""About how much is written at once, where there is no other bound on what is in flight."""
RECEIVE_BYTES: Final = 256 << 10
SEND_BUFFER: Final = 64 << 10
WARM_SECONDS: Final = 0.5
GIVE_UP_SECONDS: Final = 10.0
RUST: Final = "syndicate-server"
RELAY: Final = "relay"
# How an event that tells an observer something begins.
HEADS: Final = (b"\xb4\xb3\x01M", b"\xb4\xb3\x01A", b"\xb4\xb3\x01R")


def packet_of(text: str) -> Packet:
    """Return the packet that is written so, in Preserves text."""
    return decode(text.encode())


def wire(*texts: str) -> bytes:
    """Return packets that are written so, as they travel."""
    return b"".join(encode(packet_of(text)) for text in texts)


# -- Loads -----------------------------------------------------------------------------------------

OF_TWO: Final = "<group <rec {}> {{0: <bind <_>> 1: <bind <_>>}}>"
OF_ONE: Final = "<group <rec {}> {{0: <bind <_>>}}>"


@attrs.frozen
class Load:
    """A kind of traffic."""

    name: str
    meaning: str
    consumers: int
    pattern: str
    """What the consumers observe."""
    packets: Callable[[int], list[str]]
    """From the oid of the dataspace to the packets that the producer repeats; a ping's are the
    pings."""
    caveat: str | None = None
    """On the producer's reference."""
    in_flight: int | None = None
    """Pings that are under way at a time; None: it is no ping, and the producer writes what is
    taken."""
    budget: float | None = None
    """The ratio to the Rust server's CPU that the relay may have at most."""
    unit: str = "delivery"


def alike(oid: int) -> list[str]:
    """Return messages as `producer` sends them."""
    return [f'[[{oid} <M <Says "producer" #"">>]]'] * 500


def unlike(oid: int) -> list[str]:
    """Return messages with a number that differs, one in each turn."""
    return [f'[[{oid} <M <Says {1_000_000 + n} #"">>]]' for n in range(500)]


def actions(events: int, *, differ: bool) -> Callable[[int], list[str]]:
    """Return turns of so many messages each."""

    def packets(oid: int) -> list[str]:
        turns: list[str] = []
        for turn in range(max(1, 500 // events)):
            speakers = [
                str(1_000_000 + turn * events + n) if differ else '"producer"'
                for n in range(events)
            ]
            said = " ".join(f'[{oid} <M <Says {speaker} #"">>]' for speaker in speakers)
            turns.append(f"[{said}]")
        return turns

    return packets


def comes_and_goes(oid: int) -> list[str]:
    """Return turns in which an assertion comes, and turns in which it goes."""
    turns: list[str] = []
    for handle in range(1_000, 1_250):
        turns += [f"[[{oid} <A <Present 4711> {handle}>]]", f"[[{oid} <R {handle}>]]"]
    return turns


def many_come_and_go(oid: int) -> list[str]:
    """Return the same for assertions that all differ, of which fifty stand at a time."""
    turns: list[str] = []
    for first in range(0, 250, 50):
        some = range(first, first + 50)
        turns += [f"[[{oid} <A <Present {4_000 + n}> {1_000 + n}>]]" for n in some]
        turns += [f"[[{oid} <R {1_000 + n}>]]" for n in some]
    return turns


def pings(oid: int) -> list[str]:
    """Return pings, each with a time in nanoseconds."""
    return [f'[[{oid} <M <Ping {1_790_000_000_000_000_000 + 991 * n} #"">>]]' for n in range(500)]


SAYS: Final = OF_TWO.format("Says")
PRESENT: Final = OF_ONE.format("Present")

LOADS: Final = {
    load.name: load
    for load in (
        Load("alike-1", "messages that are alike, one a turn", 1, SAYS, alike, budget=1.0),
        Load("alike-9", "alike, nine observers", 9, SAYS, alike, budget=1.0),
        Load("unlike-1", "messages with a number that differs, one a turn", 1, SAYS, unlike),
        Load("unlike-9", "messages with a number that differs, nine observers", 9, SAYS, unlike),
        Load(
            "actions100-9", "100 equal messages a turn, nine observers", 9, SAYS,
            actions(100, differ=False), budget=2.5,
        ),
        Load(
            "events10-9", "ten different messages a turn, nine observers", 9, SAYS,
            actions(10, differ=True), budget=2.5,
        ),
        Load(
            "state-1", "one assertion that comes and goes", 1, PRESENT, comes_and_goes, budget=8.0,
        ),
        Load(
            "state-9", "one assertion that comes and goes, nine observers", 9, PRESENT,
            comes_and_goes, budget=8.0,
        ),
        Load(
            "states-1", "assertions that come and go, fifty at a time", 1, PRESENT,
            many_come_and_go, budget=8.0,
        ),
        Load(
            "attenuated-1", "messages as unlike-1, through a reference with a caveat", 1, SAYS,
            unlike, caveat=ONLY_SAYS,
        ),
        Load(
            "ping-1", "ping-pong, one in flight", 1, OF_TWO.format("Ping"), pings, in_flight=1,
            budget=2.0, unit="ping",
        ),
        Load(
            "ping-10", "ping-pong, ten in flight", 1, OF_TWO.format("Ping"), pings, in_flight=10,
            budget=4.0, unit="ping",
        ),
    )
}  # fmt: skip


# -- Servers ---------------------------------------------------------------------------------------


@attrs.frozen
class SyndicateRelay:
    """The relay of this checkout, with a gatekeeper."""

    name: str = RELAY
    checkout: Path | None = None
    """Another checkout, to measure in its place."""

    def missing(self) -> str | None:
        """Return None: whatever runs this has it."""
        return None

    @contextlib.contextmanager
    def running(self, scratch: Path, core: int | None) -> Generator[Running]:
        """Start it; as `benchmarks.servers.Server.running`."""
        port = free_port()
        key = scratch / "relay.key"
        key.write_text(KEY.hex())
        key.chmod(0o600)
        command = [
            sys.executable, "-m", "clearfunds", "relay",
            f"--listen=syndicate+tcp://127.0.0.1:{port}?gatekeeper", f"--sturdy-key-file={key}",
        ]  # fmt: skip
        environment = from_the_root(self.checkout)
        with started(self.name, command, scratch, core, environment=environment) as process:
            wait_until_it_accepts(self.name, process, port)
            yield Running({"syndicate": port}, process.pid)


@attrs.frozen
class RustServer:
    """The syndicate-server of the crate of that name."""

    name: str = RUST

    @property
    def program(self) -> str | None:
        """Where it is; None if it is not here."""
        named = os.environ.get("SYNDICATE_SERVER")
        return shutil.which(named or RUST, path=None if named else _search_path())

    def missing(self) -> str | None:
        """Say in a sentence what is missing to run it; None if nothing is."""
        if self.program is None:
            return (
                f"{self.name} is left out: it is neither on the PATH nor at $SYNDICATE_SERVER "
                "(RUSTC_BOOTSTRAP=1 cargo install syndicate-server --version 0.50.1 --locked)."
            )
        return None

    def version(self) -> str:
        """Return what it says about its version."""
        assert self.program is not None
        done = subprocess.run(
            [self.program, "--version"], capture_output=True, text=True, check=False
        )
        return (done.stdout or done.stderr).strip() or RUST

    @contextlib.contextmanager
    def running(self, scratch: Path, core: int | None) -> Generator[Running]:
        """Start it; as `benchmarks.servers.Server.running`."""
        port = free_port()
        config = scratch / "syndicate.pr"
        config.write_text(
            "let ?space = dataspace\n"
            f'<bind <ref {{oid: "{OID}" key: #x"{KEY.hex()}"}}> $space #f>\n'
            f'<require-service <relay-listener <tcp "127.0.0.1" {port}> $gatekeeper>>\n'
        )
        program = self.program
        assert program is not None
        command = [program, "--no-banner", "-c", str(config)]
        with started(self.name, command, scratch, core) as process:
            wait_until_it_accepts(self.name, process, port)
            yield Running({"syndicate": port}, process.pid)


AnyServer = SyndicateRelay | RustServer


def _search_path() -> str:
    # Not where the tests build it: theirs is a debug build, three times as slow.
    return os.pathsep.join([os.environ.get("PATH", ""), str(Path.home() / ".cargo" / "bin")])


# -- Clients ---------------------------------------------------------------------------------------


@attrs.define
class Client:
    """One connection, and the dataspace as it knows it."""

    sock: socket.socket
    oid: int = 0
    told: int = 0
    """Events it has been told of."""
    _tail: bytes = b""

    @classmethod
    def connect(cls, port: int, caveat: str | None = None) -> Client:
        """Connect, and have a sturdyref resolved, with a caveat if one is given.

        Raises:
            ServerError: It was not resolved.
        """
        sock = socket.create_connection(("127.0.0.1", port), timeout=GIVE_UP_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = cls(sock)
        caveats = [] if caveat is None else [_value(caveat)]
        sock.sendall(wire(f"[[0 <A <resolve {mint(OID, KEY, caveats)} #:[0 1]> 1>]]"))
        connection = Connection()
        while True:
            data = sock.recv(4096)
            if not data:
                raise ServerError("the server closed the connection instead of resolving")
            connection.receive_data(data)
            while (packet := connection.next_packet()) is not NEED_DATA:
                if isinstance(packet, Turn) and (oid := _resolved(packet)) is not None:
                    client.oid = oid
                    return client

    def observe(self, pattern: str) -> None:
        """Observe a pattern, and wait until that is in force."""
        self.sock.sendall(
            wire(
                f"[[{self.oid} <A <Observe {pattern} #:[0 2]> 2>]]",
                f"[[{self.oid} <S #:[0 3]>]]",
            )
        )
        data = b""
        while b"\xb4\xb3\x01M\x81" not in data:  # the answer to the sync: #t
            fresh = self.sock.recv(4096)
            if not fresh:
                raise ServerError("the server closed a connection")
            data += fresh

    def receive(self) -> int:
        """Read what is there; return how many events of it tell something."""
        data = self.sock.recv(RECEIVE_BYTES)
        if not data:
            raise ServerError("the server closed a connection")
        data = self._tail + data
        events = sum(data.count(head) for head in HEADS)
        self._tail = data[-3:]  # a head may be cut in two, and this is less than one
        self.told += events
        return events


def _value(text: str) -> Value:
    packet = packet_of(f"[[0 <M {text}>]]")
    assert isinstance(packet, Turn)
    event: Any = packet.events[0].event
    return event.body


def _resolved(turn: Turn) -> int | None:
    """Return the oid of the dataspace that an answer of the gatekeeper has."""
    for entry in turn.events:
        if isinstance(entry.event, Assert):
            answer = entry.event.assertion
            if isinstance(answer, Record) and len(answer.fields) == 1:
                ref = answer.fields[0]
                if isinstance(ref, Embedded) and isinstance(ref.embeddedValue, WireRef):
                    return ref.embeddedValue.oid
            raise ServerError(f"the gatekeeper answered {answer!r}")
    return None


# -- Measuring -------------------------------------------------------------------------------------


@attrs.frozen
class Sample:
    """One load with one server."""

    load: str
    server: str
    us: float
    """The server's CPU for each delivery or ping, in microseconds."""
    rate: float
    """Deliveries or pings a second."""


class _Window:
    """Tells when a stretch of seconds begins and ends, and what the server took in it."""

    def __init__(self, pid: int, seconds: float) -> None:
        self._pid = pid
        self._begins = time.monotonic() + WARM_SECONDS
        self._ends = self._begins + seconds
        self._before: tuple[float, float, int] | None = None

    def over(self, count: int) -> tuple[float, float] | None:
        """Return CPU in microseconds and number a second, when it is over."""
        now = time.monotonic()
        if self._before is None:
            if now >= self._begins:
                self._before = now, cpu_seconds(self._pid), count
            return None
        if now < self._ends:
            return None
        began, cpu, counted = self._before
        done = count - counted
        if not done:
            raise ServerError("nothing was delivered")
        return (cpu_seconds(self._pid) - cpu) / done * 1e6, done / (now - began)


def pump(load: Load, running: Running, seconds: float) -> tuple[float, float]:
    """Write all that is taken, and read all that comes."""
    with contextlib.ExitStack() as stack:
        consumers: list[Client] = []
        for _ in range(load.consumers):
            consumer = Client.connect(running.port)
            stack.enter_context(consumer.sock)
            consumer.observe(load.pattern)
            consumers.append(consumer)
        producer = Client.connect(running.port, load.caveat)
        stack.enter_context(producer.sock)
        producer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        blob = wire(*load.packets(producer.oid))
        blob *= max(1, BLOB_BYTES // len(blob))
        selector = stack.enter_context(selectors.DefaultSelector())
        producer.sock.setblocking(False)
        selector.register(producer.sock, selectors.EVENT_WRITE | selectors.EVENT_READ, None)
        for consumer in consumers:
            selector.register(consumer.sock, selectors.EVENT_READ, consumer)
        window = _Window(running.pid, seconds)
        sent = told = 0
        while (found := window.over(told)) is None:
            for key, events in selector.select(GIVE_UP_SECONDS):
                if key.data is not None:
                    told += key.data.receive()
                elif events & selectors.EVENT_READ:
                    producer.receive()
                else:
                    sent += producer.sock.send(memoryview(blob)[sent:])
                    sent %= len(blob)
        return found


def ping(load: Load, running: Running, seconds: float) -> tuple[float, float]:
    """Have pings answered by a pong each, and send the next one for each pong."""
    assert load.in_flight is not None
    with contextlib.ExitStack() as stack:
        pinger = Client.connect(running.port)
        stack.enter_context(pinger.sock)
        ponger = Client.connect(running.port)
        stack.enter_context(ponger.sock)
        ponger.observe(load.pattern)
        pinger.observe(OF_TWO.format("Pong"))
        there = [wire(text) for text in load.packets(pinger.oid)]
        back = [wire(text.replace("<Ping", "<Pong")) for text in load.packets(ponger.oid)]
        selector = stack.enter_context(selectors.DefaultSelector())
        selector.register(pinger.sock, selectors.EVENT_READ, (pinger, there))
        selector.register(ponger.sock, selectors.EVENT_READ, (ponger, back))
        for each in there[: load.in_flight]:
            pinger.sock.sendall(each)
        window = _Window(running.pid, seconds)
        turns = 0
        while (found := window.over(pinger.told)) is None:
            for key, _ in selector.select(GIVE_UP_SECONDS):
                client, packets = key.data
                for _ in range(client.receive()):
                    turns += 1
                    client.sock.sendall(packets[turns % len(packets)])
        return found


def measure(load: Load, server: AnyServer, seconds: float, cores: Cores, scratch: Path) -> Sample:
    """Measure one load with a fresh server.

    Raises:
        ServerError: It did not start, or ended a connection.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    with server.running(scratch, cores.server) as running, pinned(cores.generator):
        try:
            us, rate = (pump if load.in_flight is None else ping)(load, running, seconds)
        except OSError as error:
            raise ServerError(f"{server.name}, {load.name}: {error}") from error
    return Sample(load.name, server.name, us, rate)


def ratios(samples: Sequence[Sample], load: str) -> list[float]:
    """Return the relay's CPU as a ratio to the Rust server's, pass by pass."""
    by_server = {
        name: [each.us for each in samples if each.load == load and each.server == name]
        for name in (RELAY, RUST)
    }
    return [a / b for a, b in zip(by_server[RELAY], by_server[RUST], strict=False)]


def middle(samples: Sequence[Sample], load: str, server: str) -> float | None:
    """Return the median of a server's CPU under a load; None if it was not measured."""
    found = [each.us for each in samples if each.load == load and each.server == server]
    return statistics.median(found) if found else None


def shown(samples: Sequence[Sample], servers: Sequence[str]) -> str:
    """Return the results as a table."""
    lines = [
        f"{'load':14} " + " ".join(f"{name:>17}" for name in servers) + "    ratio  at most",
    ]
    for name, load in LOADS.items():
        cells = [middle(samples, name, server) for server in servers]
        if not any(cells):
            continue
        of = ratios(samples, name)
        ratio = f"{statistics.median(of):8.2f}" if of else f"{'':8}"
        most = "" if load.budget is None else f"{load.budget:8g}"
        row = " ".join(f"{'':17}" if us is None else f"{us:14.2f} us" for us in cells)
        lines.append(f"{name:14} {row} {ratio} {most}")
    return "\n".join(lines)


def main() -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--loads", default=",".join(LOADS), help="names, with commas (all)")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--only", choices=(RELAY, RUST), help="one server alone")
    parser.add_argument("--other", type=Path, help="another checkout, whose relay is measured, too")
    parser.add_argument("--json", type=Path, help="where every measurement is written to")
    parser.add_argument("--check", action="store_true", help="fail above a budget")
    options = parser.parse_args()
    unknown = [name for name in options.loads.split(",") if name not in LOADS]
    if unknown:
        parser.error(f"there is no load {', '.join(unknown)}; there are {', '.join(LOADS)}")
    servers: list[AnyServer] = [SyndicateRelay(), RustServer()]
    servers = [each for each in servers if options.only in (None, each.name)]
    if options.other is not None:
        servers.insert(1, SyndicateRelay("other", options.other.resolve()))
    servers = those_here(servers)
    cores = Cores.choose()
    samples: list[Sample] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.passes):
            for name in options.loads.split(","):
                for server in servers:
                    place = Path(folder) / f"{number}-{name}-{server.name}"
                    sample = measure(LOADS[name], server, options.seconds, cores, place)
                    samples.append(sample)
                    print(
                        f"{name:14} {server.name:17} {sample.us:9.2f} us, {sample.rate:11,.0f} /s",
                        file=sys.stderr, flush=True,
                    )  # fmt: skip
    print(shown(samples, [server.name for server in servers]))
    if options.json is not None:
        options.json.write_text(json.dumps([attrs.asdict(each) for each in samples], indent=1))
    missed = [
        name
        for name, load in LOADS.items()
        if load.budget is not None
        and (of := ratios(samples, name))
        and statistics.median(of) > load.budget
    ]
    if options.check and missed:
        print(f"above the budget: {', '.join(missed)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
