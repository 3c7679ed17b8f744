"""The beginning of a connection, from the protocol header to connection.open.

    client: header  start-ok  [secure-ok]  tune-ok  open
    server: start             [secure]     tune            open-ok

Before connection.open nobody owes for what the client is sent: it is a few hundred bytes.

Source: AMQP 0-9-1, sections 2.2.4 and 1.4.2; rabbit_reader.erl of RabbitMQ 3.10, whose texts these
are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

import attrs
from pamqp.commands import Connection

from ...access._tenants import NO_USER, Peer, printable
from ._connection import ConnectionInput, State
from ._frames import MIN_FRAME_SIZE, method_frame
from ._login import Login
from ._replies import AmqpError, Code, Method

if TYPE_CHECKING:
    from ...accounts import Account
    from ...dataspace.exchanges import VirtualHost
    from .._link import Link
    from ..mqtt.server._place import Place
    from ._server import AmqpServer

_OPEN: Final[Method] = (10, 40)
_TUNE_OK: Final[Method] = (10, 31)


class UnknownHostError(Exception):
    """There is no virtual host of that name."""


@attrs.frozen(slots=True)
class Opened:
    """A client that has been let into a virtual host."""

    peer: Peer
    client: str
    """Its connection's name, or its address."""
    host: VirtualHost
    account: Account
    place: Place | None
    """Its place among its user's and its tenant's connections."""


class Negotiation:
    """The negotiation of one connection.

    Args:
        server: The server.
        link: The client's socket.
        listener: The name of the listener that it came by.
        incoming: Its input, whose state this moves on.
        send: Sends a frame before there is an account that could owe for it.

    Attributes:
        login: See `Login`.
        frame_size: Most bytes of a frame; 0: any number.
        heartbeat: Seconds between heartbeats; 0: none.
        wants_close: Whether the client is told that its login has failed.
        wants_cancel: Whether it wants to hear that a consumer was cancelled.
        wants_blocked: Whether it wants to hear that it is not read.
    """

    __slots__ = (
        "_incoming", "_link", "_listener", "_name", "_send", "_server", "frame_size", "heartbeat",
        "login", "wants_blocked", "wants_cancel", "wants_close",
    )  # fmt: skip

    def __init__(
        self,
        server: AmqpServer,
        link: Link,
        listener: str,
        incoming: ConnectionInput,
        send: Callable[[bytes], object],
    ) -> None:
        self._server = server
        self._link = link
        self._listener = listener
        self._incoming = incoming
        self._send = send
        self._name: str | None = None
        self.login = Login(server, link)
        self.frame_size = MIN_FRAME_SIZE
        self.heartbeat = 0
        self.wants_close = self.wants_cancel = self.wants_blocked = False

    @property
    def user(self) -> str:
        """The client's user; "" if it has none."""
        user = self.login.user
        return "" if user is None or user.name is None else user.name

    def greet(self) -> None:
        """Answer the protocol header."""
        self._incoming.state = State.START
        start = Connection.Start(0, 9, self._server.properties, self.login.mechanisms, "en_US")
        self._send(method_frame(0, start))

    def start(self, said: Connection.StartOk) -> bool:
        """Take the client's choice of a mechanism; False: its login is undecided yet.

        Raises:
            AmqpError: If it is not let in.
        """
        properties = cast("dict[str, object]", said.client_properties or {})
        capabilities = properties.get("capabilities")
        if isinstance(capabilities, dict):
            known = cast("dict[str, object]", capabilities)
            self.wants_close = known.get("authentication_failure_close") is True
            self.wants_cancel = known.get("consumer_cancel_notify") is True
            self.wants_blocked = known.get("connection.blocked") is True
        name = properties.get("connection_name")
        if isinstance(name, str) and name:
            self._name = printable(name)[: self._server.settings.max_client_id]
        self.login.begin(said.mechanism, cast("bytes", said.response))
        return not self.login.undecided

    def tune(self) -> None:
        """Propose limits to a client that is let in."""
        settings = self._server.settings
        self._incoming.state = State.TUNE
        tune = Connection.Tune(settings.max_channels, settings.max_frame_size, settings.heartbeat)
        self._send(method_frame(0, tune))

    def tuned(self, said: Connection.TuneOk) -> None:
        """Take the limits that the client has chosen.

        Raises:
            AmqpError: If they are not within those proposed.
        """
        settings = self._server.settings
        _check_negotiated("channel_max", said.channel_max, 1, settings.max_channels)
        _check_negotiated("frame_max", said.frame_max, MIN_FRAME_SIZE, settings.max_frame_size)
        self.frame_size = said.frame_max
        self.heartbeat = said.heartbeat
        self._incoming.tuned(said.channel_max, said.frame_max)
        self._incoming.state = State.OPENING

    def open(self, virtual_host: str) -> Opened:
        """Let the client into a virtual host.

        Raises:
            AmqpError: If it may not come in, or there is no room for it.
        """
        server, user = self._server, self.login.user
        assert user is not None
        client = self._name or printable(self._link.peer)
        peer = Peer(self._listener, printable(user.name) if user.name else NO_USER, client)
        try:
            host = server.host_of(virtual_host, peer)
        except UnknownHostError:
            raise AmqpError(Code.NOT_ALLOWED, f"vhost {virtual_host} not found", _OPEN) from None
        if host is None:
            raise self._refused(virtual_host, "")
        place = server.take_place(peer, proved=user.is_verified)
        if isinstance(place, str):
            raise self._refused(virtual_host, f": {place}")
        # Accounts have names: a client that comes back finds its debt again (rule 14).
        limit = server.settings.limit_of(peer.name, client)
        account = server.tree.open(peer, server.tree.of(peer).tenant, limit)
        self._incoming.state = State.OPEN
        return Opened(peer, client, host, account, place)

    def _refused(self, virtual_host: str, why: str) -> AmqpError:
        text = f"access to vhost '{virtual_host}' refused for user '{self.user}'{why}"
        return AmqpError(Code.NOT_ALLOWED, text, _OPEN)


def _check_negotiated(field: str, said: int, least: int, most: int) -> None:
    """Check what a client has negotiated; 0 is no limit.

    Raises:
        AmqpError: If it is not within the server's limits.
    """
    if said and said < least:
        than, allowed, bound = "lower", "minimum", least
    elif not said or said > most:
        than, allowed, bound = "higher", "maximum", most
    else:
        return
    shown = f"{said} (no limit)" if not said else str(said)
    raise AmqpError(
        Code.NOT_ALLOWED,
        f"negotiated {field} = {shown} is {than} than the {allowed} allowed value ({bound})",
        _TUNE_OK,
    )
