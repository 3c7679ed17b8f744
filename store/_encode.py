"""Encoding: one batch of bytes from several `Changes`."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final, cast

from ._changes import Body, Changes, Puts
from ._index import Op
from ._records import (
    BEGIN,
    BODY,
    DECLARE,
    DONE,
    DROP,
    HEAD_SIZE,
    PUT,
    VALUES,
    Run,
    encode_declaration,
    encode_values,
    pack_array,
    record_head,
    run_record,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

RUN_BYTES: Final = 64 << 10
"""Approximate size of a record of messages: the least that is read to get at one of them."""


class Batch:
    """A batch in the making: its records, and its operations for the index."""

    __slots__ = ("_parts", "_salt", "ops", "size")

    def __init__(self, salt: int) -> None:
        self._salt = salt
        self._parts: list[bytes] = []
        self.ops: list[Op] = []
        self.size = HEAD_SIZE
        """Size of the whole batch, in bytes."""

    def add(self, op: Op, head: bytes, payload: bytes) -> None:
        """Add a record; `op.offset` becomes its offset in the batch."""
        op.offset = self.size
        op.length = len(head) + len(payload)
        self._parts += (head, payload)
        self.size += op.length
        self.ops.append(op)

    def record(
        self,
        kind: int,
        payload: bytes,
        value: object = None,
        *,
        queue: int = 0,
        first: int = 0,
        last: int = 0,
        count: int = 0,
    ) -> None:
        """Add a record other than a run of messages."""
        head = record_head(
            self._salt, kind, payload, queue=queue, first=first, last=last, count=count
        )
        self.add(Op(kind, queue, first, last, count, value=value), head, payload)

    def run(
        self,
        kind: int,
        queue: int,
        run: Run,
        last: int,
        headers: Sequence[bytes],
        bodies: Sequence[bytes],
        *,
        explicit: bool,
        reach: tuple[int, int] | None = None,
    ) -> None:
        """Add a run of messages (see `run_record`)."""
        head, payload = run_record(
            self._salt, kind, queue, run, last, headers, bodies, explicit=explicit, reach=reach
        )
        op = Op(kind, queue, run.first, last, run.count, run.detail, value=reach)
        self.add(op, head, payload)

    def finish(self, number: int, ticket: int, synced: int) -> list[bytes]:
        """Return the whole batch, in parts: joining them would be one more copy."""
        begin = record_head(
            self._salt,
            BEGIN,
            b"",
            queue=len(self.ops),
            first=number,
            last=ticket,
            count=synced,
            length=self.size - HEAD_SIZE,
        )
        return [begin, *self._parts]


def encode(batch: Batch, group: Sequence[Changes]) -> None:
    """Put changes into a batch, in their order.

    Operations of one kind are grouped. That changes nothing: queues and bodies come before the
    messages put, those before the acknowledgements, and drops at the end; ids are never reused.
    """
    puts: dict[int, list[Puts]] = {}
    dones: dict[int, list[tuple[int, int]]] = {}
    values: dict[str, bytes | None] = {}
    for changes in group:
        for queue_id, (name, meta) in changes.declared.items():
            batch.record(DECLARE, encode_declaration(name, meta), (name, meta), queue=queue_id)
        for queue_id, some in changes.puts.items():
            puts.setdefault(queue_id, []).append(some)
        for queue_id, ranges in changes.dones.items():
            dones.setdefault(queue_id, []).extend(ranges)
        values.update(changes.values)
        for body in changes.bodies:
            batch.record(BODY, body.data, first=body.ident, last=body.ident, count=1)
    for queue_id, several in puts.items():
        for some in _chunks(Puts.together(several)):
            _encode_puts(batch, queue_id, some)
    for queue_id, ranges in dones.items():
        flat = array("Q", [number for pair in ranges for number in pair])
        first, last = ranges[0][0], ranges[-1][1]
        batch.record(
            DONE,
            pack_array(flat),
            ranges,
            queue=queue_id,
            first=first,
            last=last,
            count=len(ranges),
        )
    if values:
        batch.record(VALUES, encode_values(values), values, count=len(values))
    for changes in group:
        for queue_id in changes.dropped:
            batch.record(DROP, b"", queue=queue_id)


def _chunks(puts: Puts) -> Iterator[Puts]:
    if puts.nbytes <= RUN_BYTES and puts.last - puts.first < 1 << 32:
        yield puts
        return
    start = 0
    for stop in _cuts(puts):
        yield puts.part(start, stop)
        start = stop


def _cuts(puts: Puts) -> Iterator[int]:
    if (
        isinstance(puts.header_lengths, int)
        and isinstance(puts.body_lengths, int)
        and puts.last - puts.first < 1 << 32
    ):
        step = max(1, RUN_BYTES // max(1, puts.header_lengths + puts.body_lengths))
        yield from range(step, puts.count, step)
    else:
        size, first = 0, puts.first
        for at, (seq, header, body) in enumerate(
            zip(puts.seqs, puts.headers, puts.bodies, strict=True)
        ):
            more = len(header) + len(body)
            if at and (size + more > RUN_BYTES or seq - first >= 1 << 32):
                yield at
                size, first = 0, seq
            size += more
    yield puts.count


def _encode_puts(batch: Batch, queue_id: int, puts: Puts) -> None:
    offsets: array[int] | None = None
    if puts.last - puts.first >= puts.count:
        first = puts.first
        offsets = array("I", [seq - first for seq in puts.seqs])
    shared: array[int] | None = None
    bodies = cast("Sequence[bytes]", puts.bodies)
    if puts.shared:
        ids = [body.ident if isinstance(body, Body) else 0 for body in puts.bodies]
        if any(ids):
            shared = array("Q", ids)
            bodies = [body for body in puts.bodies if not isinstance(body, Body)]
    run = Run(
        puts.first,
        puts.count,
        offsets,
        puts.header_lengths,
        puts.body_lengths,
        puts.sizes,
        shared,
        0,
    )
    batch.run(PUT, queue_id, run, puts.last, puts.headers, bodies, explicit=bool(puts.explicit))
