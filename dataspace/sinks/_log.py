"""What a sink sees of a disk."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ._part import PartKey


class SinkLog(Protocol):
    """One sink's place on a disk.

    Nothing here waits. Each call is one step, all of which survives a crash or nothing; steps are
    ordered: what is found of one after a crash, is found of all before it. What was written with a
    ticket is durable when `Sink.durable` is called with it, or with a later one.
    """

    def open_part(self, key: PartKey) -> int:
        """Give a part its place; what is left there of an earlier one is gone."""
        ...

    def put(self, place: int, number: int, first: int, block: bytes) -> int:
        """Write a part's block, by its number from 1 on; `first` is its first row. A ticket."""
        ...

    def end_part(self, key: PartKey, value: bytes) -> int:
        """Write that a part is whole. A ticket."""
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
        """Keep what is to be known of the sink; forget parts, and marks, in the same step."""
        ...

    def forget(self, drop: Iterable[tuple[PartKey, int]] = ()) -> None:
        """Forget the sink, and parts."""
        ...
