"""The MQTT side of a relay: the shared state of its sessions, and their limits."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Final

import attrs

from ....accounts import Account, QuotaExceededError
from ....dataspace import Dataspace, Publication, Route
from ..._account_tree import AccountTree
from ..._admission import Admission
from ..._flusher import Flusher
from ..._guesses import DELAYS, Guesses
from ..._link import Link
from ..._server import Server
from ..._settings import ServerSettings
from ..codec._connection import DEFAULT_MAX_CONNECT_SIZE
from ..codec._frames import DEFAULT_MAX_PACKET_SIZE
from ..codec._identifiers import DEFAULT_MAX_AWAITING_RELEASE, MAX_PACKET_ID
from ..codec._properties import application_properties
from ..codec._reasons import Reason
from ..codec._topics import SERVER_TOPIC, TopicLimits, is_servers_own, topic_name_fault
from ._inflight import DEFAULT_MAX_INFLIGHT, Inflight
from ._log_ins import LogIns
from ._passwords import Authenticator
from ._permissions import Refusal, not_writable
from ._persistent_sessions import PersistentSessions
from ._session import MqttSession
from ._shared import SharedGroups
from ._slow_consumer_policy import ConsumerPolicies
from ._throttle_notices import ThrottledNotices
from ._tokens import Tokens
from ._wills import DEFAULT_WILL_LIMIT, DelayedWill, DelayedWills, LastWill, WillRoom

if TYPE_CHECKING:
    from ..._tenants import Peer, Tenant
    from ...acl import Rights
    from ..codec._packets import Publish
    from ._publisher_acks import PublisherAck

NAME_BYTES: Final = 16
"""Random bytes in a client identifier that the relay chooses: as many as a UUID has."""

DEFAULT_RECEIVE_MAXIMUM: Final = 1_000
"""Publications of QoS 1 and 2 that an MQTT 5 client may have in flight, by default. EMQX's
`max_awaiting_rel` is 100; clients keep about 20 in flight (paho-mqtt)."""


@attrs.frozen(slots=True, kw_only=True)
class MqttSettings(ServerSettings):
    """Further limits of MQTT clients; each with the precedent of its default."""

    max_packet_size: int = DEFAULT_MAX_PACKET_SIZE
    """Bytes of one packet."""
    max_connect_size: int = DEFAULT_MAX_CONNECT_SIZE
    """Bytes of a CONNECT, the will included: its sender has not authenticated yet."""
    will_limit: int | None = DEFAULT_WILL_LIMIT
    """Bytes of memory for all wills; None: no limit."""
    max_subscriptions: int = 1_000
    """Topic filters of one client; further ones are refused with return code 0x80. A hundred
    times what most clients have; AWS IoT Core allows 50."""
    max_client_id: int = 1_024
    """Bytes of a client identifier: it names an account, which stays as long as it owes."""
    topics: TopicLimits = attrs.field(factory=TopicLimits)
    """Limits on the length and the depth of topics."""
    max_inflight: int = attrs.field(
        default=DEFAULT_MAX_INFLIGHT,
        validator=(attrs.validators.ge(1), attrs.validators.le(MAX_PACKET_ID)),
    )
    """In-flight window: unacknowledged publications of QoS 1 and 2 to one subscriber; no more than
    there are packet identifiers [MQTT-2.3.1-1]."""
    max_awaiting_release: int = attrs.field(
        default=DEFAULT_MAX_AWAITING_RELEASE,
        validator=(attrs.validators.ge(1), attrs.validators.le(MAX_PACKET_ID)),
    )
    """Unreleased QoS 2 publications of one client: their PUBREL has not come. As many as there are
    packet identifiers, because MQTT 3.1.1 cannot tell a client of a lower limit."""
    receive_maximum: int = attrs.field(
        default=DEFAULT_RECEIVE_MAXIMUM,
        validator=(attrs.validators.ge(1), attrs.validators.le(MAX_PACKET_ID)),
    )
    """The Receive Maximum for MQTT 5 clients: their unacknowledged publications with QoS 1 and 2.
    Not more than `max_awaiting_release`."""
    max_keep_alive: int | None = attrs.field(
        default=None,
        validator=attrs.validators.optional((attrs.validators.ge(1), attrs.validators.le(65_535))),
    )
    """Seconds; the longest keep-alive of a client, also of one that asks for none. None: as the
    client asks. As mosquitto's `max_keepalive`."""
    max_topic_alias: int = attrs.field(
        default=10, validator=(attrs.validators.ge(0), attrs.validators.le(MAX_PACKET_ID))
    )
    """Topic Alias Maximum for MQTT 5 clients, as mosquitto's. Also the most topic aliases that the
    relay uses on a client's connection, if the client allows as many."""
    max_share_groups: int = attrs.field(default=10_000, validator=attrs.validators.ge(0))
    """Groups of shared subscriptions; 0: none. One takes about 14 KiB; ten thousand, as many as
    persistent sessions by default."""
    max_share_members: int = attrs.field(default=1_000, validator=attrs.validators.ge(1))
    """Members of one group; a hundred times a usual pool of workers."""
    passwords: Authenticator | None = None
    """Checks the passwords of users; None: passwords are not checked."""
    anonymous: bool = False
    """With passwords or tokens: whether clients that name no user are let in, too."""
    wrong_password_delay: float = DELAYS[-1]
    """Longest delay of the answer to a wrong password, in seconds; 0: no delay."""
    tokens: Tokens | None = None
    """Checks the tokens that clients give as passwords; None: tokens are not accepted."""
    believes: bool = True
    """Whether a client counts as the user that it names, if it need not authenticate. False where
    others have to: an unverified user counts as no user."""

    @property
    def verifies(self) -> bool:
        """Whether clients that name a user have to authenticate."""
        return self.passwords is not None or self.tokens is not None


class MqttServer(Server[MqttSettings, MqttSession]):
    """The shared state of one relay's MQTT sessions.

    Attributes:
        sessions: The connected sessions, by the `identity` of their clients.
        dealings: The policies for slow consumers.
        groups: The groups of shared subscriptions.
        kept: The persistent sessions; None: there are none, whatever clients ask for. Set it before
            the first connection.
        notices: Sends notices about throttled clients, while `watch_throttled` runs.
        make_session: Makes the session of a link; set it before the first connection.
        make_inflight: Makes a client's in-flight window; likewise.
        log_ins: Checks passwords.
        wills: The delayed wills of clients that have gone (MQTT 5).
        will_room: The room of these and of the wills of connected clients.
        wall: The wall clock, for expiry.
    """

    logger = logging.getLogger("clearfunds.transports.mqtt")

    def __init__(
        self,
        dataspace: Dataspace,
        flusher: Flusher,
        account: Account,
        settings: MqttSettings,
        admission: Admission | None = None,
        tree: AccountTree | None = None,
    ) -> None:
        super().__init__(dataspace, flusher, account, settings, admission, tree)
        self.sessions: dict[str, MqttSession] = {}
        self.dealings = ConsumerPolicies(self)
        self.groups = SharedGroups(self)
        self.kept: PersistentSessions | None = None
        self.notices: ThrottledNotices | None = None
        self.make_session: Callable[[MqttServer, Link, str], MqttSession] = MqttSession
        self.make_inflight: Callable[..., Inflight] = Inflight
        self.log_ins = LogIns(
            Guesses(settings.wrong_password_delay), self.ledger.clock, self.admission.refused
        )
        self.wills = DelayedWills()
        self.will_room = WillRoom(settings.will_limit)
        self.wall: Callable[[], float] = time.time

    def __repr__(self) -> str:
        return f"<MqttServer: {len(self.open)} connections, {len(self.sessions)} clients>"

    def handle(self, link: Link, listener: str) -> Coroutine[Any, Any, None]:
        """Serve one accepted connection until it ends. Raises only `trio.Cancelled`."""
        return self.serve(link, lambda: self.make_session(self, link, listener))

    @property
    def keeps_for_later(self) -> bool:
        """Whether persistent sessions outlive the relay."""
        return self.kept is not None and self.kept.settings.outlives

    def keep(self, callback: Callable[[], object], whose: object) -> None:
        """Call back soon, when the changes to persistent sessions until now are durable.

        If it raises, the connection of `whose` ends (`Faults`).
        """
        kept = self.kept
        assert kept is not None
        kept.keeping.when_durable(callback, whose)
        kept.keeping.hurry()

    def ticks(self, now: float) -> Generator[None, None, None]:
        """Tick retained messages, wills, groups and persistent sessions, as `Server.ticks`."""
        retained = self.dataspace.retained
        retained.expire(retained.wall())
        kept = self.kept
        with self.flusher.corked():
            for delayed in self.wills.over(now):
                self.ledger.faults.call(None, "publishing a will", self._publish_delayed, delayed)
            self.groups.tick(now)
        self.flusher.flush_now()
        if kept is not None:
            steps = kept.tick_in_steps(now)
            goes_on = True
            while goes_on:
                with self.flusher.corked():
                    goes_on = next(steps, self) is not self
                self.flusher.flush_now()
                yield
            with self.flusher.corked():
                for client_id in kept.expire():
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
        answer: PublisherAck | None = None,
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
            with account.turn(publication, confirm=answer) as turn:
                turn.publish(self.dataspace, publication)
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
        if self.kept is not None:
            self.ledger.faults.call(None, "ending what is shared", self.kept.rules_changed)

    def expiry_of(self, asked: float | None) -> float | None:
        """Return the expiry of a session, in seconds, from the one that its client asks for."""
        most = None if self.kept is None else self.kept.settings.expiry
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
        if topic_name_fault(topic) or self.settings.topics.name_fault(topic):
            return None
        return None if is_servers_own(topic) else topic
