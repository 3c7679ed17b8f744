"""How a store behaves."""

import attrs
from attrs import validators


@attrs.frozen(kw_only=True)
class StoreSettings:
    """How a store behaves; the defaults suit a relay on one disk."""

    fsync_interval: float = 0.2
    """Seconds after which what was committed is on the disk at the latest, if it is well; 0: at
    once, where what has come during one fsync shares the next. 0.2 is RabbitMQ's."""
    segment_bytes: int = attrs.field(
        default=64 << 20, validator=[validators.ge(4096), validators.le(1 << 30)]
    )
    """Size at which a segment is full and a new one begun: 4 KiB to 1 GiB (offsets in the index
    have 32 bits, and a segment's last batch may go beyond its end)."""
    embed_below: int = 4096
    """Shared bodies below this are copied into each queue's records instead of being counted by
    reference (RabbitMQ's `queue_index_embed_msgs_below`)."""
    write_bytes: int = 1 << 20
    """So much pending is written without waiting for `fsync_interval`."""
    unsynced_bytes: int = 32 << 20
    """So much written is fsynced without waiting for `fsync_interval`: it is kept in memory, in
    case the fsync fails."""
    compact_below: float = attrs.field(
        default=0.5, validator=[validators.ge(0), validators.le(0.9)]
    )
    """A full segment of which less than this share is live is copied forward; 0: never. (Up to
    0.9: what is copied has heads, too, and must not be worth copying again.)"""
    compact_step_bytes: int = 1 << 20
    """How much is copied forward at a time, between two writes."""
    retry_interval: float = 1.0
    """Seconds until a write that failed is tried again."""
    open_files: int = 64
    """Segments kept open for reading."""
