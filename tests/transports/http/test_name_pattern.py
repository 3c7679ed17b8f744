"""Patterns over names, against `re` as the judge."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearfunds.transports.http._name_pattern import NAME_CHARACTERS_MAX, NamePattern

ITEMS = st.sampled_from(
    [
        "a",
        "b",
        "/",
        ".",
        r"\d",
        r"\w",
        r"\W",
        r"\.",
        r"\/",
        "[ab]",
        "[^a]",
        "[a-c1]",
        "[]a]",
        r"[\]b]",
    ]
)


def compound(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    suffixes = ["", "*", "+", "?", "*?", "{2}", "{1,}", "{0,2}", "{0}"]
    repeated = st.tuples(inner, st.sampled_from(suffixes)).map(lambda t: f"({t[0]}){t[1]}")
    sequence = st.lists(inner, min_size=1, max_size=3).map("".join)
    alternatives = st.lists(inner, min_size=1, max_size=3).map("|".join)
    return st.one_of(repeated, sequence, alternatives)


def read(text: str) -> tuple[NamePattern | None, str]:
    try:
        return NamePattern(text), ""
    except ValueError as error:
        return None, str(error)


@given(
    st.recursive(ITEMS, compound, max_leaves=6).filter(lambda text: len(text) <= 200),
    st.lists(st.text("ab/c1.]é\n", max_size=8), min_size=1, max_size=20),
)
def test_it_agrees_with_re(text: str, names: list[str]) -> None:
    pattern, refusal = read(text)
    if pattern is None:
        assert "longer than 128" in refusal or "too much" in refusal
        return
    judge = re.compile(text, re.DOTALL)
    for name in names:
        assert pattern.matches(name) == bool(judge.fullmatch(name)), name


@given(st.text("ab()[]{}|*+?\\^$.,-012d", max_size=24))
def test_whatever_is_written_is_read_as_re_does_or_refused_with_a_sentence(text: str) -> None:
    pattern, refusal = read(text)
    if pattern is None:
        assert refusal.startswith("The pattern")
        assert refusal.endswith(".")
        return
    judge = re.compile(text, re.DOTALL)
    for name in ("", "a", "ab", "aab", "b012", "a-d"):
        assert pattern.matches(name) == bool(judge.fullmatch(name)), name


def test_the_whole_name_must_match() -> None:
    assert NamePattern("a").matches("a")
    assert not NamePattern("a").matches("ab")
    assert not NamePattern("b").matches("ab")
    assert NamePattern("^ab$").matches("ab")
    assert NamePattern("mqtt/(alice|bob)/.*").matches("mqtt/bob/x 1")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a" * 201, "201 characters"),
        ("(abc){99}", "longer than 128"),
        ("((((){999}){999}){999}){999}", "too much"),
        ("(" * 30 + "a" + ")" * 30, "nested"),
        ("(a", "not closed"),
        ("a)", "without a ("),
        ("*a", "no meaning"),
        ("a**", "repeats a repetition"),
        ("a{3,2}", "at least 3 and at most 2"),
        (r"(a)\1", "not known"),
        ("(?=a)", "no meaning"),
        ("a\\", "not known"),
        ("[z-a]", "cannot be read"),
        ("[a", "cannot be read"),
        ("[[a]", "cannot be read"),
        ("a^b", "no meaning"),
    ],
)
def test_what_is_not_understood_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        NamePattern(text)


@pytest.mark.parametrize(
    "text",
    ["(a+)+b", "(a|a)*b", "(a|aa)+b", "(.*)*b", "(a?){60}a{60}b", ".*.*.*.*.*.*.*b", "(.*a){20}b"],
)
def test_what_makes_re_backtrack_for_ever_is_quick(text: str) -> None:
    # `re` needs longer than the universe is old for most of these; 5 s only tells the two apart.
    started = time.perf_counter()
    assert not NamePattern(text).matches("a" * 250)
    assert time.perf_counter() - started < 5


def test_long_names_are_matched_by_their_beginning() -> None:
    assert NamePattern("a*").matches("a" * NAME_CHARACTERS_MAX + "b")
    assert not NamePattern("a*b").matches("a" * NAME_CHARACTERS_MAX + "b")


def test_many_different_names_do_not_grow_its_memory() -> None:
    pattern = NamePattern(".*")
    for number in range(10_000):
        assert pattern.matches(chr(0x4E00 + number))
    assert len(pattern._steps) <= 4096  # pyright: ignore[reportPrivateUsage]
