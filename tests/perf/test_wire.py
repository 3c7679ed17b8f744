"""Packets in bulk, against the decoder that everything else uses."""

import socket
from contextlib import suppress
from random import Random
from typing import Final, Literal, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("hdrh")

from clearfunds.perf import Scenario
from clearfunds.perf._publisher import Publisher, PublisherLatencies
from clearfunds.perf._subscriber import Subscriber
from clearfunds.perf._wire import (
    Packets,
    Publications,
    acknowledgement,
    short_at,
)
from clearfunds.transports import RemoteProtocolError
from clearfunds.transports.mqtt import PubAck, Publish, PubRel, decode, encode

Version: TypeAlias = Literal["3.1.1", "5"]
ENDS_EARLY: Final = "ends before its fields do|is cut off"
VERSIONS: Final[tuple[Version, ...]] = ("3.1.1", "5")


def cut(packets: Packets) -> list[tuple[int, bytes]]:
    return [(first, packets.buffer[body:end]) for first, body, end in packets]


@given(
    st.lists(st.integers(0, 300).map(lambda n: Publish("a/b", bytes(n * n))), max_size=6),
    st.integers(0, 2**32),
)
def test_cut_anywhere_it_is_the_same(sent: list[Publish], seed: int) -> None:
    stream = b"".join(map(encode, sent)) + encode(PubAck(7))
    random = Random(seed)
    packets = Packets()
    found: list[tuple[int, bytes]] = []
    while stream:
        size = random.choice((1, 2, 3, 100, 100_000))
        packets.feed(stream[:size])
        stream = stream[size:]
        found += cut(packets)
    assert [decode(first, body) for first, body in found] == [*sent, PubAck(7)]


def test_what_is_no_mqtt() -> None:
    packets = Packets()
    packets.feed(b"\x30\xff\xff\xff\xff\xff")
    with pytest.raises(RemoteProtocolError, match="not an MQTT packet"):
        next(iter(packets))


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_publications(qos: int) -> None:
    made = Publications(["a", "b/c"], qos).frame(1, 513, b"head", b"er" * 200)
    assert made == encode(Publish("b/c", b"head" + b"er" * 200, qos, packet_id=513 if qos else 0))


def test_acknowledgements() -> None:
    assert acknowledgement(0x40, 513) == encode(PubAck(513))
    assert acknowledgement(0x62, 1) == encode(PubRel(1))
    assert short_at(b"\x00\x02\x01", 1, 3) == 513


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "packet",
    [
        b"\x30\x00",
        b"\x30\x01\x00",
        b"\x30\x03\x00\x02t",
        b"\x32\x04\x00\x01t\x00",
        b"\x34\x03\x00\x01t",
        b"\x62\x01\x00",
    ],
)
def test_a_subscriber_that_is_sent_less_than_a_packet(packet: bytes, version: Version) -> None:
    subscriber = Subscriber(Scenario(mqtt=version), 0, "test")
    subscriber.opened(packet)
    with pytest.raises(RemoteProtocolError, match=ENDS_EARLY):
        subscriber.take()
    subscriber.opened(packet + b"\x30" * 300)  # what comes next is not of it
    with pytest.raises(RemoteProtocolError, match=ENDS_EARLY):
        subscriber.take()


@pytest.mark.parametrize("rest", [b"", b"\xff\xff\xff\xff\x01", b"\x80", b"\x05"])
def test_properties_that_are_cut_off_end_it_too(rest: bytes) -> None:
    subscriber = Subscriber(Scenario(mqtt="5"), 0, "test")
    subscriber.opened(bytes((0x30, 3 + len(rest))) + b"\x00\x01t" + rest)
    with pytest.raises(RemoteProtocolError, match=ENDS_EARLY + "|more than four bytes"):
        subscriber.take()


@given(st.binary(max_size=300), st.sampled_from(VERSIONS))
def test_whatever_comes_raises_nothing_else(data: bytes, version: Version) -> None:
    subscriber = Subscriber(Scenario(mqtt=version, qos=1), 0, "test")
    subscriber.opened(data)
    with suppress(RemoteProtocolError):
        subscriber.take()


@pytest.mark.parametrize("packet", [b"\x40\x00", b"\x40\x01\x00", b"\x50\x00", b"\x70\x00"])
async def test_a_publisher_that_is_sent_less_than_an_acknowledgement(packet: bytes) -> None:
    publisher = Publisher(Scenario(qos=1), 0, "test", PublisherLatencies())
    here, there = socket.socketpair()
    here.setblocking(False)
    with here, there:
        there.send(packet)
        with pytest.raises(RemoteProtocolError, match=ENDS_EARLY):
            await publisher.serve(here)
