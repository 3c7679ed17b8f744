"""The MQTT side of a relay: the shared state of its sessions, and their limits."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Final

from ....access._account_tree import AccountTree
from ....access._admission import Admission
from ....access._guesses import Guesses
from ....access._topic_accounts import TopicAccounts
from ....accounts import Account, QuotaExceededError
from ....dataspace import Dataspace, Publication, Route
from ..._flusher import Flusher
from ..._link import Link
from ..._server import Server
from ..._settings import ServerSettings
from ..codec._properties import application_properties
from ..codec._reasons import Reason
from ..codec._topics import SERVER_TOPIC, TopicLimits, is_servers_own, topic_name_fault
from ._inflight import Inflight
from ._log_ins import LogIns
from ._over_limit import OverLimits
from ._permissions import Refusal, not_writable
from ._persistent_sessions import PersistentSessions
from ._session import MqttSession
from ._shared import SharedGroups
from ._slow_consumer_policy import ConsumerPolicies
from ._wills import DelayedWill, DelayedWills, LastWill, WillRoom

if TYPE_CHECKING:
    from ....access._tenants import Peer, Tenant
    from ....access.acl import Rights
    from ..codec._packets import Publish
    from ._homes import Homes
    from ._publisher_acks import PublisherAck

NAME_BYTES: Final = 16
"""Random bytes in a client identifier that the relay chooses: as many as a UUID has."""


class MqttServer(Server[ServerSettings, MqttSession]):
    """The shared state of one relay's MQTT sessions.

    Attributes:
        sessions: The connected sessions, by the `identity` of their clients.
        dealings: The policies for slow consumers.
        over_limits: The policies for publishers above their limits.
        topic_accounts: The rules for accounts of topics within one connection.
        groups: The groups of shared subscriptions.
        topics: Limits on the length and the depth of topics.
        persistent_sessions: The persistent sessions; None: there are none, whatever clients ask
            for. Set it before the first connection.
        make_session: Makes the session of a link; set it before the first connection.
        make_inflight: Makes a client's in-flight window; likewise.
        log_ins: Checks passwords.
        wills: The delayed wills of clients that have gone (MQTT 5).
        will_room: The room of these and of the wills of connected clients.
        wall: The wall clock, for expiry.
        homes: Knows which relay of a cluster has a client's session; None: there is one relay.
        on_client: Called with the `identity` of each client that comes, when it came by that clock,
            and whether it wants a clean session; for other relays, which may have a connection of
            the same client.
    """

    logger = logging.getLogger("clearfunds.transports.mqtt")

    def __init__(
        self,
        dataspace: Dataspace,
        flusher: Flusher,
        account: Account,
        settings: ServerSettings,
        admission: Admission | None = None,
        tree: AccountTree | None = None,
    ) -> None:
        super().__init__(dataspace, flusher, account, settings, admission, tree)
        self.sessions: dict[str, MqttSession] = {}
        self.dealings = ConsumerPolicies(self)
        self.over_limits = OverLimits(self)
        self.topic_accounts = TopicAccounts(settings.topic_account)
        self.groups = SharedGroups(self)
        self.topics = TopicLimits(settings.max_topic_length, settings.max_topic_levels)
        self.persistent_sessions: PersistentSessions | None = None
        self.make_session: Callable[[MqttServer, Link, str], MqttSession] = MqttSession
        self.make_inflight: Callable[..., Inflight] = Inflight
        self.log_ins = LogIns(
            Guesses(settings.wrong_password_delay), self.ledger.clock, self.admission.refused
        )
        self.wills = DelayedWills()
        self.will_room = WillRoom(settings.will_limit)
        self.wall: Callable[[], float] = time.time
        self.homes: Homes | None = None
        self.on_client: Callable[[str, float, bool], object] | None = None

    def __repr__(self) -> str:
        return f"<MqttServer: {len(self.open)} connections, {len(self.sessions)} clients>"

    def adjust(self, settings: ServerSettings) -> None:
        """See `Server.adjust`."""
        self.settings = settings
        self.dealings.adjust()
        self.over_limits.adjust()
        for group in self.groups.by_key.values():
            group.group.patience = settings.patience
            group.group.policy = settings.undroppable_policy
        if self.persistent_sessions is not None:
            self.persistent_sessions.adjust(settings)
        super().adjust(settings)

    def handle(self, link: Link, listener: str) -> Coroutine[Any, Any, None]:
        """Serve one accepted connection until it ends. Raises only `trio.Cancelled`."""
        return self.serve(link, lambda: self.make_session(self, link, listener))

    @property
    def sessions_are_durable(self) -> bool:
        """Whether persistent sessions outlive the relay."""
        return self.persistent_sessions is not None and self.persistent_sessions.outlives

    def when_durable(self, callback: Callable[[], object], whose: object) -> None:
        """Call back soon, when the changes to persistent sessions until now are durable.

        If it raises, the connection of `whose` ends (`Faults`).
        """
        sessions = self.persistent_sessions
        assert sessions is not None
        sessions.persistence.when_durable(callback, whose)
        sessions.persistence.hurry()

    def ticks(self, now: float) -> Generator[None, None, None]:
        """Tick retained messages, wills, groups and persistent sessions, as `Server.ticks`."""
        retained = self.dataspace.retained
        retained.expire(retained.wall())
        sessions = self.persistent_sessions
        with self.flusher.corked():
            for delayed in self.wills.over(now):
                self.ledger.faults.call(None, "publishing a will", self._publish_delayed, delayed)
            self.groups.tick(now)
        self.flusher.flush_now()
        if sessions is not None:
            steps = sessions.tick_in_steps(now)
            goes_on = True
            while goes_on:
                with self.flusher.corked():
                    goes_on = next(steps, self) is not self
                self.flusher.flush_now()
                yield
            with self.flusher.corked():
                for client_id in sessions.expire():
                    self.logger.info(
                        "the session of %r has expired: its client did not come back",
                        client_id,
                        extra={"event": "session_expired", "client_id": client_id},
                    )
            self.flusher.flush_now()

    # -- publishing -----------------------------------------------------------------------------

    def publish(
        self,
        account: Account,
        publication: Publication,
        ack: PublisherAck | None = None,
        rights: Rights | None = None,
    ) -> Refusal | None:
        """Publish in its own turn; return a refusal, if any. Without `rights` all is allowed."""
        topic = publication.topic
        if is_servers_own(topic):
            why = f"{topic!r}: topics under {SERVER_TOPIC}/ are the server's own"
            return Refusal(why, Reason.NOT_AUTHORIZED)
        if rights is not None:
            fault = not_writable(rights, topic)
            if fault is not None:
                return Refusal(fault, Reason.NOT_AUTHORIZED)
        try:
            nbytes = publication.nbytes
            with account.turn(publication, nbytes=nbytes, confirm=ack) as turn:
                turn.publish(self.dataspace, publication, nbytes=nbytes)
        except QuotaExceededError as exc:
            return Refusal(str(exc), Reason.QUOTA_EXCEEDED)
        return None

    def publication(self, said: Publish) -> Publication:
        """Return a client's publication, with its properties and expiry (MQTT 5)."""
        properties = said.properties
        interval = properties.message_expiry
        return Publication(
            said.topic,
            said.payload,
            said.qos,
            said.retain,
            application_properties(properties),
            None if interval is None else self.wall() + interval,
        )

    def publish_will(
        self, account: Account, will: LastWill, name: str, rights: Rights | None
    ) -> None:
        """Publish the will of client `name`, charged to `account`, if it is still allowed."""
        refusal = self.publish(account, will.at(self.wall()), rights=rights)
        if refusal is not None:
            fault = refusal.why
            self.counters.rejected += 1
            if rights is not None and refusal.reason is Reason.NOT_AUTHORIZED:
                rights.denied.will += 1
            self.logger.warning(
                "the will of %s was dropped: %s",
                name,
                fault,
                extra={"event": "will_dropped", "account": name, "reason": fault},
            )

    def came_back(self, key: str, *, to_its_session: bool) -> None:
        """Note that a client has come back: drop its delayed will, if it has one.

        If it does not resume its session, that session is over, and the will is published
        [MQTT-3.1.3-9].
        """
        delayed = self.wills.take(key)
        if delayed is not None and not to_its_session:
            self.ledger.faults.call(None, "publishing a will", self._publish_delayed, delayed)

    def _publish_delayed(self, delayed: DelayedWill) -> None:
        peer = delayed.peer
        membership = self.tree.of(peer)
        tenant = membership.of_topic(delayed.will.topic)
        account = self.open_account(peer, tenant, own=tenant is membership.tenant)
        try:
            rights = self.rights_of(peer, delayed.client_id)
            self.publish_will(account, delayed.will, peer.name, rights)
        finally:
            self.tree.close(account)

    def open_account(self, peer: Peer, tenant: Tenant | None, *, own: bool = True) -> Account:
        """Open a client's account for publications that `tenant` pays for, with the client's limit.

        See `AccountTree.open`.
        """
        limit = self.settings.limit_of(peer.name, peer.client)
        return self.tree.open(peer, tenant, limit, own=own)

    def open_topic_account(self, own: Account, name: str) -> Account:
        """Open an account for some topics below a connection's `own`, with the same limit."""
        full = f"{own.name} {name}"
        # Another client may be called so: its account has another parent.
        while (known := self.ledger.accounts.get(full)) is not None and known.parent != own:
            full = f"{full} {name}"
        return self.ledger.open(full, limit=own.limit, parent=own)

    def rights_of(self, peer: Peer, client_id: str) -> Rights | None:
        """Return a client's rights to publish and read; None: everything."""
        authority = self.authority
        return authority.of(peer, client_id) if authority.restricts_reading else None

    def rules_changed(self) -> None:
        """Apply changed access rules: end whatever they no longer allow."""
        self.dataspace.routes.forget_all()
        for session in list(self.sessions.values()):
            doing = "looking again at what it may do"
            self.ledger.faults.call(session, doing, session.rules_changed)
        if self.persistent_sessions is not None:
            self.ledger.faults.call(
                None, "ending what is shared", self.persistent_sessions.rules_changed
            )

    def expiry_of(self, asked: float | None) -> float | None:
        """Return the expiry of a session, in seconds, from the one that its client asks for."""
        most = (
            None
            if self.persistent_sessions is None
            else self.persistent_sessions.settings.session_expiry
        )
        return most if asked is None else asked if most is None else min(asked, most)

    def new_client_id(self) -> str:
        """Assign a client identifier, if the client leaves that to the server [MQTT-3.1.3-6].

        It is random: a client that got one before the relay's last start may come back with it, and
        no other client must have the same.
        """
        return f"auto-{secrets.token_hex(NAME_BYTES)}"

    @property
    def receive_maximum(self) -> int:
        """The Receive Maximum for clients with MQTT 5."""
        return min(self.settings.receive_maximum, self.settings.max_awaiting_release)

    def keep_alive_of(self, asked: int, *, told: bool = True) -> int:
        """Return the effective keep-alive for the one that a client asks for, in seconds; 0: none.

        A client that speaks MQTT 5 is `told` of it [MQTT-3.2.2-21]. One with 3.1.1 cannot be told,
        and a shorter one would cut it off again and again; so its own applies, if it asks for one.
        """
        most = self.settings.max_keep_alive
        if most is None or 0 < asked <= most:
            return asked
        return most if told or not asked else asked

    def resolve(self, key: bytes) -> Route | None:
        """Find the route of a topic as it stands in a packet; None if `topic_of` returns None."""
        return self.dataspace.routes.of_key(key, self.topic_of)

    def topic_of(self, key: bytes) -> str | None:
        """Decode a topic as it stands in a packet; None if clients may not publish to it."""
        try:
            topic = key[2:].decode()
        except UnicodeDecodeError:
            return None
        if topic_name_fault(topic) or self.topics.name_fault(topic):
            return None
        return None if is_servers_own(topic) else topic
