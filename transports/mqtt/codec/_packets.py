"""The control packets of MQTT as values, and their wire format in version 3.1.1.

The values serve MQTT 5 as well; its wire format is in `_packets5`. Fields that only MQTT 5 has
(`properties`, `reason`) have neutral defaults.

Rules:

1. `decode` accepts only packets that the specification calls well-formed. Every refusal is a
   `RemoteProtocolError` that names the broken statement, in the numbering of the standard of
   29 October 2014 (`[MQTT-3.3.1-4]`), or the section if no statement has a number.
2. Two refusals need an answer before the connection is closed. They are an
   `UnacceptableConnectError`, which carries the return code of the CONNACK.
3. `encode` refuses everything that `decode` would refuse (`LocalProtocolError`), so that
   `decode(encode(packet)) == packet` for each packet that it encodes.
4. Other modules check the limits of this process (sizes, depth of topics, counts).

Strings are `str`; binary data, the password included, is `bytes`. QoS is a plain int: these objects
are made for each message, and an enum would cost more than it helps.
"""

import enum
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import ClassVar, TypeAlias

import attrs

from ..._errors import LocalProtocolError, RemoteProtocolError
from ._fields import Fields, Reader, framed
from ._frames import KIND_NAMES, encode_remaining_length
from ._properties import NO_PROPERTIES, Properties
from ._topics import topic_filter_fault, topic_name_fault

PROTOCOL_NAME = "MQTT"
PROTOCOL_LEVEL = 4

#: MQTT 3.1, of 2010; bridges and old clients speak it. Its packets are those of 3.1.1, except that
#: SUBACK cannot refuse a filter, and CONNACK has no session present flag.
PROTOCOL_NAME_31 = "MQIsdp"
PROTOCOL_LEVEL_31 = 3

#: A bridge, a server that connects as another server's client, adds this to the level to identify
#: itself (mosquitto's `try_private`). In no standard.
BRIDGE_LEVEL = 0x80

#: Topics whose encoded and decoded names are kept: an eighth of those of one connection's routes.
CACHED_TOPICS = 128

#: SUBACK's return code for a refused filter (section 3.9.3).
SUBSCRIPTION_FAILED = 0x80


class ConnectReturnCode(enum.IntEnum):
    """The return codes of CONNACK (section 3.2.2.3, table 3.1)."""

    ACCEPTED = 0
    UNACCEPTABLE_PROTOCOL_LEVEL = 1
    IDENTIFIER_REJECTED = 2
    SERVER_UNAVAILABLE = 3
    BAD_USER_NAME_OR_PASSWORD = 4
    NOT_AUTHORIZED = 5


class UnacceptableConnectError(RemoteProtocolError):
    """A CONNECT that must be answered before the connection is closed.

    Attributes:
        return_code: the code for the CONNACK: `UNACCEPTABLE_PROTOCOL_LEVEL` [MQTT-3.1.2-2] or
            `IDENTIFIER_REJECTED` [MQTT-3.1.3-8]; in MQTT 5, which has a code for every fault of a
            CONNECT, a `Reason`.
        max_packet_size: the client's Maximum Packet Size (MQTT 5, section 3.1.2.11.4), if the
            CONNECT has one and could be read that far.
    """

    def __init__(self, message: str, return_code: int, max_packet_size: int | None = None) -> None:
        super().__init__(message)
        self.return_code = return_code
        self.max_packet_size = max_packet_size


@attrs.frozen
class Will:
    """The message that the server publishes if the client leaves without DISCONNECT."""

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    properties: Properties = NO_PROPERTIES


@attrs.frozen
class Connect:
    """Section 3.1. An empty `client_id` asks the server to choose one; `keep_alive` is in seconds.

    In MQTT 5, `clean_session` is the clean start flag: it ends the old session, and does not limit
    how long the server keeps the new one.
    """

    client_id: str = ""
    clean_session: bool = True
    keep_alive: int = 0
    username: str | None = None
    password: bytes | None = None
    will: Will | None = None
    protocol_name: str = PROTOCOL_NAME
    protocol_level: int = PROTOCOL_LEVEL
    properties: Properties = NO_PROPERTIES
    bridge: bool = False
    """See `BRIDGE_LEVEL`; not in MQTT 5, where subscription options replace it."""

    kind: ClassVar[int] = 1


@attrs.frozen
class ConnAck:
    """Section 3.2. `return_code` is one of `ConnectReturnCode`; in MQTT 5, a `Reason`."""

    session_present: bool
    return_code: int
    properties: Properties = NO_PROPERTIES

    kind: ClassVar[int] = 2


@attrs.frozen
class Publish:
    """Section 3.3. `packet_id` is 0 exactly when `qos` is 0: then the wire carries none.

    In MQTT 5, `topic` may be empty if the properties have a topic alias.
    """

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: Properties = NO_PROPERTIES

    kind: ClassVar[int] = 3


@attrs.frozen
class PubAck:
    """Section 3.4: a QoS 1 publication has been accepted."""

    packet_id: int
    reason: int = 0
    properties: Properties = NO_PROPERTIES

    kind: ClassVar[int] = 4


@attrs.frozen
class PubRec:
    """Section 3.5: a QoS 2 publication has been received (first answer)."""

    packet_id: int
    reason: int = 0
    properties: Properties = NO_PROPERTIES

    kind: ClassVar[int] = 5


@attrs.frozen
class PubRel:
    """Section 3.6: the sender of a QoS 2 publication will not send it again."""

    packet_id: int
    reason: int = 0
    properties: Properties = NO_PROPERTIES

    kind: ClassVar[int] = 6


@attrs.frozen
class PubComp:
    """Section 3.7: a QoS 2 publication is complete (last answer)."""

    packet_id: int
    reason: int = 0
    properties: Properties = NO_PROPERTIES

    kind: ClassVar[int] = 7


@attrs.frozen
class Subscribe:
    """Section 3.8. `filters` holds pairs of (topic filter, highest QoS wanted).

    In MQTT 5 the second is the whole options byte; its two lowest bits are the QoS (section 3.8.3.1
    of that standard).
    """

    packet_id: int
    filters: tuple[tuple[str, int], ...]
    properties: Properties = NO_PROPERTIES

    kind: ClassVar[int] = 8


@attrs.frozen
class SubAck:
    """Section 3.9. One code for each filter: the QoS granted, or `SUBSCRIPTION_FAILED`.

    MQTT 5 has more codes for refusals; see `Reason`.
    """

    packet_id: int
    return_codes: tuple[int, ...]
    properties: Properties = NO_PROPERTIES

    kind: ClassVar[int] = 9


@attrs.frozen
class Unsubscribe:
    """Section 3.10."""

    packet_id: int
    filters: tuple[str, ...]
    properties: Properties = NO_PROPERTIES

    kind: ClassVar[int] = 10


@attrs.frozen
class UnsubAck:
    """Section 3.11. In MQTT 5, `reasons` has the result for each filter."""

    packet_id: int
    reasons: tuple[int, ...] = ()
    properties: Properties = NO_PROPERTIES

    kind: ClassVar[int] = 11


@attrs.frozen
class PingReq:
    """Section 3.12."""

    kind: ClassVar[int] = 12


@attrs.frozen
class PingResp:
    """Section 3.13."""

    kind: ClassVar[int] = 13


@attrs.frozen
class Disconnect:
    """Section 3.14: the client leaves, and the server must not publish its will.

    In MQTT 5 a server may send it, too, and with a `reason` other than 0 the will is published.
    """

    reason: int = 0
    properties: Properties = NO_PROPERTIES

    kind: ClassVar[int] = 14


@attrs.frozen
class Auth:
    """MQTT 5, section 3.15: one step of an enhanced authentication.

    `reason` is 0 (done), 0x18 (go on) or 0x19 (the client authenticates again).
    """

    reason: int = 0
    properties: Properties = NO_PROPERTIES

    kind: ClassVar[int] = 15


Packet: TypeAlias = (
    Connect
    | ConnAck
    | Publish
    | PubAck
    | PubRec
    | PubRel
    | PubComp
    | Subscribe
    | SubAck
    | Unsubscribe
    | UnsubAck
    | PingReq
    | PingResp
    | Disconnect
    | Auth
)

# Table 2.2: the four low bits of the first byte. Only the flags of PUBLISH vary.
_PUBLISH_FLAGS = tuple(
    flags for flags in range(16) if flags >> 1 & 3 != 3 and not (flags & 8 and not flags & 6)
)
_FLAGS: dict[int, tuple[int, ...]] = {
    kind: _PUBLISH_FLAGS if kind == 3 else (2,) if kind in (6, 8, 10) else (0,)
    for kind in range(1, 15)
}

#: Every first byte that a well-formed packet can have.
FIRST_BYTES = frozenset(kind << 4 | flags for kind, values in _FLAGS.items() for flags in values)

_FLAG_STATEMENTS = {
    6: "[MQTT-3.6.1-1]",
    8: "[MQTT-3.8.1-1]",
    10: "[MQTT-3.10.1-1]",
    14: "[MQTT-3.14.1-1]",
}


def publish_flags_fault(flags: int) -> str:
    """Describe the fault of flags that are illegal in a PUBLISH."""
    if flags >> 1 & 3 == 3:
        return "PUBLISH with both QoS bits set; QoS is 0, 1 or 2 [MQTT-3.3.1-4]"
    return "PUBLISH with DUP set and QoS 0; clear DUP [MQTT-3.3.1-2]"


def first_byte_fault(first_byte: int) -> str | None:
    """Describe the fault of a packet's first byte; None: it is legal."""
    if first_byte in FIRST_BYTES:
        return None
    kind, flags = first_byte >> 4, first_byte & 15
    name = KIND_NAMES[kind]
    if kind not in _FLAGS:
        return (
            f"packet type {kind} is reserved (section 2.2.1, table 2.1); is the peer speaking MQTT?"
        )
    if kind == Publish.kind:
        return publish_flags_fault(flags)
    statement = _FLAG_STATEMENTS.get(kind, "[MQTT-2.2.2-1]")
    return (
        f"{name} with flags {flags:#06b} instead of {_FLAGS[kind][0]:#06b} "
        f"{statement}[MQTT-2.2.2-2]; is the peer speaking MQTT?"
    )


_FIELDS = Fields(
    utf8="[MQTT-1.5.3-1]",
    null="[MQTT-1.5.3-2]",
    binary="section 1.5.3",
    identifier="[MQTT-2.3.1-1]",
    malformed=RemoteProtocolError,
    forbidden=RemoteProtocolError,
)

# --- from packets to bytes ------------------------------------------------------------------


def encode(packet: Packet) -> bytes:
    """Encode one packet, fixed header included.

    Raises:
        LocalProtocolError: if the packet's fields are not what the specification allows.
    """
    return ENCODERS[packet.kind](packet)


def encode_publish(
    topic: str,
    payload: bytes,
    qos: int = 0,
    retain: bool = False,
    dup: bool = False,
    packet_id: int = 0,
) -> bytes:
    """Encode a PUBLISH without making the packet first; otherwise as `encode`."""
    name = _topic_field(topic)
    if qos == 0:
        if dup or packet_id:
            raise LocalProtocolError(
                "a PUBLISH of QoS 0 has neither DUP nor a packet identifier "
                "[MQTT-3.3.1-2][MQTT-2.3.1-5]"
            )
        return b"".join(
            (
                b"\x31" if retain else b"\x30",
                encode_remaining_length(len(name) + len(payload)),
                name,
                payload,
            )
        )
    if qos not in (1, 2):
        raise LocalProtocolError(qos_fault("PUBLISH", qos))
    identifier = _FIELDS.packet_id("PUBLISH", packet_id)
    return b"".join(
        (
            bytes((0x30 | dup << 3 | qos << 1 | retain,)),
            encode_remaining_length(len(name) + 2 + len(payload)),
            name,
            identifier,
            payload,
        )
    )


@lru_cache(maxsize=CACHED_TOPICS)
def _topic_field(topic: str) -> bytes:
    """Encode a topic name, once for all messages on it."""
    if fault := topic_name_fault(topic):
        raise LocalProtocolError(fault)
    return _FIELDS.string("topic name", topic)


def _encode_packet_publish(packet: Publish) -> bytes:
    if packet.properties is not NO_PROPERTIES:
        _refuse_properties("PUBLISH", packet.properties)
    return encode_publish(
        packet.topic, packet.payload, packet.qos, packet.retain, packet.dup, packet.packet_id
    )


def _encode_connect(packet: Connect) -> bytes:
    _refuse_properties("CONNECT", packet.properties)
    if _PROTOCOLS.get(packet.protocol_name.encode()) != packet.protocol_level:
        raise LocalProtocolError(
            f"only protocol {PROTOCOL_NAME!r} level {PROTOCOL_LEVEL} can be sent, and "
            f"{PROTOCOL_NAME_31!r} level {PROTOCOL_LEVEL_31}, not "
            f"{packet.protocol_name!r} level {packet.protocol_level}"
        )
    if not packet.client_id and packet.protocol_level == PROTOCOL_LEVEL_31:
        raise LocalProtocolError("in MQTT 3.1 a client identifier cannot be empty")
    if not packet.client_id and not packet.clean_session:
        raise LocalProtocolError(
            "an empty client identifier needs clean_session=True [MQTT-3.1.3-7]"
        )
    if packet.password is not None and packet.username is None:
        raise LocalProtocolError("a password needs a user name [MQTT-3.1.2-22]")
    if packet.will is not None:
        _refuse_properties("will", packet.will.properties)
        if packet.will.qos not in (0, 1, 2):
            raise LocalProtocolError(qos_fault("will", packet.will.qos))
    return connect_packet(packet, _FIELDS, "will message")


def connect_packet(
    packet: Connect,
    fields: Fields,
    will_payload: str,
    properties: bytes = b"",
    will_properties: bytes = b"",
) -> bytes:
    """Encode a CONNECT, which the caller has checked against the rules of its version.

    Args:
        packet: the packet to encode.
        fields: the `Fields` of its version.
        will_payload: the version's name for the payload of a will.
        properties: encoded, their length in front; b"" for no properties and no length.
        will_properties: likewise, of its will.

    Raises:
        LocalProtocolError: if a field breaks a rule of both versions.
    """
    if not 0 <= packet.keep_alive <= 65_535:
        raise LocalProtocolError(
            f"keep_alive of {packet.keep_alive} s is not within 0 to 65535 (section 3.1.2.10)"
        )
    flags = packet.clean_session << 1
    parts = [properties, fields.string("client identifier", packet.client_id)]
    if packet.will is not None:
        will = packet.will
        if fault := topic_name_fault(will.topic):
            raise LocalProtocolError(f"will: {fault}")
        flags |= 4 | will.qos << 3 | will.retain << 5
        parts.append(will_properties)
        parts.append(fields.string("will topic", will.topic))
        parts.append(fields.binary(will_payload, will.payload))
    if packet.username is not None:
        flags |= 0x80
        parts.append(fields.string("user name", packet.username))
    if packet.password is not None:
        flags |= 0x40
        parts.append(fields.binary("password", packet.password))
    level = packet.protocol_level | packet.bridge * BRIDGE_LEVEL
    name = fields.string("protocol name", packet.protocol_name)
    fixed = name + struct.pack("!BBH", level, flags, packet.keep_alive)
    return framed(0x10, fixed + b"".join(parts))


def _refuse_auth(packet: Auth) -> bytes:
    raise LocalProtocolError("MQTT 3.1.1 has no AUTH (section 2.2.1, table 2.1)")


def _encode_connack(packet: ConnAck) -> bytes:
    _refuse_properties("CONNACK", packet.properties)
    if packet.return_code not in _CONNECT_RETURN_CODES:
        raise LocalProtocolError(
            f"CONNACK return code {packet.return_code} is reserved (section 3.2.2.3)"
        )
    if packet.session_present and packet.return_code:
        raise LocalProtocolError("a CONNACK that refuses has session present 0 [MQTT-3.2.2-4]")
    return bytes((0x20, 2, packet.session_present, packet.return_code))


Acknowledgement: TypeAlias = PubAck | PubRec | PubRel | PubComp


def _encode_acknowledgement(packet: Acknowledgement) -> bytes:
    kind = packet.kind
    if packet.reason or packet.properties is not NO_PROPERTIES:
        _refuse_reasons(KIND_NAMES[kind], packet.reason)
        _refuse_properties(KIND_NAMES[kind], packet.properties)
    first_byte = kind << 4 | _FLAGS[kind][0]
    return bytes((first_byte, 2)) + _FIELDS.packet_id(KIND_NAMES[kind], packet.packet_id)


def _encode_subscribe(packet: Subscribe) -> bytes:
    _refuse_properties("SUBSCRIBE", packet.properties)
    if not packet.filters:
        raise LocalProtocolError("a SUBSCRIBE needs at least one topic filter [MQTT-3.8.3-3]")
    fields = [_FIELDS.packet_id("SUBSCRIBE", packet.packet_id)]
    for topic_filter, qos in packet.filters:
        if fault := topic_filter_fault(topic_filter):
            raise LocalProtocolError(fault)
        if qos not in (0, 1, 2):
            raise LocalProtocolError(qos_fault("SUBSCRIBE", qos))
        fields.append(_FIELDS.string("topic filter", topic_filter))
        fields.append(bytes((qos,)))
    return framed(0x82, b"".join(fields))


def _encode_suback(packet: SubAck) -> bytes:
    _refuse_properties("SUBACK", packet.properties)
    if not packet.return_codes:
        raise LocalProtocolError("a SUBACK needs a return code for each filter [MQTT-3.8.4-5]")
    if not _SUBACK_CODES.issuperset(packet.return_codes):
        raise LocalProtocolError(
            f"SUBACK return codes are 0, 1, 2 and 0x80, not {packet.return_codes} [MQTT-3.9.3-2]"
        )
    return framed(0x90, _FIELDS.packet_id("SUBACK", packet.packet_id) + bytes(packet.return_codes))


def _encode_unsubscribe(packet: Unsubscribe) -> bytes:
    _refuse_properties("UNSUBSCRIBE", packet.properties)
    if not packet.filters:
        raise LocalProtocolError("an UNSUBSCRIBE needs at least one topic filter [MQTT-3.10.3-2]")
    fields = [_FIELDS.packet_id("UNSUBSCRIBE", packet.packet_id)]
    for topic_filter in packet.filters:
        if fault := topic_filter_fault(topic_filter):
            raise LocalProtocolError(fault)
        fields.append(_FIELDS.string("topic filter", topic_filter))
    return framed(0xA2, b"".join(fields))


def _encode_unsuback(packet: UnsubAck) -> bytes:
    _refuse_reasons("UNSUBACK", packet.reasons)
    _refuse_properties("UNSUBACK", packet.properties)
    return b"\xb0\2" + _FIELDS.packet_id("UNSUBACK", packet.packet_id)


def _encode_disconnect(packet: Disconnect) -> bytes:
    _refuse_reasons("DISCONNECT", packet.reason)
    _refuse_properties("DISCONNECT", packet.properties)
    return encode_empty(packet)


def encode_empty(packet: PingReq | PingResp | Disconnect) -> bytes:
    """Encode a packet that consists of its fixed header."""
    return bytes((packet.kind << 4, 0))


def _refuse_properties(what: str, properties: Properties) -> None:
    if properties is not NO_PROPERTIES and properties != NO_PROPERTIES:
        raise LocalProtocolError(f"{what} of MQTT 3.1.1 cannot carry properties; MQTT 5 can")


def _refuse_reasons(what: str, reasons: int | tuple[int, ...]) -> None:
    if reasons:
        raise LocalProtocolError(f"{what} of MQTT 3.1.1 cannot say a reason; MQTT 5 can")


_CONNECT_RETURN_CODES = frozenset(int(code) for code in ConnectReturnCode)
_SUBACK_CODES = frozenset((0, 1, 2, SUBSCRIPTION_FAILED))


def qos_fault(what: str, qos: int) -> str:
    """Describe the fault of a QoS that there is not."""
    return f"{what}: QoS is 0, 1 or 2, not {qos} [MQTT-3.3.1-4]"


# --- from bytes to packets ------------------------------------------------------------------


def decode(first_byte: int, body: bytes) -> Packet:
    """Decode one packet from its first byte and its body, which follows the remaining length.

    Raises:
        UnacceptableConnectError: if a CONNECT must be refused with a return code.
        RemoteProtocolError: if the packet is malformed in any other way.
    """
    if first_byte not in FIRST_BYTES:
        raise RemoteProtocolError(first_byte_fault(first_byte))
    return DECODERS[first_byte >> 4](first_byte, body)


def connect_level(body: bytes) -> int | None:
    """Return the protocol level that the body of a CONNECT asks for; None if it is not MQTT.

    The level decides the format of the rest of the packet (section 3.1.2.2).
    """
    return body[6] if len(body) > 6 and body.startswith(b"\0\4MQTT") else None


def _decode_publish(first_byte: int, body: bytes) -> Publish:
    if len(body) < 2:
        raise RemoteProtocolError("PUBLISH ends before its topic name [MQTT-3.3.2-1]")
    at = 2 + (body[0] << 8 | body[1])
    if at > len(body):
        raise RemoteProtocolError("PUBLISH ends in the middle of its topic name [MQTT-3.3.2-1]")
    topic = _topic_name(body[2:at])
    qos = first_byte >> 1 & 3
    packet_id = 0
    if qos:
        if len(body) < at + 2:
            raise RemoteProtocolError(
                f"PUBLISH of QoS {qos} ends before its packet identifier [MQTT-2.3.1-1]"
            )
        packet_id = body[at] << 8 | body[at + 1]
        at += 2
        if packet_id == 0:
            raise _FIELDS.no_identifier(f"PUBLISH of QoS {qos}")
    return Publish(topic, body[at:], qos, bool(first_byte & 1), bool(first_byte & 8), packet_id)


@lru_cache(maxsize=CACHED_TOPICS)
def _topic_name(encoded: bytes) -> str:
    """Decode a topic name, once for all messages on it."""
    try:
        topic = encoded.decode()
    except UnicodeDecodeError as exc:
        raise _FIELDS.ill_formed("PUBLISH: its topic name", exc, "[MQTT-3.3.2-1]") from None
    if "\0" in topic:
        raise RemoteProtocolError("PUBLISH: its topic name contains U+0000 [MQTT-1.5.3-2]")
    if fault := topic_name_fault(topic):
        raise RemoteProtocolError(f"PUBLISH: {fault}")
    return topic


def _decode_connect(first_byte: int, body: bytes) -> Connect:
    reader = Reader(_FIELDS, Connect.kind, body)
    name = reader.binary("protocol name", "[MQTT-3.1.2-1]")
    if name not in _PROTOCOLS:
        raise RemoteProtocolError(
            f"CONNECT names the protocol {name[:32]!r}, not b'MQTT' [MQTT-3.1.2-1]"
        )
    level = reader.byte("protocol level", "(section 3.1.2.2)")
    # The rest is in the format of another version: do not read it.
    if level & ~BRIDGE_LEVEL != _PROTOCOLS[name]:
        raise UnacceptableConnectError(
            f"CONNECT asks for protocol {name.decode()} level {level}; this server speaks MQTT "
            f"levels {PROTOCOL_LEVEL} (MQTT 3.1.1) and 5, and {PROTOCOL_NAME_31} level "
            f"{PROTOCOL_LEVEL_31} (MQTT 3.1) [MQTT-3.1.2-2]",
            ConnectReturnCode.UNACCEPTABLE_PROTOCOL_LEVEL,
        )
    flags = reader.byte("connect flags", "(section 3.1.2.3)")
    if fault := will_flags_fault(flags, _WILL_STATEMENTS):
        raise RemoteProtocolError(fault)
    if flags & 0x40 and not flags & 0x80:
        raise RemoteProtocolError("CONNECT has a password but no user name [MQTT-3.1.2-22]")
    keep_alive = reader.uint16("keep alive", "(section 3.1.2.10)")
    client_id = reader.string("client identifier", "[MQTT-3.1.3-3]", "[MQTT-3.1.3-4]")
    will = None
    if flags & 4:
        topic = reader.string("will topic", "[MQTT-3.1.2-9]", "[MQTT-3.1.3-10]")
        if fault := topic_name_fault(topic):
            raise RemoteProtocolError(f"CONNECT: will: {fault}")
        payload = reader.binary("will message", "[MQTT-3.1.2-9]")
        will = Will(topic, payload, flags >> 3 & 3, bool(flags & 0x20))
    username = password = None
    if flags & 0x80:
        username = reader.string("user name", "[MQTT-3.1.2-19]", "[MQTT-3.1.3-11]")
    if flags & 0x40:
        password = reader.binary("password", "[MQTT-3.1.2-21]")
    reader.finish("[MQTT-3.1.4-1]")
    clean_session = bool(flags & 2)
    if not client_id and not clean_session:
        raise UnacceptableConnectError(
            "CONNECT has an empty client identifier and clean session 0; name the client or set "
            "clean session [MQTT-3.1.3-8]",
            ConnectReturnCode.IDENTIFIER_REJECTED,
        )
    if not client_id and name == b"MQIsdp":
        raise UnacceptableConnectError(
            "CONNECT has an empty client identifier, which MQTT 3.1 forbids: name the client",
            ConnectReturnCode.IDENTIFIER_REJECTED,
        )
    return Connect(
        client_id,
        clean_session,
        keep_alive,
        username,
        password,
        will,
        name.decode(),
        _PROTOCOLS[name],
        bridge=level & BRIDGE_LEVEL != 0,
    )


_PROTOCOLS = {b"MQTT": PROTOCOL_LEVEL, b"MQIsdp": PROTOCOL_LEVEL_31}

_WILL_STATEMENTS = ("[MQTT-3.1.2-13]", "[MQTT-3.1.2-15]", "[MQTT-3.1.2-14]")


def will_flags_fault(flags: int, statements: tuple[str, str, str]) -> str | None:
    """Describe the fault of the connect flags; user name and password are not checked.

    Args:
        flags: the byte of flags.
        statements: those against a QoS without a will, RETAIN without a will, and a QoS of 3.
    """
    no_qos, no_retain, no_qos_3 = statements
    if flags & 1:
        return "CONNECT has its reserved flag set [MQTT-3.1.2-3]"
    if flags & 4:
        return f"CONNECT has a will QoS of 3 {no_qos_3}" if flags >> 3 & 3 == 3 else None
    if flags >> 3 & 3:
        return f"CONNECT has a will QoS but no will {no_qos}"
    return f"CONNECT has will retain but no will {no_retain}" if flags & 0x20 else None


def _decode_connack(first_byte: int, body: bytes) -> ConnAck:
    if len(body) != 2:
        raise RemoteProtocolError(f"CONNACK has {len(body)} bytes instead of 2 (section 3.2.1)")
    acknowledge_flags, return_code = body
    if acknowledge_flags & 0xFE:
        raise RemoteProtocolError(
            f"CONNACK has reserved flags {acknowledge_flags:#04x} set (section 3.2.2.1)"
        )
    if return_code not in _CONNECT_RETURN_CODES:
        raise RemoteProtocolError(
            f"CONNACK has the reserved return code {return_code} (section 3.2.2.3)"
        )
    if acknowledge_flags and return_code:
        raise RemoteProtocolError("CONNACK refuses and says session present [MQTT-3.2.2-4]")
    return ConnAck(bool(acknowledge_flags), return_code)


def _acknowledgement_decoder(
    make: Callable[[int], Acknowledgement | UnsubAck], name: str
) -> Callable[[int, bytes], Acknowledgement | UnsubAck]:
    def decode_acknowledgement(first_byte: int, body: bytes) -> Acknowledgement | UnsubAck:
        if len(body) != 2:
            raise RemoteProtocolError(
                f"{name} has {len(body)} bytes instead of 2, the packet identifier [MQTT-2.3.1-6]"
            )
        packet_id = body[0] << 8 | body[1]
        if packet_id == 0:
            raise RemoteProtocolError(f"{name} has packet identifier 0 [MQTT-2.3.1-1]")
        return make(packet_id)

    return decode_acknowledgement


def _decode_subscribe(first_byte: int, body: bytes) -> Subscribe:
    reader = Reader(_FIELDS, Subscribe.kind, body)
    packet_id = reader.packet_id("[MQTT-2.3.1-1]")
    filters: list[tuple[str, int]] = []
    while not reader.at_end:
        topic_filter = reader.topic_filter("[MQTT-3.8.3-1]")
        qos = reader.byte("requested QoS", "[MQTT-3.8.3-3]")
        if qos > 2:
            raise RemoteProtocolError(
                f"SUBSCRIBE asks for QoS {qos:#04x}; it is 0, 1 or 2 and the other bits are "
                "reserved [MQTT-3.8.3-4]"
            )
        filters.append((topic_filter, qos))
    if not filters:
        raise RemoteProtocolError("SUBSCRIBE has no topic filter [MQTT-3.8.3-3]")
    return Subscribe(packet_id, tuple(filters))


def _decode_suback(first_byte: int, body: bytes) -> SubAck:
    reader = Reader(_FIELDS, SubAck.kind, body)
    packet_id = reader.packet_id("[MQTT-2.3.1-1]")
    return_codes = tuple(body[2:])
    if not return_codes:
        raise RemoteProtocolError("SUBACK has no return code [MQTT-3.8.4-5]")
    if not _SUBACK_CODES.issuperset(return_codes):
        raise RemoteProtocolError("SUBACK has a reserved return code [MQTT-3.9.3-2]")
    return SubAck(packet_id, return_codes)


def _decode_unsubscribe(first_byte: int, body: bytes) -> Unsubscribe:
    reader = Reader(_FIELDS, Unsubscribe.kind, body)
    packet_id = reader.packet_id("[MQTT-2.3.1-1]")
    filters: list[str] = []
    while not reader.at_end:
        filters.append(reader.topic_filter("[MQTT-3.10.3-1]"))
    if not filters:
        raise RemoteProtocolError("UNSUBSCRIBE has no topic filter [MQTT-3.10.3-2]")
    return Unsubscribe(packet_id, tuple(filters))


def empty_decoder(
    packet: PingReq | PingResp | Disconnect, fields: Fields
) -> Callable[[int, bytes], Packet]:
    """Return the decoder of a packet that consists of its fixed header."""

    def decode_empty(first_byte: int, body: bytes) -> Packet:
        if body:
            raise fields.malformed(
                f"{KIND_NAMES[packet.kind]} has {len(body)} bytes after its fixed header; "
                f"it has none (section 3.{packet.kind})"
            )
        return packet

    return decode_empty


# `Any` would be the honest parameter type: each function takes the one class of its place.
ENCODERS: tuple[Callable[..., bytes], ...] = (
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
    _refuse_auth,
)

DECODERS: dict[int, Callable[[int, bytes], Packet]] = {
    1: _decode_connect,
    2: _decode_connack,
    3: _decode_publish,
    4: _acknowledgement_decoder(PubAck, "PUBACK"),
    5: _acknowledgement_decoder(PubRec, "PUBREC"),
    6: _acknowledgement_decoder(PubRel, "PUBREL"),
    7: _acknowledgement_decoder(PubComp, "PUBCOMP"),
    8: _decode_subscribe,
    9: _decode_suback,
    10: _decode_unsubscribe,
    11: _acknowledgement_decoder(UnsubAck, "UNSUBACK"),
    12: empty_decoder(PingReq(), _FIELDS),
    13: empty_decoder(PingResp(), _FIELDS),
    14: empty_decoder(Disconnect(), _FIELDS),
}
