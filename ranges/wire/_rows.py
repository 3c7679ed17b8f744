"""Rows in columns: the format of a part's blocks, on the wire and on disk.

A block has its number of rows (u32), the bytes of all keys (u32) and of all values (u64); then, in
columns, the length of each key (u16) and of each value (u32), flags (u8: the QoS, and 4 for a
retained row), all keys, all values. Little-endian. The keys are topics.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import accumulate
from struct import Struct

MAX_ROWS = 4_096
"""Limit of rows in a block: to check their topics takes a few milliseconds at worst."""

RETAIN = 4
HIGHEST_QOS = 2

_HEADER = Struct("<IIQ")

ROW_OVERHEAD = 7
"""Bytes of a row besides its key and its value."""


class Rows:
    """The rows of one block.

    Attributes:
        count: The number of rows.

    Raises:
        ValueError: The columns do not fit each other.
    """

    __slots__ = ("_flags", "_key_ends", "_keys_at", "_topics", "_value_ends", "_values_at",
                 "block", "count")  # fmt: skip

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
        self._flags = flags = block[at : at + count]
        self._keys_at = at = at + count
        self._values_at = at + key_bytes
        self._key_ends = list(accumulate(key_lengths))
        self._value_ends = list(accumulate(value_lengths))
        if self._key_ends[-1] != key_bytes or self._value_ends[-1] != value_bytes:
            raise ValueError("a block whose columns do not fit each other")
        if max(flags) > RETAIN + HIGHEST_QOS or any(each & 3 > HIGHEST_QOS for each in set(flags)):
            raise ValueError(f"a row with the flags {max(flags):#x}, which mean nothing")
        self.block = block
        self.count: int = count
        self._topics: dict[bytes, str] = {}

    def _key(self, row: int) -> bytes:
        start = self._key_ends[row - 1] if row else 0
        at = self._keys_at
        return self.block[at + start : at + self._key_ends[row]]

    def fault(self, of: Callable[[str], str | None]) -> str | None:
        """Return the fault of the first topic that `of` finds invalid; None if there is none."""
        for key in set(map(self._key, range(self.count))):
            try:
                text = key.decode()
            except UnicodeDecodeError:
                return f"topic {key[:80]!r} is not UTF-8"
            fault = of(text)
            if fault is not None:
                return fault
        return None

    def __getitem__(self, row: int) -> tuple[str, bytes, int, bool]:
        """Return a row's topic, its payload, its QoS, and whether it is to be retained."""
        key = self._key(row)
        topic = self._topics.get(key)
        if topic is None:
            topic = self._topics[key] = key.decode()
        start = self._value_ends[row - 1] if row else 0
        at = self._values_at
        flags = self._flags[row]
        return (
            topic,
            self.block[at + start : at + self._value_ends[row]],
            flags & 3,
            flags & RETAIN != 0,
        )


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
