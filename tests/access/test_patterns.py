"""Patterns for names that peers send."""

from __future__ import annotations

import time

import pytest

from clearfunds.access._patterns import EveryMatch, of_peer


def test_any_of_them_counts() -> None:
    patterns = of_peer(["mqtt:*/pub", "b?b", "lit[*]eral"])
    for name in ("mqtt:1883/-/pub", "bob", "lit*eral"):
        assert patterns.matches(name)
    for name in ("mqtt:1883/-/public", "blob", "literal"):
        assert not patterns.matches(name)


def test_every_match_counts_in_the_order_of_the_rules() -> None:
    rules = EveryMatch([("a", 1), ("*", 2), ("b", 3), ("a", 4), ("[*]", 5), ("a?", 6)])
    assert len(rules) == 6
    assert rules.of("a") == [1, 2, 4]
    assert rules.of("b", "a") == [1, 2, 3, 4]
    assert rules.of("*", "ab") == [2, 5, 6]
    assert rules.of() == []


def test_none_is_too_long() -> None:
    with pytest.raises(
        ValueError, match=r"The pattern has 201 characters; at most 200 are allowed\."
    ):
        of_peer(["a", "*" * 201])


def test_none_takes_long() -> None:
    """A matcher that backtracks needs minutes for the like of it."""
    patterns = of_peer(["*a" * 99 + "*b"])
    began = time.process_time()
    assert not patterns.matches("a" * 65_535)
    assert time.process_time() - began < 5
