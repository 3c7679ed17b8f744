"""A sink's view of a disk."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ..wire import PartKey


class SinkLog(Protocol):
    """One sink's place on a disk.

    Nothing here waits. Each call is one step, which survives a crash as a whole or not at all;
    steps are ordered: if one survives, all before it do. A write with a ticket is durable when
    `Sink.durable` is called with that ticket, or with a later one.
    """

    def open_part(self, key: PartKey) -> int:
        """Give a part its place; the remains of an earlier one there are removed."""
        ...

    def put(self, place: int, number: int, first: int, block: bytes) -> int:
        """Write block `number` (from 1) of a part; `first` is its first row. Returns a ticket."""
        ...

    def end_part(self, key: PartKey, value: bytes) -> int:
        """Write that a part is complete. Returns a ticket."""
        ...

    def done(self, place: int, number: int) -> None:
        """Forget a block: all its rows have been taken."""
        ...

    def settle(
        self,
        state: bytes,
        drop: Iterable[tuple[PartKey, int]] = (),
        marks: Iterable[str] = (),
    ) -> int:
        """Write the sink's state; forget parts, and marks, in the same step."""
        ...

    def forget(self, drop: Iterable[tuple[PartKey, int]] = ()) -> None:
        """Forget the sink, and parts."""
        ...
