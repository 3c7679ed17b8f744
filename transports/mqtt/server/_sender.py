"""The server's own packets to one client: its answers, refusals, and the last DISCONNECT."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from ..._errors import LocalProtocolError
from ..codec._connection import State
from ..codec._packets import ConnAck, ConnectReturnCode, Disconnect
from ..codec._packets5 import PROTOCOL_LEVEL_5
from ..codec._properties import NO_PROPERTIES
from ..codec._reasons import Reason
from ._fitting import fitting, too_large
from ._mqtt5 import with_reason
from ._publisher_acks import ACKNOWLEDGING

if TYPE_CHECKING:
    from ....accounts import Account
    from ..._link import Link
    from ..._outlet import Outlet
    from ..codec._connection import Connection
    from ..codec._packets import Packet
    from ._mqtt5 import Mqtt5
    from ._server import MqttServer

REASONS: Final[dict[int, Reason]] = {
    ConnectReturnCode.UNACCEPTABLE_PROTOCOL_LEVEL: Reason.UNSUPPORTED_PROTOCOL_VERSION,
    ConnectReturnCode.IDENTIFIER_REJECTED: Reason.CLIENT_IDENTIFIER_NOT_VALID,
    ConnectReturnCode.SERVER_UNAVAILABLE: Reason.SERVER_UNAVAILABLE,
    ConnectReturnCode.BAD_USER_NAME_OR_PASSWORD: Reason.BAD_USER_NAME_OR_PASSWORD,
    ConnectReturnCode.NOT_AUTHORIZED: Reason.NOT_AUTHORIZED,
}
"""The reason codes of MQTT 5 for the return codes of a CONNACK in 3.1.1."""


class Sender:
    """Sends the server's own packets on one connection.

    Args:
        server: The server.
        link: The connection's socket.
        outlet: The connection's outlet.
        connection: The connection's protocol state.

    Attributes:
        outlet: See above.
        account: The client's account, which owes for them; None before the client is let in, and
            after it has left.
        mqtt5: The client's side of MQTT 5, if it speaks that.
        parting: The reason that a client is told if it is cut.
    """

    __slots__ = ("_connection", "_link", "_server", "account", "mqtt5", "outlet", "parting")

    def __init__(
        self, server: MqttServer, link: Link, outlet: Outlet, connection: Connection
    ) -> None:
        self._server = server
        self._link = link
        self._connection = connection
        self.outlet = outlet
        self.account: Account | None = None
        self.mqtt5: Mqtt5 | None = None
        # There are few reasons to cut a client but that it does not keep up.
        self.parting: int = Reason.QUOTA_EXCEEDED

    def send(self, packet: Packet) -> None:
        """Send a packet on the client's own account (rule 2).

        After a DISCONNECT of the server nothing is sent [MQTT-3.14.4-2]; publications before it may
        be due to be acknowledged then.
        """
        if self._connection.state is State.CLOSED:
            return
        data = self._connection.send(packet)
        mqtt5 = self.mqtt5
        largest = None if mqtt5 is None else mqtt5.max_packet_size
        if largest is not None and len(data) > largest:
            fits = self.fitting(packet)
            if fits is None:
                self.cut(too_large(packet, largest), Reason.PACKET_TOO_LARGE)
                return
            data = self._connection.send(fits)
        account = self.account
        assert account is not None
        account.borrow(1, len(data))
        self.outlet.hold(account, data, 1, len(data), self._server.ledger.clock())

    def send_later(self, packet: Packet) -> None:
        """Send a packet that had to wait for the disk, if the client is still there."""
        if self.account is not None and self._connection.state is State.CONNECTED:
            self._server.ledger.faults.call(self.outlet, ACKNOWLEDGING, self.send, packet)
            self._server.flusher.ready()

    def send_unowed(self, packet: Packet) -> None:
        """Send a packet before there is an account that could owe for it."""
        data = self._connection.send(packet)
        # A client that does not read it waits in vain, and is cut off in time (`connect_timeout`).
        with contextlib.suppress(OSError):
            self._link.sock.send(data)

    def fitting(self, packet: Packet, largest: int | None = None) -> Packet | None:
        """Return a packet as the client accepts it; None if it is too large (`fitting`).

        `largest` counts where no more is known of the client.
        """
        return fitting(packet, largest if self.mqtt5 is None else self.mqtt5.max_packet_size)

    def refuse(self, return_code: int, why: str = "", largest: int | None = None) -> None:
        """Answer a CONNECT whose client is not let in; `largest`: see `fitting`."""
        properties = NO_PROPERTIES
        if self._connection.version == PROTOCOL_LEVEL_5:
            return_code = REASONS.get(return_code, return_code)
            properties = with_reason(why) if why else NO_PROPERTIES
        answer = self.fitting(ConnAck(False, return_code, properties), largest)
        if answer is not None:
            self.send_unowed(answer)

    def cut(self, why: str, reason: int | None = None) -> None:
        """End the connection from this side; a client with MQTT 5 is told the `reason`."""
        if reason is not None:
            self.parting = reason
        self._link.cut(why)

    def disconnect(self, reason: int, why: str) -> bool:
        """Send a client with MQTT 5 the last DISCONNECT, if that is possible; whether it was.

        If something is unsent, it is not sent: the client does not read, or gets only the rest of a
        packet.
        """
        connection, outlet = self._connection, self.outlet
        if connection.version != PROTOCOL_LEVEL_5 or self._link.closed:
            return False
        if not outlet.blocked:
            self._server.flusher.flush_now()
        if outlet.unsent or outlet.closed:
            return False
        last = self.fitting(Disconnect(reason, with_reason(why)))
        if last is None:
            return False
        try:
            data = connection.send(last)
        except LocalProtocolError:
            return False  # it is closed already
        with contextlib.suppress(OSError):
            self._link.sock.send(data)
            return True
        return False
