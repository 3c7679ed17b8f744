"""The MQTT side of a relay: what its sessions share, and the limits that they are held to."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Final

import attrs

from ...accounts import Account, QuotaExceededError
from ...dataspace import Dataspace, Publication, Route
from .._account_tree import AccountTree
from .._admission import Admission
from .._flusher import Flusher
from .._guesses import DELAYS, Guesses
from .._link import Link
from .._server import Server
from .._settings import ServerSettings
from ._connection import DEFAULT_MAX_CONNECT_SIZE
from ._frames import DEFAULT_MAX_PACKET_SIZE
from ._identifiers import DEFAULT_MAX_AWAITING_RELEASE, MAX_PACKET_ID
from ._inflight import DEFAULT_MAX_INFLIGHT, Inflight
from ._log_ins import LogIns
from ._passwords import Authenticator
from ._permissions import Refusal, not_writable
from ._persistent_sessions import PersistentSessions
from ._properties import application_properties
from ._reasons import Reason
from ._session import MqttSession
from ._shared import SharedGroups
from ._slow_consumer_policy import ConsumerPolicies
from ._throttle_notices import ThrottledNotices
from ._tokens import Tokens
from ._topics import SERVER_TOPIC, TopicLimits, is_servers_own, topic_name_fault
from ._wills import DEFAULT_WILL_LIMIT, DelayedWill, DelayedWills, LastWill, WillRoom

if TYPE_CHECKING:
    from .._tenants import Peer, Tenant
    from ..acl import Rights
    from ._packets import Publish
    from ._publisher_acks import PublisherAck

NAME_BYTES: Final = 16
"""Random bytes in a client identifier that the relay chooses: as many as a UUID has."""

DEFAULT_RECEIVE_MAXIMUM: Final = 1_000
"""Publications of QoS 1 and 2 that an MQTT 5 client may have under way, unless told otherwise.
EMQX's `max_awaiting_rel` is 100; clients keep about 20 in flight (paho-mqtt)."""


@attrs.frozen(slots=True, kw_only=True)
class MqttSettings(ServerSettings):
    """What MQTT clients may make grow besides; each with the precedent of its default."""

    max_packet_size: int = DEFAULT_MAX_PACKET_SIZE
    """Bytes of one packet."""
    max_connect_size: int = DEFAULT_MAX_CONNECT_SIZE
    """Bytes of a CONNECT: of who has not said yet who it is. It has the will in it."""
    will_limit: int | None = DEFAULT_WILL_LIMIT
    """What all wills may take in memory, in bytes; None is no limit."""
    max_subscriptions: int = 1_000
    """Topic filters of one client; further ones are refused with return code 0x80. A hundred
    times what most clients have; AWS IoT Core allows 50."""
    max_client_id: int = 1_024
    """Bytes of a client identifier: it names an account, and is kept as long as it owes."""
    topics: TopicLimits = attrs.field(factory=TopicLimits)
    """How long and how deep a topic may be."""
    max_inflight: int = attrs.field(
        default=DEFAULT_MAX_INFLIGHT,
        validator=(attrs.validators.ge(1), attrs.validators.le(MAX_PACKET_ID)),
    )
    """Publications of QoS 1 and 2 on their way to one subscriber and not acknowledged: no more than
    there are packet identifiers [MQTT-2.3.1-1]."""
    max_awaiting_release: int = attrs.field(
        default=DEFAULT_MAX_AWAITING_RELEASE,
        validator=(attrs.validators.ge(1), attrs.validators.le(MAX_PACKET_ID)),
    )
    """QoS 2 publications of one client whose PUBREL has not come. As many as there are packet
    identifiers: MQTT 3.1.1 has no way to tell a client of less."""
    receive_maximum: int = attrs.field(
        default=DEFAULT_RECEIVE_MAXIMUM,
        validator=(attrs.validators.ge(1), attrs.validators.le(MAX_PACKET_ID)),
    )
    """The Receive Maximum that MQTT 5 clients are told: their publications with QoS 1 and 2 that
    are not acknowledged. Not more than `max_awaiting_release`."""
    max_keep_alive: int | None = attrs.field(
        default=None,
        validator=attrs.validators.optional((attrs.validators.ge(1), attrs.validators.le(65_535))),
    )
    """Seconds; the longest keep-alive of a client, who has it also if it asks for none. None: it
    is as the client asks. As mosquitto's `max_keepalive`."""
    max_topic_alias: int = attrs.field(
        default=10, validator=(attrs.validators.ge(0), attrs.validators.le(MAX_PACKET_ID))
    )
    """Topics that a client which speaks MQTT 5 may give short names to, as mosquitto's; and that
    the relay gives some to on its connection, if the client allows as many."""
    max_share_groups: int = attrs.field(default=10_000, validator=attrs.validators.ge(0))
    """Groups that share a subscription; 0: there are none. One takes about 14 KiB; ten thousand, as
    many as sessions are kept by default."""
    max_share_members: int = attrs.field(default=1_000, validator=attrs.validators.ge(1))
    """Members of one of them; a hundred times what a pool of workers has."""
    passwords: Authenticator | None = None
    """Who knows whether a client is the user it says it is; None: everybody is believed."""
    anonymous: bool = False
    """With passwords or tokens: whether who names no user is let in, too."""
    wrong_password_delay: float = DELAYS[-1]
    """The longest that the answer to a wrong password is delayed; 0: not at all."""
    tokens: Tokens | None = None
    """What tokens are checked with that clients give as passwords; None: there are none."""
    believes: bool = True
    """Whether a client is the user that it names, where it need not prove that; not where others
    have to: a user that nobody has verified is none."""

    @property
    def verifies(self) -> bool:
        """Whether clients that name a user have to prove that they are it."""
        return self.passwords is not None or self.tokens is not None


class MqttServer(Server[MqttSettings, MqttSession]):
    """What the sessions of one relay share.

    Attributes:
        sessions: The connected ones, by what their clients are known by (`identity`).
        dealings: What is done about those that are stuck.
        groups: Those that share subscriptions.
        kept: Those that outlive their connections. None: none do, whatever clients ask for. To be
            set before anybody connects.
        notices: Who tells of clients that are not read, while `watch_throttled` runs.
        make_session: Makes the session of a link; to be set before anybody connects.
        make_inflight: Makes what a client is to acknowledge; likewise.
        log_ins: Checks passwords.
        wills: Those of clients that have gone, which wait for a while (MQTT 5).
        will_room: How much these and those of connected clients may take.
        wall: The wall clock, for what expires.
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
        """Serve one accepted connection until it ends. Never raises but for `trio.Cancelled`."""
        return self.serve(link, lambda: self.make_session(self, link, listener))

    @property
    def keeps_for_later(self) -> bool:
        """Whether what is kept outlives the relay."""
        return self.kept is not None and self.kept.settings.outlives

    def keep(self, callback: Callable[[], object], session: MqttSession) -> None:
        """Call back when what was changed in kept sessions until now is durable, and soon.

        If it raises, `session` ends.
        """
        kept = self.kept
        assert kept is not None
        kept.keeping.when_durable(callback, session)
        kept.keeping.hurry()

    def ticks(self, now: float) -> Generator[None, None, None]:
        """See `Server.ticks`: time passes for what is kept, too."""
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
                        "the session of %r is over: nobody came back for it",
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
        """Publish in a turn of its own; return why not. Without `rights` it may go anywhere."""
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
        """Return what a client publishes, with what it says about it (MQTT 5)."""
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
        """Publish the will of the client known by `name`, on this account, if it may be now."""
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
        """Note that a client is here again: its will, if one waits, is not published.

        Unless it begins anew: then the session that the will waited for is over [MQTT-3.1.3-9].
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
        """Open the account of a client for what `tenant` pays for, with the client's limit.

        See `AccountTree.open`.
        """
        limit = self.settings.limit_of(peer.name, peer.client)
        return self.tree.open(peer, tenant, limit, own=own)

    def rights_of(self, peer: Peer, client_id: str) -> Rights | None:
        """Return what a client may publish and read; None: everything."""
        authority = self.authority
        return authority.of(peer, client_id) if authority.restricts_reading else None

    def rules_changed(self) -> None:
        """End what is no longer allowed: what the authority says may be something else now."""
        self.dataspace.routes.forget_all()
        for session in list(self.sessions.values()):
            doing = "looking again at what it may do"
            self.ledger.faults.call(session, doing, session.rules_changed)
        if self.kept is not None:
            self.ledger.faults.call(None, "ending what is shared", self.kept.rules_changed)

    def expiry_of(self, asked: float | None) -> float | None:
        """Return for how long a session is kept, of what its client asks for."""
        most = None if self.kept is None else self.kept.settings.expiry
        return most if asked is None else asked if most is None else min(asked, most)

    def new_client_id(self) -> str:
        """Name a client that leaves that to the server [MQTT-3.1.3-6].

        At random: a client that was given a name before the relay's last start may come back with
        it, and must not meet another one that was given the same.
        """
        return f"auto-{secrets.token_hex(NAME_BYTES)}"

    @property
    def receive_maximum(self) -> int:
        """The Receive Maximum that clients with MQTT 5 are told."""
        return min(self.settings.receive_maximum, self.settings.max_awaiting_release)

    def keep_alive_of(self, asked: int, *, told: bool = True) -> int:
        """Return the keep-alive that counts, of what a client asks for, in seconds; 0: none does.

        A client that speaks MQTT 5 is `told` of it [MQTT-3.2.2-21]. With 3.1.1 it cannot be, and
        would be cut off again and again: what it asks for counts, if it asks for any.
        """
        most = self.settings.max_keep_alive
        if most is None or 0 < asked <= most:
            return asked
        return most if told or not asked else asked

    def resolve(self, key: bytes) -> Route | None:
        """Find the route of a topic as it stands in a packet; None if it may not be routed so."""
        return self.dataspace.routes.of_key(key, self.topic_of)

    def topic_of(self, key: bytes) -> str | None:
        """Return the topic as it stands in a packet; None if it may not be routed so."""
        try:
            topic = key[2:].decode()
        except UnicodeDecodeError:
            return None
        if topic_name_fault(topic) or self.settings.topics.name_fault(topic):
            return None
        return None if is_servers_own(topic) else topic
