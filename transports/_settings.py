"""Limits and time-outs for the peers of a server, in any protocol."""

from __future__ import annotations

from typing import Literal

import attrs

from ..accounts import DEFAULT_PATIENCE, KEEP, Limit, StuckPolicy
from ..dataspace.sinks import DEFAULT_BATCH_LIMIT, DEFAULT_EXPIRY, DEFAULT_GRACE
from ._account_limits import AccountLimits
from ._outlet_backlog import DEFAULT_BEHIND_LIMIT
from ._subscription_policies import SubscriptionPolicy

DEFAULT_DISK_LIMIT = 1 << 30
"""Bytes at rest on disk: sixteen clients' full queues; a tenth of a small disk."""

DEFAULT_NAMES_EACH = 250
"""Subscriptions, and writers, of one user: a quarter of what one relay may have of each."""

DEFAULT_READER_PATIENCE = 60.0
"""Seconds: a job of some seconds between two acknowledgements is what a subscription is for, one
that takes minutes wants a durable one. As the grace of a reader that is away, and three times what
others have, which take messages one by one."""

DEFAULT_READER_DISK_LIMIT = 512 << 20
"""Half of the default disk limit: one reader that stays away leaves the others the rest."""

DEFAULT_KEPT_LIMIT = 64 << 20
"""Bytes at rest in RAM, without a store: one client's full queue."""


@attrs.frozen(slots=True, kw_only=True)
class ServerSettings:
    """Settings for the peers of every protocol; each with the precedent of its default.

    All times are in seconds.
    """

    limit: Limit = attrs.field(factory=Limit)
    """The limit (high-water mark) on the debt of one connection: above it, it is not read."""
    account_limits: AccountLimits | None = None
    """Those of some connections; None: `limit` is for all."""
    max_connections: int = 10_000
    """Connections at a time, over all listeners; below the usual 20,000 descriptors of a process,
    with room for the listeners, the HTTP side and files."""
    connect_timeout: float = 10.0
    """From the connection to the end of its first packet, which is CONNECT with MQTT; the handshake
    of WebSocket included. HiveMQ's and EMQX's idle time-outs are 10 and 15."""
    idle_timeout: float | None = None
    """Without a packet, where the peer names no time itself, as MQTT's keep-alive does unless it is
    0; None for ever: observers are silent."""
    patience: float = DEFAULT_PATIENCE
    """The slow-consumer timeout: how long a peer that others wait for may make no progress."""
    stuck: StuckPolicy = StuckPolicy.DISCONNECT
    """The policy for it after that."""
    subscription_policies: tuple[SubscriptionPolicy, ...] = ()
    """The policies for some peers' messages on some topics; the first that matches counts."""
    behind: Limit = KEEP
    """The limit on messages kept for a lagging peer, by a policy that drops."""
    behind_limit: int | None = DEFAULT_BEHIND_LIMIT
    """The bytes that are kept for all lagging peers; above it, each keeps only the last or the
    first new message."""

    @property
    def stuck_kept(self) -> StuckPolicy:
        """The policy for a holder of undroppable messages: wait, or disconnect."""
        return self.stuck if self.stuck is StuckPolicy.WAIT else StuckPolicy.DISCONNECT

    def limit_of(self, *names: str) -> Limit:
        """Return the limit of the account that has one of these names."""
        return self.limit if self.account_limits is None else self.account_limits.of(*names)


@attrs.frozen(kw_only=True)
class KeepingSettings:
    """Settings of a relay's storage, for clients that are away and for its own next start.

    All times are in seconds.
    """

    store: str | None = None
    """The directory in which sessions, their queues and retained publications are kept; it is made
    if it is not there. None: they are kept in RAM, and gone with the relay."""
    fsync_interval: float = 0.2
    """The longest time until writes are on the disk and confirmed; 0: at once. As RabbitMQ's."""
    disk_limit: int | None = DEFAULT_DISK_LIMIT
    """Bytes of messages that may be at rest in the store. When they are spent, publishers pay for
    queued messages, and wait."""
    kept_limit: int | None = DEFAULT_KEPT_LIMIT
    """The same in RAM, without a store."""
    session_expiry: float | None = 86_400.0
    """How long the persistent session of a client that does not come back is kept; None: for ever.
    A day, as in RabbitMQ's MQTT plugin."""
    max_sessions: int = 10_000
    """Sessions that are kept; as many as connections."""
    max_queued: int | None = 100_000
    """Messages at rest for one client. Above that publishers pay for them while the client is
    connected; while it is away the oldest are dropped. A hundred times mosquitto's
    `max_queued_messages`, which are in RAM."""
    max_queued_bytes: int | None = 64 << 20
    """Their bytes: eight times an account's default limit."""
    sink_batch_limit: int = DEFAULT_BATCH_LIMIT
    """Bytes of one batch that its writer may have staged: staged bytes count as at rest, not
    against the writer's limit. Without a store they are in RAM, and this is for all batches."""
    sink_grace: float = DEFAULT_GRACE
    """How long uncommitted staged rows wait for their writer's next message."""
    sink_expiry: float | None = DEFAULT_EXPIRY
    """How long a writer's last commit is remembered; None: for ever."""
    max_sinks: int = 1_000
    """Writers of batches that are known at a time."""
    max_range_names: int = DEFAULT_NAMES_EACH
    """Subscriptions of readers of ranges, and writers of batches, that one user may have, where
    users are known: a quarter of what one relay may have of each."""
    range_owner: str | None = None
    """The user who owns the subscriptions and writers made before the relay authenticated its
    peers. None: nobody can reach them where users are known."""
    reader_patience: float = DEFAULT_READER_PATIENCE
    """How long a reader's subscription that others wait for may make no progress: its reader
    acknowledges nothing."""
    reader_stuck: Literal["wait", "disconnect", "drop_oldest"] = "disconnect"
    """The policy for it after that: publishers wait, and the log names it; or publishers go on, and
    the oldest unacknowledged messages are dropped, until it has caught up. With `disconnect` its
    reader is cut off, too."""
    reader_disk_limit: int | None = DEFAULT_READER_DISK_LIMIT
    """Bytes on disk of one durable subscription; where users are known, of all of one user's, and
    of the rows that its writers have staged. When they are spent publishers wait for the reader."""
    memory_alarm: float | None = 0.6
    """Memory of the process above which no publisher is read: up to 1, a share of the memory there
    is; above, bytes; None: it is not watched. As RabbitMQ's vm_memory_high_watermark."""
    disk_alarm: int | None = 50_000_000
    """Bytes free on the store's disk below which no publisher is read; None: it is not watched. As
    RabbitMQ's disk_free_limit."""
