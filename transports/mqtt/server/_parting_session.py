"""The end of one MQTT client's connection: its last DISCONNECT, subscriptions, will and name.

Rules of this file, beyond those of every session (`.._session`):
1. However the connection ends, its subscriptions are taken back and its will is published (or not,
   as it was agreed), on the connection's own account (rule 2).
2. Nothing is sent after a DISCONNECT of either side.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from ....accounts import Account
from ....dataspace import Publication
from ..._errors import RemoteProtocolError
from ..._link import Link
from ..._session import Session
from ..codec._connection import Connection, Role, State
from ..codec._packets import Disconnect, encode_publish
from ..codec._packets5 import PROTOCOL_LEVEL_5
from ..codec._reasons import Reason, reason_of
from ._entry import Entry
from ._forwarder import Forwarder
from ._incoming import Incoming
from ._inflight import Inflight
from ._persistent_inflight import PersistentInflight
from ._persistent_session import PersistentSession
from ._plain_packets import PlainPackets
from ._publisher import Publisher
from ._replays import Replays
from ._sender import Sender
from ._subscriber import Subscriber

if TYPE_CHECKING:
    from ._server import MqttServer


def frame(item: Publication | bytes) -> bytes:
    """Make bytes of what reaches an outlet: a publication for at-most-once, or a packet."""
    if isinstance(item, bytes):
        return item
    return encode_publish(item.topic, item.payload, retain=item.retain)


class PartingSession(Session["MqttServer", Account | None]):
    """One client's connection: the parts that serve it, and how it parts from them.

    Attributes:
        client_id: As the client said, or as the server named it; "" before CONNECT.
        account: Who pays for what it causes; None before CONNECT.
    """

    __slots__ = (
        "_connection", "_entry", "_forwarder", "_incoming", "_plain", "_publisher", "_replays",
        "_sender", "_subscriber", "client_id",
    )  # fmt: skip

    def __init__(self, server: MqttServer, link: Link) -> None:
        # Until it has said who it is, it is known by where it comes from.
        super().__init__(server, link, link.peer, frame=frame)
        settings = server.settings
        self.outlet.fair = settings.fair
        self._connection = Connection(
            Role.SERVER,
            max_packet_size=settings.max_packet_size,
            topic_limits=server.topics,
            max_topic_alias=settings.max_topic_alias,
            max_connect_size=settings.max_connect_size,
        )
        self._incoming = Incoming(self._connection, self.outlet)
        self._sender = Sender(server, link, self.outlet, self._connection)
        self.client_id = ""
        self.account = None
        self._entry: Entry | None = None
        self._publisher: Publisher | None = None
        self._subscriber: Subscriber | None = None
        self._forwarder: Forwarder | None = None
        self._replays = Replays()
        self._plain: PlainPackets | None = None

    @property
    def _who(self) -> str:
        """The client, for the log."""
        peer = self._link.peer
        return f"{self.name} ({peer})" if self.client_id else peer

    @property
    def _account_name(self) -> str | None:
        return self.name if self.client_id else None

    def expel(self, why: str) -> None:
        """See `Session.expel`."""
        self._sender.cut(why, Reason.ADMINISTRATIVE_ACTION)

    def _handle_disconnect(self, packet: Disconnect) -> None:
        """Let a client go; in MQTT 5 it may want its will published, or its session kept longer."""
        self._stop_acking()  # nothing is sent to it any more [MQTT-3.14.4-1]
        inflight = self._unacknowledged()
        if isinstance(inflight, PersistentInflight):
            inflight.leave()
        if self._entry is not None:  # None: it gives up while it authenticates
            self._entry.says_goodbye(packet)

    async def _take_leave(self, why: str) -> None:
        """See `Session._take_leave`; who has left already has read what it wanted to."""
        if not self._eof:
            self._part(
                Reason.SERVER_SHUTTING_DOWN if self._server.stopping else self._sender.parting, why
            )
        if not (self._eof or self._link.says_goodbye):
            await super()._take_leave(why)

    async def _say_why(self, fault: RemoteProtocolError) -> None:
        """See `Session._say_why`: MQTT 5 can."""
        if self._connection.version != PROTOCOL_LEVEL_5 or self.account is None:
            return
        if self._part(reason_of(fault), str(fault)) and not self._link.says_goodbye:
            # Closed with input unread, the kernel would drop what the client has not read yet.
            await self._linger()

    def _part(self, reason: int, why: str) -> bool:
        """See `Sender.disconnect`."""
        told = self._sender.disconnect(reason, why)
        if self._connection.state is State.CLOSED:
            self._stop_acking()  # nothing follows it [MQTT-3.14.4-1]
        return told

    def _stop_acking(self) -> None:
        if self._publisher is not None:
            self._publisher.stop_acking()

    def _unacknowledged(self) -> Inflight | PersistentInflight | None:
        subscriber = self._subscriber
        return None if subscriber is None else subscriber.subscriptions.inflight

    def _withdraw(self, reason: str) -> None:
        """Take back the subscriptions, publish the will, and give up the name."""
        server = self._server
        self._give_up_name()
        account, entry = self.account, self._entry
        if entry is not None:
            entry.leave()
        if account is None:
            if entry is not None:
                entry.end_will(None, None)
            text = f"{self._link.peer} left before it was connected: {reason}"
            self._log(logging.INFO, "left", text, reason)
            return
        # What its going makes room for may be taken now, and there is nobody to be told.
        self._stop_acking()
        self.account = self._sender.account = None
        server.ledger.faults.call(
            self, "taking back its subscriptions", self._unsubscribe_all, account
        )
        self._steps = None
        self._replays.clear()
        forwarder = self._forwarder
        if forwarder is not None:
            forwarder.single = None
        if entry is not None:
            entry.end_will(account, None if forwarder is None else forwarder.billing)
        server.logger.info(
            "%s (%s) left: %s",
            self.name,
            self._link.peer,
            reason,
            extra=self._fields("left", reason),
        )

    def _give_up_name(self) -> None:
        sessions, entry = self._server.sessions, self._entry
        if entry is not None and sessions.get(entry.key) is self:
            del sessions[entry.key]

    def give_way(self) -> None:
        """End at once: another connection has come with the client identifier [MQTT-3.1.4-2]."""
        what = "another connection came with its identifier"
        tell = partial(self._part, Reason.SESSION_TAKEN_OVER, what)
        self._server.ledger.faults.call(self, "telling it that it is taken over", tell)
        why = "another connection came with the same client identifier"
        self.cut(why)
        self._retire(why)

    def _unsubscribe_all(self, account: Account) -> None:
        subscriber, entry = self._subscriber, self._entry
        assert entry is not None
        steps = iter(()) if subscriber is None else subscriber.subscriptions.leaving()
        self._server.partings.take_back(entry.key, account, self._work, steps)

    def _is_of_peer(self, whose: object) -> bool:
        """See `Session.has`."""
        persistent = self._persistent
        return super()._is_of_peer(whose) or (persistent is not None and whose is persistent.queue)

    @property
    def _persistent(self) -> PersistentSession | None:
        return None if self._entry is None else self._entry.persistent

    def _close(self) -> None:
        self._give_up_name()  # `_withdraw` has failed
        self._incoming.close()
        self._stop_acking()
        if self._entry is not None and self._unacknowledged() is not None:
            self._entry.close()  # it has been let in, and nothing of it is under way any more
        self._publisher = self._subscriber = self._plain = None
        forwarder, self._forwarder = self._forwarder, None
        if forwarder is not None and forwarder.excess is not None:
            forwarder.excess.close()
        for payer in () if forwarder is None else forwarder.billing.close():
            self._server.tree.close(payer)

    def _drop_input(self, why: str) -> None:
        """See `Session._drop_input`."""
        self._part(Reason.QUOTA_EXCEEDED, why)
        self._incoming.close()
        if self._forwarder is not None:
            self._forwarder.single = None
        super()._drop_input(why)
