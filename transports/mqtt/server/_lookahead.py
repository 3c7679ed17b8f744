"""The input of a throttled connection: scanned once, and kept until its turn (rule 10).

Packets that may overtake are taken out as they come. The rest is kept in pieces that end where a
packet ends, so neither a read nor a wait touches older input again.
"""

from __future__ import annotations

from collections import deque

from ..._errors import RemoteProtocolError
from ..codec._frames import find_frame
from ._runs import is_disconnect, take_acknowledgements

PIECE_BYTES = 32 << 10
"""Smaller pieces are joined, because each read may be one packet of a few bytes."""


class Lookahead:
    """The unparsed input of a connection that waits, or has waited.

    Args:
        reasons: whether it is MQTT 5; see `take_acknowledgements`.

    Attributes:
        size: bytes of input kept here.
    """

    __slots__ = (
        "_missing", "_passed", "_pieces", "_reasons", "_stopped", "_tail", "_taken_up", "_whole",
        "size",
    )  # fmt: skip

    def __init__(self, *, reasons: bool = False) -> None:
        self.size = 0
        self._reasons = reasons
        # `_pieces` are whole packets. `_tail` begins with `_whole` bytes of more whole packets; the
        # rest of it is not scanned yet.
        self._pieces: deque[bytes] = deque()
        self._tail = bytearray()
        self._whole = 0
        # The bytes that the first unscanned packet still lacks, as far as that is known; and
        # whether nothing may overtake that packet.
        self._missing = 0
        self._stopped = False
        # The bytes handed on; and by packet identifier, the starts of QoS 2 publications, counted
        # from the first byte ever kept.
        self._taken_up = 0
        self._passed: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<Lookahead: {self.size} bytes>"

    @property
    def has_whole_packets(self) -> bool:
        """Whether it keeps whole packets that may be handled."""
        return bool(self._pieces or self._whole)

    @property
    def begins_with_disconnect(self) -> bool:
        """Whether its first packet is a DISCONNECT that has come as a whole."""
        return not self.has_whole_packets and is_disconnect(self._tail, 0)

    def add(self, data: bytes, unhandled: int = 0) -> list[tuple[int, int]]:
        """Keep new input, except for packets that overtake.

        The time it takes is proportional to `data`; and, once, to a packet that it completes.

        Args:
            data: the new input.
            unhandled: bytes handed on that have not been handled yet.

        Returns:
            (first byte, packet identifier or 0) of each packet that overtakes.
        """
        tail = self._tail
        if self._stopped or self._missing > len(data):
            tail += data
            self._missing -= len(data)
            self.size += len(data)
            return []
        begun = bytes(tail[self._whole :])
        del tail[self._whole :]
        self.size -= len(begun)
        taken, kept, looked_at = take_acknowledgements(
            begun + data,
            passed=self._passed,
            origin=self._taken_up + self.size,
            handled=self._taken_up - unhandled,
            reasons=self._reasons,
        )
        self.size += len(kept)
        self._look_at_next(kept, looked_at)
        if looked_at >= PIECE_BYTES:
            self._cut()
            self._pieces.append(kept[:looked_at])
            self._tail += kept[looked_at:]
        else:
            tail += kept
            self._whole += looked_at
            if self._whole >= PIECE_BYTES:
                self._cut()
        return taken

    def take_up(self) -> bytes:
        """Return the next whole packets to parse; b"" if none are left."""
        if not self._pieces:
            self._cut()
        if not self._pieces:
            return b""
        piece = self._pieces.popleft()
        self.size -= len(piece)
        self._taken_up += len(piece)
        return piece

    def take_rest(self) -> bytes:
        """Return the last input, incomplete or to be refused, when nothing else is left."""
        rest = bytes(self._tail)
        self._tail = bytearray()
        self.size = 0
        return rest

    def _look_at_next(self, kept: bytes, position: int) -> None:
        """Note why the packet at `position` was not scanned."""
        self._missing = 0
        try:
            frame = find_frame(kept, position)
        except RemoteProtocolError:
            self._stopped = True  # the parser raises it in its turn
            return
        if frame is not None:
            self._missing = max(0, frame[1] - len(kept))
            self._stopped = not self._missing

    def _cut(self) -> None:
        """Make a piece of the whole packets at the end."""
        if self._whole:
            self._pieces.append(bytes(memoryview(self._tail)[: self._whole]))
            self._tail = self._tail[self._whole :]
            self._whole = 0
