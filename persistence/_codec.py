"""A queued message as bytes: a header, and separately the payload, unchanged.

The header: one byte each of version, flags, QoS and tag; the number, size and times; the topic; if
the publication itself expires, when (a double: the queue's own time to live may be over sooner); if
it has properties (MQTT 5), these, with their length in front (u32); and if the message has been
dead-lettered, the queue and the reason, as JSON.
"""

from __future__ import annotations

import json
import struct
from typing import Any

from ..dataspace import Publication
from ..dataspace.queues import Death, DeathReason, Message

VERSION = 1

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


class UnstorableError(ValueError):
    """Something that cannot be stored on disk, or bytes that are not a message."""


def encode(message: Message) -> tuple[bytes, bytes]:
    """Return the header and the payload of a message.

    Raises:
        UnstorableError: If its event is not a `Publication`: only those have an encoding.
    """
    event: Any = message.event
    if not isinstance(event, Publication):
        msg = f"only publications can be queued on disk, not {event!r}"
        raise UnstorableError(msg)
    topic = event.topic.encode()
    expires = message.expires
    flags = (
        _PERSISTENT * message.persistent | _RETAIN * event.retain | _EXPIRES * (expires is not None)
    )
    more = b""
    if event.was_retained:
        flags |= _WAS_RETAINED
    if event.expires is not None:
        flags |= _EVENT_EXPIRES
        more = _DOUBLE.pack(event.expires)
    if event.properties:
        flags |= _PROPERTIES
        more += _LENGTH.pack(len(event.properties)) + event.properties
    fixed = _FIXED.pack(
        VERSION,
        flags,
        event.qos,
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
    return fixed + topic + more + deaths, event.payload


def decode(seq: int, header: bytes, payload: bytes) -> Message:
    """Return the message of a header and a payload, in the state after reading it from a shelf.

    Raises:
        UnstorableError: If the header is malformed, or of a later version.
    """
    try:
        version, flags, qos, tag, size, enqueued, expires, length = _FIXED.unpack_from(header)
        if version != VERSION:
            msg = f"message {seq} is of version {version}; this is for version {VERSION}"
            raise UnstorableError(msg)
        if not 0 <= qos <= HIGHEST_QOS:
            raise ValueError(f"there is no QoS {qos}")
        end = _FIXED.size + length
        topic = header[_FIXED.size : end].decode()
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
        event = Publication(
            topic,
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
