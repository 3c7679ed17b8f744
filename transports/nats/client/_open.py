"""`open_nats`: a client, with its tasks and its socket, for the length of an `async with` block."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncGenerator, Callable, Iterable

import trio

from ..._one_error import one_error
from ..codec._parser import DEFAULT_MAX_MESSAGE_SIZE
from ..codec._subjects import check_subject
from ._client import NatsClient
from ._link import Wishes
from ._login import Login
from ._servers import ServerPool


@contextlib.asynccontextmanager
async def open_nats(
    servers: str | Iterable[str] = "nats://127.0.0.1:4222",
    *,
    name: str = "clearfunds",
    login: Login | Callable[[], Login] | None = None,
    tls: ssl.SSLContext | None = None,
    tls_first: bool = False,
    echo: bool = True,
    shuffle: bool = True,
    connect_timeout: float = 5.0,
    ping_interval: float = 20.0,
    inbox_prefix: str = "_INBOX",
    max_message_size: int = DEFAULT_MAX_MESSAGE_SIZE,
) -> AsyncGenerator[NatsClient, None]:
    """Connect to a NATS server, or a cluster, for the length of an `async with` block.

    When a connection is lost, the client connects again, to any server of the cluster, until the
    block is left. Leaving it normally sends what is in the send buffer; leaving it by an exception
    or a cancellation does not. Either way no task and no socket is left, and exceptions come out
    unwrapped, not in a group.

    Args:
        servers: Addresses, as nats://HOST:PORT or tls://HOST:PORT, with USER:PASSWORD@ or TOKEN@ if
            need be; several in one string have commas between them. One is enough: it tells the
            client of the others.
        name: The client's name, which the server's monitoring shows.
        login: The login, or a function that makes it for each connection, for one that changes
            (`partial(Login.from_credentials, path)`). One in a URL comes first.
        tls: The context to encrypt the connection with; by default the system's authorities are
            trusted, if the server or the URL wants TLS. `Certificates.for_client` of
            `clearfunds.sockets` makes one.
        tls_first: Whether TLS begins before the server's first line (its option
            `handshake_first`).
        echo: Whether this client's messages come to its own subscriptions, too.
        shuffle: Whether the order of servers is random.
        connect_timeout: Seconds for each server, TLS and login included.
        ping_interval: Seconds of silence after which the client asks whether the server is there;
            after twice as many the connection is lost.
        inbox_prefix: The beginning of subjects for answers, if the server does not allow `_INBOX`.
        max_message_size: The most bytes of a message's headers and payload.

    Raises:
        TransportError: No server accepts; the message says why each did not. A `LoginError` if
            the login cannot be used.
        LocalProtocolError: An address or the prefix is wrong.
        ValueError: `ping_interval` is not positive.
    """
    check_subject(inbox_prefix)
    wishes = Wishes(
        name=name,
        login=login,
        tls=tls,
        tls_first=tls_first,
        echo=echo,
        max_message_size=max_message_size,
        connect_timeout=connect_timeout,
    )
    client = NatsClient(
        ServerPool(servers, shuffle=shuffle),
        wishes,
        ping_interval=ping_interval,
        inbox_prefix=inbox_prefix,
    )
    try:
        with one_error():
            async with trio.open_nursery() as nursery:
                await nursery.start(client.run)
                yield client
                await client.leave()
                nursery.cancel_scope.cancel()
    finally:
        client.left()
