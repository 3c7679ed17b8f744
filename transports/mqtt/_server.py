"""The MQTT side of a relay: what its sessions share, and the limits that they are held to."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import attrs
import trio

from ...accounts import Account, QuotaExceededError
from ...dataspace import Dataspace, Publication, Route
from .._account_tree import AccountTree
from .._flusher import Flusher
from .._link import Link
from .._server import Admission, Server
from .._settings import ServerSettings
from ._dealings import Dealings
from ._frames import DEFAULT_MAX_PACKET_SIZE
from ._identifiers import DEFAULT_MAX_AWAITING_RELEASE, MAX_PACKET_ID
from ._inflight import DEFAULT_MAX_INFLIGHT, Inflight
from ._kept import KeptSessions
from ._passwords import Authenticator
from ._properties import application_properties
from ._session import SERVER_TOPICS, MqttSession
from ._throttled import ThrottledNotices
from ._topics import TopicLimits, topic_name_fault
from ._wills import DelayedWill, DelayedWills, LastWill

if TYPE_CHECKING:
    from .._tenants import Peer, Tenant
    from ._answers import Answer
    from ._packets import Publish

CHECKS_AT_ONCE: Final = max(1, (os.cpu_count() or 1) - 1)
"""Passwords that are checked at a time, each in a thread: hashing leaves a core to the loop."""


@attrs.frozen(slots=True, kw_only=True)
class MqttSettings(ServerSettings):
    """What MQTT clients may make grow besides; each with the precedent of its default."""

    max_packet_size: int = DEFAULT_MAX_PACKET_SIZE
    """Bytes of one packet."""
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
    max_awaiting_release: int = DEFAULT_MAX_AWAITING_RELEASE
    """QoS 2 publications of one client whose PUBREL has not come; in MQTT 5 its Receive Maximum,
    which is about those of QoS 1 that are not acknowledged, too."""
    max_topic_alias: int = attrs.field(
        default=10, validator=(attrs.validators.ge(0), attrs.validators.le(MAX_PACKET_ID))
    )
    """Topics that a client which speaks MQTT 5 may give short names to; as mosquitto's."""
    passwords: Authenticator | None = None
    """Who knows whether a client is the user it says it is; None: everybody is believed."""
    anonymous: bool = False
    """With passwords: whether who names no user is let in, too."""


class MqttServer(Server[MqttSettings, MqttSession]):
    """What the sessions of one relay share.

    Attributes:
        sessions: The connected ones, by client identifier.
        dealings: What is done about those that are stuck.
        kept: Those that outlive their connections. None: none do, whatever clients ask for. To be
            set before anybody connects.
        notices: Who tells of clients that are not read, while `watch_throttled` runs.
        make_session: Makes the session of a link; to be set before anybody connects.
        make_inflight: Makes what a client is to acknowledge; likewise.
        checks: How many passwords are checked at a time. The others wait, first come first served.
        wills: Those of clients that have gone, which wait for a while (MQTT 5).
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
        self.dealings = Dealings(self)
        self.kept: KeptSessions | None = None
        self.notices: ThrottledNotices | None = None
        self.make_session: Callable[[MqttServer, Link, str], MqttSession] = MqttSession
        self.make_inflight: Callable[..., Inflight] = Inflight
        self.checks = trio.CapacityLimiter(CHECKS_AT_ONCE)
        self.wills = DelayedWills()
        self.wall: Callable[[], float] = time.time
        self._named = 0

    def __repr__(self) -> str:
        return f"<MqttServer: {len(self.open)} connections, {len(self.sessions)} clients>"

    async def handle(self, link: Link, listener: str) -> None:
        """Serve one accepted connection until it ends. Never raises but for `trio.Cancelled`."""
        if self._admits(link):
            session = self._begun(link, lambda: self.make_session(self, link, listener))
            if session is not None:
                await session.run()

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

    def each_tick(self, now: float) -> None:
        """See `Server.each_tick`: time passes for what is kept, too."""
        retained = self.dataspace.retained
        retained.expire(retained.wall())
        kept = self.kept
        with self.flusher.corked():
            for delayed in self.wills.over(now):
                self.ledger.faults.call(None, "publishing a will", self._publish_delayed, delayed)
            if kept is not None:
                kept.tick(now)
                for client_id in kept.expire():
                    self.logger.info(
                        "the session of %r is over: nobody came back for it",
                        client_id,
                        extra={"event": "session_expired", "client_id": client_id},
                    )
        self.flusher.flush_now()

    # -- publishing -----------------------------------------------------------------------------

    def publish(
        self, account: Account, publication: Publication, answer: Answer | None = None
    ) -> str | None:
        """Publish in a turn of its own; return why not."""
        if publication.topic.startswith(SERVER_TOPICS):
            return f"{publication.topic!r}: topics under {SERVER_TOPICS} are the server's own"
        try:
            with account.turn(publication, confirm=answer) as turn:
                turn.publish(self.dataspace, publication)
        except QuotaExceededError as exc:
            return str(exc)
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

    def publish_will(self, account: Account, will: LastWill, name: str) -> None:
        """Publish the will of the client known by `name`, on this account."""
        fault = self.publish(account, will.at(self.wall()))
        if fault is not None:
            self.counters.rejected += 1
            self.logger.warning(
                "the will of %s was dropped: %s",
                name,
                fault,
                extra={"event": "will_dropped", "account": name, "reason": fault},
            )

    def came_back(self, client_id: str, *, to_its_session: bool) -> None:
        """Note that a client is here again: its will, if one waits, is not published.

        Unless it begins anew: then the session that the will waited for is over [MQTT-3.1.3-9].
        """
        delayed = self.wills.take(client_id)
        if delayed is not None and not to_its_session:
            self.ledger.faults.call(None, "publishing a will", self._publish_delayed, delayed)

    def _publish_delayed(self, delayed: DelayedWill) -> None:
        peer = delayed.peer
        membership = self.tree.of(peer)
        tenant = membership.of_topic(delayed.will.topic)
        account = self.open_account(peer, tenant, own=tenant is membership.tenant)
        try:
            self.publish_will(account, delayed.will, peer.name)
        finally:
            self.tree.close(account)

    def open_account(self, peer: Peer, tenant: Tenant | None, *, own: bool = True) -> Account:
        """Open the account of a client for what `tenant` pays for, with the client's limit.

        See `AccountTree.open`.
        """
        limit = self.settings.limit_of(peer.name, peer.client)
        return self.tree.open(peer, tenant, limit, own=own)

    def expiry_of(self, asked: float | None) -> float | None:
        """Return for how long a session is kept, of what its client asks for."""
        most = None if self.kept is None else self.kept.settings.expiry
        return most if asked is None else asked if most is None else min(asked, most)

    def new_client_id(self) -> str:
        """Name a client that leaves that to the server [MQTT-3.1.3-6]."""
        while True:
            self._named += 1
            name = f"auto-{self._named}"
            if name not in self.sessions and (self.kept is None or name not in self.kept.by_id):
                return name

    def resolve(self, key: bytes) -> Route | None:
        """Find the route of a topic as it stands in a packet; None if it may not be routed so."""
        return self.dataspace.routes.of_key(key, self._topic_of)

    def _topic_of(self, key: bytes) -> str | None:
        try:
            topic = key[2:].decode()
        except UnicodeDecodeError:
            return None
        if topic_name_fault(topic) or self.settings.topics.name_fault(topic):
            return None
        return None if topic.startswith(SERVER_TOPICS) else topic
