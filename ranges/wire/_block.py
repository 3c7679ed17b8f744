"""A block: consecutive messages, column by column, as bytes.

A reader can use the columns for Arrow without looking at each row: lengths and joined bytes for
variable-length values, one integer a row for the others, accounts as codes of a dictionary. The
same bytes are on disk and in answers to readers.

Layout, little-endian; the columns of integers are aligned to 8 bytes if the block is::

    first u64 | count u32 | accounts u32 | account bytes u32 | key bytes u32 | value bytes u32
    extra bytes u32
    times     i64 * count      microseconds since 1970
    codes     u32 * count      index of the account
    key lengths u32 * count    value lengths u32 * count
    account lengths u32 * accounts
    accounts, keys, values     joined bytes; zeros up to the next multiple of 8
    extra, and again zeros

The extra part is there if some message has flags or properties; a reader that does not know it
finds its messages without it. It has the flags alone, or::

    property lengths u32 * count
    flags     u8 * count       QoS, and 4 for a message that was published to be retained
    properties                 of MQTT 5, as they travel, joined
"""

from __future__ import annotations

import sys
from array import array
from struct import Struct
from typing import Literal

BLOCK_HEADER = Struct("<QIIIIII")
"""32 bytes."""


class OpenBlock:
    """The columns of a block, as views on its bytes.

    Attributes:
        first: The number of the first message.
        count: The number of messages.
        times: The arrival time of each, in microseconds since 1970: int64.
        codes: The account of each, as an index of `names`: uint32.
        key_lengths: The length of each key: uint32.
        value_lengths: The length of each value: uint32.
        names: The names of the accounts that are charged: the ultimate causes.
        keys: All keys, joined; for publications, the topics.
        values: All values, joined.
        flags: The QoS of each, plus `RETAIN`; empty: all are 0.
        property_lengths: The length of the properties of each: uint32; empty: there are none.
        properties: All properties, joined.

    Raises:
        ValueError: The block is shorter than its header says, or its names do not fit.
        struct.error: It is shorter than a header.
    """

    __slots__ = (
        "codes", "count", "first", "flags", "key_lengths", "keys", "names", "properties",
        "property_lengths", "times", "value_lengths", "values",
    )  # fmt: skip

    def __init__(self, block: bytes | memoryview) -> None:
        view = memoryview(block)
        fields: tuple[int, ...] = BLOCK_HEADER.unpack_from(view)
        self.first, self.count, names, name_bytes, key_bytes, value_bytes, extra = fields
        count = self.count
        place = BLOCK_HEADER.size

        def take(size: int) -> memoryview:
            nonlocal place
            part = view[place : place + size] if size >= 0 else view[:0]
            if len(part) != size:
                msg = f"a block of {len(view)} bytes is shorter than it says"
                raise ValueError(msg)
            place += size
            return part

        self.times = _native(take(8 * count), "q")
        self.codes = _native(take(4 * count), "I")
        self.key_lengths = _native(take(4 * count), "I")
        self.value_lengths = _native(take(4 * count), "I")
        lengths = _native(take(4 * names), "I")
        joined = take(name_bytes)
        self.keys = take(key_bytes)
        self.values = take(value_bytes)
        if sum(lengths) != name_bytes:
            raise ValueError("a block whose columns do not fit each other")
        self.names: list[bytes] = []
        at = 0
        for length in lengths:
            self.names.append(bytes(joined[at : at + length]))
            at += length
        place += -place % 8 if extra else 0
        lengths_bytes = 4 * count if extra > count else 0
        self.property_lengths = _native(take(lengths_bytes), "I")
        self.flags = take(count if extra else 0)
        self.properties = take(extra - lengths_bytes - count if extra else 0)
        if sum(self.property_lengths) != len(self.properties):
            raise ValueError("a block whose columns do not fit each other")


def _native(raw: memoryview, typecode: Literal["q", "I"]) -> memoryview:
    if sys.byteorder == "little":
        return raw.cast(typecode)
    numbers = array(typecode, raw.tobytes())
    numbers.byteswap()
    return memoryview(numbers)
