"""What a server sends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias, cast

import attrs

from ..._errors import RemoteProtocolError
from ._headers import NO_HEADERS, Headers, decode_headers


@attrs.define(eq=False)
class Message:
    """A message.

    Attributes:
        subject: The subject to which it was published.
        payload: The payload.
        reply: The subject for answers; empty if none are wanted.
        sid: The number of the subscription that it is for.
        block: Its headers as they came, or empty.
    """

    subject: str
    payload: bytes
    reply: str = ""
    sid: int = 0
    block: bytes = b""
    _decoded: Headers | None = None

    @property
    def headers(self) -> Headers:
        """The headers.

        Raises:
            RemoteProtocolError: They cannot be read.
        """
        if not self.block:
            return NO_HEADERS
        if self._decoded is None:
            self._decoded = decode_headers(self.block)
        return self._decoded

    @property
    def status(self) -> int | None:
        """The status of a message of the server's own; None for one of another client's."""
        return self.headers.status if self.block else None

    @property
    def size(self) -> int:
        """The bytes of subject, reply, headers and payload."""
        return len(self.subject) + len(self.reply) + len(self.block) + len(self.payload)


@attrs.frozen
class Info:
    """The server's INFO, at the beginning of a connection and whenever it changes.

    Attributes:
        server_id, server_name, version, cluster: Its names, and its version.
        max_payload: The most bytes of a message's headers and payload together.
        headers: Whether it has headers.
        tls_required, tls_available: Whether the connection has to be, or can be, encrypted.
        auth_required: Whether clients have to log in.
        nonce: The text to sign for a login with a key.
        connect_urls: Addresses of the servers of its cluster, HOST:PORT.
        lame_duck: Whether it is about to end, and clients should go elsewhere.
        jetstream: Whether it has JetStream.
        client_id: The number of this connection on that server.
    """

    server_id: str = ""
    server_name: str = ""
    version: str = ""
    cluster: str = ""
    max_payload: int = 1 << 20
    headers: bool = False
    tls_required: bool = False
    tls_available: bool = False
    auth_required: bool = False
    nonce: str = ""
    connect_urls: tuple[str, ...] = ()
    lame_duck: bool = False
    jetstream: bool = False
    client_id: int = 0

    @classmethod
    def decode(cls, text: bytes) -> Info:
        """Return what an INFO says.

        Raises:
            RemoteProtocolError: It is no JSON object, or a part of it has another type.
        """
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RemoteProtocolError(f"INFO has to be JSON: {error}") from error
        if not isinstance(found, dict):
            raise RemoteProtocolError("INFO has to be a JSON object")
        return cls(**_parts(cast("Mapping[str, Any]", found)))


def _parts(found: Mapping[str, Any]) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    fields: tuple[attrs.Attribute[Any], ...] = attrs.fields(Info)
    for field in fields:
        name = "ldm" if field.name == "lame_duck" else field.name
        value = found.get(name)
        if value is None:
            continue
        default: Any = [] if field.name == "connect_urls" else field.default
        if value.__class__ is not default.__class__:
            kind = default.__class__.__name__
            raise RemoteProtocolError(f"INFO has {name} {value!r}, no {kind}")
        if field.name == "connect_urls":
            value = tuple(map(str, value))
        parts[field.name] = value
    return parts


@attrs.frozen
class ServerError:
    """The server's -ERR; after most of them it ends the connection.

    Attributes:
        text: The words of the server: Authorization Violation.
    """

    text: str


@attrs.frozen
class Ping:
    """The server wants a PONG."""


@attrs.frozen
class Pong:
    """The server has handled everything before a PING of this side."""


Received: TypeAlias = Message | Info | ServerError | Ping | Pong
