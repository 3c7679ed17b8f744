"""One connection of a client: how it begins, and what it buffers."""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import Callable
from importlib import metadata
from typing import Any, Final

import attrs
import trio

from ....sockets import Certificates, TransportError
from ..._connecting import READ_SIZE, SocketStream, encrypted, open_stream
from ..._errors import RemoteProtocolError
from ..._send_buffer import SendBuffer
from ..codec._commands import PING, encode_connect
from ..codec._messages import Info, Message, Ping, Pong, Received, ServerError
from ..codec._parser import Parser
from ._errors import RefusedError
from ._login import Login
from ._servers import ServerAddress

REFUSALS: Final = ("authorization violation", "authentication", "maximum connections", "account ")
"""Beginnings of those errors of a server that refuse a login (nats-server `errors.go`)."""


@attrs.frozen(kw_only=True)
class Wishes:
    """How a client connects.

    Attributes:
        name: The client's name, which the server's monitoring shows.
        login: The login, or a function that makes it for each connection.
        tls: The context to encrypt with; None: the default one, where the server wants it.
        tls_first: Whether TLS begins before INFO (`handshake_first` of the server).
        echo: Whether the client's own messages come to its subscriptions, too.
        max_message_size: The most bytes of a message's headers and payload.
        connect_timeout: Seconds for each server.
    """

    name: str
    login: Login | Callable[[], Login] | None
    tls: ssl.SSLContext | None
    tls_first: bool
    echo: bool
    max_message_size: int
    connect_timeout: float


@attrs.define(eq=False)
class Link:
    """A connection that the server has accepted.

    Attributes:
        address: The server's address.
        stream: The stream.
        parser: What makes messages of the server's bytes.
        info: The last INFO of the server.
        early: Parts that came with its first answer.
        send: The send buffer.
        pongs: For each PING that has no PONG yet, the event to set then.
        heard_at: When the server last sent something, on Trio's clock.
        last_error: The last error that the server reported, which says why it ends a connection.
        why: Why it ended; None while it stands.
        scope: What cancels its tasks.
    """

    address: ServerAddress
    stream: SocketStream
    parser: Parser
    info: Info
    early: list[Received]
    send: SendBuffer = attrs.field(factory=SendBuffer)
    pongs: deque[trio.Event | None] = attrs.field(factory=deque[trio.Event | None])
    heard_at: float = attrs.field(factory=trio.current_time)
    last_error: str = ""
    why: str | None = None
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    def end(self, why: str) -> None:
        """End the connection; the first reason counts."""
        if self.why is None:
            self.why = f"{why}; it reported: {self.last_error}" if self.last_error else why
            self.scope.cancel()

    def finish(self) -> None:
        """Wake the tasks that wait for this connection; it has ended."""
        self.send.close()
        for event in self.pongs:
            if event is not None:
                event.set()


async def connect(address: ServerAddress, wishes: Wishes) -> Link:
    """Connect to a server and log in.

    Cancellation: no socket is left.

    Raises:
        TransportError: There is no connection, or it was refused; the message says why.
    """
    with trio.move_on_after(wishes.connect_timeout):
        stream = await open_stream(address.host, address.port)
        if wishes.tls_first:
            stream = await _encrypted(stream, address, wishes)
        try:
            return await _greet(stream, address, wishes)
        except (trio.BrokenResourceError, OSError) as error:
            await trio.aclose_forcefully(stream)
            raise TransportError(f"the connection broke: {error}") from error
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
    msg = f"it did not answer within {wishes.connect_timeout:g} s; is it a NATS server?"
    raise TransportError(msg)


async def _encrypted(stream: SocketStream, address: ServerAddress, wishes: Wishes) -> SocketStream:
    context = Certificates().for_client() if wishes.tls is None else wishes.tls
    return await encrypted(stream.socket, context, address.tls_name or address.host)


async def _greet(stream: SocketStream, address: ServerAddress, wishes: Wishes) -> Link:
    parser = Parser(wishes.max_message_size)
    # A server that begins with TLS may have sent INFO with the end of the handshake.
    early_bytes = _waiting(stream) if wishes.tls_first else b""
    received = parser.receive(early_bytes) or await _receive(stream, parser)
    if not isinstance(received[0], Info):
        raise RemoteProtocolError("a server's first line has to be INFO")
    info = received[0]
    encrypt = wishes.tls_first or address.tls or wishes.tls is not None or info.tls_required
    if encrypt and not wishes.tls_first:
        if not (info.tls_required or info.tls_available):
            raise TransportError("it has no TLS, and the connection has to be encrypted")
        if len(received) > 1 or parser.unparsed_bytes:
            # Whoever is in between could have added it [CVE-2011-0411 and its kind].
            raise RemoteProtocolError("the server sent more than INFO before the TLS handshake")
        stream = await _encrypted(stream, address, wishes)
    try:
        hello = encode_connect(_options(wishes, address, info, encrypt)) + PING
        await stream.send_all(hello)
        early = received[1:]
        while True:
            for number, part in enumerate(early):
                match part:
                    case Pong():
                        return Link(address, stream, parser, info, early[number + 1 :])
                    case ServerError():
                        raise refusal(part.text)
                    case Info():
                        info = part
                    case Message() | Ping():
                        raise RemoteProtocolError("a server's first answer has to be PONG")
            early = await _receive(stream, parser)
    except BaseException:
        await trio.aclose_forcefully(stream)  # If it is encrypted, `connect` does not know it.
        raise


def _waiting(stream: SocketStream) -> bytes:
    try:
        return stream.socket.recv(READ_SIZE)
    except BlockingIOError:
        return b""


async def _receive(stream: SocketStream, parser: Parser) -> list[Received]:
    while True:
        data = await stream.receive_some(READ_SIZE)
        if not data:
            raise TransportError("the server closed the connection before it had accepted it")
        received = parser.receive(data)
        if received:
            return received


def _options(wishes: Wishes, address: ServerAddress, info: Info, encrypted: bool) -> dict[str, Any]:
    login = address.login or wishes.login
    if callable(login):
        login = login()
    return {
        "verbose": False,
        "pedantic": False,
        "tls_required": encrypted,
        "name": wishes.name,
        "lang": "python-trio",
        "version": metadata.version("clearfunds"),
        "protocol": 1,  # The server may send INFO again, as its cluster changes.
        "echo": wishes.echo,
        "headers": True,
        "no_responders": True,
        **(login.fields(info.nonce) if login is not None else {}),
    }


def refusal(text: str) -> TransportError:
    """Return the exception for an error of the server's."""
    if text.lower().startswith(REFUSALS):
        return RefusedError(f"the server refused the login: {text}")
    return TransportError(f"the server reports: {text}")
