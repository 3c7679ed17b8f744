"""An index of patterns by shape.

Theory of operation. Patterns that look at the same places share a table, keyed by the constants
that they want to find there; below that, those that show the same captures share one `Endpoint`.
So an event is compared once with each distinct shape, however many observers there are, and then
found by a dictionary look-up. Shapes are kept by the kind of the event, with those that take any
kind apart; tables are removed when their last observer goes (upstream's never are).

Source: the idea is syndicate-rs's skeleton.rs; the arrangement is our own.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import attrs

from ._errors import TooManyShapesError
from ._kinds import kind_of
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

    captures: tuple[Path, ...] | None
    observers: dict[Any, None] = attrs.field(factory=dict[Any, None])
    """In the order in which they came."""
    shown: dict[Hashable, tuple[Any, int]] = attrs.field(factory=dict[Hashable, tuple[Any, int]])
    """What of the assertions they have been shown, by its identity, and how many assertions show
    just that."""


Constants = tuple[tuple[type, Hashable], ...]
Table = dict[Constants, dict[tuple[Path, ...] | None, Endpoint]]

DEFAULT_MAX_SHAPES = 10_000
"""Distinct shapes of patterns. Routing a value looks at all those of its kind, at 1 to 2 us each;
a program's own patterns have a few dozen."""


class PatternIndex:
    """Observers by pattern.

    Attributes:
        max_shapes: How many distinct shapes there may be.
        version: Changes whenever an observer comes or goes: what was found of values before may not
            be true any more.
    """

    def __init__(self, max_shapes: int = DEFAULT_MAX_SHAPES) -> None:
        self.max_shapes = max_shapes
        self.version = 0
        self._shapes = 0
        # None is for shapes that take events of any kind.
        self._by_kind: dict[Hashable, dict[Shape, Table]] = {}

    def __len__(self) -> int:
        """Return the number of distinct shapes."""
        return self._shapes

    def add(self, pattern: Pattern, observer: Any) -> tuple[Endpoint, Skeleton]:
        """Add an observer; return its endpoint, which may be new, and the pattern taken apart.

        Raises:
            TooManyShapesError: If there are `max_shapes` others already.
        """
        skeleton = take_apart(pattern)
        return self.put(skeleton, observer, Endpoint(skeleton.captures)), skeleton

    def put(self, skeleton: Skeleton, observer: Any, endpoint: Endpoint) -> Endpoint:
        """Add an observer; return its endpoint, which is `endpoint` if there is none yet.

        Raises as `add`.
        """
        root = kind_wanted(skeleton)
        table = self._by_kind.get(root, {}).get(skeleton.shape)
        if table is None:
            if self._shapes >= self.max_shapes:
                msg = (
                    f"{self._shapes} different shapes of patterns are observed, which is the "
                    "limit; use patterns that look at the same places, or raise max_shapes"
                )
                raise TooManyShapesError(msg)
            table = self._by_kind.setdefault(root, {})[skeleton.shape] = {}
            self._shapes += 1
        self.version += 1
        endpoints = table.setdefault(skeleton.constants, {})
        endpoint = endpoints.setdefault(skeleton.captures, endpoint)
        endpoint.observers[observer] = None
        return endpoint

    def remove(self, skeleton: Skeleton, observer: Any) -> Endpoint:
        """Remove an observer, and every table that is empty now; return its endpoint."""
        root = kind_wanted(skeleton)
        tables = self._by_kind[root]
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
            self._shapes -= 1
        if not tables:
            del self._by_kind[root]
        self.version += 1
        return endpoint

    def may_concern(self, kind: Hashable) -> bool:
        """Whether some pattern might match an event of this kind."""
        return None in self._by_kind or kind in self._by_kind

    def matching(self, value: Any) -> Iterator[tuple[Endpoint, Any]]:
        """Yield each endpoint that `value` concerns, with what its observers are shown of it."""
        for root in (kind_of(value), None):
            for shape, table in self._by_kind.get(root, {}).items():
                if fits(shape, value):
                    endpoints = table.get(tuple(constants_of(shape, value)))
                    if endpoints is not None:
                        for endpoint in endpoints.values():
                            yield endpoint, captured(endpoint.captures, value)

    def concerned(self, value: Any, varying: Path | None = None) -> list[Endpoint] | None:
        """Return the endpoints that `value` concerns.

        With `varying`, those that it concerns whatever atom of its type stands there; None if some
        pattern has a constant there, so that it depends.
        """
        found: list[Endpoint] = []
        for root in (kind_of(value), None):
            tables = self._by_kind.get(root)
            if tables is None:
                continue
            for shape, table in tables.items():
                if varying is not None and varying in shape.constants:
                    return None
                if fits(shape, value):
                    constants = tuple(constants_of(shape, value)) if shape.constants else ()
                    found += table.get(constants, {}).values()
        return found


def matches(skeleton: Skeleton, value: Any) -> bool:
    """Whether one pattern matches one value."""
    shape = skeleton.shape
    return fits(shape, value) and tuple(constants_of(shape, value)) == skeleton.constants


def kind_wanted(skeleton: Skeleton) -> Hashable:
    """Return the kind of all events that the pattern can match; None if it may be any."""
    # Groups and constants are listed outermost first.
    shape = skeleton.shape
    if shape.groups and shape.groups[0][0] == ():
        return shape.groups[0][1]
    if shape.constants and shape.constants[0] == ():
        return skeleton.constants[0][0]
    return None
