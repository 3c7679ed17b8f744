"""The relay: listeners, a dataspace, accounts and a page of metrics, in one process."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs
import trio

from ..accounts import (
    DEFAULT_LIMIT_BYTES,
    DEFAULT_LIMIT_ITEMS,
    DEFAULT_PATIENCE,
    DEFAULT_SLOW_WAIT,
    DEFAULT_STANDING_BYTES,
    DEFAULT_STANDING_ITEMS,
    DEFAULT_STANDING_SHAPES,
    KEEP,
    Alarms,
    Ledger,
    Limit,
    Quota,
    StuckPolicy,
    watch_limits,
    watch_patience,
    watch_slow_waits,
)
from ..dataspace import (
    DEFAULT_CACHED_ROUTE_BYTES,
    DEFAULT_CACHED_ROUTES,
    DEFAULT_MAX_DEEP_SHAPES,
    DEFAULT_MAX_RETAINED,
    DEFAULT_MAX_RETAINED_BYTES,
    DEFAULT_MAX_SHAPES,
    Dataspace,
)
from ..transports._account_limits import AccountLimit, AccountLimits, AccountRate
from ..transports._account_tree import AccountTree
from ..transports._admission import Admission
from ..transports._bearer_tokens import BearerTokens
from ..transports._connect_rate import DEFAULT_CONNECT_RATE, ConnectRate
from ..transports._flusher import Flusher, open_flusher
from ..transports._input import (
    DEFAULT_ADDRESS_INPUT_LIMIT,
    DEFAULT_INPUT_LIMIT,
    DEFAULT_USER_INPUT_LIMIT,
    InputBook,
    InputLimits,
)
from ..transports._link import Link
from ..transports._listener import Listener, ListenError, ListenURL, ListenURLError, open_listeners
from ..transports._origins import origins_of
from ..transports._otel_export import check_exporter, open_provider
from ..transports._outlet_backlog import DEFAULT_BEHIND_LIMIT
from ..transports._server import Server
from ..transports._settings import KeepingSettings
from ..transports._subscription_policies import (
    PolicyRule,
    StuckWord,
    SubscriptionPolicies,
    SubscriptionPolicy,
)
from ..transports._tenants import Tenant, check_tenants
from ..transports.acl import Acl, AclDefault
from ..transports.mqtt.codec._topics import TopicLimits
from ..transports.mqtt.server._passwords import Authenticator
from ..transports.mqtt.server._server import MqttServer, MqttSettings
from ..transports.mqtt.server._throttle_notices import watch_throttled
from ..transports.mqtt.server._tokens import Tokens
from ._alarms import AlarmSettings, watch_alarms
from ._authorise import authority_of, check_acl, has_users, say_what_is_allowed
from ._busy_poll import BusyPoll
from ._companion import Companion, nothing
from ._memory_holders import MemoryHolders
from ._pages import check_pages, serve_relays_pages
from ._parts import Parts, PartsMaker
from ._persistence import has_subscriptions, keep_sessions, open_keeping, subscription_server

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from ..pages import Pages, TransportCounts
    from ..transports._layer import Connected
    from ..transports.queues import RamShelves, Shelves
    from ..transports.subscriptions import SubscriptionServer
    from ..transports.syndicate._server import SyndicateServer
    from ..transports.tls import ServerTls

logger = logging.getLogger("clearfunds.relay")

PROTOCOLS = ("mqtt", "syndicate", "subscribe")

_EXTRA: Final = ("h11", "preserves", "wsproto")
"""Packages that Syndicate and WebSocket need; only the [relay] extra brings them."""

MQTT_SUBPROTOCOL: Final = "mqtt"
"""[MQTT-6.0.0-4]."""

SERVER_ACCOUNT = "server"
"""The account above all connections' accounts."""

DEFAULT_SERVER_LIMIT_BYTES = 256 << 20
"""Bytes that all connections may owe together: 32 that are at their own limit."""

_MQTT = MqttSettings()
_TOPICS = TopicLimits()


def _above_nothing(_: object, attribute: attrs.Attribute[Any], value: float | None) -> None:
    if value is not None and not 0 < value < math.inf:
        msg = f"{attribute.name} must be above 0 seconds, or None for no such limit, not {value}"
        raise ValueError(msg)


def _rate(_: object, __: attrs.Attribute[Any], value: float | None) -> None:
    if value is not None and not 0 < value < math.inf:
        raise ValueError(f"connect_rate must be above 0 a second, or None, not {value}")


@attrs.frozen(kw_only=True)
class RelaySettings(KeepingSettings):
    """Everything that can be said about a relay. Times are in seconds.

    The defaults of the Syndicate side are those of `SyndicateSettings`, where their precedents are.
    """

    listen: tuple[str, ...] = ("mqtt+tcp://127.0.0.1:1883",)
    """URLs: `mqtt+tcp://host:port` (port 0: any free), `mqtt+unix:///path`, `mqtt+ws` for MQTT over
    WebSocket, `mqtt+tls` and `mqtt+wss` for these with TLS (see `tls`); and `syndicate+tcp` and so
    on in the same way. Who connects to one of the latter meets the dataspace, or a gatekeeper if
    `?gatekeeper` stands at the URL's end; that needs `sturdy_key`.
    `subscribe+tcp` and `subscribe+tls` are for readers that take ranges and writers of batches
    (`clearfunds.range_client`, `sink_client`)."""
    tls: ServerTls | None = attrs.field(default=None, repr=False)
    """What `tls` and `wss` are encrypted with. Where it wants certificates of clients, a client's
    user is who its certificate is for, whatever it says itself."""
    origin: tuple[str, ...] = attrs.field(default=(), converter=origins_of)
    """Whose pages may connect over WebSocket, as `https://example.com`; none: those of the same
    host; `*`: anybody's."""
    passwords: Authenticator | None = None
    """Who knows the passwords of MQTT clients, and of readers and writers of `subscribe+tcp`
    (`transports.mqtt.Passwords`, or one of your own); None: they are asked for none, and whatever
    user an MQTT client names is believed."""
    anonymous: bool = False
    """With passwords or tokens: whether clients are let in that name no user."""
    tokens: Tokens | None = None
    """What tokens are checked with that clients give as passwords (`transports.mqtt.Tokens`)."""
    acl: Acl | None = None
    """Says which topics users may publish to and read (`clearfunds.transports.acl`); None: nothing
    does but `acl_default`."""
    acl_default: AclDefault | None = None
    """What holds for topics that no rule of `acl` matches: `deny`, `allow`, or `tenant`, which
    allows what is not of another tenant. None: `deny` with `acl`; without it `tenant` if clients
    have to prove who they are, otherwise `allow`."""
    http: str | None = None
    """`host:port` of the pages for Prometheus and for people, `https://host:port` for the same with
    TLS; None for none."""
    http_token: BearerTokens | None = attrs.field(default=None, repr=False)
    """Who looks at the pages has to give one of these, or a password, if there are any."""
    http_password: Authenticator | None = attrs.field(default=None, repr=False)
    """Who knows the passwords of people who look at the pages."""
    http_host: tuple[str, ...] = ()
    """Names by which a browser may know the pages, beside addresses, `localhost` and this machine's
    own; `*`: any."""
    max_http_connections: int = 128
    """Connections to the pages at a time; for one more, one that waits for its peer is closed."""
    limit_items: int | None = DEFAULT_LIMIT_ITEMS
    """Events that one connection may owe before it is not read any more."""
    limit_bytes: int | None = DEFAULT_LIMIT_BYTES
    """Bytes that one connection may owe."""
    limit_latency: float | None = attrs.field(default=None, validator=_above_nothing)
    """How old the debt of one connection may get: its limit is moved, and what is said above is
    what it may be at the most (`LatencyLimit`). Limits of `account_limit` stay as they are. None:
    all do."""
    account_limit: tuple[AccountLimit, ...] = ()
    """What those may owe whose account's name, or client identifier, matches a pattern; the first
    that matches is taken."""
    rate: tuple[AccountRate, ...] = ()
    """How fast those may publish whose account's name, or client identifier, matches a pattern; the
    first that matches is taken."""
    tenant: tuple[Tenant, ...] = attrs.field(default=(), validator=check_tenants)
    """Who is whose, and what each tenant may do; see `Tenant`."""
    throttled_after: float | None = 1.0
    """How long a client may not have been read before `$SYS/clearfunds/throttled/` tells of it;
    None: it does not. As `slow_wait`."""
    server_limit_items: int | None = None
    """Events that all connections may owe together."""
    server_limit_bytes: int | None = DEFAULT_SERVER_LIMIT_BYTES
    """Bytes that all connections may owe together."""
    grace: float = 5.0
    """How long a stop may take to send what is owed."""
    patience: float = DEFAULT_PATIENCE
    """How long a subscriber on whom others wait may make no progress."""
    stuck: StuckWord = "disconnect"
    """What happens to it then; see `StuckPolicy`. What it has to acknowledge, and Syndicate's
    assertions, are never dropped."""
    subscription_policy: tuple[SubscriptionPolicy, ...] = ()
    """What happens to some, with what they get on some topics; the first that matches says."""
    behind_items: int | None = KEEP.items
    """Messages that are kept for one that is behind, by a policy that drops."""
    behind_bytes: int | None = KEEP.bytes
    """Their bytes."""
    behind_limit: int | None = DEFAULT_BEHIND_LIMIT
    """The bytes that are kept for all who are behind."""
    slow_wait: float | None = DEFAULT_SLOW_WAIT
    """How long a publisher may wait for its funds to clear before the log tells of it; None: it
    never does."""
    busy_poll: float = 0.0
    """For how long after each read the loop stays awake, whatever CPU time that takes. 0: it sleeps
    as soon as there is nothing to do."""
    otel_every: float | None = None
    """Seconds between events that become OpenTelemetry spans; None: none does. It needs the extra
    `otel`, the SDK and an exporter, which the standard environment variables configure."""
    max_connections: int = _MQTT.max_connections
    """Connections at a time, of all protocols together."""
    connections_per_address: int | None = None
    """Connections at a time from one IPv4 address, or the /64 of an IPv6 address; None: eight times
    as many as are free, so that one address may have 8/9 of all and never the last one."""
    connections_per_user: int | None = None
    """Connections at a time of one user who has proved it; None: likewise."""
    connect_rate: int | None = attrs.field(default=DEFAULT_CONNECT_RATE, validator=_rate)
    """Connections a second from one address; those above it wait for their turn, for at most
    `connect_timeout`. None: as many as come."""
    wrong_password_delay: float = _MQTT.wrong_password_delay
    """The longest that the answer to a wrong password is delayed, by how many there were from the
    same address and for the same user; 0: not at all."""
    tcp_keep_alive: float | None = attrs.field(default=60.0, validator=_above_nothing)
    """After how long a peer whose machine has gone without a word is disconnected, by TCP's
    keep-alive; None: that is not looked for. As RabbitMQ's heartbeat time-out, of a minute."""
    max_packet_size: int = _MQTT.max_packet_size
    """Bytes of one packet."""
    max_connect_size: int = _MQTT.max_connect_size
    """Bytes of an MQTT client's CONNECT, with its will and password."""
    will_limit: int | None = _MQTT.will_limit
    """Bytes of memory that the wills of all MQTT clients may take."""
    max_client_id: int = _MQTT.max_client_id
    """Bytes of a client identifier."""
    input_limit: int | None = DEFAULT_INPUT_LIMIT
    """Bytes of unfinished input of all connections: of packets that are not complete, and of what
    is read ahead while they wait."""
    address_input_limit: int | None = DEFAULT_ADDRESS_INPUT_LIMIT
    """The same of the connections of one address that have not logged in."""
    user_input_limit: int | None = DEFAULT_USER_INPUT_LIMIT
    """The same of one user's connections, where users are verified."""
    max_subscriptions: int = _MQTT.max_subscriptions
    """Topic filters of one MQTT client; patterns that one Syndicate connection may observe."""
    max_topic_length: int = _TOPICS.max_length
    """Bytes of a topic or a filter."""
    max_topic_levels: int = _TOPICS.max_levels
    """Levels of a topic or a filter."""
    connect_timeout: float = _MQTT.connect_timeout
    """From the connection to the end of its CONNECT, or of its first Syndicate packet."""
    idle_timeout: float | None = _MQTT.idle_timeout
    """Without a packet, for MQTT clients whose keep-alive is 0 and for Syndicate's, which has none;
    None for ever."""
    max_inflight: int = _MQTT.max_inflight
    """Publications with QoS 1 or 2 on their way to one subscriber and not fully acknowledged."""
    max_awaiting_release: int = _MQTT.max_awaiting_release
    """QoS 2 publications of one client whose PUBREL has not come."""
    receive_maximum: int = _MQTT.receive_maximum
    """The Receive Maximum that MQTT 5 clients are told, of QoS 1 and 2; at the most the number
    above."""
    max_keep_alive: int | None = _MQTT.max_keep_alive
    """The longest keep-alive of an MQTT client, in seconds; None: as it asks."""
    max_topic_alias: int = _MQTT.max_topic_alias
    """Topics that a client which speaks MQTT 5 may give short names to, and the relay for it."""
    max_share_groups: int = _MQTT.max_share_groups
    """Groups that share a subscription; 0: there are no shared subscriptions."""
    max_share_members: int = _MQTT.max_share_members
    """Members of one such group."""
    max_shapes: int = DEFAULT_MAX_SHAPES
    """Different shapes that the patterns of all observers may have; a message is compared with each
    one of its kind."""
    max_retained: int = DEFAULT_MAX_RETAINED
    """Topics with a retained value."""
    max_retained_bytes: int = DEFAULT_MAX_RETAINED_BYTES
    """Bytes of their topics and payloads."""
    quota_items: int | None = DEFAULT_STANDING_ITEMS
    """Subscriptions, retained values and assertions that one client may have standing (rule 16)."""
    quota_bytes: int | None = DEFAULT_STANDING_BYTES
    """Their bytes."""
    quota_shapes: int | None = DEFAULT_STANDING_SHAPES
    """In how many different places one client's filters and patterns may have their wildcards and
    constants: a topic, or a message, is looked up once for each."""
    max_filter_shapes: int = DEFAULT_MAX_DEEP_SHAPES
    """The same of all clients' filters that have more than eight levels: others are always few."""
    cached_routes: int = DEFAULT_CACHED_ROUTES
    """Topics for which it is kept who subscribes."""
    cached_route_bytes: int = DEFAULT_CACHED_ROUTE_BYTES
    """Memory that this may take."""
    max_text_size: int = 16 << 10
    """Bytes of one Syndicate packet written as text."""
    max_depth: int = 64
    """How deep values in a Syndicate packet may be nested, the packet itself included."""
    max_references: int = 65_536
    """References that one side of a Syndicate connection may know of the other's."""
    max_assertions: int = 65_536
    """Assertions of one Syndicate connection that may stand, in each direction."""
    max_turn_deliveries: int = 100_000
    """Deliveries that the events of one Syndicate packet may cause, but for the last of them."""
    max_caveats_size: int = 16 << 10
    """Bytes of the caveats of one Syndicate reference."""
    resolve_answer: Literal["ok", "accepted"] = "ok"
    """How a gatekeeper answers `<resolve ...>`; syndicate-py 0.19.3 expects `accepted`."""
    turn_credit: Literal["off", "accept", "request"] = "accept"
    """Whether Syndicate's experimental credit for turns is not answered, given to peers who ask for
    it, or also asked for."""
    sturdy_oid: str = "syndicate"
    """What the dataspace is called in sturdyrefs."""
    sturdy_key: bytes | None = attrs.field(default=None, repr=False)
    """What a gatekeeper checks sturdyrefs against. Not in the `repr`."""


@attrs.frozen
class RelayAddresses:
    """The addresses of a relay."""

    listening: tuple[str, ...]
    """The URLs of its listeners, with the real ports."""
    http: str | None
    """The URL of its pages."""


@attrs.frozen
class RelayReport:
    """The end of a relay."""

    unflushed: tuple[str, ...]
    """A sentence for each connection that did not get, or acknowledge, everything it was owed."""


class Relay:
    """One relay; made by `serve_relay`, and shown by its pages.

    Attributes:
        ledger: The ledger of all debt.
        tree: The tree of its clients' accounts.
        admission: Connection limits.
        authority: Permissions of its clients to publish and read.
        dataspace: The dataspace in which its clients meet.
        keeping: The storage of persistent sessions.
        mqtt: Its MQTT side.
        syndicate: Its Syndicate side; None if nothing listens for that.
        readers: Its side for readers of ranges; None if nothing listens for them, and none has a
            durable subscription, which takes publications whether they can be read or not.
        input: The book of its peers' unfinished input.
        busy_poll: Keeps the loop awake; None: nothing does.
        pages: Its pages over HTTP, if it has any.
    """

    def __init__(
        self,
        settings: RelaySettings,
        flusher: Flusher,
        keeping: Shelves | RamShelves,
        make_parts: PartsMaker | None = None,
    ) -> None:
        self.settings = settings
        self.keeping = keeping
        quota = Quota(settings.quota_items, settings.quota_bytes, settings.quota_shapes)
        self.ledger = Ledger(quota=quota)
        self.dataspace = Dataspace(
            self.ledger,
            max_retained=settings.max_retained,
            max_retained_bytes=settings.max_retained_bytes,
            max_shapes=settings.max_shapes,
            cached_routes=settings.cached_routes,
            cached_route_bytes=settings.cached_route_bytes,
            max_filter_shapes=settings.max_filter_shapes,
        )
        server = self.ledger.open(
            SERVER_ACCOUNT,
            limit=Limit(items=settings.server_limit_items, bytes=settings.server_limit_bytes),
            shared=True,
        )
        self.tree = AccountTree(
            server,
            settings.tenant,
            settings.rate,
            latency=settings.limit_latency,
            fixed=_account_limits(settings),
        )
        self.admission = admission = Admission(
            settings.max_connections,
            per_address=settings.connections_per_address,
            per_user=settings.connections_per_user,
            rate=ConnectRate(settings.connect_rate, settings.connect_timeout),
        )
        self.authority = authority_of(settings, self.tree.rules)
        self.mqtt = MqttServer(
            self.dataspace,
            flusher,
            server,
            MqttSettings(
                limit=Limit(items=settings.limit_items, bytes=settings.limit_bytes),
                account_limits=_account_limits(settings),
                max_connections=settings.max_connections,
                max_packet_size=settings.max_packet_size,
                max_connect_size=settings.max_connect_size,
                will_limit=settings.will_limit,
                max_client_id=settings.max_client_id,
                max_subscriptions=settings.max_subscriptions,
                topics=TopicLimits(settings.max_topic_length, settings.max_topic_levels),
                max_inflight=settings.max_inflight,
                max_awaiting_release=settings.max_awaiting_release,
                receive_maximum=settings.receive_maximum,
                max_keep_alive=settings.max_keep_alive,
                max_topic_alias=settings.max_topic_alias,
                max_share_groups=settings.max_share_groups,
                max_share_members=settings.max_share_members,
                connect_timeout=settings.connect_timeout,
                idle_timeout=settings.idle_timeout,
                patience=settings.patience,
                stuck=StuckPolicy(settings.stuck),
                subscription_policies=settings.subscription_policy,
                behind=Limit(items=settings.behind_items, bytes=settings.behind_bytes),
                behind_limit=settings.behind_limit,
                passwords=settings.passwords,
                anonymous=settings.anonymous,
                wrong_password_delay=settings.wrong_password_delay,
                tokens=settings.tokens,
                believes=not has_users(settings),
            ),
            admission,
            self.tree,
        )
        self.mqtt.authority = self.authority
        parts = Parts() if make_parts is None else make_parts(server)
        keep_sessions(self.mqtt, keeping, settings, parts)
        urls = _urls(settings)
        self.readers: SubscriptionServer | None = None
        if any(url.protocol == "subscribe" for url in urls) or has_subscriptions(keeping):
            self.readers = subscription_server(
                self.mqtt,
                keeping,
                admission,
                settings,
                make=parts.subscription,
                certificates=settings.tls is not None and settings.tls.asks,
            )
        self.syndicate: SyndicateServer | None = None
        if _wants_syndicate(urls):
            self.syndicate = _syndicate_server(
                self.dataspace, flusher, self.tree, settings, admission
            )
        self.input = InputBook(
            self.ledger,
            InputLimits(
                total=settings.input_limit,
                address=settings.address_input_limit,
                user=settings.user_input_limit,
            ),
        )
        for side in self.sides:
            side.authority = self.authority
            side.input = self.input
            if parts.on_side is not None:
                parts.on_side(side)
        self.authority.on_change = self._rules_changed
        self.busy_poll = BusyPoll(settings.busy_poll) if settings.busy_poll > 0 else None
        self.pages: Pages | None = None
        # The metrics of its companion (`beside`).
        self.collectors: list[Collector] = []

    def _rules_changed(self) -> None:
        self.mqtt.rules_changed()
        if self.readers is not None:
            self.readers.rules_changed()

    @property
    def sides(self) -> list[Server[Any, Any]]:
        """The sides of all protocols that are served."""
        sides: tuple[Server[Any, Any] | None, ...] = (self.mqtt, self.syndicate, self.readers)
        return [side for side in sides if side is not None]

    @property
    def unflushed(self) -> list[str]:
        """A sentence for each connection that ended, while stopping, before everything was sent."""
        unflushed = [sentence for side in self.sides for sentence in side.unflushed]
        if self.readers is not None:
            unflushed += self.readers.writing.unpublished()
        return sorted(unflushed)

    def counts(self) -> dict[str, TransportCounts]:
        """Return the counts of each protocol's sessions, for metrics.

        Deliveries, and messages without recipients, are known for the dataspace as a whole only: a
        message may reach peers of either protocol. They are counted once, with MQTT; and so are
        faults of the relay's own that have ended no connection.
        """
        from ..pages import TransportCounts

        statistics = self.dataspace.statistics()
        counts = {
            "mqtt": TransportCounts(
                messages_unroutable_total=statistics.unrouted,
                messages_delivered_total=statistics.deliveries,
                subscriptions=statistics.subscriptions,
                **_session_counts(self.mqtt, self.ledger.faults.unowned),
            )
        }
        if self.syndicate is not None:
            counts["syndicate"] = TransportCounts(
                subscriptions=statistics.observations, **_session_counts(self.syndicate)
            )
        if self.readers is not None:
            counts["subscribe"] = TransportCounts(
                subscriptions=len(self.readers.subscriptions), **_session_counts(self.readers)
            )
        return counts

    @property
    def internal_errors(self) -> int:
        """The number of the relay's own faults."""
        ended = sum(side.counters.internal_errors for side in self.sides)
        return ended + self.ledger.faults.unowned

    async def accept(self, listeners: list[Listener], connections: trio.Nursery) -> None:
        """Accept on all listeners until cancelled; the connections live in `connections`."""
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                handler, make_link = self._handler(listener), self._link_maker(listener)
                nursery.start_soon(listener.accept_into, connections, handler, make_link)

    def _link_maker(self, listener: Listener) -> Callable[[Connected, str], Link]:
        make, tls = self._plain_link_maker(listener), self.settings.tls
        if not listener.url.is_secure:
            return make
        assert tls is not None

        def make_secure(sock: Connected, peer: str) -> Link:
            secure = tls.secure(sock)
            link = make(secure, peer)
            link.secure = secure
            return link

        return make_secure

    def _plain_link_maker(self, listener: Listener) -> Callable[[Connected, str], Link]:
        busy = self.busy_poll
        if listener.url.protocol == "mqtt" and listener.url.is_websocket:
            # Imported here: only the [relay] extra brings its dependencies.
            from ..transports.websocket import WebSocketLink

            return partial(
                WebSocketLink,
                subprotocol=MQTT_SUBPROTOCOL,
                origins=self.settings.origin,
                touch=None if busy is None else busy.touch,
            )
        return Link if busy is None else busy.link

    def _handler(self, listener: Listener) -> Callable[[Link], Awaitable[object]]:
        url = listener.url
        if url.protocol == "mqtt":
            return partial(self.mqtt.handle, listener=listener.label)
        if url.protocol == "subscribe":
            assert self.readers is not None
            return partial(self.readers.handle, listener=listener.label)
        assert self.syndicate is not None
        return partial(
            self.syndicate.handle,
            listener=listener.label,
            gatekeeper=url.gatekeeper,
            websocket=url.is_websocket,
        )

    def close(self) -> None:
        """Release the state in this process, when every connection has ended."""
        for side in self.sides:
            side.partings.finish()
        if self.readers is not None:
            self.readers.close()
        if self.mqtt.kept is not None:
            self.mqtt.kept.close()
        self.tree.close_all()
        self.authority.close()

    def stop(self) -> None:
        """Read no more; each connection ends when everything it is owed has been sent."""
        if self.pages is not None:
            self.pages.set_stopping()
        for side in self.sides:
            side.stopping = True
        for side in self.sides:
            side.stop()


def _session_counts(side: Server[Any, Any], unowned: int = 0) -> dict[str, int]:
    counters = side.counters
    return {
        "connections": len(side.open),
        "accepted_connections_total": counters.accepted,
        "refused_connections_total": counters.refused,
        "broken_connections_total": counters.protocol_errors,
        "silent_connections_total": counters.timeouts,
        "messages_received_total": counters.received,
        "messages_rejected_total": counters.rejected,
        "received_bytes_total": counters.received_bytes,
        "internal_errors_total": counters.internal_errors + unowned,
    }


def _account_limits(settings: RelaySettings) -> AccountLimits | None:
    if not settings.account_limit:
        return None
    others = Limit(items=settings.limit_items, bytes=settings.limit_bytes)
    return AccountLimits(settings.account_limit, others)


def _syndicate_server(
    dataspace: Dataspace,
    flusher: Flusher,
    tree: AccountTree,
    settings: RelaySettings,
    admission: Admission,
) -> SyndicateServer:
    # Imported here: only the [relay] extra brings its dependencies.
    from ..transports.syndicate._server import SyndicateServer
    from ..transports.syndicate._settings import SyndicateSettings

    return SyndicateServer(
        dataspace,
        flusher,
        tree.server,
        SyndicateSettings(
            limit=Limit(items=settings.limit_items, bytes=settings.limit_bytes),
            account_limits=_account_limits(settings),
            max_connections=settings.max_connections,
            max_packet_size=settings.max_packet_size,
            max_text_size=settings.max_text_size,
            max_depth=settings.max_depth,
            max_references=settings.max_references,
            max_assertions=settings.max_assertions,
            max_observations=settings.max_subscriptions,
            max_turn_deliveries=settings.max_turn_deliveries,
            max_caveats_size=settings.max_caveats_size,
            connect_timeout=settings.connect_timeout,
            idle_timeout=settings.idle_timeout,
            patience=settings.patience,
            stuck=StuckPolicy(settings.stuck),
            subscription_policies=settings.subscription_policy,
            behind=Limit(items=settings.behind_items, bytes=settings.behind_bytes),
            behind_limit=settings.behind_limit,
            resolve_answer=settings.resolve_answer,
            turn_credit=settings.turn_credit,
            oid=settings.sturdy_oid,
            key=settings.sturdy_key,
            origins=settings.origin,
        ),
        admission=admission,
        tree=tree,
    )


def _urls(settings: RelaySettings) -> list[ListenURL]:
    return [ListenURL.parse(url, PROTOCOLS) for url in settings.listen]


def _check(urls: Sequence[ListenURL], settings: RelaySettings) -> None:
    """Raise ListenURLError or ListenError for settings that cannot be served.

    It runs before anything is open.
    """
    if not urls and settings.http is None:
        raise ListenURLError("no listener: give at least one URL to listen on")
    for url in urls:
        if url.gatekeeper and settings.sturdy_key is None:
            msg = (
                f"cannot listen on {str(url)!r}: ?gatekeeper needs a key that checks sturdyrefs: "
                "give --sturdy-key-file (`clearfunds mint --new-key` makes one), or remove "
                "?gatekeeper"
            )
            raise ListenURLError(msg)
        if url.is_secure and settings.tls is None:
            msg = (
                f"cannot listen on {str(url)!r}: TLS needs a certificate: "
                "give --tls-certificate and --tls-key"
            )
            raise ListenURLError(msg)
    check_pages(settings)
    check_acl(settings, urls)
    if settings.otel_every is not None:
        check_exporter()
    if any(url.is_websocket for url in urls):
        _check_extra("WebSocket", "..transports.websocket")
    if _wants_syndicate(urls):
        _check_extra("Syndicate", "..transports.syndicate._server")
        _check_syndicate_policy(settings)


def _check_extra(what: str, module: str) -> None:
    """Check that the packages are installed that a module needs from the [relay] extra.

    Raises:
        ListenError: If not.
    """
    try:
        import_module(module, __package__)
    except ModuleNotFoundError as exc:
        package = (exc.name or "").partition(".")[0]
        if package not in _EXTRA:
            raise
        msg = f'{what} needs {package}, which is not installed: pip install "clearfunds[relay]"'
        raise ListenError(msg) from exc


def _moves_limits(settings: RelaySettings) -> bool:
    latencies = (settings.limit_latency, *(tenant.latency for tenant in settings.tenant))
    return any(latency is not None for latency in latencies)


def _check_syndicate_policy(settings: RelaySettings) -> None:
    from ..transports.syndicate._droppable import ABLE

    policies = SubscriptionPolicies(
        settings.subscription_policy, PolicyRule(StuckPolicy(settings.stuck), settings.patience)
    )
    found = policies.of("syndicate:0/-/0", "0", able=ABLE, topic_of=None)
    if not found.policies <= ABLE:
        msg = (
            f"{settings.stuck} does not apply to Syndicate's peers: their messages have no "
            "topics, and assertions cannot be dropped. Give another policy for these peers, for "
            "example --subscription-policy 'syndicate:* #=drop_oldest', or for all"
        )
        raise ListenURLError(msg)


def _wants_syndicate(urls: Sequence[ListenURL]) -> bool:
    return any(url.protocol == "syndicate" for url in urls)


async def serve_relay(
    settings: RelaySettings,
    *,
    task_status: trio.TaskStatus[RelayAddresses] = trio.TASK_STATUS_IGNORED,
    stop: trio.Event | None = None,
    beside: Companion | None = None,
    make_parts: PartsMaker | None = None,
) -> RelayReport:
    """Run a relay until `stop` is set, or until cancelled.

    Args:
        settings: The settings of the relay.
        task_status: Told of the addresses once every listener is open.
        stop: Ends it in an orderly way: it accepts and reads nothing more, sends everything owed
            within `settings.grace` seconds, and then closes every connection.
        beside: A companion that runs beside it: a journal.
        make_parts: Makes the parts of the relay that another program replaces; None: its own.

    Cancellation: ends it at once; every connection is closed, and nothing is owed afterwards.

    Raises:
        ListenURLError: If a URL is none, or there is nothing to serve it with.
        ListenError: If a listener cannot be opened; none stays open then.
        StoreError: If the store cannot be opened.
    """
    urls = _urls(settings)
    _check(urls, settings)
    listeners: list[Listener] = []
    try:
        for url in urls:
            listeners += await open_listeners(url)
        for listener in listeners:
            if _moves_limits(settings):
                listener.keep_little_unsent()
            if settings.tcp_keep_alive is not None:
                listener.keep_alive(settings.tcp_keep_alive)
        async with open_flusher() as flusher, open_keeping(settings, flusher) as keeping:
            relay = Relay(settings, flusher, keeping, make_parts)
            ending = trio.Event() if stop is None else stop
            async with (beside or nothing)(relay.ledger) as collector:
                if collector is not None:
                    relay.collectors.append(collector)
                try:
                    return await _run(relay, listeners, ending, task_status)
                finally:
                    relay.close()
    finally:
        for listener in listeners:
            listener.close()


async def _run(
    relay: Relay,
    listeners: list[Listener],
    stop: trio.Event,
    task_status: trio.TaskStatus[RelayAddresses],
) -> RelayReport:
    settings = relay.settings
    async with trio.open_nursery() as background:

        def keep_going(doing: str, run: Callable[..., Awaitable[object]], *args: object) -> None:
            # A task that serves all connections must not end with one of them, and take all along.
            background.start_soon(relay.ledger.faults.keep_going, doing, run, *args)

        for side in relay.sides:
            keep_going("keeping time", side.keep_time)
        keep_going("watching patience", watch_patience, relay.ledger)
        if relay.tree.moves_limits:
            keep_going("moving limits", watch_limits, relay.ledger)
        alarms = AlarmSettings(memory=settings.memory_alarm, disk_free=settings.disk_alarm)
        raised: Alarms = await background.start(
            watch_alarms, relay.mqtt.account, alarms, settings.store
        )
        raised.on_short = MemoryHolders(relay.ledger, relay.input).short
        if settings.slow_wait is not None:
            watch = partial(watch_slow_waits, relay.ledger, seconds=settings.slow_wait)
            keep_going("watching slow waits", watch)
        if settings.throttled_after is not None:
            tell = partial(watch_throttled, relay.mqtt, after=settings.throttled_after)
            keep_going("telling of throttled clients", tell)
        if relay.busy_poll is not None:
            background.start_soon(relay.busy_poll.run)
        if settings.otel_every is not None:
            keep_going("exporting spans", _export_spans, relay.ledger, settings.otel_every)
        http: str | None = None
        if settings.http is not None:
            (http, *_) = await background.start(serve_relays_pages, relay, settings.http)
        async with trio.open_nursery() as connections:
            accepting = trio.CancelScope()

            async def accept() -> None:
                with accepting:
                    await relay.accept(listeners, connections)

            connections.start_soon(accept)
            say_what_is_allowed(settings, relay.authority)
            if relay.pages is not None:
                relay.pages.set_ready()
            urls = tuple(str(listener.url) for listener in listeners)
            logger.info(
                "listening on %s",
                ", ".join(urls) or "nothing",
                extra={"event": "listening", "urls": urls, "http": http},
            )
            task_status.started(RelayAddresses(urls, http))
            await stop.wait()
            accepting.cancel()
            for listener in listeners:
                listener.close()
            logger.info(
                "stopping; sending what is owed, for at most %g s",
                settings.grace,
                extra={"event": "stopping", "seconds": settings.grace},
            )
            relay.stop()
            connections.cancel_scope.deadline = trio.current_time() + settings.grace
        background.cancel_scope.cancel()
    return RelayReport(tuple(relay.unflushed))


async def _export_spans(ledger: Ledger, every: float) -> None:
    # Imported here: only the [otel] extra brings its dependencies.
    from ..pages.otel import sample_traces

    async with open_provider() as tracer:
        await sample_traces(ledger, tracer, every=every)
