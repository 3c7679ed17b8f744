"""What a durable subscription sees of a disk."""

from __future__ import annotations

from typing import Protocol

from ...accounts import Confirm


class SubscriptionLog(Protocol):
    """One subscription's place on a disk.

    Nothing here waits: what is put is durable when `RangeSubscription.durable` is called with its
    ticket, or with a later one. A record is a block of messages, known by the number of the last of
    them, so that the first record at or after a number is the one that has it.
    """

    def dirty(self) -> None:
        """Something waits to be written: call `RangeSubscription.write` soon, or when idle."""
        ...

    def put(self, last: int, block: bytes, confirms: list[Confirm]) -> int:
        """Write a record; return its ticket. `last` grows from record to record.

        `confirms` are those of its messages, in order; who has something to write together with
        them puts another one in their place.
        """
        ...

    def done(self, first: int, last: int, low: int) -> None:
        """Forget the records from `first` to `last`, if `first` is not after it; keep `low`."""
        ...

    def keep(self, state: bytes) -> None:
        """Keep what is to be known of the subscription after a restart."""
        ...

    def drop(self) -> None:
        """Forget the subscription and all its records."""
        ...
