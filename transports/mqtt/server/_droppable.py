"""The output to an MQTT client that may be dropped: QoS 0 publications."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ..._backlog_messages import Frame
from ..codec._frames import PUBLISH, RETAIN, body_of


class QosZero:
    """Finds droppable messages in output, as `.._backlog_messages.Framing`.

    The key of a frame is its topic, in UTF-8 as it stands there. Publications with a higher QoS are
    not the outlet's: an acknowledgement ends them. A retained message for a new subscriber is a
    value of its topic like any other.
    """

    __slots__ = ()

    @staticmethod
    def may_drop(chunk: bytes) -> bool:
        # A server's own packets never begin with the type PUBLISH.
        return chunk[0] | RETAIN == PUBLISH | RETAIN

    @staticmethod
    def frames(chunk: bytes, start: int = 0) -> Iterator[Frame]:
        end = len(chunk)
        while start < end:
            at, stop = body_of(chunk, start)
            yield chunk[at + 2 : at + 2 + (chunk[at] << 8 | chunk[at + 1])], start, stop, 1
            start = stop


def packets_of(chunk: bytes) -> list[bytes]:
    """Split a chunk of whole packets."""
    return [chunk[start:end] for _, start, end, _ in QosZero.frames(chunk)]


def with_packet_id(packet: bytes, packet_id: int) -> bytes:
    """Return a PUBLISH with QoS 1 or 2 with another packet identifier."""
    at, _ = body_of(packet, 0)
    at += 2 + (packet[at] << 8 | packet[at + 1])
    return b"".join((packet[:at], packet_id.to_bytes(2, "big"), packet[at + 2 :]))


QOS_ZERO: Final = QosZero()
"""The one instance needed."""
