"""The bag: every asserted value once, with the number of its assertions.

In Python 1, True and 1.0 are equal, but patterns tell them apart. If they were one here, observers
would hear the one appear and the other go. So values are kept by their `identity`, and the value
reported gone is the one that appeared, whichever of the equal assertions is the last.

They are kept by kind: a new observer gets the values that stand, and its pattern names their kind.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterator, Mapping
from types import NoneType
from typing import Any, cast

import attrs

from ._kinds import Foreign, kind_of

# Exactly these are equal to nothing of another type, so they stand for themselves.
_PLAIN = frozenset({str, bytes, NoneType})


def identity(value: object) -> Hashable:
    """Return a key that is the same for equal values of equal types, all through; always hashable.

    An attrs instance is its class and those of its fields that it compares. A mutable value counts
    as what it holds now: do not change it while it is asserted.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is float:
        # Bit by bit: NaN must be found again, and -0.0 is not 0.0.
        return (kind, struct.pack(">d", value))
    if isinstance(value, Foreign):
        return value.pattern_identity()
    if isinstance(value, (tuple, list)):
        return (kind, *map(identity, cast("tuple[object, ...]", value)))
    if isinstance(value, (frozenset, set)):
        return (kind, frozenset(map(identity, cast("frozenset[object]", value))))
    if isinstance(value, Mapping):
        pairs = cast("Mapping[object, object]", value).items()
        return (kind, frozenset((identity(key), identity(part)) for key, part in pairs))
    if attrs.has(kind) and kind.__eq__ is not object.__eq__:
        parts = ((f.eq_key, getattr(value, f.name, None)) for f in attrs.fields(kind) if f.eq)
        return (kind, *(identity(key(part) if key else part) for key, part in parts))
    try:
        hash(value)
    except TypeError:
        return (kind, id(value))
    return (kind, value)


@attrs.define(slots=True, eq=False)
class Entry:
    """One value that stands."""

    value: Any
    """The first of the equal values that are asserted: observers were told of this one."""
    count: int = 0
    """The number of its assertions."""


class Bag:
    """Values by kind and identity. Empty tables are removed."""

    def __init__(self) -> None:
        self._by_kind: dict[Hashable, dict[Hashable, Entry]] = {}

    def __len__(self) -> int:
        """Return the number of distinct values."""
        return sum(len(entries) for entries in self._by_kind.values())

    def __iter__(self) -> Iterator[Any]:
        """Yield the distinct values."""
        for entries in self._by_kind.values():
            for entry in entries.values():
                yield entry.value

    def of_kind(self, kind: Hashable) -> Iterator[tuple[Hashable, Any]]:
        """Yield (identity, value) of the values of this kind; None means any kind."""
        kinds = list(self._by_kind) if kind is None else [kind]
        for each in kinds:
            for key, entry in self._by_kind.get(each, {}).items():
                yield key, entry.value

    def add(self, key: Hashable, value: Any, entry: Entry | None = None) -> Entry:
        """Count one more assertion of `value`, whose identity is `key`; return its entry.

        To undo a `remove`, `entry` is what it returned.
        """
        entries = self._by_kind.setdefault(kind_of(value), {})
        found = entries.get(key)
        if found is None:
            found = entries[key] = Entry(value) if entry is None else entry
        found.count += 1
        return found

    def remove(self, key: Hashable, value: Any) -> Entry:
        """Count one assertion of `value` less, which must be there; return its entry."""
        kind = kind_of(value)
        entries = self._by_kind[kind]
        entry = entries[key]
        entry.count -= 1
        if not entry.count:
            del entries[key]
            if not entries:
                del self._by_kind[kind]
        return entry
