"""The relay's limits as groups of options; names and defaults are those of `RelaySettings`."""

from pathlib import Path
from typing import Annotated, Final, Literal

import attrs
from cyclopts import Group, Parameter
from cyclopts.validators import Number

from clearfunds.transports import RelaySettings, StuckWord
from clearfunds.transports.mqtt import MAX_PACKET_ID

from ._account_limit import AccountLimits
from ._subscription_policy import SubscriptionPolicies
from ._tenant import AccountRates, Tenants
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
    """How much unfinished work may stand on somebody's account before he is not read any more."""

    limit_items: Annotated[
        OptionalCount,
        Parameter(
            help="Events a connection may owe before it is not read any more; none: no limit."
        ),
    ] = DEFAULTS.limit_items
    limit_bytes: Annotated[
        OptionalSize,
        Parameter(
            help="Bytes a connection may owe before it is not read any more; none: no limit."
        ),
    ] = DEFAULTS.limit_bytes
    limit_latency: Annotated[
        OptionalSeconds,
        Parameter(
            help="How many seconds old a connection's debt may get: its limits follow how fast it "
            "is cleared, up to --limit-items and --limit-bytes; none: they stay as they are."
        ),
    ] = DEFAULTS.limit_latency
    account_limit: Annotated[
        AccountLimits,
        Parameter(
            help="PATTERN=ITEMS[,BYTES]: the same for accounts whose name, or client identifier, "
            "matches: * any text, ? any character; none: no limit. May be given several times, "
            "the first that matches is taken."
        ),
    ] = DEFAULTS.account_limit
    rate: Annotated[
        AccountRates,
        Parameter(
            help="PATTERN=ITEMS[,BYTES]: events and bytes a second that accounts which match may "
            "publish; patterns as for --account-limit; none: no limit. May be given several times, "
            "the first that matches is taken."
        ),
    ] = DEFAULTS.rate
    tenant: Annotated[
        Tenants,
        Parameter(
            help="NAME,key=value,...: whose account stands above those of connections, and of "
            "publications, that match user=, client=, listener= (patterns) and topic= (a filter); "
            "default: of all others. What it may do: weight=, items=, bytes=, rate=, rate_bytes=, "
            "latency=, connections=; each of its users: users, user_items=, user_bytes=, "
            "user_rate=, user_rate_bytes=. May be given several times, the first that matches is "
            "taken."
        ),
    ] = DEFAULTS.tenant
    throttled_after: Annotated[
        OptionalSeconds,
        Parameter(
            help="Seconds that a client may not have been read before $SYS/clearfunds/throttled/"
            "CLIENT tells of it; none: it does not."
        ),
    ] = DEFAULTS.throttled_after
    server_limit_items: Annotated[
        OptionalCount, Parameter(help="Events all connections together may owe; none: no limit.")
    ] = DEFAULTS.server_limit_items
    server_limit_bytes: Annotated[
        OptionalSize, Parameter(help="Bytes all connections together may owe; none: no limit.")
    ] = DEFAULTS.server_limit_bytes


@Parameter(name="*", group=Group("Patience", sort_key=3))
@attrs.frozen
class Patience:
    """What is said and done about a subscriber who keeps publishers waiting."""

    patience: Annotated[
        Seconds,
        Parameter(help="Seconds that a subscriber may take nothing while others wait for it."),
    ] = DEFAULTS.patience
    stuck: Annotated[
        StuckWord,
        Parameter(
            help="What is done about one that takes nothing for longer: it is waited for; or "
            "disconnected; or it keeps its place, and of what it does not take the oldest or the "
            "newest is dropped, or all but the latest on each topic, or all is put aside (--store, "
            "--max-queued) until it takes it. Only QoS 0 is ever dropped."
        ),
    ] = DEFAULTS.stuck
    subscription_policy: Annotated[
        SubscriptionPolicies,
        Parameter(
            help="CLIENT FILTER=POLICY[,SECONDS]: the same for clients whose account's name, or "
            "client identifier, matches a pattern (as for --account-limit), with messages whose "
            "topic matches a filter; and their patience. May be given several times, the first "
            "that matches is taken."
        ),
    ] = DEFAULTS.subscription_policy
    behind_items: Annotated[
        OptionalCount,
        Parameter(
            help="Messages kept for a subscriber for which some are dropped; none: no limit."
        ),
    ] = DEFAULTS.behind_items
    behind_bytes: Annotated[OptionalSize, Parameter(help="Their bytes; none: no limit.")] = (
        DEFAULTS.behind_bytes
    )
    behind_limit: Annotated[
        OptionalSize,
        Parameter(help="Bytes that are kept for all such subscribers; none: no limit."),
    ] = DEFAULTS.behind_limit
    reader_patience: Annotated[
        Seconds,
        Parameter(
            help="Seconds that a reader of ranges may acknowledge nothing while others wait for it."
        ),
    ] = DEFAULTS.reader_patience
    reader_stuck: Annotated[
        Literal["wait", "disconnect", "drop_oldest"],
        Parameter(
            help="What is done about its subscription then: it is waited for; or nobody waits, and "
            "the oldest that it has not acknowledged is dropped when there is no room, until it "
            "has caught up; disconnect cuts it off, too."
        ),
    ] = DEFAULTS.reader_stuck
    slow_wait: Annotated[
        OptionalSeconds,
        Parameter(
            help="Seconds that a publisher may wait before the log says on whom, and then for how "
            "long in all; none: it is not logged."
        ),
    ] = DEFAULTS.slow_wait


@Parameter(name="*", group=Group("Peers", sort_key=4))
@attrs.frozen
class Peers:
    """What one peer, and all of them together, can make grow."""

    max_connections: Annotated[Count, Parameter(help="Connections at once.")] = (
        DEFAULTS.max_connections
    )
    connections_per_address: Annotated[
        OptionalCount,
        Parameter(
            help="Connections at once from one IPv4 address, or from one /64 of IPv6; none: eight "
            "times as many as are free, so that there is always room for another address."
        ),
    ] = DEFAULTS.connections_per_address
    connections_per_user: Annotated[
        OptionalCount,
        Parameter(
            help="Connections at once of one user whose password or certificate was checked; "
            "none: eight times as many as are free. For tenants: --tenant NAME,connections=N."
        ),
    ] = DEFAULTS.connections_per_user
    connect_rate: Annotated[
        OptionalCount,
        Parameter(
            help="Connections a second from one address; those above wait for up to "
            "--connect-timeout and are then refused. none: no limit."
        ),
    ] = DEFAULTS.connect_rate
    wrong_password_delay: Annotated[
        Seconds,
        Parameter(
            help="Longest delay before a wrong password is answered; it grows with wrong passwords "
            "from the same address and for the same user, and only a few are checked meanwhile. "
            "0: no delay, and no limit. A right password is never delayed."
        ),
    ] = DEFAULTS.wrong_password_delay
    tcp_keep_alive: Annotated[
        OptionalSeconds,
        Parameter(
            help="Seconds after which TCP's keep-alive finds that a peer's machine has gone; none: "
            "no keep-alive."
        ),
    ] = DEFAULTS.tcp_keep_alive
    max_packet_size: Annotated[Size, Parameter(help="Bytes in one packet.")] = (
        DEFAULTS.max_packet_size
    )
    max_connect_size: Annotated[
        Size, Parameter(help="Bytes in an MQTT client's CONNECT, its will and password included.")
    ] = DEFAULTS.max_connect_size
    input_limit: Annotated[
        OptionalSize,
        Parameter(
            help="Bytes of unfinished input of all connections: incomplete packets, and what is "
            "read ahead while a connection waits. Above that, the connections go first whose "
            "address or user has most, and which make no progress; none: no limit."
        ),
    ] = DEFAULTS.input_limit
    address_input_limit: Annotated[
        OptionalSize,
        Parameter(
            help="The same for the connections of one address that have not logged in; none: no "
            "limit."
        ),
    ] = DEFAULTS.address_input_limit
    user_input_limit: Annotated[
        OptionalSize,
        Parameter(help="The same for the connections of one verified user; none: no limit."),
    ] = DEFAULTS.user_input_limit
    will_limit: Annotated[
        OptionalSize,
        Parameter(help="Bytes of memory that all MQTT clients' wills may take; none: no limit."),
    ] = DEFAULTS.will_limit
    max_client_id: Annotated[Size, Parameter(help="Bytes in a client identifier.")] = (
        DEFAULTS.max_client_id
    )
    max_subscriptions: Annotated[
        Count,
        Parameter(
            help="Subscriptions of one MQTT client; patterns one Syndicate connection observes."
        ),
    ] = DEFAULTS.max_subscriptions
    max_topic_length: Annotated[Size, Parameter(help="Bytes in a topic or a filter.")] = (
        DEFAULTS.max_topic_length
    )
    max_topic_levels: Annotated[Count, Parameter(help="Levels in a topic or a filter.")] = (
        DEFAULTS.max_topic_levels
    )
    max_range_names: Annotated[
        Count,
        Parameter(
            help="Subscriptions of readers of ranges, and writers of batches, of one user; with "
            "--passwords, or certificates."
        ),
    ] = DEFAULTS.max_range_names
    max_inflight: Annotated[
        Count,
        Parameter(
            validator=Number(gte=1, lte=MAX_PACKET_ID),
            help="QoS 1 and 2 messages sent to one client and not acknowledged.",
        ),
    ] = DEFAULTS.max_inflight
    max_awaiting_release: Annotated[
        Count,
        Parameter(
            validator=Number(gte=1, lte=MAX_PACKET_ID),
            help="QoS 2 messages of one client whose PUBREL has not come.",
        ),
    ] = DEFAULTS.max_awaiting_release
    receive_maximum: Annotated[
        Count,
        Parameter(
            validator=Number(gte=1, lte=MAX_PACKET_ID),
            help="Receive Maximum (MQTT 5): QoS 1 and 2 messages of one client that are not "
            "acknowledged; at most --max-awaiting-release.",
        ),
    ] = DEFAULTS.receive_maximum
    max_keep_alive: Annotated[
        OptionalCount,
        Parameter(
            validator=Number(gte=1, lte=65_535),
            help="Longest keep-alive of an MQTT client, in seconds; MQTT 5 clients are told it as "
            "Server Keep Alive, and a keep-alive of 0 means it. none: as the client asks.",
        ),
    ] = DEFAULTS.max_keep_alive
    max_topic_alias: Annotated[
        Count,
        Parameter(
            validator=Number(lte=MAX_PACKET_ID),
            help="Topic Alias Maximum (MQTT 5): topics that a client may give short names to, and "
            "the relay for it, if it allows as many.",
        ),
    ] = DEFAULTS.max_topic_alias
    max_share_groups: Annotated[
        Count,
        Parameter(
            validator=Number(gte=0),
            help="Groups of MQTT clients that share a subscription; 0: there are none.",
        ),
    ] = DEFAULTS.max_share_groups
    max_share_members: Annotated[Count, Parameter(help="Members of one such group.")] = (
        DEFAULTS.max_share_members
    )
    max_shapes: Annotated[
        Count, Parameter(help="Different shapes of patterns that are observed, by all clients.")
    ] = DEFAULTS.max_shapes
    max_filter_shapes: Annotated[
        Count,
        Parameter(
            help="Different places in which all clients' topic filters of more than eight levels "
            "may have their wildcards: finding the subscribers of a new topic takes up to 2 us for "
            "each. Filters of up to eight levels are always taken."
        ),
    ] = DEFAULTS.max_filter_shapes
    cached_routes: Annotated[
        Count,
        Parameter(validator=Number(gte=1), help="Topics whose subscribers are remembered."),
    ] = DEFAULTS.cached_routes
    cached_route_bytes: Annotated[Size, Parameter(help="Memory for that, in bytes.")] = (
        DEFAULTS.cached_route_bytes
    )
    max_retained: Annotated[Count, Parameter(help="Retained messages.")] = DEFAULTS.max_retained
    max_retained_bytes: Annotated[Size, Parameter(help="Bytes in retained messages.")] = (
        DEFAULTS.max_retained_bytes
    )
    quota_items: Annotated[
        OptionalCount,
        Parameter(
            help="Subscriptions, retained messages and assertions one client may have; none: no "
            "limit."
        ),
    ] = DEFAULTS.quota_items
    quota_bytes: Annotated[OptionalSize, Parameter(help="Their bytes; none: no limit.")] = (
        DEFAULTS.quota_bytes
    )
    quota_shapes: Annotated[
        OptionalCount,
        Parameter(
            help="Different places in which one client's topic filters may have their wildcards, "
            "and its patterns their constants; none: no limit."
        ),
    ] = DEFAULTS.quota_shapes
    connect_timeout: Annotated[
        Seconds,
        Parameter(
            help="Seconds from a connection's opening to its CONNECT or first Syndicate packet."
        ),
    ] = DEFAULTS.connect_timeout
    idle_timeout: Annotated[
        OptionalSeconds,
        Parameter(
            help="Seconds without a packet, for MQTT clients that ask for no keep-alive and for "
            "Syndicate's, which has none; none: for ever."
        ),
    ] = DEFAULTS.idle_timeout


@Parameter(name="*", group=Group("Keeping", sort_key=5))
@attrs.frozen
class Keeping:
    """What is kept for clients that are away, and for the relay's next start."""

    store: Annotated[
        Path | None,
        Parameter(
            help="Directory in which sessions, what is queued for them and retained messages are "
            "kept; made if it is not there. Without one they are kept in memory, and end with the "
            "relay."
        ),
    ] = None
    fsync_interval: Annotated[
        Seconds,
        Parameter(help="Seconds until what is written is on the disk, and confirmed; 0: at once."),
    ] = DEFAULTS.fsync_interval
    disk_limit: Annotated[
        OptionalSize,
        Parameter(
            help="Bytes of messages in the store; when they are spent publishers pay for what is "
            "queued. none: no limit."
        ),
    ] = DEFAULTS.disk_limit
    reader_disk_limit: Annotated[
        OptionalSize,
        Parameter(
            help="Bytes in the store of one durable subscription of a reader of ranges; where "
            "users are known, of all that one user has there, what its writers have staged "
            "included; none: no limit of its own."
        ),
    ] = DEFAULTS.reader_disk_limit
    range_owner: Annotated[
        OptionalText,
        Parameter(
            help="User who gets the subscriptions and writers in the store that were made before "
            "readers and writers had to log in (-: those who need not); none: nobody can reach "
            "them."
        ),
    ] = DEFAULTS.range_owner
    kept_limit: Annotated[
        OptionalSize, Parameter(help="The same in memory, without a store; none: no limit.")
    ] = DEFAULTS.kept_limit
    paging: Annotated[
        Literal["steady", "classic"],
        Parameter(
            help="Which queued messages are in memory: as many as consumers take in two seconds, "
            "or as many as memory has room for."
        ),
    ] = DEFAULTS.paging
    session_expiry: Annotated[
        OptionalSeconds,
        Parameter(help="Seconds that a client's session is kept while it is away; none: for ever."),
    ] = DEFAULTS.session_expiry
    max_sessions: Annotated[Count, Parameter(help="Sessions that are kept.")] = (
        DEFAULTS.max_sessions
    )
    max_queued: Annotated[
        OptionalCount,
        Parameter(
            help="Messages kept for one client; while it is away, the oldest above that are "
            "dropped. none: no limit."
        ),
    ] = DEFAULTS.max_queued
    max_queued_bytes: Annotated[OptionalSize, Parameter(help="Their bytes; none: no limit.")] = (
        DEFAULTS.max_queued_bytes
    )
    sink_batch_limit: Annotated[
        Size,
        Parameter(
            help="Bytes that a writer of batches (Spark's sink) may have staged of one batch; "
            "without --store they are in memory, and this is for all writers."
        ),
    ] = DEFAULTS.sink_batch_limit
    sink_grace: Annotated[
        Seconds, Parameter(help="Seconds that staged rows wait which nobody commits.")
    ] = DEFAULTS.sink_grace
    sink_expiry: Annotated[
        OptionalSeconds,
        Parameter(
            help="Seconds that it is known which batch a writer has committed last; none: for ever."
        ),
    ] = DEFAULTS.sink_expiry
    max_sinks: Annotated[Count, Parameter(help="Writers of batches that are known.")] = (
        DEFAULTS.max_sinks
    )
    memory_alarm: Annotated[
        OptionalShareOrSize,
        Parameter(
            help="Memory of the relay above which nobody who publishes is read: up to 1, a share "
            "of what there is; above, bytes; none: it is not watched."
        ),
    ] = DEFAULTS.memory_alarm
    disk_alarm: Annotated[
        OptionalSize,
        Parameter(
            help="Bytes free on the store's disk below which nobody who publishes is read; none: "
            "it is not watched."
        ),
    ] = DEFAULTS.disk_alarm


@Parameter(name="*", group=Group("Syndicate", sort_key=6))
@attrs.frozen
class Syndicate:
    """What only peers of Syndicate can make grow, and how they get in."""

    sturdy_key_file: Annotated[
        Path | None,
        Parameter(
            help="File with the key, in hex, of the sturdyrefs that ?gatekeeper listeners take; "
            "clearfunds mint makes both."
        ),
    ] = None
    sturdy_oid: Annotated[str, Parameter(help="What the dataspace is called in sturdyrefs.")] = (
        DEFAULTS.sturdy_oid
    )
    resolve_answer: Annotated[
        Literal["ok", "accepted"],
        Parameter(
            help="How a gatekeeper says yes: as the protocol has it today, or as syndicate-py "
            "0.19.3 and other older clients expect it."
        ),
    ] = DEFAULTS.resolve_answer
    credit: Annotated[
        Literal["off", "accept", "request"],
        Parameter(
            help="The experimental credit on the wire: not answered, given to peers who ask for "
            "it, or also asked for."
        ),
    ] = DEFAULTS.credit
    max_text_size: Annotated[Size, Parameter(help="Bytes in one packet written as text.")] = (
        DEFAULTS.max_text_size
    )
    max_depth: Annotated[Count, Parameter(help="Levels of nesting in one packet.")] = (
        DEFAULTS.max_depth
    )
    max_references: Annotated[
        Count, Parameter(help="References one connection may have to each side's entities.")
    ] = DEFAULTS.max_references
    max_assertions: Annotated[
        Count, Parameter(help="Assertions that stand on one connection, each way.")
    ] = DEFAULTS.max_assertions
    max_turn_deliveries: Annotated[
        Count,
        Parameter(help="Deliveries that the events of one packet may cause, but for the last."),
    ] = DEFAULTS.max_turn_deliveries
    max_caveats_size: Annotated[Size, Parameter(help="Bytes in the caveats of one reference.")] = (
        DEFAULTS.max_caveats_size
    )
