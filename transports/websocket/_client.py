"""The client side of a WebSocket, for connections that the relay makes itself."""

from __future__ import annotations

import re
import ssl
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import attrs
import trio
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Ping,
    RejectConnection,
    Request,
    TextMessage,
)
from wsproto.utilities import LocalProtocolError as WSLocalError
from wsproto.utilities import RemoteProtocolError as WSRemoteError

from .._connecting import READ_SIZE, NoConnectionError, open_stream
from .._errors import RemoteProtocolError
from ._websocket import NORMAL_CLOSURE

if TYPE_CHECKING:
    from .._connecting import SocketStream

MAX_HANDSHAKE_SIZE = 16 << 10
"""The largest answer to the handshake, in bytes."""

_NEEDS_ESCAPING: Final = re.compile(r"[^!-~]")
"""No printable ASCII character, or a space [RFC 3986 section 2]."""


@attrs.frozen
class WebSocketURL:
    """A parsed `ws://host:port/path` or `wss://...`."""

    host: str
    port: int
    secure: bool
    authority: str
    target: str

    @classmethod
    def parse(cls, url: str) -> WebSocketURL:
        """Parse a URL.

        Raises:
            ValueError: It is none of a WebSocket.
        """
        if _NEEDS_ESCAPING.search(url):
            msg = f"{url!r} has a character that a URL has to escape, as %20 for a space"
            raise ValueError(msg)
        parts = urlsplit(url)
        if parts.scheme not in ("ws", "wss") or not parts.hostname or "@" in parts.netloc:
            msg = f"{url!r} is not of the form ws://host:port/path or wss://host:port/path"
            raise ValueError(msg)
        secure = parts.scheme == "wss"
        target = parts.path or "/"
        if parts.query:
            target += f"?{parts.query}"
        port = parts.port or (443 if secure else 80)
        return cls(parts.hostname, port, secure, parts.netloc, target)


class WebSocketClient:
    """An established connection, without I/O; used like `WebSocket`.

    Attributes:
        established: True.
        closed: Whether the peer has sent its close frame.
        fault: How the peer broke the protocol.
    """

    __slots__ = (
        "_connection", "_max_message_size", "_message", "_ping", "_said", "closed", "fault",
    )  # fmt: skip

    established = True

    def __init__(self, connection: WSConnection, max_message_size: int) -> None:
        self._connection = connection
        self._max_message_size = max_message_size
        self._message = bytearray()
        self._ping: Ping | None = None
        self._said = False
        self.closed = False
        self.fault: RemoteProtocolError | None = None

    def frame(self, data: bytes) -> bytes:
        """Make the bytes of one binary message."""
        return self._connection.send(BytesMessage(data=data))

    def receive_data(self, data: bytes) -> list[bytes]:
        """See `WebSocket.receive_data`."""
        messages: list[bytes] = []
        if self.fault is not None or self.closed:
            return messages
        try:
            self._connection.receive_data(data)
            for event in self._connection.events():
                if isinstance(event, BytesMessage):
                    self._take(event, messages)
                elif isinstance(event, TextMessage):
                    self._fail("a WebSocket message is text; packets are binary messages")
                elif isinstance(event, Ping):
                    self._ping = event
                elif isinstance(event, CloseConnection):
                    self.closed = True
        except WSRemoteError as exc:
            self._fail(f"a WebSocket frame is malformed: {exc}")
        return [] if self._said else messages

    def _take(self, event: BytesMessage, messages: list[bytes]) -> None:
        self._message += event.data
        if len(self._message) > self._max_message_size:
            self._fail(f"a WebSocket message has more than {self._max_message_size} bytes")
        elif event.message_finished:
            messages.append(bytes(self._message))
            self._message.clear()

    def _fail(self, why: str) -> None:
        if self.fault is None:
            self.fault = RemoteProtocolError(why)
        self._message = bytearray()

    @property
    def collected_bytes(self) -> int:
        """Bytes held of an incomplete message."""
        return len(self._message)

    def drop(self) -> None:
        """Release an incomplete message."""
        self._message = bytearray()

    def outgoing(self) -> bytes:
        """See `WebSocket.outgoing`."""
        ping, self._ping = self._ping, None
        if ping is None or self._said or self.closed:
            return b""
        return self._connection.send(ping.response())

    def close(self, code: int = NORMAL_CLOSURE, reason: str = "") -> bytes:
        """See `WebSocket.close`."""
        if self._said:
            return b""
        self._said = True
        try:
            return self._connection.send(CloseConnection(code=code, reason=reason[:100]))
        except WSLocalError:
            return b""  # it is closed already


async def open_websocket(
    url: WebSocketURL, max_message_size: int
) -> tuple[SocketStream, WebSocketClient]:
    """Connect to a server, and do the handshake.

    Cancellation: no socket is left.

    Raises:
        NoConnectionError: There is no connection, or the server refuses the handshake.
    """
    tls = ssl.create_default_context() if url.secure else None
    stream = await open_stream(url.host, url.port, tls=tls)
    try:
        connection = WSConnection(ConnectionType.CLIENT)
        await stream.send_all(connection.send(Request(host=url.authority, target=url.target)))
        received = 0
        while True:
            data = await stream.receive_some(READ_SIZE)
            received += len(data)
            if not data or received > MAX_HANDSHAKE_SIZE:
                raise NoConnectionError("it answers the WebSocket handshake with nothing it knows")
            connection.receive_data(data)
            event = next(iter(connection.events()), None)
            if isinstance(event, AcceptConnection):
                return stream, WebSocketClient(connection, max_message_size)
            if isinstance(event, RejectConnection):
                msg = f"it refuses the WebSocket handshake: HTTP status {event.status_code}"
                raise NoConnectionError(msg)
    except BaseException as exc:
        stream.socket.close()
        if isinstance(exc, (WSRemoteError, trio.BrokenResourceError)):
            raise NoConnectionError(f"the WebSocket handshake failed: {exc}") from exc
        raise
