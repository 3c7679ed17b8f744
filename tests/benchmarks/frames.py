"""MQTT frames, for the servers here that a load generator is tried with."""

from __future__ import annotations


def frame_end(data: bytes) -> int | None:
    """Return where the first packet ends; None if it is not all there."""
    size = 0
    for index, digit in enumerate(data[1:5]):
        size |= (digit & 0x7F) << 7 * index
        if digit < 0x80:
            end = 2 + index + size
            return end if end <= len(data) else None
    return None
