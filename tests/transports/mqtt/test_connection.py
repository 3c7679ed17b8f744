"""The core: who may say what when, input in pieces of any size, what is kept and what is not."""

import pytest

from clearfunds.transports import LocalProtocolError, RemoteProtocolError
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
    Publish,
    Role,
    State,
    SubAck,
    Subscribe,
    TopicLimits,
    UnacceptableConnectError,
    Will,
    encode,
)

ACCEPTED = ConnAck(session_present=False, return_code=0)
REFUSED = ConnAck(session_present=False, return_code=5)


def packets(connection: Connection, data: bytes = b"") -> list[Packet]:
    if data:
        connection.receive_data(data)
    taken: list[Packet] = []
    while (packet := connection.next_packet()) is not NEED_DATA:
        taken.append(packet)
    return taken


def connected_pair() -> tuple[Connection, Connection]:
    client, server = Connection(Role.CLIENT), Connection(Role.SERVER)
    server.receive_data(client.send(Connect("c")))
    assert server.next_packet() == Connect("c")
    assert packets(client, server.send(ACCEPTED)) == [ACCEPTED]
    return client, server


def states(*connections: Connection) -> set[State]:
    return {connection.state for connection in connections}


def test_a_conversation() -> None:
    client, server = connected_pair()
    assert states(client, server) == {State.CONNECTED}
    assert packets(server, client.send(Subscribe(1, (("a/#", 1),)))) == [
        Subscribe(1, (("a/#", 1),))
    ]
    assert packets(client, server.send(SubAck(1, (1,)))) == [SubAck(1, (1,))]
    published = Publish("a/b", b"x", qos=1, packet_id=9)
    assert packets(client, server.send(published)) == [published]
    assert packets(server, client.send(PubAck(9)) + client.send(PingReq())) == [
        PubAck(9),
        PingReq(),
    ]
    assert packets(client, server.send(PingResp())) == [PingResp()]
    assert packets(server, client.send(Disconnect())) == [Disconnect()]
    assert states(client, server) == {State.CLOSED}


def test_a_client_need_not_wait_for_connack_and_the_server_reads_on_only_after_it() -> None:
    client, server = Connection(Role.CLIENT), Connection(Role.SERVER)
    server.receive_data(client.send(Connect("c")) + client.send(Publish("t")))
    assert server.next_packet() == Connect("c")
    with pytest.raises(LocalProtocolError, match="answer CONNECT"):
        server.next_packet()
    server.send(ACCEPTED)
    assert packets(server) == [Publish("t")]


def test_what_follows_a_refused_connect_is_not_processed() -> None:
    client, server = Connection(Role.CLIENT), Connection(Role.SERVER)
    server.receive_data(client.send(Connect("c")) + client.send(Publish("t")))
    server.next_packet()
    refusal = server.send(REFUSED)
    assert server.state is State.CLOSED
    assert packets(server, b"\x30\3\0\1t") == []  # [MQTT-3.1.4-5]
    assert server.unparsed_bytes == 0
    assert packets(client, refusal) == [REFUSED]
    assert client.state is State.CLOSED
    assert packets(client, b"whatever comes now") == []


def test_a_connect_refused_by_the_codec_says_the_same_again_and_takes_its_connack() -> None:
    server = Connection(Role.SERVER)
    server.receive_data(b"\x10\x0d\0\4MQTT\6\2\0\0\0\0\0")
    for _ in range(2):
        with pytest.raises(UnacceptableConnectError, match="level 6"):
            server.next_packet()
    assert server.send(ConnAck(session_present=False, return_code=1)) == b"\x20\2\0\1"
    assert server.state is State.CLOSED


def test_after_an_error_the_same_is_said_again_and_nothing_is_kept() -> None:
    _, server = connected_pair()
    server.receive_data(b"\x30\3\0\1t\0\0" + bytes(1000))
    assert server.next_packet() == Publish("t")
    messages: set[str] = set()
    for _ in range(3):
        with pytest.raises(RemoteProtocolError) as caught:
            server.next_packet()
        messages.add(str(caught.value))
        server.receive_data(bytes(1000))
        assert server.unparsed_bytes == 0
    assert len(messages) == 1
    with pytest.raises(LocalProtocolError, match="closed"):
        server.send(PingResp())


def test_after_disconnect_nothing_is_accepted_however_it_arrives() -> None:
    for later in (b"", b"\xc0\0"):
        _, server = connected_pair()
        server.receive_data(b"\xe0\0" + later)
        assert server.next_packet() == Disconnect()
        server.receive_data(b"\xc0\0")
        with pytest.raises(RemoteProtocolError, match=r"MQTT-3\.14\.4-2"):
            server.next_packet()


def test_closing_from_this_side_drops_what_is_on_its_way() -> None:
    client, _ = connected_pair()
    client.receive_data(b"\x30\3\0\1t\x30")
    client.send(Disconnect())
    assert packets(client, b"\xff\xff") == []
    assert client.unparsed_bytes == 0
    with pytest.raises(LocalProtocolError, match=r"MQTT-3\.14\.4-2"):
        client.send(Publish("t"))


@pytest.mark.parametrize(
    ("role", "packet"),
    [
        (Role.SERVER, Subscribe(1, (("a", 0),))),
        (Role.SERVER, PingReq()),
        (Role.SERVER, Disconnect()),
        (Role.SERVER, Connect("c")),
        (Role.SERVER, ACCEPTED),
        (Role.CLIENT, SubAck(1, (0,))),
        (Role.CLIENT, PingResp()),
        (Role.CLIENT, ACCEPTED),
        (Role.CLIENT, Connect("c")),
    ],
)
def test_packets_that_may_not_be_sent(role: Role, packet: Packet) -> None:
    client, server = connected_pair()
    connection = client if role is Role.CLIENT else server
    with pytest.raises(LocalProtocolError, match="cannot send"):
        connection.send(packet)
    assert connection.state is State.CONNECTED


def test_nothing_is_sent_before_its_time() -> None:
    with pytest.raises(LocalProtocolError, match="while awaiting CONNECT"):
        Connection(Role.CLIENT).send(Publish("t"))
    server = Connection(Role.SERVER)
    with pytest.raises(LocalProtocolError, match="while awaiting CONNECT"):
        server.send(ACCEPTED)
    server.receive_data(encode(Connect("c")))
    server.next_packet()
    with pytest.raises(LocalProtocolError, match="while awaiting CONNACK"):
        server.send(Publish("t"))


def test_session_present_is_for_those_who_asked_for_their_session() -> None:
    present = ConnAck(session_present=True, return_code=0)
    client, server = Connection(Role.CLIENT), Connection(Role.SERVER)
    server.receive_data(client.send(Connect("c", clean_session=False)))
    server.next_packet()
    assert packets(client, server.send(present)) == [present]
    server = Connection(Role.SERVER)
    server.receive_data(encode(Connect("c", clean_session=True)))
    server.next_packet()
    with pytest.raises(LocalProtocolError, match=r"MQTT-3\.2\.2-1"):
        server.send(present)
    server.send(ACCEPTED)


def test_a_malformed_packet_of_our_own_leaves_the_connection_as_it_was() -> None:
    client = Connection(Role.CLIENT)
    with pytest.raises(LocalProtocolError):
        client.send(Connect("", clean_session=False))
    assert client.state is State.AWAITING_CONNECT
    client.send(Connect("c"))


def test_a_server_that_speaks_first_is_refused() -> None:
    client = Connection(Role.CLIENT)
    client.receive_data(b"\x20\2\0\0")
    with pytest.raises(RemoteProtocolError, match="before it was sent CONNECT"):
        client.next_packet()


@pytest.mark.parametrize(
    "start", [b"\x31\xff\xff\xff\x7f", b"\xf0", b"G", b"\x82\x81\x80\x80\x01", b"\x10"]
)
def test_a_packet_is_refused_at_the_first_byte_that_tells(start: bytes) -> None:
    _, server = connected_pair()
    assert packets(server, start[:-1]) == []
    server.receive_data(start[-1:])
    with pytest.raises(RemoteProtocolError):
        server.next_packet()


def test_whole_reads_are_not_copied() -> None:
    _, server = connected_pair()
    data = b"\x30\3\0\1t" * 3
    for _ in range(2):
        server.receive_data(data)
        assert server.buffer is data
        assert len(packets(server)) == 3
        assert server.position == len(data)


def test_a_reader_of_its_own_may_advance_the_position() -> None:
    _, server = connected_pair()
    frame = b"\x30\3\0\1t"
    server.receive_data(frame * 2 + b"\xc0\0" + frame[:3])
    server.position += 2 * len(frame)
    assert packets(server) == [PingReq()]
    assert server.unparsed_bytes == 3
    assert packets(server, frame[3:]) == [Publish("t")]


@pytest.mark.parametrize("piece", [1, 7, 4096, 65536])
def test_a_large_packet_in_pieces_takes_time_in_proportion(piece: int) -> None:
    # Joining what has come to each piece would copy half of 1 MiB a million times.
    _, server = connected_pair()
    packet = Publish("t", bytes(1 << 20), qos=1, packet_id=1)
    stream = encode(packet) + b"\xc0\0" + encode(Publish("u"))
    taken: list[Packet] = []
    for at in range(0, len(stream), piece):
        taken += packets(server, stream[at : at + piece])
        assert taken or len(server.buffer) <= piece + 8
    assert taken == [packet, PingReq(), Publish("u")]
    assert server.unparsed_bytes == 0


def test_what_was_cut_off_can_be_told() -> None:
    _, server = connected_pair()
    assert packets(server, b"\x30\x7f" + bytes(10)) == []
    assert packets(server, bytes(20)) == []
    assert server.unparsed_bytes == 32
    assert "connected, 32 bytes unparsed" in repr(server)


def test_before_connect_only_as_much_is_collected_as_a_connect_can_take() -> None:
    server = Connection(Role.SERVER)
    largest = Connect(
        "c" * 65535,
        username="u" * 65535,
        password=bytes(65535),
        will=Will("t" * 65535, bytes(65535)),
    )
    assert packets_until_connect(server, encode(largest)) == largest
    server = Connection(Role.SERVER, topic_limits=TopicLimits(max_length=10))
    server.receive_data(encode(Connect("c", will=Will("t" * 11))))
    with pytest.raises(RemoteProtocolError, match=r"CONNECT: topic name .* at most 10"):
        server.next_packet()


def packets_until_connect(server: Connection, data: bytes) -> Packet:
    server.receive_data(data)
    packet = server.next_packet()
    assert packet is not NEED_DATA
    return packet


def test_a_client_takes_topics_of_any_length() -> None:
    client, server = connected_pair()
    published = Publish("/" * 65535)
    assert packets(client, server.send(published)) == [published]
