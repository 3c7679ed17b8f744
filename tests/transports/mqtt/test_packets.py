"""Packets: what is refused and why, one row a statement; what a packet looks like on the wire."""

import re

import pytest

from clearfunds.transports import LocalProtocolError, RemoteProtocolError
from clearfunds.transports.mqtt import (
    NEED_DATA,
    ConnAck,
    Connect,
    Connection,
    ConnectReturnCode,
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
    SubAck,
    Subscribe,
    TopicLimits,
    UnacceptableConnectError,
    UnsubAck,
    Unsubscribe,
    Will,
    decode,
    encode,
)


def connect(
    flags: int = 2,
    payload: bytes = b"\0\1c",
    *,
    name: bytes = b"\0\4MQTT",
    level: int = 4,
) -> bytes:
    """Return a CONNECT frame that is well-formed but for what is passed."""
    body = name + bytes((level, flags, 0, 60)) + payload
    assert len(body) < 128
    return bytes((0x10, len(body))) + body


# Each frame is the first thing a server gets, but for those marked `connected`, which come after a
# well-formed CONNECT has been accepted. Where a row breaks one statement, it breaks that alone.
MALFORMED_FIRST = {
    "first packet not CONNECT": ("MQTT-3.1.0-1", b"\xc0\0"),
    "wrong protocol name": ("MQTT-3.1.2-1", connect(name=b"\0\4AMQP")),
    "name cut off": ("MQTT-3.1.2-1", b"\x10\3\0\4M"),
    "a level to come": ("MQTT-3.1.2-2", connect(level=6)),
    "MQTT 3.1 by another number": ("MQTT-3.1.2-2", connect(name=b"\0\6MQIsdp", level=4)),
    "a bridge of a level to come": ("MQTT-3.1.2-2", connect(level=0x86)),
    "MQTT 3.1 without a name": (
        "MQTT 3.1 forbids",
        connect(name=b"\0\6MQIsdp", level=3, payload=b"\0\0"),
    ),
    "reserved connect flag": ("MQTT-3.1.2-3", connect(flags=3)),
    "will flag, no will topic": ("MQTT-3.1.2-9", connect(flags=6)),
    "will flag, no will message": ("MQTT-3.1.2-9", connect(flags=6, payload=b"\0\1c\0\1t")),
    "will message cut off": ("MQTT-3.1.2-9", connect(flags=6, payload=b"\0\1c\0\1t\0\2m")),
    "will QoS without will": ("MQTT-3.1.2-13", connect(flags=0x0A)),
    "will QoS 3": ("MQTT-3.1.2-14", connect(flags=0x1E, payload=b"\0\1c\0\1t\0\1m")),
    "will retain without will": ("MQTT-3.1.2-15", connect(flags=0x22)),
    "no user name": ("MQTT-3.1.2-19", connect(flags=0x82)),
    "no password": ("MQTT-3.1.2-21", connect(flags=0xC2, payload=b"\0\1c\0\1u")),
    "password without user name": ("MQTT-3.1.2-22", connect(flags=0x42, payload=b"\0\1c\0\1p")),
    "no client identifier": ("MQTT-3.1.3-3", connect(payload=b"")),
    "client identifier not UTF-8": ("MQTT-3.1.3-4", connect(payload=b"\0\1\xff")),
    "empty client identifier, session kept": (
        "MQTT-3.1.3-8",
        connect(flags=0, payload=b"\0\0"),
    ),
    "will topic not UTF-8": ("MQTT-3.1.3-10", connect(flags=6, payload=b"\0\1c\0\1\xff\0\0")),
    "user name not UTF-8": ("MQTT-3.1.3-11", connect(flags=0x82, payload=b"\0\1c\0\1\xff")),
    "user name where there is none": ("MQTT-3.1.4-1", connect(payload=b"\0\1c\0\1u")),
    "will topic with wildcard": ("MQTT-3.3.2-2", connect(flags=6, payload=b"\0\1c\0\1#\0\0")),
    "will topic empty": ("MQTT-4.7.3-1", connect(flags=6, payload=b"\0\1c\0\0\0\0")),
    "CONNECT with flags": ("MQTT-2.2.2-1", b"\x11" + connect()[1:]),
    "CONNECT cut off before keep alive": ("section 3.1.2.10", b"\x10\x09\0\4MQTT\4\2\0"),
    "CONNECT larger than any": ("more than 327700", b"\x10\x91\x80\x14"),
    "reserved type 0": ("section 2.2.1", b"\0\0"),
    "reserved type 15": ("section 2.2.1", b"\xf0\0"),
    "HTTP": ("is the peer speaking MQTT?", b"GET / HTTP/1.1\r\n"),
    "TLS": ("is the peer speaking MQTT?", b"\x16\x03\x01\x02\0\x01"),
    "remaining length of five bytes": ("section 2.2.3", b"\x10\x80\x80\x80\x80\1"),
}
MALFORMED_CONNECTED = {
    "overlong UTF-8": ("MQTT-1.5.3-1", b"\x30\4\0\2\xc0\xaf"),
    "surrogate": ("MQTT-1.5.3-1", b"\x30\5\0\3\xed\xa0\x80"),
    "beyond U+10FFFF": ("MQTT-1.5.3-1", b"\x30\6\0\4\xf4\x90\x80\x80"),
    "U+0000 in a topic name": ("MQTT-1.5.3-2", b"\x30\5\0\3a\0b"),
    "U+0000 in a topic filter": ("MQTT-1.5.3-2", b"\x82\x08\0\1\0\3a\0b\0"),
    "PINGREQ with flags": ("MQTT-2.2.2-1", b"\xc1\0"),
    "PUBACK with flags": ("MQTT-2.2.2-2", b"\x42\2\0\1"),
    "PUBLISH, identifier 0": ("MQTT-2.3.1-1", b"\x32\5\0\1t\0\0"),
    "PUBLISH, no identifier": ("MQTT-2.3.1-1", b"\x34\4\0\1t\1"),
    "SUBSCRIBE, identifier 0": ("MQTT-2.3.1-1", b"\x82\6\0\0\0\1a\0"),
    "SUBSCRIBE, no identifier": ("MQTT-2.3.1-1", b"\x82\1\0"),
    "UNSUBSCRIBE, identifier 0": ("MQTT-2.3.1-1", b"\xa2\5\0\0\0\1a"),
    "PUBACK, identifier 0": ("MQTT-2.3.1-1", b"\x40\2\0\0"),
    "PUBACK of three bytes": ("MQTT-2.3.1-6", b"\x40\3\0\1\0"),
    "PUBREC of one byte": ("MQTT-2.3.1-6", b"\x50\1\0"),
    "second CONNECT": ("MQTT-3.1.0-2", connect()),
    "DUP with QoS 0": ("MQTT-3.3.1-2", b"\x38\3\0\1t"),
    "QoS 3": ("MQTT-3.3.1-4", b"\x36\5\0\1t\0\1"),
    "no topic name": ("MQTT-3.3.2-1", b"\x30\1\0"),
    "topic name cut off": ("MQTT-3.3.2-1", b"\x30\3\0\2t"),
    "topic name not UTF-8": ("MQTT-3.3.2-1", b"\x30\3\0\1\xff"),
    "'+' in a topic name": ("MQTT-3.3.2-2", b"\x30\3\0\1+"),
    "'#' in a topic name": ("MQTT-3.3.2-2", b"\x30\5\0\3a/#"),
    "PUBREL with flags 0": ("MQTT-3.6.1-1", b"\x60\2\0\1"),
    "SUBSCRIBE with flags 0": ("MQTT-3.8.1-1", b"\x80\6\0\1\0\1a\0"),
    "topic filter not UTF-8": ("MQTT-3.8.3-1", b"\x82\6\0\1\0\1\xff\0"),
    "topic filter cut off": ("MQTT-3.8.3-1", b"\x82\5\0\1\0\2a"),
    "no topic filter": ("MQTT-3.8.3-3", b"\x82\2\0\1"),
    "topic filter without QoS": ("MQTT-3.8.3-3", b"\x82\5\0\1\0\1a"),
    "QoS 3 requested": ("MQTT-3.8.3-4", b"\x82\6\0\1\0\1a\3"),
    "reserved bits of QoS": ("MQTT-3.8.3-4", b"\x82\6\0\1\0\1a\4"),
    "UNSUBSCRIBE with flags 0": ("MQTT-3.10.1-1", b"\xa0\5\0\1\0\1a"),
    "filter to unsubscribe not UTF-8": ("MQTT-3.10.3-1", b"\xa2\5\0\1\0\1\xff"),
    "nothing to unsubscribe": ("MQTT-3.10.3-2", b"\xa2\2\0\1"),
    "PINGREQ with a body": ("section 3.12", b"\xc0\1\0"),
    "DISCONNECT with flags": ("MQTT-3.14.1-1", b"\xe1\0"),
    "DISCONNECT with a body": ("section 3.14", b"\xe0\1\0"),
    "more after DISCONNECT": ("MQTT-3.14.4-2", b"\xe0\0\xc0\0"),
    "'#' not last": ("MQTT-4.7.1-2", b"\x82\x08\0\1\0\3#/a\0"),
    "'#' beside another": ("MQTT-4.7.1-2", b"\x82\7\0\1\0\2a#\0"),
    "'+' beside another": ("MQTT-4.7.1-3", b"\x82\7\0\1\0\2a+\0"),
    "'+' beside another, level 2": ("MQTT-4.7.1-3", b"\xa2\x0a\0\1\0\6a/+b/c"),
    "empty topic name": ("MQTT-4.7.3-1", b"\x30\2\0\0"),
    "empty topic filter": ("MQTT-4.7.3-1", b"\x82\5\0\1\0\0\0"),
    "CONNACK to a server": ("table 2.1", b"\x20\2\0\0"),
    "SUBACK to a server": ("table 2.1", b"\x90\3\0\1\0"),
    "PINGRESP to a server": ("table 2.1", b"\xd0\0"),
    "topic name too long": ("at most 20 are allowed", b"\x30\x17\0\x15" + b"t" * 21),
    "topic name too deep": ("at most 4 are allowed", b"\x30\7\0\5////t"),
    "packet too large": ("at most 1000 are accepted", b"\x30\xe6\7"),
}
MALFORMED_TO_CLIENT = {
    "first packet not CONNACK": ("MQTT-3.2.0-1", b"\x30\3\0\1t"),
    "reserved acknowledge flags": ("section 3.2.2.1", b"\x20\2\2\0"),
    "reserved return code": ("section 3.2.2.3", b"\x20\2\0\6"),
    "CONNACK of three bytes": ("section 3.2.1", b"\x20\3\0\0\0"),
    "a session where a clean one was asked for": ("MQTT-3.2.2-1", b"\x20\2\1\0"),
    "refused, session present": ("MQTT-3.2.2-4", b"\x20\2\1\5"),
    "second CONNACK": ("section 3.2)", b"\x20\2\0\0\x20\2\0\0"),
    "no SUBACK code": ("MQTT-3.8.4-5", b"\x20\2\0\0\x90\2\0\1"),
    "reserved SUBACK code": ("MQTT-3.9.3-2", b"\x20\2\0\0\x90\3\0\1\3"),
    "PINGREQ to a client": ("table 2.1", b"\x20\2\0\0\xc0\0"),
    "SUBSCRIBE to a client": ("table 2.1", b"\x20\2\0\0\x82\6\0\1\0\1a\0"),
    "PINGRESP with a body": ("section 3.13", b"\x20\2\0\0\xd0\1\0"),
}


def refusal(connection: Connection, data: bytes) -> str:
    connection.receive_data(data)
    try:
        while connection.next_packet() is not NEED_DATA:
            pass
    except RemoteProtocolError as exc:
        return str(exc)
    pytest.fail("nothing was refused")


def connected_server() -> Connection:
    server = Connection(
        Role.SERVER, max_packet_size=1000, topic_limits=TopicLimits(max_length=20, max_levels=4)
    )
    server.receive_data(connect())
    assert isinstance(server.next_packet(), Connect)
    server.send(ConnAck(session_present=False, return_code=0))
    return server


@pytest.mark.parametrize(("statement", "frame"), MALFORMED_FIRST.values(), ids=MALFORMED_FIRST)
def test_a_server_refuses_as_first_packet(statement: str, frame: bytes) -> None:
    assert statement in refusal(Connection(Role.SERVER), frame)


@pytest.mark.parametrize(
    ("statement", "frame"), MALFORMED_CONNECTED.values(), ids=MALFORMED_CONNECTED
)
def test_a_connected_server_refuses(statement: str, frame: bytes) -> None:
    assert statement in refusal(connected_server(), frame)


@pytest.mark.parametrize(
    ("statement", "data"), MALFORMED_TO_CLIENT.values(), ids=MALFORMED_TO_CLIENT
)
def test_a_client_refuses(statement: str, data: bytes) -> None:
    client = Connection(Role.CLIENT)
    client.send(Connect("c"))
    assert statement in refusal(client, data)


def test_refusals_that_are_owed_an_answer_carry_its_return_code() -> None:
    codes: dict[str, int] = {}
    for row, (_, frame) in MALFORMED_FIRST.items():
        server = Connection(Role.SERVER)
        server.receive_data(frame)
        with pytest.raises(RemoteProtocolError) as caught:
            server.next_packet()
        if isinstance(caught.value, UnacceptableConnectError):
            code = codes[row] = caught.value.return_code
            refused = ConnAck(session_present=False, return_code=code)
            with pytest.raises(LocalProtocolError, match="has to be refused"):
                server.send(ConnAck(session_present=False, return_code=0))
            assert server.send(refused) == bytes((0x20, 2, 0, code))
        with pytest.raises(LocalProtocolError, match="the connection is closed"):
            server.send(ConnAck(session_present=False, return_code=1))
    level = ConnectReturnCode.UNACCEPTABLE_PROTOCOL_LEVEL
    assert codes == {
        "a level to come": level,
        "MQTT 3.1 by another number": level,
        "a bridge of a level to come": level,
        "MQTT 3.1 without a name": ConnectReturnCode.IDENTIFIER_REJECTED,
        "empty client identifier, session kept": ConnectReturnCode.IDENTIFIER_REJECTED,
    }


def test_a_connect_of_mqtt_5_as_paho_sends_it_is_not_decoded_as_3_1_1() -> None:
    # Properties (here: none, one byte 0) shift all fields, so nothing after the level may be read.
    frame = b"\x10\x10\0\4MQTT\5\2\0\x3c\0\0\3abc"
    with pytest.raises(UnacceptableConnectError, match="level 5"):
        decode(frame[0], frame[2:])


WELL_FORMED: list[tuple[Packet, str]] = [
    (Connect(), "10 0c 0004 4d515454 04 02 0000 0000"),
    (Connect("c", clean_session=False, keep_alive=60), "10 0d 0004 4d515454 04 00 003c 0001 63"),
    (
        Connect("c", username="u", password=b"\xff\0", will=Will("w", b"m", qos=2, retain=True)),
        "10 1a 0004 4d515454 04 f6 0000 0001 63 0001 77 0001 6d 0001 75 0002 ff00",
    ),
    (ConnAck(session_present=True, return_code=0), "20 02 01 00"),
    (ConnAck(session_present=False, return_code=5), "20 02 00 05"),
    (Publish("t", b"hi"), "30 05 0001 74 6869"),
    (Publish("t"), "30 03 0001 74"),
    (Publish("t", b"x", qos=1, retain=True, dup=True, packet_id=10), "3b 06 0001 74 000a 78"),
    (Publish("\ufefft", qos=2, packet_id=65535), "34 08 0004 efbbbf74 ffff"),
    (PubAck(1), "40 02 0001"),
    (PubRec(256), "50 02 0100"),
    (PubRel(1), "62 02 0001"),
    (PubComp(1), "70 02 0001"),
    (Subscribe(1, (("a/#", 2), ("+", 0))), "82 0c 0001 0003 612f23 02 0001 2b 00"),
    (SubAck(1, (0, 1, 2, 0x80)), "90 06 0001 00010280"),
    (Unsubscribe(1, ("a", "#")), "a2 08 0001 0001 61 0001 23"),
    (UnsubAck(1), "b0 02 0001"),
    (PingReq(), "c0 00"),
    (PingResp(), "d0 00"),
    (Disconnect(), "e0 00"),
]


@pytest.mark.parametrize(
    ("packet", "wire"), WELL_FORMED, ids=[type(packet).__name__ for packet, _ in WELL_FORMED]
)
def test_packets_on_the_wire(packet: Packet, wire: str) -> None:
    frame = bytes.fromhex(wire)
    assert encode(packet) == frame
    assert decode(frame[0], frame[2:]) == packet


UNSENDABLE: list[tuple[Packet, str]] = [
    (Connect("", clean_session=False), "MQTT-3.1.3-7"),
    (Connect(keep_alive=65536), "section 3.1.2.10"),
    (Connect(keep_alive=-1), "section 3.1.2.10"),
    (Connect(password=b""), "MQTT-3.1.2-22"),
    (Connect(will=Will("a/#")), "MQTT-3.3.2-2"),
    (Connect(will=Will("a", qos=3)), "QoS is 0, 1 or 2"),
    (Connect(will=Will("a", bytes(65536))), "section 1.5.3"),
    (Connect("c", protocol_level=5), "only protocol 'MQTT' level 4"),
    (Connect("\ud800"), "MQTT-1.5.3-1"),
    (Connect("a\0"), "MQTT-1.5.3-2"),
    (ConnAck(session_present=True, return_code=1), "MQTT-3.2.2-4"),
    (ConnAck(session_present=False, return_code=6), "section 3.2.2.3"),
    (Publish(""), "MQTT-4.7.3-1"),
    (Publish("a/+"), "MQTT-3.3.2-2"),
    (Publish("a\0"), "MQTT-4.7.3-2"),
    (Publish("é" * 32768), "section 1.5.3"),
    (Publish("a", dup=True), "MQTT-3.3.1-2"),
    (Publish("a", packet_id=1), "MQTT-2.3.1-5"),
    (Publish("a", qos=1), "MQTT-2.3.1-1"),
    (Publish("a", qos=3, packet_id=1), "MQTT-3.3.1-4"),
    (PubAck(0), "MQTT-2.3.1-1"),
    (PubAck(65536), "MQTT-2.3.1-1"),
    (Subscribe(1, ()), "MQTT-3.8.3-3"),
    (Subscribe(1, (("a", 3),)), "QoS is 0, 1 or 2"),
    (Subscribe(1, (("a#", 0),)), "MQTT-4.7.1-2"),
    (SubAck(1, ()), "MQTT-3.8.4-5"),
    (SubAck(1, (3,)), "MQTT-3.9.3-2"),
    (Unsubscribe(1, ()), "MQTT-3.10.3-2"),
    (Unsubscribe(1, ("",)), "MQTT-4.7.3-1"),
]


@pytest.mark.parametrize(("packet", "statement"), UNSENDABLE)
def test_malformed_packets_are_not_encoded(packet: Packet, statement: str) -> None:
    with pytest.raises(LocalProtocolError, match=re.escape(statement)):
        encode(packet)


def test_a_message_about_a_long_topic_is_short() -> None:
    topic = "t/" * 30_000 + "+"
    body = len(topic).to_bytes(2, "big") + topic.encode()
    with pytest.raises(RemoteProtocolError) as caught:
        decode(0x30, body)
    assert len(str(caught.value)) < 300
