"""The on-disk format: records, one after another.

Rules:

1. A segment is a header, twice (so that one bad sector does not cost the whole segment), and then
   batches. A batch is a `BEGIN` record and the records of its operations, `length` bytes of them.
   A batch counts only if every one of its records is whole: it is there completely or not at all.
2. A record is a fixed head and a payload, with a checksum each. The checksum of a head starts from
   the salt of its file: the remains of an older file on the same blocks of the disk do not match.
3. The head of a run of messages has the queue and the range of sequence numbers. So the messages
   lost with a bad payload can be named.
4. Batches have numbers without gaps, across segments. The header of a segment has the number of
   its first batch. Batches of the segment before it with that number or a later one were given up
   after a failed fsync and written anew.
5. A `BEGIN` has the offset up to which its segment was fsynced when the batch was written. A bad
   batch before that offset was durable and is damage; one behind it is the torn end of a write
   that was never confirmed.

Everything is little-endian.
"""

from __future__ import annotations

import struct
import sys
from array import array
from functools import lru_cache
from itertools import accumulate, pairwise, repeat
from operator import add
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

import attrs

from ._detail import Detail, detail_of
from ._errors import CorruptRecordError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence, Sized

VERSION: Final = 1

MAGIC: Final = b"\xc5\xf5"
_HEAD: Final = struct.Struct("<2sBBIQQIII")
_CRC: Final = struct.Struct("<I")
HEAD_SIZE: Final = _HEAD.size + _CRC.size

_FILE_MAGIC: Final = b"cfstore\n"
_FILE_HEAD: Final = struct.Struct("<8sIIQQ")
FILE_HEAD_SIZE: Final = 128
_COPY: Final = FILE_HEAD_SIZE // 2

BEGIN: Final = 1
PUT: Final = 2
MOVE: Final = 3
BODY: Final = 4
MOVE_BODY: Final = 5
DONE: Final = 6
VALUES: Final = 7
DECLARE: Final = 8
DROP: Final = 9
#: In snapshots only.
EXTENTS: Final = 10
BODIES: Final = 11
SEGMENTS: Final = 12
END: Final = 13

_GAPS: Final = 1
_HEADERS_ALIKE: Final = 2
_BODIES_ALIKE: Final = 4
_SIZES: Final = 8
_SHARED: Final = 16

ABSENT: Final = 0xFFFF_FFFF
"""Stands for the length of a value: the key is deleted."""

MAX_LENGTH: Final = 1 << 30

#: Pieces of one size that are cut at once.
_UNPACKED_BATCH: Final = 64


class Head(NamedTuple):
    """The head of a record. The meaning of the numbers depends on its kind."""

    kind: int
    flags: int
    queue: int
    first: int
    last: int
    items: int
    length: int
    checksum: int


class FileHead(NamedTuple):
    """The header of a segment or a snapshot."""

    salt: int
    number: int
    batch: int


def pack_array(values: array[int]) -> bytes:
    """Return the bytes of an array, little-endian."""
    if sys.byteorder != "little":  # pragma: no cover
        values = values[:]
        values.byteswap()
    return values.tobytes()


def unpack_array(code: str, data: bytes | memoryview) -> array[int]:
    """Make an array from such bytes."""
    values: array[int] = array(code)
    values.frombytes(data)
    if sys.byteorder != "little":  # pragma: no cover
        values.byteswap()
    return values


def file_head(head: FileHead) -> bytes:
    """Return the header of a file, both copies."""
    data = _FILE_HEAD.pack(_FILE_MAGIC, VERSION, head.salt, head.number, head.batch)
    return (data + _CRC.pack(crc32(data))).ljust(_COPY, b"\0") * 2


def read_file_head(data: bytes) -> FileHead:
    """Read the header of a file.

    Raises:
        CorruptRecordError: Neither copy is whole, or the version is another one.
    """
    for start in (0, _COPY):
        copy = data[start : start + _FILE_HEAD.size]
        crc = data[start + _FILE_HEAD.size : start + _FILE_HEAD.size + _CRC.size]
        if len(crc) == _CRC.size and crc32(copy) == _CRC.unpack(crc)[0]:
            magic, version, salt, number, batch = _FILE_HEAD.unpack(copy)
            if magic == _FILE_MAGIC and version == VERSION:
                return FileHead(salt, number, batch)
    msg = "its header is unreadable"
    raise CorruptRecordError(msg)


def record_head(
    salt: int,
    kind: int,
    payload: bytes,
    *,
    flags: int = 0,
    queue: int = 0,
    first: int = 0,
    last: int = 0,
    count: int = 0,
    length: int | None = None,
) -> bytes:
    """Return the head of a record with this payload; a `BEGIN` has a length but no payload."""
    size = len(payload) if length is None else length
    data = _HEAD.pack(
        *(MAGIC, kind, flags, queue, first, last, count, size, crc32(payload) if payload else 0)
    )
    return data + _CRC.pack(crc32(data, salt))


def read_head(salt: int, data: bytes | memoryview, at: int) -> Head:
    """Read the head of the record at `at`.

    Raises:
        CorruptRecordError: There is no whole head.
    """
    end = at + HEAD_SIZE
    if end > len(data):
        msg = "the file ends in the middle of a record"
        raise CorruptRecordError(msg)
    if crc32(data[at : end - 4], salt) != _CRC.unpack_from(data, end - 4)[0]:
        msg = "the checksum of a record's head is wrong"
        raise CorruptRecordError(msg)
    magic, *fields = _HEAD.unpack_from(data, at)
    if magic != MAGIC:
        msg = "a record does not begin as records do"
        raise CorruptRecordError(msg)
    return Head(*fields)


def read_payload(head: Head, data: bytes, at: int) -> bytes:
    """Return the payload of the record whose head is at `at`.

    Raises:
        CorruptRecordError: It is not whole.
    """
    start = at + HEAD_SIZE
    payload = data[start : start + head.length]
    if len(payload) < head.length:
        msg = "the file ends in the middle of a record"
        raise CorruptRecordError(msg)
    if (crc32(payload) if payload else 0) != head.checksum:
        msg = "the checksum of a record's payload is wrong"
        raise CorruptRecordError(msg)
    return payload


def find_begin(salt: int, data: bytes, at: int) -> int | None:
    """Return the offset of the next whole `BEGIN`, at `at` or behind it."""
    mark = MAGIC + bytes((BEGIN,))
    while (at := data.find(mark, at)) >= 0:
        try:
            read_head(salt, data, at)
        except CorruptRecordError:
            at += 1
        else:
            return at
    return None


@attrs.frozen(slots=True, eq=False)
class Run:
    """The layout of a run of messages: everything but the bytes themselves."""

    first: int
    count: int
    offsets: array[int] | None
    headers: int | array[int]
    bodies: int | array[int]
    """Lengths, those of shared bodies included."""
    sizes: int | array[int]
    shared: array[int] | None
    blob: int
    """Offset in the payload where the headers begin."""

    @property
    def detail(self) -> Detail:
        """The sizes and numbers for the index."""
        return detail_of(self.offsets, self.sizes, self.shared)


def lengths(things: Collection[Sized]) -> int | array[int]:
    """Return the lengths of these, as one number if they are equal."""
    found = set(map(len, things))
    return found.pop() if len(found) == 1 else array("I", map(len, things))


def alike(numbers: list[int]) -> int | array[int]:
    """Return one number in place of many that are equal."""
    if numbers.count(numbers[0]) == len(numbers):
        return numbers[0]
    return array("I", numbers)


def together(columns: Sequence[int | array[int]], counts: Sequence[int]) -> int | array[int]:
    """Join columns of `counts` numbers each."""
    one = columns[0]
    if isinstance(one, int) and all(
        isinstance(column, int) and column == one for column in columns
    ):
        return one
    joined = array("I")
    for column, count in zip(columns, counts, strict=True):
        joined.extend(repeat(column, count) if isinstance(column, int) else column)
    return joined


def part(column: int | array[int], start: int, stop: int) -> int | array[int]:
    """Return the numbers `start` up to `stop` of a column."""
    if isinstance(column, int):
        return column
    return alike(column[start:stop].tolist())


def sums(headers: int | array[int], bodies: int | array[int], count: int) -> int | array[int]:
    """Return the sizes of messages with headers and bodies of these lengths."""
    if isinstance(headers, int):
        if isinstance(bodies, int):
            return headers + bodies
        return array("I", map(add, repeat(headers), bodies))
    return array(
        "I", map(add, headers, repeat(bodies, count) if isinstance(bodies, int) else bodies)
    )


def _column(values: int | array[int]) -> bytes:
    return pack_array(array("I", (values,)) if isinstance(values, int) else values)


def run_record(
    salt: int,
    kind: int,
    queue: int,
    run: Run,
    last: int,
    headers: Sequence[bytes],
    bodies: Sequence[bytes],
    *,
    explicit: bool,
    reach: tuple[int, int] | None = None,
) -> tuple[bytes, bytes]:
    """Return the record of a run, head and payload.

    `bodies` are the embedded ones. `explicit`: the sizes are not the sums of the lengths.
    `reach` is for a `MOVE`: a range of sequence numbers in which nothing else is live.
    """
    flags = 0
    columns: list[bytes] = []
    if run.offsets is not None:
        flags |= _GAPS
        columns.append(pack_array(run.offsets))
    flags |= _HEADERS_ALIKE if isinstance(run.headers, int) else 0
    columns.append(_column(run.headers))
    flags |= _BODIES_ALIKE if isinstance(run.bodies, int) else 0
    columns.append(_column(run.bodies))
    if explicit:
        flags |= _SIZES
        sizes = run.sizes
        columns.append(
            _column(array("I", repeat(sizes, run.count)) if isinstance(sizes, int) else sizes)
        )
    if run.shared is not None:
        flags |= _SHARED
        columns.append(pack_array(run.shared))
    if reach is not None:
        columns.append(pack_array(array("Q", reach)))
    payload = b"".join([*columns, *headers, *bodies])
    head = record_head(
        salt, kind, payload, flags=flags, queue=queue, first=run.first, last=last, count=run.count
    )
    return head, payload


def read_run(head: Head, payload: bytes) -> tuple[Run, tuple[int, int] | None]:
    """Read the layout of a run, and a `MOVE`'s reach."""
    at, count, flags = 0, head.items, head.flags

    def column(code: str, number: int, size: int) -> array[int]:
        nonlocal at
        start, at = at, at + number * size
        return unpack_array(code, payload[start:at])

    offsets = column("I", count, 4) if flags & _GAPS else None
    headers: int | array[int]
    headers = column("I", 1, 4)[0] if flags & _HEADERS_ALIKE else column("I", count, 4)
    bodies: int | array[int]
    bodies = column("I", 1, 4)[0] if flags & _BODIES_ALIKE else column("I", count, 4)
    if flags & _SIZES:
        sizes = alike(column("I", count, 4).tolist())
    else:
        sizes = sums(headers, bodies, count)
    shared = column("Q", count, 8) if flags & _SHARED else None
    reach: tuple[int, int] | None = None
    if head.kind == MOVE:
        low, high = column("Q", 2, 8)
        reach = (low, high)
    return Run(head.first, count, offsets, headers, bodies, sizes, shared, at), reach


@lru_cache(maxsize=512)
def _unpacking(size: int, number: int) -> struct.Struct:
    return struct.Struct(f"{size}s" * number)


def pieces(payload: bytes, start: int, sizes: int | array[int], low: int, high: int) -> list[bytes]:
    """Return pieces number `low` up to `high` of a payload that has them from `start` on."""
    if not isinstance(sizes, int):
        bounds = list(accumulate(sizes[low:high], initial=start + sum(sizes[:low])))
        return [payload[a:b] for a, b in pairwise(bounds)]
    if sizes == 0:
        return [b""] * (high - low)
    # A third of the time of slicing; the formats are few, so they stay in the cache.
    at = start + low * sizes
    many, few = divmod(high - low, _UNPACKED_BATCH)
    found = list(_unpacking(sizes, few).unpack_from(payload, at))
    at += few * sizes
    for _ in range(many):
        found += _unpacking(sizes, _UNPACKED_BATCH).unpack_from(payload, at)
        at += _UNPACKED_BATCH * sizes
    return found


def total(sizes: int | array[int], count: int) -> int:
    """Return the sum of a column."""
    return sizes * count if isinstance(sizes, int) else sum(sizes)


def embedded(run: Run) -> int | array[int]:
    """Return the lengths of the bodies that the run itself has."""
    if run.shared is None:
        return run.bodies
    every = repeat(run.bodies, run.count) if isinstance(run.bodies, int) else run.bodies
    return array("I", [0 if ref else size for size, ref in zip(every, run.shared, strict=True)])


def encode_values(values: dict[str, bytes | None]) -> bytes:
    """Return the payload of a `VALUES` record; None deletes."""
    parts: list[bytes] = []
    for key, value in values.items():
        name = key.encode("utf-8", "surrogateescape")
        parts.append(struct.pack("<II", len(name), ABSENT if value is None else len(value)))
        parts.append(name)
        if value is not None:
            parts.append(value)
    return b"".join(parts)


def decode_values(payload: bytes) -> dict[str, bytes | None]:
    """Read the payload of a `VALUES` record."""
    values: dict[str, bytes | None] = {}
    at = 0
    while at < len(payload):
        name, size = struct.unpack_from("<II", payload, at)
        at += 8
        key = payload[at : at + name].decode("utf-8", "surrogateescape")
        at += name
        if size == ABSENT:
            values[key] = None
        else:
            values[key] = payload[at : at + size]
            at += size
    return values


def encode_declaration(name: str, meta: bytes) -> bytes:
    """Return the payload of a `DECLARE` record."""
    text = name.encode("utf-8", "surrogateescape")
    return struct.pack("<I", len(text)) + text + meta


def decode_declaration(payload: bytes) -> tuple[str, bytes]:
    """Read the payload of a `DECLARE` record."""
    (size,) = struct.unpack_from("<I", payload)
    return payload[4 : 4 + size].decode("utf-8", "surrogateescape"), payload[4 + size :]
