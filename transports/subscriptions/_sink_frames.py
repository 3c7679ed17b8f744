"""The wire protocol of writers: the kinds from 64 to 95 of `_frames`.

A writer sends batches, each of which is published once, whole, or not at all. Batches have numbers
from 0 on, which only grow. One batch is staged in parts, each an attempt at a partition; parts may
be staged by several connections at once. All that is committed is named by COMMIT; it is published
in the order of the partitions, and of the rows in each.

The client says HELLO, then OPEN, once. Integers are little-endian; a batch is an i64, of which -1
stands for none.

| kind | | what it has |
|---|---|---|
| 64 | OPEN | generation (u64, 0: whichever there is), incarnation (16 bytes, zeros: not known), take over (u8: 1 to put out who has opened the name before, which takes generation 0), seven zeros, name of the writer |
| 65 | OPENED | generation (u64), incarnation, the batch committed last, largest STAGE that is taken (u32), most rows in it (u32) |
| 66 | STAGE | batch, partition (u32), zero (u32), attempt (u64), place of the first of these rows in the part (u64; 0 begins the part, anew if need be), a block of rows. No answer, but an ERROR if it is refused: the first one of a part |
| 68 | STAGE_END | batch, partition (u32), CRC-32 of the part's blocks one after another (u32), attempt, rows, bytes of the blocks (u64 each) |
| 69 | STAGED | rows (u64), 1 if the batch is committed already, and they were thrown away (u32), zero (u32) |
| 70 | COMMIT | batch, number of parts (u32), zero (u32), of each: attempt (u64), partition (u32), zero (u32) |
| 71 | COMMITTED | the batch committed last, 1 if this one was already (u32), zero (u32) |
| 72, 73 | ABORT, ABORTED | batch; the batch committed last |
| 74, 75 | LAST, LAST_IS | nothing; the batch committed last |
| 76, 77 | FORGET, FORGOTTEN | nothing: the writer's name is not used again |
| 79 | WAITING | nothing: sent each second while a request waits for funds, for room or for the disk, with its number |

What is promised. A batch is decided by the first COMMIT of its number that finds all its parts
whole; every later one, and one of an older batch, is answered as done and does nothing; so is ABORT
of such a batch, and STAGE, whose rows are passed over. With a store COMMITTED means that the
decision is on disk, with all the rows; without one, that all rows have been handed over and taken.

The decided rows are published after that, in turns that the writer's account pays for, one batch
after another. Durable subscriptions and the queues of kept sessions have each row on disk exactly
once, also if the relay is killed in between: each of them notes, in the same write as the row, up
to which row it has the batch, and is passed over up to there when the rest of the batch is
published again. So a client takes each row once with QoS 2. With QoS 1 it is at least once: one
that is connected may be sent a row before that is on disk, and take it anew after a kill. To all
others each row goes once in one life of the relay, as fast as they take it, like anybody's
publication; after a kill the rows of the last moments of a batch may come again to whoever is back
by then.
Without a store all this holds for one life of the relay: it does not know of batches before.

What is staged and not committed goes when its connection ends within a part, when the writer stages
a newer batch, when its name is taken over, and when nobody has come back for it for some time.
"""  # noqa: E501

from __future__ import annotations

import enum
from struct import Struct
from typing import TypeAlias

import attrs

from ...dataspace.sinks import (
    FencedError,
    NotStagedError,
    OtherIncarnationError,
    PartKey,
    Rows,
    SinkError,
)

UNKNOWN = bytes(16)


class SinkKind(enum.IntEnum):
    """What a frame is."""

    OPEN = 64
    OPENED = 65
    STAGE = 66
    STAGE_END = 68
    STAGED = 69
    COMMIT = 70
    COMMITTED = 71
    ABORT = 72
    ABORTED = 73
    LAST = 74
    LAST_IS = 75
    FORGET = 76
    FORGOTTEN = 77
    WAITING = 79


FIRST_KIND = 64
LAST_KIND = 95


@attrs.frozen(slots=True)
class Open:
    """Be the writer of a name, or one of them."""

    name: str
    generation: int = 0
    incarnation: bytes = UNKNOWN
    take_over: bool = False


@attrs.frozen(slots=True)
class Stage:
    """Some rows of a part."""

    key: PartKey
    at: int
    rows: Rows


@attrs.frozen(slots=True)
class StageEnd:
    """That was all of a part."""

    key: PartKey
    rows: int
    nbytes: int
    crc: int


@attrs.frozen(slots=True)
class Commit:
    """Publish a batch: these parts, as (partition, attempt)."""

    batch: int
    parts: tuple[tuple[int, int], ...]


@attrs.frozen(slots=True)
class Abort:
    """Throw away what is staged of a batch."""

    batch: int


@attrs.frozen(slots=True)
class AskLast:
    """Ask which batch was committed last."""


@attrs.frozen(slots=True)
class Forget:
    """Forget the writer."""


SinkRequest: TypeAlias = Open | Stage | StageEnd | Commit | Abort | AskLast | Forget

_OPEN = Struct("<Q16sB7xH")
_OPENED = Struct("<Q16sqII")
_STAGE = Struct("<qIIQQ")
_STAGE_END = Struct("<qIIQQQ")
_STAGED = Struct("<QII")
_COMMIT = Struct("<qII")
_PART = Struct("<QII")
_COMMITTED = Struct("<qII")
_BATCH = Struct("<q")


def parse_sink_request(kind: int, payload: bytes) -> tuple[SinkRequest, int]:
    """Look into a frame that a writer has sent; return how much of its payload that was, too.

    Raises:
        ValueError: If it is none that a writer may send, or is not well formed; or struct.error.
    """
    match kind:
        case SinkKind.STAGE:
            batch, partition, _, attempt, at = _STAGE.unpack_from(payload)
            rows = Rows(payload[_STAGE.size :])
            return Stage(_key(batch, partition, attempt), at, rows), len(payload)
        case SinkKind.STAGE_END:
            batch, partition, crc, attempt, count, nbytes = _STAGE_END.unpack_from(payload)
            return StageEnd(_key(batch, partition, attempt), count, nbytes, crc), _STAGE_END.size
        case SinkKind.COMMIT:
            return _parse_commit(payload)
        case SinkKind.ABORT:
            (batch,) = _BATCH.unpack_from(payload)
            return Abort(_numbered(batch)), _BATCH.size
        case SinkKind.LAST:
            return AskLast(), 0
        case SinkKind.FORGET:
            return Forget(), 0
        case SinkKind.OPEN:
            generation, incarnation, take_over, length = _OPEN.unpack_from(payload)
            raw = payload[_OPEN.size : _OPEN.size + length]
            if len(raw) < length:
                raise ValueError("a text is cut short")
            if take_over > 1 or (take_over and generation):
                raise ValueError(f"take over {take_over}, generation {generation}")
            opened = Open(raw.decode(), generation, incarnation, bool(take_over))
            return opened, _OPEN.size + length
        case _:
            raise ValueError("a writer does not send that")


def _numbered(batch: int) -> int:
    if batch < 0:
        raise ValueError(f"batches have numbers from 0 on, not {batch}")
    return batch


def _key(batch: int, partition: int, attempt: int) -> PartKey:
    return PartKey(_numbered(batch), partition, attempt)


def _parse_commit(payload: bytes) -> tuple[Commit, int]:
    batch, count, _ = _COMMIT.unpack_from(payload)
    end = _COMMIT.size + count * _PART.size
    if len(payload) < end:
        raise ValueError(f"{count} parts do not fit into it")
    parts = tuple(
        [(part, attempt) for attempt, part, _ in _PART.iter_unpack(payload[_COMMIT.size : end])]
    )
    return Commit(_numbered(batch), parts), end


def encode_sink_request(request: SinkRequest) -> tuple[SinkKind, bytes]:
    """Return the kind of a request's frame, and what is in it."""
    match request:
        case Open(name, generation, incarnation, take_over):
            raw = name.encode()
            fixed = _OPEN.pack(generation, incarnation, take_over, len(raw))
            return SinkKind.OPEN, fixed + raw
        case Stage(key, at, rows):
            fixed = _STAGE.pack(key.batch, key.partition, 0, key.attempt, at)
            return SinkKind.STAGE, fixed + rows.block
        case StageEnd(key, count, nbytes, crc):
            fields = key.batch, key.partition, crc, key.attempt, count, nbytes
            return SinkKind.STAGE_END, _STAGE_END.pack(*fields)
        case Commit(batch, parts):
            fixed = _COMMIT.pack(batch, len(parts), 0)
            return SinkKind.COMMIT, fixed + b"".join(_PART.pack(a, p, 0) for p, a in parts)
        case Abort(batch):
            return SinkKind.ABORT, _BATCH.pack(batch)
        case AskLast():
            return SinkKind.LAST, b""
        case Forget():
            return SinkKind.FORGET, b""


def opened(generation: int, incarnation: bytes, last: int, max_frame: int, max_rows: int) -> bytes:
    """Return what an OPENED has."""
    return _OPENED.pack(generation, incarnation, last, max_frame, max_rows)


def staged(rows: int, already: bool) -> bytes:
    """Return what a STAGED has."""
    return _STAGED.pack(rows, already, 0)


def committed(last: int, already: bool) -> bytes:
    """Return what a COMMITTED has."""
    return _COMMITTED.pack(last, already, 0)


def batch_is(last: int) -> bytes:
    """Return what an ABORTED, or a LAST_IS, has."""
    return _BATCH.pack(last)


REFUSED, FENCED, OTHER_INCARNATION, NOT_STAGED = 2, 3, 5, 7


def sink_code_of(fault: SinkError) -> int:
    """Return what a sink's refusal is about, as `ErrorCode` has it."""
    match fault:
        case NotStagedError():
            return NOT_STAGED
        case OtherIncarnationError():
            return OTHER_INCARNATION
        case FencedError():
            return FENCED
        case _:
            return REFUSED
