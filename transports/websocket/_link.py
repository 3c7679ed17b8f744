"""A connection whose stream of bytes is in binary messages of a WebSocket, both ways."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from .._link import Link
from ._message_socket import MessageSocket
from ._websocket import NORMAL_CLOSURE, PROTOCOL_ERROR, WebSocket

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Collection


class WebSocketLink(Link):
    """A connection as any other to a session whose protocol does not mind where messages end.

    What it receives is what was in the peer's messages; what is sent on `sock` goes out in some. A
    handshake is answered, and pings are, without the session; nobody owes for that. Who breaks the
    protocol is at the end of its stream, and `fault` says why.

    Args:
        sock: The accepted socket; taken over.
        peer: The other side's address, for people.
        max_message_size: The largest message accepted, in bytes; that much is held of one which is
            not complete.
        subprotocol: What is chosen of the subprotocols that the client offers.
        origins: Whose pages may connect; none: anybody's.
        touch: Is called for each read, if it is given.
    """

    __slots__ = ("_messages", "_touch", "_websocket")

    says_goodbye = True

    def __init__(
        self,
        sock: socket.socket,
        peer: str,
        *,
        max_message_size: int,
        subprotocol: str | None = None,
        origins: Collection[str] = (),
        touch: Callable[[], object] | None = None,
    ) -> None:
        self._messages = MessageSocket(sock)
        super().__init__(self._messages, peer)
        self._websocket = WebSocket(
            max_message_size=max_message_size, subprotocol=subprotocol, origins=origins
        )
        self._touch = touch

    async def receive(self) -> bytes:
        """See `Link.receive`: what was in the messages that are whole now, at least one of them."""
        websocket = self._websocket
        while not (websocket.closed or websocket.fault):
            data = await super().receive()
            if self._touch is not None:
                self._touch()
            if not data:
                return b""
            messages = websocket.receive_data(data)
            self._messages.send_control(websocket.outgoing())
            self.fault = websocket.fault
            if stream := b"".join(messages):
                return stream
        await trio.lowlevel.checkpoint()
        return b""

    def end(self, *, faulty: bool = False) -> None:
        """See `Link.end`: a close frame, or the answer to the peer's; or to a bad handshake."""
        self._say_why(PROTOCOL_ERROR if faulty else NORMAL_CLOSURE)
        super().end()

    async def pass_over(self) -> None:
        """See `Link.pass_over`."""
        while await super().receive():
            pass

    def close(self) -> None:
        """See `Link.close`; says the last word if that has not been said and can be sent."""
        if not self.closed:
            with suppress(OSError):
                self._say_why(NORMAL_CLOSURE)
        super().close()

    def _say_why(self, code: int) -> None:
        # Within a message it would be a part of that.
        if self._messages.between_messages:
            self._messages.send_control(self._websocket.close(code, self.why or ""))
