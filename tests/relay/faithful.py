"""Clients that keep to the protocol whatever happens, and remember what they were promised.

They have their half of a session: unfinished publications are sent again with DUP and the same
identifiers, and a QoS 2 message is taken once. A relay that keeps its own half loses nothing that
it has acknowledged, and doubles nothing with QoS 2, however it ends: `Load.check` looks at that.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress

import attrs
import trio

from clearfunds.transports.mqtt import (
    ConnAck,
    Connect,
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
)
from tests.transports.peers import SECONDS, BareClient, dial, until

PAUSE = 0.01
SETTLED_SECONDS = 4 * SECONDS
"""All that is queued is delivered then, by clients that come and go, on a busy machine, too."""


class GoneError(Exception):
    """The connection has ended."""


@attrs.define(eq=False)
class _Unfinished:
    payload: bytes
    released: bool = False


@attrs.define(eq=False)
class Life:
    """One life of the relay: where it listens, and whether its store fails."""

    port: int = 0
    failing: bool = False


@attrs.define(eq=False)
class Load:
    """Publishers, subscribers, and what is to be true of what they have seen."""

    seed: int
    life: Life = attrs.field(factory=Life)
    publishes_at: Life | None = None
    """Another relay of its cluster, for the publishers."""
    publishing: bool = True
    over: bool = False
    publishers: list[Publisher] = attrs.field(factory=list["Publisher"])
    subscribers: list[Subscriber] = attrs.field(factory=list["Subscriber"])

    def publisher(self, name: str, qos: int, **options: float) -> Publisher:
        chance = random.Random(f"{self.seed} {name}")
        publisher = Publisher(self, name, qos, chance, **options)  # type: ignore[arg-type]
        self.publishers.append(publisher)
        return publisher

    def subscriber(self, name: str, qos: int) -> Subscriber:
        subscriber = Subscriber(self, name, qos, random.Random(f"{self.seed} {name}"))
        self.subscribers.append(subscriber)
        return subscriber

    def sent(self, payload: bytes) -> int:
        """How often a payload was published, the same one sent again included."""
        return sum(publisher.sent[payload] for publisher in self.publishers)

    @property
    def confirmed(self) -> set[bytes]:
        """What the relay has acknowledged."""
        return {payload for publisher in self.publishers for payload in publisher.confirmed}

    def has_confirmed(self, count: int) -> bool:
        """Whether the relay has acknowledged so many."""
        return len(self.confirmed) >= count

    async def stores_again(self) -> None:
        """Wait until something is confirmed that is not published yet; the store is well then.

        All that it was told before is durable, too: it takes everything in order.
        """
        counts = {each.name: each.count for each in self.publishers}

        def is_later(payload: bytes) -> bool:
            name, _, number = payload.decode().partition(":")
            return int(number) >= counts[name]

        await until(lambda: any(map(is_later, self.confirmed)))
        self.life.failing = False

    def start(self, nursery: trio.Nursery) -> None:
        """Let all clients run."""
        for publisher in self.publishers:
            nursery.start_soon(publisher.run)
        for subscriber in self.subscribers:
            nursery.start_soon(subscriber.run)

    async def settled(self) -> None:
        """Publish nothing more, and wait until everything has reached everybody."""
        self.publishing = False
        await until(lambda: not any(each.unfinished for each in self.publishers), SETTLED_SECONDS)

        def missing() -> dict[str, list[bytes]]:
            confirmed = self.confirmed
            found = {
                each.name: sorted(confirmed - set(each.taken))[:5] for each in self.subscribers
            }
            return {name: payloads for name, payloads in found.items() if payloads}

        with trio.move_on_after(SETTLED_SECONDS):
            while missing():  # noqa: ASYNC110
                await trio.sleep(PAUSE)
        assert not missing(), (missing(), [each.faults[:5] for each in self.subscribers])

    def check(self) -> None:
        """See whether everything is as it was promised."""
        for subscriber in self.subscribers:
            assert not subscriber.faults, (subscriber.name, subscriber.faults[:5])
            taken = Counter(subscriber.taken)
            for publisher in self.publishers:
                self._check(publisher, subscriber, taken)

    def _check(self, publisher: Publisher, subscriber: Subscriber, taken: Counter[bytes]) -> None:
        who = (publisher.name, subscriber.name)
        firsts = [
            int(payload.partition(b":")[2])
            for payload in dict.fromkeys(subscriber.taken)
            if payload.startswith(publisher.name.encode() + b":")
        ]
        assert firsts == sorted(firsts), (who, "out of order")
        if publisher.qos == subscriber.qos == 2:
            twice = [p for p in publisher.sent if taken[p] > 1]
            assert not twice, (who, "more than once", twice[:5])


@attrs.define(eq=False)
class Publisher:
    """Publishes numbers, a few of them at a time."""

    load: Load
    name: str
    qos: int
    chance: random.Random
    kept: bool = True
    """Whether its session outlives its connections; what is unfinished then is sent again."""
    size: int = 0
    """How long payloads are at least."""
    window: int = 8
    pauses: float = 0.0
    """How probable it is that it waits before it publishes more, so that queues become empty."""
    count: int = 0
    last_id: int = 0
    sent: Counter[bytes] = attrs.field(factory=Counter[bytes])
    confirmed: list[bytes] = attrs.field(factory=list[bytes])
    unfinished: dict[int, _Unfinished] = attrs.field(factory=dict[int, _Unfinished])

    @property
    def topic(self) -> str:
        return f"load/{self.name}"

    async def run(self) -> None:
        """Connect again and again, until the load is over; not before all have subscribed."""
        await until(lambda: all(each.subscribed for each in self.load.subscribers))
        while not self.load.over:
            with suppress(OSError, trio.BrokenResourceError, GoneError):
                async with dial((self.load.publishes_at or self.load.life).port) as client:
                    await self._serve(client)
            await trio.sleep(PAUSE)

    async def _serve(self, client: BareClient) -> None:
        await connect(client, self.name, clean=not self.kept)
        if not self.kept:
            self.unfinished.clear()
        again = [self._packet(packet_id, dup=True) for packet_id in self.unfinished]
        if again:
            await client.send(*again)
        while not self.load.over:
            await self._fill(client)
            if not self.unfinished:
                await trio.sleep(PAUSE)
                continue
            packet = await received(client)
            match packet:
                case PubAck(packet_id):
                    self.confirmed.append(self.unfinished.pop(packet_id).payload)
                case PubRec(packet_id):
                    unfinished = self.unfinished[packet_id]
                    if not unfinished.released:
                        self.confirmed.append(unfinished.payload)
                    unfinished.released = True
                    await client.send(PubRel(packet_id))
                case PubComp(packet_id):
                    assert self.unfinished.pop(packet_id).released
                case _:
                    raise AssertionError(packet)

    async def _fill(self, client: BareClient) -> None:
        if self.chance.random() < self.pauses:
            await trio.sleep(self.chance.uniform(0, 10 * PAUSE))
        packets: list[Packet] = []
        while self.load.publishing and len(self.unfinished) < self.window:
            self.last_id = self.last_id % 65_535 + 1
            payload = b"%s:%d" % (self.name.encode(), self.count)
            self.count += 1
            self.unfinished[self.last_id] = _Unfinished(payload)
            packets.append(self._packet(self.last_id))
        if packets:
            await client.send(*packets)

    def _packet(self, packet_id: int, *, dup: bool = False) -> Packet:
        unfinished = self.unfinished[packet_id]
        if unfinished.released:
            return PubRel(packet_id)
        self.sent[unfinished.payload] += 1
        padded = unfinished.payload.ljust(self.size)
        return Publish(self.topic, padded, self.qos, dup=dup, packet_id=packet_id)


@attrs.define(eq=False)
class Subscriber:
    """Takes everything, and comes and goes. Its session is kept.

    Attributes:
        taken: What it was given, each QoS 2 message once.
        safe: What it has acknowledged, and the relay has made durable.
        unrecorded: What it was given while the disk failed, so that the relay may not know of it.
        faults: What the relay should not have done.
    """

    load: Load
    name: str
    qos: int
    chance: random.Random
    restless: float = 0.02
    """How probable it is that it leaves after a packet."""
    subscribed: bool = False
    taken: list[bytes] = attrs.field(factory=list[bytes])
    seen: set[bytes] = attrs.field(factory=set[bytes])
    unrecorded: set[bytes] = attrs.field(factory=set[bytes])
    received: set[int] = attrs.field(factory=set[int])
    acked: list[bytes] = attrs.field(factory=list[bytes])
    asked: int | None = None
    safe: set[bytes] = attrs.field(factory=set[bytes])
    faults: list[str] = attrs.field(factory=list[str])
    visits: int = 0
    again: int = 0

    async def run(self) -> None:
        """Connect again and again, until the load is over."""
        while not self.load.over:
            with suppress(OSError, trio.BrokenResourceError, GoneError):
                life = self.load.life
                async with dial(life.port) as client:
                    await self._serve(client, life)
            await trio.sleep(self.chance.uniform(0, 5 * PAUSE))

    async def _serve(self, client: BareClient, life: Life) -> None:
        present = await connect(client, self.name, clean=False)
        self.visits += 1
        # What was acknowledged on a connection that broke may never have arrived.
        self.acked.clear()
        self.asked = None
        if self.subscribed and not present:
            self.faults.append("its session is not present")
        if not self.subscribed:
            await self._ask(client)
        while not self.load.over:
            packet = await received(client)
            match packet:
                case Publish():
                    self._look_at(packet, life)
                    if self.chance.random() < 0.9:
                        await self._acknowledge(client, packet)
                    elif self.load.publishing:
                        return  # it comes again
                    else:
                        await self._acknowledge(client, packet)
                case PubRel(packet_id):
                    self.received.discard(packet_id)
                    await client.send(PubComp(packet_id))
                case SubAck():
                    assert self.asked is not None
                    self.safe.update(self.acked[: self.asked])
                    self.asked = None
                    self.subscribed = True
                case _:
                    raise AssertionError(packet)
            if self.asked is None and self.chance.random() < 0.1:
                await self._ask(client)
            if self.load.publishing and self.chance.random() < self.restless:
                return

    async def _ask(self, client: BareClient) -> None:
        """Subscribe (once more): SUBACK says that what was acknowledged before is durable."""
        self.asked = len(self.acked)
        await client.send(Subscribe(9, (("load/#", self.qos),)))

    def _look_at(self, packet: Publish, life: Life) -> None:
        payload = packet.payload.rstrip()
        once = self.load.sent(payload) == 1
        qos = min(self.qos, int(payload[1:2]))
        if packet.qos != qos:
            self.faults.append(f"{payload!r} has come with QoS {packet.qos}, not {qos}")
        if payload in self.safe and once:
            self.faults.append(f"{payload!r} has come again, and its ack was durable")
        known = payload in self.seen and payload not in self.unrecorded
        # A relay that has delivered a message with QoS 1, and died before it was stored, gets it
        # again from the publishers' relay.
        anew = qos < 2 and self.load.publishes_at is not None
        if known and once and not packet.dup and not anew:
            self.faults.append(f"{payload!r} has come again without DUP")
        if life.failing:
            # It is served although the disk does not take on record that it is.
            self.unrecorded.add(payload)
        self.again += payload in self.seen
        self.seen.add(payload)

    async def _acknowledge(self, client: BareClient, packet: Publish) -> None:
        payload = packet.payload.rstrip()
        if packet.qos == 1:
            self.taken.append(payload)
            await client.send(PubAck(packet.packet_id))
        else:
            if packet.packet_id not in self.received:
                self.received.add(packet.packet_id)
                self.taken.append(payload)
            await client.send(PubRec(packet.packet_id))
        self.acked.append(payload)


async def connect(client: BareClient, name: str, *, clean: bool) -> bool:
    """Say who it is; return whether there is a session."""
    await client.stream.send_all(client.connection.send(Connect(name, clean, 0)))
    accepted = await received(client)
    assert isinstance(accepted, ConnAck)
    assert accepted.return_code == 0
    return accepted.session_present


async def received(client: BareClient) -> Packet:
    """Read the next packet."""
    packet = await client.receive()
    if packet is None:
        raise GoneError
    return packet


def mixed(load: Load) -> None:
    """Let there be publishers and subscribers of all sorts."""
    pauses = 0.0 if load.seed % 2 else 0.7
    for qos in (1, 2):
        load.publisher(f"p{qos}kept", qos, pauses=pauses)
        load.publisher(f"p{qos}large", qos, size=5_000, window=3, pauses=pauses)
        load.publisher(f"p{qos}clean", qos, kept=False, pauses=pauses)
        load.subscriber(f"s{qos}a", qos)
        load.subscriber(f"s{qos}b", qos)
