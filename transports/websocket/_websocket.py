"""One WebSocket connection, server side [RFC 6455]: bytes in, whole binary messages out.

Rules of this file:
1. No garbage makes `receive_data` raise anything; what is wrong is in `fault`, and what came before
   it still counts.
2. How the input was cut into pieces changes neither the messages nor the fault.
3. A message or a frame that will be refused is refused at its header; nothing of it is collected.
4. What is held is at most one incomplete message of `max_message_size` bytes, a header, and one
   control frame; what waits to be sent is at most the handshake's answer or one pong of 127 bytes.

Theory of operation. The opening handshake is `Handshake`. After it the bounds of each frame are
found here, by its header. The commonest kind, a short message in one frame that has come whole,
is unmasked here: 2 us instead of wsproto's 11 for 200 bytes. Every other frame is wsproto's, which
gets it as it comes and stands between two frames whenever it is not in the middle of one.

    HANDSHAKE --a valid request--> established --the peer's close frame--> closed
    HANDSHAKE, established --> fault (nothing more is taken in)
    close() has our last word in any of these, once
"""

from __future__ import annotations

import struct
from typing import Final, cast

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping
from wsproto.frame_protocol import LOCAL_ONLY_CLOSE_REASONS, CloseReason

from .._errors import LocalProtocolError, RemoteProtocolError
from ._handshake import Handshake, RefusedError

DEFAULT_MAX_HANDSHAKE_SIZE: Final = 16 << 10
"""As h11's and Tomcat's limit for a request's head; nginx has 4 pieces of 8 KiB."""

FAST_BYTES: Final = 8 << 10
"""The longest message that is unmasked here; the method is slower than wsproto's for long ones."""

_FINAL_BINARY: Final = 0x82
_OPCODE: Final = 0x0F
_TEXT: Final = 0x1
_CONTROL: Final = 0x08
_MASKED: Final = 0x80
_TWO_BYTES: Final = 126
_EIGHT_BYTES: Final = 127

_SHORT_HEADERS: Final = tuple(bytes((_FINAL_BINARY, size)) for size in range(_TWO_BYTES))
_pack_medium_header = struct.Struct(">BBH").pack
_pack_long_header = struct.Struct(">BBQ").pack


class _FrameError(RemoteProtocolError):
    """A fault after the handshake, with the code to close with."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class WebSocket:
    """The server side of one connection. No I/O.

    What its session does:

        read:   messages = ws.receive_data(data)
                send ws.outgoing(), if there is any, before or among its own frames
                handle the messages; the answers go out as `WebSocket.frame(...)`
                if ws.fault is not None or ws.closed: stop reading
        end:    send ws.close(...), whatever ended it: it is the HTTP error of a refused handshake,
                the answer to the peer's close frame, or our own; send nothing after it; shut down
                the sending side, read (and drop) for a moment, close.

    Frames may be sent only once `established`. How long the handshake may take, and that messages
    are dealt with before more is read, is the session's to see to. While the connection takes
    nothing, `outgoing` can be left alone: what waits there does not grow.

    Any path is served. No subprotocol and no extension is chosen, permessage-deflate neither (a
    browser's script must ask for no subprotocol). Origin is not checked: a script on any web page
    may connect from wherever its reader sits; who must not let that happen serves only a
    gatekeeper, or puts a proxy in front that checks. Nor is there TLS.

    Args:
        max_message_size: The largest message accepted, in bytes.
        max_handshake_size: The largest HTTP request accepted, in bytes.

    Attributes:
        established: Whether the opening handshake has succeeded. It stays so.
        closed: Whether the peer has sent its close frame: nothing more comes.
        close_code: The code in it: 1005 if there was none [RFC 6455 section 7.1.5]; None before.
        fault: How the peer broke the protocol, for the session to raise once it has handled the
            messages that came before; nothing more comes.
    """

    __slots__ = (
        "_answer",
        "_assembling",
        "_collected",
        "_handshake",
        "_header",
        "_last_word",
        "_left",
        "_max_message_size",
        "_pong",
        "_said",
        "_wsproto",
        "close_code",
        "closed",
        "established",
        "fault",
    )

    def __init__(
        self, *, max_message_size: int, max_handshake_size: int = DEFAULT_MAX_HANDSHAKE_SIZE
    ) -> None:
        self.established = False
        self.closed = False
        self.close_code: int | None = None
        self.fault: RemoteProtocolError | None = None
        self._max_message_size = max_message_size
        self._handshake: Handshake | None = Handshake(max_size=max_handshake_size)
        self._wsproto: Connection | None = None
        # The header of a frame, as long as it is incomplete.
        self._header = b""
        # How much of the frame that wsproto has begun to read has still to come.
        self._left = 0
        # The message that wsproto's frames make up, and whether one has begun.
        self._collected = bytearray()
        self._assembling = False
        self._answer = b""
        self._pong = b""
        # What `close` is to say when it is not for this side to choose.
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
        return f"<WebSocket {state}, {len(self._collected)} bytes of a message>"

    def receive_data(self, data: bytes) -> list[bytes]:
        """Take what has been read from the peer.

        Never raises; look at `fault` and `closed` afterwards. When this side has closed already,
        messages are dropped and only the peer's close frame is looked for.

        Returns:
            The binary messages that are whole now, in order.
        """
        messages: list[bytes] = []
        if self.fault is not None or self.closed or (self._said and not self.established):
            return messages
        try:
            if self._handshake is not None:
                done = self._handshake.receive_data(data)
                if done is None:
                    return messages
                self._answer, data = done
                self._handshake = None
                self._wsproto = Connection(ConnectionType.SERVER)
                self.established = True
            self._take_frames(data, messages)
        except RefusedError as exc:
            self._fail(exc, exc.answer)
        except _FrameError as exc:
            self._fail(exc, self._close_frame(exc.code, str(exc)))
        return [] if self._said else messages

    def outgoing(self) -> bytes:
        """Take out what must be sent without being asked for: the handshake's answer, a pong.

        Of several pings since the last call only the last is answered, as [RFC 6455 section 5.5.3]
        allows: a peer that sends pings and does not read makes nothing grow.
        """
        out = self._answer + self._pong
        self._answer = self._pong = b""
        return out

    def close(self, code: int = CloseReason.NORMAL_CLOSURE, reason: str = "") -> bytes:
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
        if code in LOCAL_ONLY_CLOSE_REASONS or not 1000 <= code <= 4999:
            raise LocalProtocolError(f"{code} is not a code that a close frame may have")
        if self._said:
            return b""
        out = self.outgoing()
        if self.fault is None and not self.closed and self.established:
            self._last_word = self._close_frame(code, reason)
        self._said = True
        self._collected = bytearray()
        return out + self._last_word

    @staticmethod
    def frame(payload: bytes) -> bytes:
        """Make a message: one final, unmasked binary frame, with a header of 2, 4 or 10 bytes."""
        size = len(payload)
        if size < _TWO_BYTES:
            return _SHORT_HEADERS[size] + payload
        if size < 1 << 16:
            return _pack_medium_header(_FINAL_BINARY, _TWO_BYTES, size) + payload
        return _pack_long_header(_FINAL_BINARY, _EIGHT_BYTES, size) + payload

    # -- frames ---------------------------------------------------------------------------------

    def _take_frames(self, data: bytes, messages: list[bytes]) -> None:
        """Cut the input into frames; what is incomplete is either a header or wsproto's."""
        if self._header:
            data = self._header + data
            self._header = b""
        size = len(data)
        position = 0
        while position < size and not self.closed:
            if self._left:
                end = min(position + self._left, size)
                self._left -= end - position
                self._take_piece(data[position:end], messages)
                position = end
                continue
            start, end = self._bounds(data, position)
            if start > size:
                self._header = data[position:]
                return
            if (
                end <= size
                and data[position] == _FINAL_BINARY
                and not self._assembling
                and _is_short(start - position, end - start)
            ):
                messages.append(_unmask(data, start, end))
                position = end
            else:
                self._left = end - position

    def _bounds(self, data: bytes, position: int) -> tuple[int, int]:
        """Return where the payload of the frame begins and ends, as far as that is known.

        The beginning lies beyond the end of the data if the header is incomplete.
        """
        size = len(data) - position
        if size < 2:
            return len(data) + 1, 0
        first = data[position]
        second = data[position + 1]
        if not second & _MASKED:
            raise _FrameError(
                CloseReason.PROTOCOL_ERROR,
                "an unmasked frame came; a client must mask all [RFC 6455 section 5.1]",
            )
        if first & _OPCODE == _TEXT:
            raise _FrameError(
                CloseReason.UNSUPPORTED_DATA,
                "a text frame came; each packet must be in a binary message",
            )
        length = second ^ _MASKED
        start = position + 6
        if length >= _TWO_BYTES:
            start += 2 if length == _TWO_BYTES else 8
            if start > len(data):
                return start, 0
            length = int.from_bytes(data[position + 2 : start - 4])
        if not first & _CONTROL and length + len(self._collected) > self._max_message_size:
            raise _FrameError(
                CloseReason.MESSAGE_TOO_BIG,
                f"a message of {length + len(self._collected)} bytes or more came; the limit is "
                f"{self._max_message_size}",
            )
        return start, start + length

    def _take_piece(self, piece: bytes, messages: list[bytes]) -> None:
        """Let wsproto read a frame, or the next piece of one."""
        connection = cast(Connection, self._wsproto)
        connection.receive_data(piece)
        for event in connection.events():
            if isinstance(event, BytesMessage):
                if not self._said:
                    self._collected += event.data
                self._assembling = not event.message_finished
                if event.message_finished:
                    messages.append(bytes(self._collected))
                    self._collected = bytearray()
            elif isinstance(event, Ping):
                if not self._said:
                    self._pong = connection.send(event.response())
            elif isinstance(event, CloseConnection):
                if connection.state in (ConnectionState.OPEN, ConnectionState.LOCAL_CLOSING):
                    # Its way to say that it cannot go on.
                    raise _FrameError(event.code, f"malformed frame: {event.reason}")
                self.closed = True
                self.close_code = int(event.code)
                if not self._said:
                    # The reason is not sent back: it is the peer's to give.
                    self._last_word = connection.send(CloseConnection(event.code))

    # -- the end --------------------------------------------------------------------------------

    def _fail(self, fault: RemoteProtocolError, last_word: bytes) -> None:
        self.fault = fault
        self._last_word = last_word
        self._handshake = None
        self._header = b""
        self._collected = bytearray()

    def _close_frame(self, code: int, reason: str) -> bytes:
        connection = cast(Connection, self._wsproto)
        if connection.state is not ConnectionState.OPEN:
            return b""
        # What cannot be encoded must not keep a connection from being closed.
        printable = reason.encode(errors="replace").decode()
        return connection.send(CloseConnection(code, printable or None))


def _is_short(header: int, length: int) -> bool:
    """Whether a frame with a header of this size is unmasked here; its length is written properly.

    A length in more bytes than it takes is for wsproto to refuse [RFC 6455 section 5.2].
    """
    return header == 6 or (header == 8 and _TWO_BYTES <= length <= FAST_BYTES)


def _unmask(data: bytes, start: int, end: int) -> bytes:
    """Return the payload in these bounds, the masking key before it taken off."""
    size = end - start
    keys = data[start - 4 : start] * ((size + 3) >> 2)
    from_bytes = int.from_bytes
    masked = from_bytes(data[start:end], "little")
    return (masked ^ from_bytes(keys[:size], "little")).to_bytes(size, "little")
