"""The versions of MQTT, as far as a connection's beginning differs in them."""

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
"""What one can do whose server does not speak MQTT 5."""


@attrs.frozen
class Hello:
    """Who a client is."""

    client_id: str
    keep_alive: int
    """Seconds."""
    user: str | None = None
    password: bytes | None = attrs.field(default=None, repr=False)


class Dialect(Protocol):
    """How a client introduces itself, and what it makes of the answers."""

    def connect(self) -> bytes:
        """Return a CONNECT."""
        ...

    def granted(self, body: bytes) -> Granted:
        """Read the body of a CONNACK.

        Raises:
            PerfError: The server has refused.
            ProtocolError: It is none.
        """
        ...

    def subscribe(self, filters: Sequence[tuple[str, int]]) -> bytes:
        """Return a SUBSCRIBE."""
        ...

    def subscribed(self, body: bytes) -> None:
        """Read the body of a SUBACK.

        Raises:
            PerfError: The server has refused.
            ProtocolError: It is none.
        """
        ...

    @property
    def hint(self) -> str:
        """What may be the matter with a server that does not answer."""
        ...


@attrs.frozen
class Mqtt311:
    """MQTT 3.1.1."""

    hello: Hello

    def connect(self) -> bytes:
        """See `Dialect.connect`."""
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
        """See `Dialect.granted`."""
        packet = decode(CONNACK << 4, body)
        assert isinstance(packet, ConnAck)
        code = packet.return_code
        if code != ConnectReturnCode.ACCEPTED:
            known = {int(each): words for each, words in _REFUSED.items()}
            msg = f"CONNECT was refused: {known.get(code, 'return code')} ({code})"
            raise PerfError(msg)
        return Granted()

    def subscribe(self, filters: Sequence[tuple[str, int]]) -> bytes:
        """See `Dialect.subscribe`."""
        return encode(Subscribe(1, tuple(filters)))

    def subscribed(self, body: bytes) -> None:
        """See `Dialect.subscribed`."""
        packet = decode(SUBACK << 4, body)
        assert isinstance(packet, SubAck)
        if SUBSCRIPTION_FAILED in packet.return_codes:
            raise PerfError("SUBSCRIBE was refused: the server does not grant a filter (0x80)")

    @property
    def hint(self) -> str:
        """See `Dialect.hint`."""
        return ""


@attrs.frozen
class Mqtt5:
    """MQTT 5; `prefetch` is the client's Receive Maximum."""

    hello: Hello
    prefetch: int | None

    def connect(self) -> bytes:
        """See `Dialect.connect`."""
        hello = self.hello
        return _mqtt5.connect(
            hello.client_id, hello.keep_alive, self.prefetch, hello.user, hello.password
        )

    def granted(self, body: bytes) -> Granted:
        """See `Dialect.granted`."""
        # One that does not know this version answers in its own (section 3.1.2.2).
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
        """See `Dialect.subscribe`."""
        return _mqtt5.subscribe(1, filters)

    def subscribed(self, body: bytes) -> None:
        """See `Dialect.subscribed`."""
        _mqtt5.subscribed(body)

    @property
    def hint(self) -> str:
        """See `Dialect.hint`."""
        return f": it may not speak MQTT 5. {NOT_5}"
