"""The properties of messages: AMQP's flags and list, of which the relay knows a few.

They are handed on as they came. What is read: whether a message is persistent, its priority, its
expiration, whom it claims to be from, and where answers go; the header table only where a headers
exchange, a dead letter or the way to MQTT needs it.

Source: AMQP 0-9-1, section 4.2.6.1, and the class basic.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

import attrs

from ...dataspace import Publication
from ...dataspace.exchanges import Message, key_of, topic_of
from ...dataspace.exchanges._arguments import MAX_MILLISECONDS
from .._errors import RemoteProtocolError
from ..mqtt.codec._properties import NO_PROPERTIES as NO_MQTT_PROPERTIES
from ..mqtt.codec._properties import Properties as MqttProperties
from ..mqtt.codec._properties import application_properties, decode_properties, variable_int
from ._direct_replies import DIRECT
from ._field_tables import NAMES, MalformedError, fields_of, read_table, short_string, write_field

NO_PROPERTIES: Final = b"\0\0"
"""No flag is set."""

CONTENT_TYPE: Final = 15
HEADERS: Final = 13
DELIVERY_MODE: Final = 12
PRIORITY: Final = 11
CORRELATION_ID: Final = 10
REPLY_TO: Final = 9
EXPIRATION: Final = 8
USER_ID: Final = 4

TRANSIENT: Final = 1
PERSISTENT: Final = 2
"""The delivery mode of messages that survive a restart."""

_TABLE: Final = 4
_OCTET: Final = 1
_TIME: Final = 8
_TEXT: Final = 0

_KINDS: Final = tuple(
    (bit, {HEADERS: _TABLE, DELIVERY_MODE: _OCTET, PRIORITY: _OCTET, 6: _TIME}.get(bit, _TEXT))
    for bit in range(15, 1, -1)
)
"""The properties in their order, by the bits of their flags."""

_UNUSED: Final = 0b11
"""The last flag announces another word of flags, which the class basic has not; nor the last but
one."""

_LENGTH: Final = struct.Struct(">I")

MILLISECONDS: Final = 1_000

MAX_FACTS: Final = 256
"""Properties whose facts one connection remembers."""

FACTS_BYTES: Final = 64
"""Longer properties differ from message to message, mostly."""

PUBLISH: Final = 3
"""The kind of MQTT packet whose properties are converted."""

Spans = dict[int, tuple[int, int]]


@attrs.frozen(slots=True)
class Facts:
    """The properties of a message that the relay heeds."""

    persistent: bool = False
    """Its delivery mode is 2."""
    priority: int = 0
    expiration: float | None = None
    """Seconds."""
    fault: str | None = None
    """The reason why RabbitMQ would not take such a message, in its words."""
    reply_to: str | None = None
    """Only if it is that of direct replies."""
    user_id: str | None = None


PLAIN: Final = Facts()


def spans_of(properties: bytes) -> Spans:
    """Return the places of the properties that are there, each without its length, by their bits.

    Raises:
        MalformedError: If they are not what their flags say.
    """
    end = len(properties)
    if end < 2:
        raise MalformedError("a content header ends within its property flags")
    flags = properties[0] << 8 | properties[1]
    if flags & _UNUSED:
        raise MalformedError(f"the class basic has no properties for the flags {flags:#06x}")
    spans: Spans = {}
    at = 2
    for bit, kind in _KINDS:
        if not flags >> bit & 1:
            continue
        if kind == _TEXT:
            start = at + 1
            at = start + properties[at] if at < end else end + 1
        elif kind == _TABLE:
            start = at + 4
            at = start + _LENGTH.unpack_from(properties, at)[0] if start <= end else end + 1
        else:
            start = at
            at += kind
        if at > end:
            raise MalformedError("a content header ends within a property")
        spans[bit] = start, at
    if at != end:
        raise MalformedError(f"a content header has {end - at} bytes behind its properties")
    return spans


def facts_of(properties: bytes) -> Facts:
    """Return what the relay heeds of a message's properties.

    Raises:
        MalformedError: If they are not what their flags say.
    """
    if properties == NO_PROPERTIES:
        return PLAIN
    spans = spans_of(properties)
    fault: str | None = None
    mode = _octet(properties, spans, DELIVERY_MODE, TRANSIENT)
    if mode not in (TRANSIENT, PERSISTENT):
        fault = f"invalid message: {{delivery_mode_unknown,{mode}}}"
    expiration: float | None = None
    text = _text(properties, spans, EXPIRATION)
    if text is not None:
        if text.isascii() and text.isdecimal() and int(text) <= MAX_MILLISECONDS:
            expiration = int(text) / MILLISECONDS
        else:
            fault = f"invalid expiration '{text}'"
    reply_to = _text(properties, spans, REPLY_TO)
    return Facts(
        persistent=mode == PERSISTENT,
        priority=_octet(properties, spans, PRIORITY, 0),
        expiration=expiration,
        fault=fault,
        reply_to=reply_to if reply_to == DIRECT else None,
        user_id=_text(properties, spans, USER_ID),
    )


def _octet(properties: bytes, spans: Spans, bit: int, without: int) -> int:
    span = spans.get(bit)
    return without if span is None else properties[span[0]]


def _text(properties: bytes, spans: Spans, bit: int) -> str | None:
    span = spans.get(bit)
    return None if span is None else properties[span[0] : span[1]].decode(errors=NAMES)


def rewritten(properties: bytes, changes: Mapping[int, bytes | None]) -> bytes:
    """Return properties of which some are others, as they stand in the list; None: taken out.

    Raises:
        MalformedError: As `spans_of`.
    """
    spans = spans_of(properties)
    flags = 0
    parts: list[bytes] = []
    for bit, kind in _KINDS:
        if bit in changes:
            value = changes[bit]
        elif bit in spans:
            start, end = spans[bit]
            value = properties[start - (kind if kind == _TABLE else kind == _TEXT) : end]
        else:
            value = None
        if value is not None:
            flags |= 1 << bit
            parts.append(value)
    return flags.to_bytes(2, "big") + b"".join(parts)


def with_reply_to(properties: bytes, reply_to: str) -> bytes:
    """Return properties with another `reply-to`."""
    return rewritten(properties, {REPLY_TO: short_string(reply_to)})


class KnownFacts:
    """Facts of properties, remembered: most messages of a publisher have the same."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[bytes, Facts] = {}

    def of(self, properties: bytes) -> Facts:
        """Return what the relay heeds; `PLAIN` itself if that is nothing.

        Raises:
            MalformedError: As `facts_of`.
        """
        facts = self._known.get(properties)
        if facts is not None:
            return facts
        facts = facts_of(properties)
        if facts == PLAIN:
            facts = PLAIN
        if len(properties) <= FACTS_BYTES:
            if len(self._known) >= MAX_FACTS:
                self._known.clear()
            self._known[properties] = facts
        return facts


class BasicProperties:
    """Reads and writes properties for a virtual host (`clearfunds.dataspace.exchanges`)."""

    def headers(self, message: Message) -> Mapping[str, object]:
        """See `Properties.headers`."""
        if message.headers is not None:
            return message.headers
        properties = message.properties
        try:
            span = spans_of(properties).get(HEADERS)
            return {} if span is None else read_table(properties, *span)
        except MalformedError:
            return {}

    def with_headers(self, message: Message, headers: Mapping[str, object]) -> Message:
        """See `Properties.with_headers`; fields that stay keep their types."""
        properties = message.properties
        try:
            span = spans_of(properties).get(HEADERS)
            before = {} if span is None else read_table(properties, *span)
            as_they_stand = {} if span is None else fields_of(properties, *span)
        except MalformedError:
            properties, before, as_they_stand = NO_PROPERTIES, {}, {}
        fields: list[bytes] = []
        for name, value in headers.items():
            if name in before and before[name] == value:
                fields.append(as_they_stand[name])
            else:
                fields.append(write_field(name, value))
        changes: dict[int, bytes | None] = {HEADERS: None}
        if headers:
            table = b"".join(fields)
            changes[HEADERS] = _LENGTH.pack(len(table)) + table
        if message.expiration is None:
            changes[EXPIRATION] = None
        return attrs.evolve(message, properties=rewritten(properties, changes), headers=None)

    def from_publication(
        self, publication: Publication, exchange: str, routing_key: str, expiration: float | None
    ) -> Message:
        """See `Properties.from_publication`."""
        changes: dict[int, bytes | None] = {}
        if publication.qos:
            changes[DELIVERY_MODE] = bytes((PERSISTENT,))
        if expiration is not None:
            changes[EXPIRATION] = short_string(str(round(expiration * MILLISECONDS)))
        said = _mqtt_properties(publication)
        if said.content_type is not None:
            _put_text(changes, CONTENT_TYPE, said.content_type)
        if said.correlation_data is not None:
            _put_text(changes, CORRELATION_ID, said.correlation_data.decode(errors=NAMES))
        if said.response_topic is not None:
            _put_text(changes, REPLY_TO, key_of(said.response_topic))
        # Of a name that repeats, the last; a field's name is short.
        fields = {
            name: write_field(name, value)
            for name, value in said.user
            if len(name.encode(errors=NAMES)) < 256
        }
        if fields:
            table = b"".join(fields.values())
            changes[HEADERS] = _LENGTH.pack(len(table)) + table
        return Message(
            exchange, routing_key,
            rewritten(NO_PROPERTIES, changes) if changes else NO_PROPERTIES,
            publication.payload,
            persistent=publication.qos > 0, expiration=expiration,
        )  # fmt: skip

    def to_publication(
        self, message: Message, topic: str, qos: int, expires: float | None
    ) -> Publication:
        """See `Properties.to_publication`. What MQTT's strings cannot be is left out."""
        properties = message.properties
        try:
            spans = {} if properties == NO_PROPERTIES else spans_of(properties)
        except MalformedError:
            spans = {}
        converted = b""
        if spans:
            correlation = spans.get(CORRELATION_ID)
            reply_to = _text(properties, spans, REPLY_TO)
            response = None if reply_to is None else topic_of(reply_to)
            content_type = _text(properties, spans, CONTENT_TYPE)
            converted = application_properties(
                MqttProperties(
                    content_type=content_type if _is_text(content_type) else None,
                    response_topic=response if _is_text(response) else None,
                    correlation_data=None
                    if correlation is None
                    else properties[correlation[0] : correlation[1]],
                    user=tuple(
                        (name, value)
                        for name, value in self.headers(message).items()
                        if isinstance(value, str) and _is_text(name) and _is_text(value)
                    ),
                )
            )
        return Publication(topic, message.body, qos, False, converted, expires)


def _put_text(changes: dict[int, bytes | None], bit: int, text: str) -> None:
    """Put a short string among properties, unless it is longer than one can be."""
    if len(text.encode(errors=NAMES)) < 256:
        changes[bit] = short_string(text)


def _mqtt_properties(publication: Publication) -> MqttProperties:
    properties = publication.properties
    if not properties:
        return NO_MQTT_PROPERTIES
    try:
        return decode_properties(variable_int(len(properties)) + properties, 0, PUBLISH)[0]
    except RemoteProtocolError:
        return NO_MQTT_PROPERTIES


MAX_MQTT_TEXT: Final = 0xFFFF


def _is_text(text: str | None) -> bool:
    """Whether a text can be a string of MQTT's."""
    if text is None or "\0" in text:
        return False
    try:
        return len(text.encode()) <= MAX_MQTT_TEXT
    except UnicodeEncodeError:
        return False
