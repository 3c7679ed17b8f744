"""The store: queues and values that survive the process.

Theory of operation. `commit` takes `Changes` in under a lock (`PendingChanges`) and returns; it
does not touch the disk. One thread at a time is the `Writer` (`run`, or a caller of `flush`): it
joins pending changes into batches, appends these to the current segment and fsyncs that (`Log`).
Only then does it move them from the pending messages to the index of durable ones. So a reader
finds every committed message in one of the two, and a snapshot of the index (`Checkpoints`) is a
snapshot of the durable state. A disk that refuses costs nothing but memory: changes that it refused
are still pending. Between writes the same thread frees dead bytes (`Compactor`). Messages that
become unreadable count as done (`Losses`).

After a failed fsync, nothing is known about the bytes written since the last good one, and a second
fsync may well succeed (PostgreSQL, "fsyncgate", 2018). So the writer gives up the segment from
there on, and writes those batches anew to another one.
"""

from __future__ import annotations

from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING

from ._changes import Changes
from ._checkpoints import Checkpoints
from ._compaction import Compactor
from ._decode import pending_columns, records_of
from ._errors import CorruptRecordError, Damage, StoreClosedError, StoreDiskError
from ._files import RealFiles
from ._handles import Handles
from ._log import Log
from ._losses import Losses
from ._opening import take
from ._pending import PendingChanges
from ._queue import Columns, InMemory, OnDisk, Record
from ._reader import Reader
from ._recovery import Recoverer, Recovery
from ._sentences import logger, trouble
from ._settings import StoreSettings
from ._statistics import StoreStatistics
from ._writer import Writer

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from ._files import Files
    from ._queue import StoredQueue
    from ._recovery import Progress


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
        index = self._index = recoverer.index
        self._lock = index.lock
        self.queues: Mapping[str, StoredQueue] = MappingProxyType(index.by_name)
        self.on_durable: Callable[[int], None] = _ignore
        self.on_trouble: Callable[[str | None], None] = _ignore
        self.on_damage: Callable[[Damage], None] = _ignore
        self._stopping = self._closed = False
        log = Log(files, index, recoverer.next_segment, recoverer.next_batch)
        self._handles = Handles(files, settings.open_files)
        self._reader = Reader(index, self._handles)
        self._pending = PendingChanges(self._lock, recoverer.ticket, settings.write_bytes)
        checkpoints = Checkpoints(files, index, log, self._pending, recoverer)
        self._writer = Writer(
            *(self, files.where, settings, index, log, self._pending, checkpoints)
        )
        self._losses = Losses(*(self, files, index, self._reader, self._pending, recovery.damages))
        self._compactor = Compactor(
            *(files.where, settings, index, self._handles, self._writer, self._losses, progress)
        )

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
            logger.error("store %s: %s", files.where, damage)
        if recovery.torn_bytes:
            logger.warning(
                "store %s: %d bytes that were never confirmed were cut off: the process ended "
                "in the middle of a write",
                files.where,
                recovery.torn_bytes,
            )
        return cls(files, settings or StoreSettings(), recoverer, recovery, progress)

    @property
    def written(self) -> int:
        """The highest ticket handed to the system; back at `durable` after a failed fsync."""
        return self._writer.written

    @property
    def durable(self) -> int:
        """The highest ticket that is on the disk."""
        return self._writer.durable

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
        pending = self._pending
        lock = pending.acquire()
        try:
            if self._closed:
                msg = "the store is closed"
                raise StoreClosedError(msg)
            self._index.commit(changes)
            return pending.add(changes)
        finally:
            lock.release()

    def hurry(self) -> None:
        """Put everything committed so far on the disk as soon as possible."""
        pending = self._pending
        lock = pending.acquire()
        try:
            pending.hurried = True
            pending.wake.notify()
        finally:
            lock.release()

    def ahead(self) -> int:
        """Return the number of bytes that are committed and not yet written."""
        return self._pending.nbytes

    def statistics(self) -> StoreStatistics:
        """Return the state of the store."""
        writer, log, checkpoints = self._writer, self._writer.log, self._writer.checkpoints
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
                snapshot_bytes=checkpoints.size,
                pending_bytes=self._pending.nbytes,
                unsynced_bytes=writer.unsynced_bytes,
                written_bytes=log.written_bytes,
                commits=self._pending.commits,
                batches=log.batches,
                fsyncs=log.fsyncs,
                fsync_seconds=log.fsync_seconds,
                slowest_fsync_seconds=log.slowest_fsync,
                failures=writer.failures + checkpoints.failures,
                compacted_segments=self._compactor.compacted_segments,
                compacted_bytes=self._compactor.compacted_bytes,
                deleted_segments=self._compactor.deleted_segments,
                snapshots=checkpoints.taken,
                damages=len(self._losses.damages),
                trouble=writer.trouble,
            )

    @property
    def damages(self) -> tuple[Damage, ...]:
        """All damages found when it was opened, and since."""
        return tuple(self._losses.damages)

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
                if (
                    again > 10
                    or at is None
                    or not self._losses.give_up(queue_id, at.extent, str(error))
                ):
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

    # Writing, in a thread of the owner's.

    def flush(self, *, sync: bool) -> None:
        """Write everything pending; with `sync`, put it on the disk.

        Blocks. The calling thread is the writer for that time.

        Raises:
            StoreDiskError: The disk refused; everything not written is still pending.
        """
        with self._writer.work:
            if not self._writer.attempt(sync=sync):
                raise StoreDiskError(self._writer.trouble)

    def run(self) -> None:
        """Write committed changes until `stop`: the writer, for a thread of the owner's.

        It writes the pending changes before it returns, if the disk takes them.
        """
        pending, writer, compactor = self._pending, self._writer, self._compactor
        while True:
            with self._lock:
                while not self._stopping and (seconds := writer.idle_seconds()) != 0:
                    pending.wake.wait(seconds)
                stopping = self._stopping
                sync = stopping or writer.sync_is_due()
                due = sync or pending.nbytes >= self.settings.write_bytes
            with writer.work:
                if due:
                    writer.attempt(sync=sync)
                if compactor.falls_behind() if due else writer.tending:
                    compactor.tend()
            if stopping:
                return

    def stop(self) -> None:
        """Make `run` write the pending changes and return."""
        with self._lock:
            self._stopping = True
            self._pending.wake.notify_all()

    def close(self) -> None:
        """Write the pending changes, if the disk takes them, and release the directory.

        Blocks. Call it when `run` has returned. Afterwards nothing can be committed.
        """
        self.stop()
        writer = self._writer
        with writer.work:
            if self._closed:
                return
            with self._lock:
                self._closed = True
            if writer.attempt(sync=True):
                writer.checkpoint()
            writer.log.end()
            self._handles.close()
            self._files.unlock()

    def compact(self) -> None:
        """Write the pending changes, and free dead bytes, copying as needed.

        Blocks. `run` does the same, bit by bit, between writes.

        Raises:
            StoreDiskError: The disk refused.
        """
        self._compactor.compact()

    def tend(self) -> bool:
        """Free dead bytes, and copy a piece forward if that is due.

        Blocks. `run` calls it between writes, as long as there is something to do.

        Returns:
            whether the disk took it.
        """
        return self._compactor.tend()


def _ignore(_: object) -> None:
    """Do nothing: no callback was set."""
