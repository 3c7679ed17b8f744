"""A connection whose stream of bytes is in binary messages of a WebSocket, both ways."""

from __future__ import annotations

import socket
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Final

import trio

from .._link import Ending, Link
from ._message_socket import MessageSocket
from ._websocket import (
    GOING_AWAY,
    INTERNAL_ERROR,
    NORMAL_CLOSURE,
    POLICY_VIOLATION,
    PROTOCOL_ERROR,
    WebSocket,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from .._layer import Connected


CODES: Final = {
    Ending.LEFT: NORMAL_CLOSURE,
    Ending.STOPS: GOING_AWAY,
    Ending.FAULT: PROTOCOL_ERROR,
    Ending.CUT: POLICY_VIOLATION,
    Ending.ERROR: INTERNAL_ERROR,
}
"""What a connection is closed with [RFC 6455 section 7.4.1]."""


class WebSocketLink(Link):
    """A connection as any other to a session whose protocol does not mind where messages end.

    What it receives is what is in the peer's messages, however long these are: nothing is held of
    one that is not complete. What is sent on `sock` goes out in messages, too. The handshake is
    answered, and pings are, without the session; nobody owes for that. Who breaks the protocol is
    at the end of its stream, and `fault` says why.

    Args:
        sock: The accepted socket; taken over.
        peer: The other side's address, for people.
        subprotocol: What is chosen of the subprotocols that the client offers.
        origins: Whose pages may connect; none: those of the same host (`may_connect`).
        touch: Is called for each read, if it is given.
    """

    __slots__ = ("_messages", "_touch", "_websocket")

    says_goodbye = True

    def __init__(
        self,
        sock: Connected,
        peer: str,
        *,
        subprotocol: str | None = None,
        origins: Collection[str] = (),
        touch: Callable[[], object] | None = None,
    ) -> None:
        self._messages = MessageSocket(sock)
        super().__init__(self._messages, peer)
        self._websocket = WebSocket(max_message_size=None, subprotocol=subprotocol, origins=origins)
        self._touch = touch

    async def receive(self) -> bytes:
        """See `Link.receive`: what was in messages, or in as much of them as has come."""
        websocket = self._websocket
        while not (websocket.closed or websocket.fault):
            data = await super().receive()
            if self._touch is not None:
                self._touch()
            if not data or self.why is not None:
                return b""  # what is read of one that has been cut is nobody's any more
            began = perf_counter()
            pieces = websocket.receive_data(data)
            self.took_apart(perf_counter() - began)
            # Where it cannot be sent to, what it has said still counts; the next read will tell.
            with suppress(OSError):
                self._messages.send_control(websocket.outgoing())
            self.fault = websocket.fault
            if stream := b"".join(pieces):
                return stream
            if self.work is not None:
                await self.work.keep_back()
        await trio.lowlevel.checkpoint()
        return b""

    async def say_goodbye(self) -> None:
        """See `Link.say_goodbye`: by a close frame, or the answer to a bad handshake."""
        websocket = self._websocket
        self._say_why()
        self.sock.shutdown(socket.SHUT_WR)
        while not websocket.closed and (data := await super().receive()):
            websocket.receive_data(data)

    def close(self) -> None:
        """See `Link.close`; says the last word if that has not been said and can be sent."""
        if not self.closed:
            with suppress(OSError):
                self._say_why()
        super().close()

    def _say_why(self) -> None:
        # Within a message it would be a part of that.
        if self._messages.between_messages:
            last_word = self._websocket.close(CODES[self.ending], self.why or "")
            self._messages.send_control(last_word)
