"""What holds for all packets and all garbage, tried on what hypothesis makes up."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from clearfunds.transports import RemoteProtocolError
from clearfunds.transports.mqtt import (
    NEED_DATA,
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
    UnsubAck,
    Unsubscribe,
    Will,
    decode,
    encode,
)
from clearfunds.transports.mqtt.codec._frames import find_frame
from clearfunds.transports.mqtt.codec._topics import topic_filter_fault, topic_name_fault

# What takes long now and then on a busy machine says nothing about the code.
relaxed = settings(deadline=None)

characters = st.characters(codec="utf-8", exclude_characters="\0")
strings = st.text(characters, max_size=200)
topics = st.text(st.characters(codec="utf-8", exclude_characters="\0+#"), min_size=1, max_size=200)
levels = st.one_of(st.just("+"), st.text(st.characters(codec="utf-8", exclude_characters="\0+#/")))


@st.composite
def wildcard_filters(draw: st.DrawFn) -> str:
    return "/".join([*draw(st.lists(levels, max_size=5)), draw(st.sampled_from("+#"))])


filters = st.one_of(topics, wildcard_filters())
binaries = st.one_of(st.binary(max_size=300), st.just(bytes(20_000)))
qos = st.integers(0, 2)
packet_ids = st.integers(1, 65_535)
wills = st.builds(Will, topics, binaries, qos, st.booleans())


@st.composite
def connects(draw: st.DrawFn) -> Connect:
    username = draw(st.none() | strings)
    name, level = draw(st.sampled_from([("MQTT", 4), ("MQIsdp", 3)]))
    return Connect(
        client_id=(client_id := draw(strings if level == 4 else strings.filter(bool))),
        clean_session=draw(st.booleans()) or not client_id,
        keep_alive=draw(st.integers(0, 65_535)),
        username=username,
        password=None if username is None else draw(st.none() | binaries),
        will=draw(st.none() | wills),
        protocol_name=name,
        protocol_level=level,
        bridge=draw(st.booleans()),
    )


publishes = st.one_of(
    st.builds(Publish, topics, binaries, st.just(0), st.booleans()),
    st.builds(
        Publish, topics, binaries, st.integers(1, 2), st.booleans(), st.booleans(), packet_ids
    ),
)
acknowledgements = st.one_of(
    *(st.builds(kind, packet_ids) for kind in (PubAck, PubRec, PubRel, PubComp))
)
from_client: st.SearchStrategy[Packet] = st.one_of(
    publishes,
    acknowledgements,
    st.builds(
        Subscribe, packet_ids, st.lists(st.tuples(filters, qos), min_size=1, max_size=5).map(tuple)
    ),
    st.builds(Unsubscribe, packet_ids, st.lists(filters, min_size=1, max_size=5).map(tuple)),
    st.just(PingReq()),
)
from_server: st.SearchStrategy[Packet] = st.one_of(
    publishes,
    acknowledgements,
    st.builds(
        SubAck,
        packet_ids,
        st.lists(st.sampled_from([0, 1, 2, 0x80]), min_size=1, max_size=5).map(tuple),
    ),
    st.builds(UnsubAck, packet_ids),
    st.just(PingResp()),
)
connacks = st.one_of(
    st.builds(ConnAck, st.booleans(), st.just(0)),
    st.builds(ConnAck, st.just(False), st.integers(1, 5)),
)
any_packet: st.SearchStrategy[Packet] = st.one_of(
    connects(), connacks, from_client, from_server, st.just(Disconnect())
)


def ready(role: Role) -> Connection:
    """Return a connection of that role that is connected and has no input."""
    client, server = Connection(Role.CLIENT), Connection(Role.SERVER)
    server.receive_data(client.send(Connect("c")))
    server.next_packet()
    client.receive_data(server.send(ConnAck(session_present=False, return_code=0)))
    client.next_packet()
    return client if role is Role.CLIENT else server


def outcome(connection: Connection, pieces: list[bytes]) -> tuple[list[Packet], str | None]:
    """Return the packets that came of the pieces, and the error that ended them."""
    taken: list[Packet] = []
    for piece in pieces:
        connection.receive_data(piece)
        try:
            while (packet := connection.next_packet()) is not NEED_DATA:
                taken.append(packet)
                if connection.state is State.AWAITING_CONNACK and connection.role is Role.SERVER:
                    connection.send(ConnAck(session_present=False, return_code=0))
        except RemoteProtocolError as exc:
            return taken, str(exc)
    return taken, None


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(at % (len(data) + 1) for at in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


@relaxed
@given(any_packet)
def test_decoding_undoes_encoding(packet: Packet) -> None:
    frame = encode(packet)
    located = find_frame(frame, 0)
    assert located is not None
    start, end = located
    assert end == len(frame)
    assert decode(frame[0], frame[start:]) == packet


@relaxed
@given(topics, filters)
def test_the_strategies_make_legal_topics(topic: str, topic_filter: str) -> None:
    assert topic_name_fault(topic) is None
    assert topic_filter_fault(topic_filter) is None


@relaxed
@given(
    st.one_of(
        st.tuples(st.just(Role.SERVER), st.lists(from_client, max_size=8)),
        st.tuples(st.just(Role.CLIENT), st.lists(from_server, max_size=8)),
    ),
    st.lists(st.integers(0, 1 << 20), max_size=10),
)
def test_pieces_make_no_difference(stream: tuple[Role, list[Packet]], cuts: list[int]) -> None:
    role, packets = stream
    data = b"".join(encode(packet) for packet in packets)
    expected = (packets, None)
    assert outcome(ready(role), [data]) == expected
    assert outcome(ready(role), cut(data, cuts)) == expected
    assert outcome(ready(role), [data[at : at + 1] for at in range(len(data))]) == expected


# Garbage that gets past the first byte: packets with some bytes changed, cut out or put in.
@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(
        b"".join(encode(p) for p in draw(st.lists(any_packet, min_size=1, max_size=4)))
    )
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
    return bytes(data)


@relaxed
@given(
    st.one_of(st.binary(max_size=200), damaged(), st.lists(damaged()).map(b"".join)),
    st.lists(st.integers(0, 1 << 20), max_size=10),
    st.sampled_from(["fresh server", "server", "client"]),
)
def test_garbage_raises_nothing_but_remote_protocol_error(
    data: bytes, cuts: list[int], who: str
) -> None:
    def make() -> Connection:
        if who == "fresh server":
            return Connection(Role.SERVER)
        return ready(Role(who))

    whole = outcome(make(), [data])
    assert outcome(make(), cut(data, cuts)) == whole
    assert outcome(make(), [data[at : at + 1] for at in range(len(data))]) == whole


@relaxed
@given(st.integers(0, 255), st.binary(max_size=60))
def test_encoding_undoes_decoding(first_byte: int, body: bytes) -> None:
    try:
        packet = decode(first_byte, body)
    except RemoteProtocolError:
        return
    assert encode(packet) == bytes((first_byte, len(body))) + body
