"""Blocks of messages, as readers get them: joining, cutting and merging them."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import Protocol

from ..wire import BLOCK_HEADER, OpenBlock

MERGE_BYTES = 64 << 10
"""Blocks are merged up to this size, that of a whole chunk."""

_SWAPPED = sys.byteorder == "big"


class Columns(Protocol):
    """Messages column by column: an opened block, or a growing one."""

    @property
    def first(self) -> int:
        """The number of the first message."""
        ...

    @property
    def times(self) -> array[int] | memoryview:
        """The arrival time of each, in microseconds since 1970."""
        ...

    @property
    def codes(self) -> array[int] | memoryview:
        """The account of each, as an index of `names`."""
        ...

    @property
    def key_lengths(self) -> array[int] | memoryview:
        """The length of each key."""
        ...

    @property
    def value_lengths(self) -> array[int] | memoryview:
        """The length of each value."""
        ...

    @property
    def names(self) -> Sequence[bytes]:
        """The names of the accounts."""
        ...

    @property
    def keys(self) -> bytearray | memoryview:
        """All keys, joined."""
        ...

    @property
    def values(self) -> bytearray | memoryview:
        """All values, joined."""
        ...

    @property
    def flags(self) -> bytearray | memoryview:
        """The flags of each; empty: all are 0."""
        ...

    @property
    def property_lengths(self) -> array[int] | memoryview:
        """The length of the properties of each; missing ones are 0."""
        ...

    @property
    def properties(self) -> bytearray | memoryview:
        """All properties, joined."""
        ...


def join_block(columns: Columns, start: int, end: int) -> bytes:
    """Return the block of the messages from `start` to before `end`."""
    at, stop = start - columns.first, end - columns.first
    # Sums over integers without a Python loop: a microsecond for a hundred rows.
    key_at = sum(columns.key_lengths[:at])
    value_at = sum(columns.value_lengths[:at])
    key_lengths = columns.key_lengths[at:stop]
    value_lengths = columns.value_lengths[at:stop]
    key_end = key_at + sum(key_lengths)
    value_end = value_at + sum(value_lengths)
    names = columns.names
    joined = b"".join(names)
    extra = _extra(columns, at, stop)
    sizes = len(joined), key_end - key_at, value_end - value_at, len(extra)
    block = b"".join(
        (
            BLOCK_HEADER.pack(start, stop - at, len(names), *sizes),
            _little(columns.times[at:stop]),
            _little(columns.codes[at:stop]),
            _little(key_lengths),
            _little(value_lengths),
            _little(array("I", map(len, names))),
            joined,
            columns.keys[key_at:key_end],
            columns.values[value_at:value_end],
        )
    )
    block = _padded(block)
    return _padded(block + extra) if extra else block


def _padded(block: bytes) -> bytes:
    rest = -len(block) % 8
    return block + bytes(rest) if rest else block


def _extra(columns: Columns, at: int, stop: int) -> bytes:
    """Return the part of a block that most do not need: flags and properties."""
    flags = bytes(columns.flags[at:stop])
    property_lengths = columns.property_lengths[at:stop]
    if len(property_lengths) and any(property_lengths):
        start = sum(columns.property_lengths[:at])
        properties = columns.properties[start : start + sum(property_lengths)]
        missing = bytes(4 * (stop - at - len(property_lengths)))
        return b"".join((_little(property_lengths), missing, flags or bytes(stop - at), properties))
    return flags if flags.count(0) < len(flags) else b""


def _little(numbers: array[int] | memoryview) -> array[int] | memoryview:
    if _SWAPPED:
        numbers = array(numbers.typecode if isinstance(numbers, array) else numbers.format, numbers)
        numbers.byteswap()
    return numbers


def block_range(block: bytes | memoryview) -> tuple[int, int]:
    """Return the number of a block's first message, and the number after its last."""
    first, count = BLOCK_HEADER.unpack_from(block)[:2]
    return first, first + count


def cut_block(block: bytes, start: int, end: int) -> bytes:
    """Return the part of a block with the messages from `start` to before `end`."""
    first, after = block_range(block)
    if start <= first and end >= after:
        return block
    return join_block(OpenBlock(block), max(start, first), min(end, after))


class _Grown:
    """Columns that grow by blocks."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.times: array[int] = array("q")
        self.codes: array[int] = array("I")
        self.key_lengths: array[int] = array("I")
        self.value_lengths: array[int] = array("I")
        self.keys = bytearray()
        self.values = bytearray()
        self.flags = bytearray()
        self.property_lengths: array[int] = array("I")
        self.properties = bytearray()
        self.code_of: dict[bytes, int] = {}

    @property
    def names(self) -> list[bytes]:
        return list(self.code_of)

    def add(self, block: Columns) -> None:
        codes = [self.code_of.setdefault(name, len(self.code_of)) for name in block.names]
        if codes == list(range(len(codes))):
            _append(self.codes, block.codes)
        else:
            self.codes.extend(map(codes.__getitem__, block.codes))
        _append(self.times, block.times)
        _append(self.key_lengths, block.key_lengths)
        _append(self.value_lengths, block.value_lengths)
        self.keys += block.keys
        self.values += block.values
        count = len(block.codes)
        self.flags += block.flags or bytes(count)
        lengths = block.property_lengths
        _append(self.property_lengths, lengths if len(lengths) else array("I", bytes(4 * count)))
        self.properties += block.properties


def _append(numbers: array[int], more: array[int] | memoryview) -> None:
    if isinstance(more, array):
        numbers.extend(more)
    else:
        numbers.frombytes(more.cast("B"))


def merge_blocks(blocks: Sequence[bytes], size: int = MERGE_BYTES) -> list[bytes]:
    """Return the same messages in fewer blocks: those below `size` are merged up to it.

    At low rates, blocks with a message or two are written, and each block costs its reader as much
    as a hundred rows.
    """
    merged: list[bytes] = []
    group: list[bytes] = []
    total = 0
    for block in blocks:
        if group and total + len(block) > size:
            merged.append(_merge(group))
            group, total = [], 0
        group.append(block)
        total += len(block)
    if group:
        merged.append(_merge(group))
    return merged


def _merge(blocks: list[bytes]) -> bytes:
    if len(blocks) == 1:
        return blocks[0]
    grown = _Grown(block_range(blocks[0])[0])
    for block in blocks:
        grown.add(OpenBlock(block))
    return join_block(grown, grown.first, grown.first + len(grown.codes))
