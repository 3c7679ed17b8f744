"""Statistics of a store."""

import attrs


@attrs.frozen(slots=True)
class StoreStatistics:
    """The state of a store, and its counters since it was opened."""

    queues: int
    """Declared queues."""
    messages: int
    """Messages that are not done, in all queues."""
    message_bytes: int
    """Their size."""
    segments: int
    """Files of the log."""
    disk_bytes: int
    """Bytes in those files."""
    live_bytes: int
    """Bytes of them that are needed."""
    dead_bytes: int
    """Bytes of them that wait to be freed."""
    snapshot_bytes: int
    """Size of the last snapshot of the index."""
    pending_bytes: int
    """Bytes committed and not written yet."""
    unsynced_bytes: int
    """Bytes written and not fsynced yet; they are kept in memory, too."""
    written_bytes: int
    """Bytes written to the log, including copies."""
    commits: int
    """`Changes` committed."""
    batches: int
    """Batches written: several `Changes` may share one."""
    fsyncs: int
    """Successful fsyncs of the log."""
    fsync_seconds: float
    """Their total duration."""
    slowest_fsync_seconds: float
    """The longest duration of one."""
    failures: int
    """Number of times that the disk refused."""
    compacted_segments: int
    """Segments copied forward."""
    compacted_bytes: int
    """Bytes copied for them."""
    deleted_segments: int
    """Segments removed."""
    snapshots: int
    """Snapshots written."""
    damages: int
    """Damages found when it was opened, and since."""
    trouble: str | None
    """The present trouble with the disk, in a sentence."""
