"""Topic filters, MQTT's wildcards: `+` for one level, `#` for all that follow.

They have an index of their own, a trie by level, because open patterns can say neither `+`'s arity
nor `#`. Source: MQTT 3.1.1, section 4.7.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

import attrs

from ._errors import PatternError

V = TypeVar("V")


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
    """Publications whose topic matches, MQTT's wildcards allowed.

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


class _Node(Generic[V]):
    __slots__ = ("children", "values")

    def __init__(self) -> None:
        self.children: dict[str, _Node[V]] = {}
        self.values: dict[V, None] = {}


class FilterIndex(Generic[V]):
    """Values by topic filter: which filters does this topic match? Empty nodes are removed."""

    def __init__(self) -> None:
        self._root: _Node[V] = _Node()
        self._count = 0

    def __len__(self) -> int:
        """Return how many values are in it."""
        return self._count

    def add(self, topic_filter: str, value: V) -> None:
        """Add a value under a filter."""
        node = self._root
        for level in topic_filter.split("/"):
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _Node()
            node = child
        if value not in node.values:
            node.values[value] = None
            self._count += 1

    def remove(self, topic_filter: str, value: V) -> None:
        """Remove a value from under a filter.

        Raises:
            KeyError: If it is not there.
        """
        path: list[tuple[_Node[V], str]] = []
        node = self._root
        for level in topic_filter.split("/"):
            path.append((node, level))
            node = node.children[level]
        del node.values[value]
        self._count -= 1
        for parent, level in reversed(path):
            child = parent.children[level]
            if child.values or child.children:
                break
            del parent.children[level]

    def matching(self, topic: str) -> Iterator[V]:
        """Yield the values under every filter that matches `topic`; a value under several filters
        is yielded for each.
        """  # noqa: D205
        levels = topic.split("/")
        nodes: list[_Node[V]] = [self._root]
        dollar = topic.startswith("$")  # wildcards do not match it in the first level
        for place, level in enumerate(levels):
            following: list[_Node[V]] = []
            wild = not (dollar and place == 0)
            for node in nodes:
                children = node.children
                if wild:
                    rest = children.get("#")
                    if rest is not None:
                        yield from rest.values
                    one = children.get("+")
                    if one is not None:
                        following.append(one)
                exact = children.get(level)
                if exact is not None and level not in ("+", "#"):
                    following.append(exact)
            nodes = following
        for node in nodes:
            yield from node.values
            rest = node.children.get("#")
            if rest is not None:
                yield from rest.values


class TopicIndex(Generic[V]):
    """Values by topic name: which topics does this filter match? Empty nodes are removed."""

    def __init__(self) -> None:
        self._root: _TopicNode[V] = _TopicNode()
        self._count = 0

    def __len__(self) -> int:
        """Return how many topics have a value."""
        return self._count

    def get(self, topic: str) -> V | None:
        """Return the value of one topic."""
        node = self._root
        for level in topic.split("/"):
            child = node.children.get(level)
            if child is None:
                return None
            node = child
        return node.value

    def set(self, topic: str, value: V) -> None:
        """Give a topic a value."""
        node = self._root
        for level in topic.split("/"):
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _TopicNode()
            node = child
        if node.value is None:
            self._count += 1
        node.value = value

    def discard(self, topic: str) -> V | None:
        """Take a topic's value away and return it; None if there was none."""
        path: list[tuple[_TopicNode[V], str]] = []
        node = self._root
        for level in topic.split("/"):
            path.append((node, level))
            child = node.children.get(level)
            if child is None:
                return None
            node = child
        value, node.value = node.value, None
        if value is None:
            return None
        self._count -= 1
        for parent, level in reversed(path):
            child = parent.children[level]
            if child.value is not None or child.children:
                break
            del parent.children[level]
        return value

    def matching(self, topic_filter: str) -> Iterator[V]:
        """Yield the values of all topics that match; the index must not change meanwhile."""
        wanted = topic_filter.split("/")
        # (node, place in the filter); depth first, without recursion: topics may be deep.
        stack: list[tuple[_TopicNode[V], int]] = [(self._root, 0)]
        while stack:
            node, place = stack.pop()
            if place < 0:  # below a `#`: everything
                if node.value is not None:
                    yield node.value
                stack.extend((child, -1) for child in node.children.values())
                continue
            if place == len(wanted):
                if node.value is not None:
                    yield node.value
                continue
            want = wanted[place]
            if want == "#":
                if place > 0:
                    stack.append((node, -1))
                else:
                    stack.extend(
                        (child, -1)
                        for name, child in node.children.items()
                        if not name.startswith("$")
                    )
            elif want == "+":
                for name, child in node.children.items():
                    if place > 0 or not name.startswith("$"):
                        stack.append((child, place + 1))
            else:
                exact = node.children.get(want)
                if exact is not None:
                    stack.append((exact, place + 1))


class _TopicNode(Generic[V]):
    __slots__ = ("children", "value")

    def __init__(self) -> None:
        self.children: dict[str, _TopicNode[V]] = {}
        self.value: V | None = None
