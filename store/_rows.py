"""Rows of the database as bytes with checksums, and back."""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ._changes import Body

RUN_BYTES: Final = 64 << 10
"""Bytes of messages in a row of `run`; a reader has to take all of them."""

RUN_MESSAGES: Final = 1024
"""Messages in one."""

GAPS: Final = 1
SHARED: Final = 2

WRONG: Final = "its checksum is wrong"
"""What is said of a row that is not what was written."""

_HEAD: Final = struct.Struct(">qqqqqq")
_FINISHED: Final = struct.Struct(">qq")
_NUMBER: Final = struct.Struct(">q")

RunRow: TypeAlias = tuple[int, int, int, int, int, int, bytes, bytes]
"""Queue, first, last, count, size, kind, columns, data."""


class CorruptRowError(ValueError):
    """A row is not what was written."""


def check_types(row: Sequence[Any], types: str) -> None:
    """Check the types of a row's columns: `i` for an integer, `b` for bytes.

    Raises:
        CorruptRowError: One is another: SQLite takes it from the row itself.
    """
    if len(row) != len(types):
        raise CorruptRowError("it is not there")
    for value, wanted in zip(row, types, strict=True):
        if type(value) is not (int if wanted == "i" else bytes):
            raise CorruptRowError("a column has another type")


class Messages(NamedTuple):
    """Messages of one queue, in columns of equal length."""

    seqs: Sequence[int]
    headers: Sequence[bytes]
    bodies: Sequence[bytes | Body]
    sizes: Sequence[int]
    shared: bool
    """Whether some of the bodies are a `Body`."""

    def at(self, places: Sequence[int]) -> Messages:
        """Return those at some places."""
        return Messages(
            [self.seqs[at] for at in places],
            [self.headers[at] for at in places],
            [self.bodies[at] for at in places],
            [self.sizes[at] for at in places],
            self.shared,
        )


def runs_of(messages: Messages) -> Iterator[tuple[int, int]]:
    """Yield the places, from and up to, of the messages that a row has."""
    lengths = map(int.__add__, map(len, messages.headers), map(len, messages.bodies))
    ends = list(accumulate(lengths, initial=0))
    start, number = 0, len(messages.seqs)
    while start < number:
        stop = bisect_right(ends, ends[start] + RUN_BYTES) - 1
        stop = min(max(stop, start + 1), start + RUN_MESSAGES, number)
        yield start, stop
        start = stop


def encode_run(queue: int, messages: Messages, start: int, stop: int) -> RunRow:
    """Return the row of some messages; their shared bodies have their keys."""
    seqs, headers = messages.seqs[start:stop], messages.headers[start:stop]
    bodies, sizes = messages.bodies[start:stop], messages.sizes[start:stop]
    kind, more = 0, b""
    if seqs[-1] - seqs[0] >= len(seqs):
        kind, more = GAPS, array("Q", seqs).tobytes()
    if messages.shared:
        keys = array("q", [0 if isinstance(body, bytes) else body.ident for body in bodies])
        if any(keys):
            kind, more = kind | SHARED, more + keys.tobytes()
        bodies = [body if isinstance(body, bytes) else b"" for body in bodies]
    lengths = array("I", map(len, headers))
    lengths.extend(map(len, bodies))
    lengths.extend(sizes)
    data = b"".join([*headers, *bodies])  # type: ignore[list-item]  # No `Body` is left.
    columns = lengths.tobytes() + more
    return queue, seqs[0], seqs[-1], len(seqs), sum(sizes), kind, columns, data


def checksum_of_run(row: RunRow) -> int:
    """Return the checksum of a row."""
    return crc32(row[7], crc32(row[6], crc32(_HEAD.pack(*row[:6]))))


def whole_run(row: Sequence[Any]) -> RunRow:
    """Return a row of `run`, given with its checksum.

    Raises:
        CorruptRowError: It is not what was written.
    """
    check_types(row, "iiiiiibbi")
    queue, first, last, count, size, kind, columns, data, checked = row
    found = queue, first, last, count, size, kind, columns, data
    if checksum_of_run(found) != checked:
        raise CorruptRowError(WRONG)
    return found


def checksum(number: int, *parts: bytes) -> int:
    """Return the checksum of a row with one number and some bytes."""
    found = crc32(_NUMBER.pack(number))
    for part in parts:
        found = crc32(part, crc32(_NUMBER.pack(len(part)), found))
    return found


class Columns:
    """The columns of a row but for its headers and bodies.

    Raises:
        CorruptRowError: Their length is wrong.
    """

    __slots__ = ("count", "keys", "lengths", "seqs", "sizes")

    def __init__(self, first: int, count: int, kind: int, columns: bytes) -> None:
        self.count = count
        at = 12 * count
        wanted = at + 8 * count * ((kind & GAPS > 0) + (kind & SHARED > 0))
        if count < 1 or len(columns) != wanted:
            msg = f"{len(columns)} bytes for the columns of {count} messages"
            raise CorruptRowError(msg)
        numbers = array("I", columns[:at])
        self.lengths = numbers[: 2 * count]
        self.sizes: Sequence[int] = numbers[2 * count :]
        self.seqs: Sequence[int] = range(first, first + count)
        if kind & GAPS:
            self.seqs = array("Q", columns[at : at + 8 * count])
            at += 8 * count
        self.keys = array("q", columns[at:]) if kind & SHARED else None
        """Of the shared bodies; 0: its body is its own."""

    def bits(self, first: int, last: int) -> int:
        """Return the bits of the messages with numbers from `first` to `last`."""
        start, stop = bisect_left(self.seqs, first), bisect_right(self.seqs, last)
        return ((1 << stop) - 1) ^ ((1 << start) - 1) if start < stop else 0

    def size(self, bits: int) -> int:
        """Return the sum of the sizes of some messages."""
        return sum(map(self.sizes.__getitem__, ones(bits)))

    def cut(self, data: bytes) -> tuple[list[bytes], list[bytes]]:
        """Return all headers and all bodies; a shared body is empty.

        Raises:
            CorruptRowError: Their lengths are not that of `data`.
        """
        ends = list(accumulate(self.lengths, initial=0))
        if ends[-1] != len(data):
            msg = f"{len(data)} bytes where the columns say {ends[-1]}"
            raise CorruptRowError(msg)
        pieces = [data[a:b] for a, b in pairwise(ends)]
        return pieces[: self.count], pieces[self.count :]


def places_of(seqs: Sequence[int], ranges: Iterable[tuple[int, int]]) -> list[int]:
    """Return the places of the numbers that are in some ranges."""
    found: list[int] = []
    for first, last in ranges:
        found.extend(range(bisect_left(seqs, first), bisect_right(seqs, last)))
    return found


def ones(bits: int) -> list[int]:
    """Return the places of the bits that are set, in order."""
    found: list[int] = []
    base = 0
    while bits:
        skip = (bits & -bits).bit_length() - 1  # Up to the first one that is set...
        bits >>= skip
        run = (~bits & (bits + 1)).bit_length() - 1  # ...and those that follow it.
        base += skip
        found.extend(range(base, base + run))
        bits >>= run
        base += run
    return found


def encode_finished(run: int, size: int, bits: int) -> tuple[int, int, bytes, int]:
    """Return the row of the done messages of a run: `size` bytes, at the places of `bits`."""
    mask = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
    return run, size, mask, crc32(mask, crc32(_FINISHED.pack(run, size)))


def decode_finished(run: int, size: Any, mask: Any, checked: Any) -> int:
    """Return the bits of a row of `finished`.

    Raises:
        CorruptRowError: Its checksum is wrong.
    """
    check_types((size, mask, checked), "ibi")
    if crc32(mask, crc32(_FINISHED.pack(run, size))) != checked:
        raise CorruptRowError("the checksum of its done messages is wrong")
    return int.from_bytes(mask, "little")
