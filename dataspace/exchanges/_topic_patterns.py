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
from typing import Any, Final, Generic, TypeVar

V = TypeVar("V")

NODE_BYTES: Final = 410
"""The memory of a node that no other binding shares, with its word (measured)."""

CACHED_BYTES: Final = 4 << 20
"""Memory for cached results: a quarter of that for the dataspace's routes, which are larger."""

RESULT_BYTES: Final = 300
"""The memory of a cached result besides its key and 8 bytes for each value (measured)."""


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


class CacheBudget:
    """The memory that several tables may take for cached results. When it is used up, all go.

    Args:
        most: The limit in bytes.

    Attributes:
        nbytes: What they take.
    """

    def __init__(self, most: int = CACHED_BYTES) -> None:
        self.nbytes = 0
        self._most = most
        self._caches: dict[TopicPatterns[Any], None] = {}

    def spend(self, patterns: TopicPatterns[Any], nbytes: int) -> None:
        """Note a new result of a table, which may forget it and all others."""
        self._caches[patterns] = None
        self.nbytes += nbytes
        if self.nbytes > self._most:
            for each in list(self._caches):
                each.forget()

    def release(self, patterns: TopicPatterns[Any], nbytes: int) -> None:
        """Note that a table has forgotten its results."""
        self._caches.pop(patterns, None)
        self.nbytes -= nbytes


class TopicPatterns(Generic[V]):
    """Values by binding key. A value may be there more than once.

    Args:
        budget: The memory for cached results, which it shares with others.
    """

    def __init__(self, budget: CacheBudget | None = None) -> None:
        self._root: _Node[V] = _Node()
        self._budget = CacheBudget() if budget is None else budget
        self._cache: dict[str, Collection[V]] = {}
        self._cached_bytes = 0

    def forget(self) -> None:
        """Forget all cached results."""
        if self._cache:
            self._cache.clear()
            self._budget.release(self, self._cached_bytes)
            self._cached_bytes = 0

    def add(self, pattern: str, value: V) -> None:
        """Add a value under a binding key."""
        self.forget()
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
        self.forget()
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
            found = self._cache[key] = self._find(key)
            nbytes = RESULT_BYTES + len(key) + 8 * len(found)
            self._cached_bytes += nbytes
            self._budget.spend(self, nbytes)
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
