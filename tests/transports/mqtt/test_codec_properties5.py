"""What holds for all packets of MQTT 5 and all garbage, tried on what hypothesis makes up."""

from itertools import pairwise
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearfunds.transports import LocalProtocolError, RemoteProtocolError
from clearfunds.transports.mqtt import (
    NEED_DATA,
    Auth,
    ConnAck,
    Connect,
    Connection,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Role,
    State,
    SubAck,
    Subscribe,
    UnacceptableConnectError,
    UnsubAck,
    Unsubscribe,
    Will,
)
from clearfunds.transports.mqtt.codec._frames import find_frame
from clearfunds.transports.mqtt.codec._packets5 import decode5, encode5, encode_publish5
from clearfunds.transports.mqtt.codec._properties import (
    WILL,
    Properties,
    application_properties,
    decode_properties,
    encode_properties,
)
from clearfunds.transports.mqtt.codec._reasons import ReasonedError, reason_of

# What takes long now and then on a busy machine says nothing about the code.
relaxed = settings(deadline=None)

characters = st.characters(codec="utf-8", exclude_characters="\0")
strings = st.text(characters, max_size=100)
topics = st.text(st.characters(codec="utf-8", exclude_characters="\0+#"), min_size=1, max_size=100)
filters = st.one_of(topics, st.builds("{}/#".format, topics), st.builds("+/{}".format, topics))
binaries = st.one_of(st.binary(max_size=300), st.just(bytes(20_000)))
qos = st.integers(0, 2)
packet_ids = st.integers(1, 65_535)

bits = st.integers(0, 1)
shorts = st.integers(0, 65_535)
longs = st.integers(0, 0xFFFFFFFF)
positive = st.integers(1, 65_535)
numbers = st.integers(1, 268_435_455)
pairs = st.lists(st.tuples(strings, strings), max_size=4).map(tuple)
free = st.text(st.characters(codec="utf-8", exclude_characters="\0+#"), max_size=100)

# Table 2-4, once more: the values that each may have, by place.
MESSAGE: dict[str, st.SearchStrategy[Any]] = {
    "payload_format": bits,
    "message_expiry": longs,
    "content_type": strings,
    "response_topic": free.filter(bool),
    "correlation_data": binaries,
}
AUTHENTICATION: dict[str, st.SearchStrategy[Any]] = {
    "authentication_method": strings,
    "authentication_data": binaries,
}
CONNECTING: dict[str, st.SearchStrategy[Any]] = {
    "session_expiry": longs,
    "receive_maximum": positive,
    "topic_alias_maximum": shorts,
    "maximum_packet_size": st.integers(1, 0xFFFFFFFF),
    **AUTHENTICATION,
}
REASON: dict[str, st.SearchStrategy[Any]] = {"reason_string": strings}
PLACES: dict[int, dict[str, st.SearchStrategy[Any]]] = {
    WILL: {**MESSAGE, "will_delay": longs},
    1: {
        **CONNECTING,
        "request_problem_information": bits,
        "request_response_information": bits,
    },
    2: {
        **CONNECTING,
        **REASON,
        "assigned_client_id": strings,
        "server_keep_alive": shorts,
        "response_information": strings,
        "server_reference": strings,
        "maximum_qos": bits,
        "retain_available": bits,
        "wildcard_available": bits,
        "subscription_ids_available": bits,
        "shared_available": bits,
    },
    3: {
        **MESSAGE,
        "topic_alias": positive,
        "subscription_ids": st.lists(numbers, max_size=3).map(tuple),
    },
    **dict.fromkeys((4, 5, 6, 7, 9, 11), REASON),
    8: {"subscription_ids": st.one_of(st.just(()), st.tuples(numbers))},
    10: {},
    14: {**REASON, "session_expiry": longs, "server_reference": strings},
    15: {**REASON, **AUTHENTICATION},
}


@st.composite
def properties(draw: st.DrawFn, place: int) -> Properties:
    if draw(st.booleans()):
        return Properties()
    rows = PLACES[place]
    names = draw(st.sets(st.sampled_from(sorted(rows)))) if rows else set[str]()
    values = {name: draw(rows[name]) for name in sorted(names)}
    if "authentication_method" not in values:
        values.pop("authentication_data", None)
    return Properties(user=draw(pairs), **values)


wills = st.builds(Will, topics, binaries, qos, st.booleans(), properties(WILL))
connects = st.builds(
    Connect,
    client_id=strings,
    clean_session=st.booleans(),
    keep_alive=shorts,
    username=st.none() | strings,
    password=st.none() | binaries,
    will=st.none() | wills,
    protocol_level=st.just(5),
    properties=properties(1),
)
CONNACK_FAILURES = [*range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, *range(0x99, 0x9E), 0x9F]
connacks = st.one_of(
    st.builds(ConnAck, st.booleans(), st.just(0), properties(2)),
    st.builds(ConnAck, st.just(False), st.sampled_from(CONNACK_FAILURES), properties(2)),
)
publishes = st.one_of(
    st.builds(
        Publish, topics, binaries, st.just(0), st.booleans(), st.just(False), st.just(0),
        properties(3),
    ),
    st.builds(
        Publish, topics, binaries, st.integers(1, 2), st.booleans(), st.booleans(), packet_ids,
        properties(3),
    ),
    st.builds(
        Publish,
        st.just(""),
        binaries,
        properties=st.builds(Properties, topic_alias=positive, user=pairs),
    ),
)  # fmt: skip
RECEIVED = [0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99]
acknowledgements = st.one_of(
    st.builds(PubAck, packet_ids, st.sampled_from(RECEIVED), properties(4)),
    st.builds(PubRec, packet_ids, st.sampled_from(RECEIVED), properties(5)),
    st.builds(PubRel, packet_ids, st.sampled_from([0, 0x92]), properties(6)),
    st.builds(PubComp, packet_ids, st.sampled_from([0, 0x92]), properties(7)),
)


@st.composite
def options(draw: st.DrawFn) -> int:
    return draw(qos) | draw(st.integers(0, 3)) << 2 | draw(st.integers(0, 2)) << 4


subscribes = st.builds(
    Subscribe,
    packet_ids,
    st.lists(st.tuples(filters, options()), min_size=1, max_size=5).map(tuple),
    properties(8),
)
unsubscribes = st.builds(
    Unsubscribe, packet_ids, st.lists(filters, min_size=1, max_size=5).map(tuple), properties(10)
)
GRANTED = [0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2]
subacks = st.builds(
    SubAck,
    packet_ids,
    st.lists(st.sampled_from(GRANTED), min_size=1, max_size=5).map(tuple),
    properties(9),
)
UNSUBSCRIBED = [0, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91]
unsubacks = st.builds(
    UnsubAck,
    packet_ids,
    st.lists(st.sampled_from(UNSUBSCRIBED), min_size=1, max_size=5).map(tuple),
    properties(11),
)
disconnects = st.builds(
    Disconnect, st.sampled_from([0, 4, 0x80, 0x82, 0x8B, 0x8E, 0x95, 0xA2]), properties(14)
)
auths = st.builds(Auth, st.sampled_from([0, 0x18, 0x19]), properties(15))
from_client: st.SearchStrategy[Packet] = st.one_of(
    publishes.map(lambda packet: attrs.evolve(packet, topic=packet.topic or "t")).map(
        lambda packet: attrs.evolve(
            packet, properties=attrs.evolve(packet.properties, subscription_ids=())
        )
    ),
    acknowledgements,
    subscribes,
    unsubscribes,
    st.just(PingReq()),
)
any_packet: st.SearchStrategy[Packet] = st.one_of(
    connects,
    connacks,
    publishes,
    acknowledgements,
    subscribes,
    subacks,
    unsubscribes,
    unsubacks,
    disconnects,
    auths,
    st.sampled_from([PingReq(), PingResp()]),
)


def ready() -> Connection:
    """Return a server's connection that is connected and has no input."""
    server = Connection(Role.SERVER, max_topic_alias=65_535)
    server.receive_data(encode5(Connect("c", protocol_level=5)))
    server.next_packet()
    server.send(ConnAck(session_present=False, return_code=0))
    return server


def outcome(connection: Connection, pieces: list[bytes]) -> tuple[list[Packet], str | None, int]:
    """Return the packets that came of the pieces, the error that ended them, and its reason."""
    taken: list[Packet] = []
    for piece in pieces:
        connection.receive_data(piece)
        try:
            while (packet := connection.next_packet()) is not NEED_DATA:
                taken.append(packet)
                if connection.state is State.AWAITING_CONNACK:
                    connection.send(ConnAck(session_present=False, return_code=0))
        except RemoteProtocolError as exc:
            return taken, str(exc), reason_of(exc)
    return taken, None, 0


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(at % (len(data) + 1) for at in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def one_by_one(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


def body_of(frame: bytes) -> bytes:
    located = find_frame(frame, 0)
    assert located is not None
    start, end = located
    assert end == len(frame)
    return frame[start:]


@relaxed
@given(any_packet)
def test_decoding_undoes_encoding(packet: Packet) -> None:
    frame = encode5(packet)
    assert decode5(frame[0], body_of(frame)) == packet


@relaxed
@given(st.data(), st.sampled_from(sorted(PLACES)))
def test_properties_survive_and_no_other_place_takes_what_is_not_its_own(
    data: st.DataObject, place: int
) -> None:
    given = data.draw(properties(place))
    encoded = encode_properties(given, place)
    assert decode_properties(encoded, 0, place) == (given, len(encoded))
    other = data.draw(st.sampled_from(sorted(PLACES)))
    own = {*PLACES[other], "user"}
    fields = {
        field.name
        for field in attrs.fields(Properties)
        if getattr(given, field.name) not in (None, ())
    }
    several = other == 8 and len(given.subscription_ids) > 1
    if fields <= own and not several:
        assert encode_properties(given, other) == encoded
        return
    with pytest.raises(LocalProtocolError):
        encode_properties(given, other)
    with pytest.raises(ReasonedError):
        decode_properties(encoded, 0, other)


@relaxed
@given(topics, binaries, properties(3))
def test_what_goes_on_to_subscribers_is_unaltered(
    topic: str, payload: bytes, given: Properties
) -> None:
    forwarded = encode_publish5(topic, payload, properties=application_properties(given))
    assert decode5(forwarded[0], body_of(forwarded)) == Publish(
        topic,
        payload,
        properties=attrs.evolve(given, message_expiry=None, topic_alias=None, subscription_ids=()),
    )


@relaxed
@given(st.lists(from_client, max_size=8), st.lists(st.integers(0, 1 << 20), max_size=10))
def test_pieces_make_no_difference(packets: list[Packet], cuts: list[int]) -> None:
    data = b"".join(encode5(packet) for packet in packets)
    expected = (packets, None, 0)
    assert outcome(ready(), [data]) == expected
    assert outcome(ready(), cut(data, cuts)) == expected
    assert outcome(ready(), one_by_one(data)) == expected


# Garbage that gets past the first byte: packets with some bytes changed, cut out or put in.
@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(
        b"".join(encode5(p) for p in draw(st.lists(any_packet, min_size=1, max_size=4)))
    )
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
    return bytes(data)


@relaxed
@given(
    st.one_of(st.binary(max_size=200), damaged(), st.lists(damaged(), max_size=3).map(b"".join)),
    st.lists(st.integers(0, 1 << 20), max_size=10),
    st.booleans(),
)
def test_garbage_raises_nothing_but_remote_protocol_error(
    data: bytes, cuts: list[int], fresh: bool
) -> None:
    def make() -> Connection:
        return Connection(Role.SERVER) if fresh else ready()

    whole = outcome(make(), [data])
    assert outcome(make(), cut(data, cuts)) == whole
    assert outcome(make(), one_by_one(data)) == whole


@relaxed
@given(st.one_of(st.binary(max_size=200), damaged()), st.booleans())
def test_whoever_breaks_the_protocol_can_be_told_why(data: bytes, fresh: bool) -> None:
    server = Connection(Role.SERVER) if fresh else ready()
    _, message, reason = outcome(server, [data])
    if message is None or server.version == 4 or "after its DISCONNECT" in message:
        return
    if server.state is State.AWAITING_CONNACK:
        with pytest.raises(UnacceptableConnectError) as caught:
            server.next_packet()
        code = caught.value.return_code
        assert server.send(ConnAck(session_present=False, return_code=code))
    else:
        assert server.send(Disconnect(reason))
    assert server.state is State.CLOSED


@relaxed
@given(st.integers(0, 255), st.binary(max_size=60))
def test_what_was_decoded_can_be_encoded(first_byte: int, body: bytes) -> None:
    try:
        packet = decode5(first_byte, body)
    except ReasonedError:
        return
    frame = encode5(packet)
    assert decode5(frame[0], body_of(frame)) == packet


@relaxed
@given(st.sampled_from(sorted(PLACES)), st.binary(max_size=60))
def test_garbage_is_refused_with_a_reason_or_is_properties(place: int, garbage: bytes) -> None:
    for data in (garbage, bytes((len(garbage),)) + garbage):
        try:
            found, end = decode_properties(data, 0, place)
        except ReasonedError:
            continue
        assert end <= len(data)
        again = encode_properties(found, place)
        assert decode_properties(again, 0, place)[0] == found
