"""One stuck topic of several on one connection: what becomes of the others.

One publisher has one connection and sends eight topics in turn, at a steady pace. Each topic has a
subscriber of its own. After some seconds the first topic's subscriber stops reading. Head-of-line
blocking is what the other seven notice of that: in their rate, and in their p99.

    python benchmarks/topics.py                       # everything there is: two minutes
    python benchmarks/topics.py --only relay

The servers are the relay with its defaults; the relay with `--profile lossless`, whose publisher
has to wait; the same with an account for each topic and publications above their limits refused
(`docs/over-limit.md`); and mosquitto, NATS and Redis with their defaults. To MQTT servers the
publisher speaks MQTT 5 and sends with QoS 1.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import struct
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import attrs

if not __package__:  # run as a file: the root is not yet where modules are looked for
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.clients import WIRES, Wire, connect
from benchmarks.fairness import percentile
from benchmarks.idle import utf8
from benchmarks.servers import PEERS, AnyServer, Relay, ServerError, pinned

TOPICS: Final = 8
STUCK: Final = 0
"""The topic whose subscriber stops reading."""
BESIDE: Final = ("mosquitto", "nats", "redis")
DIGITS: Final = 12
"""Digits of the time at the beginning of a payload: microseconds at which it was due."""
QUIET: Final = 0.5
"""Seconds in which what is on its way comes."""
RECEIVE_MAXIMUM: Final = 0x21
"""The property of a CONNACK [MQTT 5, section 3.2.2.3.3]."""
QUOTA_EXCEEDED: Final = 0x97
PUBACK: Final = 0x40
HEADER_BYTES: Final = 2
AS_IT_COMES: Final = "relay, as it comes"
LOSSLESS: Final = "relay, lossless"
REFUSED: Final = "relay, lossless, refused by topic"


@attrs.frozen
class Terms:
    """The load; times are in seconds."""

    rate: int = 3_200
    """Messages a second, of all topics."""
    payload: int = 10_000
    """Bytes of a message: what one topic gets in two seconds is a connection's limit."""
    before: float = 4.0
    """Seconds that are measured before the subscriber stops reading."""
    watch: float = 8.0
    """Seconds that are measured from then on."""


@attrs.frozen
class Found:
    """The results of one run. Delays are in seconds, from when a message was due."""

    server: str
    version: str
    before: float
    """The share of what was due to the seven that came in time, before."""
    share: float
    """The same for the worst served of the seven, once one topic is stuck."""
    p99_before: float
    p99: float
    """Of the worst served of the seven."""
    gap: float
    """The longest time without a message for one of the seven."""
    refused: int
    """Publications answered with 0x97."""
    refused_others: int
    """Those among them whose topic was none of the stuck one."""
    missing: int
    """Messages of the seven that were sent, not refused, and had not come when all was quiet: they
    are lost, or still wait behind the stuck topic's."""
    cut: bool
    """Whether the server closed the stuck one's connection."""


# -- the connections ------------------------------------------------------------------------------


def _hello5(name: str) -> bytes:
    body = b"\x00\x04MQTT\x05\x02\x00\x00\x00" + utf8(name)
    return bytes((0x10, len(body))) + body


def _length(value: int) -> bytes:
    return bytes((value,)) if value < 128 else bytes((value & 127 | 128, value >> 7))


def _frame5(topic: int, number: int, payload: bytes) -> bytes:
    body = utf8(f"stuck/{topic}") + struct.pack(">HB", number, 0) + payload
    return b"\x32" + _length(len(body)) + body


def window_of(connack: bytes) -> int:
    """Return the Receive Maximum that a CONNACK names; the default is 65,535."""
    properties = connack[5 : 5 + connack[4]]
    # Of the properties that these servers send, those before it have one, two or four bytes.
    sizes = dict.fromkeys((0x24, 0x25, 0x28, 0x29, 0x2A), 1)
    sizes |= {0x13: 2, 0x22: 2, 0x11: 4, 0x27: 4}
    place = 0
    while place < len(properties):
        kind = properties[place]
        if kind == RECEIVE_MAXIMUM:
            return int.from_bytes(properties[place + 1 : place + 3], "big")
        if kind not in sizes:
            break
        place += 1 + sizes[kind]
    return 65_535


@attrs.define(eq=False)
class Reader:
    """A topic's subscriber: when its messages come, and how late."""

    sock: socket.socket
    size: int
    """Bytes of a delivered message."""
    at: int
    """Where its payload begins."""
    ping: bytes
    pong: bytes
    delays: list[float] = attrs.field(factory=list[float])
    came: list[float] = attrs.field(factory=list[float])
    """When each message came, in seconds on the run's clock."""
    open: bool = True
    _rest: bytes = b""

    def take(self, began: float) -> None:
        """Read what has come."""
        try:
            data = self.sock.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.open = False
            return
        now = time.monotonic() - began
        data = self._rest + data
        if self.ping and self.ping in data:
            data = data.replace(self.ping, b"")
            self.sock.send(self.pong)
        whole = len(data) // self.size
        for place in range(self.at, whole * self.size, self.size):
            self.delays.append(now - int(data[place : place + DIGITS]) / 1e6)
            self.came.append(now)
        self._rest = data[whole * self.size :]


class Publisher:
    """The connection with all topics.

    Args:
        wire: The protocol; MQTT is MQTT 5, with QoS 1.
        port: The server's.
        terms: The load.
    """

    def __init__(self, wire: Wire, port: int, terms: Terms) -> None:
        self._wire = wire
        self._terms = terms
        self._acks = wire is WIRES["mqtt"]
        hello = _hello5("publisher") if self._acks else wire.hello("publisher", None)
        self.sock, answer = connect(
            port, "publisher", hello,
            lambda got: len(got) > 4 if self._acks else wire.welcomed(got, False), nodelay=True,
        )  # fmt: skip
        self._window = window_of(answer) if self._acks else 0
        self._topics: dict[int, int] = {}
        """The topics of what is not acknowledged, by packet identifier."""
        self._unsent: deque[bytes] = deque()
        self._rest = b""
        self.due = 0
        """Messages that were due so far."""
        self.sent = [0] * TOPICS
        """Messages sent, by topic."""
        self.refused = [0] * TOPICS

    def publish(self, now: float, until: float) -> None:
        """Send what is due at `now`, in seconds since the beginning; nothing due after `until`."""
        due = int(min(now, until) * self._terms.rate)
        while self.due < due and len(self._unsent) < 64 and not self._is_full():
            topic = self.due % TOPICS
            at = b"%0*d" % (DIGITS, int(self.due / self._terms.rate * 1e6))
            payload = at.ljust(self._terms.payload, b".")
            if self._acks:
                number = self.due % 65_535 + 1
                self._topics[number] = topic
                self._unsent.append(_frame5(topic, number, payload))
            else:
                self._unsent.append(self._wire.frame(topic, payload))
            self.sent[topic] += 1
            self.due += 1
        while self._unsent:
            data = b"".join(self._unsent)
            self._unsent.clear()
            try:
                taken = self.sock.send(data)
            except BlockingIOError:
                taken = 0
            if taken < len(data):
                self._unsent.append(data[taken:])
                break

    def _is_full(self) -> bool:
        return self._acks and len(self._topics) >= self._window

    def answered(self) -> None:
        """Read acknowledgements, and pings.

        Raises:
            ServerError: The server closed the connection.
        """
        try:
            data = self.sock.recv(1 << 16)
        except BlockingIOError:
            return
        if not data:
            raise ServerError("the publisher's connection was closed")
        if not self._acks:
            if self._wire.ping and self._wire.ping in data:
                self._unsent.append(self._wire.pong)
            return
        data = self._rest + data
        place = 0
        while len(data) - place >= HEADER_BYTES:
            size = HEADER_BYTES + data[place + 1]
            if len(data) - place < size:
                break
            if data[place] == PUBACK:
                topic = self._topics.pop(int.from_bytes(data[place + 2 : place + 4], "big"))
                if size > HEADER_BYTES + 2 and data[place + 4] == QUOTA_EXCEEDED:
                    self.refused[topic] += 1
            place += size
        self._rest = data[place:]


# -- a run ----------------------------------------------------------------------------------------


def run(
    server: AnyServer, label: str, terms: Terms, scratch: Path, core: int | None = None
) -> Found:
    """Measure one server once.

    Args:
        server: The server.
        label: Its name in the table.
        terms: The load.
        scratch: An empty directory, for its files.
        core: Its core; None: any.

    Raises:
        ServerError: It did not start, or not end, as it should; or it closed the publisher's
            connection.
        OSError: It does not answer.
    """
    protocol = server.speaks("mqtt")
    assert protocol is not None
    wire = WIRES[protocol]
    size = wire.delivered(bytes(terms.payload))
    # Redis names the pattern as well where there is one; here are none.
    at = size - terms.payload - wire.after
    with server.running(scratch, core) as running, selectors.DefaultSelector() as selector:
        readers: list[Reader] = []
        publisher: Publisher | None = None
        try:
            for topic in range(TOPICS):
                name, filter_ = f"reader-{topic}", wire.topic[:-1] + str(topic)
                sock, _ = connect(
                    running.port, name, wire.hello(name, filter_),
                    lambda got: wire.welcomed(got, True), nodelay=True,
                )  # fmt: skip
                readers.append(Reader(sock, size, at, wire.ping, wire.pong))
                selector.register(sock, selectors.EVENT_READ, readers[-1])
            publisher = Publisher(wire, running.port, terms)
            selector.register(publisher.sock, selectors.EVENT_READ)
            return _measured(publisher, readers, selector, label, server.version(), terms)
        finally:
            for reader in readers:
                reader.sock.close()
            if publisher is not None:
                publisher.sock.close()


def _measured(
    publisher: Publisher, readers: Sequence[Reader], selector: selectors.BaseSelector, label: str,
    version: str, terms: Terms,
) -> Found:  # fmt: skip
    began = time.monotonic()
    end = terms.before + terms.watch
    stuck = readers[STUCK]
    while (now := time.monotonic() - began) < end + QUIET:
        if now >= terms.before and stuck.sock in selector.get_map():
            selector.unregister(stuck.sock)
        publisher.publish(now, end)
        for key, _ in selector.select(0.001):
            if key.data is None:
                publisher.answered()
                continue
            key.data.take(began)
            if not key.data.open:
                selector.unregister(key.fileobj)
    others = [reader for reader in readers if reader is not stuck]

    def between(reader: Reader, since: float, until: float) -> list[float]:
        # By when they came: what comes late is not there in time.
        return [d for d, t in zip(reader.delays, reader.came, strict=True) if since <= t < until]

    def share(since: float, until: float) -> float:
        due = terms.rate / TOPICS * (until - since)
        return min(len(between(reader, since, until)) for reader in others) / due

    def late(since: float, until: float) -> float:
        return max(percentile(between(reader, since, until), 0.99) for reader in others)

    # The first half second is the server's, to begin.
    warm = min(0.5, terms.before / 2)
    gaps = [
        max(
            (after - before for before, after in neighbours(reader.came, terms.before, end)),
            default=terms.watch,
        )
        for reader in others
    ]
    numbers = [topic for topic in range(TOPICS) if topic != STUCK]
    return Found(
        server=label,
        version=version,
        before=share(warm, terms.before),
        share=share(terms.before, end),
        p99_before=late(warm, terms.before),
        p99=late(terms.before, end),
        gap=max(gaps),
        refused=sum(publisher.refused),
        refused_others=sum(publisher.refused[topic] for topic in numbers),
        missing=sum(
            publisher.sent[topic] - publisher.refused[topic] - len(readers[topic].came)
            for topic in numbers
        ),
        cut=_is_cut(stuck.sock),
    )


def neighbours(came: Iterable[float], since: float, until: float) -> Iterator[tuple[float, float]]:
    """Yield neighbours, from `since` to `until`, which count as well."""
    last = since
    for each in came:
        if since <= each < until:
            yield last, each
            last = each
    yield last, until


def _is_cut(sock: socket.socket) -> bool:
    """Read all that is there; return whether the end is."""
    try:
        while sock.recv(1 << 20):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


# -- the table and the command --------------------------------------------------------------------


def servers() -> Iterator[tuple[str, AnyServer]]:
    """Yield each server, with its name in the table."""
    yield AS_IT_COMES, Relay(protocols=("mqtt",))
    yield LOSSLESS, Relay(protocols=("mqtt",), options=("--profile=lossless",))
    options = (
        "--profile=lossless", "--topic-account=* stuck/+", "--publication-policy=* #=refuse",
    )  # fmt: skip
    yield REFUSED, Relay(protocols=("mqtt",), options=options)
    for peer in PEERS:
        if peer.name in BESIDE:
            yield peer.name, peer


COLUMNS: Final = (
    "server", "the others got, before", "with one stuck", "their p99, before", "with one stuck",
    "longest silence", "refused of the stuck topic", "of the others", "of theirs missing",
)  # fmt: skip


def row(found: Found) -> tuple[str, ...]:
    """Return a run as a row of the table."""
    return (
        found.server,
        f"{found.before:.1%}",
        f"{found.share:.1%}",
        f"{found.p99_before * 1e3:.1f} ms",
        f"{found.p99 * 1e3:.1f} ms",
        f"{found.gap:.2f} s",
        f"{found.refused - found.refused_others:,}",
        f"{found.refused_others:,}",
        f"{found.missing:,}",
    )


def main() -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="words of the servers' names, with commas")
    parser.add_argument("--watch", type=float, default=Terms().watch, help="for how long (8 s)")
    parser.add_argument("--json", type=Path, help="write all that was found there")
    options = parser.parse_args()
    words = [word for word in options.only.split(",") if word]
    found: list[Found] = []
    status = 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for number, (label, server) in enumerate(servers()):
            if words and not any(word in label for word in words):
                continue
            if (missing := server.missing()) is not None:
                print(missing, file=sys.stderr)
                continue
            scratch = Path(folder) / str(number)
            scratch.mkdir()
            try:
                with pinned(1):
                    found.append(run(server, label, Terms(watch=options.watch), scratch, 0))
            except (ServerError, OSError) as error:
                print(f"topics: {label}: {error}", file=sys.stderr)
                status = 1
                continue
            print(f"{label}: {found[-1].share:.1%}", file=sys.stderr)
    lines = [COLUMNS, tuple("---" for _ in COLUMNS), *(row(each) for each in found)]
    print("\n".join("| " + " | ".join(line) + " |" for line in lines))
    if options.json is not None:
        options.json.write_text(json.dumps([attrs.asdict(each) for each in found], indent=1) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
