"""A socket whose output is sent in binary messages [RFC 6455 section 5].

For a protocol that is a stream of bytes, wherever messages begin and end (MQTT 3.1.1, section 6).
It is used like any non-blocking socket: each `send` returns how many bytes it has taken, and the
caller passes the rest again.

Rules of this file:
1. A message has as many bytes as there were to send when it began, at most `MESSAGE_BYTES`. Those
   are the first bytes of later sends: bytes that were taken are not passed again.
2. A control frame is sent between two messages; of several that wait, the last.
3. This object buffers at most the rest of a header or of a control frame that has begun, and one
   control frame (or the answer to a handshake, with a pong): 400 bytes, which are charged to
   nobody. A peer that does not read cannot make them more.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ...sockets._layer import Layer, would_block
from ._frames import binary_header

if TYPE_CHECKING:
    from ...sockets._layer import Connected

MESSAGE_BYTES: Final = 16 << 10
"""The largest message. A peer that takes whole messages only, such as a browser's script, should
not wait long on a slow line: at 100 kB a second, a sixth of a second."""


class MessageSocket(Layer):
    """See this file's docstring.

    Args:
        below: A connected, non-blocking socket; taken over, and not to be used elsewhere.
    """

    __slots__ = ("_begun", "_control", "_left")

    def __init__(self, below: Connected) -> None:
        super().__init__(below)
        # To be sent before anything else: the rest of a control frame, or of a header.
        self._begun = b""
        # Bytes that the message that has begun still needs.
        self._left = 0
        # To be sent before the next message begins.
        self._control = b""

    @property
    def between_messages(self) -> bool:
        """Whether no message or frame is incomplete."""
        return not (self._left or self._begun)

    def send(self, data: Any, /) -> int:
        """Send some of `data`, in the message that has begun or in new messages.

        Returns:
            How many bytes of it have been taken.

        Raises:
            BlockingIOError: Nothing of it has been taken.
            OSError: From the socket.
        """
        size = len(data)
        if size <= MESSAGE_BYTES:
            return self._send_some(data)
        rest = memoryview(data)
        taken = 0
        while taken < size:
            try:
                taken += self._send_some(rest[taken : taken + MESSAGE_BYTES])
            except BlockingIOError:
                if not taken:
                    raise
                break
            if not self.between_messages:
                break
        return taken

    def _send_some(self, data: Any) -> int:
        if self._left:
            control = b""
            before = self._begun
            size = self._left
            given = data if len(data) <= size else memoryview(data)[:size]
        else:
            control = self._begun + self._control
            size = len(data)
            before = control + binary_header(size)
            given = data
        sent = self._below.send(before + given if before else given)
        if not self._left:
            if sent <= len(control):
                # No message has begun.
                self._note_control(sent)
                raise would_block()
            self._control = b""
        self._begun = before[sent:]
        taken = max(0, sent - len(before))
        self._left = size - taken
        if not taken:
            raise would_block()
        if self._control and not self._left:
            self.send_control()
        return taken

    def send_control(self, frame: bytes = b"") -> None:
        """Send a control frame as soon as possible, in place of one that waits; or try again.

        A frame that cannot be sent now is sent with the next message, or at the next call.

        Raises:
            OSError: From the socket, except for BlockingIOError.
        """
        if frame:
            self._control = frame
        if self._left:
            return
        waiting = self._begun + self._control
        if waiting:
            with suppress(BlockingIOError):
                self._note_control(self._below.send(waiting))

    def _note_control(self, sent: int) -> None:
        """Note that `sent` bytes of the frame between two messages were sent."""
        begun = len(self._begun)
        if sent > begun:
            self._begun, self._control = self._control[sent - begun :], b""
        else:
            self._begun = self._begun[sent:]
