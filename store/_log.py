"""The end of the log: the segment being written, and its batches that are not durable yet."""

from __future__ import annotations

import logging
import random
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Final

import attrs

from ._index import Segment
from ._names import segment_name
from ._records import FILE_HEAD_SIZE, FileHead, file_head
from ._sentences import reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._changes import Changes
    from ._encode import Batch
    from ._files import File, Files
    from ._index import Index, Op

_logger = logging.getLogger(__name__)

#: Each time this many bytes are written, the disk is told to begin with them: it is busy while
#: more is encoded, and an fsync does not wait for all of 200 ms. As RocksDB's `bytes_per_sync`,
#: for which 1 MB is advised, and PostgreSQL's `checkpoint_flush_after`.
_WRITE_BACK_BYTES: Final = 1 << 20

#: A page that is not full is left out: it would be written twice.
_PAGE: Final = 4096


@attrs.define(slots=True, eq=False)
class Written:
    """A batch that is written, but not durable yet."""

    number: int
    ticket: int
    ops: list[Op]
    group: list[Changes]
    """Empty for a batch that compaction copied."""
    size: int


class Log:
    """Appends batches to segments; for the thread that is the writer at the time.

    Attributes:
        current: The segment that is appended to; None: the next batch begins one.
        next_segment: The number of the next segment.
        next_batch: The number of the next batch.
        unsynced: Batches written to the current segment since the last fsync.
        batches: Number of batches written.
        written_bytes: Their size.
        fsyncs: Number of successful fsyncs.
        fsync_seconds: Their total duration.
        slowest_fsync: The longest duration of one, in seconds.
    """

    def __init__(self, files: Files, index: Index, next_segment: int, next_batch: int) -> None:
        self._files = files
        self._index = index
        self._file: File | None = None
        self.current: Segment | None = None
        self.next_segment = next_segment
        self.next_batch = next_batch
        self.unsynced: deque[Written] = deque()
        # The end of the bytes of the current segment that the disk was told to begin with.
        self._begun = 0
        self.batches = self.written_bytes = self.fsyncs = 0
        self.fsync_seconds = self.slowest_fsync = 0.0

    def begin(self) -> Segment:
        """Return the current segment, making one if needed.

        Raises:
            OSError: The disk refused.
        """
        if self.current is not None:
            return self.current
        number = self.next_segment
        # The recovery relies on it: header and name are durable before anything else is written.
        head = FileHead(random.getrandbits(32), number, self.next_batch)
        file = self._files.create(segment_name(number))
        try:
            file.write((file_head(head),), 0)
            file.fsync()
            self._files.fsync_dir()
        except OSError:
            file.close()
            raise
        segment = Segment(number, head.salt, head.batch, FILE_HEAD_SIZE, FILE_HEAD_SIZE)
        with self._index.lock:
            self._index.segments[number] = segment
        self.next_segment += 1
        self.current, self._file = segment, file
        self._begun = 0
        return segment

    def append(self, batch: Batch, ticket: int, group: list[Changes]) -> Written:
        """Write a batch to the current segment. It overwrites what a failed write left there.

        Raises:
            OSError: The disk refused.
        """
        segment = self.current
        assert segment is not None
        assert self._file is not None
        written = Written(self.next_batch, ticket, batch.ops, group, batch.size)
        self._file.write(batch.finish(written.number, ticket, segment.synced), segment.size)
        self.next_batch += 1
        self.batches += 1
        self.written_bytes += written.size
        for op in written.ops:
            op.offset += segment.size
        with self._index.lock:
            segment.size += written.size
            self.unsynced.append(written)
        if segment.size - self._begun > _WRITE_BACK_BYTES:
            end = segment.size - segment.size % _PAGE
            self._file.write_back(self._begun, end)
            self._begun = end
        return written

    def fsync(self) -> None:
        """Put all of the current segment on the disk; the caller empties `unsynced`.

        Raises:
            OSError: The disk refused. Give up what was written: its state is unknown.
        """
        assert self._file is not None
        started = monotonic()
        self._file.fsync()
        seconds = monotonic() - started
        self.fsyncs += 1
        self.fsync_seconds += seconds
        self.slowest_fsync = max(self.slowest_fsync, seconds)
        assert self.current is not None
        self._begun = self.current.size - self.current.size % _PAGE

    def give_up(self) -> Iterator[Written]:
        """End the current segment where it was last durable; yield the rest, last first."""
        segment = self.current
        assert segment is not None
        assert self._file is not None
        while self.unsynced:
            written = self.unsynced.pop()
            self.next_batch = written.number
            yield written
        segment.size = segment.synced
        try:
            self._file.truncate(segment.synced)
        except OSError as error:
            # The next segment's header shows where this one ends.
            _logger.debug("store %s: %s", self._files.where, reason(error))
        self.end()

    def end(self) -> None:
        """Let the next batch begin a segment. Everything written has to be durable."""
        if self._file is not None:
            self._file.close()
        self._file = self.current = None
