"""One WebSocket connection, server side [RFC 6455]: bytes in, whole binary messages out.

Rules of this file:
1. No garbage makes `receive_data` raise anything; what is wrong is in `fault`, and what came before
   it still counts.
2. How the input was cut into pieces changes neither the messages nor the fault.
3. What waits to be sent is at most the handshake's answer and one pong, 127 bytes; what is held of
   the input is bounded as `_handshake.py` and `_frames.py` say.

    HANDSHAKE --a valid request--> established --the peer's close frame--> closed
    HANDSHAKE, established --> fault (nothing more is taken in)
    `close` has our last word in any of these, once
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from .._errors import LocalProtocolError, RemoteProtocolError
from ._frames import FrameError, FrameReader, binary_frame, close_frame, may_be_sent, pong_frame
from ._handshake import Handshake, RefusedError

DEFAULT_MAX_HANDSHAKE_SIZE: Final = 16 << 10
"""As h11's limit for a request's head; nginx has 4 pieces of 8 KiB."""

NORMAL_CLOSURE: Final = 1000
GOING_AWAY: Final = 1001
PROTOCOL_ERROR: Final = 1002
POLICY_VIOLATION: Final = 1008
INTERNAL_ERROR: Final = 1011
"""What a connection is closed with [RFC 6455 section 7.4.1]."""


class WebSocket:
    """The server side of one connection. No I/O.

    What its session does:

        read:   messages = ws.receive_data(data)
                send ws.outgoing(), if there is any
                handle the messages; what it has to say goes out as `WebSocket.frame(...)`
                if ws.fault is not None or ws.closed: stop reading
        end:    send ws.close(...), whatever ended it: it is the HTTP error of a refused handshake,
                the answer to the peer's close frame, or a close frame of our own; nothing after it;
                shut down the sending side; go on reading until `closed`, or the end of the stream,
                or a second has passed: closed with input unread, the kernel would drop what the
                peer has not taken yet. Some clients never close first (trio-websocket's).

    Frames may be sent only once `established`; how long that may take is the session's to see to.
    Messages are to be dealt with before more is read: a read of 64 KiB can have 10,000 of them. All
    that is sent is charged to somebody, pongs too; but while the connection takes nothing,
    `outgoing` may be left alone, and what waits there does not grow.

    Any path is served. No extension is chosen, permessage-deflate neither, and no subprotocol but
    the one that is given here (a browser's script must ask for no other). Scripts on web pages may
    connect if `origins` has the page's, or else if it is of the same host. There is no TLS.

    Args:
        max_message_size: The largest message accepted, in bytes. None: messages are of any size,
            since they are taken as a stream, piece by piece as it comes, of which nothing is held.
        max_handshake_size: The largest HTTP request accepted, in bytes.
        subprotocol: What is chosen of the subprotocols that the client offers, if it is among them.
        origins: Whose pages may connect, as browsers name them in `Origin`, in lower case; none:
            those of the same host (`may_connect`); `*`: anybody's. Who does not say where it comes
            from is no page's script, and may.

    Attributes:
        established: Whether the opening handshake has succeeded. It stays so.
        closed: Whether the peer has sent its close frame: nothing more comes.
        fault: How the peer broke the protocol, for the session to raise once it has handled the
            messages that came before; nothing more comes.
    """

    frame = staticmethod(binary_frame)
    """Make the bytes of one binary message to the peer; may be framed once for several peers."""

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
        # The handshake's, until it is taken out.
        self._answer = b""
        # What `close` is to say when that is not for this side to choose.
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
        """Take what has been read from the peer.

        Never raises; look at `fault` and `closed` afterwards. When this side has closed already,
        messages are dropped and only the peer's close frame is looked for.

        Returns:
            The binary messages that are whole now, in order; or what there is of the stream.
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
        except RefusedError as exc:
            self._fail(exc, exc.answer)
        except FrameError as exc:
            self._fail(exc, close_frame(exc.code, str(exc)))
        if reader.close_code is not None:
            self.closed = True
            # The reason is not sent back: it is the peer's to give.
            self._last_word = close_frame(reader.close_code)
        return [] if self._said else messages

    @property
    def collected_bytes(self) -> int:
        """How much of an incomplete message is held."""
        return self._reader.collected_bytes

    def drop(self) -> None:
        """Let go of a message that is not complete, and hold nothing of what comes after it."""
        self._reader.stream()

    @property
    def close_code(self) -> int | None:
        """The code of the peer's close frame: 1005 if it had none; None as long as none came."""
        return self._reader.close_code

    def outgoing(self) -> bytes:
        """Take out what must be sent without being asked for: the handshake's answer, a pong.

        Of several pings since the last call only the last is answered, as [RFC 6455 section 5.5.3]
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
        """Take out the last that is to be sent, b"" if it has been taken already.

        That is what `outgoing` would say, and then: for a `fault`, the close frame that names it or
        the HTTP error; for the peer's close frame, the same code in answer; during the handshake,
        nothing; otherwise, our own close frame.

        Args:
            code: Why, where it is for this side to say [RFC 6455 section 7.4].
            reason: The same for people; what is over 123 bytes of UTF-8 is cut off.

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
        # Where it was raised leads back here: kept, only the garbage collector could free this.
        fault.__traceback__ = fault.__context__ = fault.__cause__ = None
        self.fault = fault
        self._last_word = last_word
        self._handshake = None
        self._reader.drop()
