"""Runs of publications, from one version's form into the other's: against the codecs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clearfunds.transports.mqtt import Publish, encode
from clearfunds.transports.mqtt.codec._packets5 import encode5, encode_publish5
from clearfunds.transports.mqtt.codec._properties import variable_int
from clearfunds.transports.mqtt.server._reframe import as_mqtt5, as_mqtt311

SIZES = st.one_of(
    st.integers(0, 20),
    # About where a length takes one byte more.
    st.integers(110, 135),
    st.integers(16_370, 16_395),
    st.integers(2_097_135, 2_097_160).filter(lambda size: size % 5 == 0),
)

publications = st.lists(
    st.tuples(st.sampled_from(["a", "b/c", "ü", "t" * 130]), SIZES, st.integers(1, 4)),
    min_size=1,
    max_size=6,
).map(
    lambda several: [
        Publish(topic, b"x" * size) for topic, size, times in several for _ in range(times)
    ]
)


@given(publications)
def test_there_and_back(packets: list[Publish]) -> None:
    old = b"".join(map(encode, packets))
    new = b"".join(map(encode5, packets))
    assert as_mqtt5(old) == new
    assert as_mqtt311(new) == old


@given(publications)
def test_each_topic_has_its_properties(packets: list[Publish]) -> None:
    properties = {"a": b"\x0b\x07", "b/c": b"", "ü": b"\x0b\x80\x01" * 60, "t" * 130: b"\x0b\x01"}

    def of(key: bytes) -> bytes:
        found = properties[key.decode()]
        return variable_int(len(found)) + found

    assert as_mqtt5(b"".join(map(encode, packets)), of) == b"".join(
        encode_publish5(packet.topic, packet.payload, properties=properties[packet.topic])
        for packet in packets
    )
