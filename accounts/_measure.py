"""Default size of an event in bytes, when the caller gives none."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, cast

import attrs

ATOM_BYTES = 8
"""Bytes charged for a number, a truth value or anything without a length of its own."""

MAX_DEPTH = 8
"""Depth to which a nested event is measured; anything deeper counts as one atom."""


@cache
def _field_names(cls: type) -> tuple[str, ...] | None:
    return tuple(f.name for f in attrs.fields(cls)) if attrs.has(cls) else None


def measure(event: object, depth: int = MAX_DEPTH) -> int:
    """Return the bytes that `event` is charged for: the lengths of its bytes and texts.

    Bytes-like objects and `str` count by length, anything else without parts counts
    `ATOM_BYTES`; tuples, lists, sets, mappings and attrs instances are the sum of their parts.
    An object with an integer attribute `nbytes` (a `memoryview`, an array, a `Batch`) is believed.
    It is an estimate, proportional to the memory that the event keeps, not its `sys.getsizeof`.
    """
    if isinstance(event, (bytes, str, bytearray)):
        return len(event)
    nbytes = getattr(event, "nbytes", None)
    if isinstance(nbytes, int):
        return nbytes
    if depth <= 0:
        return ATOM_BYTES
    if isinstance(event, (tuple, list, frozenset, set)):
        parts = cast("tuple[object, ...]", event)
        return ATOM_BYTES + sum(measure(part, depth - 1) for part in parts)
    if isinstance(event, Mapping):
        pairs = cast("Any", event).items()
        return ATOM_BYTES + sum(measure(k, depth - 1) + measure(v, depth - 1) for k, v in pairs)
    cls: Any = type(event)
    names = _field_names(cls)
    if names:
        return ATOM_BYTES + sum(measure(getattr(event, name), depth - 1) for name in names)
    return ATOM_BYTES
