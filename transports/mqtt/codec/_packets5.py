"""The wire format of the control packets in MQTT 5; `_packets` defines the packets.

Rules:

1. As in `_packets`: `decode5` accepts only well-formed packets, `encode5` refuses everything that
   `decode5` would refuse, and `decode5(encode5(packet)) == packet`.
2. Every refusal is a `ReasonedError`: 0x81 for a malformed packet, 0x82 for a packet that parses
   but breaks a rule, as the standard has it in each case (section 4.13). Both codes are valid in
   CONNACK and DISCONNECT.
3. `Connection` checks rules that depend on the sender of a packet, or on earlier packets:
   subscription identifiers in a PUBLISH, the side of a DISCONNECT's reason, topic aliases, and when
   AUTH may come.

Sections and statements are those of the OASIS standard of 7 March 2019; but `_topics` describes the
faults of a topic in the numbering of MQTT 3.1.1.
"""

from collections.abc import Callable
from typing import Final

from ..._errors import LocalProtocolError
from ._fields import Reader, framed
from ._frames import AUTH, KIND_NAMES, encode_remaining_length
from ._options import options_fault
from ._packets import (
    FIRST_BYTES,
    PROTOCOL_NAME,
    Acknowledgement,
    Auth,
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
    connect_packet,
    empty_decoder,
    encode_empty,
    publish_flags_fault,
    qos_fault,
    will_flags_fault,
)
from ._properties import (
    FIELDS,
    NO_PROPERTIES,
    WILL,
    Properties,
    bare_properties,
    decode_properties,
    encode_properties,
)
from ._reasons import Reason, ReasonedError
from ._topics import topic_filter_fault, topic_name_fault

PROTOCOL_LEVEL_5: Final = 5

_MALFORMED: Final = Reason.MALFORMED_PACKET
_PROTOCOL_ERROR: Final = Reason.PROTOCOL_ERROR

# The reason codes that a packet may carry, by its kind.
_CONNACK_REASONS: Final = frozenset(
    (0, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, *range(0x99, 0x9E), 0x9F)
)  # [MQTT-3.2.2-8]
_RECEIVED_REASONS: Final = frozenset((0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99))
_RELEASED_REASONS: Final = frozenset((0, 0x92))
_FILTER_REASONS: Final = {
    SubAck.kind: (
        frozenset((0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2)),
        "[MQTT-3.9.3-2]",
    ),
    UnsubAck.kind: (frozenset((0, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91)), "[MQTT-3.11.3-2]"),
}

CLIENT_DISCONNECT_REASONS: Final = frozenset(
    (0, 4, 0x80, 0x81, 0x82, 0x83, 0x90, *range(0x93, 0x9A))
)
"""The reasons for which a client may disconnect (section 3.14.2.1, table 3-10)."""

SERVER_DISCONNECT_REASONS: Final = frozenset(
    (0, *range(0x80, 0x84), 0x87, 0x89, 0x8B, *range(0x8C, 0x91), *range(0x93, 0xA3))
)
"""The reasons for which a server may. 0x8C is in table 2-6 though not in table 3-10."""

_AUTH_REASONS: Final = frozenset((0, 0x18, 0x19))

_DISCONNECT_REASONS: Final = CLIENT_DISCONNECT_REASONS | SERVER_DISCONNECT_REASONS

_ACKNOWLEDGEMENTS: Final[
    dict[int, tuple[Callable[[int, int, Properties], Acknowledgement], frozenset[int], str]]
] = {
    4: (PubAck, _RECEIVED_REASONS, "[MQTT-3.4.2-1]"),
    5: (PubRec, _RECEIVED_REASONS, "[MQTT-3.5.2-1]"),
    6: (PubRel, _RELEASED_REASONS, "[MQTT-3.6.2-1]"),
    7: (PubComp, _RELEASED_REASONS, "[MQTT-3.7.2-1]"),
}


def first_byte_fault5(first_byte: int) -> ReasonedError | None:
    """Return the error for a packet's first byte; None: it is legal."""
    if first_byte in FIRST_BYTES or first_byte == AUTH:
        return None
    kind, flags = first_byte >> 4, first_byte & 15
    if kind == 0:
        message = "packet type 0 is reserved (section 2.1.2, table 2-1); is the peer speaking MQTT?"
    elif kind == Publish.kind:
        message = publish_flags_fault(flags)
    else:
        name = "AUTH" if kind == AUTH >> 4 else KIND_NAMES[kind]
        message = (
            f"{name} with flags {flags:#06b}, which are not its own [MQTT-2.1.3-1]; is the peer "
            "speaking MQTT?"
        )
    return ReasonedError(message, _MALFORMED)


# --- from packets to bytes ------------------------------------------------------------------


def encode5(packet: Packet) -> bytes:
    """Encode one packet, fixed header included.

    Raises:
        LocalProtocolError: if the packet's fields are not what the specification allows.
    """
    return _ENCODERS[packet.kind](packet)


def encode_publish5(
    topic: str,
    payload: bytes,
    qos: int = 0,
    retain: bool = False,
    dup: bool = False,
    packet_id: int = 0,
    properties: bytes = b"",
    *,
    aliased: bool = False,
) -> bytes:
    """Encode a PUBLISH without making the packet first; otherwise as `encode5`.

    Args:
        topic: may be empty if the properties have a topic alias.
        payload: as in `Publish`.
        qos: as in `Publish`.
        retain: as in `Publish`.
        dup: as in `Publish`.
        packet_id: as in `Publish`.
        properties: encoded, WITHOUT their length in front, as `application_properties` makes them.
            They are not checked, except for a topic alias if the topic is empty.
        aliased: whether the caller knows that they have one; then they are not checked.
    """
    if topic:
        if fault := topic_name_fault(topic):
            raise LocalProtocolError(fault)
    elif not (aliased or _have_alias(properties)):
        raise LocalProtocolError(
            "an empty topic name needs a topic alias (section 3.3.2.1)[MQTT-4.7.3-1]"
        )
    name = FIELDS.string("topic name", topic)
    size = len(name) + len(properties) + len(payload)
    length = encode_remaining_length(len(properties))
    if qos == 0:
        if dup or packet_id:
            raise LocalProtocolError(
                "a PUBLISH of QoS 0 has neither DUP nor a packet identifier "
                "[MQTT-3.3.1-2][MQTT-2.2.1-2]"
            )
        return b"".join(
            (
                b"\x31" if retain else b"\x30",
                encode_remaining_length(size + len(length)),
                name,
                length,
                properties,
                payload,
            )
        )
    if qos not in (1, 2):
        raise LocalProtocolError(qos_fault("PUBLISH", qos))
    return b"".join(
        (
            bytes((0x30 | dup << 3 | qos << 1 | retain,)),
            encode_remaining_length(size + len(length) + 2),
            name,
            FIELDS.packet_id("PUBLISH", packet_id),
            length,
            properties,
            payload,
        )
    )


def _have_alias(properties: bytes) -> bool:
    whole = encode_remaining_length(len(properties)) + properties
    try:
        return decode_properties(whole, 0, Publish.kind)[0].topic_alias is not None
    except ReasonedError as exc:
        raise LocalProtocolError(str(exc)) from None


def _encode_packet_publish(packet: Publish) -> bytes:
    return encode_publish5(
        packet.topic,
        packet.payload,
        packet.qos,
        packet.retain,
        packet.dup,
        packet.packet_id,
        bare_properties(packet.properties, Publish.kind),
    )


def _encode_connect(packet: Connect) -> bytes:
    if packet.protocol_name != PROTOCOL_NAME or packet.protocol_level != PROTOCOL_LEVEL_5:
        raise LocalProtocolError(
            f"MQTT 5 is protocol {PROTOCOL_NAME!r} level {PROTOCOL_LEVEL_5}, not "
            f"{packet.protocol_name!r} level {packet.protocol_level}"
        )
    if packet.bridge:
        raise LocalProtocolError("MQTT 5 has no bridge bit; use the options of subscriptions")
    will_properties = b""
    if packet.will is not None:
        if packet.will.qos not in (0, 1, 2):
            raise LocalProtocolError(
                f"will: QoS is 0, 1 or 2, not {packet.will.qos} [MQTT-3.1.2-12]"
            )
        will_properties = encode_properties(packet.will.properties, WILL)
    properties = encode_properties(packet.properties, Connect.kind)
    return connect_packet(packet, FIELDS, "will payload", properties, will_properties)


def _encode_connack(packet: ConnAck) -> bytes:
    _check_reasons("CONNACK", (packet.return_code,), _CONNACK_REASONS, "[MQTT-3.2.2-8]")
    if packet.session_present and packet.return_code:
        raise LocalProtocolError("a CONNACK that refuses has session present 0 [MQTT-3.2.2-6]")
    fixed = bytes((packet.session_present, packet.return_code))
    return framed(0x20, fixed + encode_properties(packet.properties, ConnAck.kind))


def _encode_acknowledgement(packet: Acknowledgement) -> bytes:
    kind = packet.kind
    first_byte = kind << 4 | (2 if kind == PubRel.kind else 0)
    packet_id = FIELDS.packet_id(KIND_NAMES[kind], packet.packet_id)
    if packet.properties is NO_PROPERTIES or packet.properties == NO_PROPERTIES:
        if not packet.reason:
            return bytes((first_byte, 2)) + packet_id
        properties = b""  # section 3.4.2.2.1: none, if fewer than four bytes remain
    else:
        properties = encode_properties(packet.properties, kind)
    _, allowed, statement = _ACKNOWLEDGEMENTS[kind]
    _check_reasons(KIND_NAMES[kind], (packet.reason,), allowed, statement)
    return framed(first_byte, packet_id + bytes((packet.reason,)) + properties)


def _encode_subscribe(packet: Subscribe) -> bytes:
    if not packet.filters:
        raise LocalProtocolError("a SUBSCRIBE needs at least one topic filter [MQTT-3.8.3-2]")
    fields = [
        FIELDS.packet_id("SUBSCRIBE", packet.packet_id),
        encode_properties(packet.properties, Subscribe.kind),
    ]
    for topic_filter, options in packet.filters:
        if fault := topic_filter_fault(topic_filter):
            raise LocalProtocolError(fault)
        if not 0 <= options <= 255:
            raise LocalProtocolError(f"SUBSCRIBE: {options} is not a byte of options")
        if found := options_fault(topic_filter, options):
            raise LocalProtocolError(f"SUBSCRIBE: {found[0]}")
        fields.append(FIELDS.string("topic filter", topic_filter))
        fields.append(bytes((options,)))
    return framed(0x82, b"".join(fields))


def _encode_suback(packet: SubAck) -> bytes:
    if not packet.return_codes:
        raise LocalProtocolError("a SUBACK needs a reason code for each filter [MQTT-3.8.4-6]")
    return _reasons_packet(packet, packet.return_codes)


def _encode_unsubscribe(packet: Unsubscribe) -> bytes:
    if not packet.filters:
        raise LocalProtocolError("an UNSUBSCRIBE needs at least one topic filter [MQTT-3.10.3-2]")
    fields = [
        FIELDS.packet_id("UNSUBSCRIBE", packet.packet_id),
        encode_properties(packet.properties, Unsubscribe.kind),
    ]
    for topic_filter in packet.filters:
        if fault := topic_filter_fault(topic_filter):
            raise LocalProtocolError(fault)
        fields.append(FIELDS.string("topic filter", topic_filter))
    return framed(0xA2, b"".join(fields))


def _encode_unsuback(packet: UnsubAck) -> bytes:
    if not packet.reasons:
        raise LocalProtocolError("an UNSUBACK needs a reason code for each filter (section 3.11.3)")
    return _reasons_packet(packet, packet.reasons)


def _reasons_packet(packet: SubAck | UnsubAck, reasons: tuple[int, ...]) -> bytes:
    name = KIND_NAMES[packet.kind]
    allowed, statement = _FILTER_REASONS[packet.kind]
    _check_reasons(name, reasons, allowed, statement)
    packet_id = FIELDS.packet_id(name, packet.packet_id)
    properties = encode_properties(packet.properties, packet.kind)
    return framed(packet.kind << 4, packet_id + properties + bytes(reasons))


def _encode_disconnect(packet: Disconnect) -> bytes:
    _check_reasons("DISCONNECT", (packet.reason,), _DISCONNECT_REASONS, "[MQTT-3.14.2-1]")
    if packet.properties != NO_PROPERTIES:
        properties = encode_properties(packet.properties, Disconnect.kind)
        return framed(0xE0, bytes((packet.reason,)) + properties)
    return bytes((0xE0, 1, packet.reason)) if packet.reason else b"\xe0\0"


def _encode_auth(packet: Auth) -> bytes:
    _check_reasons("AUTH", (packet.reason,), _AUTH_REASONS, "[MQTT-3.15.2-1]")
    if not packet.reason and packet.properties == NO_PROPERTIES:
        return b"\xf0\0"
    properties = encode_properties(packet.properties, Auth.kind)
    return framed(AUTH, bytes((packet.reason,)) + properties)


def _check_reasons(
    what: str, reasons: tuple[int, ...], allowed: frozenset[int], statement: str
) -> None:
    if not allowed.issuperset(reasons):
        wrong = next(reason for reason in reasons if reason not in allowed)
        raise LocalProtocolError(f"{what} does not have reason code {wrong:#04x} {statement}")


# --- from bytes to packets ------------------------------------------------------------------


def decode5(first_byte: int, body: bytes) -> Packet:
    """Decode one packet from its first byte and its body, which follows the remaining length.

    A topic alias is not resolved: the topic of such a PUBLISH may be empty.

    Raises:
        ReasonedError: if the packet is malformed, or breaks a rule that can be checked without
            other packets.
    """
    if fault := first_byte_fault5(first_byte):
        raise fault
    return _DECODERS[first_byte >> 4](first_byte, body)


def _decode_publish(first_byte: int, body: bytes) -> Publish:
    if len(body) < 2:
        raise FIELDS.malformed("PUBLISH ends before its topic name [MQTT-3.3.2-1]")
    at = 2 + (body[0] << 8 | body[1])
    if at > len(body):
        raise FIELDS.malformed("PUBLISH ends in the middle of its topic name [MQTT-3.3.2-1]")
    try:
        topic = body[2:at].decode()
    except UnicodeDecodeError as exc:
        raise FIELDS.ill_formed("PUBLISH: its topic name", exc) from None
    if topic and (fault := topic_name_fault(topic)):
        raise FIELDS.malformed(f"PUBLISH: {fault}")
    qos = first_byte >> 1 & 3
    packet_id = 0
    if qos:
        if len(body) < at + 2:
            raise FIELDS.malformed(
                f"PUBLISH of QoS {qos} ends before its packet identifier (section 2.2.1)"
            )
        packet_id = body[at] << 8 | body[at + 1]
        at += 2
        if packet_id == 0:
            raise FIELDS.no_identifier(f"PUBLISH of QoS {qos}")
    properties, at = decode_properties(body, at, Publish.kind)
    if not topic and properties.topic_alias is None:
        raise ReasonedError(
            "PUBLISH has an empty topic name and no topic alias (section 3.3.2.1)[MQTT-4.7.3-1]",
            _PROTOCOL_ERROR,
        )
    return Publish(
        topic, body[at:], qos, bool(first_byte & 1), bool(first_byte & 8), packet_id, properties
    )


def _decode_connect(first_byte: int, body: bytes) -> Connect:
    reader = _Reader(Connect.kind, body)
    name = reader.binary("protocol name")
    level = reader.byte("protocol version")
    if name != b"MQTT" or level != PROTOCOL_LEVEL_5:
        raise ReasonedError(
            f"CONNECT asks for protocol {name[:32]!r} version {level}, not b'MQTT' version 5 "
            "[MQTT-3.1.2-1][MQTT-3.1.2-2]",
            Reason.UNSUPPORTED_PROTOCOL_VERSION,
        )
    flags = reader.byte("connect flags")
    if fault := will_flags_fault(flags, _WILL_STATEMENTS):
        raise FIELDS.malformed(fault)
    keep_alive = reader.uint16("keep alive")
    properties = reader.properties()
    client_id = reader.string("client identifier")
    will = None
    if flags & 4:
        will_properties = reader.properties(WILL)
        topic = reader.string("will topic")
        if fault := topic_name_fault(topic):
            raise FIELDS.malformed(f"CONNECT: will: {fault}")
        payload = reader.binary("will payload")
        will = Will(topic, payload, flags >> 3 & 3, bool(flags & 0x20), will_properties)
    username = reader.string("user name") if flags & 0x80 else None
    password = reader.binary("password") if flags & 0x40 else None
    reader.finish()
    return Connect(
        client_id,
        bool(flags & 2),
        keep_alive,
        username,
        password,
        will,
        PROTOCOL_NAME,
        PROTOCOL_LEVEL_5,
        properties,
    )


_WILL_STATEMENTS: Final = ("[MQTT-3.1.2-11]", "[MQTT-3.1.2-13]", "[MQTT-3.1.2-12]")


def _decode_connack(first_byte: int, body: bytes) -> ConnAck:
    reader = _Reader(ConnAck.kind, body)
    acknowledge_flags = reader.byte("acknowledge flags")
    if acknowledge_flags & 0xFE:
        raise FIELDS.malformed(
            f"CONNACK has reserved flags {acknowledge_flags:#04x} set [MQTT-3.2.2-1]"
        )
    reason = reader.reason("[MQTT-3.2.2-8]", _CONNACK_REASONS)
    if acknowledge_flags and reason:
        raise ReasonedError(
            "CONNACK refuses and says session present [MQTT-3.2.2-6]", _PROTOCOL_ERROR
        )
    properties = reader.properties()
    reader.finish()
    return ConnAck(bool(acknowledge_flags), reason, properties)


def _decode_acknowledgement(first_byte: int, body: bytes) -> Acknowledgement:
    kind = first_byte >> 4
    make, allowed, statement = _ACKNOWLEDGEMENTS[kind]
    if len(body) == 2:
        packet_id = body[0] << 8 | body[1]
        if packet_id:
            return make(packet_id, 0, NO_PROPERTIES)
    reader = _Reader(kind, body)
    packet_id = reader.packet_id()
    reason = reader.reason(statement, allowed)
    properties = NO_PROPERTIES if reader.at_end else reader.properties()
    reader.finish()
    return make(packet_id, reason, properties)


def _decode_subscribe(first_byte: int, body: bytes) -> Subscribe:
    reader = _Reader(Subscribe.kind, body)
    packet_id = reader.packet_id()
    properties = reader.properties()
    filters: list[tuple[str, int]] = []
    while not reader.at_end:
        topic_filter = reader.topic_filter()
        options = reader.byte("subscription options")
        if found := options_fault(topic_filter, options):
            raise ReasonedError(f"SUBSCRIBE: {found[0]}", found[1])
        filters.append((topic_filter, options))
    if not filters:
        raise ReasonedError("SUBSCRIBE has no topic filter [MQTT-3.8.3-2]", _PROTOCOL_ERROR)
    return Subscribe(packet_id, tuple(filters), properties)


def _decode_unsubscribe(first_byte: int, body: bytes) -> Unsubscribe:
    reader = _Reader(Unsubscribe.kind, body)
    packet_id = reader.packet_id()
    properties = reader.properties()
    filters: list[str] = []
    while not reader.at_end:
        filters.append(reader.topic_filter())
    if not filters:
        raise ReasonedError("UNSUBSCRIBE has no topic filter [MQTT-3.10.3-2]", _PROTOCOL_ERROR)
    return Unsubscribe(packet_id, tuple(filters), properties)


def _reasons_decoder(
    make: Callable[[int, tuple[int, ...], Properties], SubAck | UnsubAck], kind: int
) -> Callable[[int, bytes], SubAck | UnsubAck]:
    allowed, statement = _FILTER_REASONS[kind]

    def decode_reasons(first_byte: int, body: bytes) -> SubAck | UnsubAck:
        reader = _Reader(kind, body)
        packet_id = reader.packet_id()
        properties = reader.properties()
        return make(packet_id, reader.reasons(statement, allowed), properties)

    return decode_reasons


def _decode_disconnect(first_byte: int, body: bytes) -> Disconnect:
    if not body:
        return _GOODBYE
    reader = _Reader(Disconnect.kind, body)
    reason = reader.reason("[MQTT-3.14.2-1]", _DISCONNECT_REASONS)
    properties = NO_PROPERTIES if reader.at_end else reader.properties()
    reader.finish()
    return Disconnect(reason, properties)


_GOODBYE: Final = Disconnect()


def _decode_auth(first_byte: int, body: bytes) -> Auth:
    if not body:
        return Auth()
    reader = _Reader(Auth.kind, body)
    reason = reader.reason("[MQTT-3.15.2-1]", _AUTH_REASONS)
    properties = reader.properties()
    reader.finish()
    return Auth(reason, properties)


class _Reader(Reader):
    """Takes also the fields that only MQTT 5 has."""

    __slots__ = ("_kind",)

    def __init__(self, kind: int, body: bytes) -> None:
        super().__init__(FIELDS, kind, body)
        self._kind = kind

    def reason(self, statement: str, allowed: frozenset[int]) -> int:
        reason = self.byte("reason code")
        if reason not in allowed:
            raise self._bad_reason(reason, statement)
        return reason

    def reasons(self, statement: str, allowed: frozenset[int]) -> tuple[int, ...]:
        """Take the rest as reason codes; there must be at least one."""
        reasons = tuple(self._body[self._at :])
        if not reasons:
            raise ReasonedError(f"{self._packet} has no reason code {statement}", _PROTOCOL_ERROR)
        for reason in reasons:
            if reason not in allowed:
                raise self._bad_reason(reason, statement)
        return reasons

    def properties(self, place: int | None = None) -> Properties:
        """Take properties: the packet's own, or those of another place in it."""
        place = self._kind if place is None else place
        properties, self._at = decode_properties(self._body, self._at, place)
        return properties

    def _bad_reason(self, reason: int, statement: str) -> ReasonedError:
        return ReasonedError(
            f"{self._packet} does not have reason code {reason:#04x} {statement}", _PROTOCOL_ERROR
        )


# `Any` would be the honest parameter type: each function takes the one class of its place.
_ENCODERS: tuple[Callable[..., bytes], ...] = (
    encode_empty,  # type 0 does not exist; no packet has it
    _encode_connect,
    _encode_connack,
    _encode_packet_publish,
    _encode_acknowledgement,
    _encode_acknowledgement,
    _encode_acknowledgement,
    _encode_acknowledgement,
    _encode_subscribe,
    _encode_suback,
    _encode_unsubscribe,
    _encode_unsuback,
    encode_empty,
    encode_empty,
    _encode_disconnect,
    _encode_auth,
)

_DECODERS: dict[int, Callable[[int, bytes], Packet]] = {
    1: _decode_connect,
    2: _decode_connack,
    3: _decode_publish,
    4: _decode_acknowledgement,
    5: _decode_acknowledgement,
    6: _decode_acknowledgement,
    7: _decode_acknowledgement,
    8: _decode_subscribe,
    9: _reasons_decoder(SubAck, SubAck.kind),
    10: _decode_unsubscribe,
    11: _reasons_decoder(UnsubAck, UnsubAck.kind),
    12: empty_decoder(PingReq(), FIELDS),
    13: empty_decoder(PingResp(), FIELDS),
    14: _decode_disconnect,
    15: _decode_auth,
}
