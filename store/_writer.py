"""The writer: it puts pending changes on the disk, and tries again what the disk refused."""

from __future__ import annotations

import threading
from bisect import bisect_right
from itertools import chain
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final, Protocol

from ._encode import Batch, encode
from ._intervals import Intervals
from ._records import DONE, DROP
from ._sentences import logger, trouble

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._checkpoints import Checkpoints
    from ._index import Index, Segment
    from ._log import Log, Written
    from ._pending import PendingChanges
    from ._settings import StoreSettings

#: Ranges of done messages that are recorded without releasing the lock: half a millisecond's
#: worth...
_DONE_BATCH: Final = 64
#: ...and the time that a waiting thread then has to take the lock.
_GIVE_WAY_SECONDS: Final = 0.0002

#: Bytes tried at a time after the disk has refused: a little may fit where much does not.
_SMALL_BYTES: Final = 64 << 10


class _Owner(Protocol):
    """The part of a store that has its owner's callbacks."""

    on_durable: Callable[[int], None]
    on_trouble: Callable[[str | None], None]


class Writer:
    """Writes pending changes to the log. The thread that has `work` is the writer.

    Attributes:
        work: Held by the writer.
        written: See `Store.written`.
        durable: See `Store.durable`.
        unsynced_bytes: Bytes written and not durable.
        trouble: The present trouble with the disk, in a sentence.
        failures: Number of times that the disk refused.
        tending: Whether compaction may find something to do: True after each fsync; compaction
            resets it.
    """

    def __init__(
        self,
        owner: _Owner,
        where: str,
        settings: StoreSettings,
        index: Index,
        log: Log,
        pending: PendingChanges,
        checkpoints: Checkpoints,
    ) -> None:
        self._owner = owner
        self._where = where
        self._settings = settings
        self._index = index
        self._lock = index.lock
        self._pending = pending
        self.work = threading.RLock()
        self.log = log
        self.checkpoints = checkpoints
        self.written = self.durable = pending.ticket
        self.unsynced_bytes = 0
        self.trouble: str | None = None
        self._retry_at = 0.0
        self.failures = 0
        self.tending = True

    # When to write. Under the lock.

    def idle_seconds(self) -> float | None:
        """Return the seconds without work ahead; None: until a call."""
        pending = self._pending
        if self.trouble is not None:
            return 0 if pending.hurried else max(0.0, self._retry_at - monotonic())
        if self.sync_is_due():
            return 0
        if self.tending or pending.nbytes >= self._settings.write_bytes:
            return 0
        if pending.oldest is not None:
            return max(0.0, pending.oldest + self._settings.fsync_interval - monotonic())
        pending.hurried = False
        return None

    def sync_is_due(self) -> bool:
        """Whether to fsync what is written, and what is pending, now."""
        if self.trouble is not None:
            return True
        oldest = self._pending.oldest
        if oldest is None:
            return False
        return (
            self._pending.hurried
            or self.unsynced_bytes >= self._settings.unsynced_bytes
            or monotonic() >= oldest + self._settings.fsync_interval
        )

    # Writing.

    def attempt(self, *, sync: bool) -> bool:
        """Write, and sync; return whether the disk took it. The caller has `work`."""
        try:
            with self._lock:
                until = self._pending.ticket
                if sync:
                    # A later `hurry` is for later changes.
                    self._pending.hurried = False
            self._write(until)
            if sync:
                self.sync()
        except OSError as error:
            self.failed(error)
            return False
        if sync and self.trouble is not None:
            self.trouble = None
            logger.warning("store %s: writing goes on", self._where)
            self._owner.on_trouble(None)
        return True

    def failed(self, error: OSError) -> None:
        """Record that the disk refused, and when to try again."""
        sentence = trouble(error, "write to", self._where)
        self.failures += 1
        with self._lock:
            new = sentence != self.trouble
            self.trouble = sentence
            self._pending.hurried = False
            self._retry_at = monotonic() + self._settings.retry_interval
        if new:
            logger.error(
                "store %s: %s. Nothing is lost: %d bytes wait in memory, and it is tried again",
                self._where,
                sentence,
                self._pending.nbytes,
            )
            self._owner.on_trouble(sentence)

    def _write(self, until: int) -> None:
        """Write the pending changes, up to a ticket.

        Raises:
            OSError: The disk refused; everything it did not take is still pending.
        """
        pending = self._pending
        while True:
            with self._lock:
                if not pending.changes or pending.changes[0].ticket > until:
                    return
            # First, as it may make written batches pending again.
            segment = self.segment_to_write()
            with self._lock:
                limit = self._settings.write_bytes if self.trouble is None else _SMALL_BYTES
                group = pending.take(until, limit)
            try:
                batch = Batch(segment.salt)
                encode(batch, group)
                written = self.log.append(batch, group[-1].ticket, group)
            except BaseException:  # Changes that are not written stay pending after any error.
                with self._lock:
                    pending.put_back(group)
                raise
            self._note(written)

    def append(self, batch: Batch) -> None:
        """Write a batch that has no pending changes.

        Raises:
            OSError: The disk refused.
        """
        self._note(self.log.append(batch, self.written, []))

    def _note(self, written: Written) -> None:
        """Record that a batch is written."""
        with self._lock:
            self.unsynced_bytes += written.size
            self._pending.nbytes -= sum(changes.nbytes for changes in written.group)
            self.written = written.ticket

    def segment_to_write(self) -> Segment:
        """Return the segment to append to, beginning a new one if there is none or it is full.

        Raises:
            OSError: The disk refused.
        """
        current = self.log.current
        if current is not None and current.size >= self._settings.segment_bytes:
            self.sync()
            self.log.end()
            if self.checkpoints.due(self._settings.segment_bytes):
                self.checkpoints.take(self.durable)
        return self.log.begin()

    def checkpoint(self) -> None:
        """Begin a new segment with the next write, and take a snapshot of everything before it."""
        try:
            self.sync()
            self.log.end()
            if not self.checkpoints.up_to_date:
                self.checkpoints.take(self.durable)
        except OSError as error:
            self.failed(error)

    # Durability.

    def sync(self) -> None:
        """Put everything written on the disk, and record that it is durable.

        Raises:
            OSError: The disk refused; everything not durable is pending again.
        """
        segment = self.log.current
        if segment is None or not self.log.unsynced:
            self._pending.synced()
            return
        try:
            self.log.fsync()
        except OSError:
            self._give_up_segment()
            raise
        ticket = self.durable
        unsynced = self.log.unsynced
        while unsynced:
            written = unsynced.popleft()
            self._apply(written, segment)
            ticket = max(ticket, written.ticket)
        self.tending = True
        self._pending.synced()
        if ticket > self.durable:
            self.durable = ticket
            self._owner.on_durable(ticket)

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
            self.unsynced_bytes -= written.size
            segment.synced += written.size
        # Readers know of the done messages already. There may be tens of thousands.
        for op in later:
            for some in op.pieces(_DONE_BATCH):
                if self._pending.asked_for:
                    sleep(_GIVE_WAY_SECONDS)
                with self._lock:
                    self._index.apply(some, segment)

    def _give_up_segment(self) -> None:
        """End the current segment where it was last durable; everything later is pending again."""
        with self._lock:
            for written in self.log.give_up():
                self._pending.put_back(written.group)
                self._pending.nbytes += sum(changes.nbytes for changes in written.group)
            self.unsynced_bytes = 0
            self.written = self.durable

    def pending_dones(self, queue_id: int, low: int, high: int) -> Intervals:
        """Return a queue's numbers in a range that are done, but not durably. Under the lock."""
        found = Intervals()
        groups = [*(written.group for written in self.log.unsynced), self._pending.changes]
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
