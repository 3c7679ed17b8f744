"""An index of patterns by shape.

Theory of operation. Patterns that look at the same places share a table, keyed by the constants
that they want to find there; below that, those that show the same captures share one `Endpoint`.
So an event is compared once with each distinct shape, however many observers there are, and then
found by a dictionary look-up. Shapes are kept by the type of the event, with those that take any
type apart; tables are removed when their last observer goes (upstream's never are).

Source: the idea is syndicate-rs's skeleton.rs; the arrangement is our own.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import attrs

from ._bag import type_of
from ._pattern import (
    Path,
    Pattern,
    Shape,
    Skeleton,
    captured,
    constants_of,
    fits,
    take_apart,
)


@attrs.define(slots=True, eq=False)
class Endpoint:
    """Those observers that look for the same and are shown the same."""

    captures: tuple[Path, ...]
    observers: dict[Any, None] = attrs.field(factory=dict[Any, None])
    """In the order in which they came."""
    shown: dict[Hashable, tuple[Any, int]] = attrs.field(factory=dict[Hashable, tuple[Any, int]])
    """What of the assertions they have been shown, by its identity, and how many assertions show
    just that."""


Constants = tuple[tuple[type, Hashable], ...]
Table = dict[Constants, dict[tuple[Path, ...], Endpoint]]


class PatternIndex:
    """Observers by pattern."""

    def __init__(self) -> None:
        # None is for shapes that take events of any type.
        self._by_type: dict[type | None, dict[Shape, Table]] = {}

    def __len__(self) -> int:
        """Return the number of distinct shapes."""
        return sum(len(tables) for tables in self._by_type.values())

    def add(self, pattern: Pattern, observer: Any) -> tuple[Endpoint, Skeleton]:
        """Add an observer; return its endpoint, which may be new, and the pattern taken apart."""
        skeleton = take_apart(pattern)
        return self.put(skeleton, observer, Endpoint(skeleton.captures)), skeleton

    def put(self, skeleton: Skeleton, observer: Any, endpoint: Endpoint) -> Endpoint:
        """Add an observer; return its endpoint, which is `endpoint` if there is none yet."""
        tables = self._by_type.setdefault(type_wanted(skeleton), {})
        table = tables.setdefault(skeleton.shape, {})
        endpoints = table.setdefault(skeleton.constants, {})
        endpoint = endpoints.setdefault(skeleton.captures, endpoint)
        endpoint.observers[observer] = None
        return endpoint

    def remove(self, skeleton: Skeleton, observer: Any) -> Endpoint:
        """Remove an observer, and every table that is empty now; return its endpoint."""
        root = type_wanted(skeleton)
        tables = self._by_type[root]
        table = tables[skeleton.shape]
        endpoints = table[skeleton.constants]
        endpoint = endpoints[skeleton.captures]
        del endpoint.observers[observer]
        if not endpoint.observers:
            del endpoints[skeleton.captures]
        if not endpoints:
            del table[skeleton.constants]
        if not table:
            del tables[skeleton.shape]
        if not tables:
            del self._by_type[root]
        return endpoint

    def may_concern(self, type_: type) -> bool:
        """Whether some pattern might match an event of this type."""
        return None in self._by_type or type_ in self._by_type

    def matching(self, value: Any) -> Iterator[tuple[Endpoint, Any]]:
        """Yield each endpoint that `value` concerns, with what its observers are shown of it."""
        for root in (type_of(value), None):
            for shape, table in self._by_type.get(root, {}).items():
                if fits(shape, value):
                    endpoints = table.get(tuple(constants_of(shape, value)))
                    if endpoints is not None:
                        for endpoint in endpoints.values():
                            yield endpoint, captured(endpoint.captures, value)


def matches(skeleton: Skeleton, value: Any) -> bool:
    """Whether one pattern matches one value."""
    shape = skeleton.shape
    return fits(shape, value) and tuple(constants_of(shape, value)) == skeleton.constants


def type_wanted(skeleton: Skeleton) -> type | None:
    """Return the type of all events that the pattern can match; None if it may be any."""
    # Groups and constants are listed outermost first.
    shape = skeleton.shape
    if shape.groups and shape.groups[0][0] == ():
        return shape.groups[0][1]
    if shape.constants and shape.constants[0] == ():
        return skeleton.constants[0][0]
    return None
