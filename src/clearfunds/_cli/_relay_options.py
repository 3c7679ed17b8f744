"""The relay's limits as groups of options; names and defaults are those of `RelaySettings`."""

from typing import Annotated, Final, Literal

import attrs
from cyclopts import Group, Parameter

from clearfunds.transports import RelaySettings

from ._types import Count, OptionalCount, OptionalSeconds, OptionalSize, Seconds, Size

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
    server_limit_items: Annotated[
        OptionalCount, Parameter(help="Events all connections together may owe; none: no limit.")
    ] = DEFAULTS.server_limit_items
    server_limit_bytes: Annotated[
        OptionalSize, Parameter(help="Bytes all connections together may owe; none: no limit.")
    ] = DEFAULTS.server_limit_bytes


@Parameter(name="*", group=Group("Patience", sort_key=3))
@attrs.frozen
class Patience:
    """What happens to a subscriber who takes nothing while publishers wait for him."""

    patience: Annotated[
        Seconds,
        Parameter(help="Seconds that a subscriber may take nothing while others wait for it."),
    ] = DEFAULTS.patience
    stuck: Annotated[
        Literal["wait", "disconnect"],
        Parameter(help="What is done about one that takes nothing for longer."),
    ] = DEFAULTS.stuck


@Parameter(name="*", group=Group("Peers", sort_key=4))
@attrs.frozen
class Peers:
    """What one peer, and all of them together, can make grow."""

    max_connections: Annotated[Count, Parameter(help="Connections at once.")] = (
        DEFAULTS.max_connections
    )
    max_packet_size: Annotated[Size, Parameter(help="Bytes in one packet.")] = (
        DEFAULTS.max_packet_size
    )
    max_client_id: Annotated[Size, Parameter(help="Bytes in a client identifier.")] = (
        DEFAULTS.max_client_id
    )
    max_subscriptions: Annotated[Count, Parameter(help="Subscriptions of one client.")] = (
        DEFAULTS.max_subscriptions
    )
    max_topic_length: Annotated[Size, Parameter(help="Bytes in a topic or a filter.")] = (
        DEFAULTS.max_topic_length
    )
    max_topic_levels: Annotated[Count, Parameter(help="Levels in a topic or a filter.")] = (
        DEFAULTS.max_topic_levels
    )
    max_inflight: Annotated[
        Count, Parameter(help="QoS 1 messages sent to one client and not acknowledged.")
    ] = DEFAULTS.max_inflight
    max_awaiting_release: Annotated[
        Count, Parameter(help="QoS 2 messages of one client whose PUBREL has not come.")
    ] = DEFAULTS.max_awaiting_release
    max_retained: Annotated[Count, Parameter(help="Retained messages.")] = DEFAULTS.max_retained
    max_retained_bytes: Annotated[Size, Parameter(help="Bytes in retained messages.")] = (
        DEFAULTS.max_retained_bytes
    )
    quota_items: Annotated[
        OptionalCount,
        Parameter(help="Subscriptions and retained messages one client may have; none: no limit."),
    ] = DEFAULTS.quota_items
    quota_bytes: Annotated[OptionalSize, Parameter(help="Their bytes; none: no limit.")] = (
        DEFAULTS.quota_bytes
    )
    connect_timeout: Annotated[
        Seconds, Parameter(help="Seconds from a connection's opening to its CONNECT.")
    ] = DEFAULTS.connect_timeout
    idle_timeout: Annotated[
        OptionalSeconds,
        Parameter(help="Seconds without a packet, for clients that ask for no keep-alive."),
    ] = DEFAULTS.idle_timeout
