"""Properties of MQTT 5: bytes by hand from table 2-4, and what is refused with which reason."""

import pytest

from clearfunds.transports import LocalProtocolError
from clearfunds.transports.mqtt.codec._properties import (
    NO_PROPERTIES,
    WILL,
    Properties,
    application_properties,
    decode_properties,
    encode_properties,
    variable_int,
)
from clearfunds.transports.mqtt.codec._reasons import ReasonedError

CONNECT, CONNACK, PUBLISH, PUBACK, SUBSCRIBE, DISCONNECT = 1, 2, 3, 4, 8, 14

# One row for each property: where it is, its bytes, and the field that it is.
ON_THE_WIRE: list[tuple[int, str, Properties]] = [
    (PUBLISH, "01 01", Properties(payload_format=1)),
    (PUBLISH, "02 0000003c", Properties(message_expiry=60)),
    (WILL, "03 0003 612f62", Properties(content_type="a/b")),
    (PUBLISH, "08 0001 72", Properties(response_topic="r")),
    (WILL, "09 0002 ff00", Properties(correlation_data=b"\xff\0")),
    (PUBLISH, "0b 01 0b ffffff7f", Properties(subscription_ids=(1, 268_435_455))),
    (SUBSCRIBE, "0b 8001", Properties(subscription_ids=(128,))),
    (DISCONNECT, "11 ffffffff", Properties(session_expiry=0xFFFFFFFF)),
    (CONNACK, "12 0001 63", Properties(assigned_client_id="c")),
    (CONNACK, "13 003c", Properties(server_keep_alive=60)),
    (CONNECT, "15 0001 6d", Properties(authentication_method="m")),
    (
        CONNECT,
        "15 0001 6d 16 0001 00",
        Properties(authentication_method="m", authentication_data=b"\0"),
    ),
    (CONNECT, "17 00", Properties(request_problem_information=0)),
    (WILL, "18 00000001", Properties(will_delay=1)),
    (CONNECT, "19 01", Properties(request_response_information=1)),
    (CONNACK, "1a 0001 69", Properties(response_information="i")),
    (DISCONNECT, "1c 0001 73", Properties(server_reference="s")),
    (PUBACK, "1f 0003 776879", Properties(reason_string="why")),
    (CONNECT, "21 0001", Properties(receive_maximum=1)),
    (CONNACK, "22 0000", Properties(topic_alias_maximum=0)),
    (PUBLISH, "23 ffff", Properties(topic_alias=65_535)),
    (CONNACK, "24 01", Properties(maximum_qos=1)),
    (CONNACK, "25 00", Properties(retain_available=0)),
    (
        SUBSCRIBE,
        "26 0001 61 0001 31 26 0000 0000 26 0001 61 0001 32",
        Properties(user=(("a", "1"), ("", ""), ("a", "2"))),
    ),
    (CONNECT, "27 00000001", Properties(maximum_packet_size=1)),
    (CONNACK, "28 01", Properties(wildcard_available=1)),
    (CONNACK, "29 00", Properties(subscription_ids_available=0)),
    (CONNACK, "2a 01", Properties(shared_available=1)),
    (CONNECT, "11 00000000 21 0002", Properties(session_expiry=0, receive_maximum=2)),
]


@pytest.mark.parametrize(("place", "wire", "properties"), ON_THE_WIRE)
def test_properties_on_the_wire(place: int, wire: str, properties: Properties) -> None:
    encoded = bytes.fromhex(wire)
    whole = bytes((len(encoded),)) + encoded
    assert encode_properties(properties, place) == whole
    assert decode_properties(b"??" + whole + b"rest", 2, place) == (properties, 2 + len(whole))
    for cut in range(len(whole)):
        with pytest.raises(ReasonedError) as caught:
            decode_properties(whole[:cut], 0, place)
        assert caught.value.reason == 0x81


def test_the_order_in_which_they_come_does_not_matter_but_for_user_properties() -> None:
    wire = bytes.fromhex("0e 26 0001 62 0000 01 00 26 0001 61 0000")
    assert decode_properties(wire, 0, PUBLISH) == (
        Properties(payload_format=0, user=(("b", ""), ("a", ""))),
        len(wire),
    )


def test_none_at_all_cost_nothing() -> None:
    properties, end = decode_properties(b"\0", 0, PUBLISH)
    assert properties is NO_PROPERTIES
    assert end == 1
    assert encode_properties(NO_PROPERTIES, PUBLISH) == b"\0"
    assert encode_properties(Properties(), PUBLISH) == b"\0"
    assert application_properties(NO_PROPERTIES) == b""


MALFORMED, PROTOCOL_ERROR, ALIAS_INVALID = 0x81, 0x82, 0x94

REFUSED: dict[str, tuple[int, str, int, str]] = {
    "no length": (PUBLISH, "", MALFORMED, "cut off"),
    "length cut off": (PUBLISH, "80", MALFORMED, "cut off"),
    "length padded": (PUBLISH, "8000", MALFORMED, "MQTT-1.5.5-1"),
    "length of five bytes": (PUBLISH, "ffffffff01", MALFORMED, "four bytes"),
    "longer than the packet": (PUBLISH, "03 01 01", MALFORMED, "in the middle"),
    "unknown": (PUBLISH, "02 7e 00", MALFORMED, "0x7e"),
    "identifier of two bytes": (PUBLISH, "03 8101 00", MALFORMED, "0x81"),
    "PUBLISH with a receive maximum": (PUBLISH, "03 21 0001", MALFORMED, "table 2-4"),
    "CONNECT with a will delay": (CONNECT, "05 18 00000001", MALFORMED, "table 2-4"),
    "will with a topic alias": (WILL, "03 23 0001", MALFORMED, "table 2-4"),
    "SUBSCRIBE with a reason": (SUBSCRIBE, "03 1f 0000", MALFORMED, "table 2-4"),
    "byte cut off by the length": (PUBLISH, "01 01 01", MALFORMED, "cut off"),
    "number cut off by the length": (PUBLISH, "04 02 000000 3c", MALFORMED, "cut off"),
    "string longer than the rest": (PUBLISH, "04 03 0002 61 62", MALFORMED, "cut off"),
    "pair without its second": (PUBLISH, "04 26 0001 61", MALFORMED, "cut off"),
    "identifier padded": (SUBSCRIBE, "03 0b 8100", MALFORMED, "MQTT-1.5.5-1"),
    "not UTF-8": (PUBLISH, "04 03 0001 ff", MALFORMED, "MQTT-1.5.4-1"),
    "surrogate": (PUBLISH, "06 03 0003 eda080", MALFORMED, "MQTT-1.5.4-1"),
    "U+0000": (PUBLISH, "04 03 0001 00", MALFORMED, "MQTT-1.5.4-2"),
    "U+0000 in a pair": (PUBLISH, "06 26 0000 0001 00", MALFORMED, "MQTT-1.5.4-2"),
    "twice": (PUBLISH, "04 01 00 01 00", PROTOCOL_ERROR, "only once"),
    "subscription identifier twice": (SUBSCRIBE, "04 0b 01 0b 02", PROTOCOL_ERROR, "only once"),
    "subscription identifier 0": (SUBSCRIBE, "02 0b 00", PROTOCOL_ERROR, "not within 1"),
    "payload format 2": (WILL, "02 01 02", PROTOCOL_ERROR, "not within 0 to 1"),
    "receive maximum 0": (CONNECT, "03 21 0000", PROTOCOL_ERROR, "3.1.2.11.3"),
    "maximum packet size 0": (CONNECT, "05 27 00000000", PROTOCOL_ERROR, "3.1.2.11.4"),
    "problem information 2": (CONNECT, "02 17 02", PROTOCOL_ERROR, "not within 0 to 1"),
    "response information 2": (CONNECT, "02 19 02", PROTOCOL_ERROR, "not within 0 to 1"),
    "maximum QoS 2": (CONNACK, "02 24 02", PROTOCOL_ERROR, "not within 0 to 1"),
    "retain available 2": (CONNACK, "02 25 02", PROTOCOL_ERROR, "not within 0 to 1"),
    "wildcards available 2": (CONNACK, "02 28 02", PROTOCOL_ERROR, "not within 0 to 1"),
    "identifiers available 2": (CONNACK, "02 29 02", PROTOCOL_ERROR, "not within 0 to 1"),
    "shared available 2": (CONNACK, "02 2a 02", PROTOCOL_ERROR, "not within 0 to 1"),
    "response topic with '#'": (PUBLISH, "04 08 0001 23", PROTOCOL_ERROR, "MQTT-3.3.2-14"),
    "response topic with '+'": (WILL, "04 08 0001 2b", PROTOCOL_ERROR, "MQTT-3.3.2-14"),
    "data without method": (CONNECT, "04 16 0001 61", PROTOCOL_ERROR, "3.1.2.11.10"),
    "topic alias 0": (PUBLISH, "03 23 0000", ALIAS_INVALID, "MQTT-3.3.2-8"),
}


@pytest.mark.parametrize(("place", "wire", "reason", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(place: int, wire: str, reason: int, said: str) -> None:
    with pytest.raises(ReasonedError) as caught:
        decode_properties(bytes.fromhex(wire), 0, place)
    assert said in str(caught.value)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("place", "properties", "said"),
    [
        (PUBLISH, Properties(receive_maximum=1), "table 2-4"),
        (CONNECT, Properties(receive_maximum=0), "3.1.2.11.3"),
        (CONNECT, Properties(receive_maximum=65_536), "not within"),
        (CONNECT, Properties(session_expiry=1 << 32), "not within"),
        (CONNECT, Properties(authentication_data=b""), "3.1.2.11.10"),
        (PUBLISH, Properties(topic_alias=0), "MQTT-3.3.2-8"),
        (PUBLISH, Properties(payload_format=-1), "not within"),
        (PUBLISH, Properties(subscription_ids=(0,)), "not within"),
        (PUBLISH, Properties(subscription_ids=(1 << 28,)), "not within"),
        (SUBSCRIBE, Properties(subscription_ids=(1, 2)), "only once"),
        (PUBLISH, Properties(response_topic="a/#"), "MQTT-3.3.2-14"),
        (PUBLISH, Properties(response_topic=""), "MQTT-4.7.3-1"),
        (PUBLISH, Properties(content_type="\0"), "MQTT-1.5.4-2"),
        (PUBLISH, Properties(user=(("a", "\ud800"),)), "MQTT-1.5.4-1"),
        (PUBLISH, Properties(correlation_data=bytes(65_536)), "section 1.5.6"),
    ],
)
def test_what_is_not_encoded(place: int, properties: Properties, said: str) -> None:
    with pytest.raises(LocalProtocolError, match=said.replace(".", r"\.")):
        encode_properties(properties, place)


def test_what_goes_on_to_subscribers() -> None:
    properties = Properties(
        payload_format=0,
        message_expiry=60,
        content_type="t",
        response_topic="r",
        correlation_data=b"",
        subscription_ids=(7,),
        topic_alias=1,
        user=(("b", "1"), ("a", "2")),
    )
    assert application_properties(properties) == bytes.fromhex(
        "01 00 03 0001 74 08 0001 72 09 0000 26 0001 62 0001 31 26 0001 61 0001 32"
    )
    of_a_will = Properties(will_delay=1, message_expiry=2, content_type="t")
    assert application_properties(of_a_will) == b"\x03\0\1t"
    assert application_properties(Properties(topic_alias=1)) == b""


@pytest.mark.parametrize(
    ("n", "wire"),
    [(0, "00"), (127, "7f"), (128, "8001"), (16_384, "808001"), (268_435_455, "ffffff7f")],
)
def test_variable_byte_integers(n: int, wire: str) -> None:
    assert variable_int(n) == bytes.fromhex(wire)


@pytest.mark.parametrize("n", [-1, 268_435_456])
def test_what_is_no_variable_byte_integer(n: int) -> None:
    with pytest.raises(LocalProtocolError, match=str(n)):
        variable_int(n)
