"""Connecting to a server: a stream over a non-blocking socket, with TLS or without.

For protocols in which the client speaks first: a server's bytes that came with the end of the TLS
handshake are read with the next ones.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from typing import TYPE_CHECKING, Any, Final

import trio

from ..sockets import (
    BROKEN_OFF,
    TlsSocket,
    TransportError,
    shake_hands,
    trouble,
    trouble_with_connecting,
)

if TYPE_CHECKING:
    from ..sockets._layer import Connected

READ_SIZE: Final = 1 << 16
"""Bytes of a read."""

_HEAD_START: Final = 0.25
"""Seconds that an address has before the next one is tried, too [RFC 8305 section 5]."""


class NoConnectionError(TransportError):
    """There is no connection; the message has the reason, and leaves out the address."""


class SocketStream(trio.abc.Stream):
    """A stream over a socket.

    Attributes:
        socket: The socket. With TLS it is a `TlsSocket`.
    """

    def __init__(self, sock: Connected) -> None:
        self.socket = sock

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """See `trio.abc.SendStream.send_all`."""
        await trio.lowlevel.checkpoint()
        try:
            await send_all(self.socket, data)
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error

    async def wait_send_all_might_not_block(self) -> None:
        """See `trio.abc.SendStream.wait_send_all_might_not_block`."""
        await trio.lowlevel.wait_writable(self.socket)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """See `trio.abc.ReceiveStream.receive_some`."""
        try:
            return await receive(self.socket, max_bytes or READ_SIZE)
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error

    async def aclose(self) -> None:
        """Close the socket. Idempotent."""
        if self.socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self.socket)
            self.socket.close()
        await trio.lowlevel.checkpoint()


async def send_all(sock: Connected, data: bytes | bytearray | memoryview) -> None:
    """Send all of it; a checkpoint only if the kernel does not take it at once.

    Raises:
        OSError: The connection has ended.
        trio.ClosedResourceError: The socket is closed.
    """
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[sock.send(rest) :]
        except BlockingIOError:
            if sock.fileno() < 0:
                raise trio.ClosedResourceError from None
            await trio.lowlevel.wait_writable(sock)


async def readable(sock: Connected) -> None:
    """Wait until there may be something to read. A checkpoint.

    Raises:
        OSError: The connection has ended.
    """
    if isinstance(sock, TlsSocket) and sock.is_at_end:
        await trio.lowlevel.checkpoint()  # The socket need not become readable for it.
    else:
        await trio.lowlevel.wait_readable(sock)


async def receive(sock: Connected, size: int) -> bytes:
    """Wait for something to read, and return it; b"" at the end of the stream.

    Raises:
        OSError: The connection has ended.
    """
    while True:
        await readable(sock)
        try:
            return sock.recv(size)
        except BlockingIOError:
            continue


async def open_stream(
    host: str,
    port: int,
    *,
    tls: ssl.SSLContext | None = None,
    receive_buffer: int | None = None,
) -> SocketStream:
    """Connect to a host, and do the TLS handshake.

    Args:
        host: A name, whose addresses are tried as in RFC 8305, or an address.
        port: The TCP port.
        tls: The TLS context; None: without TLS.
        receive_buffer: The size of the socket's receive buffer, in bytes; None: the system's.

    Cancellation: no socket is left.

    Raises:
        NoConnectionError: No address accepts, or the TLS handshake failed.
    """
    try:
        sock: Connected = await _open(host, port, receive_buffer)
    except ValueError as error:  # UnicodeError, for example
        raise NoConnectionError(f"{host!r} is no name of a host") from error
    except OSError as error:
        raise NoConnectionError(trouble_with_connecting(error)) from error
    return SocketStream(sock) if tls is None else await encrypted(sock, tls, host)


async def encrypted(sock: Connected, tls: ssl.SSLContext, host: str) -> SocketStream:
    """Do the TLS handshake of a client, and return the encrypted stream.

    Args:
        sock: The connection, taken over.
        tls: The TLS context.
        host: The name or address that the server's certificate must have.

    Cancellation: no socket is left.

    Raises:
        NoConnectionError: The handshake failed.
    """
    try:
        sock = secure = TlsSocket(sock, tls, server_side=False, server_hostname=host)
        await shake_hands(secure)
    except BaseException as error:
        sock.close()
        if isinstance(error, ssl.SSLError):
            raise NoConnectionError(trouble(error)) from error
        if isinstance(error, OSError):
            raise NoConnectionError(BROKEN_OFF) from error
        if isinstance(error, ValueError):  # The host's name begins with a dot, for example.
            raise NoConnectionError(str(error)) from error
        raise
    return SocketStream(sock)


async def _open(host: str, port: int, receive_buffer: int | None) -> socket.socket:
    """Connect to the first address that accepts.

    Raises:
        OSError: No address accepts; the error of the last.
    """
    opened: list[socket.socket] = []
    wrong: list[OSError] = []

    async def attempt(family: int, protocol: int, address: Any, failed: trio.Event) -> None:
        try:
            opened.append(await _open_one(family, protocol, address, receive_buffer))
        except OSError as error:
            wrong.append(error)
            failed.set()
        else:
            nursery.cancel_scope.cancel()

    found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    try:
        async with trio.open_nursery() as nursery:
            for family, _, protocol, _, address in found:
                failed = trio.Event()
                nursery.start_soon(attempt, family, protocol, address, failed)
                with trio.move_on_after(_HEAD_START):
                    await failed.wait()
        if not opened:
            raise wrong[-1]
        return opened.pop()
    finally:
        for sock in opened:  # Two addresses may accept at the same time.
            sock.close()


async def _open_one(
    family: int, protocol: int, address: Any, receive_buffer: int | None
) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK, protocol)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        wrong = sock.connect_ex(address)
        if wrong == errno.EINPROGRESS:
            await trio.lowlevel.wait_writable(sock)
            wrong = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if wrong:  # At once if no ports are left, for example.
            raise OSError(wrong, os.strerror(wrong))
    except BaseException:
        sock.close()
        raise
    return sock
