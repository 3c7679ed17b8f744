"""Connecting to a server: a socket on which it has accepted CONNECT and the subscriptions."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs
import trio

from ..transports import ProtocolError
from ..transports.mqtt import Granted
from ..transports.tls import BROKEN_OFF, TlsSocket, shake_hands, trouble
from ._dialect import CONNACK, SUBACK, Dialect, Hello, Mqtt5, Mqtt311
from ._errors import PerfError
from ._mqtt5 import disconnected
from ._wire import DISCONNECT, PUBLISH, Packets

if TYPE_CHECKING:
    from ..transports._layer import Connected

KEEP_ALIVE: Final = 60
"""Seconds; a ping goes out each half of it, stalled or not."""

TIMEOUT: Final = 10.0
"""Seconds within which a server must answer."""

READ_BYTES: Final = 1 << 18

ANSWERS: Final = frozenset({CONNACK, SUBACK, PUBLISH, DISCONNECT})
"""Packets that may come until a client is connected and subscribed."""


@attrs.frozen
class Opened:
    """A connection that the server has accepted."""

    sock: Connected
    """A non-blocking socket."""
    rest: bytes
    """Bytes of the client's subscriptions that have come already."""
    granted: Granted


async def _open(host: str, port: int, receive_buffer: int | None) -> socket.socket:
    """Connect to the first address of a name that accepts, in the system's order.

    Raises:
        OSError: No address accepts; the error of the last.
    """
    found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    wrong: OSError | None = None
    for family, _, protocol, _, address in found:
        # An address that does not answer must not use up the time of the others.
        with trio.move_on_after(TIMEOUT / len(found)):
            try:
                return await _open_one(family, protocol, address, receive_buffer)
            except OSError as error:
                wrong = error
    raise wrong or trio.TooSlowError


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


async def send_all(sock: Connected, data: bytes) -> None:
    """Send all of it, without a time limit.

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


async def receive(sock: Connected) -> bytes:
    """Wait for something to read, and return it; b"" at the end of the stream.

    Raises:
        OSError: The connection has ended.
    """
    while True:
        await readable(sock)
        try:
            return sock.recv(READ_BYTES)
        except BlockingIOError:
            continue


async def connect(
    host: str,
    port: int,
    client_id: str,
    filters: Sequence[tuple[str, int]] = (),
    *,
    receive_buffer: int | None = None,
    version: Literal["3.1.1", "5"] = "3.1.1",
    prefetch: int | None = None,
    user: tuple[str | None, bytes | None] = (None, None),
    tls: ssl.SSLContext | None = None,
) -> Opened:
    """Connect a client, and subscribe it.

    Args:
        tls: The TLS context; None: without TLS.

    Raises:
        PerfError: The server is not reachable, refuses, or speaks something else.
    """
    who = f"{client_id} at {host}:{port}"
    try:
        with trio.fail_after(TIMEOUT):
            sock: Connected = await _open(host, port, receive_buffer)
    except trio.TooSlowError:
        msg = f"{who}: no connection within {TIMEOUT:g} s"
        raise PerfError(msg) from None
    except OSError as error:
        msg = f"{who}: {error.strerror or error}; is a server listening there?"
        raise PerfError(msg) from error
    hello = Hello(client_id, KEEP_ALIVE, *user)
    speaks = Mqtt5(hello, prefetch) if version == "5" else Mqtt311(hello)
    try:
        with trio.fail_after(TIMEOUT):
            if tls is not None:
                sock = await _secure(sock, tls, host)
            return await _introduce(sock, speaks, filters)
    except trio.TooSlowError:
        sock.close()
        without = tls is not None and not isinstance(sock, TlsSocket)
        hint = ": it may not speak TLS there" if without else speaks.hint
        msg = f"{who}: no answer within {TIMEOUT:g} s{hint}"
        raise PerfError(msg) from None
    except ssl.SSLError as error:
        sock.close()
        msg = f"{who}: {trouble(error)}"
        raise PerfError(msg) from error
    except (OSError, PerfError, ProtocolError) as error:
        sock.close()
        msg = f"{who}: {error}"
        raise PerfError(msg) from error
    except BaseException:
        sock.close()
        raise


async def _secure(sock: Connected, tls: ssl.SSLContext, host: str) -> TlsSocket:
    """Do the TLS handshake. After an error, the caller closes the socket.

    Raises:
        PerfError: The host's name is invalid, or the server closed the connection.
        ssl.SSLError: The two sides do not agree.
    """
    try:
        secure = TlsSocket(sock, tls, server_side=False, server_hostname=host)
    except ValueError as error:  # For example with a leading dot.
        raise PerfError(str(error)) from error
    try:
        await shake_hands(secure)
    except (ConnectionResetError, BrokenPipeError) as error:
        raise PerfError(BROKEN_OFF) from error
    return secure


async def _introduce(
    sock: Connected, speaks: Dialect, filters: Sequence[tuple[str, int]]
) -> Opened:
    packets = Packets()
    try:
        await send_all(sock, speaks.connect())
    except OSError:
        # A server that closed may have sent the reason: TLS 1.3 checks a client's certificate late.
        with suppress(BlockingIOError):
            sock.recv(READ_BYTES)
        raise
    kind, _, body = await _answer(packets, sock, f"the server closed the connection{speaks.hint}")
    if kind != CONNACK:
        msg = f"CONNECT was answered with a packet of type {kind}, which is no CONNACK"
        raise PerfError(msg)
    granted = speaks.granted(body)
    early: list[bytes] = []
    if filters:
        await send_all(sock, speaks.subscribe(filters))
        while True:
            kind, whole, body = await _answer(packets, sock, "the server closed the connection")
            if kind != PUBLISH:
                break
            # Retained messages may come first (section 3.8.4 of both versions); they, too, count
            # as unacknowledged.
            early.append(whole)
        if kind != SUBACK:
            msg = f"SUBSCRIBE was answered with a packet of type {kind}, which is no SUBACK"
            raise PerfError(msg)
        speaks.subscribed(body)
    return Opened(sock, b"".join((*early, packets.buffer[packets.at :])), granted)


async def _answer(packets: Packets, sock: Connected, ended: str) -> tuple[int, bytes, bytes]:
    """Return the next packet: its type, the whole packet, and its body."""
    while True:
        begin = packets.at
        if packets.has_begun and packets.buffer[begin] >> 4 not in ANSWERS:
            raise PerfError("the server's answer is not MQTT")
        found = packets.next()
        if found is not None:
            first, body, end = found
            told = packets.buffer[body:end]
            if first >> 4 == DISCONNECT:
                raise disconnected(told)
            return first >> 4, packets.buffer[begin:end], told
        data = await receive(sock)
        if not data:
            raise PerfError(ended)
        packets.feed(data)
