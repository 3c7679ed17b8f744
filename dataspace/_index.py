"""An index of patterns by shape.

Theory of operation. Patterns that look at the same places share a table, keyed by the constants
that they want there; below that, patterns with the same captures share one `Endpoint`. So an event
is compared once with each distinct shape, however many observers there are: its atoms at the places
of the constants are looked up in the table, and only the entries found there are checked further.
Parts of the event that were looked up for one shape are remembered for the others. Shapes are kept
by the kind of the event; those that take any kind are apart. Tables are removed when their last
observer goes (upstream's never are).

Source: the idea is syndicate-rs's skeleton.rs; the arrangement is our own.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from typing import Any

import attrs

from ._errors import TooManyShapesError
from ._events import Publication
from ._kinds import kind_of
from ._pattern import (
    Looked,
    Path,
    Pattern,
    Shape,
    Skeleton,
    captured,
    fits,
    take_apart,
)


@attrs.define(slots=True, eq=False)
class Endpoint:
    """The observers that look for the same and see the same."""

    captures: tuple[Path, ...] | None
    observers: dict[Any, None] = attrs.field(factory=dict[Any, None])
    """In the order in which they came."""
    shown: dict[Hashable, tuple[Any, int]] = attrs.field(factory=dict[Hashable, tuple[Any, int]])
    """The values of assertions that they have been shown, by identity, each with the number of
    assertions that show it."""


Constants = tuple[tuple[type, Hashable], ...]


class _Table:
    """Endpoints of one shape, by their constants, and then by their captures."""

    __slots__ = ("_others", "endpoints")

    def __init__(self) -> None:
        self.endpoints: dict[Constants, dict[tuple[Path, ...] | None, Endpoint]] = {}
        # By places of constants: the constants of all patterns, without those at these places.
        self._others: dict[tuple[int, ...], set[Constants]] = {}

    def put(self, skeleton: Skeleton, endpoint: Endpoint) -> Endpoint:
        """Return the endpoint of a pattern; it is `endpoint` if there is none yet."""
        endpoints = self.endpoints.get(skeleton.constants)
        if endpoints is None:
            endpoints = self.endpoints[skeleton.constants] = {}
            self._others.clear()
        return endpoints.setdefault(skeleton.captures, endpoint)

    def remove(self, skeleton: Skeleton) -> None:
        """Remove the endpoint of a pattern."""
        endpoints = self.endpoints[skeleton.constants]
        del endpoints[skeleton.captures]
        if not endpoints:
            del self.endpoints[skeleton.constants]
            self._others.clear()

    def matching(self, shape: Shape, looked: Looked) -> Collection[Endpoint]:
        """Return the endpoints that a value matches: first by constants, which exclude most."""
        endpoints = self.endpoints.get(shape.pick(looked))
        return endpoints.values() if endpoints is not None and fits(shape, looked) else ()

    def may_depend(self, shape: Shape, looked: Looked, places: tuple[int, ...]) -> bool:
        """Whether some pattern matches, or would but for its constants at these places."""
        if not places:
            return shape.pick(looked) in self.endpoints and fits(shape, looked)
        others = self._others.get(places)
        if others is None:
            others = {_without(constants, places) for constants in self.endpoints}
            self._others[places] = others
        return _without(shape.pick(looked), places) in others and fits(shape, looked)


def _without(constants: Constants, places: tuple[int, ...]) -> Constants:
    return tuple([each for at, each in enumerate(constants) if at not in places])


DEFAULT_MAX_SHAPES = 1_000
"""Limit on distinct shapes of patterns. Routing a value looks at all those of its kind, at about 1
us each; a program's own patterns have a few dozen."""


class PatternIndex:
    """Observers by pattern.

    Attributes:
        max_shapes: Most distinct shapes there may be.
        version: Changes whenever an observer comes or goes: results of earlier look-ups may then be
            out of date.
    """

    def __init__(self, max_shapes: int = DEFAULT_MAX_SHAPES) -> None:
        self.max_shapes = max_shapes
        self.version = 0
        self._shapes = 0
        # None is for shapes that take events of any kind.
        self._by_kind: dict[Hashable, dict[Shape, _Table]] = {}

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
            table = self._by_kind.setdefault(root, {})[skeleton.shape] = _Table()
            self._shapes += 1
        self.version += 1
        endpoint = table.put(skeleton, endpoint)
        endpoint.observers[observer] = None
        return endpoint

    def remove(self, skeleton: Skeleton, observer: Any) -> Endpoint:
        """Remove an observer, and every table that is empty now; return its endpoint."""
        root = kind_wanted(skeleton)
        tables = self._by_kind[root]
        table = tables[skeleton.shape]
        endpoint = table.endpoints[skeleton.constants][skeleton.captures]
        del endpoint.observers[observer]
        if not endpoint.observers:
            table.remove(skeleton)
        if not table.endpoints:
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
        """Yield each endpoint that `value` concerns, with the value that its observers see."""
        for root in (kind_of(value), None):
            tables = self._by_kind.get(root)
            if tables is not None:
                looked = Looked(value)
                for shape, table in tables.items():
                    for endpoint in table.matching(shape, looked):
                        yield endpoint, captured(endpoint.captures, value)

    def may_concern_topic(self, publication: Publication) -> bool:
        """Whether some pattern might match a publication on this one's topic, whatever else."""
        for root in (Publication, None):
            tables = self._by_kind.get(root)
            if tables is not None:
                looked = Looked(publication)
                for shape, table in tables.items():
                    if table.may_depend(shape, looked, shape.beside_topic):
                        return True
        return False

    def deciding(self, kind: Hashable) -> set[Hashable]:
        """Return the entries of a compound of this kind on whose content its observers depend.

        Besides, they depend on which entries there are.
        """
        entries: set[Hashable] = set()
        for root in (kind, None):
            for shape in self._by_kind.get(root, {}):
                paths = (*shape.constants, *(path for path, _, _ in shape.groups))
                entries.update(path[0] for path in paths if path)
        return entries

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
            looked = Looked(value)
            for shape, table in tables.items():
                if varying is not None and varying in shape.constants:
                    if table.may_depend(shape, looked, (shape.constants.index(varying),)):
                        return None
                    continue
                found += table.matching(shape, looked)
        return found


def matches(skeleton: Skeleton, value: Any) -> bool:
    """Whether one pattern matches one value."""
    shape = skeleton.shape
    if kind_wanted(skeleton) not in (None, kind_of(value)):
        return False
    looked = Looked(value)
    return shape.pick(looked) == skeleton.constants and fits(shape, looked)


def kind_wanted(skeleton: Skeleton) -> Hashable:
    """Return the kind of all events that the pattern can match; None if it may be any."""
    # Groups and constants are listed outermost first.
    shape = skeleton.shape
    if shape.groups and shape.groups[0][0] == ():
        return shape.groups[0][1]
    if shape.constants and shape.constants[0] == ():
        return skeleton.constants[0][0]
    return None
