"""Droppable output to a Syndicate peer: turns that contain only messages.

Assertions are state: a peer that misses one, or its retraction, has a wrong picture until it
disconnects. Answers that the peer waits for, and references, which both sides count, must not be
lost either. These are always sent, whatever the policy says.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ...accounts import StuckPolicy
from .._backlog_messages import Frame
from .._errors import RemoteProtocolError
from ._scan import MESSAGE, SEQUENCE, Scanner, event_parts

ABLE: Final = frozenset(
    (
        StuckPolicy.WAIT,
        StuckPolicy.DISCONNECT,
        StuckPolicy.DROP_OLDEST,
        StuckPolicy.DROP_NEWEST,
    )
)
"""Slow-consumer policies possible for a Syndicate peer. Messages have no topic to conflate by, and
assertions cannot wait behind messages that are spilled to disk."""

_WHOLE_BINARY: Final = 0x82
_MASKED: Final = 0x80
"""In the second byte of a frame from a client: the relay is one on a route [RFC 6455, 5.3]."""


def _scanner() -> Scanner:
    # This process made the data: no limits are needed.
    return Scanner(max_packet_size=1 << 40, max_depth=1 << 20)


class Messages:
    """See `.._backlog_messages.Framing`. Frames have no keys.

    Attributes:
        websocket: Whether each packet is in a WebSocket message of its own.
    """

    __slots__ = ("_scanner", "websocket")

    def __init__(self, *, websocket: bool) -> None:
        self.websocket = websocket
        self._scanner = _scanner()

    def may_drop(self, chunk: bytes) -> bool:
        """See `Framing.may_drop`. A chunk is a run of messages or one turn; its start tells."""
        try:
            return self._first(chunk, 0)[1] > 0
        except (RemoteProtocolError, IndexError):
            self._scanner = _scanner()
            return False

    def frames(self, chunk: bytes, start: int = 0) -> Iterator[Frame]:
        while start < len(chunk):
            end, count = self._first(chunk, start)
            assert count, "a run of messages contains only messages"
            yield None, start, end, count
            start = end

    def _first(self, chunk: bytes, start: int) -> tuple[int, int]:
        """Return where a frame ends and its number of messages; 0 if it has other events."""
        if self.websocket:
            if chunk[start] != _WHOLE_BINARY or chunk[start + 1] & _MASKED:
                return start, 0
            start += {126: 4, 127: 10}.get(chunk[start + 1], 2)
        if chunk[start] != SEQUENCE:
            return start, 0  # in text, or not a turn
        scanner = self._scanner
        end = scanner.find_end(chunk, start)
        if end is None:
            raise RemoteProtocolError("it is incomplete")
        if scanner.embedded:
            return end, 0
        parts = event_parts(chunk, start, scanner.marks)
        if parts is None or any(part.kind != MESSAGE for part in parts):
            return end, 0
        return end, len(parts)
