"""`open_mqtt`: a client, with its tasks and its socket, for the length of an `async with` block."""

import contextlib
import ssl
from collections.abc import AsyncGenerator
from typing import Final, Literal

import attrs
import trio

from ....sockets import TransportError
from ..._connecting import NoConnectionError, open_stream
from ..._errors import LocalProtocolError
from ..._one_error import one_error
from ..codec._connection import Connection, Role
from ..codec._frames import DEFAULT_MAX_PACKET_SIZE
from ..codec._granted import Granted
from ..codec._packets import ConnAck, Connect, Will
from ..codec._packets5 import PROTOCOL_LEVEL_5
from ..codec._properties import FOR_EVER, NO_PROPERTIES, Properties
from ._client import MqttClient
from ._dialects import DIALECTS
from ._greeting import greet
from ._session import ClientSession

MQTT_PORT: Final = 1883
MQTT_TLS_PORT: Final = 8883
"""The registered ports of MQTT over TCP, and over TLS [MQTT section 4.2]."""


@contextlib.asynccontextmanager
async def open_mqtt(
    stream_or_host: trio.abc.Stream | str,
    port: int | None = None,
    *,
    version: Literal["3.1.1", "5"] = "3.1.1",
    client_id: str = "",
    clean_session: bool = True,
    session: ClientSession | None = None,
    session_expiry: int | None = None,
    keep_alive: int = 60,
    username: str | None = None,
    password: bytes | str | None = None,
    will: Will | None = None,
    max_buffered: int = 1_000,
    max_buffered_bytes: int = 8 << 20,
    max_inflight: int = 20,
    receive_maximum: int | None = None,
    max_topic_alias: int = 0,
    properties: Properties = NO_PROPERTIES,
    manual_ack: bool = False,
    max_packet_size: int = DEFAULT_MAX_PACKET_SIZE,
    connect_timeout: float = 10.0,
    ping_timeout: float | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncGenerator[MqttClient, None]:
    """Connect to an MQTT server, for the length of an `async with` block.

    Leaving the block normally calls `MqttClient.disconnect`, which finishes all publications.
    Leaving it by an exception or a cancellation closes the connection without DISCONNECT: the
    server publishes the will, and unwritten data is lost. Either way no task and no socket is left,
    and exceptions come out unwrapped, not in a group.

    Args:
        stream_or_host: a connected stream, which is closed at the end, or a host name or address.
        port: the TCP port, if a host is given; 1883 by default, 8883 with `tls`.
        version: the version of MQTT: 3.1.1 by default, which every server speaks; 5 has properties
            and reasons. With 3.1.1, arguments that are only for 5 are refused.
        client_id: the client identifier; empty asks the server to choose one.
        clean_session: whether the server discards this client's session at the start and at the
            end; in MQTT 5 only at the start (clean start), for the end see `session_expiry`.
        session: the client's state from one connection to the next, to send again; needs a
            persistent session on the server. Without it the client keeps nothing.
        session_expiry: seconds that the server keeps the session after the connection, in MQTT 5;
            0xFFFFFFFF: for ever. By default as with 3.1.1: for ever if not `clean_session`,
            otherwise not at all.
        keep_alive: seconds of silence after which the server may drop this client; 0: never. The
            client sends a ping after three quarters of it.
        username: the user's name.
        password: the user's password; a `str` is sent as UTF-8.
        will: the message for the server to publish if the connection ends without DISCONNECT.
        max_buffered: messages buffered before the client stops reading its socket.
        max_buffered_bytes: bytes of topics and payloads buffered before it does.
        max_inflight: the in-flight window: unacknowledged publications of QoS 1 and 2; further ones
            wait. 20, as mosquitto's `max_inflight_messages`: it ends a connection with more QoS 2
            publications begun. A larger window keeps a pipelined sender busy, if the server has
            room. In MQTT 5 the server's Receive Maximum may make it smaller.
        receive_maximum: unacknowledged messages of QoS 1 and 2 that the server may send, in MQTT 5,
            1 to 65,535; None: no limit. A server that sends more is tolerated (mosquitto 2.0.11
            does): `max_buffered` bounds the buffer.
        max_topic_alias: the largest topic alias that the server may use, in MQTT 5; 0: none.
        properties: further properties of CONNECT, in MQTT 5, as user properties.
        manual_ack: whether `MqttClient.ack` acknowledges messages of QoS 1 and 2, when their
            consumer has finished them, instead of taking them.
        max_packet_size: the largest packet accepted from the server, in bytes.
        connect_timeout: seconds until CONNACK must have come, including the time to connect and the
            TLS handshake.
        ping_timeout: seconds without a byte from the server after which an unanswered ping means
            that the server is gone; as long as `keep_alive` by default.
        tls: the context that encrypts the connection to a host; the server's certificate must be
            for that host. `Certificates.for_client` of `clearfunds.sockets` makes one.

    Raises:
        ConnectRefusedError: the server refused the connection, with a reason.
        ConnectionLostError: the connection ended before CONNACK, or before the block did.
        RemoteProtocolError: the server does not speak MQTT.
        LocalProtocolError: the arguments make no valid CONNECT, or do not match the session.
        ValueError: a buffer or the window has no place at all; or `tls` is given, and a stream.
        TransportError: there is no connection to that host and port, or no answer in time; or the
            TLS handshake failed, or the server wants a certificate that it did not get.
    """
    if isinstance(password, str):
        password = password.encode()
    if tls is not None and not isinstance(stream_or_host, str):
        raise ValueError("tls is for a host; a stream brings its own encryption, or none")
    connect = Connect(client_id, clean_session, keep_alive, username, password, will)
    if version == "5":
        connect = _in_version_5(
            connect, properties, session_expiry, receive_maximum, max_topic_alias, max_packet_size
        )
    elif session_expiry is not None or receive_maximum is not None or max_topic_alias:
        raise LocalProtocolError(
            "session_expiry, receive_maximum and max_topic_alias are for MQTT 5: open with "
            "version='5'"
        )
    else:
        connect = attrs.evolve(connect, properties=properties)  # which refuses them
    kept = not clean_session if version == "3.1.1" else bool(connect.properties.session_expiry)
    if session is not None and not kept:
        raise LocalProtocolError(
            "a clean session ends with its connection: a persistent session needs "
            "clean_session=False (section 3.1.2.4), or in MQTT 5 a session_expiry"
        )
    connection = Connection(
        Role.CLIENT, max_packet_size=max_packet_size, max_topic_alias=max_topic_alias
    )
    hello = connection.send(connect)
    with contextlib.nullcontext() if session is None else session.used_by(client_id, version):
        stream, connack = await _establish(
            stream_or_host, port, tls, connection, hello, connect_timeout
        )
        granted = Granted.of(connack)
        if granted.keep_alive is not None:
            keep_alive = granted.keep_alive
        try:
            client = MqttClient(
                stream,
                connection,
                DIALECTS[version](granted),
                client_id=client_id or granted.client_id,
                session_present=connack.session_present,
                keep_alive=keep_alive,
                ping_timeout=keep_alive if ping_timeout is None else ping_timeout,
                max_buffered=max_buffered,
                max_buffered_bytes=max_buffered_bytes,
                max_inflight=max_inflight,
                session=session,
                manual_ack=manual_ack,
            )
            try:
                with one_error():
                    async with trio.open_nursery() as nursery:
                        client.start(nursery)
                        yield client
                        await client.disconnect()
                        nursery.cancel_scope.cancel()
            finally:
                client.left()
        finally:
            await trio.aclose_forcefully(stream)


def _in_version_5(
    connect: Connect,
    properties: Properties,
    session_expiry: int | None,
    receive_maximum: int | None,
    max_topic_alias: int,
    max_packet_size: int,
) -> Connect:
    """Return a CONNECT in version 5, with its properties."""
    if session_expiry is None:
        session_expiry = 0 if connect.clean_session else FOR_EVER
    said = attrs.evolve(
        properties,
        session_expiry=session_expiry or None,
        receive_maximum=receive_maximum,
        topic_alias_maximum=max_topic_alias or None,
        maximum_packet_size=max_packet_size,
    )
    return attrs.evolve(connect, protocol_level=PROTOCOL_LEVEL_5, properties=said)


async def _establish(
    stream_or_host: trio.abc.Stream | str,
    port: int | None,
    tls: ssl.SSLContext | None,
    connection: Connection,
    hello: bytes,
    connect_timeout: float,
) -> tuple[trio.abc.Stream, ConnAck]:
    """Connect, send CONNECT and wait for a CONNACK that accepts; close the stream otherwise."""
    if port is None:
        port = MQTT_PORT if tls is None else MQTT_TLS_PORT
    where = f"{stream_or_host} port {port}" if isinstance(stream_or_host, str) else "the stream"
    try:
        with trio.move_on_after(connect_timeout):
            if isinstance(stream_or_host, str):
                stream_or_host = await open_stream(stream_or_host, port, tls=tls)
            try:
                return stream_or_host, await greet(stream_or_host, connection, hello)
            except BaseException:
                await trio.aclose_forcefully(stream_or_host)
                raise
    except NoConnectionError as exc:
        raise TransportError(f"cannot connect to {where}: {exc}") from exc
    spoken = "no MQTT server" if tls is None else "no MQTT server with TLS"
    raise TransportError(f"{spoken} answered on {where} within {connect_timeout:g} s")
