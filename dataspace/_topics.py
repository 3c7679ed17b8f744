"""Topic filters, MQTT's wildcards: `+` for one level, `#` for all that follow.

They have an index of their own, because open patterns can express neither `+`'s arity nor `#`.
Source: MQTT 3.1.1, section 4.7.

Theory of operation. A filter without wildcards is found by its text. Other filters share a table if
they have their wildcards in the same places; the table is keyed by the levels in between. A topic
is looked up once in the table of each such `FilterShape` that topics with its number of levels can
match. So the cost of a look-up does not depend on the number of filters. It cannot multiply as in a
trie, where each level with a `+` doubles the paths: at most one filter of a shape matches. A filter
is one entry of a table, however many levels it has; a trie has a node for each.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from operator import itemgetter
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

import attrs

from ._errors import PatternError

V = TypeVar("V")


LONG_TOPIC: Final = 256
"""Caches that are keyed by topic and bounded only by number do not keep longer topics, so that they
are bounded in bytes, too. AWS IoT Core's topics have at most 256 bytes."""


def _check_filter(_: object, __: object, text: str) -> None:
    levels = text.split("/")
    if not text:
        msg = "a topic filter must not be empty [MQTT-4.7.3-1]"
        raise PatternError(msg)
    for place, level in enumerate(levels):
        if "#" in level and (level != "#" or place != len(levels) - 1):
            msg = f"# must be alone in the last level of {text!r} [MQTT-4.7.1-2]"
            raise PatternError(msg)
        if "+" in level and level != "+":
            msg = f"+ must be alone in its level of {text!r} [MQTT-4.7.1-3]"
            raise PatternError(msg)


@attrs.frozen(slots=True)
class TopicFilter:
    """Publications whose topic matches, with MQTT's wildcards.

    Raises:
        PatternError: If it is not well formed.
    """

    text: str = attrs.field(validator=_check_filter)

    def matches(self, topic: str) -> bool:
        """Whether `topic`, a topic name, matches."""
        return topic_matches(self.text, topic)


def topic_matches(topic_filter: str, topic: str) -> bool:
    """Whether a topic name matches a well-formed topic filter."""
    wanted, levels = topic_filter.split("/"), topic.split("/")
    if topic.startswith("$") and wanted[0] in ("+", "#"):
        return False  # [MQTT-4.7.2-1]
    for place, want in enumerate(wanted):
        if want == "#":
            return True  # and the parent level: `a/#` matches `a` (4.7.1.2)
        if place >= len(levels) or want not in ("+", levels[place]):
            return False
    return len(wanted) == len(levels)


class FilterShape(NamedTuple):
    """The places of a filter's wildcards; see `shape_of`."""

    depth: int
    """Levels, without the `#`."""
    rest: bool
    """Whether a `#` follows them."""
    literals: tuple[int, ...]
    """The levels that are not `+`."""


def shape_of(topic_filter: str) -> FilterShape | None:
    """Return the places of a well-formed filter's wildcards; None if it has none."""
    if "+" not in topic_filter and "#" not in topic_filter:
        return None
    levels = topic_filter.split("/")
    rest = levels[-1] == "#"
    if rest:
        levels.pop()
    literals = tuple([place for place, level in enumerate(levels) if level != "+"])
    return FilterShape(len(levels), rest, literals)


LEVEL_BYTES: Final = 64
"""The memory of one level of a filter with wildcards (measured: 62 with short levels)."""


def memory_of(topic_filter: str) -> int:
    """Return the memory of a filter in an index beyond the fixed part: that of its levels."""
    if "+" not in topic_filter and "#" not in topic_filter:
        return 0
    return LEVEL_BYTES * (topic_filter.count("/") + 1)


_Table: TypeAlias = tuple[Callable[[Any], Hashable], dict[Hashable, dict[V, None]], bool]
"""Filters of one shape: the picker of their literal levels, values by these, and whether the first
level is `+` or `#`."""


def _picker(shape: FilterShape) -> Callable[[Any], Hashable]:
    """Return a function that picks the literal levels out of a tuple, without a loop in Python."""
    literals: tuple[Any, ...] = shape.literals
    if literals == tuple(range(len(literals))):
        literals = (slice(len(literals)),)
    return itemgetter(*literals)


class FilterIndex(Generic[V]):
    """Values by topic filter: which filters does this topic match? Empty tables are removed."""

    def __init__(self) -> None:
        self._count = 0
        self._exact: dict[str, dict[V, None]] = {}
        # By depth; filters that end with `#` are apart.
        self._whole: dict[int, dict[FilterShape, _Table[V]]] = {}
        self._rest: dict[int, dict[FilterShape, _Table[V]]] = {}
        # Tables that topics with a given number of levels can match, until the tables change.
        self._by_depth: dict[int, list[_Table[V]]] = {}

    def __len__(self) -> int:
        """Return how many values are in it."""
        return self._count

    def add(self, topic_filter: str, value: V) -> None:
        """Add a value under a filter."""
        shape = shape_of(topic_filter)
        if shape is None:
            values = self._exact.setdefault(topic_filter, {})
        else:
            tables = self._side(shape).setdefault(shape.depth, {})
            table = tables.get(shape)
            if table is None:
                table = tables[shape] = _picker(shape), {}, 0 not in shape.literals
                self._by_depth.clear()
            pick, by_levels, _ = table
            values = by_levels.setdefault(pick(tuple(topic_filter.split("/"))), {})
        if value not in values:
            values[value] = None
            self._count += 1

    def remove(self, topic_filter: str, value: V) -> None:
        """Remove a value from under a filter.

        Raises:
            KeyError: If it is not there.
        """
        shape = shape_of(topic_filter)
        if shape is None:
            _remove(self._exact, topic_filter, value)
        else:
            side = self._side(shape)
            tables = side[shape.depth]
            pick, by_levels, _ = tables[shape]
            _remove(by_levels, pick(tuple(topic_filter.split("/"))), value)
            if not by_levels:
                self._by_depth.clear()
                del tables[shape]
                if not tables:
                    del side[shape.depth]
        self._count -= 1

    def matching(self, topic: str) -> list[V]:
        """Return the values under every filter that matches `topic`.

        A value under several filters is there for each.
        """
        found = list(self._exact.get(topic, ()))
        if self._whole or self._rest:
            levels = tuple(topic.split("/"))
            tables = self._by_depth.get(len(levels))
            if tables is None:
                tables = self._by_depth[len(levels)] = self._tables(len(levels))
            dollar = topic.startswith("$")  # wildcards do not match it in the first level
            for pick, values, begins_wild in tables:
                matched = values.get(pick(levels))
                if matched is not None and not (dollar and begins_wild):
                    found += matched
        return found

    def _tables(self, depth: int) -> list[_Table[V]]:
        """Return the tables whose shapes topics with this many levels can match."""
        tables = list(self._whole.get(depth, {}).values())
        for before, of_rest in self._rest.items():
            if before <= depth:  # `a/#` matches `a` (4.7.1.2)
                tables += of_rest.values()
        return tables

    def _side(self, shape: FilterShape) -> dict[int, dict[FilterShape, _Table[V]]]:
        return self._rest if shape.rest else self._whole


K = TypeVar("K", bound=Hashable)


def _remove(tables: dict[K, dict[V, None]], key: K, value: V) -> None:
    values = tables[key]
    del values[value]
    if not values:
        del tables[key]
