"""Patterns for names, as shells have them: `*` is any text, `/` included, `?` any character.

`[ab]` is one of some characters, `[*]` an asterisk.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import translate
from typing import Final, Generic, TypeVar

T = TypeVar("T")

PATTERN_CHARACTERS_MAX: Final = 200
"""Characters of a pattern that comes from a peer: it is compared with every name."""

_ESCAPED: Final = re.compile(r"\[([*?\[])\]")


def only_name(pattern: str) -> str | None:
    """Return the one name that a pattern matches; None if it matches more."""
    if re.search(r"[*?\[]", _ESCAPED.sub("", pattern)):
        return None
    return _ESCAPED.sub(r"\1", pattern)


def exactly(name: str) -> str:
    """Return the pattern that matches one name; see `only_name`."""
    return re.sub(r"[*?\[]", r"[\g<0>]", name)


def of_peer(patterns: Iterable[str]) -> Patterns:
    """Compile patterns that a peer has sent; a match takes time linear in the name.

    Raises:
        ValueError: If one is too long; the message is a sentence.
    """
    given = list(patterns)
    for pattern in given:
        if len(pattern) > PATTERN_CHARACTERS_MAX:
            msg = (
                f"The pattern has {len(pattern)} characters; at most {PATTERN_CHARACTERS_MAX} "
                "are allowed."
            )
            raise ValueError(msg)
    return Patterns(given)


class Patterns:
    """Patterns for a text: which texts does any of them match?"""

    __slots__ = ("_exact", "_globs")

    def __init__(self, patterns: Iterable[str]) -> None:
        exact: set[str] = set()
        globs: list[str] = []
        for pattern in patterns:
            name = only_name(pattern)
            if name is None:
                globs.append(translate(pattern))
            else:
                exact.add(name)
        self._exact = frozenset(exact)
        self._globs = re.compile("|".join(globs)) if globs else None

    def matches(self, text: str) -> bool:
        """Whether any of them matches all of it."""
        return text in self._exact or (
            self._globs is not None and self._globs.match(text) is not None
        )


class FirstMatch(Generic[T]):
    """Values by pattern; of those that match, the first counts.

    Args:
        rules: The patterns with their values, the most important first.
    """

    __slots__ = ("_exact", "_globs")

    def __init__(self, rules: Iterable[tuple[str, T]] = ()) -> None:
        # Most are of one name each, and there may be thousands of those.
        self._exact: dict[str, tuple[int, T]] = {}
        self._globs: list[tuple[int, re.Pattern[str], T]] = []
        for place, (pattern, value) in enumerate(rules):
            name = only_name(pattern)
            if name is None:
                self._globs.append((place, re.compile(translate(pattern)), value))
            else:
                self._exact.setdefault(name, (place, value))

    def __len__(self) -> int:
        """Return how many patterns there are."""
        return len(self._exact) + len(self._globs)

    def of(self, *names: str) -> T | None:
        """Return the value for these names; None if no pattern matches any of them."""
        if not (self._exact or self._globs):
            return None  # so it is mostly, for every client that comes
        first: tuple[int, T] | None = None
        for name in names:
            found = self._exact.get(name)
            if found is not None and (first is None or found[0] < first[0]):
                first = found
        for place, pattern, value in self._globs:
            if first is not None and place > first[0]:
                break
            if any(map(pattern.match, names)):
                return value
        return None if first is None else first[1]


class EveryMatch(Generic[T]):
    """Values by pattern; all that match count, in the order of the rules.

    Args:
        rules: The patterns with their values, the most important first.
    """

    __slots__ = ("_exact", "_globs")

    def __init__(self, rules: Iterable[tuple[str, T]]) -> None:
        # Most are of one name each, and there may be thousands of those: policies by hand.
        self._exact: dict[str, list[tuple[int, T]]] = {}
        self._globs: list[tuple[int, re.Pattern[str], T]] = []
        for place, (pattern, value) in enumerate(rules):
            name = only_name(pattern)
            if name is None:
                self._globs.append((place, re.compile(translate(pattern)), value))
            else:
                self._exact.setdefault(name, []).append((place, value))

    def __len__(self) -> int:
        """Return how many patterns there are."""
        return sum(map(len, self._exact.values())) + len(self._globs)

    def of(self, *names: str) -> list[T]:
        """Return the values for these names."""
        if not (self._exact or self._globs):
            return []
        found = {place: value for name in names for place, value in self._exact.get(name, ())}
        for place, pattern, value in self._globs:
            if any(map(pattern.match, names)):
                found[place] = value
        return [found[place] for place in sorted(found)]
