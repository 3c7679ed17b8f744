"""Sequences of whole, legal packets of one to three clients, each written at once and cut anywhere.

What the fuzzers of single sessions did not look for: several packets that belong to different steps
of a connection's life in one write, with something still to come that others do in between. A write
here is CONNECT and what follows it, up to DISCONNECT and beyond, cut at any byte; between its two
parts everybody runs, or nobody. The relay is whole, with its clocks and watches, in this process;
the connections are socket pairs, so that thousands can come and go in a second.

After each write no fault of the relay's own may have been met and the books have to balance; after
each sequence a pair of other clients gets what it says to each other.

As a program it counts::

    python -m tests.transports.mqtt.whole_packets --writes 10000000 --look 50

A write is a sequence of packets, and a sequence of writes is what is played with fresh clients.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import logging
import random
import socket
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from clearfunds.access import Passwords
from clearfunds.access.acl import Acl, parse_acl
from clearfunds.transports import Link
from clearfunds.transports._scheduler import Work
from clearfunds.transports.mqtt import (
    NO_PROPERTIES,
    Auth,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Unsubscribe,
    Will,
    encode,
    encode5,
)
from experiments.credit_flow import Credit
from tests.experiments.credit_flow.relays import on_credit
from tests.transports.peers import RunningRelay, running, until

SMALL: Final = {
    "limit_items": 6,
    "limit_bytes": 20_000,
    "server_limit_items": 40,
    "max_packet_size": 4000,
    "max_subscriptions": 3,
    "max_inflight": 2,
    "max_awaiting_release": 3,
    "max_topic_levels": 3,
    "max_topic_length": 64,
    "max_topic_alias": 2,
    "max_retained": 3,
    "max_sessions": 3,
    "max_queued": 4,
    "session_expiry": 0.5,
    "patience": 0.02,
    "behind_items": 3,
    "slow_wait": None,
    "wrong_password_delay": 0.02,
}
"""Small limits, so that a few packets come to them."""


class Checked:
    """Who knows passwords: in a thread, so that a client is neither in nor out for a while."""

    def check(self, user: str, password: bytes) -> bool:
        time.sleep(0.0005)
        return user.encode() == password


KEYS: Final = Passwords.from_text(f"u:SCRAM-SHA-256$4096:{'A' * 16}${'A' * 43}=:{'A' * 43}=\n")
"""Keys of a user whose password nobody knows."""

RULES: Final = [
    parse_acl("topic #\nuser u\ntopic #\n"),
    parse_acl("topic pair\ntopic t/#\nuser u\ntopic read #\npattern deny v/%c\n"),
    parse_acl("topic pair\ntopic read v\ntopic write t/#\npattern write %u\n"),
]
"""Rules that take turns, where there are some."""

RELAYS: Final[dict[str, dict[str, Any]]] = {
    "ram": {},
    "store": {"store": True, "fsync_interval": 0.0},
    "slow store": {"store": True, "fsync_interval": 0.02},
    "credit": {
        "serve": on_credit(reader_outlet=Credit(4, 2), reader_queue=Credit(4, 2)),
        "limit_items": None,
        "limit_bytes": None,
        "server_limit_items": None,
    },
    "credit and store": {
        "serve": on_credit(reader_outlet=Credit(4, 2), queue_store=Credit(4, 2)),
        "store": True,
        "fsync_interval": 0.0,
        "limit_items": None,
        "limit_bytes": None,
        "server_limit_items": None,
    },
    "dropping": {"stuck": "drop_oldest"},
    "spilling": {"stuck": "spill", "store": True, "fsync_interval": 0.0},
    "waiting": {"stuck": "wait"},
    "passwords": {"passwords": Checked(), "anonymous": True},
    "keys": {"passwords": KEYS, "anonymous": True},
    "rules": {"acl": True},
    "rules and store": {"acl": True, "store": True, "fsync_interval": 0.0},
}
"""The relays that are played with."""

IDS: Final = ("a", "b")
TOPICS: Final = ("t", "t/u", "v")
SIZES: Final = (0, 1, 60, 3000)


_PROOF: Final = Properties(
    authentication_method="SCRAM-SHA-256", authentication_data=b"n,,n=u,r=abc"
)


def _hellos() -> Iterator[Connect]:
    will = Will("t", b"gone", 1, True)
    late = Will("t", b"gone", 2, properties=Properties(will_delay=1))
    for client_id in IDS:
        for clean in (True, False):
            for each in (None, will):
                yield Connect(client_id, clean, 0, will=each)
            for password in (b"u", b"wrong"):
                yield Connect(client_id, clean, 0, "u", password)
            yield Connect(client_id, clean, 0, protocol_level=5, properties=_PROOF)
            for said in (
                Properties(),
                Properties(session_expiry=20),
                Properties(session_expiry=0xFFFF_FFFF, receive_maximum=1),
                Properties(session_expiry=20, maximum_packet_size=30),
                Properties(maximum_packet_size=30, request_problem_information=0),
            ):
                for each in (None, late):
                    yield Connect(client_id, clean, 0, will=each, protocol_level=5, properties=said)


def _packets() -> Iterator[tuple[int, Packet]]:
    """Yield what a client says, and how often as against the rest."""
    for topic in TOPICS:
        for size in SIZES:
            for qos in (0, 1, 2):
                for retain in (False, True):
                    for packet_id in (1, 2) if qos else (0,):
                        yield (
                            1 if retain else 3,
                            Publish(topic, bytes(size), qos, retain, packet_id=packet_id),
                        )
    yield 2, Publish("t", b"", 1, True, packet_id=3)
    yield 2, Publish("$SYS/x", b"", 1, packet_id=3)
    for filters in (("t",), ("#",), ("t/#", "v"), ("+",), ("$SYS/#",)):
        for qos in (0, 1, 2):
            yield 10, Subscribe(1, tuple((text, qos) for text in filters))
        yield 10, Unsubscribe(2, filters)
    for kind in (PubAck, PubRec, PubRel, PubComp):
        for packet_id in (1, 2, 3):
            yield 6, kind(packet_id)
    yield 30, PingReq()
    yield 120, Disconnect()


def _packets5() -> Iterator[tuple[int, Packet]]:
    """Yield the same for MQTT 5, with what that has besides."""
    for weight, packet in _packets():
        if isinstance(packet, Disconnect):
            yield weight // 2, packet
            yield weight // 4, Disconnect(4)
            yield weight // 8, Disconnect(properties=Properties(session_expiry=0))
            yield weight // 8, Disconnect(properties=Properties(session_expiry=20))
        elif isinstance(packet, Publish):
            said = [NO_PROPERTIES, Properties(message_expiry=0), Properties(topic_alias=1)]
            for properties in said if packet.topic == "t" else said[:1]:
                yield weight, attrs.evolve(packet, properties=properties)
        elif isinstance(packet, Subscribe):
            yield weight, packet
            no_local = tuple((text, qos | 4) for text, qos in packet.filters)
            yield weight // 2, Subscribe(1, no_local, Properties(subscription_ids=(7,)))
        else:
            yield weight, packet
    yield 10, Auth(0x18, _PROOF)
    yield 5, Auth(0x19, _PROOF)
    yield 6, PubRec(1, 0x80)
    yield 6, Publish("", b"x", 1, packet_id=1, properties=Properties(topic_alias=1))


def _deal(said: Iterator[tuple[int, Packet]], version: int) -> list[bytes]:
    encoded = encode if version == 4 else encode5
    return [data for weight, packet in said for data in [encoded(packet)] * weight]


HELLOS: Final = [
    (each.protocol_level, (encode if each.protocol_level == 4 else encode5)(each))
    for each in _hellos()
]
SAYINGS: Final = {4: _deal(_packets(), 4), 5: _deal(_packets5(), 5)}
MOST_SAYINGS: Final = max(map(len, SAYINGS.values()))

GOES_ON, CLOSES, SHUTS, ANSWERS, READS = range(5)
"""What a client does after a write."""

NOTHING, A_ROUND, ALL = range(3)
"""What happens between the two parts of a write."""


@attrs.frozen
class Write:
    """What one client writes at once."""

    client: int
    hello: int
    """Which CONNECT it begins with, on a new connection; -1: none, on the one that there is."""
    sayings: tuple[int, ...]
    """What follows."""
    cut: int
    """Where it is cut in two, in bytes; from the end if it is negative."""
    between: int
    then: int


def made_up(chance: random.Random) -> list[Write]:
    """Return a sequence."""
    steps: list[Write] = []
    for _ in range(chance.choice((1, 1, 2, 2, 3, 4, 6))):
        hello = chance.randrange(len(HELLOS)) if chance.random() < 0.6 else -1
        count = chance.choice((1, 2, 3, 3, 4, 5, 8))
        steps.append(
            Write(
                client=chance.randrange(3),
                hello=hello,
                sayings=tuple(chance.randrange(MOST_SAYINGS) for _ in range(count)),
                cut=chance.randrange(200) if chance.random() < 0.6 else -chance.randrange(1, 60),
                between=chance.randrange(3),
                then=chance.choice((GOES_ON, GOES_ON, CLOSES, SHUTS, ANSWERS, READS)),
            )
        )
    return steps


class _Client:
    """One client's connection at a time."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.sock: socket.socket | None = None
        self.version = 4

    def connect(self) -> None:
        """Open another connection; the one before is closed by and by, as if it had hung."""
        if self.sock is not None:
            self.machine.hung.append(self.sock)
        self.sock = self.machine.connect()

    def say(self, data: bytes) -> None:
        if self.sock is not None and data:
            with contextlib.suppress(OSError):
                self.sock.send(data)

    def read(self) -> bytes:
        data = b""
        if self.sock is not None:
            with contextlib.suppress(OSError):
                while piece := self.sock.recv(1 << 20):
                    data += piece
        return data

    def answer(self) -> None:
        """Acknowledge all that has come, if that can be made out."""
        data = self.read()
        position = 0
        encoded = encode if self.version == 4 else encode5
        while position + 2 <= len(data):
            size = data[position + 1]
            end = position + 2 + (size & 127)
            if size & 128 and position + 3 <= len(data):
                end = position + 3 + (size & 127 | data[position + 2] << 7)
            first = data[position]
            body = data[end - (end - position) + 2 : end]
            position = end
            if first >> 4 == 3 and first & 6 and len(body) > 4:
                at = 2 + int.from_bytes(body[:2], "big")
                packet_id = int.from_bytes(body[at : at + 2], "big")
                if packet_id:
                    self.say(encoded((PubAck if first & 2 else PubRec)(packet_id)))
            elif first >> 4 == 5 and len(body) >= 2:
                self.say(encoded(PubRel(int.from_bytes(body[:2], "big") or 1)))
            elif first >> 4 == 6 and len(body) >= 2:
                self.say(encoded(PubComp(int.from_bytes(body[:2], "big") or 1)))

    def close(self) -> None:
        if self.sock is not None:
            self.sock.close()
            self.sock = None


class Machine:
    """A relay, and three clients.

    Attributes:
        played: How many sequences.
        writes: How many writes.
        hung: Connections that their clients have forgotten.
    """

    def __init__(self, relay: RunningRelay, nursery: trio.Nursery, look: int = 1) -> None:
        self.relay = relay
        self._nursery = nursery
        self._look = look
        self.played = 0
        self.writes = 0
        self.hung: list[socket.socket] = []
        self._clients = [_Client(self) for _ in range(3)]
        self._hears, self._tells = _Client(self), _Client(self)

    def connect(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        for sock in (ours, theirs):
            sock.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self._nursery.start_soon(self.relay.relay.mqtt.handle, Link(ours, "pair"), "test")
        return theirs

    async def begin(self) -> None:
        """Connect the two that go on."""
        for client, name in ((self._hears, "hears"), (self._tells, "tells")):
            client.connect()
            client.say(encode(Connect(name)))
        self._hears.say(encode(Subscribe(1, (("pair", 0),))))
        await wait_all_tasks_blocked()
        self._hears.read()
        self._tells.read()

    async def play(self, steps: Sequence[Write]) -> None:
        """Let the clients do all this, and look."""
        for step in steps:
            await self._write(step)
            self.check()
        for client in self._clients:
            client.close()
        for sock in self.hung:
            sock.close()
        self.hung.clear()
        await wait_all_tasks_blocked()
        self.played += 1
        if self.played % self._look == 0:
            self.check(balance=True)
            await self._pair()

    async def _write(self, step: Write) -> None:
        self.writes += 1
        client = self._clients[step.client]
        data = b""
        if step.hello >= 0:
            client.connect()
            client.version, data = HELLOS[step.hello]
        elif client.sock is None:
            client.connect()  # and says what nobody may say before CONNECT
        sayings = SAYINGS[client.version]
        data += b"".join([sayings[number % len(sayings)] for number in step.sayings])
        cut = step.cut % (len(data) + 1)
        client.say(data[:cut])
        if step.between == ALL:
            await wait_all_tasks_blocked()
        elif step.between == A_ROUND:
            await trio.lowlevel.checkpoint()
        client.say(data[cut:])
        if step.then == CLOSES:
            client.close()
        elif step.then == SHUTS and client.sock is not None:
            with contextlib.suppress(OSError):
                client.sock.shutdown(socket.SHUT_WR)
        self._change_rules()
        await wait_all_tasks_blocked()
        if step.then == READS:
            client.read()
        elif step.then == ANSWERS:
            client.answer()
            await wait_all_tasks_blocked()

    def _change_rules(self) -> None:
        acl = self.relay.relay.settings.acl
        if acl is not None:
            acl.replace(RULES[self.writes % len(RULES)])

    def check(self, balance: bool = False) -> None:
        """See that no fault was met, and each time or as told that the books balance."""
        assert self.relay.relay.internal_errors == 0
        if balance or self._look == 1:
            self.relay.ledger.audit()

    async def _pair(self) -> None:
        body = b"%d" % self.played
        self._tells.say(encode(Publish("pair", body)))
        await wait_all_tasks_blocked()
        got = self._hears.read()
        if not got:
            # What all may owe together is at its limit still: of clients that are no more.
            with trio.fail_after(20):
                while not (got := self._hears.read()):  # noqa: ASYNC110
                    await trio.sleep(0.005)
        assert got == encode(Publish("pair", body))

    async def end(self) -> None:
        """Leave, and let nothing be left of what is kept."""
        for client in (self._hears, self._tells):
            client.close()
        await until(lambda: not self.relay.relay.mqtt.open)
        kept = self.relay.relay.mqtt.persistent_sessions
        assert kept is not None
        for client_id in list(kept.by_id):
            kept.discard(client_id)
        self.check(balance=True)


def now_and_then() -> Callable[[Work], bool]:
    """Let the time of a step be over at each fourth look, whatever has been done in it."""
    looks = itertools.count(1)

    def is_over(work: Work) -> bool:
        if next(looks) % 4:
            return False
        work.paused = True
        return True

    return is_over


@asynccontextmanager
async def machine(which: str, look: int = 1) -> AsyncGenerator[Machine]:
    """Run one of `RELAYS`, whose steps are short, so that many things come in between.

    `look`: after how many sequences the books and the pair are looked at; 1: the books after each
    write too.
    """
    settings: dict[str, Any] = {**SMALL, **RELAYS[which]}
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for module in ("_flusher", "_session", "_direct_send"):
            patch.setattr(f"clearfunds.transports.{module}.OUTLETS_A_STEP", 1)
        patch.setattr("experiments.credit_flow._session.OUTLETS_A_STEP", 1)
        patch.setattr(Work, "is_over", now_and_then())
        if settings.get("acl"):
            settings["acl"] = Acl(RULES[0])
        if settings.pop("store", None):
            settings["store"] = stack.enter_context(tempfile.TemporaryDirectory())
        async with running(**settings) as relay, trio.open_nursery() as nursery:
            found = Machine(relay, nursery, look)
            await found.begin()
            yield found
            await found.end()
            nursery.cancel_scope.cancel()


@contextlib.contextmanager
def quietly() -> Generator[None]:
    """Say only what has gone wrong inside."""
    logger = logging.getLogger("clearfunds")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


async def count(which: str, seed: int, writes: int, seconds: float, look: int) -> dict[str, Any]:
    """Play made-up sequences until there were enough writes, or it took long enough."""
    chance = random.Random(f"{which} {seed}")
    began, cpu = time.monotonic(), time.process_time()
    steps: list[Write] = []
    async with machine(which, look) as found:
        try:
            while found.writes < writes and time.monotonic() - began < seconds:
                steps = made_up(chance)
                await found.play(steps)
        except BaseException:
            print(f"{which}, seed {seed}, sequence {found.played}: {steps}", file=sys.stderr)
            raise
        took = time.monotonic() - began
        return {
            "relay": which,
            "seed": seed,
            "sequences": found.played,
            "writes": found.writes,
            "seconds": round(took, 1),
            "cpu seconds": round(time.process_time() - cpu, 1),
            "writes/s": round(found.writes / took),
        }


def main() -> None:
    """Count sequences, of one relay after the other."""
    parser = argparse.ArgumentParser(description="Play made-up sequences, and count them.")
    parser.add_argument("--writes", type=int, default=10_000, help="how many, in all")
    parser.add_argument("--seconds", type=float, default=1e9, help="for how long, in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--look", type=int, default=1, help="after how many sequences the books are looked at"
    )
    parser.add_argument("--relay", choices=list(RELAYS), action="append", help="default: each")
    args = parser.parse_args()
    relays = args.relay or list(RELAYS)
    with quietly():
        for which in relays:
            writes, seconds = args.writes // len(relays), args.seconds / len(relays)
            found = trio.run(count, which, args.seed, writes, seconds, args.look)
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
