"""How much writers of batches may make grow, and for how long."""

from __future__ import annotations

import attrs

from ...accounts import DEFAULT_PATIENCE, StuckPolicy

DEFAULT_BATCH_LIMIT = 256 << 20
"""Bytes. What all connections of a relay may owe together by default: 1.9 million rows of 135
bytes."""

DEFAULT_GRACE = 3_600.0
"""Seconds. A batch whose tasks take longer than that from one to the next is rare; the longest that
Kafka's brokers allow a transaction, `transaction.max.timeout.ms`, is a quarter of it."""

DEFAULT_EXPIRY = 7 * 86_400.0
"""Seconds: a week, as Kafka's `transactional.id.expiration.ms`."""


@attrs.frozen(slots=True, kw_only=True)
class SinkLimits:
    """What writers may make grow; each with the precedent of its default."""

    batch_bytes: int = DEFAULT_BATCH_LIMIT
    """Bytes that one writer may have staged of a batch, all attempts together. Without a store that
    is RAM beyond what the writer may owe, and what all writers may have together."""
    block_bytes: int = 4 << 10
    """What a block counts for at least, in `batch_bytes`: a page. What is known of one in RAM is
    little, but of very many small ones it is not."""
    max_sinks: int = 1_000
    """Writers that are known at a time; as subscriptions."""
    max_name: int = 255
    """Bytes of a writer's name: as of a file's."""
    max_parts: int = 10_000
    """Parts of one batch, all attempts together: fifty times what Spark makes of a shuffle."""
    grace: float = DEFAULT_GRACE
    """How long what is staged waits for the writer's next word."""
    expiry: float | None = DEFAULT_EXPIRY
    """How long a writer is remembered that commits nothing; None: for ever. A batch that it writes
    again after that is published again."""
    cache_bytes: int = 1 << 20
    """Bytes of what one writer has at rest on disk that stay in RAM too, to be published from
    there: eight frames."""
    patience: float = DEFAULT_PATIENCE
    """After how long, when there is no room on the disk for what is staged and others wait on it,
    it is dealt with."""
    stuck: StuckPolicy = StuckPolicy.DISCONNECT
    """What happens then: what is staged and not committed is written off, which its writer is told;
    or nothing but that the log names it."""
