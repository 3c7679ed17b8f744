"""Checkpoints: when a snapshot of the index is due, and which snapshots are kept."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from ._names import snapshot_name
from ._sentences import logger, trouble
from ._snapshot import write_snapshot

if TYPE_CHECKING:
    from ._files import Files
    from ._index import Index
    from ._log import Log
    from ._pending import PendingChanges
    from ._recovery import Recoverer


class Checkpoints:
    """The last two snapshots of the index; for the thread that is the writer at the time.

    Attributes:
        size: Size of the last snapshot, in bytes.
        taken: Number of snapshots taken.
        failures: Number of times that the disk refused one.
    """

    def __init__(
        self, files: Files, index: Index, log: Log, pending: PendingChanges, recoverer: Recoverer
    ) -> None:
        self._files = files
        self._index = index
        self._log = log
        self._pending = pending
        # The segments from which to replay the log on top of each snapshot.
        self._kept = recoverer.snapshots
        self.size = recoverer.snapshot_bytes
        # The log's counter of bytes at the last snapshot.
        self._covered_bytes = -recoverer.replayed
        self.taken = self.failures = 0

    @property
    def floor(self) -> int:
        """The first segment needed to replay the log: that of the older of two snapshots."""
        return self._kept[-2] if len(self._kept) > 1 else 0

    @property
    def up_to_date(self) -> bool:
        """Whether the last snapshot covers every segment that there is."""
        return bool(self._kept) and self._kept[-1] >= self._log.next_segment

    def due(self, segment_bytes: int) -> bool:
        """Whether the log has grown enough since the last snapshot to take another one."""
        grown = self._log.written_bytes - self._covered_bytes
        return grown >= max(segment_bytes, 4 * self.size)

    def take(self, ticket: int) -> None:
        """Write a snapshot of the index; if the disk refuses, go on with the last one.

        Call it between two segments, when everything written is durable.

        Args:
            ticket: The highest durable ticket.
        """
        index = self._index
        pending: dict[int, list[tuple[int, int]]] = {}
        with index.lock:
            for changes in self._pending.changes:
                for queue_id, ranges in changes.dones.items():
                    pending.setdefault(queue_id, []).extend(ranges)
            done = {queue_id: queue.finished.copy() for queue_id, queue in index.durable.items()}
        for queue_id, ranges in pending.items():
            if queue_id in done:
                done[queue_id] = done[queue_id].without(ranges)
        number = self._log.next_segment
        try:
            self.size = write_snapshot(
                self._files, number, self._log.next_batch, ticket, index, done
            )
        except OSError as error:
            # The log has everything; so reading takes longer, and more room.
            self.failures += 1
            sentence = trouble(error, "write a snapshot of", self._files.where)
            logger.error("store %s: %s", self._files.where, sentence)
            return
        self.taken += 1
        self._covered_bytes = self._log.written_bytes
        self._kept.append(number)
        while len(self._kept) > 2:
            with suppress(OSError):  # It is removed the next time, or when the store is opened.
                self._files.unlink(snapshot_name(self._kept[0]))
            del self._kept[0]
