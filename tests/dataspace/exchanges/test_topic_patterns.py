"""Binding keys of topic exchanges, against a plain recursion."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearfunds.dataspace.exchanges import TopicPatterns, pattern_matches
from clearfunds.dataspace.exchanges._topic_patterns import RESULT_BYTES, CacheBudget
from tests.dataspace.conftest import STEADY


def by_recursion(pattern: list[str], words: list[str]) -> bool:
    """Whether a binding key matches, by trying all lengths for each `#`."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(by_recursion(pattern[1:], words[n:]) for n in range(len(words) + 1))
    if not words or pattern[0] not in ("*", words[0]):
        return False
    return by_recursion(pattern[1:], words[1:])


def words_of(key: str) -> list[str]:
    return key.split(".") if key else []


words = st.sampled_from(["a", "b", "", "*", "#", "a*"])
patterns = st.lists(words, max_size=5).map(".".join)
keys = st.lists(st.sampled_from(["a", "b", "", "a*", "*", "#"]), max_size=5).map(".".join)


@STEADY
@given(st.lists(patterns, max_size=8), st.lists(keys, max_size=6), st.data())
def test_it_finds_what_recursion_finds(
    bound: list[str], published: list[str], data: st.DataObject
) -> None:
    index: TopicPatterns[int] = TopicPatterns()
    there: Counter[tuple[str, int]] = Counter()
    for pattern in bound:
        value = data.draw(st.integers(0, 2))
        index.add(pattern, value)
        there[pattern, value] += 1
    while True:
        for key in published:
            wanted = {
                value
                for (pattern, value), count in there.items()
                if count and by_recursion(words_of(pattern), words_of(key))
            }
            found = index.matching(key)
            assert len(found) == len(set(found))
            assert set(found) == wanted
        left = list(there.elements())
        if not left:
            break
        pattern, value = data.draw(st.sampled_from(left))
        index.remove(pattern, value)
        there[pattern, value] -= 1
    assert index._root.is_empty  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("#", ["", "a", "a.b", "."], []),
        ("*", ["a", "*", "#"], ["", "a.b", "."]),
        ("", [""], ["a", "."]),
        ("a.#", ["a", "a.b", "a.b.c", "a."], ["", "ab", "b.a"]),
        ("a.#.b", ["a.b", "a.x.b", "a.x.y.b", "a.b.b"], ["a", "b", "a.b.c", "a.x"]),
        ("#.#", ["", "a", "a.b"], []),
        ("#.*.#", ["a", "a.b", "."], [""]),
        ("*.#.*", ["a.b", "a.x.b"], ["a", ""]),
        ("a..b", ["a..b"], ["a.b", "a.x.b"]),
        ("a.*.b", ["a..b", "a.x.b"], ["a.b"]),
        ("a*", ["a*"], ["ab", "a"]),
    ],
)
def test_what_matches(pattern: str, matching: list[str], others: list[str]) -> None:
    assert [key for key in (*matching, *others) if pattern_matches(pattern, key)] == matching


def test_many_hashes_do_not_multiply() -> None:
    """2^60 ways to part the words among them: the test ends if none is tried twice."""
    index: TopicPatterns[str] = TopicPatterns()
    index.add(".".join(["#", "a"] * 60), "many")
    assert index.matching(".".join(["a"] * 120)) == ("many",)
    assert not index.matching(".".join(["a"] * 120 + ["b"]))


def test_a_value_that_is_not_there_is_not_removed() -> None:
    index: TopicPatterns[str] = TopicPatterns()
    index.add("a.b", "x")
    for pattern, value in (("a", "x"), ("a.c", "x"), ("a.*", "x"), ("a.#", "x"), ("a.b", "y")):
        with pytest.raises(KeyError):
            index.remove(pattern, value)
    assert index.matching("a.b") == ("x",)


def test_caches_share_a_budget() -> None:
    budget = CacheBudget(10 * (RESULT_BYTES + 20))
    one: TopicPatterns[str] = TopicPatterns(budget)
    other: TopicPatterns[str] = TopicPatterns(budget)
    one.add("#", "x")
    most = 0
    for number in range(100):
        assert one.matching(f"a.{number}") == ("x",)
        assert one.matching(f"a.{number}") == ("x",)
        assert other.matching(f"a.{number}") == ()
        most = max(most, budget.nbytes)
        assert budget.nbytes <= 10 * (RESULT_BYTES + 20)
    assert most > 5 * RESULT_BYTES
    assert one.matching("a" * 255) == ("x",)
    assert one.matching("a.99") == ("x",)
    one.add("a.*", "y")
    assert set(one.matching("a.99")) == {"x", "y"}
    one.remove("#", "x")
    assert one.matching("a.99") == ("y",)
    one.forget()
    other.forget()
    assert budget.nbytes == 0
