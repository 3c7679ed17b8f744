"""A connection whose stream of bytes is in binary WebSocket messages, both ways."""

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

    from ...sockets._layer import Connected


CODES: Final = {
    Ending.LEFT: NORMAL_CLOSURE,
    Ending.STOPS: GOING_AWAY,
    Ending.FAULT: PROTOCOL_ERROR,
    Ending.CUT: POLICY_VIOLATION,
    Ending.ERROR: INTERNAL_ERROR,
}
"""Codes to close a connection with [RFC 6455 section 7.4.1]."""


class WebSocketLink(Link):
    """A connection for sessions whose protocol ignores the boundaries of messages.

    It receives the contents of the peer's messages, however long: nothing of an incomplete one is
    held. Output on `sock` is sent in messages, too. This class answers the handshake and pings,
    without the session; nothing is charged for that. When the peer breaks the protocol, its stream
    ends, and `fault` gives the reason.

    Args:
        sock: The accepted socket; taken over.
        peer: The other side's address, for people.
        subprotocol: The subprotocol to choose, if the client offers it.
        origins: Origins whose pages may connect; empty: the same host (`may_connect`).
        touch: Called for each read, if it is given.
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
        """See `Link.receive`: the contents of messages, or of parts that have arrived."""
        websocket = self._websocket
        while not (websocket.closed or websocket.fault):
            data = await super().receive()
            if self._touch is not None:
                self._touch()
            if not data or self.why is not None:
                return b""  # the connection was cut: nobody wants the data any more
            began = perf_counter()
            pieces = websocket.receive_data(data)
            self.took_apart(perf_counter() - began)
            # If sending fails, the input still counts; the next read will notice.
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
        """See `Link.say_goodbye`: a close frame, or the answer to a bad handshake."""
        websocket = self._websocket
        self._say_why()
        self.sock.shutdown(socket.SHUT_WR)
        while not websocket.closed and (data := await super().receive()):
            websocket.receive_data(data)

    def close(self) -> None:
        """See `Link.close`; sends a close frame if none was sent and it is possible."""
        if not self.closed:
            with suppress(OSError):
                self._say_why()
        super().close()

    def _say_why(self) -> None:
        # Within a message, the frame would be a part of that.
        if self._messages.between_messages:
            last_word = self._websocket.close(CODES[self.ending], self.why or "")
            self._messages.send_control(last_word)
