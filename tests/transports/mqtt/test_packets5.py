"""Packets of MQTT 5: what they look like, and what is refused with which reason, by hand."""

import re

import pytest

from clearfunds.transports import LocalProtocolError
from clearfunds.transports.mqtt import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Will,
    encode,
)
from clearfunds.transports.mqtt.codec._packets5 import decode5, encode5, encode_publish5
from clearfunds.transports.mqtt.codec._properties import Properties
from clearfunds.transports.mqtt.codec._reasons import ReasonedError

WHY = Properties(reason_string="why")

WELL_FORMED: list[tuple[Packet, str]] = [
    (Connect(protocol_level=5), "10 0d 0004 4d515454 05 02 0000 00 0000"),
    (
        Connect("", clean_session=False, keep_alive=60, protocol_level=5),
        "10 0d 0004 4d515454 05 00 003c 00 0000",
    ),
    (
        Connect("c", password=b"p", protocol_level=5),
        "10 11 0004 4d515454 05 42 0000 00 0001 63 0001 70",
    ),
    (
        Connect(
            "c",
            username="u",
            password=b"\xff\0",
            will=Will("w", b"m", qos=2, retain=True, properties=Properties(will_delay=9)),
            protocol_level=5,
            properties=Properties(session_expiry=1, receive_maximum=2),
        ),
        (
            "10 29 0004 4d515454 05 f6 0000 08 11 00000001 21 0002 0001 63"
            "05 18 00000009 0001 77 0001 6d 0001 75 0002 ff00"
        ),
    ),
    (ConnAck(session_present=True, return_code=0), "20 03 01 00 00"),
    (ConnAck(session_present=False, return_code=0x87), "20 03 00 87 00"),
    (
        ConnAck(False, 0, Properties(assigned_client_id="c", server_keep_alive=1)),
        "20 0a 00 00 07 12 0001 63 13 0001",
    ),
    (Publish("t", b"hi"), "30 06 0001 74 00 6869"),
    (
        Publish("t", b"x", qos=1, retain=True, dup=True, packet_id=10),
        "3b 07 0001 74 000a 00 78",
    ),
    (
        Publish("t", b"x", qos=2, packet_id=10, properties=Properties(payload_format=1)),
        "34 09 0001 74 000a 02 01 01 78",
    ),
    (Publish("", b"x", properties=Properties(topic_alias=1)), "30 07 0000 03 23 0001 78"),
    (PubAck(1), "40 02 0001"),
    (PubAck(1, 0x10), "40 03 0001 10"),
    (PubAck(1, 0x97, WHY), "40 0a 0001 97 06 1f 0003 776879"),
    (PubAck(1, 0, WHY), "40 0a 0001 00 06 1f 0003 776879"),
    (PubRec(256), "50 02 0100"),
    (PubRec(256, 0x91), "50 03 0100 91"),
    (PubRel(1), "62 02 0001"),
    (PubRel(1, 0x92), "62 03 0001 92"),
    (PubComp(1), "70 02 0001"),
    (PubComp(1, 0x92, WHY), "70 0a 0001 92 06 1f 0003 776879"),
    (Subscribe(1, (("a/#", 2), ("+", 0x2D))), "82 0d 0001 00 0003 612f23 02 0001 2b 2d"),
    (
        Subscribe(1, (("$share/g/a", 8),), Properties(subscription_ids=(5,))),
        "82 12 0001 02 0b 05 000a 2473686172652f672f61 08",
    ),
    (SubAck(1, (0, 1, 2, 0x80, 0x9E)), "90 08 0001 00 000102809e"),
    (Unsubscribe(1, ("a", "#")), "a2 09 0001 00 0001 61 0001 23"),
    (UnsubAck(1, (0, 0x11)), "b0 05 0001 00 0011"),
    (UnsubAck(1, (0x87,), WHY), "b0 0a 0001 06 1f 0003 776879 87"),
    (PingReq(), "c0 00"),
    (PingResp(), "d0 00"),
    (Disconnect(), "e0 00"),
    (Disconnect(4), "e0 01 04"),
    (Disconnect(0x8E, WHY), "e0 08 8e 06 1f 0003 776879"),
    (Disconnect(0, Properties(session_expiry=0)), "e0 07 00 05 11 00000000"),
]


@pytest.mark.parametrize(("packet", "wire"), WELL_FORMED)
def test_packets_on_the_wire(packet: Packet, wire: str) -> None:
    frame = bytes.fromhex(wire)
    assert frame[1] == len(frame) - 2
    assert encode5(packet) == frame
    assert decode5(frame[0], frame[2:]) == packet


@pytest.mark.parametrize(
    ("wire", "packet"),
    [
        ("40 03 0001 00", PubAck(1)),
        ("40 04 0001 00 00", PubAck(1)),
        ("62 04 0001 92 00", PubRel(1, 0x92)),
        ("e0 01 00", Disconnect()),
        ("e0 02 00 00", Disconnect()),
        ("e0 02 8b 00", Disconnect(0x8B)),
    ],
)
def test_packets_that_say_more_than_they_need(wire: str, packet: Packet) -> None:
    frame = bytes.fromhex(wire)
    assert decode5(frame[0], frame[2:]) == packet


MALFORMED, PROTOCOL_ERROR = 0x81, 0x82
HEAD = "10 7f 0004 4d515454 05"

REFUSED: dict[str, tuple[str, int, str]] = {
    "type 0": ("00 00", MALFORMED, "type 0 is reserved"),
    "AUTH of another reason": ("f0 02 87 00", PROTOCOL_ERROR, "MQTT-3.15.2-1"),
    "AUTH cut off": ("f0 01 18", MALFORMED, "AUTH"),
    "AUTH with flags": ("f1 00", MALFORMED, "MQTT-2.1.3-1"),
    "QoS 3": ("36 00", MALFORMED, "MQTT-3.3.1-4"),
    "DUP with QoS 0": ("38 00", MALFORMED, "MQTT-3.3.1-2"),
    "SUBSCRIBE with flags 0": ("80 00", MALFORMED, "MQTT-2.1.3-1"),
    "another protocol": ("10 7f 0004 41515454 05", 0x84, "MQTT-3.1.2-1"),
    "another version": ("10 7f 0004 4d515454 04", 0x84, "MQTT-3.1.2-2"),
    "CONNECT cut off": (f"{HEAD} 02 00", MALFORMED, "keep alive"),
    "reserved connect flag": (f"{HEAD} 03 0000 00 0000", MALFORMED, "MQTT-3.1.2-3"),
    "will QoS, no will": (f"{HEAD} 0a 0000 00 0000", MALFORMED, "MQTT-3.1.2-11"),
    "will retain, no will": (f"{HEAD} 22 0000 00 0000", MALFORMED, "MQTT-3.1.2-13"),
    "will QoS 3": (f"{HEAD} 1e 0000 00 0000 00 0001 74 0000", MALFORMED, "MQTT-3.1.2-12"),
    "CONNECT without properties": (f"{HEAD} 02 0000", MALFORMED, "property length"),
    "CONNECT with a will's": (f"{HEAD} 02 0000 05 18 00000000 0000", MALFORMED, "table 2-4"),
    "will with CONNECT's": (f"{HEAD} 06 0000 00 0000 03 21 0001", MALFORMED, "table 2-4"),
    "data without method": (f"{HEAD} 02 0000 03 16 0000 0000", PROTOCOL_ERROR, "3.1.2.11.10"),
    "client identifier not UTF-8": (f"{HEAD} 02 0000 00 0001 ff", MALFORMED, "MQTT-1.5.4-1"),
    "client identifier with U+0000": (f"{HEAD} 02 0000 00 0001 00", MALFORMED, "MQTT-1.5.4-2"),
    "will to a wildcard": (f"{HEAD} 06 0000 00 0000 00 0001 23 0000", MALFORMED, "wildcard"),
    "will to nothing": (f"{HEAD} 06 0000 00 0000 00 0000 0000", MALFORMED, "MQTT-4.7.3-1"),
    "no user name": (f"{HEAD} 82 0000 00 0000", MALFORMED, "user name"),
    "no password": (f"{HEAD} 42 0000 00 0000", MALFORMED, "password"),
    "more after CONNECT": (f"{HEAD} 02 0000 00 0000 00", MALFORMED, "after its last field"),
    "CONNACK with reserved flags": ("20 03 02 00 00", MALFORMED, "MQTT-3.2.2-1"),
    "CONNACK with a code of 3.1.1": ("20 03 00 05 00", PROTOCOL_ERROR, "MQTT-3.2.2-8"),
    "CONNACK refuses a session": ("20 03 01 87 00", PROTOCOL_ERROR, "MQTT-3.2.2-6"),
    "CONNACK without properties": ("20 02 00 00", MALFORMED, "property length"),
    "PUBLISH without topic": ("30 01 00", MALFORMED, "MQTT-3.3.2-1"),
    "PUBLISH, topic cut off": ("30 03 0002 74", MALFORMED, "MQTT-3.3.2-1"),
    "PUBLISH, topic not UTF-8": ("30 04 0001 ff 00", MALFORMED, "MQTT-1.5.4-1"),
    "PUBLISH, topic with U+0000": ("30 04 0001 00 00", MALFORMED, "U+0000"),
    "PUBLISH to a wildcard": ("30 04 0001 2b 00", MALFORMED, "wildcard"),
    "PUBLISH, no identifier": ("32 04 0001 74 00", MALFORMED, "packet identifier"),
    "PUBLISH, identifier 0": ("32 06 0001 74 0000 00", PROTOCOL_ERROR, "MQTT-2.2.1-3"),
    "PUBLISH without properties": ("30 03 0001 74", MALFORMED, "property length"),
    "PUBLISH, no topic, no alias": ("30 03 0000 00", PROTOCOL_ERROR, "no topic alias"),
    "PUBACK cut off": ("40 01 00", MALFORMED, "packet identifier"),
    "PUBACK, identifier 0": ("40 02 0000", PROTOCOL_ERROR, "MQTT-2.2.1-3"),
    "PUBACK, another reason": ("40 03 0001 92", PROTOCOL_ERROR, "MQTT-3.4.2-1"),
    "PUBREC, another reason": ("50 03 0001 01", PROTOCOL_ERROR, "MQTT-3.5.2-1"),
    "PUBREL, another reason": ("62 03 0001 10", PROTOCOL_ERROR, "MQTT-3.6.2-1"),
    "PUBCOMP, another reason": ("70 03 0001 80", PROTOCOL_ERROR, "MQTT-3.7.2-1"),
    "PUBACK, more after it": ("40 05 0001 00 00 00", MALFORMED, "after its last field"),
    "SUBSCRIBE of nothing": ("82 03 0001 00", PROTOCOL_ERROR, "MQTT-3.8.3-2"),
    "SUBSCRIBE, identifier 0": ("82 07 0000 00 0001 61 00", PROTOCOL_ERROR, "MQTT-2.2.1-3"),
    "SUBSCRIBE without options": ("82 06 0001 00 0001 61", MALFORMED, "subscription options"),
    "SUBSCRIBE with QoS 3": ("82 07 0001 00 0001 61 03", PROTOCOL_ERROR, "QoS 3"),
    "retain handling 3": ("82 07 0001 00 0001 61 30", PROTOCOL_ERROR, "retain handling"),
    "reserved option": ("82 07 0001 00 0001 61 40", MALFORMED, "MQTT-3.8.3-5"),
    "other reserved option": ("82 07 0001 00 0001 61 80", MALFORMED, "MQTT-3.8.3-5"),
    "shared and no local": (
        "82 10 0001 00 000a 2473686172652f672f61 04",
        PROTOCOL_ERROR,
        "MQTT-3.8.3-4",
    ),
    "SUBSCRIBE to half a level": ("82 08 0001 00 0002 6123 00", MALFORMED, "'#'"),
    "SUBACK of nothing": ("90 03 0001 00", PROTOCOL_ERROR, "MQTT-3.9.3-2"),
    "SUBACK, another reason": ("90 04 0001 00 03", PROTOCOL_ERROR, "MQTT-3.9.3-2"),
    "UNSUBSCRIBE of nothing": ("a2 03 0001 00", PROTOCOL_ERROR, "MQTT-3.10.3-2"),
    "UNSUBACK of nothing": ("b0 03 0001 00", PROTOCOL_ERROR, "MQTT-3.11.3-2"),
    "UNSUBACK, another reason": ("b0 04 0001 00 01", PROTOCOL_ERROR, "MQTT-3.11.3-2"),
    "PINGREQ with a body": ("c0 01 00", MALFORMED, "section 3.12"),
    "DISCONNECT, another reason": ("e0 01 01", PROTOCOL_ERROR, "MQTT-3.14.2-1"),
    "DISCONNECT, more after it": ("e0 03 00 00 00", MALFORMED, "after its last field"),
}


@pytest.mark.parametrize(("wire", "reason", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(wire: str, reason: int, said: str) -> None:
    frame = bytes.fromhex(wire)
    with pytest.raises(ReasonedError) as caught:
        decode5(frame[0], frame[2:])
    assert said in str(caught.value)
    assert caught.value.reason == reason


UNSENDABLE: list[tuple[Packet, str]] = [
    (Connect("c"), "level 4"),
    (Connect("c", keep_alive=65_536, protocol_level=5), "3.1.2.10"),
    (Connect("c", will=Will("a/#"), protocol_level=5), "wildcard"),
    (Connect("c", will=Will("a", qos=3), protocol_level=5), "MQTT-3.1.2-12"),
    (Connect("\ud800", protocol_level=5), "MQTT-1.5.4-1"),
    (Connect("\0", protocol_level=5), "MQTT-1.5.4-2"),
    (Connect("c", password=bytes(65_536), protocol_level=5), "section 1.5.6"),
    (ConnAck(session_present=False, return_code=5), "MQTT-3.2.2-8"),
    (ConnAck(session_present=True, return_code=0x80), "MQTT-3.2.2-6"),
    (Publish(""), "section 3.3.2.1"),
    (Publish("", properties=Properties(payload_format=1)), "section 3.3.2.1"),
    (Publish("+"), "wildcard"),
    (Publish("a", dup=True), "MQTT-3.3.1-2"),
    (Publish("a", packet_id=1), "MQTT-2.2.1-2"),
    (Publish("a", qos=1), "MQTT-2.2.1-3"),
    (Publish("a", qos=3, packet_id=1), "MQTT-3.3.1-4"),
    (PubAck(0), "MQTT-2.2.1-3"),
    (PubAck(1, 0x92), "MQTT-3.4.2-1"),
    (PubAck(1, 0, Properties(topic_alias=1)), "table 2-4"),
    (PubRel(1, 0x10), "MQTT-3.6.2-1"),
    (Subscribe(1, ()), "MQTT-3.8.3-2"),
    (Subscribe(1, (("a", 3),)), "QoS 3"),
    (Subscribe(1, (("a", 256),)), "not a byte"),
    (Subscribe(1, (("a", 0x40),)), "MQTT-3.8.3-5"),
    (Subscribe(1, (("$share/g/a", 4),)), "MQTT-3.8.3-4"),
    (Subscribe(1, (("a#", 0),)), "'#'"),
    (SubAck(1, ()), "MQTT-3.8.4-6"),
    (SubAck(1, (3,)), "MQTT-3.9.3-2"),
    (Unsubscribe(1, ()), "MQTT-3.10.3-2"),
    (Unsubscribe(1, ("a+",)), "'+'"),
    (UnsubAck(1), "section 3.11.3"),
    (UnsubAck(1, (1,)), "MQTT-3.11.3-2"),
    (Disconnect(1), "MQTT-3.14.2-1"),
]


@pytest.mark.parametrize(("packet", "said"), UNSENDABLE)
def test_malformed_packets_are_not_encoded(packet: Packet, said: str) -> None:
    with pytest.raises(LocalProtocolError, match=re.escape(said)):
        encode5(packet)


@pytest.mark.parametrize(
    "packet",
    [
        Connect("c", properties=WHY),
        Connect("c", will=Will("t", properties=WHY)),
        ConnAck(False, 0, WHY),
        Publish("t", properties=WHY),
        PubAck(1, 0x10),
        PubRec(1, 0, WHY),
        PubRel(1, 0x92),
        PubComp(1, 0x92),
        Subscribe(1, (("t", 0),), WHY),
        SubAck(1, (0,), WHY),
        Unsubscribe(1, ("t",), WHY),
        UnsubAck(1, (0,)),
        UnsubAck(1, properties=WHY),
        Disconnect(4),
        Disconnect(0, WHY),
    ],
)
def test_3_1_1_refuses_what_only_mqtt_5_can_say(packet: Packet) -> None:
    with pytest.raises(LocalProtocolError, match=r"of MQTT 3\.1\.1 cannot .*; MQTT 5 can"):
        encode(packet)


def test_a_publish_without_making_the_packet() -> None:
    assert encode_publish5("t", b"x") == b"\x30\5\0\1t\0x"
    assert encode_publish5("t", b"x", 1, False, True, 2, b"\x01\x01") == (
        b"\x3a\x09\0\1t\0\2\2\1\1x"
    )
    assert encode_publish5("", b"", properties=b"\x23\0\1") == b"\x30\6\0\0\3\x23\0\1"
    many = b"\x26\0\1a\0\1b" * 30
    frame = encode_publish5("t", b"x" * 200, properties=many)
    assert frame == b"\x30\x9f\3\0\1t\xd2\1" + many + b"x" * 200
    with pytest.raises(LocalProtocolError, match="cut off"):
        encode_publish5("", b"", properties=b"\x23\0")
