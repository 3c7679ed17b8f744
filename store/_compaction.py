"""Compaction: which segments are removed or copied forward, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ._encode import Batch
from ._errors import CorruptRecordError, StoreDiskError
from ._mover import BadExtentError, Mover
from ._names import segment_name
from ._sentences import logger

if TYPE_CHECKING:
    from ._handles import Handles
    from ._index import Index
    from ._losses import Losses
    from ._recovery import Progress
    from ._settings import StoreSettings
    from ._writer import Writer

#: Under load, dead bytes are freed from this many segments' worth on, if they are more than half.
_DEAD_SEGMENTS: Final = 4

#: Dead bytes that do not justify another segment to free them, in a compaction.
_LITTLE: Final = 4096


class Compactor:
    """Frees dead bytes of the log, a bounded step at a time, in the writer's thread.

    Attributes:
        compacted_segments: Segments copied forward.
        compacted_bytes: Bytes copied for them.
        deleted_segments: Segments removed.
    """

    def __init__(
        self,
        where: str,
        settings: StoreSettings,
        index: Index,
        handles: Handles,
        writer: Writer,
        losses: Losses,
        progress: Progress | None,
    ) -> None:
        self._where = where
        self._settings = settings
        self._index = index
        self._handles = handles
        self._writer = writer
        self._checkpoints = writer.checkpoints
        self._losses = losses
        self._progress = progress
        self._mover: Mover | None = None
        self._stuck: set[int] = set()
        self.compacted_segments = self.compacted_bytes = self.deleted_segments = 0

    def compact(self) -> None:
        """See `Store.compact`.

        Raises:
            StoreDiskError: The disk refused.
        """
        writer = self._writer
        with writer.work:
            if not writer.attempt(sync=True):
                raise StoreDiskError(writer.trouble)
            # A segment can go when the older of two snapshots covers it.
            for _ in range(3):
                self._have_something_since()
                writer.checkpoint()
                writer.tending = True
                while writer.tending:
                    if not self.tend():
                        raise StoreDiskError(writer.trouble)

    def _have_something_since(self) -> None:
        """Write an empty batch behind the last snapshot, if a segment waits for a newer snapshot.

        A segment has one snapshot, so without new messages the store would get no newer one.
        """
        if not self._checkpoints.up_to_date:
            return
        floor = self._checkpoints.floor
        segments = self._index.segments.items()
        waiting = [each.size for number, each in segments if number >= floor and each.live <= 0]
        if sum(waiting) <= _LITTLE:
            return
        try:
            segment = self._writer.segment_to_write()
            self._writer.append(Batch(segment.salt))
            self._writer.sync()
        except OSError as error:
            self._writer.failed(error)

    def tend(self) -> bool:
        """See `Store.tend`."""
        writer = self._writer
        with writer.work:
            if writer.trouble is not None:
                writer.tending = False
                return False
            try:
                self._reclaim()
                if self._mover is None:
                    self._mover = self._choose()
                if self._mover is None:
                    writer.tending = False
                else:
                    self._copy(self._mover)
            except OSError as error:
                writer.tending = False
                writer.failed(error)
                return False
            return True

    def falls_behind(self) -> bool:
        """Whether too much is dead to wait until the writer is idle."""
        if not self._writer.tending:
            return False
        segments = self._index.segments.values()
        dead = sum(segment.size - segment.live for segment in segments)
        return dead > _DEAD_SEGMENTS * self._settings.segment_bytes and dead * 2 > sum(
            segment.size for segment in segments
        )

    def _reclaim(self) -> None:
        """Remove the segments that nothing needs."""
        segments = self._index.segments
        floor = self._checkpoints.floor
        waiting = 0
        for number, segment in list(segments.items()):
            if segment.live > 0 or segment is self._writer.log.current:
                continue
            if number >= floor:
                waiting += segment.size
                continue
            self._handles.remove(segment_name(number))
            with self._index.lock:
                del segments[number]
            self.deleted_segments += 1
        # They wait for newer snapshots, and nothing else may cause one for a long time.
        if waiting >= 2 * self._settings.segment_bytes:
            self._writer.checkpoint()

    def _choose(self) -> Mover | None:
        """Choose the segment to copy forward: the one with the fewest live bytes."""
        floor = self._checkpoints.floor
        found = [
            segment
            for number, segment in self._index.segments.items()
            if number < floor
            and number not in self._stuck
            and 0 < segment.live < segment.size * self._settings.compact_below
        ]
        if not found:
            return None
        segment = min(found, key=lambda segment: segment.live / segment.size)
        name = segment_name(segment.number)

        def read(size: int, offset: int) -> bytes:
            with self._handles.use(name) as file:
                return file.pread(size, offset)

        return Mover(self._index, segment, read, self._writer.pending_dones)

    def _copy(self, mover: Mover) -> None:
        """Copy a piece forward.

        Raises:
            OSError: The disk refused.
        """
        number = mover.segment.number
        writer = self._writer
        # First: acknowledgements that are not durable yet would be applied too early.
        writer.sync()
        segment = writer.segment_to_write()
        batch = Batch(segment.salt)
        try:
            more = mover.step(batch, self._settings.compact_step_bytes)
        except BadExtentError as error:
            self._mover = None
            if not self._losses.give_up(error.queue, error.extent, str(error)):
                self._stuck.add(number)
            writer.attempt(sync=True)
            return
        except (CorruptRecordError, FileNotFoundError) as error:
            logger.error("store %s: %s: %s", self._where, segment_name(number), error)
            self._mover = None
            self._stuck.add(number)
            return
        if not more:
            self._mover = None
            # All that was live has been copied. If the count says otherwise, it is wrong: leave the
            # segment, or it would be copied again and again. No test can bring that about.
            if mover.segment.live:  # pragma: no cover
                self._stuck.add(number)
            else:
                self.compacted_segments += 1
            return
        writer.append(batch)
        writer.sync()
        self.compacted_bytes += batch.size
        if self._progress is not None:
            done = mover.total - mover.segment.live
            self._progress(f"copying {segment_name(number)} forward", done, mover.total)
