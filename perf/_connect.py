"""Connecting to a server: a socket on which it has accepted CONNECT and the subscriptions."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal

import attrs
import trio

from ..transports import RemoteProtocolError, TransportError
from ..transports._connecting import SocketStream, open_stream
from ..transports.mqtt import (
    NO_PROPERTIES,
    PROTOCOL_LEVEL_5,
    Connect,
    Connection,
    ConnectionLostError,
    ConnectRefusedError,
    Disconnect,
    Granted,
    Properties,
    Publish,
    Reason,
    Role,
    SubAck,
    Subscribe,
)
from ..transports.mqtt.client._errors import why_disconnected
from ..transports.mqtt.client._greeting import greet, next_packet
from ..transports.mqtt.client._requests import Request
from ..transports.mqtt.codec._frames import MAX_REMAINING_LENGTH
from ..transports.mqtt.codec._packets import PROTOCOL_LEVEL
from ._errors import PerfError

if TYPE_CHECKING:
    from ..sockets._layer import Connected

KEEP_ALIVE: Final = 60
"""Seconds; a ping goes out each half of it, stalled or not."""

TIMEOUT: Final = 10.0
"""Seconds within which a server must answer."""

READ_BYTES: Final = 1 << 18

NOT_5: Final = (
    "With MQTT 3.1.1 (no --mqtt, no --prefetch) the prefetch is an option of the server's: "
    "--max-inflight of clearfunds relay, max_inflight_messages of mosquitto"
)
"""Advice for a server without MQTT 5."""


@attrs.frozen
class Opened:
    """A connection that the server has accepted."""

    sock: Connected
    """A non-blocking socket."""
    rest: bytes
    """Bytes of the client's subscriptions that have come already."""
    granted: Granted


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
        prefetch: Its Receive Maximum, in MQTT 5; None: no limit.
        tls: The TLS context; None: without TLS.

    Without a Session Expiry Interval (MQTT 5, section 3.1.2.11.2) its session ends with the
    connection, as the clean sessions of MQTT 3.1.1 do.

    Raises:
        PerfError: The server is not reachable, refuses, or speaks something else.
    """
    is_5 = version == "5"
    hint = f": it may not speak MQTT 5. {NOT_5}" if is_5 else ""
    connection = Connection(Role.CLIENT, max_packet_size=MAX_REMAINING_LENGTH + 5)
    hello = connection.send(
        Connect(
            client_id,
            keep_alive=KEEP_ALIVE,
            username=user[0],
            password=user[1],
            protocol_level=PROTOCOL_LEVEL_5 if is_5 else PROTOCOL_LEVEL,
            properties=Properties(receive_maximum=prefetch) if is_5 else NO_PROPERTIES,
        )
    )
    stream: SocketStream | None = None
    try:
        with trio.fail_after(TIMEOUT):
            stream = await open_stream(host, port, tls=tls, receive_buffer=receive_buffer)
            granted = Granted.of(await greet(stream, connection, hello))
            rest = await _subscribe(stream, connection, filters) if filters else b""
            return Opened(stream.socket, rest + connection.take_unparsed(), granted)
    except BaseException as error:
        if stream is not None:
            stream.socket.close()
        why = str(error)
        match error:
            case trio.TooSlowError():
                is_silent = stream is None and tls is not None
                hint = ": it may not speak TLS there" if is_silent else hint
                why = f"no answer within {TIMEOUT:g} s{hint}"
            case ConnectRefusedError(return_code=Reason.UNSUPPORTED_PROTOCOL_VERSION):
                why = (
                    "the server does not speak MQTT 5 (its CONNACK says: unacceptable protocol "
                    f"version). {NOT_5}"
                )
            case ConnectionLostError() if is_5:
                why = f"{error}. {NOT_5}"
            case TransportError() | trio.BrokenResourceError():
                pass
            case _:
                raise
        msg = f"{client_id} at {host}:{port}: {why}"
        raise PerfError(msg) from error


async def _subscribe(
    stream: SocketStream, connection: Connection, filters: Sequence[tuple[str, int]]
) -> bytes:
    """Subscribe; return the messages that came before the answer, encoded.

    Raises:
        TransportError: The server refused a filter, or ended the connection.
    """
    await stream.send_all(connection.send(Subscribe(1, tuple(filters))))
    early: list[bytes] = []
    while True:
        match await next_packet(stream, connection):
            case Publish() as message:
                # Retained messages may come first (section 3.8.4 of both versions); they, too,
                # count as unacknowledged.
                early.append(connection.send(message))
            case SubAck() as packet:
                names = tuple(name for name, _ in filters)
                words = packet.properties.reason_string
                Request(SubAck, names, packet.return_codes, words).check()
                return b"".join(early)
            case Disconnect() as packet:
                raise ConnectionLostError(why_disconnected(packet))
            case None:
                raise ConnectionLostError("the server closed the connection")
            case packet:
                name = type(packet).__name__.upper()
                raise RemoteProtocolError(f"SUBSCRIBE was answered with {name}")
