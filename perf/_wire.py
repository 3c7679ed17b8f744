"""Frequent MQTT packets for a load generator: many, mostly alike, each looked at once.

`clearfunds.transports.mqtt` has all others.
"""

from __future__ import annotations

import struct
from typing import Final

from ..transports.mqtt import encode_remaining_length
from ._errors import PerfError

PUBLISH: Final = 3
PUBACK: Final = 4
PUBREC: Final = 5
PUBREL: Final = 6
PUBCOMP: Final = 7
DISCONNECT: Final = 14
"""A server sends it with MQTT 5 only."""

_ID: Final = struct.Struct(">H")


def acknowledgement(kind: int, packet_id: int) -> bytes:
    """Encode a PUBACK, PUBREC, PUBREL or PUBCOMP.

    With MQTT 5, too: a plain success needs no reason code (section 3.4.2.1).
    """
    return bytes((kind << 4 | (2 if kind == PUBREL else 0), 2)) + _ID.pack(packet_id)


class Packets:
    """Cuts a stream into packets. Iterate after each `feed`."""

    __slots__ = ("at", "buffer")

    def __init__(self) -> None:
        self.buffer = b""
        self.at = 0

    def feed(self, data: bytes) -> None:
        """Take bytes that were read."""
        self.buffer = self.buffer[self.at :] + data if self.at < len(self.buffer) else data
        self.at = 0

    @property
    def has_begun(self) -> bool:
        """Whether it has bytes of a packet, or more."""
        return self.at < len(self.buffer)

    def next(self) -> tuple[int, int, int] | None:
        """Return the first byte of the next packet, and the beginning and end of its body.

        None until it is complete. The body stays in `buffer`.

        Raises:
            PerfError: The bytes are not MQTT.
        """
        buffer, at = self.buffer, self.at
        size = len(buffer)
        if at + 2 > size:
            return None
        length = buffer[at + 1]
        body = at + 2
        if length >= 128:
            length &= 127
            for shift in (7, 14, 21, 28):
                if shift == 28:
                    raise PerfError("the server sent something that is not MQTT")
                if body >= size:
                    return None
                byte = buffer[body]
                body += 1
                length |= (byte & 127) << shift
                if byte < 128:
                    break
        end = body + length
        if end > size:
            return None
        self.at = end
        return buffer[at], body, end


def short_at(buffer: bytes, at: int, end: int) -> int:
    """Return a two-byte integer: a packet identifier, or the length of a topic.

    Raises:
        PerfError: The packet, which ends at `end`, is too short.
    """
    if end - at < 2:
        raise cut_off()
    return buffer[at] << 8 | buffer[at + 1]


def number_at(buffer: bytes, at: int, end: int) -> tuple[int, int]:
    """Return a variable byte integer, and the place after it (MQTT 5, section 1.5.5).

    Raises:
        PerfError: It is malformed, or the packet, which ends at `end`, is too short.
    """
    value = 0
    for shift in (0, 7, 14, 21):
        if at >= end:
            raise cut_off()
        byte = buffer[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise PerfError("the server sent a length of more than four bytes [MQTT-1.5.5-1]")


def cut_off() -> PerfError:
    """Return the error for a packet whose fields go beyond its length."""
    return PerfError("the server sent a packet that ends before its fields do")


class Publications:
    """Makes the packets of one publisher.

    Args:
        topics: Its topics, used in turn.
        qos: 0, 1 or 2.
        properties: Whether the packets have an (empty) property field, as in MQTT 5.
    """

    __slots__ = ("_first", "_names", "_properties", "_qos")

    def __init__(self, topics: list[str], qos: int, *, properties: bool = False) -> None:
        self._names = [_ID.pack(len(t)) + t for t in (topic.encode() for topic in topics)]
        self._qos = qos
        self._properties = b"\x00" if properties else b""
        self._first = bytes((PUBLISH << 4 | qos << 1,))

    def frame(self, topic: int, packet_id: int, header: bytes, filler: bytes) -> bytes:
        """Return a PUBLISH; `packet_id` is not used with QoS 0."""
        name = self._names[topic]
        if self._qos:
            name += _ID.pack(packet_id)
        name += self._properties
        length = len(name) + len(header) + len(filler)
        return b"".join((self._first, encode_remaining_length(length), name, header, filler))
