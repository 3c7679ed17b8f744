"""What the tests of WebSocket share: a client's bytes, made by hand and by wsproto."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from wsproto.connection import Connection, ConnectionType

from clearfunds.transports.websocket import WebSocket

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
"""The nonce of [RFC 6455 section 1.3]."""

ACCEPT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
"""The same section's answer to it."""

HEADERS = {
    "Host": "server.example.com",
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": KEY,
    "Sec-WebSocket-Version": "13",
}


def request(line: str = "GET / HTTP/1.1", **changes: str | None) -> bytes:
    """Return a request for an upgrade; `Sec_WebSocket_Key=None` leaves that field out."""
    named = {name.replace("_", "-"): value for name, value in changes.items()}
    headers = {name: value for name, value in (HEADERS | named).items() if value is not None}
    lines = [line, *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode()


def frame(
    opcode: int,
    payload: bytes = b"",
    *,
    final: bool = True,
    reserved: int = 0,
    key: bytes | None = b"\x01\x80\x7f\xff",
    length: bytes | None = None,
) -> bytes:
    """Return a client's frame, as right or wrong as asked for; `length` replaces the length."""
    first = (0x80 if final else 0) | reserved << 4 | opcode
    mask = 0 if key is None else 0x80
    if length is None:
        size = len(payload)
        if size < 126:
            length = bytes((mask | size,))
        elif size < 1 << 16:
            length = struct.pack(">BH", mask | 126, size)
        else:
            length = struct.pack(">BQ", mask | 127, size)
    if key is None:
        return bytes((first,)) + length + payload
    masked = bytes(byte ^ key[i % 4] for i, byte in enumerate(payload))
    return bytes((first,)) + length + key + masked


def opened(max_message_size: int = 1 << 20) -> WebSocket:
    """Return the server's side after a handshake, its answer taken."""
    ws = WebSocket(max_message_size=max_message_size)
    assert ws.receive_data(request()) == []
    assert ws.established
    assert ws.outgoing().startswith(b"HTTP/1.1 101 ")
    return ws


def client() -> Connection:
    """Return wsproto's client's side after a handshake."""
    return Connection(ConnectionType.CLIENT)


def feed(ws: WebSocket, pieces: Iterable[bytes]) -> list[bytes]:
    """Return all messages that come of the pieces."""
    return [message for piece in pieces for message in ws.receive_data(piece)]


def bytewise(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]
