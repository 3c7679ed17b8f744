"""The settings of a store."""

import attrs


@attrs.frozen(kw_only=True)
class StoreSettings:
    """The settings of a store; the defaults suit a relay on one disk."""

    fsync_interval: float = 0.2
    """Seconds after which a commit is on the disk at the latest, if the disk is well; 0: at once,
    and commits made during one fsync share the next. 0.2 is RabbitMQ's."""
    embed_below: int = 4096
    """Shared bodies below this are copied into each queue's rows rather than counted by reference
    (RabbitMQ's `queue_index_embed_msgs_below`)."""
    write_bytes: int = 8 << 20
    """Pending bytes that are put on the disk without waiting for `fsync_interval`; and about the
    most that one transaction takes."""
    retry_interval: float = 1.0
    """Seconds until a failed write is tried again."""
    readers: int = 4
    """Connections kept open for reading."""
    logged: bool = False
    """Whether changes become durable in a log elsewhere, before they are written here: see
    `Store.unlogged`. This directory is a copy then, which nobody fsyncs."""
