"""The index of a store: its committed state, and its durable state with places on disk.

Rule: `commit` changes the committed state, `apply` the durable one; a recovery does both for each
operation it reads. Every call here is made under the store's lock; only the writer changes the
durable state.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import attrs

from ._bodies import Bodies, Place
from ._changes import Changes
from ._detail import Detail, shared, weight
from ._errors import StoreUsageError
from ._extents import Extent, Freed
from ._intervals import Intervals
from ._queue import StoredQueue
from ._records import BODY, DECLARE, DONE, DROP, MOVE, MOVE_BODY, PUT, VALUES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


@attrs.define(slots=True, eq=False)
class Segment:
    """One file of the log."""

    number: int
    salt: int
    batch: int
    """The number of its first batch."""
    size: int
    """The end of the written bytes."""
    synced: int
    """The end of the durable bytes."""
    live: int = 0
    """Bytes of it that are needed."""


@attrs.define(slots=True, eq=False)
class Op:
    """One operation of a batch, in the index's view."""

    kind: int
    queue: int = 0
    first: int = 0
    last: int = 0
    count: int = 0
    detail: Detail = 0
    offset: int = 0
    """Offset of its record in the segment."""
    length: int = 0
    value: Any = None
    """`DONE`: the ranges; `VALUES`: the changes; `DECLARE`: name and meta; `MOVE`: the reach."""
    gone: list[tuple[int, int]] | None = None
    """`MOVE`: what was durably done within its reach; None: everything that was done there."""

    def pieces(self, ranges: int) -> Iterator[Op]:
        """Split a `DONE` into operations of `ranges` ranges each; others stay one."""
        if self.kind != DONE or len(self.value) <= ranges:
            yield self
            return
        for start in range(0, len(self.value), ranges):
            yield Op(DONE, self.queue, value=self.value[start : start + ranges])


class Index:
    """The queues, values and segments of a store."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.by_name: dict[str, StoredQueue] = {}
        """Committed."""
        self.by_id: dict[int, StoredQueue] = {}
        """Committed and not dropped."""
        self.dropping: dict[int, StoredQueue] = {}
        """Dropped, but not durably."""
        self.durable: dict[int, StoredQueue] = {}
        """Durably declared and not dropped."""
        self.declarations: dict[int, tuple[str, bytes]] = {}
        """The durable name and meta of each."""
        self.values: dict[str, bytes] = {}
        self.durable_values: dict[str, bytes] = {}
        self.next_queue = 1
        self.next_body = 1
        self.bodies = Bodies()
        self.segments: dict[int, Segment] = {}

    # What is committed.

    def commit(self, changes: Changes) -> None:
        """Commit changes.

        Raises:
            StoreUsageError: A queue does not exist, or a sequence number is not above all others;
                nothing has changed then.
        """
        for queue_id, puts in changes.puts.items():
            queue = self.by_id.get(queue_id)
            if queue is None and queue_id not in changes.declared:
                msg = f"there is no queue {queue_id} to put messages to"
                raise StoreUsageError(msg)
            if queue is not None and puts.first < queue.next_seq:
                msg = f"seq {puts.first} is not free in queue {queue.name!r}: next {queue.next_seq}"
                raise StoreUsageError(msg)
        for queue_id, (name, meta) in changes.declared.items():
            self.declare(queue_id, name, meta)
        for body in changes.bodies:
            body.ident = self.next_body
            self.next_body += 1
        for queue_id, puts in changes.puts.items():
            self.by_id[queue_id].put(puts)
        for queue_id, ranges in list(changes.dones.items()):
            queue = self.by_id.get(queue_id)
            found = [] if queue is None else queue.finish(ranges)
            if found:
                changes.dones[queue_id] = found
            else:
                del changes.dones[queue_id]
        for key, value in changes.values.items():
            self.set(key, value)
        for queue_id in changes.dropped:
            self.drop(queue_id)

    def declare(self, queue_id: int, name: str, meta: bytes) -> None:
        """Make a queue, or replace its meta."""
        queue = self.by_id.get(queue_id)
        if queue is None:
            queue = StoredQueue(queue_id, name, meta, self.lock)
            self.by_id[queue_id] = queue
        queue.meta = meta
        self.by_name[name] = queue
        self.next_queue = max(self.next_queue, queue_id + 1)

    def drop(self, queue_id: int) -> None:
        """Remove a queue."""
        queue = self.by_id.pop(queue_id, None)
        if queue is not None:
            if self.by_name.get(queue.name) is queue:
                del self.by_name[queue.name]
            queue.live_count = queue.live_bytes = 0
            self.dropping[queue_id] = queue

    def set(self, key: str, value: bytes | None) -> None:
        """Set or delete a value."""
        if value is None:
            self.values.pop(key, None)
        else:
            self.values[key] = value

    # What is durable.

    def apply(self, op: Op, segment: Segment) -> None:
        """Record that an operation is durable, in `segment`."""
        if op.kind == PUT:
            queue = self.durable.get(op.queue)
            if queue is None:
                return
            extent = self._extent(op, segment)
            segment.live += queue.extents.append(extent)
            queue.durable_seq = max(queue.durable_seq, op.last + 1)
            self._refer(extent)
        elif op.kind == DONE:
            queue = self.durable.get(op.queue)
            if queue is None:
                return
            for first, last in op.value:
                freed, gone = queue.extents.done(first, last)
                self.free(freed)
                for low, high in gone:
                    queue.finished.remove(low, high)
        elif op.kind == MOVE:
            queue = self.durable.get(op.queue)
            if queue is None:
                return
            self.free(queue.extents.cut(*op.value))
            # Messages done within its reach are gone.
            queue.finished.remove_all([op.value] if op.gone is None else op.gone)
            queue.extents.insert(self._extent(op, segment))
            segment.live += op.length
        elif op.kind == BODY:
            self.bodies.add(op.first, Place(segment.number, op.offset, op.length))
        elif op.kind == MOVE_BODY:
            old = self.bodies.move(op.first, Place(segment.number, op.offset, op.length))
            if old is not None:
                self._less(old.segment, old.length)
                segment.live += op.length
        elif op.kind == VALUES:
            for key, value in op.value.items():
                if value is None:
                    self.durable_values.pop(key, None)
                else:
                    self.durable_values[key] = value
        elif op.kind == DECLARE:
            self.declarations[op.queue] = op.value
            queue = self.by_id.get(op.queue) or self.dropping.get(op.queue)
            if queue is not None:
                self.durable[op.queue] = queue
        elif op.kind == DROP:
            self._drop(op.queue)

    @staticmethod
    def _extent(op: Op, segment: Segment) -> Extent:
        return Extent(
            *(op.first, op.last, segment.number, op.offset, op.length, op.length),
            *(op.count, op.count, op.detail),
        )

    def _refer(self, extent: Extent) -> None:
        for body in shared(extent.detail, 0, extent.items) or ():
            place = self.bodies.refer(body) if body else None
            if place is not None:
                self._less(place.segment, -place.length)

    def free(self, freed: Iterable[Freed]) -> None:
        """Free the bytes that became dead."""
        for segment, nbytes, bodies in freed:
            self._less(segment, nbytes)
            for body in bodies or ():
                place = self.bodies.release(body) if body else None
                if place is not None:
                    self._less(place.segment, place.length)

    def count_segment(self, number: int, nbytes: int) -> None:
        """Count bytes of a segment as needed."""
        self._less(number, -nbytes)

    def _less(self, number: int, nbytes: int) -> None:
        segment = self.segments.get(number)
        if segment is not None:
            segment.live -= nbytes

    def _drop(self, queue_id: int) -> None:
        queue = self.durable.pop(queue_id, None)
        self.declarations.pop(queue_id, None)
        self.dropping.pop(queue_id, None)
        if queue is None:
            return
        gone = Freed(0, 0, None)
        for extent in queue.extents:
            # Bodies of messages that were done before are not released twice.
            bodies = shared(extent.detail, 0, extent.items)
            if bodies is not None and extent.live < extent.items:
                bodies = queue.live_bodies(extent)
            self.free(
                [gone._replace(segment=extent.segment, nbytes=extent.live_bytes, bodies=bodies)]
            )

    # Recovery.

    def replay(self, op: Op, segment: Segment) -> None:
        """Take in an operation that was read from the disk."""
        queue = self.by_id.get(op.queue)
        if op.kind == PUT and queue is None:
            # Nothing is put to a dropped queue: so the declaration is lost. The queue gets a name
            # made from its id.
            name = f"nameless-{op.queue}"
            self.replay(Op(DECLARE, op.queue, value=(name, b"")), segment)
            queue = self.by_id[op.queue]
        if op.kind == PUT and queue is not None:
            if op.first < queue.next_seq:
                return  # A store never writes this.
            queue.next_seq = op.last + 1
            queue.live_count += op.count
            queue.live_bytes += weight(op.detail, 0, op.count)
        elif op.kind == DONE and queue is not None:
            queue.next_seq = max(
                queue.next_seq, max((last for _, last in op.value), default=-1) + 1
            )
            op.value = queue.finish(_in_order(op.value))
        elif op.kind == VALUES:
            for key, value in op.value.items():
                self.set(key, value)
        elif op.kind == DECLARE:
            self.declare(op.queue, *op.value)
        elif op.kind == DROP:
            self.drop(op.queue)
        elif op.kind == BODY:
            self.next_body = max(self.next_body, op.first + 1)
        self.apply(op, segment)

    def settle(self, changes: Changes) -> None:
        """Record that all operations of these changes have been applied."""
        for queue_id, puts in changes.puts.items():
            queue = self.by_id.get(queue_id)
            if queue is not None and queue.pending and queue.pending[0] is puts:
                queue.pending.popleft()
                if not queue.pending:
                    queue.pending = ()


def _in_order(ranges: Iterable[tuple[int, int]]) -> Intervals:
    """Return ranges that come in any order as a set."""
    found = Intervals()
    for first, last in sorted(ranges):
        found.add(first, last)
    return found
