"""The places of messages in a subscription's chunks, and the bytes before them."""

from __future__ import annotations

from collections.abc import Sequence

from ._block import Columns, open_block
from ._chunk import ROW_BYTES, Chunk, Tail


def place_of(chunks: Sequence[Chunk], number: int) -> int:
    """Return the index of a message's chunk; for the tail, the number of chunks."""
    low, high = 0, len(chunks)
    while low < high:
        middle = (low + high) // 2
        if chunks[middle].end <= number:
            low = middle + 1
        else:
            high = middle
    return low


def bytes_before(
    chunks: Sequence[Chunk], tail: Tail, sealed_bytes: int, place: int, number: int
) -> int:
    """Return the number of bytes before a message, ever; `place` is its chunk."""
    if place == len(chunks):
        columns: Columns = tail
        before = sealed_bytes
    else:
        chunk = chunks[place]
        before = chunk.before
        if chunk.block is None:
            share = number - chunk.first, chunk.end - chunk.first
            return before + (chunk.upto - before) * share[0] // share[1]
        columns = open_block(chunk.block)
    count = number - columns.first
    keys, values = columns.key_lengths[:count], columns.value_lengths[:count]
    return before + sum(keys) + sum(values) + count * ROW_BYTES


def number_at(chunks: Sequence[Chunk], tail: Tail, sealed_bytes: int, place: int, most: int) -> int:
    """Return the first message of a chunk before whose end there are more than `most` bytes."""
    if place == len(chunks):
        columns: Columns = tail
        before = sealed_bytes
    else:
        chunk = chunks[place]
        before = chunk.before
        if chunk.block is None:
            count = chunk.end - chunk.first
            return chunk.first + count * (most - before) // max(1, chunk.upto - before)
        columns = open_block(chunk.block)
    number = columns.first
    for key, value in zip(columns.key_lengths, columns.value_lengths, strict=True):
        before += key + value + ROW_BYTES
        if before > most:
            break
        number += 1
    return number
