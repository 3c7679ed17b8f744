"""Fairness: several publishers share one subscriber that reads at a steady pace.

All publishers but one offer more than their part. Through one server there publish

    equal-1 to -8  a connection each, all with the same pace
    many           ten connections, each of which does what an equal one does
    large          one connection, with messages ten times as large
    innocent       some small messages a second, much less than its part

and one subscriber takes all of it, at a fixed number of bytes a second. Its messages are counted by
publisher, once the server's queue for it no longer grows, or after some seconds.

    python benchmarks/fairness.py                       # all servers found, a minute
    python benchmarks/fairness.py --only relay --seconds 2

The relay is measured with its defaults; with outlets that are first in first out (`--no-fair`), as
brokers' are; with a tenant for each publisher (`docs/fairness.md`),
which then have equal shares; and with three greedy tenants of weights 1, 2 and 4, and `--profile
lossless`: a backlog that is spilled comes back in the order in which it came, and weights count
again when no more can be spilled. RabbitMQ, which is slower, gets an eighth of the load.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import selectors
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

if not __package__:  # run as a file: the root is not yet where modules are looked for
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.fanout import Cores, table
from benchmarks.idle import utf8
from benchmarks.servers import PEERS, AnyServer, Relay, ServerError, pinned
from clearfunds.transports.mqtt import encode_remaining_length

PACE: Final = 160e6
"""Bytes a second that the subscriber reads."""
SLOWER: Final = {"rabbitmq": 1 / 8}
"""Servers that are too slow for the whole load, and their share of it."""
WEIGHTS_PACE: Final = 1 / 4
"""The share of the pace in the run with weights. Tenants owe little, so this takes no longer."""
PAYLOAD: Final = 16_000
"""Bytes; large enough that reading is the bottleneck, not the number of messages."""
SMALL: Final = 200
"""Bytes of the innocent publisher's messages."""
LARGE: Final = 10
"""How many times as large the large messages are."""
CONNECTIONS: Final = 10
"""Connections of the publisher `many`."""
EQUALS: Final = 8
OVER: Final = 3.0
"""What all publishers offer together, as a multiple of the pace."""
INNOCENT_RATE: Final = 200.0
"""Messages a second."""
SECONDS: Final = 12.0
"""Seconds of each run in which messages are counted."""
FILLED: Final = 2.0
"""Seconds after which the queue for the subscriber is as long as it gets, in most servers."""
SETTLING: Final = 8.0
"""Seconds, at most, before counting begins."""
ROUNDED: Final = 1.25
"""How much longer counting may take, at most, so that the last round is a whole one."""
DRAIN: Final = 3.0
"""Seconds, at most, in which the subscriber reads the rest as fast as it comes."""
EDGES: Final = 20
"""Steps by which the stretch moves in which the innocent publisher's messages are counted."""
QUIET: Final = 0.4
"""Seconds without a message after which all messages have come."""
BUFFER: Final = 64 << 10
"""Bytes of the sockets here; small, so that the servers keep the backlog."""
CHUNK: Final = 64 << 10
"""Bytes read, or written on one connection, before the others have their turn."""
DIGITS: Final = 12
"""Digits of the number in a message, if messages have numbers."""
SERVER_LIMIT: Final = 16 << 20
"""Bytes that all publishers with tenants may owe the relay; they share this limit."""
WEIGHTS: Final = (1, 2, 4)


# -- who publishes what -------------------------------------------------------------------------


@attrs.frozen
class Publisher:
    """A publisher, and how much it offers."""

    name: str
    kind: str
    """``equal``, ``many``, ``large``, ``innocent`` or ``weighted``."""

    rate: float
    """Messages a second of each connection, if all are taken."""

    connections: int = 1
    payload: int = PAYLOAD
    weight: float = 1.0

    @property
    def tenant(self) -> str:
        """The relay's option that makes it a tenant."""
        return f"--tenant={self.name},client={self.name}.*,weight={self.weight:g}"


def everybody(pace: float = PACE) -> tuple[Publisher, ...]:
    """Return all publishers: together they offer `OVER` times the pace."""
    rate = OVER * pace / PAYLOAD / (EQUALS + CONNECTIONS + LARGE)
    return (
        *(Publisher(f"equal-{number}", "equal", rate) for number in range(1, EQUALS + 1)),
        Publisher("many", "many", rate, connections=CONNECTIONS),
        Publisher("large", "large", rate, payload=LARGE * PAYLOAD),
        Publisher("innocent", "innocent", INNOCENT_RATE, payload=SMALL),
    )


def weighted(pace: float = PACE) -> tuple[Publisher, ...]:
    """Return three publishers with weights, each of which offers the whole pace."""
    rate = pace / PAYLOAD / 2
    return tuple(
        Publisher(f"weight-{weight}", "weighted", rate, connections=2, weight=weight)
        for weight in WEIGHTS
    )


def first_in_first_out(relay: Relay) -> Relay:
    """Return the relay with outlets that keep the order of all messages, and that fill the kernel.

    As it was before its outlets were fair.
    """
    return dataclasses.replace(
        relay, options=(*relay.options, "--no-fair", "--unsent-bytes", "none")
    )


def lossless(relay: Relay) -> Relay:
    """Return the relay that spills nothing."""
    return dataclasses.replace(relay, options=(*relay.options, "--profile=lossless"))


def with_tenants(relay: Relay, publishers: Sequence[Publisher]) -> Relay:
    """Return the relay with a tenant for each publisher; the tenants share one limit."""
    options = [f"--server-limit-bytes={SERVER_LIMIT}", *(each.tenant for each in publishers)]
    return dataclasses.replace(relay, options=(*relay.options, *options))


# -- what is spoken -----------------------------------------------------------------------------


@attrs.frozen
class Frame:
    """The bytes around a payload."""

    before: bytes
    after: bytes = b""


def _mqtt_frame(topic: str, size: int) -> Frame:
    topic_bytes = utf8(topic)
    return Frame(b"\x30" + encode_remaining_length(len(topic_bytes) + size) + topic_bytes)


def _mqtt_hello(name: str) -> bytes:
    body = utf8("MQTT") + b"\x04\x02\x00\x00" + utf8(name)
    return b"\x10" + encode_remaining_length(len(body)) + body


def _redis_words(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)


def _redis_frame(*words: bytes, size: int) -> Frame:
    head = b"*%d\r\n" % (len(words) + 1) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)
    return Frame(head + b"$%d\r\n" % size, b"\r\n")


def _after(mark: bytes) -> Callable[[bytes], int]:
    """Return a function that finds the end of `mark`; 0: it has not come."""

    def find(got: bytes) -> int:
        place = got.find(mark)
        return 0 if place < 0 else place + len(mark)

    return find


def _of_length(count: int) -> Callable[[bytes], int]:
    return lambda got: count if len(got) >= count else 0


@attrs.frozen
class Wire:
    """The parts of a protocol that the benchmark uses."""

    topic: str
    """A format; `{}` stands for the publisher's letter."""

    hello: Callable[[str], bytes]
    """The first bytes that a client sends."""

    welcomed: Callable[[bytes], int]
    """Finds the end of the answer to that; 0: it is not complete."""

    subscribe: bytes
    subscribed: Callable[[bytes], int] | None
    """As `welcomed`; None: the server does not answer."""

    published: Callable[[str, int], Frame]
    """A publication on a topic, with that many bytes of payload, on its way to the server."""

    delivered: Callable[[str, int], Frame]
    """The same, on its way from the server."""

    ping: bytes = b""
    pong: bytes = b""


_SUBSCRIBE: Final = b"\x00\x01" + utf8("fair/#") + b"\x00"

WIRES: Final = {
    "mqtt": Wire(
        "fair/{}", _mqtt_hello, _of_length(4), bytes((0x82, len(_SUBSCRIBE))) + _SUBSCRIBE,
        _of_length(5), _mqtt_frame, _mqtt_frame,
    ),
    "nats": Wire(
        "fair.{}",
        lambda name: b'CONNECT {"verbose":false,"name":"%s"}\r\nPING\r\n' % name.encode(),
        _after(b"PONG\r\n"), b"SUB fair.* 1\r\n", None,
        lambda topic, size: Frame(b"PUB %s %d\r\n" % (topic.encode(), size), b"\r\n"),
        lambda topic, size: Frame(b"MSG %s 1 %d\r\n" % (topic.encode(), size), b"\r\n"),
        b"PING\r\n", b"PONG\r\n",
    ),
    "redis": Wire(
        "fair/{}", lambda name: _redis_words(b"CLIENT", b"SETNAME", name.encode()),
        _after(b"+OK\r\n"), _redis_words(b"PSUBSCRIBE", b"fair/*"), _after(b":1\r\n"),
        lambda topic, size: _redis_frame(b"PUBLISH", topic.encode(), size=size),
        lambda topic, size: _redis_frame(b"pmessage", b"fair/*", topic.encode(), size=size),
    ),
}  # fmt: skip


def connect(wire: Wire, port: int, name: str, *, subscribe: bool) -> tuple[socket.socket, bytes]:
    """Connect a client; return its socket, which does not block, and what came after the welcome.

    Raises:
        ServerError: It was not let in.
    """
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
    sock.settimeout(10)
    try:
        sock.connect(("127.0.0.1", port))
        rest = _ask(sock, wire.hello(name), wire.welcomed, b"")
        if subscribe:
            rest = _ask(sock, wire.subscribe, wire.subscribed, rest)
    except OSError as error:
        sock.close()
        raise ServerError(f"{name} was not let in: {error}") from error
    sock.setblocking(False)
    return sock, rest


def _ask(
    sock: socket.socket, said: bytes, answered: Callable[[bytes], int] | None, got: bytes
) -> bytes:
    sock.sendall(said)
    if answered is None:
        return got
    while not answered(got):
        more = sock.recv(4096)
        if not more:
            raise OSError(f"closed after {got!r}")
        got += more
    return got[answered(got) :]


# -- what is counted ----------------------------------------------------------------------------


@attrs.define
class Incoming:
    """The messages of one publisher that came to the subscriber."""

    head: int
    """Bytes before the payload."""

    size: int
    """Bytes of a whole message."""

    due: Callable[[int], float] | None = None
    """The time at which a numbered message should be sent; None: messages have no numbers."""

    messages: int = 0
    newest: int = -1
    delays: list[float] = attrs.field(factory=list[float])
    """Seconds from when each message should have been sent to when it came."""
    arrivals: list[float] = attrs.field(factory=list[float])
    """The time when each came."""


class Parser:
    """Takes a stream to pieces: whole messages, each with one of several heads."""

    def __init__(self, heads: Mapping[bytes, Incoming], ping: bytes = b"") -> None:
        self._length = min(map(len, heads))
        self._incoming = {head[: self._length]: incoming for head, incoming in heads.items()}
        assert len(self._incoming) == len(heads)
        self._ping = ping
        self._rest = b""

    def again(self, rest: bytes) -> None:
        """Begin again for a new connection, on which these bytes have come already."""
        self._rest = rest

    def took(self, data: bytes, now: float) -> int:
        """Count what came at `now`; return how many pings were among it.

        Raises:
            ServerError: It is nothing that was expected.
        """
        data = self._rest + data
        place, pings, length = 0, 0, self._length
        while len(data) - place >= length:
            incoming = self._incoming.get(data[place : place + length])
            if incoming is None:
                if not self._ping or not data.startswith(self._ping, place):
                    msg = f"the subscriber cannot make sense of {data[place : place + 60]!r}"
                    raise ServerError(msg)
                pings += 1
                place += len(self._ping)
                continue
            if len(data) - place < incoming.size:
                break
            if incoming.due is not None:
                start = place + incoming.head
                incoming.newest = int(data[start : start + DIGITS])
                incoming.delays.append(now - incoming.due(incoming.newest))
                incoming.arrivals.append(now)
            incoming.messages += 1
            place += incoming.size
        self._rest = data[place:]
        return pings


class Bucket:
    """Bytes that may be read or written at a pace; an unused allowance is lost after a while."""

    def __init__(self, rate: float, most: float, now: float) -> None:
        self._rate = rate
        self._most = most
        self._tokens = 0.0
        self._looked = now

    def look(self, now: float) -> int:
        """Return the bytes allowed now."""
        self._tokens = min(self._tokens + (now - self._looked) * self._rate, self._most)
        self._looked = now
        return int(self._tokens)

    def take(self, count: int) -> None:
        """Use some of them."""
        self._tokens -= count


class Sender:
    """A connection of a publisher that sends at a pace and never catches up."""

    def __init__(self, sock: socket.socket, message: bytes, rate: float, now: float) -> None:
        self.sock = sock
        self.size = len(message)
        self.sent = 0
        """Bytes."""
        self._many = memoryview(message * (CHUNK // self.size + 1))
        self._bucket = Bucket(rate * self.size, max(4 * CHUNK, 2 * self.size), now)

    def step(self, now: float) -> None:
        """Send as much as the pace allows."""
        may = self._bucket.look(now)
        if may < min(self.size, CHUNK // 16):
            return
        start = self.sent % self.size
        with_room = self._many[start : start + min(may, CHUNK)]
        try:
            taken = self.sock.send(with_room)
        except BlockingIOError:
            return
        self.sent += taken
        self._bucket.take(taken)


class PunctualSender:
    """A connection of a publisher whose messages are each due at a certain time."""

    def __init__(self, sock: socket.socket, frame: Frame, payload: int, due: Due) -> None:
        self.sock = sock
        self.size = len(frame.before) + payload + len(frame.after)
        self.sent = 0
        self._frame = frame
        self._payload = payload
        self._due = due
        self._made = 0
        self._pending = b""

    def step(self, now: float) -> None:
        """Send the messages that are due."""
        while self._due(self._made) <= now:
            payload = (b"%0*d" % (DIGITS, self._made)).ljust(self._payload, b".")
            self._pending += self._frame.before + payload + self._frame.after
            self._made += 1
        if self._pending:
            try:
                taken = self.sock.send(self._pending)
            except BlockingIOError:
                return
            self.sent += taken
            self._pending = self._pending[taken:]


@attrs.frozen
class Due:
    """The times at which the messages of a punctual publisher are due."""

    began: float
    rate: float

    def __call__(self, number: int) -> float:
        """Return the time of the message of that number."""
        return self.began + number / self.rate


# -- a run --------------------------------------------------------------------------------------


class Scene:
    """Publishers and a subscriber of one server, in one thread."""

    def __init__(self, wire: Wire, port: int, publishers: Sequence[Publisher], pace: float) -> None:
        self._wire = wire
        self._port = port
        self._selector = selectors.DefaultSelector()
        self._subscriber, _ = connect(wire, port, "subscriber", subscribe=True)
        connected = [
            [
                connect(wire, port, f"{each.name}.{n}", subscribe=False)[0]
                for n in range(each.connections)
            ]
            for each in publishers
        ]
        for sock in (sock for socks in connected for sock in socks):
            self._selector.register(sock, selectors.EVENT_READ)
        time.sleep(0.1)  # until those are subscribed to whom nobody says that they are
        self.began = time.monotonic()
        self.incoming: list[Incoming] = []
        self.senders: list[list[Sender | PunctualSender]] = []
        heads: dict[bytes, Incoming] = {}
        for number, (publisher, socks) in enumerate(zip(publishers, connected, strict=True)):
            topic = wire.topic.format(chr(ord("a") + number))
            frame = wire.published(topic, publisher.payload)
            came = wire.delivered(topic, publisher.payload)
            size = len(came.before) + publisher.payload + len(came.after)
            due = Due(self.began, publisher.rate) if publisher.kind == "innocent" else None
            heads[came.before] = incoming = Incoming(len(came.before), size, due)
            self.incoming.append(incoming)
            message = frame.before + bytes(publisher.payload) + frame.after
            self.senders.append(
                [
                    Sender(sock, message, publisher.rate, self.began)
                    if due is None
                    else PunctualSender(sock, frame, publisher.payload, due)
                    for sock in socks
                ]
            )
        self._parser = Parser(heads, wire.ping)
        self._bucket = Bucket(pace, 4 * CHUNK, self.began)
        self.read = 0
        """Bytes."""
        self.cuts = 0
        """How often the subscriber's connection was closed."""

    def step(self, *, publish: bool = True, paced: bool = True) -> None:
        """Read and write as much as the paces allow; send the messages that are due."""
        now = time.monotonic()
        self._take(now, self._bucket.look(now) if paced else 16 * CHUNK)
        if publish:
            for senders in self.senders:
                for sender in senders:
                    sender.step(now)
        for key, _ in self._selector.select(0.0003):
            assert isinstance(key.fileobj, socket.socket)
            if not key.fileobj.recv(CHUNK):
                raise ServerError("a publisher's connection was closed")

    def _take(self, now: float, may: int) -> None:
        while may > CHUNK // 16:
            try:
                data = self._subscriber.recv(min(may, CHUNK))
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._again()
                return
            may -= len(data)
            self.read += len(data)
            self._bucket.take(len(data))
            for _ in range(self._parser.took(data, now)):
                self._subscriber.send(self._wire.pong)

    def _again(self) -> None:
        self.cuts += 1
        self._subscriber.close()
        self._subscriber, rest = connect(self._wire, self._port, "subscriber", subscribe=True)
        self._parser.again(rest)

    def messages(self) -> list[int]:
        """Return how many have come, by publisher."""
        return [incoming.messages for incoming in self.incoming]

    def sent(self) -> list[int]:
        """Return how many whole messages have been taken, by publisher."""
        return [sum(s.sent // s.size for s in senders) for senders in self.senders]

    def settle(self, filled: float, most: float) -> None:
        """Go on for `filled` seconds, and then for two rounds; at most for `most` seconds."""
        end = self.began + most
        while time.monotonic() < self.began + min(filled, most):
            self.step()
        for _ in range(2):
            self.round(end)

    def round(self, end: float) -> None:
        """Go on until all that was on its way to the subscriber has come; not beyond `end`.

        A publisher with a bounded number of messages in flight sends again when they arrive, so
        deliveries repeat in rounds. Counted for a round and a half, one publisher would seem to get
        twice as much as another. Without a punctual publisher rounds are unknown, and this returns
        at once.
        """
        began = time.monotonic()
        while time.monotonic() < end and any(
            each.due is not None and each.due(each.newest) < began for each in self.incoming
        ):
            self.step()

    def count(self, seconds: float) -> None:
        """Go on for about that many seconds: whole rounds, if they are short enough."""
        began = time.monotonic()
        length = 0.0
        while (now := time.monotonic()) + length / 2 < began + seconds:
            self.step()
            self.round(began + ROUNDED * seconds)
            length = time.monotonic() - now

    def drain(self) -> bool:
        """Read the rest; return whether messages stopped coming."""
        end = time.monotonic() + DRAIN
        until = time.monotonic() + QUIET
        last = self.read
        while (now := time.monotonic()) < end:
            self.step(publish=False, paced=False)
            if self.read != last:
                last, until = self.read, now + QUIET
            elif now >= until:
                return True
        return False

    def close(self) -> None:
        """Close all connections."""
        self._selector.close()
        self._subscriber.close()
        for senders in self.senders:
            for sender in senders:
                sender.sock.close()


@attrs.frozen
class Got:
    """The fate of one publisher's messages, counted while measuring."""

    name: str
    kind: str
    weight: float
    connections: int
    payload: int
    wanted: float
    """Messages that it offered."""

    sent: int
    """Messages that the server, or the sockets before it, have taken."""

    delivered: int
    sent_ever: int
    """The same, in the whole run."""

    delivered_ever: int

    @property
    def nbytes(self) -> int:
        """Bytes of payload that were delivered."""
        return self.delivered * self.payload

    @property
    def lost(self) -> float:
        """The share of all sent messages that never came."""
        return 1 - self.delivered_ever / self.sent_ever if self.sent_ever else 0.0


@attrs.frozen
class Found:
    """The results of one run."""

    server: str
    label: str
    what: str
    """``greedy`` or ``weights``."""

    options: tuple[str, ...]
    seconds: float
    settled: float
    """Seconds before counting began."""

    pace: float
    read: float
    """Bytes a second that the subscriber has read."""

    generator_share: float
    """CPU seconds of the generator, per second."""

    cuts: int
    """How often the server disconnected the subscriber, which came back at once."""

    drained: bool
    """Whether messages stopped coming, so that the rest is lost."""

    publishers: tuple[Got, ...]
    delays: tuple[float, ...]
    """Seconds from when the innocent one's messages were due to when they came."""

    arrivals: tuple[float, ...]
    """And when they came, from when it was begun to count."""

    def of(self, kind: str) -> list[Got]:
        """Return those of a kind."""
        return [each for each in self.publishers if each.kind == kind]

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Found:
        """Read what `attrs.asdict` wrote."""
        values: dict[str, Any] = dict(found)
        for name in ("options", "delays", "arrivals"):
            values[name] = tuple(values[name])
        values["publishers"] = tuple(Got(**each) for each in values["publishers"])
        return cls(**values)


def jain(values: Sequence[float]) -> float:
    """Return Jain's index: 1 if all are equal, 1/n if one has everything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else math.nan


def measure(
    server: AnyServer,
    publishers: Sequence[Publisher],
    *,
    label: str,
    what: str = "greedy",
    seconds: float = SECONDS,
    cores: Cores,
    pace: float = PACE,
    settling: float = SETTLING,
) -> Found:
    """Do it once to one server.

    Raises:
        ServerError: It did not start, did not let somebody in, or closed a publisher's connection.
    """
    protocol = server.speaks("mqtt")
    if protocol is None or protocol not in WIRES:
        raise ServerError(f"{server.name} speaks {protocol}, which is not spoken here")
    with (
        tempfile.TemporaryDirectory(prefix="fairness-") as scratch,
        server.running(Path(scratch), cores.server) as running,
        pinned(cores.generator),
    ):
        scene = Scene(WIRES[protocol], running.ports[protocol], publishers, pace)
        try:
            scene.settle(min(FILLED, settling / 2), settling)
            began, cpu = time.monotonic(), time.process_time()
            read, sent, came = scene.read, scene.sent(), scene.messages()
            punctual = next((each for each in scene.incoming if each.due is not None), None)
            first = len(punctual.delays) if punctual else 0
            scene.count(seconds)
            passed = time.monotonic() - began
            cpu = time.process_time() - cpu
            read, sent_then, came_then = scene.read - read, scene.sent(), scene.messages()
            delays = punctual.delays[first:] if punctual else []
            arrivals = punctual.arrivals[first:] if punctual else []
            drained = scene.drain()
            ever = zip(scene.sent(), scene.messages(), strict=True)
            return Found(
                server=server.name,
                label=label,
                what=what,
                options=server.options if isinstance(server, Relay) else (),
                seconds=passed,
                settled=began - scene.began,
                pace=pace,
                read=read / passed,
                generator_share=cpu / passed,
                cuts=scene.cuts,
                drained=drained,
                publishers=tuple(
                    Got(
                        each.name,
                        each.kind,
                        each.weight,
                        each.connections,
                        each.payload,
                        each.rate * each.connections * passed,
                        sent_then[n] - sent[n],
                        came_then[n] - came[n],
                        sent_ever,
                        came_ever,
                    )
                    for n, (each, (sent_ever, came_ever)) in enumerate(
                        zip(publishers, ever, strict=True)
                    )
                ),
                delays=tuple(round(delay, 4) for delay in delays),
                arrivals=tuple(round(at - began, 4) for at in arrivals),
            )
        finally:
            scene.close()


# -- the report ---------------------------------------------------------------------------------


@attrs.frozen
class Case:
    """Something to measure."""

    label: str
    server: AnyServer
    publishers: Sequence[Publisher]
    what: str
    pace: float


def cases(servers: Sequence[AnyServer], pace: float = PACE) -> Iterator[Case]:
    """Yield what is measured of these servers."""
    for server in servers:
        if server.speaks("mqtt") not in WIRES:
            continue
        its = pace * SLOWER.get(server.name, 1.0)
        greedy = everybody(its)
        yield Case(server.name, server, greedy, "greedy", its)
        if isinstance(server, Relay):
            unfair = first_in_first_out(server)
            yield Case(f"{server.name}, --no-fair", unfair, greedy, "greedy", its)
            shared = with_tenants(server, greedy)
            yield Case(f"{server.name}, tenants", shared, greedy, "greedy", its)
            by_weight = weighted(its * WEIGHTS_PACE)
            shared = with_tenants(lossless(server), by_weight)
            label = f"{server.name}, weights"
            yield Case(label, shared, by_weight, "weights", its * WEIGHTS_PACE)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` of them do not exceed; NaN if there are none."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def part_of(found: Found, kind: str) -> float:
    """Return which part of the bytes that were delivered is of those of a kind."""
    total = sum(each.nbytes for each in found.publishers)
    return sum(each.nbytes for each in found.of(kind)) / total if total else math.nan


def kept(found: Found) -> float:
    """Return which part of what was due of the innocent one was delivered meanwhile.

    It is a mean of stretches that are three quarters of the time, from its beginning on to those
    that end with it: what is kept for the subscriber gets a little more and less all the time, and
    it is not to matter which of it there was when it was begun to count.
    """
    (innocent,) = found.of("innocent")
    edge = found.seconds / 4
    length = found.seconds - edge
    counts = [
        sum(start <= at < start + length for at in found.arrivals)
        for start in (edge * step / EDGES for step in range(EDGES + 1))
    ]
    return sum(counts) / len(counts) / (innocent.wanted * length / found.seconds)


def off(found: Found) -> float:
    """Return by how much somebody's part of what was delivered is off from its weight's."""
    total = sum(each.nbytes for each in found.publishers)
    weights = sum(each.weight for each in found.publishers)
    if not total:
        return math.nan
    return max(abs(each.nbytes / total / (each.weight / weights) - 1) for each in found.publishers)


def row(found: Found) -> list[str]:
    """Return a run as a row of the table."""
    cells = [found.label, f"{found.read / 1e6:.0f} of {found.pace / 1e6:.0f} MB/s"]
    if found.what == "weights":
        return [*cells, "-", "-", "-", "-", "-", "-", f"off by {off(found):.1%}"]
    lost = [max(each.lost for each in found.of(kind)) for kind in KINDS]
    return [
        *cells,
        f"{jain([each.nbytes for each in found.of('equal')]):.4f}",
        f"{part_of(found, 'equal') / EQUALS:.1%}",
        f"{part_of(found, 'many'):.1%}",
        f"{part_of(found, 'large'):.1%}",
        f"{kept(found):.1%}",
        f"{percentile(found.delays, 0.5):.3f}, {percentile(found.delays, 0.99):.3f} s",
        " / ".join(f"{each:.0%}" for each in lost) if found.drained else "still coming",
    ]


KINDS: Final = ("equal", "many", "large", "innocent")
COLUMNS: Final = (
    "server",
    "delivered",
    "Jain, equals",
    "each equal",
    "many",
    "large",
    "innocent: delivered of due",
    "its p50, p99",
    "lost: equals / many / large / innocent",
)


def main() -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="words of the servers' names, with commas")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="counted, of each run (12)")
    parser.add_argument(
        "--pace", type=float, default=PACE / 1e6, help="of the subscriber, in MB a second (160)"
    )
    parser.add_argument("--json", type=Path, help="write all that was found there")
    options = parser.parse_args()
    words = [word for word in options.only.split(",") if word]
    found: list[Found] = []
    status = 0
    cores = Cores.choose()
    pace = options.pace * 1e6
    for case in cases((Relay(protocols=("mqtt",)), *PEERS), pace):
        if words and not any(word in case.label for word in words):
            continue
        missing = case.server.missing()
        if missing is not None:
            print(missing, file=sys.stderr)
            continue
        print(f"{case.label} ...", file=sys.stderr)
        try:
            found.append(
                measure(
                    case.server,
                    case.publishers,
                    label=case.label,
                    what=case.what,
                    seconds=options.seconds,
                    cores=cores,
                    pace=case.pace,
                )
            )
        except (ServerError, OSError) as error:
            print(f"fairness: {case.label}: {error}", file=sys.stderr)
            status = 1
    print(table(list(COLUMNS), [row(each) for each in found]))
    if options.json is not None:
        options.json.write_text(json.dumps([attrs.asdict(each) for each in found], indent=1) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
