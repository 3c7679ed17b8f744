"""What a store says of itself."""

import attrs


@attrs.frozen(slots=True)
class StoreStatistics:
    """The state of a store, and what it has done since it was opened."""

    queues: int
    """Queues that are declared."""
    messages: int
    """Messages that are not done, in all queues."""
    message_bytes: int
    """What they count for."""
    segments: int
    """Files of the log."""
    disk_bytes: int
    """Bytes in those files."""
    live_bytes: int
    """Bytes of them that are needed."""
    dead_bytes: int
    """Bytes of them that wait to be given back."""
    snapshot_bytes: int
    """Size of the last snapshot of the index."""
    pending_bytes: int
    """Bytes committed and not written yet."""
    unsynced_bytes: int
    """Bytes written and not fsynced yet; they are kept in memory, too."""
    written_bytes: int
    """Bytes written to the log, copying included."""
    commits: int
    """`Changes` committed."""
    batches: int
    """Batches written: several `Changes` share one."""
    fsyncs: int
    """Fsyncs of the log that went well."""
    fsync_seconds: float
    """How long they took in all."""
    slowest_fsync_seconds: float
    """How long the slowest of them took."""
    failures: int
    """How often the disk refused."""
    compacted_segments: int
    """Segments copied forward."""
    compacted_bytes: int
    """Bytes copied for that."""
    deleted_segments: int
    """Segments given back."""
    snapshots: int
    """Snapshots written."""
    damages: int
    """What could not be read any more, since it was opened or then."""
    trouble: str | None
    """What is wrong with the disk at present, in a sentence."""
