"""Limits and timeouts of batch writers."""

from __future__ import annotations

import attrs

from ...accounts import DEFAULT_PATIENCE, StuckPolicy

DEFAULT_BATCH_LIMIT = 256 << 20
"""Bytes: as the default limit of all connections of a relay; 1.9 million rows of 135 bytes."""

DEFAULT_GRACE = 3_600.0
"""Seconds. It is rare that a batch's next task takes longer than this; Kafka's brokers allow a
transaction a quarter of it at most, `transaction.max.timeout.ms`."""

DEFAULT_EXPIRY = 7 * 86_400.0
"""Seconds: a week, as in Kafka's `transactional.id.expiration.ms`."""


@attrs.frozen(slots=True, kw_only=True)
class SinkLimits:
    """Limits on the growth of writers' data; each with the precedent of its default."""

    batch_bytes: int = DEFAULT_BATCH_LIMIT
    """Bytes that one writer may have staged of a batch, all attempts together. Without a store they
    are in RAM beyond the writer's own limit, and the limit is for all writers together."""
    block_bytes: int = 4 << 10
    """Least size at which a block counts in `batch_bytes`: a page. The bookkeeping of a block in
    RAM is small, but not that of very many small blocks."""
    max_sinks: int = 1_000
    """Writers known at a time; as for subscriptions."""
    max_name: int = 255
    """Bytes of a writer's name: as for a file's."""
    max_parts: int = 10_000
    """Parts of one batch, all attempts together: fifty times the partitions of a Spark shuffle."""
    grace: float = DEFAULT_GRACE
    """Time that staged rows wait for the writer's next request."""
    expiry: float | None = DEFAULT_EXPIRY
    """Time that a writer without commits is remembered; None: for ever. A batch that it writes
    again after that is published again."""
    cache_bytes: int = 1 << 20
    """Bytes of one writer's rows at rest on disk that stay in RAM too, to be published from there:
    eight frames."""
    patience: float = DEFAULT_PATIENCE
    """Slow-consumer timeout: how long staged rows may wait for room on the disk while other
    accounts wait on them."""
    stuck: StuckPolicy = StuckPolicy.DISCONNECT
    """The policy after that: write off the staged and uncommitted rows, which the writer is told;
    or only name it in the log."""
