"""The opening handshake, server side [RFC 6455 section 4.2]: an HTTP request in, 101 or 4xx out.

Rules of this file:
1. `receive_data` raises nothing but `HandshakeRefusedError`, which has the HTTP answer, whatever
   the input.
2. How the input was split into reads changes neither the answer nor the rest of the input.
3. The handshake holds at most `max_size` bytes.

h11 reads the request. wsproto's own handshake is not used: it decodes header fields, and raises
`UnicodeDecodeError` if they are not ASCII; it does not apply our limit; and it drops the data
after the request.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Iterator
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

import h11
from wsproto.utilities import generate_accept_token

from .._errors import RemoteProtocolError
from .._origins import may_connect

VERSION: Final = b"13"
"""The only version [RFC 6455 section 4.1]."""

NONCE_BYTES: Final = 16

UPGRADE_WANTED: Final = (
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Version", VERSION.decode()),
)
"""Header fields required in a 426 answer [RFC 9110 section 15.5.22], [RFC 6455 section 4.4]."""


class HandshakeRefusedError(RemoteProtocolError):
    """The handshake is answered with an HTTP error.

    Attributes:
        answer: The whole HTTP response; close the connection after it.
    """

    def __init__(self, status: HTTPStatus, sentence: str, *headers: tuple[str, str]) -> None:
        super().__init__(f"no WebSocket handshake: {sentence}")
        self.answer = _response(status, sentence, headers)


class Handshake:
    """One opening handshake.

    Args:
        max_size: The largest request accepted, in bytes.
        subprotocol: The subprotocol to choose, if the client offers it.
        origins: Origins whose web pages may connect, as browsers name them; empty: the same host.
    """

    __slots__ = ("_h11", "_max_size", "_origins", "_subprotocol", "_taken")

    def __init__(
        self, *, max_size: int, subprotocol: str | None = None, origins: Collection[str] = ()
    ) -> None:
        # h11 never gets more than this, so that the limit does not depend on the reads.
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=max_size)
        self._max_size = max_size
        self._subprotocol = subprotocol
        self._origins = origins
        self._taken = 0

    def receive_data(self, data: bytes) -> tuple[bytes, bytes] | None:
        """Take data that was read.

        Returns:
            The answer, and the data after the request; None while the request is incomplete.

        Raises:
            HandshakeRefusedError: It is not a request for a WebSocket, or cannot be served.
        """
        if not data:
            return None
        if not self._taken and not data[:1].isalpha():
            # Another protocol, or TLS: the peer would wait for us, and we for a line's end.
            raise HandshakeRefusedError(
                HTTPStatus.BAD_REQUEST,
                f"the connection begins with byte {data[0]:#04x}, which begins no HTTP request; "
                "only WebSocket clients can connect here, without TLS",
            )
        room = self._max_size - self._taken
        request = self._read(data[:room]) if room else None
        if request is not None:
            _check_origin(request, self._origins)
            return _accept(request, self._subprotocol), self._h11.trailing_data[0] + data[room:]
        if len(data) > room:
            raise HandshakeRefusedError(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"the request is larger than {self._max_size} bytes, the limit",
            )
        return None

    def _read(self, data: bytes) -> h11.Request | None:
        """Pass data to h11; it must not be empty, which would mean the end of the stream."""
        self._taken += len(data)
        try:
            self._h11.receive_data(data)
            event = self._h11.next_event()
        except h11.RemoteProtocolError as exc:
            # A frame in the traceback of h11's error holds the error, and with it all callers.
            exc.__traceback__ = None
            raise HandshakeRefusedError(
                HTTPStatus.BAD_REQUEST, f"malformed HTTP request: {exc}"
            ) from None
        if event is h11.NEED_DATA:
            return None
        # For a server, a request is the first event unless the peer has closed.
        assert isinstance(event, h11.Request)
        return event


def _accept(request: h11.Request, subprotocol: str | None) -> bytes:
    """Make the answer that switches protocols.

    The answer does not mention other offers, such as extensions and other subprotocols, and so
    declines them. A client that offers no subprotocol gets none.
    """
    headers = list(request.headers)
    if request.method != b"GET":
        raise HandshakeRefusedError(
            HTTPStatus.METHOD_NOT_ALLOWED, "its method must be GET", ("Allow", "GET")
        )
    # HTTP/1.0 has no Upgrade [RFC 9110 section 7.8]. h11 has checked Host.
    if request.http_version < b"1.1" or "websocket" not in _tokens(headers, b"upgrade"):
        raise HandshakeRefusedError(
            HTTPStatus.UPGRADE_REQUIRED,
            "only WebSocket clients can connect here (HTTP/1.1 with 'Upgrade: websocket')",
            *UPGRADE_WANTED,
        )
    if "upgrade" not in _tokens(headers, b"connection"):
        raise HandshakeRefusedError(HTTPStatus.BAD_REQUEST, "it must say 'Connection: Upgrade'")
    versions = _values(headers, b"sec-websocket-version")
    if versions != [VERSION]:
        raise HandshakeRefusedError(
            HTTPStatus.UPGRADE_REQUIRED, "it must say 'Sec-WebSocket-Version: 13'", *UPGRADE_WANTED
        )
    keys = _values(headers, b"sec-websocket-key")
    if len(keys) != 1 or not _is_nonce(keys[0]):
        raise HandshakeRefusedError(
            HTTPStatus.BAD_REQUEST, "its one Sec-WebSocket-Key must be 16 bytes in Base64"
        )
    if _values(headers, b"transfer-encoding") or _values(headers, b"content-length") not in (
        [],
        [b"0"],
    ):
        # A body could not be told from the first frames.
        raise HandshakeRefusedError(HTTPStatus.BAD_REQUEST, "it must have no body")
    chosen = b""
    if subprotocol is not None and subprotocol in _members(headers, b"sec-websocket-protocol"):
        chosen = b"Sec-WebSocket-Protocol: %b\r\n" % subprotocol.encode()
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: %b\r\n%b\r\n" % (generate_accept_token(keys[0]), chosen)
    )


def _check_origin(request: h11.Request, origins: Collection[str]) -> None:
    """Refuse a browser that comes from a page of another origin [RFC 6455 section 10.2]."""
    headers = list(request.headers)
    hosts = [value.decode("latin-1") for value in _values(headers, b"host")]
    for value in _values(headers, b"origin"):
        origin = value.decode("latin-1")
        if not may_connect(origin, hosts[0] if hosts else None, origins):
            raise HandshakeRefusedError(
                HTTPStatus.FORBIDDEN,
                f"pages of {origin!r:.200} may not connect here; a relay allows them with "
                "--origin, and pages of its own host by default",
            )


def _values(headers: list[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    return [value for key, value in headers if key == name]


def _members(headers: list[tuple[bytes, bytes]], name: bytes) -> set[str]:
    """Return the members of a list field."""

    def pieces() -> Iterator[bytes]:
        for value in _values(headers, name):
            yield from value.split(b",")

    return {piece.strip().decode("latin-1") for piece in pieces()}


def _tokens(headers: list[tuple[bytes, bytes]], name: bytes) -> set[str]:
    """Return the members of a list field, in lower case."""
    return {member.lower() for member in _members(headers, name)}


def _is_nonce(key: bytes) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == NONCE_BYTES
    except binascii.Error:
        return False


def _response(status: HTTPStatus, sentence: str, headers: tuple[tuple[str, str], ...]) -> bytes:
    """Make a response that ends its connection, with a sentence for a person."""
    body = f"{sentence}\n".encode()
    connection = "Upgrade, close" if status is HTTPStatus.UPGRADE_REQUIRED else "close"
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        *(f"{name}: {value}" for name, value in headers),
        f"Connection: {connection}",
        f"Date: {formatdate(usegmt=True)}",
        "Content-Type: text/plain; charset=utf-8",
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body
