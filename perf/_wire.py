"""Frequent MQTT packets for a load generator: many, mostly alike, each looked at once.

`clearfunds.transports.mqtt` has all others.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from ..transports import RemoteProtocolError
from ..transports.mqtt import encode_remaining_length
from ..transports.mqtt.codec._frames import PUBLISH, find_frame

_ID: Final = struct.Struct(">H")


def acknowledgement(first: int, packet_id: int) -> bytes:
    """Encode a PUBACK, PUBREC, PUBREL or PUBCOMP, by its first byte.

    With MQTT 5, too: a plain success needs no reason code (section 3.4.2.1).
    """
    return bytes((first, 2)) + _ID.pack(packet_id)


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

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Yield the first byte of each whole packet, and the beginning and end of its body.

        The body stays in `buffer`.

        Raises:
            RemoteProtocolError: The bytes are not MQTT.
        """
        buffer = self.buffer
        size, at = len(buffer), self.at
        while (found := find_frame(buffer, at)) is not None:
            body, end = found
            if end > size:
                return
            first = buffer[at]
            self.at = at = end
            yield first, body, end


def short_at(buffer: bytes, at: int, end: int) -> int:
    """Return a two-byte integer: a packet identifier, or the length of a topic.

    Raises:
        RemoteProtocolError: The packet, which ends at `end`, is too short.
    """
    if end - at < 2:
        raise cut_off()
    return buffer[at] << 8 | buffer[at + 1]


def cut_off() -> RemoteProtocolError:
    """Return the error for a packet whose fields go beyond its length."""
    return RemoteProtocolError("the server sent a packet that ends before its fields do")


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
        self._first = bytes((PUBLISH | qos << 1,))

    def frame(self, topic: int, packet_id: int, header: bytes, filler: bytes) -> bytes:
        """Return a PUBLISH; `packet_id` is not used with QoS 0."""
        name = self._names[topic]
        if self._qos:
            name += _ID.pack(packet_id)
        name += self._properties
        length = len(name) + len(header) + len(filler)
        return b"".join((self._first, encode_remaining_length(length), name, header, filler))
