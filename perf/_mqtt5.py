"""What of MQTT 5 a load generator needs: CONNECT, SUBSCRIBE, and what servers answer.

Sections and statements are those of the OASIS standard of 7 March 2019. What the versions have in
common, and the packets that come in bulk, are `_wire`'s.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import attrs

from ..transports.mqtt import encode_remaining_length
from ._errors import PerfError

LEVEL: Final = 5
"""Of the protocol, in CONNECT (section 3.1.2.2)."""

SESSION_EXPIRY: Final = 0x11
SERVER_KEEP_ALIVE: Final = 0x13
REASON_STRING: Final = 0x1F
RECEIVE_MAXIMUM: Final = 0x21
MAXIMUM_QOS: Final = 0x24
MAXIMUM_PACKET_SIZE: Final = 0x27

FAILED: Final = 0x80
"""Reason codes from here on say that something was not done (section 2.4)."""

UNSUPPORTED_VERSION: Final = 0x84

_BYTE, _SHORT, _LONG, _NUMBER, _TEXT, _PAIR = range(6)

_KINDS: Final = {
    **dict.fromkeys((0x01, 0x17, 0x19, MAXIMUM_QOS, 0x25, 0x28, 0x29, 0x2A), _BYTE),
    **dict.fromkeys((SERVER_KEEP_ALIVE, RECEIVE_MAXIMUM, 0x22, 0x23), _SHORT),
    **dict.fromkeys((0x02, SESSION_EXPIRY, 0x18, MAXIMUM_PACKET_SIZE), _LONG),
    0x0B: _NUMBER,
    **dict.fromkeys(
        (0x03, 0x08, 0x09, 0x12, 0x15, 0x16, 0x1A, 0x1C, REASON_STRING), _TEXT
    ),  # binary data (0x09, 0x16) looks the same
    0x26: _PAIR,
}
"""Of which type each property is (section 2.2.2.2, table 2-4)."""

_REASONS: Final = {
    0x80: "unspecified error",
    0x81: "malformed packet",
    0x82: "protocol error",
    0x83: "implementation specific error",
    0x84: "unsupported protocol version",
    0x85: "client identifier not valid",
    0x86: "bad user name or password",
    0x87: "not authorized",
    0x88: "server unavailable",
    0x89: "server busy",
    0x8A: "banned",
    0x8B: "server shutting down",
    0x8C: "bad authentication method",
    0x8D: "keep alive timeout",
    0x8E: "session taken over",
    0x8F: "topic filter invalid",
    0x90: "topic name invalid",
    0x91: "packet identifier in use",
    0x92: "packet identifier not found",
    0x93: "Receive Maximum exceeded",
    0x94: "topic alias invalid",
    0x95: "packet too large",
    0x96: "message rate too high",
    0x97: "quota exceeded",
    0x98: "administrative action",
    0x99: "payload format invalid",
    0x9A: "retain not supported",
    0x9B: "QoS not supported",
    0x9C: "use another server",
    0x9D: "server moved",
    0x9E: "shared subscriptions not supported",
    0x9F: "connection rate exceeded",
    0xA0: "maximum connect time",
    0xA1: "subscription identifiers not supported",
    0xA2: "wildcard subscriptions not supported",
}
"""What reason codes say that are no success (section 2.4, table 2-6)."""


def reason(code: int, properties: dict[int, int | str] | None = None) -> str:
    """Say what a reason code says, with the server's own words where it has some."""
    said = f"{_REASONS.get(code, 'reason')} (0x{code:02X})"
    words = (properties or {}).get(REASON_STRING)
    return f'{said}: "{words}"' if words else said


@attrs.frozen
class Granted:
    """What a server lets a client do, and asks of it (section 3.2.2.3; MQTT 3.1.1 has none)."""

    receive_maximum: int = 65_535
    """Publications of the client's with QoS 1 and 2 that may be unacknowledged."""
    maximum_qos: int = 2
    """Of publications."""
    maximum_packet_size: int | None = None
    """Bytes; None: as many as there can be."""
    keep_alive: int | None = None
    """Seconds, which count in place of those that the client asked for [MQTT-3.2.2-21]; 0: there
    is nothing to be kept alive; None: what it asked for."""


def number_at(buffer: bytes, at: int) -> tuple[int, int]:
    """Return a variable byte integer that stands there, and where it ends (section 1.5.5).

    Raises:
        PerfError: It is none.
        IndexError: It is cut off.
    """
    value = 0
    for shift in (0, 7, 14, 21):
        byte = buffer[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise PerfError("the server sent a length of more than four bytes [MQTT-1.5.5-1]")


def properties_at(buffer: bytes, at: int) -> tuple[dict[int, int | str], int]:
    """Return the properties that stand there, after their length, and where they end.

    Of one that may be there several times (a user property) there is the last.

    Raises:
        PerfError: There is something else.
    """
    found: dict[int, int | str] = {}
    try:
        length, at = number_at(buffer, at)
        end = at + length
        while at < end:
            name, at = buffer[at], at + 1
            kind = _KINDS.get(name)
            if kind is None:
                msg = f"the server sent property 0x{name:02X}, which MQTT 5 does not have"
                raise PerfError(msg)
            found[name], at = _property_at(buffer, at, kind)
    except (IndexError, struct.error) as error:
        raise PerfError("the server sent properties that are cut off") from error
    if at > end or end > len(buffer):
        raise PerfError("the server sent properties that go beyond their length")
    return found, end


def _property_at(buffer: bytes, at: int, kind: int) -> tuple[int | str, int]:
    if kind == _BYTE:
        return buffer[at], at + 1
    if kind == _SHORT:
        return int.from_bytes(buffer[at : at + 2], "big"), at + 2
    if kind == _LONG:
        return int.from_bytes(buffer[at : at + 4], "big"), at + 4
    if kind == _NUMBER:
        return number_at(buffer, at)
    text, at = _text_at(buffer, at)
    return _text_at(buffer, at) if kind == _PAIR else (text, at)


def _text_at(buffer: bytes, at: int) -> tuple[str, int]:
    (size,) = struct.unpack_from(">H", buffer, at)
    end = at + 2 + size
    return buffer[at + 2 : end].decode("utf-8", "replace"), end


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">H", len(encoded)) + encoded


def connect(
    client_id: str,
    keep_alive: int,
    receive_maximum: int | None,
    user: str | None = None,
    password: bytes | None = None,
) -> bytes:
    """Encode a CONNECT.

    Args:
        client_id: Who it is.
        keep_alive: Seconds.
        receive_maximum: How many messages with QoS 1 and 2 the server may send that are not
            acknowledged (section 3.1.2.11.3), 1 to 65,535; None: as many as it likes to.
        user: Its user name (section 3.1.3.5); None: it has none.
        password: Its password (section 3.1.3.6); likewise.

    A Session Expiry Interval that is not there is 0 (section 3.1.2.11.2), and the session is new:
    it ends with its connection, as MQTT 3.1.1's clean ones do.
    """
    flags = 2 | (user is not None) << 7 | (password is not None) << 6  # 2: a clean start
    properties = (
        b"" if receive_maximum is None else struct.pack(">BH", RECEIVE_MAXIMUM, receive_maximum)
    )
    body = b"".join(
        (
            _string("MQTT"),
            struct.pack(">BBH", LEVEL, flags, keep_alive),
            encode_remaining_length(len(properties)),
            properties,
            _string(client_id),
            b"" if user is None else _string(user),
            b"" if password is None else struct.pack(">H", len(password)) + password,
        )
    )
    return b"\x10" + encode_remaining_length(len(body)) + body


def subscribe(packet_id: int, filters: Sequence[tuple[str, int]]) -> bytes:
    """Encode a SUBSCRIBE (section 3.8); of its options, QoS alone, as MQTT 3.1.1 has it."""
    asked = b"".join(_string(each) + bytes((qos,)) for each, qos in filters)
    body = struct.pack(">HB", packet_id, 0) + asked
    return b"\x82" + encode_remaining_length(len(body)) + body


def granted(body: bytes) -> Granted:
    """Read the body of a CONNACK (section 3.2).

    Raises:
        PerfError: The server has refused, or it is none.
    """
    if len(body) < 3:
        raise PerfError("CONNECT was answered with a CONNACK that is cut off")
    properties, _ = properties_at(body, 2)
    if body[1] >= FAILED:
        msg = f"CONNECT was refused: {reason(body[1], properties)}"
        raise PerfError(msg)

    def number(name: int) -> int | None:
        value = properties.get(name)
        return value if isinstance(value, int) else None

    receive_maximum = number(RECEIVE_MAXIMUM)
    if receive_maximum == 0:
        raise PerfError("the server sent a Receive Maximum of 0 (section 3.2.2.3.3)")
    maximum_qos = number(MAXIMUM_QOS)
    return Granted(
        65_535 if receive_maximum is None else receive_maximum,
        2 if maximum_qos is None else maximum_qos,
        number(MAXIMUM_PACKET_SIZE),
        number(SERVER_KEEP_ALIVE),
    )


def subscribed(body: bytes) -> None:
    """Read the body of a SUBACK (section 3.9).

    Raises:
        PerfError: Something was not granted.
    """
    properties, at = properties_at(body, 2)
    for code in body[at:]:
        if code >= FAILED:
            msg = f"SUBSCRIBE was refused: {reason(code, properties)}"
            raise PerfError(msg)


def disconnected(body: bytes) -> PerfError:
    """Return what a DISCONNECT of the server's says (section 3.14); without a reason it has one."""
    code = body[0] if body else 0
    properties = properties_at(body, 1)[0] if len(body) > 1 else {}
    return PerfError(
        f"the server disconnected it: {reason(code, properties)}"
        if code >= FAILED
        else "the server disconnected it"
    )
