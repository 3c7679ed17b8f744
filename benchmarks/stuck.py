"""One of nine subscribers stops reading: what the others get, what is lost, who is told, who waits.

A publisher sends at a steady pace to nine subscribers; two seconds later one of them reads no
more: for good, or for fifteen seconds. That is done to the relay as it comes, to the relay under
each policy, and to mosquitto, NATS and Redis as they come; each server is started afresh.

    python benchmarks/stuck.py                       # everything there is: a quarter of an hour
    python benchmarks/stuck.py --only relay,nats --away 15

The publisher has a pace of its own and catches up with nothing: for as long as its server does not
take what it sends, it waits, and afterwards goes on at that pace. So what the others lack of the
whole is what it did not send. `docs/patience.md` shows the table and says how to read it.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import re
import selectors
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import attrs

if not __package__:  # run as a file: the root is not yet where modules are looked for
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.idle import utf8
from benchmarks.servers import PEERS, AnyServer, Relay, ServerError

SUBSCRIBERS: Final = 9
TOPICS: Final = 10
RATE: Final = 2_000
"""Messages a second, of `PAYLOAD` bytes: 2 MB/s to each."""
PAYLOAD: Final = 1_000
WARM: Final = 2.0
"""Seconds before the one stops reading."""
WATCH: Final = 40.0
"""Seconds from then on."""
AWAY: Final = 15.0
"""Seconds after which it reads again, where it does."""
PATIENCE: Final = 5.0
"""Seconds, under each policy; the relay as it comes has its own default."""
BUFFER: Final = 64 << 10
"""Of the sockets here, in bytes, so that it is the servers' patience that is measured."""
BURST: Final = 0.02
"""Seconds' worth of messages that are sent at once at most."""
QUIET: Final = 1.5
"""Seconds in which nothing comes: then all has come."""
POLICIES: Final = ("wait", "disconnect", "drop_oldest", "drop_newest", "conflate", "spill")
STUCK: Final = "the-stuck-one"
TELLS: Final = re.compile(
    r"stuck|slow consumer|dropp|behind|patience|gave up|given up|output buffer|written off|wait",
    re.IGNORECASE,
)
"""What there is in a line of a log that tells of it."""


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
    """A protocol, as far as it is spoken here."""

    filter: str
    hello: Callable[[str, str | None], bytes]
    """What a client of that name says first, with a filter if it subscribes."""
    welcomed: Callable[[bytes, bool], bool]
    """Whether that is all that a server says to it, for one who has subscribed or not."""
    frame: Callable[[int, bytes], bytes]
    """A publication on a topic."""
    delivered: Callable[[bytes], int]
    """How long it is when it is delivered."""
    ping: bytes = b""
    pong: bytes = b""


WIRES: Final = {
    "mqtt": Wire(
        "stuck/#", _mqtt, lambda got, sub: len(got) >= (9 if sub else 4), _mqtt_frame,
        lambda payload: len(_mqtt_frame(0, payload)),
    ),
    "nats": Wire(
        "stuck.*", _nats, lambda got, _: got.endswith(b"PONG\r\n"), _nats_frame,
        lambda payload: len(b"MSG stuck.0 1 %d\r\n\r\n" % len(payload)) + len(payload),
        b"PING\r\n", b"PONG\r\n",
    ),
    "redis": Wire(
        "stuck/*", _redis, lambda got, sub: got.startswith(b"+OK\r\n") and (
            not sub or got.endswith(b":1\r\n")
        ),
        _redis_frame,
        lambda payload: len(_redis_words(b"pmessage", b"stuck/*", b"stuck/0", payload)),
    ),
}  # fmt: skip


# -- what is counted ----------------------------------------------------------------------------


@attrs.define
class Receiver:
    """What came to a subscriber, of messages that are all of one size.

    Args:
        size: Of a message, in bytes.
        ping: What the server says in between.
    """

    size: int
    ping: bytes = b""
    messages: int = 0
    longest: float = 0.0
    """The longest time in which nothing came, of those that are over."""
    last: float = 0.0
    """When something came last."""
    _rest: bytes = b""

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
        return pings

    def gap(self, until: float) -> float:
        """Return the longest time in which nothing came, up to `until`."""
        return max(self.longest, until - self.last)


@attrs.define
class Pace:
    """When a publisher sends, who has a pace of his own and catches up with nothing."""

    rate: float
    sent: int = 0
    waited: float = 0.0
    """Seconds in all in which nothing was taken from it."""
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
        """Return how many messages are to be sent now."""
        if self._since is None:
            # What it had no time for itself, it catches up with: up to a second of it.
            self._allowed = min(self._allowed + (now - self._looked) * self.rate, self.rate)
        self._looked = now
        count = min(int(self._allowed), math.ceil(self.rate * BURST))
        self._allowed -= count
        self.sent += count
        return count

    def blocked(self, now: float) -> None:
        """Nothing more is taken from it."""
        if self._since is None:
            self._since = now

    def free(self, now: float) -> None:
        """All was taken."""
        since, self._since = self._since, None
        if since is not None:
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


def resident(pid: int) -> float:
    """Return the memory of a process, in megabytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 1e6


@attrs.frozen
class Found:
    """What was found in one run; times are in seconds from when the one stopped reading."""

    server: str
    version: str
    away: float | None
    """For how long it did not read; None: for good."""
    offered: int
    """Messages that the publisher's pace comes to."""
    sent: int
    share: float
    """Of what was offered, what the worst served of the other eight got."""
    gap: float
    """The longest time in which one of them got nothing."""
    waited: float
    """How long the publisher waited in all."""
    went_on: float | None
    """When its longest wait was over; None: it never was, or there was none."""
    waits: bool
    """Whether it waits at the end."""
    others_lost: int
    """The most that one of the others did not get of what was sent, in the end."""
    stuck_got: int
    """What the stuck one had got in the end, of all that was sent from the very first."""
    stuck_lost: int
    cut: bool
    """Whether its connection had been closed."""
    memory: float
    """By how much the server grew at most, in megabytes."""
    log: tuple[str, ...]
    """What the server's log said of it, each kind of line once."""


def kinds_of(lines: Iterable[str]) -> tuple[str, ...]:
    """Return the lines that tell of it, of those that differ in their numbers only the first."""
    found: dict[str, str] = {}
    for line in lines:
        if TELLS.search(line):
            found.setdefault(re.sub(r"[\d.:,]+", "0", line), line.strip())
    return tuple(found.values())


# -- a run --------------------------------------------------------------------------------------


class Scene:
    """A publisher and nine subscribers of a server, in one thread."""

    def __init__(self, wire: Wire, port: int) -> None:
        self._wire = wire
        self._port = port
        self._selector = selectors.DefaultSelector()
        size = wire.delivered(bytes(PAYLOAD))
        self.receivers = [Receiver(size, wire.ping) for _ in range(SUBSCRIBERS)]
        names = [*(f"reader-{number}" for number in range(1, SUBSCRIBERS)), STUCK]
        self._socks = [self._connect(name, wire.filter) for name in names]
        self._publisher = self._connect("publisher", None)
        self.pace = Pace(RATE)
        self._unsent = b""
        self._number = 0
        self.ended: set[int] = set()
        for number, sock in enumerate(self._socks):
            self._selector.register(sock, selectors.EVENT_READ, number)
        self._selector.register(self._publisher, selectors.EVENT_READ, None)

    def _connect(self, name: str, filter_: str | None) -> socket.socket:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        sock.settimeout(10)
        sock.connect(("127.0.0.1", self._port))
        sock.sendall(self._wire.hello(name, filter_))
        got = b""
        while not self._wire.welcomed(got, filter_ is not None):
            more = sock.recv(4096)
            if not more:
                raise ServerError(f"{name} was not let in: {got!r}")
            got += more
        sock.setblocking(False)
        return sock

    def read(self, number: int, *, again: bool) -> None:
        """Have one subscriber read no more, or again."""
        if number not in self.ended:
            if again:
                self._selector.register(self._socks[number], selectors.EVENT_READ, number)
            else:
                self._selector.unregister(self._socks[number])

    def step(self, *, publish: bool = True) -> None:
        """Take what there is, send what is due."""
        for key, events in self._selector.select(0.002):
            if key.data is not None:
                self._take(key.data)
            elif events & selectors.EVENT_READ:
                self._answered()
        if self._unsent or publish:
            self._send(publish=publish)

    def _take(self, number: int) -> None:
        sock = self._socks[number]
        try:
            data = sock.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(sock)
            self.ended.add(number)
            return
        for _ in range(self.receivers[number].took(data, time.monotonic())):
            sock.send(self._wire.pong)

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
                payload = b"%012d" % self._number
                frames.append(self._wire.frame(self._number % TOPICS, payload.ljust(PAYLOAD, b".")))
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

    def drain(self) -> None:
        """Take what is still to come, until nothing has come for a while."""
        until = time.monotonic() + QUIET
        last = -1
        while time.monotonic() < until:
            self.step(publish=False)
            count = sum(receiver.messages for receiver in self.receivers)
            if count != last:
                last, until = count, time.monotonic() + QUIET

    def close(self) -> None:
        """Close all connections."""
        self._selector.close()
        for sock in (*self._socks, self._publisher):
            sock.close()


def run(server: AnyServer, label: str, away: float | None, watch: float, scratch: Path) -> Found:
    """Do it once to one server."""
    protocol = server.speaks("mqtt")
    assert protocol is not None
    log = scratch / f"{server.name}.log"
    with server.running(scratch, None) as running:
        scene = Scene(WIRES[protocol], running.port)
        stuck = SUBSCRIBERS - 1
        try:
            until = time.monotonic() + WARM
            scene.pace.begin(time.monotonic())
            while time.monotonic() < until:
                scene.step()
            seen = log.stat().st_size
            before = most = resident(running.pid)
            first, sent_before = scene.receivers[stuck].messages, scene.pace.sent
            scene.read(stuck, again=False)
            began = time.monotonic()
            for receiver in scene.receivers[:stuck]:
                receiver.begin(began)
            scene.pace.begin(began)
            # Of what was sent before, some is still on its way to the others.
            looked, back = began, away is None
            while (now := time.monotonic()) < began + watch:
                scene.step()
                if not back and away is not None and now - began >= away:
                    scene.read(stuck, again=True)
                    back = True
                if now - looked >= 0.25:
                    looked, most = now, max(most, resident(running.pid))
            waits = scene.pace.end(now)
            pace = attrs.evolve(scene.pace)  # as it is now
            gap = max(receiver.gap(now) for receiver in scene.receivers[:stuck])
            got = [receiver.messages for receiver in scene.receivers[:stuck]]
            said = log.read_bytes()[seen:].decode(errors="replace").splitlines()
            scene.drain()
            if away is None:
                scene.read(stuck, again=True)
                scene.drain()
            others = min(receiver.messages for receiver in scene.receivers[:stuck])
            total = sent_before + pace.sent
            reached = scene.receivers[stuck].messages
            assert first <= reached
            return Found(
                server=label,
                version=server.version(),
                away=away,
                offered=round(RATE * watch),
                sent=pace.sent,
                share=min(got) / (RATE * watch),
                gap=gap,
                waited=pace.waited,
                went_on=None if pace.went_on is None else pace.went_on - began,
                waits=waits,
                others_lost=max(0, pace.sent - others),
                stuck_got=reached,
                stuck_lost=total - reached,
                cut=stuck in scene.ended,
                memory=most - before,
                log=kinds_of(said),
            )
        finally:
            scene.close()


# -- the table ----------------------------------------------------------------------------------

COLUMNS: Final = (
    "server",
    "the other eight got",
    "longest gap",
    "the publisher waited",
    "went on after",
    "the stuck one lost",
    "it was cut off",
    "the log tells",
    "memory",
)


def row(found: Found) -> tuple[str, ...]:
    """Return a run as a row of the table."""
    went_on = "-"
    if found.waits:
        went_on = "never"
    elif found.waited >= 0.5 and found.went_on is not None:
        went_on = f"{found.went_on:.1f} s"
    lost = f"{found.stuck_lost:,} of {found.stuck_got + found.stuck_lost:,}"
    others = "" if found.others_lost == 0 else f" ({found.others_lost:,} lost)"
    return (
        found.server,
        f"{found.share:.1%}{others}",
        f"{found.gap:.1f} s",
        f"{found.waited:.1f} s",
        went_on,
        lost,
        "yes" if found.cut else "no",
        "yes" if found.log else "no",
        f"+{found.memory:.0f} MB",
    )


def table(found: Iterable[Found]) -> str:
    """Return runs as a table in Markdown."""
    lines = [COLUMNS, tuple("---" for _ in COLUMNS), *(row(each) for each in found)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


# -- the command --------------------------------------------------------------------------------


def servers(scratch: Path, patience: float) -> Iterator[tuple[str, AnyServer]]:
    """Yield what is measured, with its name in the table."""
    yield "relay, as it comes", Relay(protocols=("mqtt",))
    for policy in POLICIES:
        options = [f"--stuck={policy}", f"--patience={patience:g}"]
        if policy == "spill":
            options.append(f"--store={scratch / 'store'}")
        yield f"relay, {policy}", Relay(protocols=("mqtt",), options=tuple(options))
    for peer in PEERS:
        yield peer.name, peer


def main() -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="words of the servers' names, with commas")
    parser.add_argument(
        "--away", choices=("good", f"{AWAY:g}"), help="for how long it does not read (both)"
    )
    parser.add_argument("--patience", type=float, default=PATIENCE, help="under each policy (5)")
    parser.add_argument("--watch", type=float, default=WATCH, help="for how long (40 s)")
    parser.add_argument("--json", type=Path, help="write all that was found there")
    options = parser.parse_args()
    words = [word for word in options.only.split(",") if word]
    found: list[Found] = []
    status = 0
    for away in (None, AWAY):
        if options.away is not None and (options.away == "good") != (away is None):
            continue
        these: list[Found] = []
        with tempfile.TemporaryDirectory() as folder:
            for number, (label, server) in enumerate(servers(Path(folder), options.patience)):
                if words and not any(word in label for word in words):
                    continue
                missing = server.missing()
                if missing is not None:
                    print(missing, file=sys.stderr)
                    continue
                scratch = Path(folder) / str(number)
                scratch.mkdir()
                print(f"{label} ...", file=sys.stderr)
                try:
                    these.append(run(server, label, away, options.watch, scratch))
                except (ServerError, OSError) as error:
                    print(f"stuck: {label}: {error}", file=sys.stderr)
                    status = 1
        what = "for good" if away is None else f"for {away:g} s"
        print(f"\nIt reads no more {what}; {options.watch:g} s are watched:\n")
        print(table(these))
        for each in these:
            for line in each.log[:4]:
                print(f"  {each.server} says: {line[:240]}")
        found += these
    if options.json is not None:
        made = {"python": platform.python_version(), "runs": [attrs.asdict(f) for f in found]}
        options.json.write_text(json.dumps(made, indent=1) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
