"""The options of a server: each is said here once, with its unit, default, range and text.

The classes are the groups of `clearfunds relay --help`, and a field's docstring is its help text.
`none` there is None here; files there are what is in them here. Comments have the precedents of
the defaults, unless they stand beside a constant.

No option needs a package that only the [relay] extra brings.
"""

import ssl
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import attrs

from ..access._account_limits import AccountLimit, AccountLimits, AccountRate
from ..access._connect_rate import DEFAULT_CONNECT_RATE, DEFAULT_LISTENER_CONNECT_RATE
from ..access._guesses import DELAYS
from ..access._publication_policies import PublicationPolicy
from ..access._subscription_policies import PolicyRule, ProfileWord, StuckWord, SubscriptionPolicy
from ..access._tenants import Tenant, check_tenants
from ..access._topic_accounts import TopicAccount
from ..accounts import (
    DEFAULT_LIMIT_BYTES,
    DEFAULT_LIMIT_ITEMS,
    DEFAULT_PATIENCE,
    DEFAULT_SLOW_WAIT,
    DEFAULT_STANDING_BYTES,
    DEFAULT_STANDING_ITEMS,
    DEFAULT_STANDING_SHAPES,
    RETAIN_LIMIT,
    Limit,
    Profile,
    StuckPolicy,
)
from ..dataspace import (
    DEFAULT_CACHED_ROUTE_BYTES,
    DEFAULT_CACHED_ROUTES,
    DEFAULT_MAX_DEEP_SHAPES,
    DEFAULT_MAX_RETAINED,
    DEFAULT_MAX_RETAINED_BYTES,
    DEFAULT_MAX_SHAPES,
)
from ..ranges.sink import DEFAULT_BATCH_LIMIT, DEFAULT_EXPIRY, DEFAULT_GRACE
from ._input import DEFAULT_ADDRESS_INPUT_LIMIT, DEFAULT_INPUT_LIMIT, DEFAULT_USER_INPUT_LIMIT
from ._listener import DEFAULT_UNSENT_BYTES
from ._origins import origins_of
from ._outlet_backlog import DEFAULT_BEHIND_LIMIT
from ._units import RELOADABLE, Between, Count, Seconds, ShareOrSize, Size, Text, above_nothing

if TYPE_CHECKING:
    from ..access._passwords import Authenticator
    from ..access._tokens import Tokens
    from ..sockets import ServerTls

DEFAULT_NAMES_EACH = 250
"""Subscriptions, and writers, of one user: a quarter of what one relay may have of each."""

MAX_PACKET_ID: Final = 65_535
"""As `mqtt.MAX_PACKET_ID`, which cannot be imported here: MQTT's servers have these settings."""


@attrs.frozen(kw_only=True, slots=False)
class ListenerSettings:
    """Listeners, and logins of clients."""

    listen: tuple[str, ...] = ("mqtt+tcp://127.0.0.1:1883",)
    """Listener URL: mqtt://HOST or mqtt+tcp://HOST:PORT (port 0: any free port), mqtt+unix:///PATH,
    mqtt+ws://HOST:PORT (WebSocket, for browsers); mqtts or mqtt+tls, and mqtt+wss, are the same
    with TLS (--tls-certificate). syndicate+tcp and so on likewise; ?gatekeeper at the end admits
    only clients with a sturdyref. amqp, amqps and amqp+unix are for clients of AMQP 0-9-1.
    subscribe+tcp and subscribe+tls are for range readers and batch writers. Repeatable."""
    reuse_port: bool = False
    """Share the ports of listeners with other processes that have this option, too (SO_REUSEPORT):
    the kernel spreads connections among them. Not for Unix-domain listeners."""
    origin: tuple[str, ...] = attrs.field(default=(), converter=origins_of)
    """Allowed WebSocket origin, https://HOST[:PORT]; *: any. Without it, only pages of the same
    host may connect, if that is an address, localhost or this machine's own name. Repeatable."""
    passwords: "Authenticator | None" = None
    """Password file, in mosquitto_passwd's format: every client of MQTT and AMQP, range reader and
    batch writer must log in. Without it the relay checks no passwords. Reloaded at SIGHUP."""
    anonymous: bool = False
    """Admit clients without a user name, too; with --passwords or --jwt-key."""
    http: Text | None = None
    """HTTP address, HOST:PORT, for the live page, /metrics, /ledger.json, /healthz and /readyz;
    https://HOST:PORT: the same with TLS (--tls-certificate); none: no HTTP. An address that other
    machines reach needs --http-token, --http-password or --http-open."""


@attrs.frozen(kw_only=True, slots=False)
class DebtSettings:
    """High-water marks of outstanding work, above which an account is not read."""

    limit_items: Count | None = attrs.field(default=DEFAULT_LIMIT_ITEMS, metadata=RELOADABLE)
    """High-water mark of a connection, in outstanding events: above it the relay does not read the
    connection (backpressure); none: no limit."""
    limit_bytes: Size | None = attrs.field(default=DEFAULT_LIMIT_BYTES, metadata=RELOADABLE)
    """High-water mark of a connection, in outstanding bytes; none: no limit."""
    limit_latency: Seconds | None = attrs.field(default=None, validator=above_nothing)
    """Latency target, in seconds: the greatest age of a connection's outstanding work. Its limits
    follow the rate at which work is cleared, up to --limit-items and --limit-bytes; none: fixed
    limits."""
    account_limit: tuple[AccountLimit, ...] = attrs.field(default=(), metadata=RELOADABLE)
    """High-water mark of some accounts, PATTERN=ITEMS[,BYTES]; PATTERN matches an account's name or
    a client identifier: * any text, ? any character; none: no limit. Repeatable; the first match
    applies."""
    topic_account: tuple[TopicAccount, ...] = ()
    """Separate accounts for topics of some clients, CLIENT FILTER: as many levels as FILTER has
    before # name an account, which has a share of its connection's limit. With a
    --publication-policy to refuse or shed, a topic above its share does not stop the others.
    Repeatable; the first match applies."""
    # As many as RFC 9113 wants streams of one HTTP/2 connection to be possible, at least.
    max_topic_accounts: Count = 100
    """Topic accounts of one connection; all further topics share one more."""
    publication_policy: tuple[PublicationPolicy, ...] = attrs.field(default=(), metadata=RELOADABLE)
    """Over-limit policy for the publications of some clients, CLIENT FILTER=POLICY: CLIENT is a
    pattern as for --account-limit, FILTER a topic filter. wait: do not read the client
    (backpressure; the default); refuse: answer QoS 1 and 2 of MQTT 5 with reason 0x97, drop the
    rest; shed: drop. Repeatable; the first match applies."""
    rate: tuple[AccountRate, ...] = attrs.field(default=(), metadata=RELOADABLE)
    """Rate limit of some accounts, PATTERN=ITEMS[,BYTES]: events and bytes per second that they may
    publish; patterns as for --account-limit; none: no limit. Repeatable; the first match
    applies."""
    tenant: tuple[Tenant, ...] = attrs.field(
        default=(), validator=check_tenants, metadata=RELOADABLE
    )
    """Tenant, NAME,key=value,...: an account above those of the connections and publications that
    match user=, client=, listener= (patterns) and topic= (a filter), or with the word default of
    all others. Limits of the tenant: weight=, items=, bytes=, rate=, rate_bytes=, latency=,
    connections=; of each of its users: users, user_items=, user_bytes=, user_rate=,
    user_rate_bytes=. Repeatable; the first match applies."""
    throttled_after: Seconds | None = 1.0
    """Throttling notice, in seconds: how long a client must be throttled before
    $SYS/clearfunds/throttled/CLIENT reports it; none: never."""
    server_limit_items: Count | None = attrs.field(default=None, metadata=RELOADABLE)
    """High-water mark of all connections together, in outstanding events; none: no limit."""
    # 32 connections at their own limit.
    server_limit_bytes: Size | None = attrs.field(default=256 << 20, metadata=RELOADABLE)
    """High-water mark of all connections together, in outstanding bytes; none: no limit."""

    @cached_property
    def limit(self) -> Limit:
        """The limit (high-water mark) on the debt of one connection: above it, it is not read."""
        return Limit(items=self.limit_items, bytes=self.limit_bytes)

    @property
    def server_limit(self) -> Limit:
        """The limit on the debt of all connections together."""
        return Limit(items=self.server_limit_items, bytes=self.server_limit_bytes)

    @cached_property
    def account_limits(self) -> AccountLimits | None:
        """Those of some connections; None: `limit` is for all."""
        return AccountLimits(self.account_limit, self.limit) if self.account_limit else None

    def limit_of(self, *names: str) -> Limit:
        """Return the limit of the account that has one of these names."""
        return self.limit if self.account_limits is None else self.account_limits.of(*names)


@attrs.frozen(kw_only=True, slots=False)
class PatienceSettings:
    """Timeouts and policies for slow consumers."""

    profile: ProfileWord = attrs.field(default="balanced", metadata=RELOADABLE)
    """Slow consumers, in one word. balanced: publishers wait for half a second at most, then
    messages are spilled (--spill-limit, --store), and only without room for them publishers wait
    for --patience; lossless: publishers wait for --patience; then, as under balanced, the slow
    consumer is disconnected; live: nobody waits, and old QoS 0 messages are dropped."""
    patience: Seconds = attrs.field(default=DEFAULT_PATIENCE, metadata=RELOADABLE)
    """Slow-consumer timeout, in seconds: how long a subscriber may take nothing while publishers
    wait for it."""
    stuck: StuckWord | None = attrs.field(default=None, metadata=RELOADABLE)
    """Slow-consumer policy after --patience, in place of the profile's. wait: publishers go on
    waiting; disconnect: close the connection; drop_oldest, drop_newest: drop messages; conflate:
    keep the latest of each topic; spill: store messages (--store, --spill-limit) and deliver them
    later. Only QoS 0 messages are ever dropped [default: by --profile]."""
    subscription_policy: tuple[SubscriptionPolicy, ...] = attrs.field(
        default=(), metadata=RELOADABLE
    )
    """Slow-consumer policy for some clients and topics, CLIENT FILTER=POLICY[,SECONDS]: CLIENT is a
    pattern as for --account-limit, FILTER a topic filter, POLICY as for --stuck, SECONDS the
    timeout (otherwise --patience); or POLICY is a profile. Repeatable; the first match applies."""
    behind_items: Count | None = attrs.field(default=RETAIN_LIMIT.items, metadata=RELOADABLE)
    """Messages kept for one lagging consumer, under a policy that drops; none: no limit."""
    behind_bytes: Size | None = attrs.field(default=RETAIN_LIMIT.bytes, metadata=RELOADABLE)
    """Bytes kept for one lagging consumer; none: no limit."""
    behind_limit: Size | None = DEFAULT_BEHIND_LIMIT
    """Bytes kept for all lagging consumers together; none: no limit."""
    # More than ten seconds of 10 MB/s.
    spill_limit: Size | None = 128 << 20
    """Bytes spilled for slow consumers, in memory for all together; with --store for each, and all
    together take at most half of --disk-limit; none: no limit."""
    # A job of some seconds between two acknowledgements is what a subscription is for; one that
    # takes minutes wants a durable one. Three times what others have, which take messages one by
    # one.
    reader_patience: Seconds = 60.0
    """Slow-consumer timeout of range readers, in seconds: how long a reader may acknowledge nothing
    while publishers wait for it."""
    reader_stuck: Literal["wait", "disconnect", "drop_oldest"] = "disconnect"
    """Slow-consumer policy for a range reader's subscription after --reader-patience. wait:
    publishers go on waiting; drop_oldest: publishers go on, and without room the oldest
    unacknowledged messages are dropped until the reader has caught up; disconnect: the same, and
    disconnect the reader."""
    fair: bool = True
    """Serve publishers in rounds where an MQTT subscriber does not keep up (deficit round robin, by
    the tenants' weights), so that a message does not wait behind other publishers' backlog. The
    order of each publisher's messages is kept. --no-fair: first in, first out."""
    slow_wait: Seconds | None = DEFAULT_SLOW_WAIT
    """Log threshold for blocked publishers, in seconds: then the log names the holders that block a
    publisher, and finally the total wait; none: not logged."""

    @property
    def policy(self) -> PolicyRule:
        """The slow-consumer policy where no `subscription_policy` matches."""
        if self.stuck is not None:
            return PolicyRule(StuckPolicy(self.stuck), self.patience)
        return PolicyRule.of(Profile(self.profile), self.patience)

    @property
    def policy_without_spilling(self) -> PolicyRule:
        """The same for peers whose messages cannot be spilled; a profile can do without."""
        if self.stuck is None and self.policy.policy is StuckPolicy.SPILL:
            return PolicyRule.of(Profile.LOSSLESS, self.patience)
        return self.policy

    @property
    def undroppable_policy(self) -> StuckPolicy:
        """The policy for a holder of undroppable messages: wait, or disconnect."""
        return StuckPolicy.WAIT if self.stuck == "wait" else StuckPolicy.DISCONNECT

    @cached_property
    def retain_limit(self) -> Limit:
        """The limit on messages kept for a lagging peer, by a policy that drops."""
        return Limit(items=self.behind_items, bytes=self.behind_bytes)


@attrs.frozen(kw_only=True, slots=False)
class PeerSettings:
    """Limits on the resources of one peer, and of all together."""

    # Below the usual 20,000 descriptors of a process, with room for listeners, pages and files.
    max_connections: Count = attrs.field(default=10_000, metadata=RELOADABLE)
    """Concurrent connections."""
    # With none, one address may have 8/9 of all connections and never the last one.
    connections_per_address: Count | None = attrs.field(default=None, metadata=RELOADABLE)
    """Concurrent connections per IPv4 address or IPv6 /64; none: eight times as many as are free,
    so that there is always room for another address."""
    connections_per_user: Count | None = attrs.field(default=None, metadata=RELOADABLE)
    """Concurrent connections per user with a verified password or certificate; none: eight times as
    many as are free. For tenants: --tenant NAME,connections=N."""
    connect_rate: Count | None = attrs.field(
        default=DEFAULT_CONNECT_RATE, validator=Between(1), metadata=RELOADABLE
    )
    """Connection rate limit per address, in connections per second. Connections above it wait, up
    to --connect-timeout, and are then refused; none: no limit."""
    listener_connect_rate: Count | None = attrs.field(
        default=DEFAULT_LISTENER_CONNECT_RATE, validator=Between(1)
    )
    """Connection rate limit per listener, in connections per second, after a burst of one second's
    worth. Connections above it wait in the kernel's queue until they are accepted; none: no
    limit."""
    wrong_password_delay: Seconds = DELAYS[-1]
    """Maximum delay of the answer to a wrong password, in seconds. It grows with wrong passwords
    from the same address and for the same user; only a few are checked meanwhile. 0: no delay and
    no limit. A correct password is never delayed."""
    # As RabbitMQ's heartbeat time-out.
    tcp_keep_alive: Seconds | None = attrs.field(default=60.0, validator=above_nothing)
    """TCP keep-alive, in seconds: when to disconnect a peer whose machine has gone; none: no
    keep-alive."""
    unsent_bytes: Size | None = DEFAULT_UNSENT_BYTES
    """Unsent bytes that the kernel may keep for one peer over TCP (TCP_NOTSENT_LOWAT), besides what
    is on its way; with --limit-latency at most 16 KiB. Less of it lets a message overtake more of
    other publishers' backlog, and costs CPU. none: as much as the system's send buffers take."""
    max_packet_size: Size = 2 << 20
    """Maximum packet size, in bytes; of AMQP, the size of a message."""
    # Its sender has not authenticated yet. Most have less than 300 bytes, one with a token as its
    # password some thousand.
    max_connect_size: Size = 16 << 10
    """Maximum size of an MQTT CONNECT, in bytes, with will and password."""
    input_limit: Size | None = DEFAULT_INPUT_LIMIT
    """Unfinished input of all connections, in bytes: incomplete packets, and data read ahead while
    a connection waits. Above it the relay cuts connections that make no progress, first those of
    the address or user with the most; none: no limit."""
    address_input_limit: Size | None = DEFAULT_ADDRESS_INPUT_LIMIT
    """Unfinished input per address before login, in bytes; none: no limit."""
    user_input_limit: Size | None = DEFAULT_USER_INPUT_LIMIT
    """Unfinished input per verified user, in bytes; none: no limit."""
    # 10,000 clients, the default limit of connections, with 3 KiB each.
    will_limit: Size | None = 32 << 20
    """Memory for all MQTT clients' wills, in bytes; none: no limit."""
    # It names an account, which stays as long as it owes.
    max_client_id: Size = 1_024
    """Maximum length of a client identifier, in bytes."""
    # A hundred times what most clients have; AWS IoT Core allows 50.
    max_subscriptions: Count = 1_000
    """Subscriptions per MQTT client; observed patterns per Syndicate connection; consumers per AMQP
    connection."""
    # As `TopicLimits`, with the precedents.
    max_topic_length: Size = 4_096
    """Maximum length of a topic or filter, in bytes."""
    max_topic_levels: Count = 128
    """Maximum number of levels in a topic or filter."""
    # A quarter of what one relay may have of each.
    max_range_names: Count = DEFAULT_NAMES_EACH
    """Range readers' subscriptions per user, and batch writers per user; with --passwords, or
    certificates."""
    # Not more than there are packet identifiers [MQTT-2.3.1-1].
    max_inflight: Count = attrs.field(default=32, validator=Between(1, MAX_PACKET_ID))
    """In-flight window: unacknowledged QoS 1 and 2 messages to one client."""
    # As many as there are packet identifiers: MQTT 3.1.1 cannot tell a client of a lower limit.
    max_awaiting_release: Count = attrs.field(
        default=MAX_PACKET_ID, validator=Between(1, MAX_PACKET_ID)
    )
    """Unreleased QoS 2 messages per client (PUBREL outstanding); caps the Receive Maximum in MQTT
    5."""
    # EMQX's `max_awaiting_rel` is 100; clients keep about 20 in flight (paho-mqtt).
    receive_maximum: Count = attrs.field(default=1_000, validator=Between(1, MAX_PACKET_ID))
    """Receive Maximum (MQTT 5): unacknowledged QoS 1 and 2 messages from one client; at most
    --max-awaiting-release."""
    # As mosquitto's `max_keepalive`.
    max_keep_alive: Count | None = attrs.field(default=None, validator=Between(1, 65_535))
    """Maximum keep-alive of an MQTT client, in seconds; Server Keep Alive in MQTT 5. A keep-alive
    of 0 becomes this. none: as the client asks."""
    # As mosquitto's.
    max_topic_alias: Count = attrs.field(default=10, validator=Between(0, MAX_PACKET_ID))
    """Topic Alias Maximum (MQTT 5), in both directions; towards a client at most the client's
    own."""
    # One takes about 14 KiB; as many as persistent sessions.
    max_share_groups: Count = attrs.field(default=10_000, validator=Between(0))
    """Groups of shared subscriptions; 0: no shared subscriptions."""
    # A hundred times a usual pool of workers.
    max_share_members: Count = 1_000
    """Members of one shared subscription's group."""
    max_shapes: Count = DEFAULT_MAX_SHAPES
    """Distinct shapes of observed patterns, of all clients."""
    max_filter_shapes: Count = DEFAULT_MAX_DEEP_SHAPES
    """Distinct combinations of wildcard positions in topic filters of more than eight levels, of
    all clients. Each adds up to 2 us to finding the subscribers of a new topic. Filters of up to
    eight levels are always accepted."""
    cached_routes: Count = DEFAULT_CACHED_ROUTES
    """Route cache: number of topics with remembered subscribers."""
    cached_route_bytes: Size = DEFAULT_CACHED_ROUTE_BYTES
    """Route cache: memory, in bytes."""
    max_retained: Count = DEFAULT_MAX_RETAINED
    """Retained messages."""
    max_retained_bytes: Size = DEFAULT_MAX_RETAINED_BYTES
    """Retained messages, in bytes."""
    quota_items: Count | None = DEFAULT_STANDING_ITEMS
    """Quota per client: subscriptions, retained messages and assertions; none: no limit."""
    quota_bytes: Size | None = DEFAULT_STANDING_BYTES
    """Quota per client for the same, in bytes; none: no limit."""
    quota_shapes: Count | None = DEFAULT_STANDING_SHAPES
    """Quota per client: distinct combinations of wildcard positions in its topic filters, and of
    constants' positions in its patterns; none: no limit."""
    # HiveMQ's and EMQX's idle time-outs are 10 and 15 s.
    connect_timeout: Seconds = 10.0
    """Connect timeout, in seconds: from opening a connection to its CONNECT or first Syndicate
    packet."""
    # Observers are silent.
    idle_timeout: Seconds | None = None
    """Idle timeout, in seconds without a packet, for MQTT clients with keep-alive 0 and for
    Syndicate clients, which have no keep-alive; none: never."""


@attrs.frozen(kw_only=True, slots=False)
class PersistenceSettings:
    """Persistent sessions, the store and its quotas."""

    store: Path | None = None
    """Store directory for persistent sessions, their queues and retained messages; created if
    missing. nats: in JetStream, replicated, with --cluster (a directory of that name: give its full
    path). Without it they are in memory and end with the relay."""
    # As RabbitMQ's.
    fsync_interval: Seconds = 0.2
    """fsync interval of a busy relay, in seconds: the longest until written data is on disk and
    confirmed. When the relay has nothing else to do, that is at once; 0: always."""
    # Sixteen clients' full queues; a tenth of a small disk.
    disk_limit: Size | None = 1 << 30
    """Disk quota of messages in the store, in bytes; when it is full, queued messages count against
    their publishers. none: no limit."""
    # Half of the disk limit: one reader that stays away leaves the others the rest.
    reader_disk_limit: Size | None = 512 << 20
    """Disk quota of one range reader's durable subscription, in bytes; where users are known, of
    all of one user's, with the rows that its writers have staged; none: no quota of its own."""
    range_owner: Text | None = None
    """Owner of stored range subscriptions and batch writers from before logins were required: a
    user, or - for peers without a login; none: nobody can reach them."""
    # One client's full queue.
    kept_limit: Size | None = 64 << 20
    """Memory quota of messages without a store, in bytes; none: no limit."""
    # A day, as in RabbitMQ's MQTT plugin.
    session_expiry: Seconds | None = 86_400.0
    """Session expiry, in seconds: how long the session of an absent client is kept; none: for
    ever."""
    # As many as connections.
    max_sessions: Count = 10_000
    """Persistent sessions."""
    # A hundred times mosquitto's `max_queued_messages`, which are in memory.
    max_queued: Count | None = 100_000
    """Queued messages per client; while it is away, the oldest above this are dropped. none: no
    limit."""
    # Eight times an account's default limit.
    max_queued_bytes: Size | None = 64 << 20
    """Queued bytes per client; none: no limit."""
    sink_batch_limit: Size = DEFAULT_BATCH_LIMIT
    """Staged bytes of one batch of a batch writer (Spark's sink); without --store they are in
    memory, and the limit is for all writers together."""
    sink_grace: Seconds = DEFAULT_GRACE
    """Commit timeout, in seconds: how long uncommitted staged rows wait."""
    sink_expiry: Seconds | None = DEFAULT_EXPIRY
    """Writer expiry, in seconds: how long the last committed batch of a writer is remembered; none:
    for ever."""
    max_sinks: Count = 1000
    """Known batch writers."""
    # As RabbitMQ's vm_memory_high_watermark.
    memory_alarm: ShareOrSize | None = 0.6
    """Memory high-water mark of the relay: above it no publisher is read. Up to 1: a share of the
    memory that it may have; above 1: bytes; none: not watched."""
    # As RabbitMQ's disk_free_limit.
    disk_alarm: Size | None = 50_000_000
    """Disk free limit, in bytes free on the store's disk: below it no publisher is read; none: not
    watched."""


@attrs.frozen(kw_only=True, slots=False)
class SyndicateSettings:
    """Access and limits for Syndicate peers."""

    sturdy_key: bytes | None = attrs.field(default=None, repr=False)
    """Key file, in hex, for the sturdyrefs that ?gatekeeper listeners accept; clearfunds mint makes
    both."""
    # As in syndicate-rs's configuration for its examples.
    sturdy_oid: str = "syndicate"
    """Name (oid) of the dataspace in sturdyrefs."""
    bind_oid: str = "bind"
    """Name (oid) of the bindspace in sturdyrefs: clients with a sturdyref for it bind names of
    their own and make dataspaces."""
    max_bound_names: Count = 1_000
    """Names that Syndicate clients have bound, and dataspaces that they have made."""
    names_per_connection: Count = 100
    """The same, of one connection."""
    max_routes: Count = 100
    """Connections that the relay makes to other Syndicate servers, for clients with a sturdyref for
    the bindspace (resolve-path)."""
    routes_per_connection: Count = 10
    """The same, for one connection."""
    # `<ok ref>` and `<error reason>`, since September 2024 (gatekeeper.prs, rpc.prs), or `<accepted
    # ref>` and `<rejected reason>` before.
    resolve_answer: Literal["auto", "ok", "accepted"] = "auto"
    """Success reply of a gatekeeper. ok: the current protocol's; accepted: the one before it; auto:
    both, except for clients that fail on a second one, such as syndicate-py 0.19.3."""
    # To request it is not the default: no other implementation is known to answer.
    turn_credit: Literal["off", "accept", "request"] = "accept"
    """Credit for turns, backpressure that Syndicate's peers can see where their transport hides it
    (experimental). off: not answered; accept: granted to peers that ask for it; request: also
    requested from peers."""
    max_text_size: Size = 16 << 10
    """Maximum size of a packet written as text, in bytes."""
    max_depth: Count = 64
    """Maximum nesting depth of a packet."""
    max_references: Count = 65_536
    """References per connection to each side's entities."""
    max_assertions: Count = 65_536
    """Standing assertions per connection, in each direction."""
    # A sender cannot know how many peers observe one event. As many as one connection may have
    # standing by default (`DEFAULT_STANDING_ITEMS`), told to one observer; it takes about a second.
    max_turn_deliveries: Count = 100_000
    """Fan-out limit of one packet: deliveries that its events may cause, not counting the last
    event's."""
    max_caveats_size: Size = 16 << 10
    """Maximum size of one reference's caveats, in bytes."""


@attrs.frozen(kw_only=True, slots=False)
class AmqpSettings:
    """Limits for AMQP clients, and for what they declare in one virtual host."""

    # As RabbitMQ's channel_max, frame_max and heartbeat.
    max_channels: Count = attrs.field(default=2_047, validator=Between(1, 65_535))
    """Channels of one AMQP connection (channel_max)."""
    max_frame_size: Size = attrs.field(default=131_072, validator=Between(4_096, 1 << 30))
    """Maximum size of an AMQP frame, in bytes (frame_max); for a whole message see
    --max-packet-size."""
    heartbeat: Count = attrs.field(default=60, validator=Between(0, 65_535))
    """AMQP heartbeat interval proposed to clients, in seconds; 0: none."""
    # The largest prefetch count that basic.qos can ask for.
    max_unacked: Count = 65_535
    """Unacknowledged deliveries of one AMQP consumer with no prefetch limit of its own."""
    # As `HostLimits`, with the precedents.
    max_queues: Count = 10_000
    """Queues of one virtual host."""
    max_exchanges: Count = 1_000
    """Exchanges of one virtual host."""
    max_bindings: Count = 100_000
    """Bindings of one virtual host."""
    max_definition_bytes: Size = 64 << 20
    """Memory of one virtual host for names, keys and arguments, in bytes."""
    # As `reader_disk_limit`.
    queue_disk_limit: Size | None = 512 << 20
    """Disk quota of one AMQP queue, in bytes; when it is full, messages count against their
    publishers. none: no quota of its own."""


@attrs.frozen(kw_only=True, slots=False)
class ServerSettings(
    ListenerSettings,
    DebtSettings,
    PatienceSettings,
    PeerSettings,
    PersistenceSettings,
    SyndicateSettings,
    AmqpSettings,
):
    """The settings of servers of all protocols; each reads those that concern it."""

    tls: "ServerTls | None" = attrs.field(default=None, repr=False)
    """Encrypts `tls` and `wss` listeners. Where it wants certificates of clients, a client's user
    is the name in its certificate, whatever the client says."""
    tokens: "Tokens | None" = None
    """Checks the tokens that clients give as passwords; None: tokens are not accepted."""

    @property
    def verifies(self) -> bool:
        """Whether clients that name a user have to authenticate by a password or token."""
        return self.passwords is not None or self.tokens is not None

    @cached_property
    def has_users(self) -> bool:
        """Whether clients have to authenticate: by a password, a token, or a certificate.

        If not, a client counts as the user that it names; otherwise an unverified user counts as
        no user.
        """
        by_certificate = self.tls is not None and self.tls.context.verify_mode is ssl.CERT_REQUIRED
        return self.verifies or by_certificate
