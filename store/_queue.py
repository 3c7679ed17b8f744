"""One queue of the store."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import attrs

if TYPE_CHECKING:
    from ._changes import Puts


class Record(NamedTuple):
    """A message as returned by a read."""

    seq: int
    header: bytes
    body: bytes
    nbytes: int
    """Its size: header and body together, unless its `put` gave another."""


@attrs.define(slots=True, eq=False)
class StoredQueue:
    """One queue of the store: its committed messages, durable or not.

    Attributes:
        id: Never reused for another queue.
        name: The name that its owner gave it.
        meta: The owner's note about it.
        next_seq: Above all sequence numbers it has had.
        live_count: Messages that are not done. Done ones stop counting when that is durable.
        live_bytes: Their size, in bytes.
    """

    id: int
    name: str
    meta: bytes
    next_seq: int = 0
    live_count: int = 0
    live_bytes: int = 0
    durable_seq: int = 0
    """Above all sequence numbers that are in the database."""
    puts: deque[Puts] | tuple[()] = attrs.field(default=(), repr=False)
    """Messages that are committed but not durable; a deque has 760 bytes even without any."""
    dones: deque[list[tuple[int, int]]] | tuple[()] = attrs.field(default=(), repr=False)
    """Ranges of messages that are done, but not durably."""

    def put(self, puts: Puts) -> None:
        """Add committed messages."""
        if self.puts:
            self.puts.append(puts)
        else:
            self.puts = deque((puts,))
        self.next_seq = puts.last + 1
        self.live_count += len(puts.seqs)
        self.live_bytes += puts.size

    def finish(self, ranges: list[tuple[int, int]]) -> None:
        """Add ranges of done messages."""
        if self.dones:
            self.dones.append(ranges)
        else:
            self.dones = deque((ranges,))
