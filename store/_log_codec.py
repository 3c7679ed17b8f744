"""Changes as bytes, for a log elsewhere (`Store.unlogged`), and back.

All numbers are little-endian and without padding. What several queues have of a message, its body,
is there once in each `Changes`, whatever its size.

    group    = {length: u32, changes}
    changes  = six counts: u32, declared, dropped, values, bodies, puts, dones
    declared = queue: u64, lengths of name and meta: u32 u32, name, meta
    dropped  = queue: u64
    value    = lengths of key and value: u32 i32 (-1: deleted), key, value
    bodies   = lengths: u32 each, then the bodies
    puts     = queue: u64, count: u32, numbers: u64 each, lengths of headers: u32 each,
               sizes: u32 each, indices of bodies: u32 each, headers
    dones    = queue: u64, count: u32, first and last: u64 u64 each
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import attrs

from ._changes import MAX_SEQ, Body, Changes
from ._database import from_bytes, text
from ._errors import StoreFormatError, StoreUsageError
from ._settings import StoreSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from ._changes import Puts

_LENGTH: Final = struct.Struct("<I")
_COUNTS: Final = struct.Struct("<6I")
_DECLARED: Final = struct.Struct("<QII")
_VALUE: Final = struct.Struct("<Ii")
_MANY: Final = struct.Struct("<QI")


def encode_changes(group: Iterable[Changes]) -> bytes:
    """Return committed changes as bytes."""
    parts: list[bytes] = []
    for changes in group:
        found = _encoded(changes)
        parts += (_LENGTH.pack(len(found)), found)
    return b"".join(parts)


def _encoded(changes: Changes) -> bytes:
    places: dict[int, int] = {}
    bodies: list[bytes] = []
    puts: list[bytes] = []
    for queue, some in changes.puts.items():
        puts += _encoded_puts(queue, some, places, bodies)
    parts = [
        _COUNTS.pack(
            *(len(changes.declared), len(changes.dropped), len(changes.values), len(bodies)),
            *(len(changes.puts), len(changes.dones)),
        )
    ]
    for queue, (name, meta) in changes.declared.items():
        named = text(name)
        parts += (_DECLARED.pack(queue, len(named), len(meta)), named, meta)
    parts.append(_numbers("Q", changes.dropped))
    for key, value in changes.values.items():
        named = text(key)
        parts += (_VALUE.pack(len(named), -1 if value is None else len(value)), named, value or b"")
    parts.append(_numbers("I", [*map(len, bodies)]))
    parts += bodies
    parts += puts
    for queue, ranges in changes.dones.items():
        ends = [end for one in ranges for end in one]
        parts += (_MANY.pack(queue, len(ranges)), _numbers("Q", ends))
    return b"".join(parts)


def _encoded_puts(
    queue: int, puts: Puts, places: dict[int, int], bodies: list[bytes]
) -> tuple[bytes, ...]:
    """Return the parts of some messages; their bodies are added to `bodies`, each once.

    `places` has the place of each body by its `id`: while it is in the changes, no other has that.
    """
    indices: list[int] = []
    for body in puts.bodies:
        place = places.get(id(body))
        if place is None:
            place = places[id(body)] = len(bodies)
            bodies.append(body.data if isinstance(body, Body) else body)
        indices.append(place)
    return (
        _MANY.pack(queue, len(puts.seqs)),
        _numbers("Q", puts.seqs),
        _numbers("I", [*map(len, puts.headers)]),
        _numbers("I", puts.sizes),
        _numbers("I", indices),
        *puts.headers,
    )


def _numbers(kind: str, numbers: Iterable[int]) -> bytes:
    found = tuple(numbers)
    return struct.pack(f"<{len(found)}{kind}", *found)


def decode_changes(data: bytes, settings: StoreSettings) -> list[Changes]:
    """Return the changes in some bytes; they are like committed ones, but have no ticket.

    Args:
        data: What `encode_changes` has returned.
        settings: Of the store that will have them.

    Raises:
        StoreFormatError: They are something else.
    """
    found: list[Changes] = []
    reader = _Reader(data)
    try:
        while reader.at < len(data):
            (length,) = reader.unpack(_LENGTH)
            found.append(_decoded(_Reader(reader.bytes(length)), settings))
    except (struct.error, IndexError, ValueError, StoreUsageError) as error:
        msg = f"no changes of a store: {error}"
        raise StoreFormatError(msg) from error
    return found


@attrs.define
class _Reader:
    data: bytes
    at: int = 0

    def unpack(self, one: struct.Struct) -> tuple[Any, ...]:
        found = one.unpack_from(self.data, self.at)
        self.at += one.size
        return found

    def numbers(self, kind: str, count: int) -> tuple[int, ...]:
        # Before the format is made: a wrong count must not cost memory.
        if count * (8 if kind == "Q" else 4) > len(self.data) - self.at:
            raise IndexError("it ends in the middle")
        return self.unpack(struct.Struct(f"<{count}{kind}"))

    def bytes(self, length: int) -> bytes:
        end = self.at + length
        if end > len(self.data):
            raise IndexError("it ends in the middle")
        found = self.data[self.at : end]
        self.at = end
        return found

    def ends(self) -> None:
        if self.at != len(self.data):
            raise IndexError("it goes on after its end")


@attrs.frozen
class _NoStore:
    """In place of a store: the changes are complete, and have their ids."""

    settings: StoreSettings
    queues: Mapping[str, Any] = attrs.field(factory=dict[str, "Any"])

    def next_queue_id(self) -> int:
        raise NotImplementedError


def _decoded(reader: _Reader, settings: StoreSettings) -> Changes:
    changes = Changes(_NoStore(settings))
    declared, dropped, values, bodies, puts, dones = reader.unpack(_COUNTS)
    for _ in range(declared):
        queue, name, meta = reader.unpack(_DECLARED)
        _check(queue)
        changes.declared[queue] = from_bytes(reader.bytes(name)), reader.bytes(meta)
    changes.dropped = reader.numbers("Q", dropped)
    _check(max(changes.dropped, default=0))
    for _ in range(values):
        key, value = reader.unpack(_VALUE)
        named = from_bytes(reader.bytes(key))
        changes.values[named] = None if value < 0 else reader.bytes(value)
    shared = [changes.share(reader.bytes(size)) for size in reader.numbers("I", bodies)]
    for _ in range(puts):
        queue, count = reader.unpack(_MANY)
        if not count:
            raise ValueError("no messages")
        _check(queue)
        seqs = reader.numbers("Q", count)
        lengths, sizes, indices = (reader.numbers("I", count) for _ in range(3))
        headers = map(reader.bytes, lengths)
        for seq, header, size, index in zip(seqs, headers, sizes, indices, strict=True):
            changes.put(queue, seq, header, shared[index], size=size)
        _check(changes.puts[queue].last)
    for _ in range(dones):
        queue, count = reader.unpack(_MANY)
        ends = reader.numbers("Q", 2 * count)
        ranges = list(zip(ends[::2], ends[1::2], strict=True))
        for first, last in ranges:
            if first > last:
                raise ValueError("a range ends before it begins")
            _check(last)
        _check(queue)
        changes.dones[queue] = ranges
    reader.ends()
    changes.seal()
    return changes


def _check(number: int) -> None:
    """Check that a number is one that SQLite can have."""
    if number > MAX_SEQ:
        raise ValueError(f"{number} is too large")
