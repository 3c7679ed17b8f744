"""Cutting a peer's bytes into frames."""

from __future__ import annotations

from ...transports._errors import RemoteProtocolError
from ...transports._need_data import NEED_DATA, NeedDataType
from ..wire import Frame, layouts

DEFAULT_MAX_FRAME_SIZE = 64 << 10
"""Bytes of one frame from a reader: an attachment with a hundred filters of 500 bytes."""

MAX_LOGIN_BYTES = 8 << 10
"""Bytes of one frame before its peer is let in: a name, and a password, which may be a token of a
few kB."""

_REST = layouts.HEADER.size - 4
"""The part of a frame's length that is not its kind's fields."""


class FrameReader:
    """Cuts frames from bytes, however they are split.

    Args:
        max_frame_size: Larger frames are refused.
    """

    def __init__(self, max_frame_size: int = DEFAULT_MAX_FRAME_SIZE) -> None:
        self._max = max_frame_size
        self._buffer = b""
        self._position = 0
        self._returned = 0

    @property
    def unparsed_bytes(self) -> int:
        """Bytes received and not yet returned."""
        return len(self._buffer) - self._position

    @property
    def held_bytes(self) -> int:
        """Bytes received that are in memory."""
        return len(self._buffer)

    def let_go(self) -> None:
        """Release memory of frames that have been returned."""
        if self._position:
            self._buffer = self._buffer[self._position :]
            self._position = self._returned = 0

    def receive_data(self, data: bytes) -> None:
        """Take data that was read."""
        self._buffer = self._buffer[self._position :] + data if self.unparsed_bytes else data
        self._position = self._returned = 0

    def next_frame(self) -> Frame | NeedDataType:
        """Return the next complete frame.

        Raises:
            RemoteProtocolError: If it is larger than allowed, or too small for a frame.
        """
        buffer, at = self._buffer, self._position
        if len(buffer) - at < 4:
            return NEED_DATA
        length = int.from_bytes(buffer[at : at + 4], "little")
        if length < _REST or length + 4 > self._max:
            msg = (
                f"a frame of {length + 4} bytes: it has to have {layouts.HEADER.size} at least, "
                f"and {self._max} are the limit here (max_frame_size)"
            )
            raise RemoteProtocolError(msg)
        if len(buffer) - at < length + 4:
            return NEED_DATA
        _, kind, request = layouts.HEADER.unpack_from(buffer, at)
        self._returned = at
        self._position = end = at + 4 + length
        return Frame(kind, request, buffer[at + layouts.HEADER.size : end])

    def put_back(self) -> None:
        """Make the last frame returned the next one again."""
        self._position = self._returned

    def allow(self, max_frame_size: int) -> None:
        """Accept frames up to this size, too."""
        self._max = max(self._max, max_frame_size)

    def close(self) -> None:
        """Forget data that was not returned."""
        self._buffer = b""
        self._position = self._returned = 0
