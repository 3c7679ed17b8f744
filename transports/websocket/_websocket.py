"""One WebSocket connection, server side [RFC 6455]: bytes in, complete binary messages out.

Rules of this file:
1. `receive_data` never raises, whatever the input; a fault is in `fault`, and the messages before
   it still count.
2. How the input was split into reads changes neither the messages nor the fault.
3. Unsent output is at most the handshake's answer and one pong, 127 bytes; `_handshake.py` and
   `_frames.py` bound the input held.

    HANDSHAKE --a valid request--> established --the peer's close frame--> closed
    HANDSHAKE, established --> fault (no more input is taken)
    `close` returns our last frame in any of these, once
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from .._errors import LocalProtocolError, RemoteProtocolError
from ._frames import FrameError, FrameReader, binary_frame, close_frame, may_be_sent, pong_frame
from ._handshake import Handshake, HandshakeRefusedError

DEFAULT_MAX_HANDSHAKE_SIZE: Final = 16 << 10
"""As h11's limit for a request's head; nginx has 4 pieces of 8 KiB."""

NORMAL_CLOSURE: Final = 1000
GOING_AWAY: Final = 1001
PROTOCOL_ERROR: Final = 1002
POLICY_VIOLATION: Final = 1008
INTERNAL_ERROR: Final = 1011
"""Code to close a connection with [RFC 6455 section 7.4.1]."""


class WebSocket:
    """The server side of one connection. No I/O.

    Its session does this:

        read:   messages = ws.receive_data(data)
                send ws.outgoing(), if there is any
                handle the messages; send its own as `WebSocket.frame(...)`
                if ws.fault is not None or ws.closed: stop reading
        end:    send ws.close(...), whatever ended it: it is the HTTP error of a refused handshake,
                the answer to the peer's close frame, or a close frame of our own; nothing after it;
                shut down the sending side; go on reading until `closed`, or the end of the stream,
                or a second has passed: closed with input unread, the kernel would drop output that
                the peer has not taken yet. Some clients never close first (trio-websocket's).

    Frames may be sent only once `established`; the session limits the time that this may take.
    Handle messages before reading more: a read of 64 KiB can have 10,000 of them. All output is
    charged to an account, including pongs; but while the connection takes nothing, `outgoing` may
    be left alone, and unsent output does not grow.

    Any path is served. No extension is chosen, not even permessage-deflate, and no subprotocol but
    the one given here (a browser's script must ask for no other). Scripts on web pages may
    connect if `origins` has the page's, or else if it is of the same host. There is no TLS.

    Args:
        max_message_size: The largest message accepted, in bytes. None: messages are of any size:
            they are taken as a stream, piece by piece, and none is held.
        max_handshake_size: The largest HTTP request accepted, in bytes.
        subprotocol: The subprotocol to choose, if the client offers it.
        origins: Origins whose pages may connect, as browsers name them in `Origin`, in lower case;
            empty: the same host (`may_connect`); `*`: any. A client without an origin is not a
            page's script, and may connect.

    Attributes:
        established: Whether the opening handshake has succeeded. It stays so.
        closed: Whether the peer has sent its close frame: no more input follows.
        fault: How the peer broke the protocol, for the session to raise once it has handled the
            messages before it; no more input is taken.
    """

    frame = staticmethod(binary_frame)
    """Make the bytes of one binary message to the peer; several peers may share them."""

    __slots__ = (
        "_answer",
        "_handshake",
        "_last_word",
        "_reader",
        "_said",
        "closed",
        "established",
        "fault",
    )

    def __init__(
        self,
        *,
        max_message_size: int | None,
        max_handshake_size: int = DEFAULT_MAX_HANDSHAKE_SIZE,
        subprotocol: str | None = None,
        origins: Collection[str] = (),
    ) -> None:
        self.established = False
        self.closed = False
        self.fault: RemoteProtocolError | None = None
        self._handshake: Handshake | None = Handshake(
            max_size=max_handshake_size, subprotocol=subprotocol, origins=origins
        )
        self._reader = FrameReader(max_message_size)
        # The handshake's answer, until it is taken out.
        self._answer = b""
        # The result of `close` if this side has no choice.
        self._last_word = b""
        self._said = False

    def __repr__(self) -> str:
        if self.fault is not None:
            state = "faulty"
        elif self.closed:
            state = "closed by the peer"
        elif self._said:
            state = "closed from this side"
        else:
            state = "open" if self.established else "shaking hands"
        return f"<WebSocket {state}, {self._reader.collected_bytes} bytes of a message>"

    def receive_data(self, data: bytes) -> list[bytes]:
        """Take data that was read from the peer.

        Never raises; check `fault` and `closed` afterwards. When this side has closed already,
        messages are dropped and only the peer's close frame is looked for.

        Returns:
            The binary messages that are complete now, in order; or the available part of the
            stream.
        """
        messages: list[bytes] = []
        if self.fault is not None or self.closed or (self._said and not self.established):
            return messages
        reader = self._reader
        try:
            if self._handshake is not None:
                done = self._handshake.receive_data(data)
                if done is None:
                    return messages
                self._answer, data = done
                self._handshake = None
                self.established = True
            reader.receive_data(data, messages)
        except HandshakeRefusedError as exc:
            self._fail(exc, exc.answer)
        except FrameError as exc:
            self._fail(exc, close_frame(exc.code, str(exc)))
        if reader.close_code is not None:
            self.closed = True
            # The answer does not repeat the reason.
            self._last_word = close_frame(reader.close_code)
        return [] if self._said else messages

    @property
    def collected_bytes(self) -> int:
        """Bytes held of an incomplete message."""
        return self._reader.collected_bytes

    def drop(self) -> None:
        """Release an incomplete message, and hold nothing of later ones."""
        self._reader.stream()

    @property
    def close_code(self) -> int | None:
        """The code of the peer's close frame: 1005 if it had none; None before it."""
        return self._reader.close_code

    def outgoing(self) -> bytes:
        """Take out automatic output: the handshake's answer, a pong.

        Only the last of several pings since the last call is answered, as [RFC 6455 section 5.5.3]
        allows: a peer that sends pings and does not read makes nothing grow.
        """
        reader = self._reader
        if self._said or not (self._answer or reader.ping is not None):
            return b""
        out = self._answer
        self._answer = b""
        if reader.ping is not None:
            out += pong_frame(reader.ping)
            reader.ping = None
        return out

    def close(self, code: int = NORMAL_CLOSURE, reason: str = "") -> bytes:
        """Take out the last output, b"" if it was taken already.

        It is the output of `outgoing`, and then: for a `fault`, the close frame that names it or
        the HTTP error; for the peer's close frame, the same code in answer; during the handshake,
        nothing; otherwise, our own close frame.

        Args:
            code: The reason, if this side chooses it [RFC 6455 section 7.4].
            reason: The same for people; it is cut to 123 bytes of UTF-8.

        Raises:
            LocalProtocolError: The code is not one that may be sent.
        """
        if not may_be_sent(code):
            raise LocalProtocolError(f"{code} is not a code that a close frame may have")
        if self._said:
            return b""
        out = self.outgoing()
        self._said = True
        if self.fault is None and not self.closed and self.established:
            self._last_word = close_frame(code, reason)
        return out + self._last_word

    def _fail(self, fault: RemoteProtocolError, last_word: bytes) -> None:
        # Its traceback leads back here: otherwise only the garbage collector frees this object.
        fault.__traceback__ = fault.__context__ = fault.__cause__ = None
        self.fault = fault
        self._last_word = last_word
        self._handshake = None
        self._reader.drop()
