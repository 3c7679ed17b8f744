"""A durable subscription's view of a disk."""

from __future__ import annotations

from typing import Protocol

from ...accounts import Confirm


class SubscriptionLog(Protocol):
    """One subscription's place on a disk.

    Nothing here waits: a record is durable when `RangeSubscription.durable` is called with its
    ticket, or with a later one. A record is a block of messages, identified by the number of the
    last, so that the first record at or after a number has that message.
    """

    def dirty(self) -> None:
        """Note that data waits to be written: call `RangeSubscription.write` soon, or when idle."""
        ...

    def put(self, last: int, block: bytes, confirms: list[Confirm]) -> int:
        """Write a record; return its ticket. `last` grows from record to record.

        `confirms` are those of its messages, in order; a writer with data for the same batch
        replaces one by its own.
        """
        ...

    def done(self, first: int, last: int, low: int) -> None:
        """Forget the records from `first` to `last`, if `first` is not after it; keep `low`."""
        ...

    def persist(self, state: bytes) -> None:
        """Write the subscription's state for a restart."""
        ...

    def drop(self) -> None:
        """Forget the subscription and all its records."""
        ...
