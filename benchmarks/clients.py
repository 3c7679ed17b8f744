"""A publisher and the subscribers of one server, in one thread, over plain sockets.

For benchmarks whose load has its own pace. They measure how long the publisher waits
(backpressure), what each subscriber gets and when, which connections are closed, and where the
other messages are. (`loadgen.c` is for benchmarks that drive a server as fast as it can.)

All messages have one size and begin with their number, so that they are counted, and told apart,
without parsing.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import selectors
import socket
import time
from array import array
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, Literal

import attrs

from benchmarks.idle import utf8
from benchmarks.servers import ServerError

TOPICS: Final = 10
DIGITS: Final = 12
"""Digits of the number at the beginning of a payload."""
BUFFER: Final = 64 << 10
"""Bytes of the sockets' buffers here: small, so that the servers are measured, not the kernel."""
SEGMENT: Final = 1_460
"""Bytes of a TCP segment, as over Ethernet. Loopback's are as large as the buffers here: a client
that takes little at a time would get next to nothing, as a whole segment would not fit."""
BURST: Final = 0.02
"""Most messages sent at once, in seconds of the pace."""
TICK: Final = 0.01
"""Seconds between two reads of a subscriber with a pace."""
LET_IN: Final = 10.0
"""Seconds within which a server must accept a client."""
TELLS: Final = re.compile(
    r"stuck|slow consumer|dropp|behind|patience|gave up|given up|output buffer|written off|wait",
    re.IGNORECASE,
)
"""Words in log lines about slow consumers."""


# -- what is spoken -----------------------------------------------------------------------------


def _mqtt(name: str, filter_: str | None) -> bytes:
    body = b"\x00\x04MQTT\x04\x02\x00\x00" + utf8(name)
    said = bytes((0x10, len(body))) + body
    if filter_ is not None:
        wanted = b"\x00\x01" + utf8(filter_) + b"\x00"
        said += bytes((0x82, len(wanted))) + wanted
    return said


def _mqtt_frame(topic: int, payload: bytes) -> bytes:
    body = utf8(f"stuck/{topic}") + payload
    return bytes((0x30, len(body) & 127 | 128, len(body) >> 7)) + body


def _nats(name: str, filter_: str | None) -> bytes:
    options = json.dumps({"verbose": False, "name": name})
    said = f"CONNECT {options}\r\n"
    if filter_ is not None:
        said += f"SUB {filter_} 1\r\n"
    return f"{said}PING\r\n".encode()


def _nats_frame(topic: int, payload: bytes) -> bytes:
    return b"PUB stuck.%d %d\r\n%s\r\n" % (topic, len(payload), payload)


def _redis_words(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)


def _redis(name: str, filter_: str | None) -> bytes:
    said = _redis_words(b"CLIENT", b"SETNAME", name.encode())
    if filter_ is not None:
        said += _redis_words(b"PSUBSCRIBE", filter_.encode())
    return said


def _redis_frame(topic: int, payload: bytes) -> bytes:
    return _redis_words(b"PUBLISH", b"stuck/%d" % topic, payload)


@attrs.frozen
class Wire:
    """The part of a protocol that is used here."""

    filter: str
    """The filter for all topics."""
    topic: str
    """The first topic, also a filter for it alone."""
    hello: Callable[[str, str | None], bytes]
    """A client's first bytes, by its name, and its filter if it subscribes."""
    welcomed: Callable[[bytes, bool], bool]
    """Whether these bytes are the server's whole answer, with or without a subscription."""
    frame: Callable[[int, bytes], bytes]
    """A publication on a topic."""
    delivered: Callable[[bytes], int]
    """The length of a publication when it is delivered."""
    ping: bytes = b""
    pong: bytes = b""
    after: int = 0
    """The number of bytes after the payload."""


WIRES: Final[Mapping[str, Wire]] = {
    "mqtt": Wire(
        "stuck/#", "stuck/0", _mqtt, lambda got, sub: len(got) >= (9 if sub else 4), _mqtt_frame,
        lambda payload: len(_mqtt_frame(0, payload)),
    ),
    "nats": Wire(
        "stuck.*", "stuck.0", _nats, lambda got, _: got.endswith(b"PONG\r\n"), _nats_frame,
        lambda payload: len(b"MSG stuck.0 1 %d\r\n\r\n" % len(payload)) + len(payload),
        b"PING\r\n", b"PONG\r\n", 2,
    ),
    "redis": Wire(
        "stuck/*", "stuck/0", _redis, lambda got, sub: got.startswith(b"+OK\r\n") and (
            not sub or got.endswith(b":1\r\n")
        ),
        _redis_frame,
        lambda payload: len(_redis_words(b"pmessage", b"stuck/*", b"stuck/0", payload)),
        after=2,
    ),
}  # fmt: skip


# -- what is counted ----------------------------------------------------------------------------


@attrs.define
class Receiver:
    """Counts the messages of a subscriber, all of one size.

    Args:
        size: The size of a message, in bytes.
        ping: The server's ping, which may come between messages.
        number: The place of the number in a message; None: numbers are not read.
    """

    size: int
    ping: bytes = b""
    number: int | None = None
    messages: int = 0
    longest: float = 0.0
    """The longest gap without a message that is over."""
    last: float = 0.0
    """When the last message came."""
    numbers: array[int] = attrs.field(factory=lambda: array("Q"))
    """The numbers of all messages, if they are read."""
    strange: int = 0
    """How many messages were never sent, came twice, or came out of order."""
    _rest: bytes = b""
    _latest: int = -1

    def begin(self, now: float) -> None:
        """Count from now on."""
        self.messages = 0
        self.longest = 0.0
        self.last = now

    def took(self, data: bytes, now: float) -> int:
        """Count what came at `now`; return how many pings were among it."""
        data = self._rest + data
        pings = data.count(self.ping) if self.ping else 0
        if pings:
            data = data.replace(self.ping, b"")
        whole, over = divmod(len(data), self.size)
        self._rest = data[len(data) - over :] if over else b""
        if whole:
            self.messages += whole
            self.longest = max(self.longest, now - self.last)
            self.last = now
            if self.number is not None:
                self._look(data, self.number, whole)
        return pings

    def _look(self, data: bytes, at: int, whole: int) -> None:
        last = self._latest
        for place in range(at, whole * self.size, self.size):
            digits = data[place : place + DIGITS]
            if not digits.isdigit():
                self.strange += 1
                continue
            number = int(digits)
            self.numbers.append(number)
            self.strange += number <= last
            last = max(last, number)
        self._latest = last

    def gap(self, until: float) -> float:
        """Return the longest time without a message, up to `until`."""
        return max(self.longest, until - self.last)


@attrs.define
class Pace:
    """The times of sending of a publisher with a fixed pace, which never catches up."""

    rate: float
    sent: int = 0
    waited: float = 0.0
    """Total seconds in which the server took nothing from it."""
    longest: float = 0.0
    went_on: float | None = None
    """When the longest wait was over."""
    _allowed: float = 0.0
    _looked: float = 0.0
    _since: float | None = None

    def begin(self, now: float) -> None:
        """Count from now on."""
        self.sent = 0
        self.waited = self.longest = 0.0
        self.went_on = None
        self._looked = now
        self._allowed = 0.0
        if self._since is not None:
            self._since = now

    def due(self, now: float) -> int:
        """Return how many messages are due now."""
        if self._since is None:
            # It catches up with its own delays, up to a second.
            self._allowed = min(self._allowed + (now - self._looked) * self.rate, self.rate)
        self._looked = now
        count = min(int(self._allowed), math.ceil(self.rate * BURST))
        self._allowed -= count
        self.sent += count
        return count

    def blocked(self, now: float) -> None:
        """Note that the server takes nothing more from it."""
        if self._since is None:
            self._since = now

    def free(self, now: float) -> None:
        """Note that the server has taken all."""
        since, self._since = self._since, None
        if since is not None:
            self._looked = now  # it does not catch up with messages due meanwhile
            self.waited += now - since
            if now - since > self.longest:
                self.longest, self.went_on = now - since, now

    def end(self, now: float) -> bool:
        """Count up to `now`; return whether it waits still."""
        waits = self._since is not None
        if self._since is not None:
            stretch = now - self._since
            self.waited += stretch
            if stretch > self.longest:
                self.longest, self.went_on = stretch, None
        return waits


def kinds_of(lines: Iterable[str]) -> tuple[str, ...]:
    """Return log lines about slow consumers; of lines that differ only in numbers, the first."""
    found: dict[str, str] = {}
    for line in lines:
        if TELLS.search(line):
            found.setdefault(re.sub(r"[\d.:,]+", "0", line), line.strip())
    return tuple(found.values())


def logs_in(scratch: Path) -> list[Path]:
    """Return a server's log files there."""
    return sorted(scratch.rglob("*.log"))


def lines_of(path: Path, start: int) -> list[str]:
    """Return the lines of a log from a place on."""
    return path.read_bytes()[start:].decode(errors="replace").splitlines()


# -- what the kernel knows ----------------------------------------------------------------------


def family(pid: int) -> tuple[int, ...]:
    """Return a process and all its descendants."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name, in brackets, may contain blanks and brackets.
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue  # it has just ended
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return tuple(found)


def resident(pids: Iterable[int]) -> float:
    """Return the memory of processes, in megabytes; 0 for a process that has ended."""
    pages = 0
    for pid in pids:
        try:
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            continue
    return pages * 4096 / 1e6


@attrs.frozen
class Ends:
    """The bytes in the kernel for connections to a server, and the open connections."""

    to_send: int = 0
    """Bytes that the server has written, and the subscriber's kernel does not have."""
    to_take: int = 0
    """Bytes that a subscriber's kernel has, and the subscriber has not read."""
    coming: int = 0
    """Bytes that were published, and the server has not read."""
    open: frozenset[int] = frozenset()
    """The clients' ports of the connections that the server has not closed."""

    @property
    def total(self) -> int:
        """All bytes in the kernel."""
        return self.to_send + self.to_take + self.coming


ESTABLISHED: Final = "01"
CLOSE_WAIT: Final = "08"
"""The other side has closed it, and the server has not."""


def ends_of(tables: Iterable[str], port: int, publisher: int) -> Ends:
    """Parse tables of sockets (/proc/net/tcp) for a server's port.

    Args:
        tables: The text of the tables.
        port: The server's port.
        publisher: The publisher's own port.
    """
    to_send = to_take = coming = 0
    still: set[int] = set()
    for table in tables:
        for line in table.splitlines()[1:]:
            words = line.split()
            here, there = (int(word.rpartition(":")[2], 16) for word in words[1:3])
            out, came = (int(word, 16) for word in words[4].split(":"))
            if here == port and there != 0:
                if words[3] in {ESTABLISHED, CLOSE_WAIT}:
                    still.add(there)
                if there == publisher:
                    coming += came
                else:
                    to_send += out
            elif there == port:
                if here == publisher:
                    coming += out
                else:
                    to_take += came
    return Ends(to_send, to_take, coming, frozenset(still))


# -- connecting ---------------------------------------------------------------------------------


def connect(
    port: int,
    name: str,
    hello: bytes,
    welcomed: Callable[[bytes], bool],
    *,
    nodelay: bool = False,
) -> tuple[socket.socket, bytes]:
    """Connect a client, and return its socket, which does not block, and the server's answer.

    Args:
        port: The server's port.
        name: The client's name, for errors.
        hello: Its first bytes.
        welcomed: Whether these bytes are the whole answer.
        nodelay: Whether small pieces are sent at once (TCP_NODELAY).

    Raises:
        ServerError: The server closed the connection.
        OSError: There is no server, or it does not answer.
    """
    sock = socket.socket()
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, nodelay)
        sock.settimeout(LET_IN)
        sock.connect(("127.0.0.1", port))
        sock.sendall(hello)
        got = b""
        while not welcomed(got):
            more = sock.recv(4096)
            if not more:
                raise ServerError(f"{name} was not let in: {got!r}")
            got += more
    except BaseException:
        sock.close()
        raise
    sock.setblocking(False)
    return sock, got


# -- who publishes and who subscribes -----------------------------------------------------------


Reads = Literal["all", "nothing"] | float
"""The bytes that a subscriber reads: all, none, or a number a second."""


class Scene:
    """A publisher and the subscribers of a server, in one thread.

    Args:
        wire: The protocol.
        port: The server's port.
        names: The names of the subscribers.
        payload: Bytes of a message.
        rate: Most messages a second.
        topics: The number of topics, used in turn; one is subscribed by name, several by a
            wildcard.
        numbered: Whether subscribers read the numbers of their messages.

    Raises:
        ServerError: The server did not accept a client.
        OSError: There is no server.
    """

    def __init__(
        self, wire: Wire, port: int, *, names: Iterable[str], payload: int, rate: float,
        topics: int = TOPICS, numbered: bool = False,
    ) -> None:  # fmt: skip
        self._wire = wire
        self._port = port
        self._payload = payload
        self._topics = topics
        filter_ = wire.topic if topics == 1 else wire.filter
        self._selector = selectors.DefaultSelector()
        self.size = wire.delivered(bytes(payload))
        at = self.size - payload - wire.after if numbered else None
        self._socks: list[socket.socket] = []
        self.receivers: list[Receiver] = []
        try:
            for name in names:
                self._socks.append(self._connect(name, filter_))
                self.receivers.append(Receiver(self.size, wire.ping, at))
            self._publisher = self._connect("publisher", None)
        except BaseException:
            for sock in self._socks:
                sock.close()
            raise
        self.ports = [int(sock.getsockname()[1]) for sock in self._socks]
        """The subscribers' own."""
        self.pace = Pace(rate)
        self._unsent = b""
        self._number = 0
        self._reads: list[Reads] = ["all"] * len(self._socks)
        self._may_take = [0.0] * len(self._socks)
        self._ticked = time.monotonic()
        self.ended: set[int] = set()
        for number, sock in enumerate(self._socks):
            self._selector.register(sock, selectors.EVENT_READ, number)
        self._selector.register(self._publisher, selectors.EVENT_READ, None)

    def _connect(self, name: str, filter_: str | None) -> socket.socket:
        sock, _ = connect(
            self._port,
            name,
            self._wire.hello(name, filter_),
            lambda got: self._wire.welcomed(got, filter_ is not None),
        )
        return sock

    @property
    def published(self) -> int:
        """How many messages the kernel has taken from the publisher so far."""
        left = len(self._unsent)
        return self._number - (-(-left // self._frame_size) if left else 0)

    @property
    def _frame_size(self) -> int:
        return len(self._wire.frame(0, bytes(self._payload)))

    def reads(self, number: int, how: Reads) -> None:
        """Set what one subscriber reads from now on."""
        before, self._reads[number] = self._reads[number], how
        if number in self.ended or (before == "all") == (how == "all"):
            return
        if how == "all":
            self._selector.register(self._socks[number], selectors.EVENT_READ, number)
        else:
            self._selector.unregister(self._socks[number])
            self._may_take[number] = 0.0

    def ends(self) -> Ends:
        """Return the bytes in the kernel for these connections."""
        tables = [
            path.read_text()
            for path in (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
            if path.exists()
        ]
        return ends_of(tables, self._port, int(self._publisher.getsockname()[1]))

    def step(self, *, publish: bool = True) -> None:
        """Read what has come, and send the messages that are due."""
        for key, events in self._selector.select(0.002):
            if key.data is not None:
                self._take(key.data, 1 << 18)
            elif events & selectors.EVENT_READ:
                self._answered()
        now = time.monotonic()
        if now - self._ticked >= TICK:
            self._tick(now)
        if self._unsent or publish:
            self._send(publish=publish)

    def _tick(self, now: float) -> None:
        passed = min(now - self._ticked, 5 * TICK)
        self._ticked = now
        for number, how in enumerate(self._reads):
            if isinstance(how, float) and number not in self.ended:
                # It catches up with at most some ticks in which too little had come.
                self._may_take[number] = min(self._may_take[number] + how * passed, how * 5 * TICK)
                allowed = int(self._may_take[number])
                if allowed:
                    self._may_take[number] -= self._take(number, allowed)

    def _take(self, number: int, most: int) -> int:
        sock = self._socks[number]
        try:
            data = sock.recv(most)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:
            if self._reads[number] == "all":
                self._selector.unregister(sock)
            self.ended.add(number)
            return 0
        for _ in range(self.receivers[number].took(data, time.monotonic())):
            with contextlib.suppress(OSError):
                sock.send(self._wire.pong)
        return len(data)

    def _answered(self) -> None:
        try:
            data = self._publisher.recv(1 << 16)
        except BlockingIOError:
            return
        if not data:
            raise ServerError("the publisher's connection was closed")
        if self._wire.ping and self._wire.ping in data:
            self._unsent += self._wire.pong

    def _send(self, *, publish: bool) -> None:
        now = time.monotonic()
        if publish and not self._unsent:
            frames: list[bytes] = []
            for _ in range(self.pace.due(now)):
                payload = b"%0*d" % (DIGITS, self._number)
                frames.append(
                    self._wire.frame(
                        self._number % self._topics, payload.ljust(self._payload, b".")
                    )
                )
                self._number += 1
            self._unsent = b"".join(frames)
        if self._unsent:
            try:
                taken = self._publisher.send(self._unsent)
            except BlockingIOError:
                taken = 0
            self._unsent = self._unsent[taken:]
            if self._unsent and not taken:
                self.pace.blocked(now)
            if not self._unsent:
                self.pace.free(now)

    def drain(
        self,
        quiet: float,
        most: float = math.inf,
        look: Callable[[], object] | None = None,
        *,
        empty: bool = False,
    ) -> None:
        """Read the rest, until nothing has come for a while.

        Args:
            quiet: Seconds without a message after which all has come.
            most: Seconds after which to give up.
            look: Called after each step.
            empty: Go on while the kernel has bytes on their way to the server, or from it.
        """
        began = time.monotonic()
        until = began + quiet
        last = -1
        while (now := time.monotonic()) < began + most:
            if now >= until:
                if not (empty and (self._unsent or self.ends().total)):
                    break
                until = now + quiet
            self.step(publish=False)
            if look is not None:
                look()
            count = sum(receiver.messages for receiver in self.receivers)
            if count != last:
                last, until = count, now + quiet

    def close(self) -> None:
        """Close all connections."""
        self._selector.close()
        for sock in (*self._socks, self._publisher):
            sock.close()
