"""Plain packets, alone or several in a read, have the same effect as those that are parsed."""

from __future__ import annotations

import random
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from clearfunds.accounts import Account
from clearfunds.persistence._idle import Rests
from clearfunds.transports.mqtt import (
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    encode,
)
from clearfunds.transports.mqtt.codec._frames import body_of
from clearfunds.transports.mqtt.codec._options import NO_LOCAL
from clearfunds.transports.mqtt.codec._properties import NO_PROPERTIES, Properties
from clearfunds.transports.mqtt.server._inflight import Inflight
from clearfunds.transports.mqtt.server._plain_packets import MOST_PACKETS, PlainPackets
from clearfunds.transports.mqtt.server._publisher_acks import PublisherAck
from clearfunds.transports.mqtt.server._runs import Single
from tests.transports.mqtt.peers5 import connected5
from tests.transports.peers import SECONDS, PassiveClient, connected, running, until

EVERYTHING = ("a/b", "a/c", "a/b/c", "d")
READERS = {
    "all": ("#", 0, EVERYTHING),
    "once": ("a/+", 1, ("a/b", "a/c")),
    "exactly": ("a/#", 2, ("a/b", "a/c", "a/b/c")),
    "one": ("a/b", 1, ("a/b",)),
}
KEPT = ("a/+", 1, ("a/b", "a/c"))
READERS5: dict[str, tuple[dict[str, Any], int, int]] = {
    "identified": ({}, 7, 0),
    "local": ({}, 0, NO_LOCAL),
    "aliased": ({"topic_alias_maximum": 2}, 0, 0),
    "small": ({"maximum_packet_size": 1_000}, 0, 0),
}
"""Further ones of MQTT 5, which want as `KEPT`: what their CONNECT says, the identifier of their
subscription, and its options."""
SIZES = (0, 1, 5, 100, 127, 128, 200, 3_000)


class Play:
    """What some clients say, drawn from a seed, and all that they hear."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.heard: list[object] = []
        self.readers: list[tuple[PassiveClient, tuple[str, ...], int]] = []
        self.owed: dict[PassiveClient, list[int]] = {}
        self.due: dict[PassiveClient, None] = {}

    async def read(
        self,
        client: PassiveClient,
        wanted: tuple[str, int, tuple[str, ...]],
        identifier: int = 0,
        options: int = 0,
        largest: int = 1 << 20,
    ) -> None:
        text, qos, topics = wanted
        said = Properties(subscription_ids=(identifier,)) if identifier else NO_PROPERTIES
        await client.send(Subscribe(9, ((text, qos | options),), said))
        self.heard.append(await client.next())
        self.readers.append((client, topics, largest))
        self.owed[client] = []

    async def publish(self, who: PassiveClient, number: int) -> None:
        chance = self.chance
        topic, qos = chance.choice(EVERYTHING), chance.choice((0, 1, 1, 1, 1, 2))
        payload = b"%06d" % number + bytes(chance.choice(SIZES))
        packet_id = chance.randrange(1, 60_000) if qos else 0
        await who.send(Publish(topic, payload, qos, packet_id=packet_id))
        if qos == 2:
            self.heard.append(await who.next())
            await who.send(PubRel(packet_id))
        if qos:
            self.heard.append(await who.next())
        for each, topics, largest in self.readers:
            if topic in topics and len(payload) < largest:
                await self.take(each, payload)
        await self.acknowledge()

    async def publish_some(self, who: PassiveClient, number: int) -> None:
        """Publish several in one write."""
        chance = self.chance
        alike = chance.random() < 0.5
        topics = [chance.choice(EVERYTHING)] if alike else EVERYTHING
        sizes = [chance.choice(SIZES[:-1])] if alike else SIZES[:-1]
        qoses = chance.choice(((0,), (1,), (1,), (0, 1, 1))) if alike else (0, 1, 1, 1, 1, 1)
        packets = [
            Publish(
                chance.choice(topics),
                b"%06d.%d" % (number, place) + bytes(chance.choice(sizes)),
                chance.choice(qoses),
                packet_id=number * 10 + place + 1,
            )
            for place in range(chance.randrange(2, 9))
        ]
        for _ in range(3 if alike else 1):  # in a row, as the second is compared with the first
            await who.send(*(p if p.qos else attrs.evolve(p, packet_id=0) for p in packets))
            for packet in packets:
                if packet.qos:
                    self.heard.append(await who.next())
            for each, wanted, largest in self.readers:
                for packet in packets:
                    if packet.topic in wanted and len(packet.payload) < largest:
                        await self.take(each, packet.payload)
            await self.acknowledge()

    async def take(self, who: PassiveClient, payload: bytes) -> None:
        packet = await who.publication()
        assert packet.payload == payload
        self.heard.append(packet)
        if packet.qos == 1:
            self.owed[who].append(packet.packet_id)
            if self.chance.random() < 0.7 or len(self.owed[who]) > 8:
                self.due[who] = None
        elif packet.qos == 2:
            await who.send(PubRec(packet.packet_id))
            self.heard.append(await who.next())
            await who.send(PubComp(packet.packet_id))
            self.due[who] = None

    async def acknowledge(self) -> None:
        """Let those acknowledge who are due; it has been handled afterwards."""
        due, self.due = self.due, {}
        for who in due:
            owed, self.owed[who] = self.owed[who], []
            self.chance.shuffle(owed)
            if owed:
                await who.send(*map(PubAck, owed))
            await who.send(PingReq())
            self.heard.append(await who.next())


async def play(
    seed: int, *, together: bool, store: Path | None = None
) -> tuple[list[object], dict[str, Any]]:
    """Return all that was heard, and the books at the end; with a kept session if there is a store.

    What its queue is responsible for when it is acknowledged depends on the disk.
    """
    found = Play(seed)
    async with running(store=store, fsync_interval=0.0) as relay, AsyncExitStack() as stack:
        writers: list[PassiveClient] = [
            await stack.enter_async_context(connected(relay.port, "w")),
            await stack.enter_async_context(connected5(relay.port, "w5")),
        ]
        for name, wanted in READERS.items():
            await found.read(await stack.enter_async_context(connected(relay.port, name)), wanted)
            five = await stack.enter_async_context(connected5(relay.port, f"{name}5"))
            await found.read(five, wanted)
        for name, (said, identifier, options) in READERS5.items():
            if name == "small" and not together:
                continue  # whether a peak has the copy that it is not sent depends on the order
            five = await stack.enter_async_context(connected5(relay.port, name, **said))
            largest = said.get("maximum_packet_size", 1 << 20)
            await found.read(five, KEPT, identifier, options, largest)
        if store is not None:
            kept = connected5(relay.port, "kept", session_expiry=600)
            await found.read(await stack.enter_async_context(kept), KEPT)
        for number in range(100):
            publish = found.publish_some if together and number % 4 == 3 else found.publish
            await publish(found.chance.choice(writers), number)
            relay.audit()
        found.due = {client: None for client, owed in found.owed.items() if owed}
        await found.acknowledge()
        for writer in writers:  # what came before has been handled then
            await writer.send(Subscribe(8, (("nothing", 0),)))
            await writer.next()
        # Without a word more: whether there was debt to wait for is chance, and words are counted.
        await until(lambda: not relay.statistics().debt_items)
        statistics = relay.statistics()
        books: dict[str, Any] = {
            "borrowed": (statistics.borrowed_items, statistics.borrowed_bytes),
            "repaid": (statistics.repaid_items, statistics.repaid_bytes),
            "received": relay.relay.mqtt.counters.received,
            "published": relay.relay.dataspace.published,
            "deliveries": relay.relay.dataspace.deliveries,
            "copies": relay.ledger.fanout_copies.counts,
        }
        accounts = [relay.account(name) for name in ("w", "w5")]
        if store is not None:
            del books["borrowed"], books["repaid"]
        books["charged"] = [(a.borrowed_items, a.borrowed_bytes) for a in accounts]
        books["peaks"] = [(a.peak_items, a.peak_bytes) for a in accounts]
    return found.heard, books


def not_alone(_: PlainPackets, data: bytes) -> None:
    """Handle nothing as a packet alone."""
    del data


def not_at_all(_: PlainPackets, data: bytes, position: int = 0) -> int:
    """Handle no run of packets."""
    del data
    return position


def assert_the_same(
    plain: tuple[list[object], dict[str, Any]],
    parsed: tuple[list[object], dict[str, Any]],
    together: bool,
) -> None:
    """See that two plays were heard and booked alike."""
    (heard, books), (heard_then, books_then) = plain, parsed
    assert heard == heard_then
    peaks, peaks_then = books.pop("peaks"), books_then.pop("peaks")
    assert books == books_then
    # Of several packets it is chance how many one read has.
    assert together or peaks == peaks_then


def stays(_: Rests) -> None:
    """Put nothing on the disk."""


@pytest.mark.rule(8)
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("seed", range(4))
async def test_the_books_and_the_wire_are_the_same(
    seed: int, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = {"confirmed": 0, "acknowledged": 0, "together": 0, "alike": 0}
    quick |= {"run of w": 0, "run of w5": 0}
    confirm, acknowledge = PlainPackets.confirm, PlainPackets.acknowledge

    def confirmed(self: PlainPackets, data: bytes, position: int = 0) -> int:
        end = confirm(self, data, position)
        quick["confirmed"] += end > position
        quick["together"] += end > position + body_of(data, position)[1]
        return end

    def acknowledged(self: PlainPackets, data: bytes) -> bool | None:
        done = acknowledge(self, data)
        quick["acknowledged"] += done is not None
        return done

    def alike(self: Single, data: bytes) -> int:
        count = times(self, data)
        quick["alike"] += count
        return count

    def held(self: Inflight, account: Account, *arguments: Any) -> int:
        count = hold_packets(self, account, *arguments)
        quick[f"run of {account.name.rpartition('/')[2]}"] += count > 1
        return count

    times, hold_packets = Single.times, Inflight.hold_packets
    monkeypatch.setattr(Single, "times", alike)
    monkeypatch.setattr(Inflight, "hold_packets", held)
    monkeypatch.setattr(PlainPackets, "confirm", confirmed)
    monkeypatch.setattr(PlainPackets, "acknowledge", acknowledged)
    plain = await play(seed, together=together)
    assert min(quick["confirmed"], quick["acknowledged"]) > 20, quick
    assert min(quick.values()) > 3 or not together, quick
    monkeypatch.setattr(PlainPackets, "handle", not_alone)
    monkeypatch.setattr(PlainPackets, "confirm", not_at_all)
    parsed = await play(seed, together=together)
    assert_the_same(plain, parsed, together)


@pytest.mark.rule(7)
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("seed", range(3))
async def test_so_they_are_where_somebody_is_responsible_later(
    seed: int, together: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    later = 0
    hold_later = PlainPackets.hold_later

    def held(self: PlainPackets, *arguments: Any) -> list[PublisherAck]:
        nonlocal later
        begun = hold_later(self, *arguments)
        later += len(begun)
        return begun

    monkeypatch.setattr(PlainPackets, "hold_later", held)
    plain = await play(seed, together=together, store=tmp_path / "one")
    assert later > 20
    monkeypatch.setattr(PlainPackets, "handle", not_alone)
    monkeypatch.setattr(PlainPackets, "confirm", not_at_all)
    parsed = await play(seed, together=together, store=tmp_path / "other")
    assert_the_same(plain, parsed, together)


@pytest.mark.rule(9)
@pytest.mark.parametrize(
    ("qos", "limit", "readers", "burst", "size"),
    [(0, 12, 3, 4, 900), (1, 12, 3, 4, 900), (1, 40, 1, 30, 100)],
)
@pytest.mark.parametrize("connect", [connected, connected5])
async def test_no_more_is_taken_of_a_read_than_there_are_funds_for(
    qos: int, limit: int, readers: int, burst: int, size: int, connect: Any
) -> None:
    async with running(limit_items=limit, profile="lossless") as relay, AsyncExitStack() as stack:
        for _ in range(readers):
            slow = await stack.enter_async_context(connected(relay.port, receive_buffer=4_096))
            await slow.subscribe("t", qos=qos)
        writer = await stack.enter_async_context(connect(relay.port, "writer"))
        account = relay.account("writer")
        with trio.move_on_after(SECONDS):
            while not account.statistics().waiting:
                await writer.send(
                    *(Publish("t", bytes(size), qos, packet_id=qos and n + 1) for n in range(burst))
                )
                await trio.sleep(0.001)
        assert account.statistics().waiting
        relay.audit()
        # Its copies, and itself or its acknowledgement.
        assert limit < account.peak_items <= limit + readers + 1


async def test_an_acknowledgement_of_nothing_is_refused_as_ever() -> None:
    async with running() as relay, connected(relay.port) as reader, connected(relay.port) as other:
        await reader.subscribe("t", qos=1)
        for number in range(3):
            await other.publish("t", b"x", 1, packet_id=number + 1)
            await other.expect(PubAck(number + 1))
            packet = await reader.publication()
            await reader.send(PubAck(packet.packet_id), PubAck(packet.packet_id))
        # Twice, or for what was never sent: neither settles anything else.
        await reader.send(PubAck(999))
        await other.publish("t", b"y", 1, packet_id=77)
        await other.expect(PubAck(77))
        assert (await reader.publication()).payload == b"y"
        relay.audit()


async def test_a_subscriber_with_a_full_window_gets_the_rest_in_order() -> None:
    async with (
        running(max_inflight=2) as relay,
        connected(relay.port) as reader,
        connected(relay.port) as other,
    ):
        await reader.subscribe("t", qos=1)
        for number in range(10):
            await other.publish("t", b"%d" % number, 1, packet_id=number + 1)
            await other.expect(PubAck(number + 1))
        for number in range(10):
            packet = await reader.publication()
            assert packet.payload == b"%d" % number
            await reader.send(PubAck(packet.packet_id))
        relay.audit()


@pytest.mark.parametrize("window", [1, 2, 32])
@pytest.mark.parametrize("count", [2, 3, 31, 32, 33, 100])
@pytest.mark.parametrize("connect", [connected, connected5])
async def test_packets_that_are_alike_are_confirmed_and_come_in_order(
    window: int, count: int, connect: Any
) -> None:
    """Whatever comes in the same write behind them."""
    async with (
        running(max_inflight=window) as relay,
        connected(relay.port) as reader,
        connect(relay.port) as other,
    ):
        await reader.subscribe("t", qos=1)
        payloads = [b"%03d" % number for number in range(count)]
        packets = [
            Publish("t", payload, 1, packet_id=number + 1)
            for number, payload in enumerate(payloads)
        ]
        await other.send(*packets, PingReq(), Publish("nowhere", b"x", 1, packet_id=count + 1))
        for number in range(count):
            assert (await other.next()).packet_id == number + 1
        assert isinstance(await other.next(), PingResp)
        assert (await other.next()).packet_id == count + 1
        for payload in payloads:
            packet = await reader.publication()
            assert packet.payload == payload
            await reader.send(PubAck(packet.packet_id))
        relay.audit()
        await until(lambda: not relay.statistics().debt_items)


async def test_an_identifier_of_nothing_among_packets_that_are_alike_is_refused() -> None:
    async with running() as relay, connected(relay.port) as reader, connected(relay.port) as other:
        await reader.subscribe("t", qos=1)
        packet, wrong = (encode(Publish("t", b"x", 1, packet_id=number)) for number in (1, 2))
        wrong = wrong.replace(b"\0\2x", b"\0\0x")
        await other.stream.send_all(packet + wrong + packet)
        assert (await reader.publication()).payload == b"x"
        await other.expect(PubAck(1))
        await other.gone()
        assert await reader.silent(0.05)
        relay.audit()


async def test_a_subscriber_that_does_not_read_gets_all_in_order() -> None:
    """What its socket does not take is kept, from the very byte on."""
    count, size = 400, 2_000
    async with (
        running(max_inflight=1_000, profile="lossless") as relay,
        connected(relay.port, receive_buffer=4_096) as slow,
        connected(relay.port) as other,
    ):
        await slow.subscribe("t", qos=1)
        for number in range(count):
            await other.publish("t", b"%06d" % number + bytes(size), 1, packet_id=number + 1)
            await other.expect(PubAck(number + 1))
        relay.audit()
        for number in range(count):
            packet = await slow.publication()
            assert packet.payload == b"%06d" % number + bytes(size)
            await slow.send(PubAck(packet.packet_id))
        relay.audit()


async def test_many_to_one_all_arrive() -> None:
    """What comes from many sockets at once is gathered; nothing is lost or out of order."""
    async with running() as relay, AsyncExitStack() as stack:
        reader = await stack.enter_async_context(connected(relay.port, "reader"))
        await reader.subscribe("t/#", qos=1)
        many = [await stack.enter_async_context(connected(relay.port)) for _ in range(30)]
        for number in range(6):
            for qos in (0, 1):
                for place, each in enumerate(many):
                    await each.publish(
                        f"t/{place}", b"%d" % number, qos, packet_id=qos and number + 1
                    )
                found: dict[str, bytes] = {}
                for _ in many:
                    packet = await reader.publication()
                    found[packet.topic] = packet.payload
                    if packet.qos:
                        await reader.send(PubAck(packet.packet_id))
                assert found == {f"t/{place}": b"%d" % number for place in range(len(many))}
                if qos:
                    for each in many:
                        await each.expect(PubAck(number + 1))
        relay.audit()


@pytest.mark.rule(7)
async def test_what_a_kept_session_is_to_get_is_acknowledged_when_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time, however many have come just like it."""
    async with running(store=tmp_path, fsync_interval=3600.0) as relay:
        async with connected5(relay.port, "away", clean=True, session_expiry=600) as away:
            await away.subscribe("t", options=1)
            await away.send(Disconnect())
            await away.gone()
        async with connected(relay.port, "writer") as writer:
            for number in range(1, 5):
                await writer.publish("t", b"x", 1, packet_id=number)
                await writer.expect(PubAck(number))
            # From now on nothing goes on the disk.
            monkeypatch.setattr(Rests, "_end_wait", stays)
            await writer.publish("t", b"x", 1, packet_id=5)
            assert await writer.silent(0.3)
            monkeypatch.undo()
            await writer.publish("t", b"x", 1, packet_id=6)
            await writer.expect(PubAck(5))
            await writer.expect(PubAck(6))
        relay.audit()


@pytest.mark.rule(8)
async def test_more_than_can_be_acknowledged_leave_nothing_owed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection that sends them ends, before they are charged."""
    most = MOST_PACKETS + 7
    for module in ("_plain_packets", "_publisher_acks"):
        monkeypatch.setattr(f"clearfunds.transports.mqtt.server.{module}.MAX_UNACKED", most)
    async with running(store=tmp_path, fsync_interval=3600.0) as relay:
        async with connected5(relay.port, "away", session_expiry=600) as away:
            await away.subscribe("t", options=1)
            await away.send(Disconnect())
            await away.gone()
        async with connected(relay.port, "writer") as writer:
            await writer.publish("t", b"x", 1, packet_id=1)
            await writer.expect(PubAck(1))
            with monkeypatch.context() as disk:
                disk.setattr(Rests, "_end_wait", stays)
                await writer.send(
                    *(Publish("t", b"%03d" % n, 1, packet_id=n) for n in range(2, most + 30))
                )
                await writer.gone()
        relay.audit()
        assert relay.relay.mqtt.counters.protocol_errors == 1
