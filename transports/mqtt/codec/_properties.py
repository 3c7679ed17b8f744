"""The properties of packets and wills in MQTT 5 (section 2.2.2).

Rules:

1. A table has the type of each property, its values, and the packets that may carry it. Decoding
   and encoding both use the table, so both refuse the same things.
2. A peer's mistake is a `ReasonedError`: 0x81 for a property that cannot be parsed, or is not
   allowed in its packet; 0x82 for one that parses but breaks a rule (section 4.13).
3. A missing property is None, or an empty tuple if there may be several. Defaults are not filled
   in: a missing Receive Maximum is None, not 65,535.

Statements are those of the OASIS standard of 7 March 2019.
"""

import enum
from functools import partial
from typing import Any, Final

import attrs

from ..._errors import LocalProtocolError
from ._fields import Fields
from ._frames import KIND_NAMES, MAX_REMAINING_LENGTH, encode_remaining_length
from ._reasons import Reason, ReasonedError

WILL: Final = 0
"""The place of a will's properties, in a CONNECT; any other place is the `kind` of a packet."""


FOR_EVER: Final = 0xFFFF_FFFF
"""The session expiry interval that never ends (section 3.1.2.11.2)."""


@attrs.frozen(slots=True)
class Properties:
    """All properties of MQTT 5 (section 2.2.2.2, table 2-4). None: the property is missing."""

    payload_format: int | None = None
    """0: bytes; 1: UTF-8."""
    message_expiry: int | None = None
    """Seconds."""
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_ids: tuple[int, ...] = ()
    """At most one in a SUBSCRIBE; in a PUBLISH, those of all subscriptions that match it."""
    session_expiry: int | None = None
    """Seconds; 0xFFFFFFFF: never."""
    assigned_client_id: str | None = None
    server_keep_alive: int | None = None
    """Seconds."""
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    request_problem_information: int | None = None
    will_delay: int | None = None
    """Seconds."""
    request_response_information: int | None = None
    response_information: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None
    retain_available: int | None = None
    user: tuple[tuple[str, str], ...] = ()
    """Pairs of name and value; names may repeat, and their order is kept."""
    maximum_packet_size: int | None = None
    wildcard_available: int | None = None
    subscription_ids_available: int | None = None
    shared_available: int | None = None


FIELDS: Final = Fields(
    utf8="[MQTT-1.5.4-1]",
    null="[MQTT-1.5.4-2]",
    binary="section 1.5.6",
    identifier="[MQTT-2.2.1-3]",
    malformed=partial(ReasonedError, reason=Reason.MALFORMED_PACKET),
    forbidden=partial(ReasonedError, reason=Reason.PROTOCOL_ERROR),
)
"""The `Fields` of MQTT 5."""

NO_PROPERTIES: Final = Properties()
"""The properties of most packets. Compare by identity first, which costs nothing."""


class _Type(enum.Enum):
    """Section 2.2.2.2, table 2-4; the value of a fixed-size number is its size."""

    BYTE = 1
    SHORT = 2
    LONG = 4
    NUMBER = "variable byte integer"
    TEXT = "UTF-8 string"
    BINARY = "binary data"
    PAIR = "UTF-8 string pair"


@attrs.frozen(slots=True)
class _Property:
    """A row of the table."""

    identifier: int
    name: str
    type: _Type
    field: str
    places: frozenset[int]
    lowest: int = 0
    highest: int = 0
    section: str = ""
    """The section on its values."""
    reason: int = Reason.PROTOCOL_ERROR
    """The reason code for other values."""


_CONNECT, _CONNACK, _PUBLISH, _SUBSCRIBE, _DISCONNECT, _AUTH = 1, 2, 3, 8, 14, 15

_PLACE_NAMES: Final = {
    WILL: "the will of CONNECT",
    **{kind: KIND_NAMES[kind] for kind in (*range(_CONNECT, 12), _DISCONNECT)},
    _AUTH: "AUTH",
}

_MESSAGE: Final = frozenset((_PUBLISH, WILL))
_CONNECTING: Final = frozenset((_CONNECT, _CONNACK))
_ANSWERS: Final = frozenset((_CONNACK, 4, 5, 6, 7, 9, 11, _DISCONNECT, _AUTH))


def _row(
    identifier: int,
    name: str,
    kind: _Type,
    field: str,
    places: frozenset[int] | int,
    values: tuple[int, int] | None = None,
    section: str = "section 2.2.2.2",
    reason: int = Reason.PROTOCOL_ERROR,
) -> _Property:
    where = frozenset((places,)) if isinstance(places, int) else places
    if values is None:
        values = (0, (1 << 8 * kind.value) - 1) if isinstance(kind.value, int) else (0, 0)
    return _Property(identifier, name, kind, field, where, *values, section, reason)


_B, _S, _L, _N, _T = _Type.BYTE, _Type.SHORT, _Type.LONG, _Type.NUMBER, _Type.TEXT
_BIT: Final = (0, 1)

_TABLE: Final = (
    _row(0x01, "payload format indicator", _B, "payload_format", _MESSAGE, _BIT,
         "section 3.3.2.3.2"),
    _row(0x02, "message expiry interval", _L, "message_expiry", _MESSAGE),
    _row(0x03, "content type", _T, "content_type", _MESSAGE),
    _row(0x08, "response topic", _T, "response_topic", _MESSAGE),
    _row(0x09, "correlation data", _Type.BINARY, "correlation_data", _MESSAGE),
    _row(0x0B, "subscription identifier", _N, "subscription_ids",
         frozenset((_PUBLISH, _SUBSCRIBE)), (1, MAX_REMAINING_LENGTH), "section 3.8.2.1.2"),
    _row(0x11, "session expiry interval", _L, "session_expiry", _CONNECTING | {_DISCONNECT}),
    _row(0x12, "assigned client identifier", _T, "assigned_client_id", _CONNACK),
    _row(0x13, "server keep alive", _S, "server_keep_alive", _CONNACK),
    _row(0x15, "authentication method", _T, "authentication_method", _CONNECTING | {_AUTH}),
    _row(0x16, "authentication data", _Type.BINARY, "authentication_data",
         _CONNECTING | {_AUTH}),
    _row(0x17, "request problem information", _B, "request_problem_information", _CONNECT, _BIT,
         "section 3.1.2.11.7"),
    _row(0x18, "will delay interval", _L, "will_delay", WILL),
    _row(0x19, "request response information", _B, "request_response_information", _CONNECT, _BIT,
         "section 3.1.2.11.6"),
    _row(0x1A, "response information", _T, "response_information", _CONNACK),
    _row(0x1C, "server reference", _T, "server_reference", frozenset((_CONNACK, _DISCONNECT))),
    _row(0x1F, "reason string", _T, "reason_string", _ANSWERS),
    _row(0x21, "receive maximum", _S, "receive_maximum", _CONNECTING, (1, 65_535),
         "section 3.1.2.11.3"),
    _row(0x22, "topic alias maximum", _S, "topic_alias_maximum", _CONNECTING),
    _row(0x23, "topic alias", _S, "topic_alias", _PUBLISH, (1, 65_535), "[MQTT-3.3.2-8]",
         Reason.TOPIC_ALIAS_INVALID),
    _row(0x24, "maximum QoS", _B, "maximum_qos", _CONNACK, _BIT, "section 3.2.2.3.4"),
    _row(0x25, "retain available", _B, "retain_available", _CONNACK, _BIT, "section 3.2.2.3.5"),
    _row(0x26, "user property", _Type.PAIR, "user", frozenset(_PLACE_NAMES)),
    _row(0x27, "maximum packet size", _L, "maximum_packet_size", _CONNECTING,
         (1, 0xFFFF_FFFF), "section 3.1.2.11.4"),
    _row(0x28, "wildcard subscription available", _B, "wildcard_available", _CONNACK, _BIT,
         "section 3.2.2.3.11"),
    _row(0x29, "subscription identifiers available", _B, "subscription_ids_available", _CONNACK,
         _BIT, "section 3.2.2.3.12"),
    _row(0x2A, "shared subscription available", _B, "shared_available", _CONNACK, _BIT,
         "section 3.2.2.3.13"),
)  # fmt: skip

_BY_IDENTIFIER: Final = {row.identifier: row for row in _TABLE}
#: For each place, by identifier: a property allowed there, and its name in messages.
_BY_PLACE: Final = {
    place: {
        row.identifier: (row, f"{where}: its {row.name}") for row in _TABLE if place in row.places
    }
    for place, where in _PLACE_NAMES.items()
}
_BY_FIELD: Final = {row.field: row for row in _TABLE}

#: The properties that go to a message's receivers, in this order.
_APPLICATION: Final = tuple(
    _BY_FIELD[field]
    for field in ("payload_format", "content_type", "response_topic", "correlation_data", "user")
)


def decode_properties(body: bytes, at: int, place: int) -> tuple[Properties, int]:
    """Decode the properties, with their length in front, at `at` in the body of a packet.

    Args:
        body: the body of the packet.
        at: the position of the length.
        place: the `kind` of the packet, or `WILL`.

    Returns:
        (the properties, the position of their end); `NO_PROPERTIES` itself if there are none.

    Raises:
        ReasonedError: if a property is cut off, unknown, not allowed in such a packet, there twice,
            or has a value that is not allowed.
    """
    if at < len(body) and not body[at]:
        return NO_PROPERTIES, at + 1
    where = _PLACE_NAMES[place]
    length, at = variable_int_at(body, at, len(body), f"{where}: its property length")
    end = at + length
    if end > len(body):
        raise FIELDS.malformed(f"{where} ends in the middle of its properties (section 2.2.2)")
    table = _BY_PLACE[place]
    found: dict[str, Any] = {}
    user: list[tuple[str, str]] = []
    subscription_ids: list[int] = []
    while at < end:
        identifier = body[at]
        at += 1
        entry = table.get(identifier)
        if entry is None:
            raise FIELDS.malformed(f"{where} {_misplaced(identifier)}")
        row, what = entry
        kind = row.type
        if kind is _Type.PAIR:
            name, at = _text(body, at, end, what)
            text, at = _text(body, at, end, what)
            user.append((name, text))
            continue
        if kind is _Type.NUMBER:
            number, at = variable_int_at(body, at, end, what)
            if fault := _value_fault(row, number):
                raise ReasonedError(f"{what} {fault}", row.reason)
            if subscription_ids and place == _SUBSCRIBE:
                raise _twice(what, row)
            subscription_ids.append(number)
            continue
        value: str | bytes | int
        if kind is _Type.TEXT:
            value, at = _text(body, at, end, what)
        elif kind is _Type.BINARY:
            value, at = _binary(body, at, end, what)
        else:
            start, at = at, at + kind.value
            if at > end:
                raise FIELDS.malformed(f"{what} is cut off (section 2.2.2)")
            value = int.from_bytes(body[start:at], "big")
        if fault := _value_fault(row, value):
            raise ReasonedError(f"{what} {fault}", row.reason)
        if row.field in found:
            raise _twice(what, row)
        found[row.field] = value
    if "authentication_data" in found and "authentication_method" not in found:
        raise ReasonedError(f"{where} {_NO_METHOD}", Reason.PROTOCOL_ERROR)
    return Properties(user=tuple(user), subscription_ids=tuple(subscription_ids), **found), end


def encode_properties(properties: Properties, place: int) -> bytes:
    """Encode properties, with their length in front.

    Args:
        properties: the properties; they are encoded in the order of their identifiers.
        place: the `kind` of the packet, or `WILL`.

    Raises:
        LocalProtocolError: if a property, or its value, is not allowed in such a packet.
    """
    if properties is NO_PROPERTIES:
        return b"\0"
    encoded = bare_properties(properties, place)
    return variable_int(len(encoded)) + encoded


def bare_properties(properties: Properties, place: int) -> bytes:
    """Encode properties WITHOUT their length in front; otherwise as `encode_properties`."""
    if properties is NO_PROPERTIES:
        return b""
    where = _PLACE_NAMES[place]
    parts: list[bytes] = []
    for row in _TABLE:
        value = getattr(properties, row.field)
        if value is None or value == ():
            continue
        if place not in row.places:
            raise LocalProtocolError(f"{where} {_misplaced(row.identifier)}")
        if row.type is _Type.NUMBER and place == _SUBSCRIBE and len(value) > 1:
            raise LocalProtocolError(f"{where}: its {row.name} {_ONCE} (section 3.8.2.1.2)")
        _encode(row, value, parts)
    if properties.authentication_data is not None and properties.authentication_method is None:
        raise LocalProtocolError(f"{where} {_NO_METHOD}")
    return b"".join(parts)


def application_properties(properties: Properties) -> bytes:
    """Encode the properties of a PUBLISH, or of a will, that go unaltered to its receivers.

    These are the payload format [MQTT-3.3.2-4], the content type [MQTT-3.3.2-20], the response
    topic [MQTT-3.3.2-15], the correlation data [MQTT-3.3.2-16] and the user properties, in their
    order [MQTT-3.3.2-17][MQTT-3.3.2-18].

    Returns:
        The properties WITHOUT their length, so that others can be added; b"" if there are none.

    Raises:
        LocalProtocolError: if a value is not allowed; decoded values always are.
    """
    if properties is NO_PROPERTIES:
        return b""
    parts: list[bytes] = []
    for row in _APPLICATION:
        value = getattr(properties, row.field)
        if value is not None:
            _encode(row, value, parts)
    return b"".join(parts)


def variable_int(n: int) -> bytes:
    """Encode a variable byte integer in as few bytes as possible (section 1.5.5).

    Raises:
        LocalProtocolError: if it does not fit into four bytes.
    """
    if not 0 <= n <= MAX_REMAINING_LENGTH:
        raise LocalProtocolError(
            f"{n} does not fit a variable byte integer, which goes from 0 to "
            f"{MAX_REMAINING_LENGTH} (section 1.5.5)"
        )
    return encode_remaining_length(n)


_ONCE: Final = "can occur only once"
_NO_METHOD: Final = "has authentication data but no authentication method (section 3.1.2.11.10)"


def _misplaced(identifier: int) -> str:
    row = _BY_IDENTIFIER.get(identifier)
    if row is None:
        return f"has a property {identifier:#04x}, which MQTT 5 does not have (section 2.2.2.2)"
    return f"cannot have the property '{row.name}' (section 2.2.2.2, table 2-4)"


def _value_fault(row: _Property, value: Any) -> str | None:
    """Describe the fault of a value of the right type; None: no fault."""
    if isinstance(value, int):
        if not row.lowest <= value <= row.highest:
            return f"is {value}, not within {row.lowest} to {row.highest} ({row.section})"
    elif row.field == "response_topic":
        if not value:
            return "is empty; it has to be a topic name [MQTT-4.7.3-1]"
        if "+" in value or "#" in value:
            return "contains a wildcard [MQTT-3.3.2-14]"
    return None


def _encode(row: _Property, value: Any, parts: list[bytes]) -> None:
    name = bytes((row.identifier,))
    kind = row.type
    if kind is _Type.PAIR:
        for key, text in value:
            parts += name, FIELDS.string(row.name, key), FIELDS.string(row.name, text)
        return
    for one in value if kind is _Type.NUMBER else (value,):
        if fault := _value_fault(row, one):
            raise LocalProtocolError(f"{row.name} {fault}")
        if kind is _Type.TEXT:
            parts += name, FIELDS.string(row.name, one)
        elif kind is _Type.BINARY:
            parts += name, FIELDS.binary(row.name, one)
        elif kind is _Type.NUMBER:
            parts += name, variable_int(one)
        else:
            parts += name, one.to_bytes(kind.value, "big")


def variable_int_at(body: bytes, at: int, end: int, what: str) -> tuple[int, int]:
    """Return a variable byte integer, and the place after it; errors call it `what`.

    Raises:
        ReasonedError: it is malformed, or goes beyond `end`, where its packet ends.
    """
    value = 0
    for shift in (0, 7, 14, 21):
        if at >= end:
            raise FIELDS.malformed(f"{what} is cut off (section 2.2.2)")
        group = body[at]
        at += 1
        value |= (group & 127) << shift
        if group < 128:
            if not group and shift:
                raise FIELDS.malformed(f"{what} takes more bytes than it needs [MQTT-1.5.5-1]")
            return value, at
    raise FIELDS.malformed(f"{what} takes more than four bytes (section 1.5.5)")


def _binary(body: bytes, at: int, end: int, what: str) -> tuple[bytes, int]:
    start = at + 2
    if start <= end:
        at = start + (body[at] << 8 | body[at + 1])
        if at <= end:
            return body[start:at], at
    raise FIELDS.malformed(f"{what} is cut off (section 2.2.2)")


def _text(body: bytes, at: int, end: int, what: str) -> tuple[str, int]:
    encoded, at = _binary(body, at, end, what)
    return FIELDS.text(encoded, what), at


def _twice(what: str, row: _Property) -> ReasonedError:
    return ReasonedError(f"{what} {_ONCE} ({row.section})", Reason.PROTOCOL_ERROR)
