"""Sinks in the store: staged and decided batches, and the progress of each recipient.

In the store each part is a queue called `sink/part/BATCH/PARTITION/ATTEMPT/WRITER`, whose records
are blocks; a value of that name says that the part is complete. A sink is a value
`sink/state/WRITER`. The progress of a place on disk in a batch is `sink/mark/WRITER`, a line feed,
and the place's name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

import trio

from ..accounts import Confirm, Recipient
from ..dataspace.queues import Queue
from ..ranges.log import RangeSubscription
from ..ranges.sink import Part, RowConfirm, SinkLog
from ..ranges.wire import PartKey, RefusedError
from ._owner import TELLING
from ._range_disk import PREFIX as SUBSCRIPTION_PREFIX
from ._shelves import StoreShelf
from ._writes import Writes, nowhere

if TYPE_CHECKING:
    from ..ranges.sink import Block, Sinks
    from ..store import Changes, Store
    from ._range_disk import SubscriptionDisk

logger = logging.getLogger("clearfunds.transports.sink")

PREFIX = "sink/"
STATE = "sink/state/"
PART = "sink/part/"
MARK = "sink/mark/"


class DurableRow(RowConfirm, Writes):
    """A row whose places on disk note their progress in the same write."""

    __slots__ = ()

    def written(self, where: str = "", put: Callable[[str, bytes], object] = nowhere) -> Confirm:
        publishing = self.publishing
        publishing.marks.add(where)
        put(_mark(publishing.sink.sink, where), b"%d %d" % (publishing.batch, self.row + 1))
        return self


def place_of(recipient: Recipient) -> str | None:
    """Return the name of the place on disk where a recipient notes its progress."""
    holder = recipient.last_holder
    if isinstance(holder, RangeSubscription):
        return SUBSCRIPTION_PREFIX + holder.subscription if holder.options.durable else None
    if isinstance(holder, Queue) and isinstance(holder.shelf, StoreShelf):
        return holder.shelf.name
    return None


def _name_of(key: PartKey, writer: str) -> str:
    return f"{PART}{key.batch}/{key.partition}/{key.attempt}/{writer}"


def _mark(writer: str, place: str) -> str:
    return f"{MARK}{writer}\n{place}"


class SinkDisk:
    """The sinks of one relay in its store.

    Args:
        store: An open store.
        tickets: Knows what was committed, and waits for it.
        max_reads: Most concurrent reads.
    """

    def __init__(self, store: Store, tickets: SubscriptionDisk, *, max_reads: int = 8) -> None:
        self.store = store
        self.sinks: Sinks | None = None
        self._tickets = tickets
        self._limiter = trio.CapacityLimiter(max_reads)
        self._broken: dict[str, str] = {}

    # -- for `Sinks` ----------------------------------------------------------------------------

    def open_log(self, name: str) -> SinkLog:
        """Give a sink its place in the store.

        Raises:
            RefusedError: If a sink of this name exists and could not be restored.
        """
        why = self._broken.get(name)
        if why is not None:
            msg = f"writer {name!r} is on disk, and could not be restored at the start: {why}"
            raise RefusedError(msg)
        return _StoreLog(self, name)

    def commit(self, changes: Changes) -> int:
        """Hand changes to the store; return their ticket."""
        return self._tickets.committed(self.store.commit(changes))

    # -- for the store's owner ------------------------------------------------------------------

    def restore(self, sinks: Sinks) -> int:
        """Restore sinks from the store into `sinks`, which is empty; return how many.

        One that cannot be restored is left unchanged, and logged; its writer is refused.
        """
        self.sinks = sinks
        values = self.store.values(PREFIX)
        parts: dict[str, dict[PartKey, tuple[Part, int]]] = {}
        unknown = self.store.begin()
        for queue_name, queue in list(self.store.queues.items()):
            if not queue_name.startswith(PART):
                continue
            batch, partition, attempt, writer = queue_name.removeprefix(PART).split("/", 3)
            value = values.get(queue_name)
            if value is None or STATE + writer not in values:
                unknown.drop(queue.id)  # it was never complete
                unknown.delete(queue_name)
                continue
            key = PartKey(int(batch), int(partition), int(attempt))
            try:
                part = Part.restored(key, queue.id, value)
            except ValueError as exc:
                self._note_broken(writer, str(exc))
                continue
            first = self.store.first_live_seq(queue.id)
            left = len(part.blocks) + 1 if first is None else first
            parts.setdefault(writer, {})[key] = part, left
        found = 0
        for name in sorted(key.removeprefix(STATE) for key in values if key.startswith(STATE)):
            if name in self._broken:
                continue
            try:
                useless = self._restore(sinks, name, values, parts.pop(name, {}))
            except (ValueError, RefusedError) as exc:
                self._note_broken(name, str(exc))
                continue
            found += 1
            for part in useless:
                assert part.place is not None
                unknown.drop(part.place)
                unknown.delete(_name_of(part.key, name))
        if unknown:
            self.commit(unknown)
        return found

    def _note_broken(self, name: str, why: str) -> None:
        self._broken[name] = why
        logger.error(
            "writer %s cannot be restored: %s", name, why,
            extra={"event": "not_restored", "writer": name, "reason": why},
        )  # fmt: skip

    @staticmethod
    def _restore(
        sinks: Sinks,
        name: str,
        values: dict[str, bytes],
        parts: dict[PartKey, tuple[Part, int]],
    ) -> list[Part]:
        marks: dict[str, tuple[int, int]] = {}
        prefix = _mark(name, "")
        for key, value in values.items():
            if key.startswith(prefix):
                batch, upto = map(int, value.split())
                marks[key.removeprefix(prefix)] = batch, upto
        sink = sinks.make(name)
        try:
            useless = sink.restore(values[STATE + name], parts, marks)
        except BaseException:
            sink.close()
            raise
        sinks.take_up(sink)
        return useless

    def durable(self, ticket: int) -> None:
        """Note that everything up to this ticket is on disk; for `Shelves.on_durable`."""
        for sink in self.sinks or ():
            sink.ledger.faults.call(sink, TELLING, sink.durable, ticket)

    # -- for publishing, and for sessions -------------------------------------------------------

    async def read(self, part: Part, block: Block) -> bytes | None:
        """Read a block, in a thread; None if it does not exist.

        Raises:
            StoreError: If the disk fails.
        """
        assert part.place is not None
        records = await trio.to_thread.run_sync(
            partial(self.store.read, part.place, block.number, count=1, nbytes=1),
            limiter=self._limiter,
        )
        if not records or records[0].seq != block.number:
            return None
        return records[0].body

    async def synced(self, seconds: float) -> None:
        """Wait until everything committed so far is durable.

        Raises:
            DiskError: If it takes longer than `seconds`.
        """
        await self._tickets.synced(seconds)


class _StoreLog:
    """One sink's place in the store; see `SinkLog`."""

    def __init__(self, disk: SinkDisk, name: str) -> None:
        self._disk = disk
        self._name = name

    def open_part(self, key: PartKey) -> int:
        store = self._disk.store
        name = _name_of(key, self._name)
        old = store.queues.get(name)
        if old is not None:
            self._dropped([(key, old.id)])
        changes = store.begin()
        place = changes.declare(name)
        self._disk.commit(changes)
        return place

    def put(self, place: int, number: int, first: int, block: bytes) -> int:
        changes = self._disk.store.begin()
        changes.put(place, number, b"%d" % first, block)
        return self._disk.commit(changes)

    def end_part(self, key: PartKey, value: bytes) -> int:
        changes = self._disk.store.begin()
        changes.set(_name_of(key, self._name), value)
        return self._disk.commit(changes)

    def done(self, place: int, number: int) -> None:
        changes = self._disk.store.begin()
        changes.done(place, number)
        self._disk.commit(changes)

    def settle(
        self,
        state: bytes,
        drop: Iterable[tuple[PartKey, int]] = (),
        marks: Iterable[str] = (),
    ) -> int:
        changes = self._disk.store.begin()
        changes.set(STATE + self._name, state)
        self._drop(changes, drop)
        for mark in marks:
            changes.delete(_mark(self._name, mark))
        return self._disk.commit(changes)

    def forget(self, drop: Iterable[tuple[PartKey, int]] = ()) -> None:
        changes = self._disk.store.begin()
        changes.delete(STATE + self._name)
        self._drop(changes, drop)
        self._disk.commit(changes)

    def _dropped(self, drop: Iterable[tuple[PartKey, int]]) -> None:
        changes = self._disk.store.begin()
        self._drop(changes, drop)
        self._disk.commit(changes)

    def _drop(self, changes: Changes, drop: Iterable[tuple[PartKey, int]]) -> None:
        for key, place in drop:
            changes.drop(place)
            changes.delete(_name_of(key, self._name))
