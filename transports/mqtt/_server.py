"""The MQTT side of a relay: what its sessions share, and the clocks that they are held to."""

from __future__ import annotations

import logging

import attrs
import trio

from ...accounts import DEFAULT_PATIENCE, Account, Limit, StuckPolicy
from ...dataspace import Dataspace, Route
from .._flusher import Flusher
from .._link import Link
from ._frames import DEFAULT_MAX_PACKET_SIZE
from ._identifiers import DEFAULT_MAX_AWAITING_RELEASE
from ._inflight import DEFAULT_MAX_INFLIGHT
from ._session import SERVER_TOPICS, Session
from ._topics import TopicLimits, topic_name_fault

logger = logging.getLogger("clearfunds.transports.mqtt")

TICK_SECONDS = 0.5
"""How often deadlines are looked at: a thousand idle connections cost one task, not a thousand."""


@attrs.frozen(slots=True, kw_only=True)
class MqttSettings:
    """What peers may make grow, and how long they may take; each with the precedent of its default.

    All times are in seconds.
    """

    limit: Limit = attrs.field(factory=Limit)
    """The debt of one connection above which it is not read."""
    max_connections: int = 10_000
    """Connections at a time, over all listeners; below the usual 20,000 descriptors of a process,
    with room for the listeners, the HTTP side and files."""
    max_packet_size: int = DEFAULT_MAX_PACKET_SIZE
    """Bytes of one packet."""
    max_subscriptions: int = 1_000
    """Topic filters of one client; further ones are refused with return code 0x80. A hundred
    times what most clients have; AWS IoT Core allows 50."""
    max_client_id: int = 1_024
    """Bytes of a client identifier: it names an account, and is kept as long as it owes."""
    topics: TopicLimits = attrs.field(factory=TopicLimits)
    """How long and how deep a topic may be."""
    max_inflight: int = DEFAULT_MAX_INFLIGHT
    """QoS 1 publications on their way to one subscriber and not acknowledged."""
    max_awaiting_release: int = DEFAULT_MAX_AWAITING_RELEASE
    """QoS 2 publications of one client whose PUBREL has not come."""
    connect_timeout: float = 10.0
    """From the connection to the end of its CONNECT; HiveMQ's and EMQX's idle time-outs are 10
    and 15."""
    idle_timeout: float | None = None
    """Without a packet, for clients whose keep-alive is 0 (never) in the protocol."""
    patience: float = DEFAULT_PATIENCE
    """How long a subscriber on whom others wait may make no progress."""
    stuck: StuckPolicy = StuckPolicy.DISCONNECT
    """What happens to it then."""


@attrs.define(slots=True)
class MqttCounters:
    """What has happened since the start; totals that never fall."""

    accepted: int = 0
    """Connections accepted."""
    refused: int = 0
    """Connections closed at once, because there were too many, and CONNECTs refused."""
    protocol_errors: int = 0
    """Connections closed because the peer broke the protocol."""
    timeouts: int = 0
    """Connections closed because the peer was silent for too long."""
    internal_errors: int = 0
    """Connections closed because of a fault of the relay's own; each is logged with its trace."""
    received: int = 0
    """Publications received."""
    received_bytes: int = 0
    """Bytes read from sockets."""
    rejected: int = 0
    """Publications that were not routed: to the server's own topics, or over a quota."""


class MqttServer:
    """What the sessions of one relay share.

    Attributes:
        dataspace: Where their clients meet.
        account: Whose children their accounts are.
        sessions: The connected ones, by client identifier.
        links: Every connection, connected or not.
        counters: What has happened since the start.
        stopping: Whether connections end as soon as everything they are owed has been sent.
        unflushed: A sentence for each that ended, while stopping, before it had.
    """

    def __init__(
        self, dataspace: Dataspace, flusher: Flusher, account: Account, settings: MqttSettings
    ) -> None:
        self.dataspace = dataspace
        self.ledger = dataspace.ledger
        self.flusher = flusher
        self.account = account
        self.settings = settings
        self.sessions: dict[str, Session] = {}
        self.open: set[Session] = set()
        self.counters = MqttCounters()
        self.stopping = False
        self.unflushed: list[str] = []
        self._named = 0
        self._full_logged = -1e9

    def __repr__(self) -> str:
        return f"<MqttServer: {len(self.open)} connections, {len(self.sessions)} clients>"

    async def handle(self, link: Link, listener: str) -> None:
        """Serve one accepted connection until it ends. Never raises but for `trio.Cancelled`."""
        if len(self.open) >= self.settings.max_connections:
            self.counters.refused += 1
            now = self.ledger.clock()
            if now - self._full_logged >= 1.0:  # a flood must not become a flood of log lines
                self._full_logged = now
                logger.warning(
                    "%s refused: %d connections are open, which is the limit (max_connections)",
                    link.peer,
                    len(self.open),
                )
            link.close()
            return
        self.counters.accepted += 1
        session = Session(self, link, listener)
        self.open.add(session)
        try:
            await session.run()
        finally:
            self.open.discard(session)

    def stop(self) -> None:
        """End every connection as soon as everything it is owed has been sent."""
        self.stopping = True
        for session in list(self.open):
            session.cut("the relay stops")

    def new_client_id(self) -> str:
        """Name a client that leaves that to the server [MQTT-3.1.3-6]."""
        while True:
            self._named += 1
            name = f"auto-{self._named}"
            if name not in self.sessions:
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

    async def keep_time(self) -> None:
        """Hold every connection to its deadline, until cancelled."""
        while True:
            await trio.sleep(TICK_SECONDS)
            now = self.ledger.clock()
            for session in list(self.open):
                session.check_deadline(now)
