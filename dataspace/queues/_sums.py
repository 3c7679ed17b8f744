"""Sums over several queues; the counts of deleted ones are kept among them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from ._statistics import Counters

if TYPE_CHECKING:
    from ._backing import BackingStatistics
    from ._queue import Queue

_COUNTERS: Final = tuple(each.name for each in attrs.fields(Counters))


@attrs.define(slots=True)
class QueueSums:
    """The present contents of many queues, and counts of everything that has happened in them.

    The counts only ever rise, if those of a deleted queue are added (`add_past`).
    """

    queues: int = 0
    """The number of queues."""
    ready: int = 0
    """Messages that wait for a consumer."""
    ready_bytes: int = 0
    """Their bytes."""
    unacked: int = 0
    """Messages that are delivered and not acknowledged."""
    unacked_bytes: int = 0
    """Their bytes."""
    in_ram: int = 0
    """Messages of both kinds with the event in RAM."""
    ram_bytes: int = 0
    """Their bytes."""
    disk_only: int = 0
    """Ready messages with no object in RAM."""
    unsynced: int = 0
    """Messages that are written and not durable yet."""
    unwritten: int = 0
    """Persistent messages that wait for room in the disk budget, or for a disk in trouble."""
    counters: Counters = attrs.field(factory=Counters)
    """Counts of everything that has ever happened."""
    paged_out: int = 0
    """Messages ever paged out."""
    paged_in: int = 0
    """Messages ever read back."""

    def add(self, queue: Queue) -> None:
        """Add a queue; costs time in proportion to its unacked messages."""
        if queue.deleted:
            self.add_past(queue)
            return
        seen = queue.statistics()
        backing = seen.backing
        self._add_past(seen.counters, backing)
        self.queues += 1
        self.ready += seen.ready
        self.ready_bytes += seen.ready_bytes
        self.unacked += seen.unacked
        self.unacked_bytes += seen.unacked_bytes
        self.in_ram += backing.ready_in_ram + backing.pending_in_ram
        self.ram_bytes += backing.ram_bytes
        self.disk_only += backing.disk_only
        self.unsynced += seen.unsynced
        self.unwritten += seen.unwritten

    def add_past(self, queue: Queue) -> None:
        """Add the counts of a queue, and nothing that it has now."""
        self._add_past(queue.counters, queue.backing.statistics())

    def add_sums(self, past: QueueSums) -> None:
        """Add the counts of other, deleted queues."""
        self._add_past(past.counters, past)

    def _add_past(self, counters: Counters, backing: BackingStatistics | QueueSums) -> None:
        mine = self.counters
        for name in _COUNTERS:
            count = getattr(counters, name)
            if count:
                setattr(mine, name, getattr(mine, name) + count)
        self.paged_out += backing.paged_out
        self.paged_in += backing.paged_in

    def copy(self) -> QueueSums:
        """Return a copy to go on from."""
        return attrs.evolve(self, counters=attrs.evolve(self.counters))
