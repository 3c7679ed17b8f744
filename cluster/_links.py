"""One end of a link: a client's bytes between the relay that it connected to and another one.

Rules of this file:
1. Nothing here awaits or sends: frames in, frames out.
2. What one end takes out is a prefix of what the other end put in, whatever frames are lost. A
   frame that is missing ends the link at the next one that comes.
3. An end holds at most `WINDOW_BYTES` that have come and are not taken.

Theory of operation. A link lies on two subjects of NATS, one in each direction. NATS keeps the
order of a subject, and may lose what is on it when a connection breaks. So every frame says how
many chunks its sender has sent before it: another number than have come is a gap. Every frame also
says how many bytes its sender has taken out, which makes room in the other direction.

An end that has not heard from the other one asks: sooner if it has sent something since, which may
be lost. It ends the link if no answer comes.
"""

from __future__ import annotations

import enum
import struct
from collections import deque
from typing import Final

import attrs

from ..transports import RemoteProtocolError
from ..transports._link import READ_BYTES

CHUNK_BYTES: Final = READ_BYTES
"""Bytes of one chunk at most, and taken before the other end is told: one read."""
WINDOW_BYTES: Final = 2 * CHUNK_BYTES
"""Bytes in one direction that are sent and not taken: two reads, as a connection that waits is
looked ahead at. With half of both a message costs 1.6 times the CPU, with twice as much 0.8 times.
"""
ASK_SECONDS: Final = 5.0
"""An end that has sent something asks the other one after so long a silence whether it has come."""
ASK_IDLE_SECONDS: Final = 15.0
"""The same where all is known to have come."""
SILENT_SECONDS: Final = 6.0
"""The other end has so long to answer. Longer than a lease: a relay that has gone is noticed
first."""

MAX_WHY: Final = 500
"""Characters of a reason to end a link."""

_HEAD: Final = struct.Struct(">BQQQ")
HEAD_BYTES: Final = _HEAD.size
_OPENER: Final = 0x80


class Kind(enum.IntEnum):
    """The kinds of frames."""

    DATA = 1
    """The next chunk."""
    TAKEN = 2
    """Bytes have been taken; or the answer to ASK."""
    ASK = 3
    """A question whether the other end is there."""
    END = 4
    """Nothing follows; with the reason."""


@attrs.frozen
class Frame:
    """One frame."""

    kind: Kind
    by_opener: bool
    """Whether the end sends it that has opened the link: both ends number links."""
    link: int
    """The link's number."""
    chunks: int
    """Chunks that the sender has sent before it."""
    taken: int
    """Bytes that the sender has taken out."""
    payload: bytes = b""

    def encode(self) -> bytes:
        """Return its bytes."""
        kind = self.kind | _OPENER if self.by_opener else self.kind
        return _HEAD.pack(kind, self.link, self.chunks, self.taken) + self.payload

    @classmethod
    def of(cls, data: bytes) -> Frame:
        """Decode a frame.

        Raises:
            RemoteProtocolError: It is none.
        """
        if len(data) < HEAD_BYTES:
            msg = f"{len(data)} bytes are no frame of a link"
            raise RemoteProtocolError(msg)
        kind, link, chunks, taken = _HEAD.unpack_from(data)
        try:
            known = Kind(kind & ~_OPENER)
        except ValueError as exc:
            msg = f"there is no kind {kind & ~_OPENER} of frames"
            raise RemoteProtocolError(msg) from exc
        return cls(known, bool(kind & _OPENER), link, chunks, taken, data[HEAD_BYTES:])


class LinkEnd:
    """One end of a link.

    Args:
        link: Its number.
        is_opener: Whether this is the end that has opened it.
        now: The time, in seconds.

    Attributes:
        link, is_opener: As above.
        ended: Why the other end has sent the last that it sends; None: it has not.
        has_ended: Whether this end has.
    """

    __slots__ = (
        "_arrived", "_asked_at", "_asked_first", "_asked_of", "_come", "_free", "_heard_at",
        "_inbox", "_proven", "_sent", "_sent_bytes", "_taken", "_told", "ended", "has_ended",
        "is_opener", "link",
    )  # fmt: skip

    def __init__(self, link: int, *, is_opener: bool, now: float) -> None:
        self.link = link
        self.is_opener = is_opener
        self.ended: str | None = None
        self.has_ended = False
        # Of this end: chunks and bytes sent; of those, the bytes that the other end has taken.
        self._sent = self._sent_bytes = self._free = 0
        # Of the other end: chunks and bytes that have come, taken here, and told of.
        self._come = self._arrived = self._taken = self._told = 0
        self._inbox: deque[bytes] = deque()
        self._heard_at = now
        self._asked_at: float | None = None
        self._asked_first: float | None = None
        # The chunks that it was asked for; and those that are known to have come.
        self._asked_of = self._proven = 0

    def __repr__(self) -> str:
        return f"<LinkEnd {self.link:x}: {self.under_way} bytes under way, {self.held} held>"

    @property
    def under_way(self) -> int:
        """Bytes sent that the other end has not taken, as far as it is known."""
        return self._sent_bytes - self._free

    @property
    def room(self) -> int:
        """Bytes that may be sent now."""
        return 0 if self.has_ended else WINDOW_BYTES - self.under_way

    @property
    def held(self) -> int:
        """Bytes that have come and are not taken."""
        return self._arrived - self._taken

    @property
    def has_input(self) -> bool:
        """Whether there is something to take out."""
        return bool(self._inbox)

    # -- out --------------------------------------------------------------------------------------

    def send(self, data: bytes) -> bytes:
        """Return the frame of a chunk, for which there has to be room."""
        assert 0 < len(data) <= self.room
        frame = self._frame(Kind.DATA, data)
        self._sent += 1
        self._sent_bytes += len(data)
        return frame

    def end(self, why: str) -> bytes:
        """Return the last frame."""
        self.has_ended = True
        return self._frame(Kind.END, why[:MAX_WHY].encode())

    def take(self) -> bytes:
        """Take out all that has come; b"" if there is nothing. See `took`."""
        data = b"".join(self._inbox)
        self._inbox.clear()
        return data

    def took(self, nbytes: int) -> bytes | None:
        """Note that bytes have gone on; return a frame if the other end has to be told."""
        self._taken += nbytes
        if self._taken - self._told < CHUNK_BYTES or self.has_ended:
            return None
        return self._frame(Kind.TAKEN)

    def _frame(self, kind: Kind, payload: bytes = b"") -> bytes:
        self._told = self._taken
        return Frame(kind, self.is_opener, self.link, self._sent, self._taken, payload).encode()

    # -- in ---------------------------------------------------------------------------------------

    def receive(self, frame: Frame, now: float) -> bytes | None:
        """Take a frame of the other end; return an answer, if there is one.

        Raises:
            RemoteProtocolError: Something is missing, or the other end goes beyond the window or
                its own end. The link is of no use any more.
        """
        self._heard_at = now
        if self._asked_at is not None:
            self._proven = self._asked_of
        self._asked_at = self._asked_first = None
        if frame.chunks != self._come:
            msg = f"{frame.chunks} chunks were sent, and {self._come} have come"
            raise RemoteProtocolError(msg)
        if not self._free <= frame.taken <= self._sent_bytes:
            msg = f"{frame.taken} bytes were taken, of {self._sent_bytes} that were sent"
            raise RemoteProtocolError(msg)
        self._free = frame.taken
        match frame.kind:
            case Kind.DATA:
                self._take_in(frame.payload)
            case Kind.ASK:
                return self._frame(Kind.TAKEN)
            case Kind.END:
                if self.ended is None:
                    self.ended = frame.payload.decode(errors="replace")
            case Kind.TAKEN:
                pass
        return None

    def _take_in(self, data: bytes) -> None:
        if self.ended is not None or not data:
            msg = "an empty chunk" if self.ended is None else "a chunk behind the last one"
            raise RemoteProtocolError(msg)
        if self.held + len(data) > WINDOW_BYTES:
            msg = f"{self.held + len(data)} bytes are more than the window"
            raise RemoteProtocolError(msg)
        self._come += 1
        self._arrived += len(data)
        self._inbox.append(data)

    # -- time -------------------------------------------------------------------------------------

    def doubt(self) -> None:
        """Ask at the next look: something may be missing."""
        self._heard_at = float("-inf")

    def look(self, now: float) -> bytes | None:
        """Return a question to the other end, if it is due.

        Raises:
            RemoteProtocolError: The other end has not answered for too long.
        """
        if self._asked_first is not None and now - self._asked_first >= SILENT_SECONDS:
            msg = f"no answer for {now - self._asked_first:.1f} s"
            raise RemoteProtocolError(msg)
        is_doubtful = self._proven < self._sent or self._asked_at is not None
        quiet = ASK_SECONDS if is_doubtful else ASK_IDLE_SECONDS
        if now - max(self._heard_at, self._asked_at or self._heard_at) < quiet:
            return None
        self._asked_at, self._asked_of = now, self._sent
        if self._asked_first is None:
            self._asked_first = now
        return self._frame(Kind.ASK)
