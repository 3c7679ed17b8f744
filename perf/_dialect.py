"""The versions of MQTT, as far as the beginning of a connection differs between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import attrs

from ..transports.mqtt import (
    SUBSCRIPTION_FAILED,
    ConnAck,
    Connect,
    ConnectReturnCode,
    Granted,
    Reason,
    SubAck,
    Subscribe,
    decode,
    encode,
)
from . import _mqtt5
from ._errors import PerfError

CONNACK: Final = 2
SUBACK: Final = 9

_REFUSED: Final = {
    ConnectReturnCode.UNACCEPTABLE_PROTOCOL_LEVEL: "unacceptable protocol version",
    ConnectReturnCode.IDENTIFIER_REJECTED: "client identifier rejected",
    ConnectReturnCode.SERVER_UNAVAILABLE: "server unavailable",
    ConnectReturnCode.BAD_USER_NAME_OR_PASSWORD: "bad user name or password",
    ConnectReturnCode.NOT_AUTHORIZED: "not authorized",
}

NOT_5: Final = (
    "With MQTT 3.1.1 (no --mqtt, no --prefetch) the prefetch is an option of the server's: "
    "--max-inflight of clearfunds relay, max_inflight_messages of mosquitto"
)
"""Advice for a server without MQTT 5."""


@attrs.frozen
class Hello:
    """A client's identity and login."""

    client_id: str
    keep_alive: int
    """Seconds."""
    user: str | None = None
    password: bytes | None = attrs.field(default=None, repr=False)


class Dialect(Protocol):
    """The introduction of a client, and the reading of the server's answers."""

    def connect(self) -> bytes:
        """Return a CONNECT."""
        ...

    def granted(self, body: bytes) -> Granted:
        """Read the body of a CONNACK.

        Raises:
            PerfError: The server has refused.
            ProtocolError: It is malformed.
        """
        ...

    def subscribe(self, filters: Sequence[tuple[str, int]]) -> bytes:
        """Return a SUBSCRIBE."""
        ...

    def subscribed(self, body: bytes) -> None:
        """Read the body of a SUBACK.

        Raises:
            PerfError: The server has refused.
            ProtocolError: It is malformed.
        """
        ...

    @property
    def hint(self) -> str:
        """A possible reason why a server does not answer."""
        ...


@attrs.frozen
class Mqtt311:
    """MQTT 3.1.1."""

    hello: Hello

    def connect(self) -> bytes:
        hello = self.hello
        return encode(
            Connect(
                hello.client_id,
                keep_alive=hello.keep_alive,
                username=hello.user,
                password=hello.password,
            )
        )

    def granted(self, body: bytes) -> Granted:
        packet = decode(CONNACK << 4, body)
        assert isinstance(packet, ConnAck)
        code = packet.return_code
        if code != ConnectReturnCode.ACCEPTED:
            known = {int(each): words for each, words in _REFUSED.items()}
            msg = f"CONNECT was refused: {known.get(code, 'return code')} ({code})"
            raise PerfError(msg)
        return Granted()

    def subscribe(self, filters: Sequence[tuple[str, int]]) -> bytes:
        return encode(Subscribe(1, tuple(filters)))

    def subscribed(self, body: bytes) -> None:
        packet = decode(SUBACK << 4, body)
        assert isinstance(packet, SubAck)
        if SUBSCRIPTION_FAILED in packet.return_codes:
            raise PerfError("SUBSCRIBE was refused: the server does not grant a filter (0x80)")

    @property
    def hint(self) -> str:
        return ""


@attrs.frozen
class Mqtt5:
    """MQTT 5; `prefetch` is the client's Receive Maximum."""

    hello: Hello
    prefetch: int | None

    def connect(self) -> bytes:
        hello = self.hello
        return _mqtt5.connect(
            hello.client_id, hello.keep_alive, self.prefetch, hello.user, hello.password
        )

    def granted(self, body: bytes) -> Granted:
        # A server that does not know this version answers in its own (section 3.1.2.2).
        code = body[1] if len(body) > 1 else None
        old = ConnectReturnCode.UNACCEPTABLE_PROTOCOL_LEVEL
        if code == Reason.UNSUPPORTED_PROTOCOL_VERSION or (len(body) == 2 and code == old):
            msg = (
                "the server does not speak MQTT 5 (its CONNACK says: unacceptable protocol "
                f"version). {NOT_5}"
            )
            raise PerfError(msg)
        return _mqtt5.granted(body)

    def subscribe(self, filters: Sequence[tuple[str, int]]) -> bytes:
        return _mqtt5.subscribe(1, filters)

    def subscribed(self, body: bytes) -> None:
        _mqtt5.subscribed(body)

    @property
    def hint(self) -> str:
        return f": it may not speak MQTT 5. {NOT_5}"
