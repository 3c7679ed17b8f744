"""Decoding the bytes of a store's file into operations, and finding the bad ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from ._errors import CorruptRecordError
from ._index import Op
from ._records import (
    BEGIN,
    BODY,
    DECLARE,
    DONE,
    DROP,
    HEAD_SIZE,
    MAGIC,
    MOVE,
    MOVE_BODY,
    PUT,
    VALUES,
    Head,
    decode_declaration,
    decode_values,
    read_head,
    read_payload,
    read_run,
    unpack_array,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


@attrs.define(slots=True, eq=False)
class Bad:
    """Corrupt bytes."""

    offset: int
    length: int
    what: str
    head: Head | None = None
    """The head of the record, if it is whole."""


@attrs.define(slots=True, eq=False)
class ScannedBatch:
    """A batch as read."""

    number: int
    ticket: int
    synced: int
    offset: int
    """Its offset in the file."""
    length: int
    ops: list[Op]
    bad: list[Bad]
    """Its unreadable parts; the batch is whole if there are none."""


def scan_batch(salt: int, data: bytes, at: int) -> ScannedBatch:
    """Read the batch at `at` in `data`, the content of its whole file.

    Raises:
        CorruptRecordError: There is no whole `BEGIN`.
    """
    begin = read_head(salt, data, at)
    if begin.kind != BEGIN:
        msg = "there is no batch where one should begin"
        raise CorruptRecordError(msg)
    end = at + HEAD_SIZE + begin.length
    batch = ScannedBatch(begin.first, begin.last, begin.items, at, HEAD_SIZE + begin.length, [], [])
    place = at + HEAD_SIZE
    count = 0
    while place < end:
        try:
            head = read_head(salt, data, place)
            if place + HEAD_SIZE + head.length > end:
                msg = "a record goes beyond the end of its batch"
                raise CorruptRecordError(msg)
        except CorruptRecordError as error:
            # The start of the next record has to be searched for.
            ops, bads = salvage(salt, data, place, min(end, len(data)), str(error))
            batch.ops += ops
            batch.bad += bads or [Bad(place, end - place, str(error))]
            return batch
        length = HEAD_SIZE + head.length
        try:
            op = read_op(head, read_payload(head, data, place))
        except CorruptRecordError as error:
            batch.bad.append(Bad(place, length, str(error), head))
        else:
            op.offset, op.length = place, length
            batch.ops.append(op)
        count += 1
        place += length
    if count != begin.queue:
        batch.bad.append(Bad(at, HEAD_SIZE, f"{count} records where {begin.queue} belong"))
    return batch


def read_op(head: Head, payload: bytes) -> Op:
    """Read one operation; the caller sets `offset` and `length`."""
    op = Op(head.kind, head.queue, head.first, head.last, head.items)
    if head.kind in (PUT, MOVE):
        run, op.value = read_run(head, payload)
        op.detail = run.detail
    elif head.kind == DONE:
        numbers = iter(unpack_array("Q", payload))
        op.value = list(zip(numbers, numbers, strict=True))
    elif head.kind == VALUES:
        op.value = decode_values(payload)
    elif head.kind == DECLARE:
        op.value = decode_declaration(payload)
    elif head.kind not in (BODY, MOVE_BODY, DROP):
        msg = f"a record of a kind ({head.kind}) that does not belong here"
        raise CorruptRecordError(msg)
    return op


def heads(salt: int, data: bytes) -> Iterator[tuple[int, Head]]:
    """Yield the offsets of records, and their heads; heads that are not whole are left out."""
    at = 0
    while at < len(data):
        try:
            head = read_head(salt, data, at)
        except CorruptRecordError:
            following = data.find(MAGIC, at + 1)
            at = len(data) if following < 0 else following
            continue
        yield at, head
        at += HEAD_SIZE if head.kind == BEGIN else HEAD_SIZE + head.length


def salvage(salt: int, data: bytes, at: int, end: int, what: str) -> tuple[list[Op], list[Bad]]:
    """Find whole records between `at` and `end`, inside a bad batch."""
    ops: list[Op] = []
    bads: list[Bad] = []
    lost = at
    while at < end:
        try:
            head = read_head(salt, data, at)
            length = HEAD_SIZE if head.kind == BEGIN else HEAD_SIZE + head.length
            if at + length > end:
                msg = "a record goes beyond the end of its batch"
                raise CorruptRecordError(msg)
        except CorruptRecordError:
            following = data.find(MAGIC, at + 1, end)
            at = end if following < 0 else following
            continue
        if lost < at:
            bads.append(Bad(lost, at - lost, what))
        if head.kind != BEGIN:
            try:
                op = read_op(head, read_payload(head, data, at))
            except CorruptRecordError as error:
                bads.append(Bad(at, length, str(error), head))
            else:
                op.offset, op.length = at, length
                ops.append(op)
        at += length
        lost = at
    if lost < end:
        bads.append(Bad(lost, end - lost, what))
    return ops, bads
