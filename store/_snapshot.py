"""The index as a file, so that opening a store need not read its whole log.

A snapshot has the durable state of the moment when the segment of its number was begun: the log
from there on is replayed on top. It is written beside the last one and renamed, and the last two
are kept with the log since the older: so a bad snapshot costs time and no messages.
"""

from __future__ import annotations

import random
import struct
from array import array
from typing import TYPE_CHECKING, Final

from ._bodies import Bodies
from ._detail import Detail, detail_of, weight
from ._errors import CorruptRecordError
from ._extents import Extents
from ._index import Index, Segment
from ._names import TEMPORARY, snapshot_name
from ._records import (
    BODIES,
    DECLARE,
    DONE,
    END,
    EXTENTS,
    FILE_HEAD_SIZE,
    HEAD_SIZE,
    SEGMENTS,
    VALUES,
    FileHead,
    decode_declaration,
    decode_values,
    encode_declaration,
    encode_values,
    file_head,
    pack_array,
    read_file_head,
    read_head,
    read_payload,
    record_head,
    unpack_array,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ._files import Files
    from ._intervals import Intervals

_EXTENT_CODES: Final = "QQIIIIII"
_BODY_CODES: Final = "QIIII"
_ROWS: Final = 1024
_VALUES: Final = 1 << 20
_END: Final = struct.Struct("<QQQQ")

_OFFSETS: Final = 1
_SIZES: Final = 2
_SHARED: Final = 4


def write_snapshot(
    files: Files, number: int, batch: int, ticket: int, index: Index, done: dict[int, Intervals]
) -> int:
    """Write a snapshot of the durable state, and return its size in bytes.

    Args:
        files: The directory.
        number: The segment from which the log is to be replayed on top.
        batch: The number of the first batch there.
        ticket: The highest durable ticket.
        index: Its extents, bodies and durable values must not change meanwhile.
        done: The durably done numbers of each queue.

    Raises:
        OSError: The disk refused. It may leave one more file, which the next snapshot replaces.
    """
    salt = random.getrandbits(32)
    file = files.create(TEMPORARY)
    try:
        parts = [file_head(FileHead(salt, number, batch))]
        at = size = FILE_HEAD_SIZE
        count = 0
        for kind, queue, first, rows, payload in _records(index, done):
            parts.append(
                record_head(salt, kind, payload, queue=queue, first=first, last=first, count=rows)
            )
            parts.append(payload)
            count += 1
            size += HEAD_SIZE + len(payload)
            if size - at > _VALUES:
                data = b"".join(parts)
                file.write((data,), size - len(data))
                parts, at = [], size
        payload = _END.pack(ticket, batch, index.next_queue, index.next_body)
        parts += (record_head(salt, END, payload, count=count), payload)
        size += HEAD_SIZE + len(payload)
        data = b"".join(parts)
        file.write((data,), size - len(data))
        file.fsync()
    finally:
        file.close()
    files.rename(TEMPORARY, snapshot_name(number))
    files.fsync_dir()
    return size


def _records(
    index: Index, done: dict[int, Intervals]
) -> Iterator[tuple[int, int, int, int, bytes]]:
    rows = array("Q")
    for segment in index.segments.values():
        rows.extend((segment.number, segment.salt, segment.batch, segment.size))
    yield SEGMENTS, 0, 0, len(rows) // 4, pack_array(rows)
    for queue_id, queue in index.durable.items():
        declaration = encode_declaration(*index.declarations[queue_id])
        yield DECLARE, queue_id, queue.durable_seq, 0, declaration
        columns, details = queue.extents.columns, queue.extents.details
        for start in range(0, len(details), _ROWS):
            some = details[start : start + _ROWS]
            payload = b"".join(
                [
                    *(pack_array(column[start : start + _ROWS]) for column in columns),
                    *_encode_details(some),
                ]
            )
            yield EXTENTS, queue_id, 0, len(some), payload
        ranges = done[queue_id]
        if ranges:
            flat = array("Q", [number for pair in ranges for number in pair])
            yield DONE, queue_id, 0, len(ranges), pack_array(flat)
    yield BODIES, 0, 0, len(index.bodies), b"".join(map(pack_array, index.bodies.columns))
    chunk: dict[str, bytes | None] = {}
    size = 0
    for key, value in index.durable_values.items():
        chunk[key] = value
        size += len(key) + len(value)
        if size > _VALUES:
            yield VALUES, 0, 0, len(chunk), encode_values(chunk)
            chunk, size = {}, 0
    if chunk:
        yield VALUES, 0, 0, len(chunk), encode_values(chunk)


def _encode_details(details: Sequence[Detail]) -> list[bytes]:
    flags = bytearray()
    sizes = array("I")
    arrays: list[bytes] = []
    for detail in details:
        flag, size = 0, 0
        if isinstance(detail, int):
            size = detail
        else:
            if detail.offsets is not None:
                flag |= _OFFSETS
                arrays.append(pack_array(detail.offsets))
            if isinstance(detail.sizes, int):
                size = detail.sizes
            else:
                flag |= _SIZES
                arrays.append(pack_array(detail.sizes))
            if detail.bodies is not None:
                flag |= _SHARED
                arrays.append(pack_array(detail.bodies))
        flags.append(flag)
        sizes.append(size)
    return [bytes(flags), pack_array(sizes), *arrays]


def _decode_details(counts: Sequence[int], data: bytes, at: int) -> list[Detail]:
    rows = len(counts)
    flags = data[at : at + rows]
    at += rows
    sizes = unpack_array("I", data[at : at + 4 * rows])
    at += 4 * rows

    def column(code: str, count: int, width: int) -> array[int]:
        nonlocal at
        start, at = at, at + count * width
        return unpack_array(code, data[start:at])

    details: list[Detail] = []
    for flag, size, count in zip(flags, sizes, counts, strict=True):
        if not flag:
            details.append(size)
            continue
        offsets = column("I", count, 4) if flag & _OFFSETS else None
        own = column("I", count, 4) if flag & _SIZES else size
        bodies = column("Q", count, 8) if flag & _SHARED else None
        details.append(detail_of(offsets, own, bodies))
    return details


class Snapshot:
    """A snapshot that was read."""

    def __init__(self, index: Index, head: FileHead, ticket: int) -> None:
        self.index = index
        self.number = head.number
        self.batch = head.batch
        self.ticket = ticket


def read_snapshot(data: bytes) -> Snapshot:
    """Read a snapshot.

    Raises:
        CorruptRecordError: It is not whole.
    """
    file = read_file_head(data)
    index = Index()
    columns: dict[int, list[array[int]]] = {}
    details: dict[int, list[Detail]] = {}
    done: dict[int, array[int]] = {}
    at = FILE_HEAD_SIZE
    count = 0
    while True:
        head = read_head(file.salt, data, at)
        payload = read_payload(head, data, at)
        at += HEAD_SIZE + head.length
        if head.kind == END:
            break
        count += 1
        if head.kind == EXTENTS:
            rows, own = _read_columns(head.items, payload, _EXTENT_CODES)
            for mine, more in zip(columns[head.queue], rows, strict=True):
                mine.extend(more)
            details[head.queue] += _decode_details(rows[6], payload, own)
        elif head.kind == DECLARE:
            name, meta = decode_declaration(payload)
            index.declare(head.queue, name, meta)
            index.declarations[head.queue] = (name, meta)
            queue = index.durable[head.queue] = index.by_id[head.queue]
            queue.next_seq = queue.durable_seq = head.first
            columns[head.queue] = [array(code) for code in _EXTENT_CODES]
            details[head.queue] = []
        elif head.kind == DONE:
            done[head.queue] = unpack_array("Q", payload)
        elif head.kind == SEGMENTS:
            fields = iter(unpack_array("Q", payload))
            for number, salt, batch, size in zip(fields, fields, fields, fields, strict=True):
                index.segments[number] = Segment(number, salt, batch, size, size)
        elif head.kind == BODIES:
            # The head's count leaves out the removed bodies that still have a row.
            number = len(payload) // sum(array(code).itemsize for code in _BODY_CODES)
            index.bodies = Bodies.restored(_read_columns(number, payload, _BODY_CODES)[0])
        elif head.kind == VALUES:
            for key, value in decode_values(payload).items():
                if value is not None:
                    index.values[key] = index.durable_values[key] = value
        else:
            msg = f"a record of a kind ({head.kind}) that does not belong into a snapshot"
            raise CorruptRecordError(msg)
    if head.items != count:
        msg = f"{count} records where {head.items} belong"
        raise CorruptRecordError(msg)
    ticket, _, index.next_queue, index.next_body = _END.unpack(payload)
    for queue_id, queue in index.durable.items():
        queue.extents = Extents.restored(columns[queue_id], details[queue_id])
        for extent in queue.extents:
            queue.live_count += extent.items
            queue.live_bytes += weight(extent.detail, 0, extent.items)
            index.count_segment(extent.segment, extent.live_bytes)
        numbers = iter(done.get(queue_id, ()))
        queue.finish(zip(numbers, numbers, strict=True))
    for place in index.bodies.places():
        index.count_segment(place.segment, place.length)
    return Snapshot(index, file, ticket)


def _read_columns(rows: int, payload: bytes, codes: str) -> tuple[list[array[int]], int]:
    columns: list[array[int]] = []
    at = 0
    for code in codes:
        size = rows * array(code).itemsize
        columns.append(unpack_array(code, payload[at : at + size]))
        at += size
    return columns, at
