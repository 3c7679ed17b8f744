"""Clients that time out and send again during an overload: is the load gone when its cause is?

A system is metastable if an overload outlives its trigger: clients that get no answer send again,
and the repetitions alone keep it too busy for the answers (Bronson and others, "Metastable failures
in distributed systems", HotOS 2021). Here publishers with QoS 1 have a steady rate each. A message
without PUBACK for `--retry` seconds is sent again with DUP, on the same connection, as often as it
takes. Two triggers, each on a fresh server:

    stall    the subscriber reads nothing for `--trigger` seconds. The relay has a low limit, so
             that its publishers wait within that time
    surge    the publishers have many times their rate for as long: more than a core can do

*Goodput* is the share of the messages that were acknowledged in time: within `--retry` seconds from
when they were due, whether they could be sent then or not. It is back when it stays at 95 % or
more, in each half second. The claim is that it is back 2 s after the trigger's end at the latest.

    python benchmarks/metastable.py                     # both triggers: half a minute
    python benchmarks/metastable.py --only stall --servers relay,mosquitto --check

Messages and not connections are repeated: for clients that connect again, see `--connect-rate` and
`--listener-connect-rate`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import attrs
import trio

if not __package__:  # run as a file: the root is not yet where modules are looked for
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.servers import PEERS, AnyServer, Relay, ServerError
from clearfunds.transports.mqtt import Connect, Publish, Subscribe, encode

TOPIC: Final = "load"
TICK: Final = 0.02
"""Seconds between two looks at what is due."""
WINDOW: Final = 0.5
"""Seconds of each part for which goodput is counted."""
GOOD: Final = 0.95
"""The share of a window's messages that is as good as all."""
BACK_SECONDS: Final = 2.0
"""When goodput should be back, after the trigger's end."""
IN_FLIGHT: Final = 20
"""Unacknowledged messages of one publisher; paho's `max_inflight_messages`."""
WAITING: Final = 100
"""Messages of one publisher that wait to be sent; those above are given up, the oldest first. As
`maxBufferedMessages` of Paho in C."""
PUBACK: Final = 4
"""Bytes of a PUBACK; what a subscriber and a publisher are told before is as short."""
LIMIT_ITEMS: Final = 10
"""Of the relay, for each publisher: small, so that a stall of seconds is felt."""
TRIGGERS: Final = ("stall", "surge")


@attrs.frozen
class Terms:
    """The load; times are in seconds."""

    publishers: int = 20
    rate: float = 20.0
    """Messages a second of each."""
    payload: int = 200
    retry: float = 0.5
    """Seconds without PUBACK after which a message is sent again."""
    warm: float = 3.0
    """Seconds before the trigger."""
    trigger: float = 3.0
    """Seconds of the trigger."""
    watch: float = 6.0
    """Seconds after it."""
    surge: float = 40.0
    """Times the rate, while there is a surge."""


@attrs.frozen
class Message:
    """One message, as its publisher knows it."""

    number: int
    due: float
    """Seconds from the start at which it should have been sent."""


@attrs.define
class Tally:
    """What became of all messages, by when they were due."""

    retry: float
    due: Counter[int] = attrs.field(factory=Counter[int])
    """Messages by window."""
    in_time: Counter[int] = attrs.field(factory=Counter[int])
    """Those that were acknowledged in time."""
    resent: int = 0
    """Repetitions that were sent."""
    given_up: int = 0
    """Messages that waited for too long to be sent at all."""

    def was_due(self, message: Message) -> None:
        """Count a message."""
        self.due[int(message.due / WINDOW)] += 1

    def acknowledged(self, message: Message, now: float) -> None:
        """Count a message that was acknowledged at `now`."""
        if now - message.due <= self.retry:
            self.in_time[int(message.due / WINDOW)] += 1

    def goodput(self, begin: float, end: float) -> float:
        """Return the share of the messages due from `begin` to `end` that was good."""
        windows = range(round(begin / WINDOW), round(end / WINDOW))
        due = sum(self.due[each] for each in windows)
        return sum(self.in_time[each] for each in windows) / due if due else 1.0

    def back_after(self, ended: float, end: float) -> float | None:
        """Return the seconds after `ended` from which goodput stays; None: not until `end`."""
        back = None
        for window in range(round(ended / WINDOW), round(end / WINDOW)):
            if self.in_time[window] < GOOD * self.due[window]:
                back = None
            elif back is None:
                back = window * WINDOW - ended
        return back


class Publisher:
    """One client: what it has to send, and what it has sent and not heard of."""

    def __init__(self, name: str, terms: Terms, tally: Tally) -> None:
        self.name = name
        self.waiting: deque[Message] = deque()
        self.in_flight: dict[int, tuple[Message, float]] = {}
        self._terms = terms
        self._tally = tally
        self._made = 0.0
        self._numbers = 0
        self._last = 0.0

    def make(self, rate: float, now: float) -> None:
        """Make the messages that are due by `now`, at a rate since the last time."""
        self._made += rate * (now - self._last)
        self._last = now
        while self._made >= 1:
            self._made -= 1
            self._numbers += 1
            message = Message(self._numbers, now)
            self._tally.was_due(message)
            self.waiting.append(message)
        while len(self.waiting) > WAITING:
            self.waiting.popleft()
            self._tally.given_up += 1

    def to_send(self, now: float) -> bytes:
        """Return the packets to send now: repetitions first, then what there is room for."""
        packets: list[bytes] = []
        for packet_id, (message, sent) in self.in_flight.items():
            if now - sent >= self._terms.retry:
                self.in_flight[packet_id] = message, now
                self._tally.resent += 1
                packets.append(self._packet(packet_id, message, dup=True))
        while self.waiting and len(self.in_flight) < IN_FLIGHT:
            message = self.waiting.popleft()
            packet_id = message.number % 65_535 + 1
            self.in_flight[packet_id] = message, now
            packets.append(self._packet(packet_id, message))
        return b"".join(packets)

    def _packet(self, packet_id: int, message: Message, *, dup: bool = False) -> bytes:
        body = f"{self.name} {message.number} ".encode().ljust(self._terms.payload, b".")
        return encode(Publish(TOPIC, body, 1, dup=dup, packet_id=packet_id))

    def heard(self, packet_id: int, now: float) -> None:
        """Take a PUBACK; a message that was sent twice may have two."""
        found = self.in_flight.pop(packet_id, None)
        if found is not None:
            self._tally.acknowledged(found[0], now)


@attrs.frozen
class Found:
    """The results of one run; times are in seconds."""

    server: str
    trigger: str
    before: float
    """Goodput before the trigger."""
    during: float
    """While it lasted."""
    back: float | None
    """Seconds after its end until goodput was back; None: it was not."""
    resent: int
    given_up: int
    delivered: int
    """Messages that the subscriber got, each once."""
    twice: int
    """Deliveries beyond these."""


class Run:
    """One run, on a server that listens on a port of this machine."""

    def __init__(self, port: int, trigger: str, terms: Terms) -> None:
        self.terms = terms
        self.tally = Tally(terms.retry)
        self.got: Counter[bytes] = Counter()
        self._port = port
        self._trigger = trigger
        self._began = 0.0
        self._end = terms.warm + terms.trigger + terms.watch

    def _now(self) -> float:
        return trio.current_time() - self._began

    def _is_triggered(self) -> bool:
        return 0 <= self._now() - self.terms.warm < self.terms.trigger

    async def __call__(self) -> None:
        """Let it all happen."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._subscribe)
            self._began = trio.current_time()
            for number in range(self.terms.publishers):
                nursery.start_soon(self._publish, Publisher(f"p{number}", self.terms, self.tally))
            await trio.sleep_until(self._began + self._end + self.terms.retry)
            nursery.cancel_scope.cancel()

    async def _connect(self, name: str) -> trio.SocketStream:
        stream = await trio.open_tcp_stream("127.0.0.1", self._port)
        await stream.send_all(encode(Connect(name)))
        answer = await stream.receive_some(PUBACK)
        if answer != b"\x20\x02\x00\x00":
            msg = f"{name} was not let in: {answer.hex()}"
            raise ServerError(msg)
        return stream

    async def _subscribe(self, task_status: trio.TaskStatus[None]) -> None:
        async with await self._connect("subscriber") as stream:
            await stream.send_all(encode(Subscribe(1, ((TOPIC, 1),))))
            await stream.receive_some(5)
            task_status.started()
            rest = b""
            while data := await stream.receive_some(1 << 16):
                if self._trigger == "stall" and self._began and self._is_triggered():
                    await trio.sleep(self.terms.warm + self.terms.trigger - self._now())
                rest, acks = self._take(rest + data)
                await stream.send_all(acks)

    def _take(self, data: bytes) -> tuple[bytes, bytes]:
        """Count the messages in `data`; return what is left of it, and their PUBACKs."""
        acks: list[bytes] = []
        at = 0
        while len(data) - at >= 2:
            length, body, shift = 0, at + 1, 0
            while body < len(data) and data[body] & 128:
                length |= (data[body] & 127) << shift
                body, shift = body + 1, shift + 7
            if body >= len(data):
                break
            length |= data[body] << shift
            body += 1
            if body + length > len(data):
                break
            topic = body + 2 + int.from_bytes(data[body : body + 2], "big")
            self.got[b" ".join(data[topic + 2 : body + length].split(b" ", 2)[:2])] += 1
            acks.append(b"\x40\x02" + data[topic : topic + 2])
            at = body + length
        return data[at:], b"".join(acks)

    async def _publish(self, publisher: Publisher) -> None:
        async with await self._connect(publisher.name) as stream, trio.open_nursery() as nursery:
            nursery.start_soon(self._hear, publisher, stream)
            while (now := self._now()) < self._end:
                surges = self._trigger == "surge" and self._is_triggered()
                publisher.make(self.terms.rate * (self.terms.surge if surges else 1), now)
                if packets := publisher.to_send(now):
                    await stream.send_all(packets)
                await trio.sleep(TICK)
            await trio.sleep(self.terms.retry)
            nursery.cancel_scope.cancel()

    async def _hear(self, publisher: Publisher, stream: trio.SocketStream) -> None:
        rest = b""
        while data := await stream.receive_some(1 << 16):
            rest += data
            whole = len(rest) - len(rest) % PUBACK
            for at in range(0, whole, PUBACK):
                publisher.heard(int.from_bytes(rest[at + 2 : at + 4], "big"), self._now())
            rest = rest[whole:]


def run(server: AnyServer, label: str, trigger: str, terms: Terms, scratch: Path) -> Found:
    """Measure one server under one trigger.

    Raises:
        ServerError: If it does not start, or lets nobody in.
    """
    with server.running(scratch, None) as running:
        one = Run(running.ports["mqtt"], trigger, terms)
        trio.run(one)
    tally, ended = one.tally, terms.warm + terms.trigger
    return Found(
        server=label,
        trigger=trigger,
        before=tally.goodput(WINDOW, terms.warm),  # in the first half second all of them connect
        during=tally.goodput(terms.warm, ended),
        back=tally.back_after(ended, ended + terms.watch),
        resent=tally.resent,
        given_up=tally.given_up,
        delivered=len(one.got),
        twice=one.got.total() - len(one.got),
    )


# -- the table ----------------------------------------------------------------------------------

COLUMNS: Final = (
    "server", "trigger", "goodput before", "during", "back after", "sent again", "given up",
    "delivered", "delivered twice",
)  # fmt: skip


def row(found: Found) -> tuple[str, ...]:
    """Return a run as a row of the table."""
    return (
        found.server,
        found.trigger,
        f"{found.before:.0%}",
        f"{found.during:.0%}",
        "not back" if found.back is None else f"{found.back:.1f} s",
        f"{found.resent:,}",
        f"{found.given_up:,}",
        f"{found.delivered:,}",
        f"{found.twice:,}",
    )


def table(found: Iterable[Found]) -> str:
    """Return runs as a table in Markdown."""
    lines = [COLUMNS, tuple("---" for _ in COLUMNS), *(row(each) for each in found)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


# -- the command --------------------------------------------------------------------------------


def servers(names: Iterable[str]) -> Iterator[AnyServer]:
    """Yield the servers with these names."""
    wanted = set(names)
    if "relay" in wanted:
        yield Relay(protocols=("mqtt",), options=(f"--limit-items={LIMIT_ITEMS}",))
    for peer in PEERS:
        if peer.name in wanted and peer.protocol == "mqtt":
            yield peer


def main() -> int:
    """Measure and print; return the exit status."""
    terms = Terms()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=TRIGGERS, help="one trigger (both)")
    parser.add_argument("--servers", default="relay", help="names, with commas (relay)")
    parser.add_argument("--retry", type=float, default=terms.retry, help="seconds (0.5)")
    parser.add_argument("--trigger", type=float, default=terms.trigger, help="seconds (3)")
    parser.add_argument("--watch", type=float, default=terms.watch, help="seconds after it (6)")
    parser.add_argument(
        "--check", action="store_true", help="exit status 1 if it is not back in 2 s"
    )
    parser.add_argument("--json", type=Path, help="write all that was found there")
    options = parser.parse_args()
    terms = attrs.evolve(terms, retry=options.retry, trigger=options.trigger, watch=options.watch)
    found: list[Found] = []
    status = 0
    for server in servers(options.servers.split(",")):
        missing = server.missing()
        if missing is not None:
            print(missing, file=sys.stderr)
            continue
        for trigger in TRIGGERS if options.only is None else (options.only,):
            print(f"{server.name}, {trigger} ...", file=sys.stderr)
            with tempfile.TemporaryDirectory() as scratch:
                try:
                    found.append(run(server, server.name, trigger, terms, Path(scratch)))
                except (ServerError, OSError) as error:
                    print(f"metastable: {server.name}: {error}", file=sys.stderr)
                    status = 1
    print(table(found))
    if options.json is not None:
        options.json.write_text(json.dumps([attrs.asdict(each) for each in found], indent=1) + "\n")
    late = [each for each in found if each.back is None or each.back > BACK_SECONDS]
    if options.check and late:
        for each in late:
            print(f"{each.server}, {each.trigger}: goodput is not back in {BACK_SECONDS:g} s")
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main())
