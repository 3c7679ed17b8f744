"""Read-only inspection of a store."""

from __future__ import annotations

import errno
from itertools import chain
from typing import TYPE_CHECKING

import attrs

from ._decode import columns_of, records_of, runs_of
from ._errors import CorruptRecordError, Damage, StoreDiskError, StoreFormatError, StoreLockedError
from ._names import LOCK, segment_name
from ._queue import OnDisk
from ._records import read_head, read_payload
from ._recovery import MARK, Recoverer, is_ours
from ._sentences import trouble

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType
    from typing import Self

    from ._files import Files
    from ._queue import Record, StoredQueue
    from ._recovery import Progress, Recovery


@attrs.frozen(slots=True)
class Verification:
    """The result of reading everything in a store."""

    recovery: Recovery
    """The result of opening it."""
    queues: int
    """Number of queues."""
    messages: int
    """Readable messages."""
    message_bytes: int
    """Their size, in bytes."""
    read_bytes: int
    """Bytes of segments read for that."""
    damages: tuple[Damage, ...]
    """Everything unreadable, including what the recovery found."""


class Inspection:
    """A store that nobody has open, read without changing anything: use it in a `with` block.

    It stays locked for that time, where the file system allows it.

    Attributes:
        recovery: The result of opening it; nothing is cut off or put aside as `Store.open` would.
        damages: Everything unreadable that was found so far.

    Raises:
        StoreLockedError: A process has it open.
        StoreFormatError: It is no store, or a store of another version.
        StoreDiskError: It cannot be read.
    """

    def __init__(self, files: Files, progress: Progress | None = None) -> None:
        self._files = files
        self._progress = progress
        try:
            self._lock()
            recoverer = Recoverer(files, progress, repair=False)
            self.recovery = recoverer.recover()
        except OSError as error:
            files.unlock()
            raise StoreDiskError(trouble(error, "read", files.where)) from error
        except BaseException:
            files.unlock()
            raise
        self._index = recoverer.index
        self.damages: list[Damage] = list(self.recovery.damages)
        self.read_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._files.unlock()

    def _lock(self) -> None:
        there = self._files.list()
        if LOCK not in there:
            if not any(map(is_ours, there)):
                msg = f"{self._files.where} is not a store: there is no file {LOCK} in it"
                raise StoreFormatError(msg)
            return  # A relay would make it anew; so no relay has it open.
        file = self._files.open(LOCK)
        try:
            mark = file.pread(4096, 0)
        finally:
            file.close()
        if mark != MARK and mark.strip(b"\0") and not MARK.startswith(mark):
            msg = f"{self._files.where}: {LOCK} says {mark[:60]!r}, which is not of this version"
            raise StoreFormatError(msg)
        try:
            self._files.lock(LOCK)
        except BlockingIOError as error:
            msg = f"the store in {self._files.where} is in use: end the relay that has it open"
            raise StoreLockedError(msg) from error
        except OSError as error:
            # On a read-only file system nobody writes.
            if error.errno not in (errno.EROFS, errno.EACCES):
                raise

    @property
    def queues(self) -> Mapping[str, StoredQueue]:
        """The queues by name."""
        return self._index.by_name

    @property
    def values(self) -> Mapping[str, bytes]:
        """The keys with their values."""
        return self._index.values

    def records(self, queue: StoredQueue) -> Iterator[Record]:
        """Yield the messages of a queue that are not done, in order; note the unreadable ones.

        Raises:
            StoreDiskError: The disk fails.
        """
        at = 0
        while plan := queue.plan(at, 1 << 20, 1 << 20):
            for piece in plan:
                assert isinstance(piece, OnDisk)
                yield from self._read(queue, piece)
                at = piece.ranges[-1][1] + 1

    def _read(self, queue: StoredQueue, piece: OnDisk) -> list[Record]:
        extent = piece.extent
        segment = self._index.segments[extent.segment]
        bad: set[int] = set()
        bodies: dict[int, bytes] = {}
        for body in piece.bodies:
            try:
                bodies[body] = self._body(body)
            except CorruptRecordError:
                bad.add(body)
                bodies[body] = b""
        data = self._bytes(extent.segment, extent.length, extent.offset)
        records: list[Record] = []
        for head, run, payload in runs_of(segment.salt, queue.id, extent, data)[0]:
            columns = columns_of(head, run, payload, piece.ranges, bodies)
            found = list(chain.from_iterable(map(records_of, columns)))
            if bad and run.shared is not None:
                spoilt = {
                    run.first + (at if run.offsets is None else run.offsets[at])
                    for at, body in enumerate(run.shared)
                    if body in bad
                }
                found = [record for record in found if record.seq not in spoilt]
            records += found
        if len(records) < piece.number:
            missing = piece.number - len(records)
            self.damages.append(
                Damage(
                    segment_name(extent.segment),
                    extent.offset,
                    extent.length,
                    "a checksum is wrong",
                    *(queue.id, queue.name, piece.ranges[0][0], piece.ranges[-1][1], missing),
                )
            )
        return records

    def _body(self, body: int) -> bytes:
        place = self._index.bodies.where(body)
        if place is None or place.segment not in self._index.segments:
            msg = "it is gone"
            raise CorruptRecordError(msg)
        data = self._bytes(place.segment, place.length, place.offset)
        return read_payload(read_head(self._index.segments[place.segment].salt, data, 0), data, 0)

    def _bytes(self, number: int, size: int, offset: int) -> bytes:
        try:
            file = self._files.open(segment_name(number))
            try:
                data = file.pread(size, offset)
            finally:
                file.close()
        except OSError as error:
            raise StoreDiskError(trouble(error, "read", self._files.where)) from error
        self.read_bytes += len(data)
        return data

    def verify(self) -> Verification:
        """Read every message that is not done, and check every checksum on the way.

        Raises:
            StoreDiskError: The disk fails.
        """
        total = sum(queue.live_count for queue in self.queues.values())
        messages = size = told = 0
        for queue in self.queues.values():
            for record in self.records(queue):
                messages += 1
                size += record.nbytes
                if messages - told >= 10_000 and self._progress is not None:
                    told = messages
                    self._progress("reading messages", messages, total)
        if total and self._progress is not None:
            self._progress("reading messages", total, total)
        return Verification(
            self.recovery, len(self.queues), messages, size, self.read_bytes, tuple(self.damages)
        )
