"""Binding keys of topic exchanges, by word: which of them does this routing key match?

`*` is one word, `#` any number of them, in any place. Words are separated by dots; the empty key
has no words.

Theory of operation. The keys are a trie with a node for each word. A look-up goes down with a set
of nodes: those that the words until now can lead to. A node of `#` stays in the set for each
further word, and any node leads to its `#` without one. So no node is visited twice for one word,
where a search that tries all lengths for each `#` would multiply. The cost grows with the nodes
that begin like the key, not with all bindings. Results are cached by key.

Source: AMQP 0-9-1, section 3.1.3.3; rabbit_exchange_type_topic.erl of RabbitMQ has the trie. The
set of nodes is Thompson's simulation of an automaton (1968).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Generic, TypeVar

from .._topics import LONG_TOPIC

V = TypeVar("V")

NODE_BYTES: Final = 420
"""The memory of a node that no other binding shares (measured)."""

CACHED_KEYS: Final = 4_096
"""Routing keys whose results one exchange caches: about 1 MB."""


class _Node(Generic[V]):
    """One place in the trie."""

    __slots__ = ("children", "is_rest", "rest", "star", "values")

    def __init__(self, *, is_rest: bool = False) -> None:
        self.is_rest = is_rest
        # By word; `*` and `#` are apart.
        self.children: dict[str, _Node[V]] | None = None
        self.star: _Node[V] | None = None
        self.rest: _Node[V] | None = None
        # With the number of times that each is here.
        self.values: dict[V, int] | None = None

    @property
    def is_empty(self) -> bool:
        return not (self.children or self.star or self.rest or self.values)


def words_of(key: str) -> list[str]:
    """Return the words of a routing key or a binding key."""
    return key.split(".") if key else []


class TopicPatterns(Generic[V]):
    """Values by binding key. A value may be there more than once."""

    def __init__(self) -> None:
        self._root: _Node[V] = _Node()
        self._cache: dict[str, Collection[V]] = {}

    def add(self, pattern: str, value: V) -> None:
        """Add a value under a binding key."""
        self._cache.clear()
        node = self._root
        for word in words_of(pattern):
            node = self._below(node, word)
        if node.values is None:
            node.values = {}
        node.values[value] = node.values.get(value, 0) + 1

    @staticmethod
    def _below(node: _Node[V], word: str) -> _Node[V]:
        if word == "*":
            if node.star is None:
                node.star = _Node()
            return node.star
        if word == "#":
            if node.rest is None:
                node.rest = _Node(is_rest=True)
            return node.rest
        if node.children is None:
            node.children = {}
        found = node.children.get(word)
        if found is None:
            found = node.children[word] = _Node()
        return found

    def remove(self, pattern: str, value: V) -> None:
        """Remove a value from under a binding key, once. Empty nodes are removed.

        Raises:
            KeyError: If it is not there.
        """
        self._cache.clear()
        way: list[tuple[_Node[V], str]] = []
        node = self._root
        for word in words_of(pattern):
            way.append((node, word))
            if word == "*":
                below = node.star
            elif word == "#":
                below = node.rest
            else:
                below = (node.children or {}).get(word)
            if below is None:
                raise KeyError(pattern)
            node = below
        values = {} if node.values is None else node.values
        values[value] -= 1
        if not values[value]:
            del values[value]
        while way and node.is_empty:
            node, word = way.pop()
            if word == "*":
                node.star = None
            elif word == "#":
                node.rest = None
            else:
                assert node.children is not None
                del node.children[word]

    def matching(self, key: str) -> Collection[V]:
        """Return the values under every binding key that matches `key`, each once."""
        found = self._cache.get(key)
        if found is None:
            found = self._find(key)
            if len(key) <= LONG_TOPIC:
                if len(self._cache) >= CACHED_KEYS:
                    del self._cache[next(iter(self._cache))]
                self._cache[key] = found
        return found

    def _find(self, key: str) -> Collection[V]:
        nodes: dict[_Node[V], None] = {}
        _enter(nodes, self._root)
        for word in words_of(key):
            following: dict[_Node[V], None] = {}
            for node in nodes:
                if node.is_rest:
                    _enter(following, node)
                if node.star is not None:
                    _enter(following, node.star)
                if node.children is not None:
                    child = node.children.get(word)
                    if child is not None:
                        _enter(following, child)
            nodes = following
            if not nodes:
                break
        found: dict[V, None] = {}
        for node in nodes:
            if node.values:
                found.update(dict.fromkeys(node.values))
        return tuple(found)


def _enter(nodes: dict[_Node[V], None], node: _Node[V] | None) -> None:
    """Add a node, and those that it leads to without a word."""
    while node is not None and node not in nodes:
        nodes[node] = None
        node = node.rest


def pattern_matches(pattern: str, key: str) -> bool:
    """Whether a binding key matches a routing key."""
    index: TopicPatterns[None] = TopicPatterns()
    index.add(pattern, None)
    return bool(index.matching(key))
