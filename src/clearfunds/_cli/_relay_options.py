"""The relay's limits as groups of options; names and defaults are those of `RelaySettings`."""

from pathlib import Path
from typing import Annotated, Final, Literal

import attrs
from cyclopts import Group, Parameter
from cyclopts.validators import Number

from clearfunds.relay import RelaySettings
from clearfunds.transports import StuckWord
from clearfunds.transports.mqtt import MAX_PACKET_ID

from ._account_limit import AccountLimits
from ._subscription_policy import SubscriptionPolicies
from ._tenant_options import AccountRates, Tenants
from ._types import (
    Count,
    OptionalCount,
    OptionalSeconds,
    OptionalShareOrSize,
    OptionalSize,
    OptionalText,
    Seconds,
    Size,
)

DEFAULTS: Final = RelaySettings()


@Parameter(name="*", group=Group("Debt", sort_key=2))
@attrs.frozen
class Debt:
    """High-water marks of outstanding work, above which an account is not read."""

    limit_items: Annotated[
        OptionalCount,
        Parameter(
            help="High-water mark of a connection, in outstanding events: above it the relay does "
            "not read the connection (backpressure); none: no limit."
        ),
    ] = DEFAULTS.limit_items
    limit_bytes: Annotated[
        OptionalSize,
        Parameter(help="High-water mark of a connection, in outstanding bytes; none: no limit."),
    ] = DEFAULTS.limit_bytes
    limit_latency: Annotated[
        OptionalSeconds,
        Parameter(
            help="Latency target, in seconds: the greatest age of a connection's outstanding work. "
            "Its limits follow the rate at which work is cleared, up to --limit-items and "
            "--limit-bytes; none: fixed limits."
        ),
    ] = DEFAULTS.limit_latency
    account_limit: Annotated[
        AccountLimits,
        Parameter(
            help="High-water mark of some accounts, PATTERN=ITEMS[,BYTES]; PATTERN matches an "
            "account's name or a client identifier: * any text, ? any character; none: no "
            "limit. Repeatable; the first match applies."
        ),
    ] = DEFAULTS.account_limit
    rate: Annotated[
        AccountRates,
        Parameter(
            help="Rate limit of some accounts, PATTERN=ITEMS[,BYTES]: events and bytes per second "
            "that they may publish; patterns as for --account-limit; none: no limit. "
            "Repeatable; the first match applies."
        ),
    ] = DEFAULTS.rate
    tenant: Annotated[
        Tenants,
        Parameter(
            help="Tenant, NAME,key=value,...: an account above those of the connections and "
            "publications that match user=, client=, listener= (patterns) and topic= (a "
            "filter), or with the word default of all others. Limits of the tenant: weight=, "
            "items=, bytes=, rate=, rate_bytes=, latency=, connections=; of each of its "
            "users: users, user_items=, user_bytes=, user_rate=, user_rate_bytes=. "
            "Repeatable; the first match applies."
        ),
    ] = DEFAULTS.tenant
    throttled_after: Annotated[
        OptionalSeconds,
        Parameter(
            help="Throttling notice, in seconds: how long a client must be throttled before "
            "$SYS/clearfunds/throttled/CLIENT reports it; none: never."
        ),
    ] = DEFAULTS.throttled_after
    server_limit_items: Annotated[
        OptionalCount,
        Parameter(
            help="High-water mark of all connections together, in outstanding events; none: no "
            "limit."
        ),
    ] = DEFAULTS.server_limit_items
    server_limit_bytes: Annotated[
        OptionalSize,
        Parameter(
            help="High-water mark of all connections together, in outstanding bytes; none: no "
            "limit."
        ),
    ] = DEFAULTS.server_limit_bytes


@Parameter(name="*", group=Group("Patience", sort_key=3))
@attrs.frozen
class Patience:
    """Timeouts and policies for slow consumers."""

    patience: Annotated[
        Seconds,
        Parameter(
            help="Slow-consumer timeout, in seconds: how long a subscriber may take nothing while "
            "publishers wait for it."
        ),
    ] = DEFAULTS.patience
    stuck: Annotated[
        StuckWord,
        Parameter(
            help="Slow-consumer policy after --patience. wait: publishers go on waiting; "
            "disconnect: close the connection; drop_oldest, drop_newest: drop messages; "
            "conflate: keep the latest of each topic; spill: store messages (--store, "
            "--max-queued) and deliver them later. Only QoS 0 messages are ever dropped."
        ),
    ] = DEFAULTS.stuck
    subscription_policy: Annotated[
        SubscriptionPolicies,
        Parameter(
            help="Slow-consumer policy for some clients and topics, CLIENT "
            "FILTER=POLICY[,SECONDS]: CLIENT is a pattern as for --account-limit, FILTER a "
            "topic filter, POLICY as for --stuck, SECONDS the timeout (otherwise --patience). "
            "Repeatable; the first match applies."
        ),
    ] = DEFAULTS.subscription_policy
    behind_items: Annotated[
        OptionalCount,
        Parameter(
            help="Messages kept for one lagging consumer, under a policy that drops; none: no "
            "limit."
        ),
    ] = DEFAULTS.behind_items
    behind_bytes: Annotated[
        OptionalSize, Parameter(help="Bytes kept for one lagging consumer; none: no limit.")
    ] = DEFAULTS.behind_bytes
    behind_limit: Annotated[
        OptionalSize,
        Parameter(help="Bytes kept for all lagging consumers together; none: no limit."),
    ] = DEFAULTS.behind_limit
    reader_patience: Annotated[
        Seconds,
        Parameter(
            help="Slow-consumer timeout of range readers, in seconds: how long a reader may "
            "acknowledge nothing while publishers wait for it."
        ),
    ] = DEFAULTS.reader_patience
    reader_stuck: Annotated[
        Literal["wait", "disconnect", "drop_oldest"],
        Parameter(
            help="Slow-consumer policy for a range reader's subscription after --reader-patience. "
            "wait: publishers go on waiting; drop_oldest: publishers go on, and without room "
            "the oldest unacknowledged messages are dropped until the reader has caught up; "
            "disconnect: the same, and disconnect the reader."
        ),
    ] = DEFAULTS.reader_stuck
    slow_wait: Annotated[
        OptionalSeconds,
        Parameter(
            help="Log threshold for blocked publishers, in seconds: then the log names the holders "
            "that block a publisher, and finally the total wait; none: not logged."
        ),
    ] = DEFAULTS.slow_wait


@Parameter(name="*", group=Group("Peers", sort_key=4))
@attrs.frozen
class Peers:
    """Limits on the resources of one peer, and of all together."""

    max_connections: Annotated[Count, Parameter(help="Concurrent connections.")] = (
        DEFAULTS.max_connections
    )
    connections_per_address: Annotated[
        OptionalCount,
        Parameter(
            help="Concurrent connections per IPv4 address or IPv6 /64; none: eight times as many "
            "as are free, so that there is always room for another address."
        ),
    ] = DEFAULTS.connections_per_address
    connections_per_user: Annotated[
        OptionalCount,
        Parameter(
            help="Concurrent connections per user with a verified password or certificate; none: "
            "eight times as many as are free. For tenants: --tenant NAME,connections=N."
        ),
    ] = DEFAULTS.connections_per_user
    connect_rate: Annotated[
        OptionalCount,
        Parameter(
            help="Connection rate limit per address, in connections per second. Connections above "
            "it wait, up to --connect-timeout, and are then refused; none: no limit."
        ),
    ] = DEFAULTS.connect_rate
    wrong_password_delay: Annotated[
        Seconds,
        Parameter(
            help="Maximum delay of the answer to a wrong password, in seconds. It grows with wrong "
            "passwords from the same address and for the same user; only a few are checked "
            "meanwhile. 0: no delay and no limit. A correct password is never delayed."
        ),
    ] = DEFAULTS.wrong_password_delay
    tcp_keep_alive: Annotated[
        OptionalSeconds,
        Parameter(
            help="TCP keep-alive, in seconds: when to disconnect a peer whose machine has gone; "
            "none: no keep-alive."
        ),
    ] = DEFAULTS.tcp_keep_alive
    max_packet_size: Annotated[Size, Parameter(help="Maximum packet size, in bytes.")] = (
        DEFAULTS.max_packet_size
    )
    max_connect_size: Annotated[
        Size, Parameter(help="Maximum size of an MQTT CONNECT, in bytes, with will and password.")
    ] = DEFAULTS.max_connect_size
    input_limit: Annotated[
        OptionalSize,
        Parameter(
            help="Unfinished input of all connections, in bytes: incomplete packets, and data read "
            "ahead while a connection waits. Above it the relay cuts connections that make no "
            "progress, first those of the address or user with the most; none: no limit."
        ),
    ] = DEFAULTS.input_limit
    address_input_limit: Annotated[
        OptionalSize,
        Parameter(help="Unfinished input per address before login, in bytes; none: no limit."),
    ] = DEFAULTS.address_input_limit
    user_input_limit: Annotated[
        OptionalSize,
        Parameter(help="Unfinished input per verified user, in bytes; none: no limit."),
    ] = DEFAULTS.user_input_limit
    will_limit: Annotated[
        OptionalSize,
        Parameter(help="Memory for all MQTT clients' wills, in bytes; none: no limit."),
    ] = DEFAULTS.will_limit
    max_client_id: Annotated[
        Size, Parameter(help="Maximum length of a client identifier, in bytes.")
    ] = DEFAULTS.max_client_id
    max_subscriptions: Annotated[
        Count,
        Parameter(
            help="Subscriptions per MQTT client; observed patterns per Syndicate connection."
        ),
    ] = DEFAULTS.max_subscriptions
    max_topic_length: Annotated[
        Size, Parameter(help="Maximum length of a topic or filter, in bytes.")
    ] = DEFAULTS.max_topic_length
    max_topic_levels: Annotated[
        Count, Parameter(help="Maximum number of levels in a topic or filter.")
    ] = DEFAULTS.max_topic_levels
    max_range_names: Annotated[
        Count,
        Parameter(
            help="Range readers' subscriptions per user, and batch writers per user; with "
            "--passwords, or certificates."
        ),
    ] = DEFAULTS.max_range_names
    max_inflight: Annotated[
        Count,
        Parameter(
            validator=Number(gte=1, lte=MAX_PACKET_ID),
            help="In-flight window: unacknowledged QoS 1 and 2 messages to one client.",
        ),
    ] = DEFAULTS.max_inflight
    max_awaiting_release: Annotated[
        Count,
        Parameter(
            validator=Number(gte=1, lte=MAX_PACKET_ID),
            help="Unreleased QoS 2 messages per client (PUBREL outstanding); caps the Receive "
            "Maximum in MQTT 5.",
        ),
    ] = DEFAULTS.max_awaiting_release
    receive_maximum: Annotated[
        Count,
        Parameter(
            validator=Number(gte=1, lte=MAX_PACKET_ID),
            help="Receive Maximum (MQTT 5): unacknowledged QoS 1 and 2 messages from one client; "
            "at most --max-awaiting-release.",
        ),
    ] = DEFAULTS.receive_maximum
    max_keep_alive: Annotated[
        OptionalCount,
        Parameter(
            validator=Number(gte=1, lte=65_535),
            help="Maximum keep-alive of an MQTT client, in seconds; Server Keep Alive in MQTT 5. A "
            "keep-alive of 0 becomes this. none: as the client asks.",
        ),
    ] = DEFAULTS.max_keep_alive
    max_topic_alias: Annotated[
        Count,
        Parameter(
            validator=Number(lte=MAX_PACKET_ID),
            help="Topic Alias Maximum (MQTT 5), in both directions; towards a client at most the "
            "client's own.",
        ),
    ] = DEFAULTS.max_topic_alias
    max_share_groups: Annotated[
        Count,
        Parameter(
            validator=Number(gte=0),
            help="Groups of shared subscriptions; 0: no shared subscriptions.",
        ),
    ] = DEFAULTS.max_share_groups
    max_share_members: Annotated[
        Count, Parameter(help="Members of one shared subscription's group.")
    ] = DEFAULTS.max_share_members
    max_shapes: Annotated[
        Count, Parameter(help="Distinct shapes of observed patterns, of all clients.")
    ] = DEFAULTS.max_shapes
    max_filter_shapes: Annotated[
        Count,
        Parameter(
            help="Distinct combinations of wildcard positions in topic filters of more than eight "
            "levels, of all clients. Each adds up to 2 us to finding the subscribers of a new "
            "topic. Filters of up to eight levels are always accepted."
        ),
    ] = DEFAULTS.max_filter_shapes
    cached_routes: Annotated[
        Count,
        Parameter(
            validator=Number(gte=1),
            help="Route cache: number of topics with remembered subscribers.",
        ),
    ] = DEFAULTS.cached_routes
    cached_route_bytes: Annotated[Size, Parameter(help="Route cache: memory, in bytes.")] = (
        DEFAULTS.cached_route_bytes
    )
    max_retained: Annotated[Count, Parameter(help="Retained messages.")] = DEFAULTS.max_retained
    max_retained_bytes: Annotated[Size, Parameter(help="Retained messages, in bytes.")] = (
        DEFAULTS.max_retained_bytes
    )
    quota_items: Annotated[
        OptionalCount,
        Parameter(
            help="Quota per client: subscriptions, retained messages and assertions; none: no "
            "limit."
        ),
    ] = DEFAULTS.quota_items
    quota_bytes: Annotated[
        OptionalSize, Parameter(help="Quota per client for the same, in bytes; none: no limit.")
    ] = DEFAULTS.quota_bytes
    quota_shapes: Annotated[
        OptionalCount,
        Parameter(
            help="Quota per client: distinct combinations of wildcard positions in its topic "
            "filters, and of constants' positions in its patterns; none: no limit."
        ),
    ] = DEFAULTS.quota_shapes
    connect_timeout: Annotated[
        Seconds,
        Parameter(
            help="Connect timeout, in seconds: from opening a connection to its CONNECT or first "
            "Syndicate packet."
        ),
    ] = DEFAULTS.connect_timeout
    idle_timeout: Annotated[
        OptionalSeconds,
        Parameter(
            help="Idle timeout, in seconds without a packet, for MQTT clients with keep-alive 0 "
            "and for Syndicate clients, which have no keep-alive; none: never."
        ),
    ] = DEFAULTS.idle_timeout


@Parameter(name="*", group=Group("Persistence", sort_key=5))
@attrs.frozen
class Keeping:
    """Persistent sessions, the store and its quotas."""

    store: Annotated[
        Path | None,
        Parameter(
            help="Store directory for persistent sessions, their queues and retained messages; "
            "created if missing. Without it they are in memory and end with the relay."
        ),
    ] = None
    fsync_interval: Annotated[
        Seconds,
        Parameter(
            help="fsync interval, in seconds: the longest until written data is on disk and "
            "confirmed; 0: at once."
        ),
    ] = DEFAULTS.fsync_interval
    disk_limit: Annotated[
        OptionalSize,
        Parameter(
            help="Disk quota of messages in the store, in bytes; when it is full, queued messages "
            "count against their publishers. none: no limit."
        ),
    ] = DEFAULTS.disk_limit
    reader_disk_limit: Annotated[
        OptionalSize,
        Parameter(
            help="Disk quota of one range reader's durable subscription, in bytes; where users are "
            "known, of all of one user's, with the rows that its writers have staged; none: "
            "no quota of its own."
        ),
    ] = DEFAULTS.reader_disk_limit
    range_owner: Annotated[
        OptionalText,
        Parameter(
            help="Owner of stored range subscriptions and batch writers from before logins were "
            "required: a user, or - for peers without a login; none: nobody can reach them."
        ),
    ] = DEFAULTS.range_owner
    kept_limit: Annotated[
        OptionalSize,
        Parameter(help="Memory quota of messages without a store, in bytes; none: no limit."),
    ] = DEFAULTS.kept_limit
    session_expiry: Annotated[
        OptionalSeconds,
        Parameter(
            help="Session expiry, in seconds: how long the session of an absent client is kept; "
            "none: for ever."
        ),
    ] = DEFAULTS.session_expiry
    max_sessions: Annotated[Count, Parameter(help="Persistent sessions.")] = DEFAULTS.max_sessions
    max_queued: Annotated[
        OptionalCount,
        Parameter(
            help="Queued messages per client; while it is away, the oldest above this are dropped. "
            "none: no limit."
        ),
    ] = DEFAULTS.max_queued
    max_queued_bytes: Annotated[
        OptionalSize, Parameter(help="Queued bytes per client; none: no limit.")
    ] = DEFAULTS.max_queued_bytes
    sink_batch_limit: Annotated[
        Size,
        Parameter(
            help="Staged bytes of one batch of a batch writer (Spark's sink); without --store they "
            "are in memory, and the limit is for all writers together."
        ),
    ] = DEFAULTS.sink_batch_limit
    sink_grace: Annotated[
        Seconds,
        Parameter(help="Commit timeout, in seconds: how long uncommitted staged rows wait."),
    ] = DEFAULTS.sink_grace
    sink_expiry: Annotated[
        OptionalSeconds,
        Parameter(
            help="Writer expiry, in seconds: how long the last committed batch of a writer is "
            "remembered; none: for ever."
        ),
    ] = DEFAULTS.sink_expiry
    max_sinks: Annotated[Count, Parameter(help="Known batch writers.")] = DEFAULTS.max_sinks
    memory_alarm: Annotated[
        OptionalShareOrSize,
        Parameter(
            help="Memory high-water mark of the relay: above it no publisher is read. Up to 1: a "
            "share of the memory that it may have; above 1: bytes; none: not watched."
        ),
    ] = DEFAULTS.memory_alarm
    disk_alarm: Annotated[
        OptionalSize,
        Parameter(
            help="Disk free limit, in bytes free on the store's disk: below it no publisher is "
            "read; none: not watched."
        ),
    ] = DEFAULTS.disk_alarm


@Parameter(name="*", group=Group("Syndicate", sort_key=6))
@attrs.frozen
class Syndicate:
    """Access and limits for Syndicate peers."""

    sturdy_key_file: Annotated[
        Path | None,
        Parameter(
            help="Key file, in hex, for the sturdyrefs that ?gatekeeper listeners accept; "
            "clearfunds mint makes both."
        ),
    ] = None
    sturdy_oid: Annotated[str, Parameter(help="Name (oid) of the dataspace in sturdyrefs.")] = (
        DEFAULTS.sturdy_oid
    )
    resolve_answer: Annotated[
        Literal["ok", "accepted"],
        Parameter(
            help="Success reply of a gatekeeper. ok: the current protocol's; accepted: for "
            "syndicate-py 0.19.3 and other older clients."
        ),
    ] = DEFAULTS.resolve_answer
    turn_credit: Annotated[
        Literal["off", "accept", "request"],
        Parameter(
            help="Credit for turns, backpressure that Syndicate's peers can see where their "
            "transport hides it (experimental). off: not answered; accept: granted to peers that "
            "ask for it; request: also requested from peers."
        ),
    ] = DEFAULTS.turn_credit
    max_text_size: Annotated[
        Size, Parameter(help="Maximum size of a packet written as text, in bytes.")
    ] = DEFAULTS.max_text_size
    max_depth: Annotated[Count, Parameter(help="Maximum nesting depth of a packet.")] = (
        DEFAULTS.max_depth
    )
    max_references: Annotated[
        Count, Parameter(help="References per connection to each side's entities.")
    ] = DEFAULTS.max_references
    max_assertions: Annotated[
        Count, Parameter(help="Standing assertions per connection, in each direction.")
    ] = DEFAULTS.max_assertions
    max_turn_deliveries: Annotated[
        Count,
        Parameter(
            help="Fan-out limit of one packet: deliveries that its events may cause, not counting "
            "the last event's."
        ),
    ] = DEFAULTS.max_turn_deliveries
    max_caveats_size: Annotated[
        Size, Parameter(help="Maximum size of one reference's caveats, in bytes.")
    ] = DEFAULTS.max_caveats_size
