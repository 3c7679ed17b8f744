"""Patterns for names that peers send."""

from __future__ import annotations

import time

import pytest

from clearfunds.access._patterns import of_peer


def test_any_of_them_counts() -> None:
    patterns = of_peer(["mqtt:*/pub", "b?b", "lit[*]eral"])
    for name in ("mqtt:1883/-/pub", "bob", "lit*eral"):
        assert patterns.matches(name)
    for name in ("mqtt:1883/-/public", "blob", "literal"):
        assert not patterns.matches(name)


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
