"""The wire protocol of writers: the kinds from 64 to 95 of `_frames`.

A writer sends batches, each of which is published once, complete, or not at all. Batches have
numbers from 0 on, which only grow. One batch is staged in parts, each an attempt at a partition;
several connections may stage parts at once. COMMIT names all parts to commit; they are published
in the order of the partitions, and of the rows in each.

The client sends HELLO, then OPEN, once. Integers are little-endian; a batch is an i64, of which -1
stands for none.

| kind | | fields |
|---|---|---|
| 64 | OPEN | generation (u64, 0: the current one), incarnation (16 bytes, zeros: not known), take over (u8: 1 to replace the connection that has opened the name before, which takes generation 0), seven zeros, name of the writer |
| 65 | OPENED | generation (u64), incarnation, the last committed batch, largest STAGE accepted (u32), most rows in it (u32) |
| 66 | STAGE | batch, partition (u32), zero (u32), attempt (u64), place of the first of these rows in the part (u64; 0 begins the part, anew if need be), a block of rows. No answer, except an ERROR if it is refused: the first one of a part |
| 68 | STAGE_END | batch, partition (u32), CRC-32 of the part's blocks one after another (u32), attempt, rows, bytes of the blocks (u64 each) |
| 69 | STAGED | rows (u64), 1 if the batch is already committed and they were discarded (u32), zero (u32) |
| 70 | COMMIT | batch, number of parts (u32), zero (u32), of each: attempt (u64), partition (u32), zero (u32) |
| 71 | COMMITTED | the last committed batch, 1 if this one was committed before (u32), zero (u32) |
| 72, 73 | ABORT, ABORTED | batch; the last committed batch |
| 74, 75 | LAST, LAST_IS | nothing; the last committed batch |
| 76, 77 | FORGET, FORGOTTEN | nothing: the writer's name is not used again |
| 79 | WAITING | nothing: sent each second while a request waits for funds, for room or for the disk, with its number |

Guarantees. A batch is decided by the first COMMIT of its number that finds all its parts complete.
Every later COMMIT, and one of an older batch, is answered as done and does nothing; so is ABORT
of such a batch, and STAGE, whose rows are ignored. With a store, COMMITTED means that the
decision is on disk, with all the rows; without one, that all rows have been handed over and taken.

The decided rows are published after that, in turns that are charged to the writer's account, one
batch after another. Durable subscriptions and the queues of persistent sessions have each row on
disk exactly once, even if the relay is killed in between: each of them notes its progress in the
batch in the same write as the row, and skips rows up to there when the rest of the batch is
published again. So a client takes each row once with QoS 2. With QoS 1 delivery is at least once: a
connected client may be sent a row before the row is on disk, and take it again after a kill. All
others get each row once in one life of the relay, as fast as they take it, like any publication;
after a kill, the rows of the last moments of a batch may be sent again to clients that are back by
then.
Without a store all this holds for one life of the relay: it does not know earlier batches.

Rows that are staged and not committed are discarded when their connection ends within a part, when
the writer stages a newer batch, when its name is taken over, and when no connection has come back
for them for some time.
"""  # noqa: E501

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from . import layouts
from ._kinds import Kind
from ._requests import UNKNOWN
from ._rows import Rows


class PartKey(NamedTuple):
    """The identity of a part."""

    batch: int
    partition: int
    attempt: int

    def __str__(self) -> str:
        return f"attempt {self.attempt} at partition {self.partition} of batch {self.batch}"


@dataclass(frozen=True, slots=True)
class Open:
    """Become the writer of a name, or one of its connections."""

    name: str
    generation: int = 0
    incarnation: bytes = UNKNOWN
    take_over: bool = False


@dataclass(frozen=True, slots=True)
class Stage:
    """Some rows of a part."""

    key: PartKey
    at: int
    rows: Rows


@dataclass(frozen=True, slots=True)
class StageEnd:
    """End a part."""

    key: PartKey
    rows: int
    nbytes: int
    crc: int


@dataclass(frozen=True, slots=True)
class Commit:
    """Publish a batch: these parts, as (partition, attempt)."""

    batch: int
    parts: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Abort:
    """Discard the staged rows of a batch."""

    batch: int


@dataclass(frozen=True, slots=True)
class AskLast:
    """Ask for the last committed batch."""


@dataclass(frozen=True, slots=True)
class Forget:
    """Forget the writer."""


SinkRequest: TypeAlias = Open | Stage | StageEnd | Commit | Abort | AskLast | Forget


def parse_sink_request(kind: int, payload: bytes) -> tuple[SinkRequest, int]:
    """Parse a frame from a writer; return the size of its part of the payload, too.

    Raises:
        ValueError: If it is not a request of a writer, or is malformed; or struct.error.
    """
    match kind:
        case Kind.STAGE:
            batch, partition, _, attempt, at = layouts.STAGE.unpack_from(payload)
            rows = Rows(payload[layouts.STAGE.size :])
            return Stage(_key(batch, partition, attempt), at, rows), len(payload)
        case Kind.STAGE_END:
            batch, partition, crc, attempt, count, nbytes = layouts.STAGE_END.unpack_from(payload)
            return StageEnd(
                _key(batch, partition, attempt), count, nbytes, crc
            ), layouts.STAGE_END.size
        case Kind.COMMIT:
            return _parse_commit(payload)
        case Kind.ABORT:
            (batch,) = layouts.BATCH.unpack_from(payload)
            return Abort(_numbered(batch)), layouts.BATCH.size
        case Kind.LAST:
            return AskLast(), 0
        case Kind.FORGET:
            return Forget(), 0
        case Kind.OPEN:
            generation, incarnation, take_over, length = layouts.OPEN.unpack_from(payload)
            raw = payload[layouts.OPEN.size : layouts.OPEN.size + length]
            if len(raw) < length:
                raise ValueError("a text is cut short")
            if take_over > 1 or (take_over and generation):
                raise ValueError(f"take over {take_over}, generation {generation}")
            opened = Open(raw.decode(), generation, incarnation, bool(take_over))
            return opened, layouts.OPEN.size + length
        case _:
            raise ValueError("a writer does not send that")


def _numbered(batch: int) -> int:
    if batch < 0:
        raise ValueError(f"batches have numbers from 0 on, not {batch}")
    return batch


def _key(batch: int, partition: int, attempt: int) -> PartKey:
    return PartKey(_numbered(batch), partition, attempt)


def _parse_commit(payload: bytes) -> tuple[Commit, int]:
    batch, count, _ = layouts.COMMIT.unpack_from(payload)
    end = layouts.COMMIT.size + count * layouts.PART.size
    if len(payload) < end:
        raise ValueError(f"{count} parts do not fit into it")
    parts = tuple(
        [
            (part, attempt)
            for attempt, part, _ in layouts.PART.iter_unpack(payload[layouts.COMMIT.size : end])
        ]
    )
    return Commit(_numbered(batch), parts), end


def encode_sink_request(request: SinkRequest) -> tuple[Kind, bytes]:
    """Return the kind of a request's frame, and its payload."""
    match request:
        case Open(name, generation, incarnation, take_over):
            raw = name.encode()
            fixed = layouts.OPEN.pack(generation, incarnation, take_over, len(raw))
            return Kind.OPEN, fixed + raw
        case Stage(key, at, rows):
            fixed = layouts.STAGE.pack(key.batch, key.partition, 0, key.attempt, at)
            return Kind.STAGE, fixed + rows.block
        case StageEnd(key, count, nbytes, crc):
            fields = key.batch, key.partition, crc, key.attempt, count, nbytes
            return Kind.STAGE_END, layouts.STAGE_END.pack(*fields)
        case Commit(batch, parts):
            fixed = layouts.COMMIT.pack(batch, len(parts), 0)
            return Kind.COMMIT, fixed + b"".join(layouts.PART.pack(a, p, 0) for p, a in parts)
        case Abort(batch):
            return Kind.ABORT, layouts.BATCH.pack(batch)
        case AskLast():
            return Kind.LAST, b""
        case Forget():
            return Kind.FORGET, b""


def opened(generation: int, incarnation: bytes, last: int, max_frame: int, max_rows: int) -> bytes:
    """Return the payload of an OPENED."""
    return layouts.OPENED.pack(generation, incarnation, last, max_frame, max_rows)


def staged(rows: int, already: bool) -> bytes:
    """Return the payload of a STAGED."""
    return layouts.STAGED.pack(rows, already, 0)


def committed(last: int, already: bool) -> bytes:
    """Return the payload of a COMMITTED."""
    return layouts.COMMITTED.pack(last, already, 0)


def batch_is(last: int) -> bytes:
    """Return the payload of an ABORTED, or of a LAST_IS."""
    return layouts.BATCH.pack(last)
