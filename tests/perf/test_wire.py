"""Packets in bulk, against the decoder that everything else uses."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearfunds.perf import PerfError
from clearfunds.perf._wire import (
    PUBREL,
    Packets,
    Publications,
    acknowledgement,
    packet_id_at,
)
from clearfunds.transports.mqtt import PubAck, Publish, PubRel, decode, encode


def cut(packets: Packets) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    while (packet := packets.next()) is not None:
        first, body, end = packet
        found.append((first, packets.buffer[body:end]))
    return found


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
    with pytest.raises(PerfError, match="not MQTT"):
        packets.next()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_publications(qos: int) -> None:
    made = Publications(["a", "b/c"], qos).frame(1, 513, b"head", b"er" * 200)
    assert made == encode(Publish("b/c", b"head" + b"er" * 200, qos, packet_id=513 if qos else 0))


def test_acknowledgements() -> None:
    assert acknowledgement(4, 513) == encode(PubAck(513))
    assert acknowledgement(PUBREL, 1) == encode(PubRel(1))
    assert packet_id_at(b"\x00\x02\x01", 1) == 513
