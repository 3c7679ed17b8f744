"""The store: queues and values that survive the process.

Theory of operation. `commit` takes `Changes` in under a lock and returns; it does not touch the
disk. One thread at a time is the writer (`run`, or a caller of `flush`): it joins pending changes
into batches, appends these to the current segment and fsyncs that. Only then does it move them
from the pending messages to the index of durable ones. So a reader finds every committed message
in one of the two, and a snapshot of the index is a snapshot of the durable state. A disk that
refuses costs nothing but memory: changes that it refused are still pending.

After a failed fsync, nothing is known about the bytes written since the last good one, and a second
fsync may well succeed (PostgreSQL, "fsyncgate", 2018). So the writer gives up the segment from
there on, and writes those batches anew to another one.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections import deque
from contextlib import suppress
from itertools import chain
from time import monotonic, sleep
from types import MappingProxyType
from typing import TYPE_CHECKING

from ._changes import Changes
from ._decode import pending_columns, records_of
from ._encode import Batch, encode
from ._errors import (
    CorruptRecordError,
    Damage,
    StoreClosedError,
    StoreDiskError,
)
from ._files import RealFiles
from ._handles import Handles
from ._index import Segment
from ._intervals import Intervals
from ._log import Log, Written
from ._mover import BadExtentError, Mover
from ._names import segment_name, snapshot_name
from ._opening import take
from ._queue import Columns, InMemory, OnDisk, Record
from ._reader import Reader
from ._records import DONE, DROP
from ._recovery import Recoverer, Recovery, put_aside
from ._sentences import trouble
from ._settings import StoreSettings
from ._snapshot import write_snapshot
from ._statistics import StoreStatistics

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from ._extents import Extent
    from ._files import Files
    from ._queue import StoredQueue
    from ._recovery import Progress

_logger = logging.getLogger(__name__)

#: Approximate size of a batch: a larger one would leave the processor's cache between its encoding
#: and its write, which takes three times as long...
_BATCH_BYTES = 128 << 10
#: ...but this is added for each queue in it, or their extents would be small and many.
_QUEUE_BYTES = 8 << 10

#: Under load, dead bytes are freed from this many segments' worth on, if they are more than half.
_DEAD_SEGMENTS = 4

#: Dead bytes that do not justify another segment to free them, in a compaction.
_LITTLE = 4096

#: Ranges of done messages that are recorded without releasing the lock: half a millisecond's
#: worth...
_DONE_AT_ONCE = 64
#: ...and the time that a waiting thread then has to take the lock.
_GIVE_WAY_SECONDS = 0.0002

#: Bytes tried at a time after the disk has refused: a little may fit where much does not.
_SMALL_BYTES = 64 << 10


class Store:
    """Queues of messages, and keys with values, in a directory that one process has open.

    Everything but `read`, `flush`, `run` and `close` returns at once and is for the owner's
    thread; those four block and are for a thread of their own. `on_durable`, `on_trouble` and
    `on_damage` are called in the thread that notices; they must not wait for a thread that is in
    one of those four.

    Attributes:
        settings: The settings.
        recovery: The result of opening it.
        queues: The committed queues, by name.
        written: The highest ticket handed to the operating system; back at `durable` after a failed
            fsync.
        durable: The highest ticket that is on the disk.
        on_durable: Called with `durable` when that has grown.
        on_trouble: Called with a sentence when the disk refuses, and with None when everything
            refused is durable.
        on_damage: Called when something that was durable is unreadable. Its messages then count as
            done.
    """

    def __init__(
        self,
        files: Files,
        settings: StoreSettings,
        recoverer: Recoverer,
        recovery: Recovery,
        progress: Progress | None,
    ) -> None:
        """Use `Store.open`."""
        self.settings = settings
        self.recovery = recovery
        self._files = files
        self._index = recoverer.index
        self._lock = self._index.lock
        self.queues: Mapping[str, StoredQueue] = MappingProxyType(self._index.by_name)
        self.written = self.durable = self._ticket = recoverer.ticket
        self.on_durable: Callable[[int], None] = _ignore
        self.on_trouble: Callable[[str | None], None] = _ignore
        self.on_damage: Callable[[Damage], None] = _ignore
        self._damages: list[Damage] = list(recovery.damages)
        # The writer's: the thread that has `_work` is the writer.
        self._work = threading.RLock()
        self._handles = Handles(files, settings.open_files)
        self._reader = Reader(self._index, self._handles)
        self._log = Log(files, self._index, recoverer.next_segment, recoverer.next_batch)
        # Shared, under the lock.
        self._wake = threading.Condition(self._lock)
        self._asked_for = False
        self._pending: deque[Changes] = deque()
        self._pending_bytes = 0
        self._unsynced_bytes = 0
        self._oldest: float | None = None
        self._hurried = False
        self._stopping = False
        self._closed = False
        self._trouble: str | None = None
        self._retry_at = 0.0
        # Counters.
        self._commits = self._batches = self._written_bytes = self._failures = 0
        self._fsyncs = 0
        self._fsync_seconds = self._slowest_fsync = 0.0
        self._compacted_segments = self._compacted_bytes = self._deleted_segments = 0
        self._snapshots = 0
        # The index's snapshots: the segments from which to replay the log on top of each, the size
        # of the last, and the size of the log since.
        self._kept = recoverer.snapshots
        self._snapshot_bytes = recoverer.snapshot_bytes
        self._log_bytes = recovery.replayed_bytes
        self._tending = True
        self._mover: Mover | None = None
        self._stuck: set[int] = set()
        self._progress = progress

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        settings: StoreSettings | None = None,
        *,
        files: Files | None = None,
        progress: Progress | None = None,
    ) -> Store:
        """Open the store in `directory`, making it if needed, and recover it.

        Blocks for as long as reading the log since the last snapshot takes.

        Args:
            directory: Its directory.
            settings: Its settings.
            files: Replaces the files of the operating system.
            progress: Called now and then with a description of the work, the amount done, and the
                amount in all; later, too, in the writer's thread, when a segment is copied.

        Raises:
            StoreLockedError: Another process has it open.
            StoreFormatError: The directory is something else, or a store of another version.
            StoreExposedError: Others can read it, and this process may not change that.
            StoreDiskError: It cannot be read, or not be written to.
        """
        if files is None:
            files = RealFiles(directory)
        try:
            take(files)
            recoverer = Recoverer(files, progress)
            recovery = recoverer.recover()
        except OSError as error:
            files.unlock()
            raise StoreDiskError(trouble(error, "open", files.where)) from error
        except BaseException:
            files.unlock()
            raise
        for damage in recovery.damages:
            _logger.error("store %s: %s", files.where, damage)
        if recovery.torn_bytes:
            _logger.warning(
                "store %s: %d bytes that were never confirmed were cut off: the process ended "
                "in the middle of a write",
                files.where,
                recovery.torn_bytes,
            )
        return cls(files, settings or StoreSettings(), recoverer, recovery, progress)

    # The owner's.

    def values(self, prefix: str = "") -> dict[str, bytes]:
        """Return the keys that begin with `prefix`, with their values."""
        with self._lock:
            return {k: v for k, v in self._index.values.items() if k.startswith(prefix)}

    def begin(self) -> Changes:
        """Return an empty batch of changes."""
        return Changes(self)

    def next_queue_id(self) -> int:
        """Return an id that no queue has had."""
        with self._lock:
            ident = self._index.next_queue
            self._index.next_queue += 1
            return ident

    def commit(self, changes: Changes) -> int:
        """Commit changes, to be written soon; readers see them from now on.

        Never blocks, and never raises because of the disk. The changes are used up afterwards, also
        after an error.

        Returns:
            a ticket: the changes are durable when `durable` has reached it.

        Raises:
            StoreUsageError: A queue does not exist, a sequence number is not above all others of
                its queue, or the changes exceed 1 GiB. Nothing has changed then.
            StoreClosedError: The store is closed.
        """
        changes.seal()
        lock = self._acquire()
        try:
            if self._closed:
                msg = "the store is closed"
                raise StoreClosedError(msg)
            self._index.commit(changes)
            return self._take_in(changes)
        finally:
            lock.release()

    def _take_in(self, changes: Changes) -> int:
        """Queue changes for the writer; the index has them already. Call it under the lock."""
        self._ticket += 1
        changes.ticket = self._ticket
        self._pending.append(changes)
        before = self._pending_bytes
        self._pending_bytes += changes.nbytes
        self._commits += 1
        changes.since = monotonic()
        if self._oldest is None:
            self._oldest = changes.since
            self._wake.notify()
        elif before < self.settings.write_bytes <= self._pending_bytes:
            self._wake.notify()
        return self._ticket

    def hurry(self) -> None:
        """Put everything committed so far on the disk as soon as possible."""
        lock = self._acquire()
        try:
            self._hurried = True
            self._wake.notify()
        finally:
            lock.release()

    def _acquire(self) -> threading.RLock:
        """Take the lock before the writer takes it again: the writer delays the owner's loop."""
        if not self._lock.acquire(blocking=False):
            self._asked_for = True
            self._lock.acquire()
            self._asked_for = False
        return self._lock

    def ahead(self) -> int:
        """Return the number of bytes that are committed and not yet written."""
        return self._pending_bytes

    def statistics(self) -> StoreStatistics:
        """Return the state of the store."""
        with self._lock:
            index = self._index
            segments = index.segments.values()
            disk = sum(segment.size for segment in segments)
            live = sum(segment.live for segment in segments)
            return StoreStatistics(
                queues=len(index.by_name),
                messages=sum(queue.live_count for queue in index.by_name.values()),
                message_bytes=sum(queue.live_bytes for queue in index.by_name.values()),
                segments=len(segments),
                disk_bytes=disk,
                live_bytes=live,
                dead_bytes=disk - live,
                snapshot_bytes=self._snapshot_bytes,
                pending_bytes=self._pending_bytes,
                unsynced_bytes=self._unsynced_bytes,
                written_bytes=self._written_bytes,
                commits=self._commits,
                batches=self._batches,
                fsyncs=self._fsyncs,
                fsync_seconds=self._fsync_seconds,
                slowest_fsync_seconds=self._slowest_fsync,
                failures=self._failures,
                compacted_segments=self._compacted_segments,
                compacted_bytes=self._compacted_bytes,
                deleted_segments=self._deleted_segments,
                snapshots=self._snapshots,
                damages=len(self._damages),
                trouble=self._trouble,
            )

    @property
    def damages(self) -> tuple[Damage, ...]:
        """All damages found when it was opened, and since."""
        return tuple(self._damages)

    # Reading, in any thread.

    def read(self, queue_id: int, first_seq: int, *, count: int, nbytes: int) -> list[Record]:
        """Return the first messages of a queue, from `first_seq` on, that are not done.

        Blocks for the disk: call it in a thread. It returns committed messages, written or not.

        Args:
            queue_id: The queue; for a queue that does not exist (any more) it returns nothing.
            first_seq: The first sequence number.
            count: The largest number of messages.
            nbytes: The largest number of bytes; but at least one message, if there is one.

        Raises:
            StoreDiskError: The disk fails. (Corrupt messages are reported as damage and left out.)
        """
        runs = self.read_runs(queue_id, first_seq, count=count, nbytes=nbytes)
        return list(chain.from_iterable(map(records_of, runs)))

    def read_runs(self, queue_id: int, first_seq: int, *, count: int, nbytes: int) -> list[Columns]:
        """Return the same messages as `read`, in columns, which costs less.

        Raises:
            StoreDiskError: As `read`.
        """
        if count < 1:
            return []
        again = 0
        while True:
            with self._lock:
                queue = self._index.by_id.get(queue_id)
                if queue is None:
                    return []
                plan = queue.plan(first_seq, count, nbytes)
                places = self._reader.places(plan)
            found: list[Columns] = []
            at: OnDisk | None = None
            try:
                for piece in plan:
                    if isinstance(piece, InMemory):
                        found.append(pending_columns(*piece))
                    else:
                        at = piece
                        found += self._reader.read(queue_id, piece, places)
            except CorruptRecordError as error:
                again += 1
                if again > 10 or at is None or not self._lose(queue_id, at.extent, str(error)):
                    raise StoreDiskError(str(error)) from error
                continue
            except FileNotFoundError as error:
                # It was copied forward in the meantime: find its new place.
                again += 1
                if again > 10:
                    raise StoreDiskError(trouble(error, "read", self._files.where)) from error
                continue
            except OSError as error:
                raise StoreDiskError(trouble(error, "read", self._files.where)) from error
            return found

    # Writing.

    def flush(self, *, sync: bool) -> None:
        """Write everything pending; with `sync`, put it on the disk.

        Blocks. The calling thread is the writer for that time.

        Raises:
            StoreDiskError: The disk refused; everything not written is still pending.
        """
        with self._work:
            if not self._attempt(sync=sync):
                raise StoreDiskError(self._trouble)

    def run(self) -> None:
        """Write committed changes until `stop`: the writer, for a thread of the owner's.

        It writes the pending changes before it returns, if the disk takes them.
        """
        while True:
            with self._lock:
                while not self._stopping and (seconds := self._idle_seconds()) != 0:
                    self._wake.wait(seconds)
                stopping = self._stopping
                sync = stopping or self._sync_is_due()
                due = sync or self._pending_bytes >= self.settings.write_bytes
            with self._work:
                if due:
                    self._attempt(sync=sync)
                if self._falls_behind() if due else self._tending:
                    self.tend()
            if stopping:
                return

    def stop(self) -> None:
        """Make `run` write the pending changes and return."""
        with self._lock:
            self._stopping = True
            self._wake.notify_all()

    def close(self) -> None:
        """Write the pending changes, if the disk takes them, and release the directory.

        Blocks. Call it when `run` has returned. Afterwards nothing can be committed.
        """
        self.stop()
        with self._work:
            if self._closed:
                return
            with self._lock:
                self._closed = True
            if self._attempt(sync=True):
                self._end_with_snapshot()
            self._log.end()
            self._handles.close()
            self._files.unlock()

    def _idle_seconds(self) -> float | None:
        """Return the seconds without work ahead; None: until a call."""
        if self._trouble is not None:
            return 0 if self._hurried else max(0.0, self._retry_at - monotonic())
        if self._sync_is_due():
            return 0
        if self._tending or self._pending_bytes >= self.settings.write_bytes:
            return 0
        if self._oldest is not None:
            return max(0.0, self._oldest + self.settings.fsync_interval - monotonic())
        self._hurried = False
        return None

    def _sync_is_due(self) -> bool:
        if self._trouble is not None:
            return True
        if self._oldest is None:
            return False
        return (
            self._hurried
            or self._unsynced_bytes >= self.settings.unsynced_bytes
            or monotonic() >= self._oldest + self.settings.fsync_interval
        )

    def _attempt(self, *, sync: bool) -> bool:
        """Write, and sync; return whether the disk took it. The caller has `_work`."""
        try:
            with self._lock:
                until = self._ticket
                if sync:
                    # A later `hurry` is for later changes.
                    self._hurried = False
            self._write(until)
            if sync:
                self._sync()
        except OSError as error:
            self._failed(error)
            return False
        if sync and self._trouble is not None:
            self._trouble = None
            _logger.warning("store %s: writing goes on", self._files.where)
            self.on_trouble(None)
        return True

    def _failed(self, error: OSError) -> None:
        sentence = trouble(error, "write to", self._files.where)
        self._failures += 1
        with self._lock:
            new = sentence != self._trouble
            self._trouble = sentence
            self._hurried = False
            self._retry_at = monotonic() + self.settings.retry_interval
        if new:
            _logger.error(
                "store %s: %s. Nothing is lost: %d bytes wait in memory, and it is tried again",
                self._files.where,
                sentence,
                self._pending_bytes,
            )
            self.on_trouble(sentence)

    def _write(self, until: int) -> None:
        """Write the pending changes, up to a ticket.

        Raises:
            OSError: The disk refused; everything it did not take is still pending.
        """
        while True:
            with self._lock:
                if not self._pending or self._pending[0].ticket > until:
                    return
            # First, as it may make written batches pending again.
            segment = self._segment_to_write()
            with self._lock:
                group = self._group(until)
            try:
                batch = Batch(segment.salt)
                encode(batch, group)
                written = self._log.append(batch, group[-1].ticket, group)
            except BaseException:  # Changes that are not written stay pending after any error.
                with self._lock:
                    self._pending.extendleft(reversed(group))
                raise
            self._note(written)

    def _group(self, until: int) -> list[Changes]:
        """Take the next changes for a common batch, up to a ticket."""
        limit = self.settings.write_bytes if self._trouble is None else _SMALL_BYTES
        # Rather one batch somewhat larger than a second one with little in it.
        slack = _BATCH_BYTES // 2 if self._pending_bytes < 3 * _BATCH_BYTES // 2 else 0
        group: list[Changes] = []
        queues: set[int] = set()
        size = 0
        while self._pending and self._pending[0].ticket <= until:
            changes = self._pending[0]
            size += changes.nbytes
            queues.update(changes.puts)
            if group and size > min(limit, _BATCH_BYTES + slack + _QUEUE_BYTES * len(queues)):
                break
            group.append(self._pending.popleft())
        return group

    def _note(self, written: Written) -> None:
        """Record that a batch is written."""
        self._batches += 1
        self._written_bytes += written.size
        self._log_bytes += written.size
        with self._lock:
            self._unsynced_bytes += written.size
            self._pending_bytes -= sum(changes.nbytes for changes in written.group)
            self.written = written.ticket

    def _segment_to_write(self) -> Segment:
        """Return the segment to append to, beginning a new one if there is none or it is full.

        Raises:
            OSError: The disk refused.
        """
        current = self._log.current
        if current is not None and current.size >= self.settings.segment_bytes:
            self._sync()
            self._log.end()
            due = max(self.settings.segment_bytes, 4 * self._snapshot_bytes)
            if self._log_bytes >= due:
                self._snapshot()
        return self._log.begin()

    def _sync(self) -> None:
        """Put everything written on the disk, and record that it is durable.

        Raises:
            OSError: The disk refused; everything not durable is pending again.
        """
        segment = self._log.current
        if segment is None or not self._log.unsynced:
            self._rest()
            return
        started = monotonic()
        try:
            self._log.fsync()
        except OSError:
            self._give_up_segment()
            raise
        seconds = monotonic() - started
        self._fsyncs += 1
        self._fsync_seconds += seconds
        self._slowest_fsync = max(self._slowest_fsync, seconds)
        ticket = self.durable
        unsynced = self._log.unsynced
        while unsynced:
            written = unsynced.popleft()
            self._apply(written, segment)
            ticket = max(ticket, written.ticket)
        self._tending = True
        self._rest()
        if ticket > self.durable:
            self.durable = ticket
            self.on_durable(ticket)

    def _apply(self, written: Written, segment: Segment) -> None:
        """Record that a batch is durable."""
        # Messages stop being pending in the same step, or they would be read twice. Copied messages
        # move in one step for each of their records.
        later = [op for op in written.ops if not written.group or op.kind in (DONE, DROP)]
        with self._lock:
            if written.group:
                for op in written.ops:
                    if op.kind not in (DONE, DROP):
                        self._index.apply(op, segment)
            for changes in written.group:
                self._index.settle(changes)
            self._unsynced_bytes -= written.size
            segment.synced += written.size
        # Readers know of the done messages already. There may be tens of thousands.
        for op in later:
            for some in op.pieces(_DONE_AT_ONCE):
                if self._asked_for:
                    sleep(_GIVE_WAY_SECONDS)
                with self._lock:
                    self._index.apply(some, segment)

    def _rest(self) -> None:
        """Note the time from which written bytes wait, after an fsync."""
        with self._lock:
            self._oldest = self._pending[0].since if self._pending else None

    def _give_up_segment(self) -> None:
        """End the current segment where it was last durable; everything later is pending again."""
        with self._lock:
            for written in self._log.give_up():
                self._pending.extendleft(reversed(written.group))
                self._pending_bytes += sum(changes.nbytes for changes in written.group)
            self._unsynced_bytes = 0
            self.written = self.durable

    # Keeping the log short.

    def compact(self) -> None:
        """Write the pending changes, and free dead bytes, copying as needed.

        Blocks. `run` does the same, bit by bit, between writes.

        Raises:
            StoreDiskError: The disk refused.
        """
        with self._work:
            self.flush(sync=True)
            # A segment can go when the older of two snapshots covers it.
            for _ in range(3):
                self._have_something_since()
                self._end_with_snapshot()
                self._tending = True
                while self._tending:
                    if not self.tend():
                        raise StoreDiskError(self._trouble)

    def _have_something_since(self) -> None:
        """Write an empty batch behind the last snapshot, if a segment waits for a newer snapshot.

        A segment has one snapshot, so without new messages the store would get no newer one.
        """
        if not self._kept or self._kept[-1] < self._log.next_segment:
            return
        floor = self._floor()
        segments = self._index.segments.items()
        waiting = [each.size for number, each in segments if number >= floor and each.live <= 0]
        if sum(waiting) <= _LITTLE:
            return
        try:
            segment = self._segment_to_write()
            self._note(self._log.append(Batch(segment.salt), self.written, []))
            self._sync()
        except OSError as error:
            self._failed(error)

    def tend(self) -> bool:
        """Free dead bytes, and copy a piece forward if that is due.

        Blocks. `run` calls it between writes, as long as there is something to do.

        Returns:
            whether the disk took it.
        """
        with self._work:
            if self._trouble is not None:
                self._tending = False
                return False
            try:
                self._reclaim()
                if self._mover is None:
                    self._mover = self._choose()
                if self._mover is None:
                    self._tending = False
                else:
                    self._copy(self._mover)
            except OSError as error:
                self._tending = False
                self._failed(error)
                return False
            return True

    def _reclaim(self) -> None:
        """Remove the segments that nothing needs."""
        segments = self._index.segments
        floor = self._floor()
        waiting = 0
        for number, segment in list(segments.items()):
            if segment.live > 0 or segment is self._log.current:
                continue
            if number >= floor:
                waiting += segment.size
                continue
            name = segment_name(number)
            with suppress(FileNotFoundError):
                self._files.unlink(name)
            self._handles.forget(name)
            with self._lock:
                del segments[number]
            self._deleted_segments += 1
        # They wait for newer snapshots, and nothing else may cause one for a long time.
        if waiting >= 2 * self.settings.segment_bytes:
            self._end_with_snapshot()

    def _falls_behind(self) -> bool:
        """Whether too much is dead to wait until the writer is idle."""
        if not self._tending:
            return False
        segments = self._index.segments.values()
        dead = sum(segment.size - segment.live for segment in segments)
        return dead > _DEAD_SEGMENTS * self.settings.segment_bytes and dead * 2 > sum(
            segment.size for segment in segments
        )

    def _floor(self) -> int:
        """Return the first segment needed to replay the log: that of the older of two snapshots."""
        return self._kept[-2] if len(self._kept) > 1 else 0

    def _choose(self) -> Mover | None:
        """Choose the segment to copy forward: the one with the fewest live bytes."""
        floor = self._floor()
        found = [
            segment
            for number, segment in self._index.segments.items()
            if number < floor
            and number not in self._stuck
            and 0 < segment.live < segment.size * self.settings.compact_below
        ]
        if not found:
            return None
        segment = min(found, key=lambda segment: segment.live / segment.size)
        name = segment_name(segment.number)

        def read(size: int, offset: int) -> bytes:
            with self._handles.use(name) as file:
                return file.pread(size, offset)

        return Mover(self._index, segment, read, self._pending_dones)

    def _copy(self, mover: Mover) -> None:
        """Copy a piece forward.

        Raises:
            OSError: The disk refused.
        """
        number = mover.segment.number
        # First: acknowledgements that are not durable yet would be applied too early.
        self._sync()
        segment = self._segment_to_write()
        batch = Batch(segment.salt)
        try:
            more = mover.step(batch, self.settings.compact_step_bytes)
        except BadExtentError as error:
            self._mover = None
            if not self._lose(error.queue, error.extent, str(error)):
                self._stuck.add(number)
            self._attempt(sync=True)
            return
        except (CorruptRecordError, FileNotFoundError) as error:
            _logger.error("store %s: %s: %s", self._files.where, segment_name(number), error)
            self._mover = None
            self._stuck.add(number)
            return
        if not more:
            self._mover = None
            if mover.segment.live:  # pragma: no cover
                self._stuck.add(number)
            else:
                self._compacted_segments += 1
            return
        self._note(self._log.append(batch, self.written, []))
        self._sync()
        self._compacted_bytes += batch.size
        if self._progress is not None:
            done = mover.total - mover.segment.live
            self._progress(f"copying {segment_name(number)} forward", done, mover.total)

    def _pending_dones(self, queue_id: int, low: int, high: int) -> Intervals:
        """Return a queue's numbers in a range that are done, but not durably. Under the lock."""
        found = Intervals()
        groups = [*(written.group for written in self._log.unsynced), self._pending]
        for changes in chain.from_iterable(groups):
            ranges = changes.dones.get(queue_id, ())
            # They are in order, and only a few of them match.
            for at in range(max(bisect_right(ranges, (low,)) - 1, 0), len(ranges)):
                first, last = ranges[at]
                if first > high:
                    break
                if last >= low:
                    found.add(first, last)
        return found

    def _end_with_snapshot(self) -> None:
        """Begin a new segment with the next write, and take a snapshot of everything before it."""
        try:
            self._sync()
            self._log.end()
            if not self._kept or self._kept[-1] < self._log.next_segment:
                self._snapshot()
        except OSError as error:
            self._failed(error)

    def _snapshot(self) -> None:
        """Write a snapshot of the index; if the disk refuses, go on with the last one."""
        index = self._index
        pending: dict[int, list[tuple[int, int]]] = {}
        with self._lock:
            for changes in self._pending:
                for queue_id, ranges in changes.dones.items():
                    pending.setdefault(queue_id, []).extend(ranges)
            done = {queue_id: queue.finished.copy() for queue_id, queue in index.durable.items()}
        for queue_id, ranges in pending.items():
            if queue_id in done:
                done[queue_id] = done[queue_id].without(ranges)
        number = self._log.next_segment
        try:
            self._snapshot_bytes = write_snapshot(
                self._files, number, self._log.next_batch, self.durable, index, done
            )
        except OSError as error:
            # The log has everything; so reading takes longer, and more room.
            self._failures += 1
            sentence = trouble(error, "write a snapshot of", self._files.where)
            _logger.error("store %s: %s", self._files.where, sentence)
            return
        self._snapshots += 1
        self._log_bytes = 0
        self._kept.append(number)
        while len(self._kept) > 2:
            with suppress(OSError):  # It is removed the next time, or when the store is opened.
                self._files.unlink(snapshot_name(self._kept[0]))
            del self._kept[0]

    # Damage.

    def _lose(self, queue_id: int, extent: Extent, what: str) -> bool:
        """Give up the unreadable messages of an extent; return whether there were any.

        Raises:
            OSError: It cannot be read at all.
        """
        readable, data = self._reader.readable(queue_id, extent)
        name = segment_name(extent.segment)
        changes = self.begin()
        with self._lock:
            queue = self._index.by_id.get(queue_id)
            if queue is None:
                return True
            count, size = queue.live_count, queue.live_bytes
            for first, last in readable.missing(extent.first, extent.last):
                changes.done(queue_id, first, last)
            changes.seal()
            self._index.commit(changes)
            if not changes.dones:
                return False
            self._take_in(changes)
            count, size = count - queue.live_count, size - queue.live_bytes
        aside: str | None = None
        with suppress(OSError):
            aside = put_aside(self._files, name, extent.offset, data)
        first, last = extent.first, extent.last
        where = (name, extent.offset, extent.length, what)
        damage = Damage(*where, queue_id, queue.name, first, last, count, size, aside)
        self._damages.append(damage)
        _logger.error("store %s: %s", self._files.where, damage)
        self.on_damage(damage)
        return True


def _ignore(_: object) -> None:
    """Do nothing: no callback was set."""
