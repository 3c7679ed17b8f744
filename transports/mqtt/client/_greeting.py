"""The beginning of a connection: CONNECT, and the server's answer."""

from __future__ import annotations

import ssl
from typing import Final

import trio

from ....sockets import TlsSocket, trouble
from ..._connecting import READ_SIZE, NoConnectionError, SocketStream
from ..._need_data import NEED_DATA
from ..codec._connection import Connection
from ..codec._packets import PROTOCOL_LEVEL, ConnAck, ConnectReturnCode, Packet
from ..codec._packets5 import PROTOCOL_LEVEL_5
from ..codec._reasons import Reason
from ._errors import ConnectionLostError, ConnectRefusedError

_NAMES: Final = {PROTOCOL_LEVEL: "3.1.1", PROTOCOL_LEVEL_5: "5"}


async def greet(stream: trio.abc.Stream, connection: Connection, hello: bytes) -> ConnAck:
    """Send `hello`, the encoded CONNECT, and wait for a CONNACK that accepts.

    Cancellation: it may have been sent in part; close the stream.

    Raises:
        ConnectRefusedError: The server refused, with a reason.
        ConnectionLostError: The connection ended before CONNACK came.
        NoConnectionError: TLS failed.
        RemoteProtocolError: The server does not speak MQTT.
    """
    is_tls = isinstance(stream, SocketStream) and isinstance(stream.socket, TlsSocket)
    try:
        try:
            await stream.send_all(hello)
        except trio.BrokenResourceError:
            if is_tls:
                # With TLS 1.3 a server checks the client's certificate after the client's
                # handshake: it may have sent the reason before it closed.
                await stream.receive_some(READ_SIZE)
            raise
        packet = await next_packet(stream, connection)
    except trio.BrokenResourceError as exc:
        if isinstance(exc.__cause__, ssl.SSLError):
            raise NoConnectionError(trouble(exc.__cause__)) from exc
        msg = "the connection broke before CONNACK came"
        if is_tls:
            # Its TLS alert may have come too late to be read.
            msg += "; with TLS the server may want a client's certificate, or another one"
        raise ConnectionLostError(msg) from exc
    if packet is None:
        raise ConnectionLostError(
            "the server closed the connection instead of answering CONNECT; it may not speak MQTT "
            f"{_NAMES[connection.version]}, or only with TLS (mqtts://), or may refuse this client"
        )
    assert isinstance(packet, ConnAck)  # the connection lets nothing else pass first
    if not packet.return_code:
        return packet
    if connection.version != PROTOCOL_LEVEL_5:
        raise ConnectRefusedError(ConnectReturnCode(packet.return_code))
    said = packet.properties
    raise ConnectRefusedError(Reason(packet.return_code), said.reason_string, said.server_reference)


async def next_packet(stream: trio.abc.Stream, connection: Connection) -> Packet | None:
    """Wait for the server's next packet; None: it closed the connection.

    Raises:
        RemoteProtocolError: The server broke the protocol.
        trio.BrokenResourceError: The connection broke.
    """
    while (packet := connection.next_packet()) is NEED_DATA:
        data = await stream.receive_some(READ_SIZE)
        if not data:
            return None
        connection.receive_data(bytes(data))
    return packet
