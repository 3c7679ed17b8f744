"""Options that `clearfunds pub` and `clearfunds sub` share: the server's address and the login."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, TypeVar, TypeVarTuple

import attrs
import trio
from cyclopts import Group, Parameter

from clearfunds.sockets import trouble_with_connecting
from clearfunds.transports import LocalProtocolError, TransportError
from clearfunds.transports.mqtt import MqttAddress, MqttClient, open_mqtt, without_password

from ._client_tls import ClientTls
from ._errors import CommandFailedError, UsageError
from ._mqtt5_options import Version, version_of
from ._running import run_async
from ._types import Count

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@Parameter(name="*", group=Group("Connection", sort_key=5))
@attrs.frozen
class ClientOptions:
    """The server's address, and the client's login."""

    url: Annotated[
        str,
        Parameter(
            name=["--url", "-u"],
            help="Server: mqtt://HOST:PORT, mqtts://HOST:PORT with TLS (port 8883), HOST:PORT or "
            "mqtt+unix:///PATH; USER:PASSWORD@ may stand in front of the host.",
        ),
    ] = "mqtt://127.0.0.1:1883"
    client_id: Annotated[
        str,
        Parameter(
            name=["--client-id", "-i"], help="Client identifier; empty: chosen by the relay."
        ),
    ] = ""
    username: Annotated[str | None, Parameter(help="User name; goes before one in the URL.")] = None
    password: Annotated[
        str | None,
        Parameter(help="Password; safer in the environment, where `ps` does not show it."),
    ] = None
    keep_alive: Annotated[
        Count,
        Parameter(
            help="Keep-alive, in seconds of silence; then the relay disconnects this client."
        ),
    ] = 60
    mqtt: Annotated[
        Version | None,
        Parameter(
            show_default=False,
            help="MQTT version [default: 3.1.1, or 5 if an option needs it].",
        ),
    ] = None
    tls: ClientTls = ClientTls()  # noqa: RUF009  (frozen)


@asynccontextmanager
async def connected(
    options: ClientOptions,
    *,
    needs_5: Sequence[str] = (),
    clean_session: bool = True,
    manual_ack: bool = False,
    receive_maximum: int | None = None,
    session_expiry: int | None = None,
) -> AsyncGenerator[MqttClient]:
    """Connect according to the options, for the length of the block; see `open_mqtt`.

    Args:
        options: See above.
        needs_5: The given options that need MQTT 5.
        clean_session: See `open_mqtt`, as for the rest.
        manual_ack: See there.
        receive_maximum: See there.
        session_expiry: See there.
    """
    version = version_of(options.mqtt, needs_5)
    try:
        target = MqttAddress.parse(options.url)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if not target.tls:
        options.tls.refuse_without_tls(without_password(options.url))
    if target.path:
        try:
            where: trio.SocketStream | str = await trio.open_unix_socket(target.path)
        except OSError as error:
            msg = f"cannot connect to {target.path}: {trouble_with_connecting(error)}"
            raise CommandFailedError(msg) from error
    else:
        where = target.host
    async with open_mqtt(
        where,
        None if target.path else target.port,
        version=version,
        receive_maximum=receive_maximum,
        session_expiry=session_expiry,
        client_id=options.client_id,
        clean_session=clean_session,
        manual_ack=manual_ack,
        username=target.username if options.username is None else options.username,
        password=target.password if options.password is None else options.password,
        keep_alive=options.keep_alive,
        tls=options.tls.context() if target.tls else None,
    ) as client:
        yield client


def run_client(function: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
    """Run a client's asynchronous part; errors of its connection become one line.

    Raises:
        UsageError: A topic, a filter or another value is invalid in MQTT.
        CommandFailedError: There is no connection, or it was refused or lost.
    """
    try:
        return run_async(function, *args)
    except LocalProtocolError as error:
        raise UsageError(str(error)) from error
    except TransportError as error:
        raise CommandFailedError(str(error)) from error
