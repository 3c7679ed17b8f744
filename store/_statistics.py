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
    used_bytes: int
    """Bytes of the database that have something."""
    free_bytes: int
    """Bytes of the database that wait to be used again, or given back."""
    log_bytes: int
    """Size of the write-ahead log."""
    pending_bytes: int
    """Bytes committed that are not on the disk yet."""
    unlogged_bytes: int
    """Of these, those that a log does not have yet (`StoreSettings.logged`)."""
    commits: int
    """`Changes` committed."""
    transactions: int
    """Transactions put on the disk: several `Changes` share one."""
    fsync_seconds: float
    """Total duration of their ends: the write to the log, its fsync, and checkpoints."""
    slowest_fsync_seconds: float
    """The longest duration of one."""
    rewritten_bytes: int
    """Bytes of rows that were written again without their done messages."""
    failures: int
    """Number of times that the disk refused."""
    damages: int
    """Damages found since it was opened."""
    trouble: str | None
    """The present trouble with the disk, in a sentence."""
