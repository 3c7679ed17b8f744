"""Errors of a store: it is used wrongly, cannot be used, or something in it is corrupt."""

import attrs


class StoreError(Exception):
    """Base of the store's errors."""


class StoreUsageError(StoreError):
    """The caller broke a rule of the store (an old sequence number, an unknown queue)."""


class StoreClosedError(StoreUsageError):
    """The store has been closed."""


class StoreLockedError(StoreError):
    """Another process has this store open."""


class StoreFormatError(StoreError):
    """The directory is no store, or is a store of another version."""


class StoreExposedError(StoreError):
    """Others on this machine can read the store, and this process may not change that."""


class StoreDiskError(StoreError):
    """The disk or the operating system refused: the message says what, where and what to do."""


class StoreTakenError(StoreError):
    """Another process has taken over the log of this store."""


@attrs.frozen(slots=True)
class Damage:
    """Something that was durable and is unreadable. The rest is served."""

    place: str
    """The place in the database, for people: a table and a key."""
    what: str
    """A sentence for people."""
    queue_id: int | None = None
    """The queue of the lost messages; None if it is unknown."""
    queue: str | None = None
    """The name of that queue, if it is known."""
    first: int | None = None
    """The first sequence number lost (others between it and `last` may have been done already)."""
    last: int | None = None
    """The last sequence number lost."""
    count: int = 0
    """Live messages lost, as far as known."""
    size: int = 0
    """Their bytes."""

    def __str__(self) -> str:
        whose = ""
        if self.first is not None:
            name = f"queue {self.queue_id}" if self.queue is None else f"queue {self.queue!r}"
            what = "1 message" if self.count == 1 else f"{self.count} messages"
            verb = "is" if self.count == 1 else "are"
            whose = f"; {name}: {what} of {self.first}..{self.last} {verb} lost"
        return f"{self.place}: {self.what}{whose}"
