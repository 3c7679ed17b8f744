"""The store: queues and values that survive the process.

Theory of operation. `commit` takes `Changes` in under a lock (`PendingChanges`) and returns; it
does not touch the disk. One thread at a time is the `Writer` (`run`, or a caller of `flush`): it
puts all that is pending into the database in one transaction, and the end of that is one fsync
(SQLite's write-ahead log, `synchronous=FULL`). Only then do changes stop being pending. So a reader
finds every committed message in one of the two places: in memory, or with a connection of its own
in the database. What is done before it was written never gets there. A disk that refuses costs
nothing but memory: SQLite rolls the transaction back, and its changes are still pending. Rows that
have become unreadable are put aside, and their messages count as done.

After a failed fsync nothing is known about the bytes written since the last good one, and a second
fsync may well succeed (PostgreSQL, "fsyncgate", 2018): SQLite writes all of them again.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING

from ._changes import Changes
from ._database import (
    IDLE_SECONDS,
    PAGE_BYTES,
    connect,
    corruption,
    has_sound_header,
    prepare,
    text,
)
from ._directory import Directory
from ._errors import Damage, StoreClosedError, StoreDiskError, StoreUsageError
from ._pending import PendingChanges
from ._queue import StoredQueue
from ._ranges import merged
from ._reader import Connections, CorruptRow, Read
from ._recovery import LOG_POSITION, NEXT_QUEUE, Recovered, put_in_order, recover
from ._sentences import logger, trouble
from ._settings import StoreSettings
from ._statistics import StoreStatistics
from ._upgrade import put_old_files_aside, upgrade
from ._writer import Writer

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from ._queue import Record
    from ._transaction import Group


class Store:
    """Queues of messages, and keys with values, in a directory that one process has open.

    Everything but `read`, `first_live_seq`, `flush`, `run`, `compact` and `close` returns at once
    and is for the owner's thread; those block and are for a thread of their own. `on_durable`,
    `on_trouble` and `on_damage` are called in the thread that notices; they must not wait for a
    thread that is in one of those.

    Attributes:
        settings: The settings.
        queues: The committed queues, by name.
        on_durable: Called with `durable` when that has grown.
        on_trouble: Called with a sentence when the disk refuses, and with None when everything
            refused is durable.
        on_damage: Called when something that was durable is unreadable. Its messages then count as
            done.
        on_commit: Called, in any thread, when there is more for the log (`StoreSettings.logged`).
    """

    def __init__(
        self,
        directory: Directory,
        settings: StoreSettings,
        vfs: str | None,
        db: sqlite3.Connection,
        recovered: Recovered,
    ) -> None:
        """Use `Store.open`."""
        self.settings = settings
        self._directory = directory
        self._db = db
        self._by_id = recovered.queues
        self._by_name = {queue.name: queue for queue in recovered.queues.values()}
        self.queues: Mapping[str, StoredQueue] = MappingProxyType(self._by_name)
        self._values = recovered.values
        self._next_queue = recovered.next_queue
        self._damages = recovered.damages
        self._lost: set[int] = set()
        self.on_durable: Callable[[int], None] = _ignore
        self.on_trouble: Callable[[str | None], None] = _ignore
        self.on_damage: Callable[[Damage], None] = _ignore
        self.on_commit: Callable[[], None] = _nothing
        self._stopping = self._closed = False
        self._logged = 0
        self._pending = PendingChanges(settings.write_bytes)
        self._lock = self._pending.lock
        self._connections = Connections(directory.database, vfs, settings.readers)
        self._writer = Writer(self, directory.where, settings, self._pending, db)

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        settings: StoreSettings | None = None,
        *,
        vfs: str | None = None,
    ) -> Store:
        """Open the store in `directory`, making it if needed, and recover it.

        Blocks for as long as counting the messages takes: some seconds for ten million. A store of
        version 0.1.0 is upgraded first, which copies its messages.

        Args:
            directory: Its directory.
            settings: Its settings.
            vfs: The name of a file system that SQLite knows; None: its default.

        Raises:
            StoreLockedError: Another process has it open.
            StoreFormatError: The directory is something else, or a store of another version.
            StoreExposedError: Others can read it, and this process may not change that.
            StoreDiskError: It cannot be read, or not be written to, or is damaged.
        """
        place = Directory(directory)
        db: sqlite3.Connection | None = None
        try:
            is_well = place.take(upgrades=True)
            if place.is_old:
                upgrade(place, cls.open)
            elif place.has_old_files:
                put_old_files_aside(place.where)
            if not has_sound_header(place.database):
                raise corruption("its header is damaged")
            db = connect(place.database, vfs=vfs)
            prepare(db, fsync=not (settings or StoreSettings()).logged)
            place.mark()
            recovered = recover(db)
            put_in_order(db, recovered)
            store = cls(place, settings or StoreSettings(), vfs, db, recovered)
        except BaseException as error:
            if db is not None:
                db.close()
            place.release()
            if isinstance(error, (OSError, sqlite3.Error)):
                raise StoreDiskError(trouble(error, "open", str(place.where))) from error
            raise
        if not is_well:
            recovered.damages.append(
                Damage("the database", "it was gone, or empty: what it had is lost; it begins anew")
            )
        if recovered.nameless:
            changes = store.begin()
            for queue in recovered.nameless:
                changes.declared[queue.id] = (queue.name, queue.meta)
            store.commit(changes)
        for damage in recovered.damages:
            logger.error("store %s: %s", place.where, damage)
        return store

    @property
    def directory(self) -> Path:
        """The directory."""
        return self._directory.where

    @property
    def durable(self) -> int:
        """The highest ticket that is on the disk, or else in the log."""
        return self._logged if self.settings.logged else self._writer.durable

    # The owner's.

    def values(self, prefix: str = "") -> dict[str, bytes]:
        """Return the keys that begin with `prefix`, with their values."""
        with self._lock:
            return {k: v for k, v in self._values.items() if k.startswith(prefix)}

    def begin(self) -> Changes:
        """Return an empty batch of changes."""
        return Changes(self)

    def next_queue_id(self) -> int:
        """Return an id that no queue has had."""
        with self._lock:
            ident = self._next_queue
            self._next_queue += 1
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
        with self._lock:
            if self._closed:
                msg = "the store is closed"
                raise StoreClosedError(msg)
            self._take_in(changes)
            ticket = self._pending.add(changes, hold=self.settings.logged)
        self.on_commit()
        return ticket

    def unlogged(self, nbytes: int) -> list[Changes]:
        """Return the first changes that the log does not have, about so many bytes.

        They are in the order of their tickets. The owner puts them into the log all at once, and
        calls `logged`.
        """
        with self._lock:
            return self._pending.first_held(nbytes)

    def logged(self, changes: Sequence[Changes], position: bytes) -> None:
        """Take in that the first changes are in the log: they are durable, and get written here.

        Args:
            changes: They, as `unlogged` has returned them.
            position: Their place in the log. The directory has it from when it has the changes.
        """
        ticket = changes[-1].ticket
        with self._lock:
            changes[-1].values[LOG_POSITION] = position
            self._pending.release(ticket)
            self._logged = ticket
        self.on_durable(ticket)

    def _take_in(self, changes: Changes) -> None:
        """Make changes visible. Under the lock."""
        by_id = self._by_id
        for queue_id, puts in changes.puts.items():
            queue = by_id.get(queue_id)
            if queue is None and queue_id not in changes.declared:
                msg = f"there is no queue {queue_id} to put messages to"
                raise StoreUsageError(msg)
            if queue is not None and puts.first < queue.next_seq:
                msg = f"seq {puts.first} is not free in queue {queue.name!r}: next {queue.next_seq}"
                raise StoreUsageError(msg)
        if changes.declared:
            for queue_id, (name, meta) in changes.declared.items():
                queue = by_id.get(queue_id)
                if queue is None:
                    queue = by_id[queue_id] = StoredQueue(queue_id, name, meta)
                queue.meta = meta
                self._by_name[name] = queue
            changes.values[NEXT_QUEUE] = b"%d" % self._next_queue
        for queue_id, puts in changes.puts.items():
            by_id[queue_id].put(puts)
        for queue_id, ranges in list(changes.dones.items()):
            queue = by_id.get(queue_id)
            # Later messages are not done by it.
            last = -1 if queue is None else queue.next_seq - 1
            ranges[:] = [(a, min(b, last)) for a, b in ranges if a <= last]
            if queue is None or not ranges:
                del changes.dones[queue_id]
            else:
                queue.finish(ranges)
        for key, value in changes.values.items():
            if value is None:
                self._values.pop(key, None)
            elif key != NEXT_QUEUE:
                self._values[key] = value
        for queue_id in changes.dropped:
            queue = by_id.pop(queue_id, None)
            if queue is not None and self._by_name.get(queue.name) is queue:
                del self._by_name[queue.name]

    def settle(self, group: Group) -> None:
        """Take in that a group is in the database; for the writer, under the lock."""
        for changes in group.changes:
            for queue_id in changes.puts:
                queue = self._by_id.get(queue_id)
                if queue is not None and queue.puts:
                    queue.puts.popleft()
                    queue.puts = queue.puts or ()
            for queue_id in changes.dones:
                queue = self._by_id.get(queue_id)
                if queue is not None and queue.dones:
                    queue.dones.popleft()
                    queue.dones = queue.dones or ()
            self._lost.difference_update(lost.row for lost in changes.lost)
        for queue_id, seq in group.next_seq.items():
            queue = self._by_id.get(queue_id)
            if queue is not None:
                queue.durable_seq = seq
        for queue_id, (count, size) in group.gone.items():
            queue = self._by_id.get(queue_id)
            if queue is not None:
                queue.live_count -= count
                queue.live_bytes -= size

    def hurry(self) -> None:
        """Put everything committed so far on the disk as soon as possible."""
        with self._lock:
            self._pending.hurried = True
            self._pending.wake.notify()

    def ahead(self) -> int:
        """Return the number of bytes that are committed and not on the disk."""
        return self._pending.nbytes + self._pending.held_bytes

    def behind(self) -> int:
        """Return the number of bytes that may be written to the disk and are not."""
        return self._pending.nbytes

    def statistics(self) -> StoreStatistics:
        """Return the state of the store."""
        writer = self._writer
        with self._lock:
            queues = self._by_id.values()
            return StoreStatistics(
                queues=len(queues),
                messages=sum(queue.live_count for queue in queues),
                message_bytes=sum(queue.live_bytes for queue in queues),
                used_bytes=(writer.pages - writer.free_pages) * PAGE_BYTES,
                free_bytes=writer.free_pages * PAGE_BYTES,
                log_bytes=self._directory.log_bytes(),
                pending_bytes=self.ahead(),
                unlogged_bytes=self._pending.held_bytes,
                commits=self._pending.ticket,
                transactions=writer.transactions,
                fsync_seconds=writer.seconds,
                slowest_fsync_seconds=writer.slowest,
                rewritten_bytes=writer.rewritten,
                failures=writer.failures,
                damages=len(self._damages),
                trouble=writer.trouble,
            )

    @property
    def damages(self) -> tuple[Damage, ...]:
        """All damages found when it was opened, and since."""
        return tuple(self._damages)

    # Reading, in any thread.

    def read(self, queue_id: int, first_seq: int, *, count: int, nbytes: int) -> list[Record]:
        """Return the first messages of a queue, from `first_seq` on, that are not done.

        Blocks for the disk: call it in a thread. It returns committed messages, durable or not.

        Args:
            queue_id: The queue; for a queue that does not exist (any more) it returns nothing.
            first_seq: The first sequence number.
            count: The largest number of messages.
            nbytes: The largest number of bytes; but at least one message, if there is one.

        Raises:
            StoreDiskError: The disk fails. (Corrupt messages are reported as damage and left out.)
        """
        with self._lock:
            queue = self._by_id.get(queue_id)
            if queue is None or count < 1:
                return []
            puts = list(queue.puts)
            done = merged(chain.from_iterable(queue.dones))
            limit = queue.durable_seq
            lost = set(self._lost)
        read = Read(queue_id, max(first_seq, 0), count, nbytes, done)
        more = True
        if read.first < limit:
            more = self._read_database(read, limit, lost)
        for some in puts:
            if not more:
                break
            if some.last >= read.first:
                more = read.from_memory(some)
        for corrupt in read.corrupt:
            self._give_up(corrupt)
        return read.records

    def first_live_seq(self, queue_id: int) -> int | None:
        """Return the lowest number of a queue that is not done; None: all are.

        Blocks for the disk.

        Raises:
            StoreDiskError: The disk fails.
        """
        records = self.read(queue_id, 0, count=1, nbytes=1)
        return records[0].seq if records else None

    def _read_database(self, read: Read, limit: int, lost: set[int]) -> bool:
        try:
            db = self._connections.take()
            try:
                return read.from_database(db, limit, lost)
            finally:
                self._connections.give_back(db)
        except sqlite3.Error as error:
            raise StoreDiskError(trouble(error, "read", str(self._directory.where))) from error

    def _give_up(self, corrupt: CorruptRow) -> None:
        """Let unreadable messages count as done, and report them."""
        changes = self.begin()
        queue_id = corrupt.lost.queue_id
        for seq in corrupt.seqs:
            changes.done(queue_id, seq)
        with self._lock:
            queue = self._by_id.get(queue_id)
            if queue is None or corrupt.lost.row in self._lost or self._closed:
                return
            if not corrupt.seqs:
                changes.lost = (corrupt.lost,)
                self._lost.add(corrupt.lost.row)
            changes.seal()
            self._take_in(changes)
            self._pending.add(changes, hold=self.settings.logged)
            damage = corrupt.damage(queue.name)
            self._damages.append(damage)
        logger.error("store %s: %s", self._directory.where, damage)
        self.on_commit()
        self.on_damage(damage)

    def snapshot(self, path: str | os.PathLike[str]) -> bytes | None:
        """Write a copy of the database as it is on the disk to a new file.

        Blocks, but not the writer.

        Args:
            path: The file, which does not exist.

        Returns:
            the place in the log up to which everything is in it (`logged`); None: nothing of the
            log is.

        Raises:
            StoreDiskError: The disk refused.
        """
        try:
            with (
                closing(connect(self._directory.database)) as db,
                closing(sqlite3.connect(path, isolation_level=None)) as copy,
            ):
                copy.execute("PRAGMA synchronous=OFF")
                db.backup(copy)
                key = (text(LOG_POSITION),)
                row = copy.execute("SELECT value FROM value WHERE key = ?", key).fetchone()
        except sqlite3.Error as error:
            raise StoreDiskError(trouble(error, "copy", str(self._directory.where))) from error
        return None if row is None else row[0]

    # Writing, in a thread of the owner's.

    def flush(self) -> None:
        """Put everything pending on the disk.

        Blocks. The calling thread is the writer for that time.

        Raises:
            StoreDiskError: The disk refused; everything not written is still pending.
        """
        with self._writer.work:
            if not self._writer.attempt():
                raise StoreDiskError(self._writer.trouble)
            self._writer.count_pages()

    def run(self) -> None:
        """Write committed changes until `stop`: the writer, for a thread of the owner's.

        It writes the pending changes before it returns, if the disk takes them.
        """
        pending, writer = self._pending, self._writer
        while True:
            idle = False
            with self._lock:
                while not (self._stopping or idle) and (seconds := writer.idle_seconds()) != 0:
                    warm = seconds is None and writer.is_warm
                    woken = pending.wake.wait(IDLE_SECONDS if warm else seconds)
                    idle = warm and not woken
                stopping = self._stopping
            if idle and not stopping:
                with writer.work:
                    writer.cool()
                self._connections.close_free()
                continue
            with writer.work:
                if writer.attempt() and writer.tends and not stopping:
                    writer.tend()
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
        with self._writer.work:
            if self._closed:
                return
            with self._lock:
                self._closed = True
            try:
                self._writer.attempt()
            finally:
                self._connections.close()
                self._db.close()
                self._directory.release()

    def compact(self) -> None:
        """Write the pending changes, and give all free room back to the system.

        Blocks. `run` does the same, bit by bit, between writes.

        Raises:
            StoreDiskError: The disk refused.
        """
        with self._writer.work:
            if not (self._writer.attempt() and self._writer.compact()):
                raise StoreDiskError(self._writer.trouble)


def _ignore(_: object) -> None:
    """Do nothing: no callback was set."""


def _nothing() -> None:
    """Do nothing: no callback was set."""
