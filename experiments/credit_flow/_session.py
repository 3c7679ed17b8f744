"""An MQTT client's connection, in a relay whose readers wait for credit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clearfunds.accounts import Account
from clearfunds.accounts.limits._limit import UNLIMITED
from clearfunds.transports._flusher import OUTLETS_A_STEP
from clearfunds.transports.mqtt.server._forwarder import Forwarder
from clearfunds.transports.mqtt.server._runs import Run, find_run
from clearfunds.transports.mqtt.server._session import MqttSession

if TYPE_CHECKING:
    from clearfunds.transports._link import Link
    from clearfunds.transports._scheduler import Work
    from clearfunds.transports.mqtt.codec._connection import Connection
    from clearfunds.transports.mqtt.server._client import Client
    from clearfunds.transports.mqtt.server._replays import Replays
    from clearfunds.transports.mqtt.server._server import MqttServer

    from ._scheme import CreditScheme


class CreditForwarder(Forwarder):
    """Forwards a run of publications as far as there is credit for it."""

    __slots__ = ("_scheme",)

    def __init__(
        self,
        scheme: CreditScheme,
        client: Client,
        connection: Connection,
        work: Work,
        replays: Replays,
    ) -> None:
        super().__init__(client, connection, work, replays)
        self._scheme = scheme

    def _forward(self, account: Account, run: Run) -> None:
        scheme, server = self._scheme, self._server
        holders = run.destinations.holders
        room = scheme.room(account, holders)
        if run.count > room:
            # `find_run` cuts a run by room for borrowing: pass the room that fits `room` messages.
            cut = find_run(
                self._connection.buffer,
                self._connection.position,
                server.dataspace.routes.by_key,
                server.resolve,
                ((room - 1) * (len(holders) + 1), UNLIMITED),
                self._connection.max_packet_size,
            )
            assert cut is not None
            run = cut
        super()._forward(account, run)
        # Outlets that take messages at once may give new credit right away.
        if scheme.is_blocked(account) and len(server.flusher.dirty) <= OUTLETS_A_STEP:
            server.flusher.flush_now()


class CreditMqttSession(MqttSession):
    """One client's connection."""

    __slots__ = ("_scheme",)

    def __init__(self, scheme: CreditScheme, server: MqttServer, link: Link, listener: str) -> None:
        super().__init__(server, link, listener)
        self._scheme = scheme

    def _close(self) -> None:
        """See `Session._close`; other accounts that paid for its topics are no readers any more."""
        payers = () if self._forwarder is None else tuple(self._forwarder.billing.others)
        super()._close()
        for payer in payers:
            self._scheme.leaves(payer)

    def _make_forwarder(self, client: Client) -> Forwarder:
        return CreditForwarder(self._scheme, client, self._connection, self._work, self._replays)
