"""Recovery: rebuilding the index from the files of a store, with torn writes and damage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from ._errors import CorruptRecordError, Damage
from ._index import Index, Segment
from ._names import (
    QUARANTINE,
    segment_name,
    segment_number,
    snapshot_name,
    snapshot_number,
)
from ._records import (
    DECLARE,
    DONE,
    DROP,
    FILE_HEAD_SIZE,
    MOVE,
    PUT,
    VALUES,
    VERSION,
    FileHead,
    Head,
    find_begin,
    read_file_head,
    read_head,
)
from ._scan import Bad, ScannedBatch, salvage, scan_batch
from ._snapshot import read_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._files import Files

Progress: TypeAlias = "Callable[[str, int, int], None]"
"""Called during long work: its description, the amount done, and the amount in all."""

MARK: Final = f"clearfunds store, format {VERSION}\n".encode()


@attrs.frozen(slots=True)
class Recovery:
    """The result of opening a store."""

    segments: int
    """Number of segments."""
    replayed_bytes: int
    """Bytes of the log that were read; the part that a snapshot covers is not."""
    batches: int
    """Batches in them."""
    torn_bytes: int
    """Bytes of incomplete batches that were never confirmed; they were cut off."""
    damages: tuple[Damage, ...]
    """Everything that was durable and is unreadable."""


class Recoverer:
    """Reads a store, once."""

    def __init__(
        self, files: Files, progress: Progress | None = None, *, repair: bool = True
    ) -> None:
        self.files = files
        self.progress = progress
        self.repair = repair
        """Cut torn ends off and put bad bytes aside, rather than only look."""
        self.index = Index()
        self.damages: list[Damage] = []
        self.batches = self.torn = self.replayed = 0
        self.ticket = 0
        self.next_batch = 1
        self.next_segment = 1
        #: The numbers of the whole snapshots, oldest first.
        self.snapshots: list[int] = []
        self.snapshot_bytes = 0

    def recover(self) -> Recovery:
        """Read everything.

        Raises:
            OSError: A file cannot be read.
            StoreFormatError: The store is of another version.
        """
        sizes = self.files.list()
        numbers = sorted(n for n in map(segment_number, sizes) if n is not None)
        start = self._load_snapshot(sizes)
        replayed = [number for number in numbers if number >= start]
        total = sum(sizes[segment_name(number)] for number in replayed)
        heads = {number: self._read_file_head(number) for number in numbers}
        for number in set(self.index.segments) - set(numbers):
            # Removed, though after the snapshot; or lost: messages that need it will show it.
            del self.index.segments[number]
        for number in numbers:
            if number < start:
                self._old_segment(number, heads[number], sizes[segment_name(number)])
        done = 0
        for place, number in enumerate(replayed):
            self._tell("reading the log", done, total)
            self._replay(number, heads[number], self._next_base(replayed[place + 1 :], heads))
            done += sizes[segment_name(number)]
        if total:
            self._tell("reading the log", total, total)
        self.next_segment = max([start - 1, *numbers, 0]) + 1
        self._look_for_what_is_missing()
        return Recovery(
            len(self.index.segments), self.replayed, self.batches, self.torn, tuple(self.damages)
        )

    def _tell(self, what: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(what, done, total)

    def _load_snapshot(self, sizes: dict[str, int]) -> int:
        """Load the newest whole snapshot; return the segment from which to replay."""
        numbers = sorted(n for n in map(snapshot_number, sizes) if n is not None)
        while numbers:
            number = numbers[-1]
            name = snapshot_name(number)
            self._tell("reading the index", 0, sizes[name])
            file = self.files.open(name)
            try:
                data = file.pread(sizes[name], 0)
            finally:
                file.close()
            try:
                snapshot = read_snapshot(data)
            except CorruptRecordError as error:
                aside = self._quarantine(name)
                what = f"{error}; an older snapshot, and more of the log, is read in its place"
                self.damages.append(Damage(name, 0, len(data), what, quarantined=aside))
                numbers.pop()
                continue
            self.index = snapshot.index
            self.ticket, self.next_batch = snapshot.ticket, snapshot.batch
            self.snapshots = numbers
            self.snapshot_bytes = len(data)
            return snapshot.number
        return 1

    def _quarantine(self, name: str) -> str | None:
        if not self.repair:
            return None
        aside = f"{QUARANTINE}/{name}"
        self.files.mkdir(QUARANTINE)
        self.files.rename(name, aside)
        return aside

    @staticmethod
    def _next_base(later: list[int], heads: dict[int, FileHead | None]) -> int | None:
        for number in later:
            head = heads[number]
            if head is not None:
                return head.batch
        return None

    def _read_file_head(self, number: int) -> FileHead | None:
        file = self.files.open(segment_name(number))
        try:
            return read_file_head(file.pread(FILE_HEAD_SIZE, 0))
        except CorruptRecordError:
            return None
        finally:
            file.close()

    def _old_segment(self, number: int, head: FileHead | None, size: int) -> None:
        segment = self.index.segments.get(number)
        if segment is not None:
            segment.size = segment.synced = min(size, segment.size)
        else:
            # Nothing in it is needed; the process ended before it removed the file.
            base = 0 if head is None else head.batch
            self.index.segments[number] = Segment(number, 0, base, size, size)

    def _replay(self, number: int, head: FileHead | None, next_base: int | None) -> None:
        name = segment_name(number)
        file = self.files.open(name, write=self.repair)
        try:
            data = file.pread(file.size(), 0)
            self.replayed += len(data)
            if head is None:
                self._headless(name, data, next_base)
                return
            if head.batch > self.next_batch:
                self._damage(
                    name,
                    0,
                    0,
                    f"batches {self.next_batch} to {head.batch - 1} before it are missing",
                )
            self.next_batch = head.batch
            segment = Segment(number, head.salt, head.batch, len(data), len(data))
            self.index.segments[number] = segment
            end = self._replay_batches(segment, data, next_base)
            if end < len(data):
                if next_base is None:
                    self.torn += len(data) - end
                segment.size = segment.synced = end
                if self.repair:
                    file.truncate(end)
            if self.repair:
                # When a process has ended, this may still be in memory only.
                file.fsync()
        finally:
            file.close()

    def _headless(self, name: str, data: bytes, next_base: int | None) -> None:
        # The header is durable before anything else is written: without it nothing was written.
        if len(data) <= FILE_HEAD_SIZE or not any(data[:FILE_HEAD_SIZE]):
            self.torn += len(data)
            if self.repair:
                self.files.unlink(name)
            return
        aside = self._quarantine(name)
        until = "" if next_base is None else f" (batches {self.next_batch} to {next_base - 1})"
        what = f"its header is unreadable, so all that it had is lost{until}"
        self.damages.append(Damage(name, 0, len(data), what, quarantined=aside))
        if next_base is not None:
            self.next_batch = next_base

    def _replay_batches(self, segment: Segment, data: bytes, next_base: int | None) -> int:
        """Take in the batches; return the end of the good ones."""
        at = FILE_HEAD_SIZE
        while at < len(data):
            if next_base is not None and self.next_batch >= next_base:
                return at  # Given up after a failed fsync: it was written anew.
            try:
                batch = scan_batch(segment.salt, data, at)
            except CorruptRecordError as error:
                bad = str(error)
            else:
                if batch.number < self.next_batch:
                    bad = "an older batch stands where a newer one belongs"
                elif batch.bad and not self._durable(segment.salt, data, at, next_base):
                    return at
                else:
                    self._take(segment, data, batch)
                    at += batch.length
                    continue
            if not self._durable(segment.salt, data, at, next_base):
                return at
            after = find_begin(segment.salt, data, at + 1)
            end = len(data) if after is None else after
            self._salvage(segment, data, at, end, bad)
            at = end
        return len(data)

    def _durable(self, salt: int, data: bytes, at: int, next_base: int | None) -> bool:
        """Whether the batch at `at` had been fsynced, according to a later batch or segment."""
        if next_base is not None:
            return self.next_batch < next_base
        place = find_begin(salt, data, at + 1)
        while place is not None:
            if read_head(salt, data, place).items > at:
                return True
            place = find_begin(salt, data, place + 1)
        return False

    def _take(self, segment: Segment, data: bytes, batch: ScannedBatch) -> None:
        name = segment_name(segment.number)
        if batch.number > self.next_batch:
            self._damage(
                name,
                batch.offset,
                0,
                f"batches {self.next_batch} to {batch.number - 1} are missing",
            )
        for op in batch.ops:
            self.index.replay(op, segment)
        # Afterwards: the numbers of lost messages are not given again.
        for bad in batch.bad:
            self._bad(name, data, bad)
        self.next_batch = batch.number + 1
        self.ticket = max(self.ticket, batch.ticket)
        self.batches += 1

    def _salvage(self, segment: Segment, data: bytes, at: int, end: int, what: str) -> None:
        name = segment_name(segment.number)
        ops, bads = salvage(segment.salt, data, at, end, what)
        for op in ops:
            self.index.replay(op, segment)
        for bad in bads:
            self._bad(name, data, bad)

    def _bad(self, name: str, data: bytes, bad: Bad) -> None:
        what, head = bad.what, bad.head
        if head is not None and head.kind not in (PUT, MOVE):
            what = f"{what}; {_LOST.get(head.kind, 'an operation is lost')}"
        self._damage(name, bad.offset, bad.length, what, data, head=head)

    def _damage(
        self,
        name: str,
        offset: int,
        length: int,
        what: str,
        data: bytes | None = None,
        *,
        head: Head | None = None,
    ) -> None:
        aside: str | None = None
        if data is not None and length and self.repair:
            aside = put_aside(self.files, name, offset, data[offset : offset + length])
        damage = Damage(name, offset, length, what, quarantined=aside)
        if head is not None and head.queue:
            queue = self.index.by_id.get(head.queue)
            damage = attrs.evolve(
                damage, queue_id=head.queue, queue=None if queue is None else queue.name
            )
            if head.kind in (PUT, DONE):
                damage = attrs.evolve(damage, first=head.first, last=head.last)
            if head.kind == PUT:
                damage = attrs.evolve(damage, count=head.items)
                if queue is not None:
                    queue.next_seq = max(queue.next_seq, head.last + 1)
        self.damages.append(damage)

    def _look_for_what_is_missing(self) -> None:
        """Give up messages in files that are gone or too short."""
        index = self.index
        lost: dict[tuple[int, int], Damage] = {}
        for queue in list(index.durable.values()):
            for extent in list(queue.extents):
                segment = index.segments.get(extent.segment)
                if segment is not None and extent.offset + extent.length <= segment.size:
                    continue
                count, size = queue.live_count, queue.live_bytes
                found = queue.finish([(extent.first, extent.last)])
                for first, last in found:
                    freed, gone = queue.extents.done(first, last)
                    index.free(freed)
                    for low, high in gone:
                        queue.finished.remove(low, high)
                key = (queue.id, extent.segment)
                before = lost.get(key)
                first, length = extent.first, extent.length
                count, size = count - queue.live_count, size - queue.live_bytes
                if before is not None:
                    first, length = before.first or 0, before.length + length
                    count, size = before.count + count, before.size + size
                lost[key] = Damage(
                    segment_name(extent.segment),
                    extent.offset if before is None else before.offset,
                    length,
                    "it is gone" if segment is None else "it is shorter than it was",
                    *(queue.id, queue.name, first, extent.last, count, size),
                )
        self.damages += [damage for damage in lost.values() if damage.count]


_LOST: Final = {
    DONE: "acknowledgements are lost: those messages come back",
    VALUES: "values are lost",
    DECLARE: "a queue's declaration is lost",
    DROP: "a queue that was dropped comes back",
}


def is_ours(name: str) -> bool:
    """Whether a file has a name that only stores use."""
    return segment_number(name) is not None or snapshot_number(name) is not None


def put_aside(files: Files, name: str, offset: int, data: bytes) -> str:
    """Keep unreadable bytes in a file, where somebody can look at them."""
    files.mkdir(QUARANTINE)
    aside = f"{QUARANTINE}/{name}.{offset}"
    file = files.create(aside)
    try:
        file.write((data,), 0)
        file.fsync()
    finally:
        file.close()
    return aside
