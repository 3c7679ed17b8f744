"""The settings of a store."""

import attrs
from attrs import validators


@attrs.frozen(kw_only=True)
class StoreSettings:
    """The settings of a store; the defaults suit a relay on one disk."""

    fsync_interval: float = 0.2
    """Seconds after which a commit is on the disk at the latest, if the disk is well; 0: at once,
    and commits made during one fsync share the next. 0.2 is RabbitMQ's."""
    segment_bytes: int = attrs.field(
        default=64 << 20, validator=[validators.ge(4096), validators.le(1 << 30)]
    )
    """Size of a full segment, after which a new one is begun: 4 KiB to 1 GiB (offsets in the index
    have 32 bits, and a segment's last batch may go beyond its end)."""
    embed_below: int = 4096
    """Shared bodies below this are copied into each queue's records rather than counted by
    reference (RabbitMQ's `queue_index_embed_msgs_below`)."""
    write_bytes: int = 1 << 20
    """Pending bytes that are written without waiting for `fsync_interval`."""
    unsynced_bytes: int = 32 << 20
    """Written bytes that are fsynced without waiting for `fsync_interval`: they are kept in
    memory, in case the fsync fails."""
    compact_below: float = attrs.field(
        default=0.5, validator=[validators.ge(0), validators.le(0.9)]
    )
    """A full segment of which less than this share is live is copied forward; 0: never. (Up to
    0.9: the copy has record heads, too, and must not be worth copying again.)"""
    compact_step_bytes: int = 1 << 20
    """Bytes copied forward at a time, between two writes."""
    retry_interval: float = 1.0
    """Seconds until a failed write is tried again."""
    open_files: int = 64
    """Segments kept open for reading."""
