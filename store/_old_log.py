"""The log of version 0.1.0's stores, read for the last time (`_upgrade`).

That store was a log of its own: segments of batches of records, and snapshots of its index, from
which on the log was replayed. Everything is little-endian; a head and a payload have a CRC-32 each.

A snapshot, or a record of the log, says where messages are: an extent, which is some bytes of a
segment with records of its queue (and of others). Compaction moves messages into a new extent,
which takes the place of everything between two numbers.
"""

from __future__ import annotations

import re
import struct
from array import array
from itertools import accumulate
from operator import add
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

import attrs

from ._ranges import merged, missing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OLD_FILE: Final = re.compile(r"(segment|snapshot)-(\d{10})\.(?:log|idx)")
"""The names of its files."""

_MAGIC: Final = b"\xc5\xf5"
_HEAD: Final = struct.Struct("<2sBBIQQIII")
_HEAD_BYTES: Final = _HEAD.size + 4
_FILE_HEAD: Final = struct.Struct("<8sIIQQ")
_FILE_HEAD_BYTES: Final = 128  # Two copies.

_BEGIN, _PUT, _MOVE, _BODY, _MOVE_BODY, _DONE, _VALUES, _DECLARE, _DROP = range(1, 10)
_EXTENTS, _BODIES, _SEGMENTS, _END = range(10, 14)

_GAPS: Final = 1
_HEADERS_ALIKE: Final = 2
_BODIES_ALIKE: Final = 4
_SIZES: Final = 8
_SHARED: Final = 16

_ABSENT: Final = 0xFFFF_FFFF
"""In place of the length of a value: the key is deleted."""

_JOIN_BYTES: Final = 64 << 10


class CorruptOldError(Exception):
    """Some bytes are not what was written."""


class _Head(NamedTuple):
    kind: int
    flags: int
    queue: int
    first: int
    last: int
    items: int
    length: int
    checksum: int


class _Extent(NamedTuple):
    first: int
    last: int
    segment: int
    offset: int
    length: int


class OldMessage(NamedTuple):
    """A message that is not done."""

    seq: int
    header: bytes
    body: bytes | int
    """Or the number of a body that queues share (`OldLog.body`)."""
    size: int
    """Bytes that it counts for."""


@attrs.define(eq=False)
class OldQueue:
    """A queue.

    Attributes:
        ident: Its number.
        name: Its name.
        meta: The bytes that its owner gave it.
        next_seq: The lowest number that none of its messages has had.
    """

    ident: int
    name: str
    meta: bytes
    next_seq: int = 0
    extents: list[_Extent] = attrs.field(factory=list[_Extent])
    finished: list[tuple[int, int]] = attrs.field(factory=list[tuple[int, int]])

    def add(self, extent: _Extent) -> None:
        """Add an extent with higher numbers than all others."""
        before = self.extents[-1] if self.extents else None
        if before is not None and before.segment == extent.segment:
            length = extent.offset + extent.length - before.offset
            if length <= _JOIN_BYTES:
                self.extents[-1] = before._replace(last=extent.last, length=length)
                return
        self.extents.append(extent)

    def move(self, extent: _Extent, low: int, high: int) -> None:
        """Let an extent take the place of everything from `low` to `high`."""
        kept: list[_Extent] = []
        for one in self.extents:
            if one.first < low:
                kept.append(one._replace(last=min(one.last, low - 1)))
            if one.last > high:
                kept.append(one._replace(first=max(one.first, high + 1)))
        self.extents = sorted([*kept, extent])

    def finish(self, ranges: list[tuple[int, int]]) -> None:
        """Note that messages are done."""
        for first, last in ranges:
            if self.finished and self.finished[-1][1] + 1 == first:
                self.finished[-1] = (self.finished[-1][0], last)
            else:
                self.finished.append((first, last))
            self.next_seq = max(self.next_seq, last + 1)


class OldLog:
    """What a store of version 0.1.0 has.

    Nothing is written. What is torn at the end was never confirmed, and is left out; anything else
    that cannot be read is a damage, and the rest is there.

    Attributes:
        queues: The queues, by number.
        values: The keys with their values.
        damages: A sentence for each damage.
    """

    def __init__(self, directory: Path) -> None:
        """Read all but the messages.

        Raises:
            OSError: The disk does not let it.
        """
        self.queues: dict[int, OldQueue] = {}
        self.values: dict[str, bytes] = {}
        self.damages: list[str] = []
        self._bodies: dict[int, tuple[int, int, int]] = {}
        self._salts: dict[int, int] = {}
        self._directory = directory
        found = [match for path in directory.iterdir() if (match := OLD_FILE.fullmatch(path.name))]
        snapshots = sorted(int(match[2]) for match in found if match[1] == "snapshot")
        segments = sorted(int(match[2]) for match in found if match[1] == "segment")
        start, batch = self._load_snapshot(snapshots)
        bases: dict[int, int] = {}
        for number in segments:
            with self._segment(number).open("rb") as file:
                head = file.read(_FILE_HEAD_BYTES)
            try:
                self._salts[number], _, bases[number] = _file_head(head)
            except CorruptOldError as error:
                if any(head):  # Without a header nothing else was written.
                    self.damages.append(f"{self._segment(number).name}: {error}")
        replayed = [number for number in sorted(bases) if number >= start]
        for number, following in zip(replayed, [*replayed, None][1:], strict=True):
            limit = None if following is None else bases[following]
            batch = self._replay(number, max(batch, bases[number]), limit)

    def messages(self, queue: OldQueue) -> Iterator[OldMessage]:
        """Yield the messages of a queue that are not done, in order.

        Raises:
            OSError: The disk does not let it.
        """
        finished = merged(queue.finished)
        for extent in queue.extents:
            wanted = missing(finished, extent.first, extent.last)
            if not wanted:
                continue
            name = self._segment(extent.segment).name
            salt = self._salts.get(extent.segment)
            if salt is None:
                self.damages.append(
                    f"{queue.name}: messages of {extent.first}..{extent.last} were in {name}, which"
                    " is not there"
                )
                continue
            data = self._bytes(extent.segment, extent.offset, extent.length)
            for at, head in _heads(salt, data):
                if head.kind not in (_PUT, _MOVE) or head.queue != queue.ident:
                    continue
                try:
                    yield from _cut(head, _payload(head, data, at), wanted)
                except CorruptOldError as error:
                    self.damages.append(
                        f"{queue.name}: messages of {head.first}..{head.last}, in {name} at"
                        f" {extent.offset + at}: {error}"
                    )

    def body(self, ident: int) -> bytes:
        """Return a body that queues share.

        Raises:
            CorruptOldError: It cannot be read.
            OSError: The disk does not let it.
        """
        segment, offset, length = self._bodies.get(ident, (0, 0, 0))
        salt = self._salts.get(segment)
        if salt is None:
            msg = "its segment is not there"
            raise CorruptOldError(msg)
        data = self._bytes(segment, offset, length)
        return _payload(_read_head(salt, data, 0), data, 0)

    def _segment(self, number: int) -> Path:
        return self._directory / f"segment-{number:010d}.log"

    def _bytes(self, segment: int, offset: int, length: int) -> bytes:
        with self._segment(segment).open("rb") as file:
            file.seek(offset)
            return file.read(length)

    def _load_snapshot(self, numbers: list[int]) -> tuple[int, int]:
        """Take in the newest snapshot that is whole; return its segment and batch."""
        for number in reversed(numbers):
            path = self._directory / f"snapshot-{number:010d}.idx"
            data = path.read_bytes()
            try:
                self._read_snapshot(data)
            except CorruptOldError as error:
                self.damages.append(f"{path.name}: {error}; an older one is read in its place")
                self.queues, self.values, self._bodies = {}, {}, {}
                continue
            _, segment, batch = _file_head(data)
            return segment, batch
        return 1, 1

    def _read_snapshot(self, data: bytes) -> None:
        salt, _, _ = _file_head(data)
        at, count = _FILE_HEAD_BYTES, 0
        while True:
            head = _read_head(salt, data, at)
            payload = _payload(head, data, at)
            at += _HEAD_BYTES + head.length
            if head.kind == _END:
                break
            count += 1
            if head.kind == _DECLARE:
                self._declare(head.queue, payload).next_seq = head.first
            elif head.kind == _EXTENTS:
                # Five columns of eight: what the others have stands in the segments, too.
                rows = zip(*_columns(payload, "QQIII", head.items), strict=True)
                self.queues[head.queue].extents += map(_Extent._make, rows)
            elif head.kind == _DONE:
                self.queues[head.queue].finish(_pairs(payload))
            elif head.kind == _BODIES:
                # Their number stands nowhere: places of bodies that are gone are among them.
                columns = _columns(payload, "QIIII", len(payload) // struct.calcsize("<QIIII"))
                for ident, *place in zip(*columns[:4], strict=True):
                    self._bodies[ident] = (place[0], place[1], place[2])
            elif head.kind == _VALUES:
                self._set(payload)
        if head.items != count:
            msg = f"{count} records where {head.items} belong"
            raise CorruptOldError(msg)

    def _replay(self, number: int, batch: int, limit: int | None) -> int:
        """Take in the batches of a segment from `batch` up to `limit`; return the next."""
        salt = self._salts[number]
        path = self._segment(number)
        data = path.read_bytes()
        at = _FILE_HEAD_BYTES
        # What an fsync refused was written once more, into the next segment.
        while at < len(data) and (limit is None or batch < limit):
            try:
                begin, records = _read_batch(salt, data, at)
                if begin.first < batch:
                    msg = "an older batch stands where a newer one belongs"
                    raise CorruptOldError(msg)
            except CorruptOldError as error:
                following = _find_batch(salt, data, at + 1)
                if following is None and limit is None:
                    break  # The torn end of what was never confirmed.
                self.damages.append(f"{path.name} at {at}: {error}")
                at = len(data) if following is None else following
                continue
            for place, head in records:
                self._apply(head, _payload(head, data, place), number, place)
            batch = begin.first + 1
            at += _HEAD_BYTES + begin.length
        return batch if limit is None else limit

    def _apply(self, head: _Head, payload: bytes, segment: int, place: int) -> None:
        length = _HEAD_BYTES + head.length
        extent = _Extent(head.first, head.last, segment, place, length)
        queue = self.queues.get(head.queue)
        if head.kind == _DECLARE:
            self._declare(head.queue, payload)
        elif head.kind == _PUT:
            if queue is None:
                # Its declaration is lost.
                queue = self._declared(head.queue, f"nameless-{head.queue}", b"")
            if head.first >= queue.next_seq:
                queue.add(extent)
                queue.next_seq = head.last + 1
        elif head.kind == _MOVE and queue is not None:
            low, high = struct.unpack_from("<QQ", payload, _run(head, payload).reach)
            queue.move(extent, low, high)
        elif head.kind == _DONE and queue is not None:
            queue.finish(_pairs(payload))
        elif head.kind in (_BODY, _MOVE_BODY):
            self._bodies[head.first] = (segment, place, length)
        elif head.kind == _VALUES:
            self._set(payload)
        elif head.kind == _DROP:
            self.queues.pop(head.queue, None)

    def _declare(self, ident: int, payload: bytes) -> OldQueue:
        (size,) = struct.unpack_from("<I", payload)
        name = payload[4 : 4 + size].decode("utf-8", "surrogateescape")
        return self._declared(ident, name, payload[4 + size :])

    def _declared(self, ident: int, name: str, meta: bytes) -> OldQueue:
        queue = self.queues.setdefault(ident, OldQueue(ident, name, meta))
        queue.meta = meta
        return queue

    def _set(self, payload: bytes) -> None:
        at = 0
        while at < len(payload):
            name, size = struct.unpack_from("<II", payload, at)
            at += 8
            key = payload[at : at + name].decode("utf-8", "surrogateescape")
            at += name
            if size == _ABSENT:
                self.values.pop(key, None)
            else:
                self.values[key] = payload[at : at + size]
                at += size


def _file_head(data: bytes) -> tuple[int, int, int]:
    """Return the salt of a file, its number, and the number of its first batch."""
    for start in (0, _FILE_HEAD_BYTES // 2):
        copy = data[start : start + _FILE_HEAD.size]
        checksum = data[start + _FILE_HEAD.size : start + _FILE_HEAD.size + 4]
        if len(checksum) == 4 and crc32(copy) == int.from_bytes(checksum, "little"):
            magic, version, salt, number, batch = _FILE_HEAD.unpack(copy)
            if magic == b"cfstore\n" and version == 1:
                return salt, number, batch
    msg = "its header is unreadable"
    raise CorruptOldError(msg)


def _read_head(salt: int, data: bytes, at: int) -> _Head:
    end = at + _HEAD_BYTES
    if end > len(data):
        msg = "the file ends in the middle of a record"
        raise CorruptOldError(msg)
    (checksum,) = struct.unpack_from("<I", data, end - 4)
    magic, *fields = _HEAD.unpack_from(data, at)
    if magic != _MAGIC or crc32(data[at : end - 4], salt) != checksum:
        msg = "there is no record where one should begin"
        raise CorruptOldError(msg)
    return _Head(*fields)


def _payload(head: _Head, data: bytes, at: int) -> bytes:
    start = at + _HEAD_BYTES
    payload = data[start : start + head.length]
    if len(payload) < head.length or (crc32(payload) if payload else 0) != head.checksum:
        msg = "the checksum of a record is wrong"
        raise CorruptOldError(msg)
    return payload


def _read_batch(salt: int, data: bytes, at: int) -> tuple[_Head, list[tuple[int, _Head]]]:
    """Return the head of a batch, and where its records are; all of them are whole."""
    begin = _read_head(salt, data, at)
    if begin.kind != _BEGIN:
        msg = "there is no batch where one should begin"
        raise CorruptOldError(msg)
    place = at + _HEAD_BYTES
    end = place + begin.length
    records: list[tuple[int, _Head]] = []
    while place < end:
        head = _read_head(salt, data, place)
        _payload(head, data, place)
        records.append((place, head))
        place += _HEAD_BYTES + head.length
    if len(records) != begin.queue:
        msg = f"{len(records)} records where {begin.queue} belong"
        raise CorruptOldError(msg)
    return begin, records


def _find_batch(salt: int, data: bytes, at: int) -> int | None:
    mark = _MAGIC + bytes((_BEGIN,))
    while (at := data.find(mark, at)) >= 0:
        try:
            _read_head(salt, data, at)
        except CorruptOldError:
            at += 1
        else:
            return at
    return None


def _heads(salt: int, data: bytes) -> Iterator[tuple[int, _Head]]:
    """Yield where records begin, and their heads; those that are not whole are left out."""
    at = 0
    while at < len(data):
        try:
            head = _read_head(salt, data, at)
        except CorruptOldError:
            following = data.find(_MAGIC, at + 1)
            at = len(data) if following < 0 else following
            continue
        yield at, head
        at += _HEAD_BYTES + (0 if head.kind == _BEGIN else head.length)


def _columns(payload: bytes, codes: str, count: int) -> list[array[int]]:
    columns: list[array[int]] = []
    at = 0
    for code in codes:
        size = count * struct.calcsize(f"<{code}")
        columns.append(array(code, struct.unpack(f"<{count}{code}", payload[at : at + size])))
        at += size
    return columns


def _pairs(payload: bytes) -> list[tuple[int, int]]:
    numbers = iter(struct.unpack(f"<{len(payload) // 8}Q", payload))
    return list(zip(numbers, numbers, strict=True))


class _Run(NamedTuple):
    """The layout of a record of messages."""

    seqs: list[int]
    headers: list[int]
    """Lengths."""
    bodies: list[int]
    """Lengths, those of shared ones included."""
    sizes: list[int]
    shared: list[int]
    reach: int
    """Where the pair of numbers of a move stands; of anything else, where the headers begin."""


def _run(head: _Head, payload: bytes) -> _Run:
    at, count, flags = 0, head.items, head.flags

    def column(code: str, number: int) -> list[int]:
        nonlocal at
        values = struct.unpack_from(f"<{number}{code}", payload, at)
        at += struct.calcsize(f"<{number}{code}")
        return list(values) if number == count else list(values) * count

    offsets = column("I", count) if flags & _GAPS else list(range(count))
    headers = column("I", 1 if flags & _HEADERS_ALIKE else count)
    bodies = column("I", 1 if flags & _BODIES_ALIKE else count)
    sizes = column("I", count) if flags & _SIZES else list(map(add, headers, bodies))
    shared = column("Q", count) if flags & _SHARED else [0] * count
    return _Run([head.first + offset for offset in offsets], headers, bodies, sizes, shared, at)


def _cut(head: _Head, payload: bytes, wanted: list[tuple[int, int]]) -> Iterator[OldMessage]:
    """Yield those messages of a record whose numbers are in some ranges."""
    run = _run(head, payload)
    start = run.reach + (16 if head.kind == _MOVE else 0)
    own = [0 if ref else length for ref, length in zip(run.shared, run.bodies, strict=True)]
    ends = list(accumulate([*run.headers, *own], initial=start))
    bodies_from = len(run.headers)
    place = 0
    for index, seq in enumerate(run.seqs):
        while place < len(wanted) and wanted[place][1] < seq:
            place += 1
        if place == len(wanted):
            return
        if wanted[place][0] > seq:
            continue
        body = payload[ends[bodies_from + index] : ends[bodies_from + index + 1]]
        header = payload[ends[index] : ends[index + 1]]
        yield OldMessage(seq, header, run.shared[index] or body, run.sizes[index])
