"""A queued message as bytes: a header, and separately the payload, unchanged.

The header: one byte each of version, flags, QoS and tag; the number, size and times; the topic; if
the publication itself expires, when (a double: the queue's own time to live may be over sooner); if
it has properties (MQTT 5), these, with their length in front (u32); and if the message has been
dead-lettered, the queue and the reason, as JSON.

Version 2 is a message of AMQP. Instead of the QoS is whether it is persistent, and instead of the
topic the exchange. Behind that come the priority (u8), the number of routing keys (u16) and each of
them, with its length in front (u16); then the rest as above: how long it may wait, in seconds (a
double), if there is a limit; its properties; its deaths.
"""

from __future__ import annotations

import json
import struct
from typing import Any

from ..dataspace import Publication
from ..dataspace.exchanges import Message as AmqpMessage
from ..dataspace.queues import Death, DeathReason, Message

VERSION = 1

AMQP_VERSION = 2

HIGHEST_QOS = 2

_FIXED = struct.Struct(">BBbbIddH")
"""Version, flags, QoS, tag (-1: none), size, enqueued, expires, length of the topic."""

_PERSISTENT = 1
_RETAIN = 2
_EXPIRES = 4
# Older versions wrote none of these flags, and none of their fields in the header.
_WAS_RETAINED = 8
_EVENT_EXPIRES = 16
_PROPERTIES = 32

_DOUBLE = struct.Struct(">d")
_LENGTH = struct.Struct(">I")
_KEYS = struct.Struct(">BH")
"""Priority, number of routing keys."""
_KEY = struct.Struct(">H")

_BYTES_AS_TEXT = "surrogateescape"
"""Names and keys of AMQP are bytes, which need not be UTF-8; Python's way to have them in texts."""


class UnstorableError(ValueError):
    """Something that cannot be stored on disk, or bytes that are not a message."""


def encode(message: Message) -> tuple[bytes, bytes]:
    """Return the header and the payload of a message.

    Raises:
        UnstorableError: If its event is neither a `Publication` nor a message of AMQP: only those
            have an encoding.
    """
    event: Any = message.event
    if isinstance(event, Publication):
        return _encode_publication(message, event), event.payload
    if isinstance(event, AmqpMessage):
        return _encode_amqp(message, event), event.body
    msg = f"only publications and messages of AMQP can be queued on disk, not {event!r}"
    raise UnstorableError(msg)


def _encode_publication(message: Message, event: Publication) -> bytes:
    flags = _RETAIN * event.retain
    more = b""
    if event.was_retained:
        flags |= _WAS_RETAINED
    if event.expires is not None:
        flags |= _EVENT_EXPIRES
        more = _DOUBLE.pack(event.expires)
    if event.properties:
        flags |= _PROPERTIES
        more += _LENGTH.pack(len(event.properties)) + event.properties
    return _header(message, VERSION, flags, event.qos, event.topic.encode(), more)


def _encode_amqp(message: Message, event: AmqpMessage) -> bytes:
    flags = 0
    more = _KEYS.pack(event.priority, 1 + len(event.more_keys))
    for key in (event.routing_key, *event.more_keys):
        encoded = key.encode(errors=_BYTES_AS_TEXT)
        more += _KEY.pack(len(encoded)) + encoded
    if event.expiration is not None:
        flags |= _EVENT_EXPIRES
        more += _DOUBLE.pack(event.expiration)
    if event.properties:
        flags |= _PROPERTIES
        more += _LENGTH.pack(len(event.properties)) + event.properties
    exchange = event.exchange.encode(errors=_BYTES_AS_TEXT)
    return _header(message, AMQP_VERSION, flags, int(event.persistent), exchange, more)


def _header(
    message: Message, version: int, flags: int, qos: int, topic: bytes, more: bytes
) -> bytes:
    expires = message.expires
    fixed = _FIXED.pack(
        version,
        flags | _PERSISTENT * message.persistent | _EXPIRES * (expires is not None),
        qos,
        -1 if message.tag is None else message.tag,
        message.size,
        message.enqueued,
        0.0 if expires is None else expires,
        len(topic),
    )
    deaths = b""
    if message.deaths:
        rows = [[d.queue, str(d.reason), d.time, d.count] for d in message.deaths]
        deaths = json.dumps(rows, separators=(",", ":")).encode()
    return fixed + topic + more + deaths


def decode(seq: int, header: bytes, payload: bytes) -> Message:
    """Return the message of a header and a payload, in the state after reading it from a shelf.

    Raises:
        UnstorableError: If the header is malformed, or of a later version.
    """
    try:
        version, flags, qos, tag, size, enqueued, expires, length = _FIXED.unpack_from(header)
        if version not in (VERSION, AMQP_VERSION):
            msg = (
                f"message {seq} is of version {version}; this is for versions up to {AMQP_VERSION}"
            )
            raise UnstorableError(msg)
        if not 0 <= qos <= HIGHEST_QOS:
            raise ValueError(f"there is no QoS {qos}")
        end = _FIXED.size + length
        name = header[_FIXED.size : end]
        priority = 0
        keys: list[str] = []
        if version == AMQP_VERSION:
            priority, keys, end = _decode_keys(header, end)
        event_expires: float | None = None
        properties = b""
        if flags & _EVENT_EXPIRES:
            (event_expires,) = _DOUBLE.unpack_from(header, end)
            end += _DOUBLE.size
        if flags & _PROPERTIES:
            (length,) = _LENGTH.unpack_from(header, end)
            start, end = end + _LENGTH.size, end + _LENGTH.size + length
            properties = header[start:end]
            if len(properties) < length:
                raise ValueError(f"{len(properties)} of {length} bytes of properties")
        deaths: list[Death] = []
        if end < len(header):
            deaths = [
                Death(queue, DeathReason(reason), time, count)
                for queue, reason, time, count in json.loads(header[end:])
            ]
        event: Publication | AmqpMessage
        if version == AMQP_VERSION:
            event = AmqpMessage(
                name.decode(errors=_BYTES_AS_TEXT),
                keys[0],
                properties,
                payload,
                persistent=bool(qos),
                expiration=event_expires,
                priority=priority,
                more_keys=tuple(keys[1:]),
            )
        else:
            event = Publication(
                name.decode(),
                payload,
                qos,
                bool(flags & _RETAIN),
                properties,
                event_expires,
                bool(flags & _WAS_RETAINED),
            )
    except UnstorableError:
        raise
    except (struct.error, UnicodeDecodeError, ValueError, TypeError) as exc:
        msg = f"message {seq} has a malformed header: {exc}"
        raise UnstorableError(msg) from exc
    return Message(
        seq=seq,
        event=event,
        size=size,
        persistent=bool(flags & _PERSISTENT),
        enqueued=enqueued,
        expires=expires if flags & _EXPIRES else None,
        tag=None if tag < 0 else tag,
        deaths=tuple(deaths),
        ticket=0,
        at_rest=True,
    )


def _decode_keys(header: bytes, at: int) -> tuple[int, list[str], int]:
    """Return the priority and the routing keys of a message of AMQP, and the place behind them."""
    priority, count = _KEYS.unpack_from(header, at)
    if not count:
        raise ValueError("it has no routing key")
    at += _KEYS.size
    keys: list[str] = []
    for _ in range(count):
        (length,) = _KEY.unpack_from(header, at)
        start, at = at + _KEY.size, at + _KEY.size + length
        if at > len(header):
            raise ValueError(f"a routing key of {length} bytes is cut off")
        keys.append(header[start:at].decode(errors=_BYTES_AS_TEXT))
    return priority, keys, at
