"""The core in MQTT 5: which version is spoken, who is told why, topic aliases."""

from typing import Any

import attrs
import pytest

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
    Publish,
    PubRec,
    Role,
    State,
    SubAck,
    Subscribe,
    TopicLimits,
    UnacceptableConnectError,
    UnsubAck,
    Unsubscribe,
    Will,
    encode,
)
from clearfunds.transports.mqtt.codec._frames import OversizedPacketError
from clearfunds.transports.mqtt.codec._packets5 import encode5
from clearfunds.transports.mqtt.codec._properties import Properties
from clearfunds.transports.mqtt.codec._reasons import Reason, ReasonedError, reason_of

CONNECT = bytes.fromhex("10 0e 0004 4d515454 05 02 003c 00 0001 63")
ACCEPTED = ConnAck(session_present=False, return_code=0)


def packets(connection: Connection, data: bytes = b"") -> list[Packet]:
    if data:
        connection.receive_data(data)
    taken: list[Packet] = []
    while (packet := connection.next_packet()) is not NEED_DATA:
        taken.append(packet)
    return taken


def connected(
    connect: bytes = CONNECT,
    *,
    max_packet_size: int = 1_000,
    topic_limits: TopicLimits | None = None,
    max_topic_alias: int = 0,
) -> Connection:
    server = Connection(
        Role.SERVER,
        max_packet_size=max_packet_size,
        topic_limits=topic_limits,
        max_topic_alias=max_topic_alias,
    )
    server.receive_data(connect)
    assert isinstance(server.next_packet(), Connect)
    assert server.version == 5
    assert server.send(ACCEPTED) == b"\x20\3\0\0\0"
    return server


def refused(connection: Connection, data: bytes) -> RemoteProtocolError:
    connection.receive_data(data)
    with pytest.raises(RemoteProtocolError) as caught:
        packets(connection)
    return caught.value


def test_a_conversation() -> None:
    server = connected(max_topic_alias=2)
    assert packets(server, bytes.fromhex("82 07 0001 00 0001 61 2d")) == [
        Subscribe(1, (("a", 0x2D),))
    ]
    assert server.send(SubAck(1, (1,))) == b"\x90\4\0\1\0\1"
    assert packets(server, b"\xc0\0") == [PingReq()]
    assert server.send(PingResp()) == b"\xd0\0"
    assert packets(server, b"\x32\7\0\1a\0\7\0x") == [Publish("a", b"x", qos=1, packet_id=7)]
    assert server.send(PubAck(7, Reason.NO_MATCHING_SUBSCRIBERS)) == b"\x40\3\0\7\x10"
    given = Publish("a", b"x", qos=2, packet_id=1, properties=Properties(subscription_ids=(3,)))
    assert server.send(given) == b"\x34\x09\0\1a\0\1\2\x0b\3x"
    assert packets(server, b"\x50\3\0\1\x97") == [PubRec(1, Reason.QUOTA_EXCEEDED)]
    assert packets(server, b"\xa2\6\0\2\0\0\1a") == [Unsubscribe(2, ("a",))]
    assert server.send(UnsubAck(2, (0x11,))) == b"\xb0\4\0\2\0\x11"
    assert packets(server, b"\xe0\1\4") == [Disconnect(Reason.DISCONNECT_WITH_WILL)]
    assert server.state is State.CLOSED
    error = refused(server, b"\xc0\0")
    assert "after its DISCONNECT" in str(error)
    with pytest.raises(LocalProtocolError, match="the connection is closed"):
        server.send(Disconnect(Reason.PROTOCOL_ERROR))  # it has gone by itself


def test_what_the_first_connect_asks_for_is_spoken() -> None:
    server = Connection(Role.SERVER)
    assert server.version == 4
    server.receive_data(bytes.fromhex("10 0d 0004 4d515454 04 02 003c 0001 63"))
    assert server.next_packet() == Connect("c", keep_alive=60)
    assert server.version == 4
    assert server.send(ACCEPTED) == b"\x20\2\0\0"
    assert packets(server, b"\x30\4\0\1t\0") == [Publish("t", b"\0")]
    with pytest.raises(LocalProtocolError, match="a server does not send it"):
        server.send(Disconnect())
    refused(server, b"\xf0\0")
    with pytest.raises(LocalProtocolError, match="the connection is closed"):
        server.send(Disconnect())


def test_a_connect_however_it_is_cut() -> None:
    server = Connection(Role.SERVER)
    for at in range(len(CONNECT) - 1):
        assert packets(server, CONNECT[at : at + 1]) == []
        assert server.version == 4
    server.receive_data(CONNECT[-1:])
    assert server.next_packet() == Connect("c", keep_alive=60, protocol_level=5)
    assert server.version == 5


def accepted_client(**said: Any) -> Connection:
    """Return a client that was let in."""
    client = Connection(Role.CLIENT, max_topic_alias=3)
    client.send(Connect("c", protocol_level=5, properties=Properties(**said)))
    assert packets(client, encode5(ACCEPTED)) == [ACCEPTED]
    return client


def test_a_client_speaks_the_version_that_it_asks_for() -> None:
    client = accepted_client()
    assert client.version == 5
    said = Publish("t", b"x", properties=Properties(user=(("a", "b"),)))
    assert client.send(said) == encode5(said)
    told = Publish("t", b"x", properties=Properties(subscription_ids=(3,)))
    assert packets(client, encode5(told)) == [told]
    old = Connection(Role.CLIENT)
    old.send(Connect("c"))
    assert (old.version, packets(old, b"\x20\2\0\0")) == (4, [ConnAck(False, 0)])
    older = Connection(Role.CLIENT)
    older.send(Connect("c", protocol_name="MQIsdp", protocol_level=3))
    assert older.version == 3
    assert packets(older, b"\x20\2\0\0\xd0\0") == [ConnAck(False, 0), PingResp()]


def test_a_server_that_does_not_know_5_is_understood() -> None:
    client = Connection(Role.CLIENT)
    client.send(Connect("c", protocol_level=5))
    assert packets(client, b"\x20\2\0\1") == [ConnAck(False, Reason.UNSUPPORTED_PROTOCOL_VERSION)]
    assert client.state is State.CLOSED


def test_a_server_has_short_names_for_topics_too() -> None:
    client = accepted_client()
    long = Publish("long/topic", b"1", properties=Properties(topic_alias=3))
    short = attrs.evolve(long, topic="")
    assert packets(client, encode5(long) + encode5(short)) == [long, long]
    client.receive_data(encode5(Publish("t", properties=Properties(topic_alias=4))))
    with pytest.raises(ReasonedError) as caught:
        client.next_packet()
    assert caught.value.reason == Reason.TOPIC_ALIAS_INVALID
    assert client.send(Disconnect(caught.value.reason)) == b"\xe0\1\x94"


@pytest.mark.parametrize(
    ("last", "fault"),
    [
        (Disconnect(Reason.SESSION_TAKEN_OVER), None),
        (Disconnect(Reason.DISCONNECT_WITH_WILL), "only clients send"),
        (Disconnect(Reason.SERVER_BUSY, Properties(session_expiry=1)), "MQTT-3.14.2-2"),
    ],
)
def test_a_client_is_told_why_it_is_disconnected(last: Disconnect, fault: str | None) -> None:
    client = accepted_client()
    client.receive_data(encode5(last))
    if fault is not None:
        with pytest.raises(ReasonedError, match=fault):
            client.next_packet()
        return
    assert client.next_packet() == last
    assert client.state is State.CLOSED
    client.receive_data(b"\xd0\0")
    with pytest.raises(RemoteProtocolError, match="the server sent more after its DISCONNECT"):
        client.next_packet()


def test_a_client_says_what_a_client_may() -> None:
    for said in (
        Disconnect(Reason.SERVER_SHUTTING_DOWN),
        Disconnect(properties=Properties(session_expiry=1)),  # it was 0
    ):
        with pytest.raises(LocalProtocolError):
            accepted_client().send(said)
    client = accepted_client(session_expiry=1)
    client.send(Disconnect(Reason.DISCONNECT_WITH_WILL, Properties(session_expiry=2)))
    assert client.state is State.CLOSED


# A CONNECT, and the reason for which it is refused.
BAD_CONNECTS: dict[str, tuple[bytes, int]] = {
    "reserved flag": (bytes.fromhex("10 0e 0004 4d515454 05 03 003c 00 0001 63"), 0x81),
    "cut off": (bytes.fromhex("10 07 0004 4d515454 05"), 0x81),
    "receive maximum 0": (
        bytes.fromhex("10 11 0004 4d515454 05 02 003c 03 21 0000 0001 63"),
        0x82,
    ),
    "length padded": (b"\x10\x8e\0" + CONNECT[2:], 0x81),
    "will topic too long": (
        encode5(Connect("c", will=Will("t" * 21), protocol_level=5)),
        Reason.TOPIC_NAME_INVALID,
    ),
}


@pytest.mark.parametrize(("frame", "reason"), BAD_CONNECTS.values(), ids=BAD_CONNECTS)
def test_a_connect_that_is_not_in_order_is_answered_with_a_reason(
    frame: bytes, reason: int
) -> None:
    server = Connection(Role.SERVER, topic_limits=TopicLimits(max_length=20))
    server.receive_data(frame + b"\xc0\0")
    for _ in range(2):
        with pytest.raises(UnacceptableConnectError) as caught:
            server.next_packet()
        assert caught.value.return_code == reason
    assert server.version == 5
    assert server.unparsed_bytes == 0
    with pytest.raises(LocalProtocolError, match="has to be refused"):
        server.send(ACCEPTED)
    with pytest.raises(LocalProtocolError, match="while awaiting CONNACK"):
        server.send(Disconnect(reason))
    assert server.send(ConnAck(session_present=False, return_code=reason)) == (
        bytes((0x20, 3, 0, reason, 0))
    )
    assert server.state is State.CLOSED
    with pytest.raises(LocalProtocolError, match="the connection is closed"):
        server.send(Disconnect(reason))


def test_a_server_refuses_a_connect_that_is_in_order() -> None:
    server = Connection(Role.SERVER)
    server.receive_data(CONNECT)
    server.next_packet()
    with pytest.raises(LocalProtocolError, match=r"MQTT-3\.2\.2-8"):
        server.send(ConnAck(session_present=False, return_code=5))
    properties = Properties(reason_string="no")
    assert server.send(ConnAck(False, Reason.NOT_AUTHORIZED, properties)) == (
        b"\x20\x08\0\x87\5\x1f\0\2no"
    )
    assert server.state is State.CLOSED


def test_session_present_is_for_those_who_asked_for_their_session() -> None:
    server = Connection(Role.SERVER)
    server.receive_data(CONNECT)
    server.next_packet()
    with pytest.raises(LocalProtocolError, match=r"MQTT-3\.2\.2-2"):
        server.send(ConnAck(session_present=True, return_code=0))
    server = Connection(Role.SERVER)
    server.receive_data(encode5(Connect("", clean_session=False, protocol_level=5)))
    assert server.next_packet() == Connect("", clean_session=False, protocol_level=5)
    assert server.send(ConnAck(True, 0, Properties(assigned_client_id="x")))
    assert server.state is State.CONNECTED


def test_a_server_says_goodbye() -> None:
    server = connected()
    assert server.send(Disconnect(Reason.SESSION_TAKEN_OVER)) == b"\xe0\1\x8e"
    assert server.state is State.CLOSED
    assert packets(server, b"whatever comes now") == []
    with pytest.raises(LocalProtocolError, match="the connection is closed"):
        server.send(Disconnect(Reason.SESSION_TAKEN_OVER))


@pytest.mark.parametrize(
    "packet", [Disconnect(4), Disconnect(0, Properties(session_expiry=1)), Disconnect(1)]
)
def test_a_goodbye_that_is_not_a_servers(packet: Disconnect) -> None:
    server = connected()
    with pytest.raises(LocalProtocolError, match=r"MQTT-3\.14\.2-"):
        server.send(packet)
    assert server.state is State.CONNECTED


METHOD = Properties(authentication_method="M")
AUTH_CONNECT = encode5(Connect("c", protocol_level=5, properties=METHOD))
GO_ON = Auth(Reason.CONTINUE_AUTHENTICATION, METHOD)


def authenticating() -> Connection:
    server = Connection(Role.SERVER)
    server.receive_data(AUTH_CONNECT)
    assert isinstance(server.next_packet(), Connect)
    server.send(GO_ON)
    return server


def test_an_authentication_takes_as_many_steps_as_it_needs() -> None:
    server = authenticating()
    for _ in range(3):
        assert server.state is State.AUTHENTICATING
        assert packets_until_answered(server, encode5(GO_ON)) == GO_ON
        server.send(GO_ON)
    assert packets_until_answered(server, encode5(GO_ON)) == GO_ON
    server.send(ACCEPTED)
    again = attrs.evolve(GO_ON, reason=Reason.REAUTHENTICATE)
    assert packets(server, encode5(again)) == [again]
    server.send(Auth(0, METHOD))
    assert server.state is State.CONNECTED


def packets_until_answered(server: Connection, data: bytes) -> object:
    server.receive_data(data)
    packet = server.next_packet()
    assert server.state is State.AWAITING_CONNACK
    return packet


def test_who_gives_up_may_say_so() -> None:
    server = authenticating()
    assert packets(server, encode5(Disconnect())) == [Disconnect()]
    assert server.state is State.CLOSED


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (encode5(PingReq()), "PINGREQ before CONNACK"),
        (AUTH_CONNECT, "CONNECT before CONNACK"),
        (b"\xf0\0", "MQTT-4.12.0-5"),
        (encode5(Auth(0x18, Properties(authentication_method="N"))), "MQTT-4.12.0-5"),
        (encode5(Auth(0, METHOD)), "MQTT-3.15.2-1"),
        (b"\xf0\x81\x41", "at most 8192"),
    ],
)
def test_nothing_else_comes_before_connack(data: bytes, error: str) -> None:
    server = authenticating()
    server.receive_data(data)
    with pytest.raises(RemoteProtocolError, match=error):
        server.next_packet()
    assert server.state is State.CLOSED


def test_3_1_1_has_no_auth() -> None:
    server = Connection(Role.SERVER)
    server.receive_data(encode(Connect("c")))
    server.next_packet()
    with pytest.raises(LocalProtocolError, match="cannot send"):
        server.send(GO_ON)
    with pytest.raises(LocalProtocolError, match="has no AUTH"):
        encode(GO_ON)
    server.send(ACCEPTED)
    server.receive_data(b"\xf0\0")
    with pytest.raises(RemoteProtocolError, match="type 15 is reserved"):
        server.next_packet()


# What a client sends, once it is connected, and the reason of the DISCONNECT for it.
BAD_INPUT: dict[str, tuple[bytes, int, str]] = {
    "second CONNECT": (CONNECT, Reason.PROTOCOL_ERROR, "MQTT-3.1.0-2"),
    "AUTH": (b"\xf0\0", Reason.PROTOCOL_ERROR, "MQTT-4.12.0-6"),
    "what servers send": (b"\x90", Reason.PROTOCOL_ERROR, "table 2-1"),
    "flags": (b"\xc1\0", Reason.MALFORMED_PACKET, "MQTT-2.1.3-1"),
    "QoS 3": (b"\x36", Reason.MALFORMED_PACKET, "MQTT-3.3.1-4"),
    "length of five bytes": (b"\x30\xff\xff\xff\xff", Reason.MALFORMED_PACKET, "section 2.2.3"),
    "length padded": (b"\xc0\x80\0", Reason.MALFORMED_PACKET, "MQTT-1.5.5-1"),
    "too large": (b"\x30\xe6\7", Reason.PACKET_TOO_LARGE, "at most 1000"),
    "topic too long": (
        b"\x30\x18\0\x15" + b"t" * 21 + b"\0",
        Reason.TOPIC_NAME_INVALID,
        "at most 20 are allowed",
    ),
    "subscription identifier": (
        b"\x30\6\0\1t\2\x0b\1",
        Reason.PROTOCOL_ERROR,
        "MQTT-3.3.4-6",
    ),
    "a server's reason to go": (b"\xe0\1\x8b", Reason.PROTOCOL_ERROR, "MQTT-3.14.2-1"),
    "session expiry where it was 0": (
        b"\xe0\7\0\5\x11\0\0\0\1",
        Reason.PROTOCOL_ERROR,
        "3.14.2.2.2",
    ),
    "alias though none is accepted": (
        b"\x30\7\0\1t\3\x23\0\1",
        Reason.TOPIC_ALIAS_INVALID,
        "MQTT-3.3.2-9",
    ),
    "PUBLISH of 3.1.1": (b"\x30\3\0\1t", Reason.MALFORMED_PACKET, "property length"),
}


@pytest.mark.parametrize(("data", "reason", "said"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_who_breaks_the_protocol_is_told_how(data: bytes, reason: int, said: str) -> None:
    server = connected(topic_limits=TopicLimits(max_length=20))
    error = refused(server, data)
    assert said in str(error)
    assert reason_of(error) == reason
    assert isinstance(error, OversizedPacketError) == (reason == Reason.PACKET_TOO_LARGE)
    assert server.state is State.CLOSED
    assert refused(server, b"\xc0\0") is error
    with pytest.raises(LocalProtocolError, match="the connection is closed"):
        server.send(PingResp())
    with pytest.raises(LocalProtocolError, match="has to be refused"):
        server.send(Disconnect())
    assert server.send(Disconnect(reason)) == bytes((0xE0, 1, reason))
    with pytest.raises(LocalProtocolError, match="the connection is closed"):
        server.send(Disconnect(reason))
    assert refused(server, b"\xc0\0") is error


def test_after_closing_nobody_is_told() -> None:
    server = connected()
    refused(server, b"\xf0\0")
    server.close()
    with pytest.raises(LocalProtocolError, match="the connection is closed"):
        server.send(Disconnect(Reason.PROTOCOL_ERROR))


def test_a_session_that_was_to_be_kept_may_be_kept_for_another_time() -> None:
    server = connected(
        encode5(Connect("c", protocol_level=5, properties=Properties(session_expiry=9)))
    )
    assert packets(server, b"\xe0\7\0\5\x11\0\0\0\1") == [
        Disconnect(0, Properties(session_expiry=1))
    ]
    server = connected()
    assert packets(server, b"\xe0\7\0\5\x11\0\0\0\0") == [
        Disconnect(0, Properties(session_expiry=0))
    ]


def aliased(
    alias: int, topic: str, payload: bytes = b"", qos: int = 0, packet_id: int = 0
) -> bytes:
    return encode5(
        Publish(topic, payload, qos, packet_id=packet_id, properties=Properties(topic_alias=alias))
    )


def topics(connection: Connection, data: bytes) -> list[str]:
    return [packet.topic for packet in packets(connection, data) if isinstance(packet, Publish)]


def test_topic_aliases_are_resolved() -> None:
    server = connected(max_topic_alias=2)
    stream = aliased(1, "a") + aliased(2, "b") + aliased(1, "") + aliased(2, "") + aliased(1, "")
    assert topics(server, stream) == ["a", "b", "a", "b", "a"]
    assert topics(server, aliased(1, "c") + aliased(1, "") + aliased(2, "")) == ["c", "c", "b"]
    assert packets(server, aliased(1, "", b"x", 1, 7)) == [
        Publish("c", b"x", qos=1, packet_id=7, properties=Properties(topic_alias=1))
    ]
    assert topics(connected(max_topic_alias=65_535), aliased(65_535, "a")) == ["a"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x30\7\0\1t\3\x23\0\0", Reason.TOPIC_ALIAS_INVALID),
        (aliased(3, "t"), Reason.TOPIC_ALIAS_INVALID),
        (aliased(3, ""), Reason.TOPIC_ALIAS_INVALID),
        (aliased(2, ""), Reason.PROTOCOL_ERROR),
    ],
)
def test_topic_aliases_that_are_not_good(data: bytes, reason: int) -> None:
    server = connected(max_topic_alias=2)
    assert topics(server, aliased(1, "a")) == ["a"]
    error = refused(server, data)
    assert isinstance(error, ReasonedError)
    assert error.reason == reason
    assert server.send(Disconnect(reason))


def test_how_many_aliases_there_may_be_can_be_said_before_connack() -> None:
    server = Connection(Role.SERVER)
    server.receive_data(CONNECT)
    server.next_packet()
    server.max_topic_alias = 1
    server.send(ConnAck(False, 0, Properties(topic_alias_maximum=1)))
    assert topics(server, aliased(1, "a") + aliased(1, "")) == ["a", "a"]


def test_a_connect_that_is_too_large_is_refused_when_it_is_announced() -> None:
    server = Connection(Role.SERVER)
    error = refused(server, b"\x10\x91\x80\x14")
    assert isinstance(error, OversizedPacketError)
    assert server.state is State.CLOSED
    assert server.version == 4
