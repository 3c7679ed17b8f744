"""Getting to a server: a socket on which CONNECT, and the subscriptions, were accepted."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence
from typing import Final

import trio

from ..transports import ProtocolError
from ..transports.mqtt import (
    NEED_DATA,
    SUBSCRIPTION_FAILED,
    ConnAck,
    Connect,
    Connection,
    ConnectReturnCode,
    Packet,
    Publish,
    Role,
    SubAck,
    Subscribe,
)
from ._errors import PerfError

KEEP_ALIVE: Final = 60
"""Seconds; a ping goes out each half of it, stalled or not."""

TIMEOUT: Final = 10.0
"""Seconds until a server must have answered."""

READ_BYTES: Final = 1 << 18


async def _open(host: str, port: int, receive_buffer: int | None) -> socket.socket:
    found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, _, protocol, _, address = found[0]
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK, protocol)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        wrong = sock.connect_ex(address)
        if wrong == errno.EINPROGRESS:
            await trio.lowlevel.wait_writable(sock)
            wrong = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if wrong:  # at once where there are no ports left, for one
            raise OSError(wrong, os.strerror(wrong))
    except BaseException:
        sock.close()
        raise
    return sock


async def send_all(sock: socket.socket, data: bytes) -> None:
    """Send all of it, however long that takes.

    Raises:
        OSError: The connection has ended.
    """
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[sock.send(rest) :]
        except BlockingIOError:
            await trio.lowlevel.wait_writable(sock)


async def receive(sock: socket.socket) -> bytes:
    """Wait for something to read, and return it; b"" at the end of the stream.

    Raises:
        OSError: The connection has ended.
    """
    while True:
        await trio.lowlevel.wait_readable(sock)
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
) -> tuple[socket.socket, bytes]:
    """Connect a client, and subscribe it.

    Returns:
        A socket that does not block, and what has come already of what it is subscribed to.

    Raises:
        PerfError: The server is not there, refuses, or speaks something else.
    """
    who = f"{client_id} at {host}:{port}"
    try:
        with trio.fail_after(TIMEOUT):
            sock = await _open(host, port, receive_buffer)
    except trio.TooSlowError:
        msg = f"{who}: no connection within {TIMEOUT:g} s"
        raise PerfError(msg) from None
    except OSError as error:
        msg = f"{who}: {error.strerror or error}; is a server listening there?"
        raise PerfError(msg) from error
    try:
        with trio.fail_after(TIMEOUT):
            return sock, await _introduce(sock, client_id, filters)
    except trio.TooSlowError:
        sock.close()
        msg = f"{who}: no answer within {TIMEOUT:g} s"
        raise PerfError(msg) from None
    except (OSError, ProtocolError) as error:
        sock.close()
        msg = f"{who}: {error}"
        raise PerfError(msg) from error
    except BaseException:
        sock.close()
        raise


async def _introduce(
    sock: socket.socket, client_id: str, filters: Sequence[tuple[str, int]]
) -> bytes:
    core = Connection(Role.CLIENT)
    await send_all(sock, core.send(Connect(client_id, keep_alive=KEEP_ALIVE)))
    answer = await _answer(core, sock)
    if not isinstance(answer, ConnAck) or answer.return_code != ConnectReturnCode.ACCEPTED:
        msg = f"CONNECT was answered with {answer}"
        raise PerfError(msg)
    if not filters:
        return b""
    await send_all(sock, core.send(Subscribe(1, tuple(filters))))
    answer = await _answer(core, sock)
    if not isinstance(answer, SubAck):
        # Retained, or published by somebody else: what these are is not known here.
        while isinstance(answer, Publish):
            answer = await _answer(core, sock)
    if not isinstance(answer, SubAck) or SUBSCRIPTION_FAILED in answer.return_codes:
        msg = f"SUBSCRIBE was answered with {answer}"
        raise PerfError(msg)
    rest: bytes = core.buffer[core.position :]
    return rest


async def _answer(core: Connection, sock: socket.socket) -> Packet:
    while True:
        packet = core.next_packet()
        if packet is not NEED_DATA:
            assert not isinstance(packet, type(NEED_DATA))
            return packet
        data = await receive(sock)
        if not data:
            raise PerfError("the server closed the connection")
        core.receive_data(data)
