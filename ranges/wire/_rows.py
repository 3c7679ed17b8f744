"""Rows in columns: the format of a part's blocks, on the wire and on disk.

A block has its number of rows (u32), the bytes of all keys (u32) and of all values (u64); then, in
columns, the length of each key (u16) and of each value (u32), flags (u8: the QoS, 4 for a retained
row, 8 for one with properties), all keys, all values. Little-endian. The keys are topics. A row
with properties has them before its value: their length (u32), and they as they travel in MQTT 5.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from struct import Struct

MAX_ROWS = 4_096
"""Limit of rows in a block: to check their topics takes a few milliseconds at worst."""

RETAIN = 4
WITH_PROPERTIES = 8
HIGHEST_QOS = 2

_HEADER = Struct("<IIQ")
_PROPERTIES = Struct("<I")

ROW_OVERHEAD = 7
"""Bytes of a row besides its key and its value."""


class Rows:
    """The rows of one block.

    Attributes:
        block: Its bytes.
        count: The number of rows.
        flags: The flags of each.
        with_properties: Whether some row has properties.

    Raises:
        ValueError: The columns do not fit each other.
    """

    def __init__(self, block: bytes) -> None:
        try:
            count, key_bytes, value_bytes = _HEADER.unpack_from(block)
        except struct.error as exc:
            raise ValueError(f"a block of {len(block)} bytes has no header") from exc
        if not 0 < count <= MAX_ROWS:
            raise ValueError(f"a block of {count} rows: from 1 to {MAX_ROWS} are allowed")
        at = _HEADER.size
        if len(block) != at + count * ROW_OVERHEAD + key_bytes + value_bytes:
            raise ValueError(f"a block of {len(block)} bytes is not as long as it says")
        key_lengths: tuple[int, ...] = struct.unpack_from(f"<{count}H", block, at)
        at += 2 * count
        value_lengths: tuple[int, ...] = struct.unpack_from(f"<{count}I", block, at)
        at += 4 * count
        flags = block[at : at + count]
        self._keys_at = at = at + count
        self._values_at = at + key_bytes
        self._key_ends = list(accumulate(key_lengths))
        self._value_ends = list(accumulate(value_lengths))
        if self._key_ends[-1] != key_bytes or self._value_ends[-1] != value_bytes:
            raise ValueError("a block whose columns do not fit each other")
        kinds = set(flags)
        if max(kinds) > 15 or any(each & 3 > HIGHEST_QOS for each in kinds):
            raise ValueError(f"a row with the flags {max(kinds):#x}, which mean nothing")
        self.block = block
        self.count: int = count
        self.flags = flags
        self.with_properties = any(each & WITH_PROPERTIES for each in kinds)
        self._key_lengths = key_lengths
        self._value_lengths = value_lengths
        self._topics: dict[bytes, str] = {}
        if self.with_properties:
            for row, each in enumerate(flags):
                if each & WITH_PROPERTIES:
                    self._value(row)

    @cached_property
    def keys(self) -> list[bytes]:
        """The key of each row."""
        block, at, ends = self.block, self._keys_at, self._key_ends
        first = block[at : at + ends[0]]
        # Only if the lengths allow it: the product must not be larger than the block.
        alike = ends[-1] == len(first) * self.count
        if alike and block[at : self._values_at] == first * self.count:
            return [first] * self.count
        return [block[at + start : at + end] for start, end in pairwise((0, *ends))]

    def fault(self, of: Callable[[str], str | None]) -> str | None:
        """Return the fault of the first topic that `of` finds invalid; None if there is none."""
        for key in set(self.keys):
            try:
                text = key.decode()
            except UnicodeDecodeError:
                return f"topic {key[:80]!r} is not UTF-8"
            fault = of(text)
            if fault is not None:
                return fault
        return None

    def properties(self) -> set[bytes]:
        """Return the properties of all rows that have some."""
        return {
            self._value(row)[1]
            for row, each in enumerate(self.flags)
            if self.with_properties and each & WITH_PROPERTIES
        }

    def nbytes(self, start: int, end: int) -> int:
        """Return the bytes of the keys and values of the rows from `start` to before `end`."""
        (key_at, key_end), (value_at, value_end) = self._span(start, end)
        return key_end - key_at + value_end - value_at

    def columns(self, start: int, end: int) -> tuple[Sequence[int], Sequence[int], bytes, bytes]:
        """Return the lengths of keys and of values, and both joined, of some rows.

        For rows without properties.
        """
        keys, values = self._span(start, end)
        lengths = self._key_lengths[start:end], self._value_lengths[start:end]
        return (*lengths, self.block[slice(*keys)], self.block[slice(*values)])

    def _span(self, start: int, end: int) -> tuple[tuple[int, int], tuple[int, int]]:
        keys, values = self._key_ends, self._value_ends
        return (
            (self._keys_at + (keys[start - 1] if start else 0), self._keys_at + keys[end - 1]),
            (
                self._values_at + (values[start - 1] if start else 0),
                self._values_at + values[end - 1],
            ),
        )

    def values(self, start: int, end: int) -> list[bytes]:
        """Return the values of some rows, without properties."""
        block, at = self.block, self._values_at
        first = self._value_ends[start - 1] if start else 0
        ends = self._value_ends[start:end]
        return [block[at + one : at + other] for one, other in pairwise((first, *ends))]

    def _value(self, row: int) -> tuple[bytes, bytes]:
        """Return a row's value, and its properties."""
        start = self._value_ends[row - 1] if row else 0
        value = self.block[self._values_at + start : self._values_at + self._value_ends[row]]
        if not self.flags[row] & WITH_PROPERTIES:
            return value, b""
        if len(value) < _PROPERTIES.size:
            raise ValueError("a row whose properties are cut short")
        end = _PROPERTIES.size + _PROPERTIES.unpack_from(value)[0]
        if end > len(value):
            raise ValueError("a row whose properties are cut short")
        return value[end:], value[_PROPERTIES.size : end]

    def topic(self, row: int) -> str:
        """Return a row's topic."""
        key = self.keys[row]
        topic = self._topics.get(key)
        if topic is None:
            topic = self._topics[key] = key.decode()
        return topic

    def __getitem__(self, row: int) -> tuple[str, bytes, int, bool, bytes]:
        """Return a row's topic, payload, QoS, whether it is to be retained, and its properties."""
        value, properties = self._value(row)
        flags = self.flags[row]
        return self.topic(row), value, flags & 3, flags & RETAIN != 0, properties


def with_properties(properties: bytes, value: bytes) -> bytes:
    """Return the value of a row with these properties, whose flags have `WITH_PROPERTIES`."""
    return b"".join((_PROPERTIES.pack(len(properties)), properties, value))


def encode_rows(keys: Sequence[bytes], values: Sequence[bytes], flags: bytes | bytearray) -> bytes:
    """Return the block of these rows, whose topics are the keys; `Rows` checks them."""
    count = len(keys)
    joined_keys, joined_values = b"".join(keys), b"".join(values)
    return b"".join(
        (
            _HEADER.pack(count, len(joined_keys), len(joined_values)),
            struct.pack(f"<{count}H", *map(len, keys)),
            struct.pack(f"<{count}I", *map(len, values)),
            flags,
            joined_keys,
            joined_values,
        )
    )
