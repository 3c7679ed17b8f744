"""Topic filters, and the two indexes: filters that match a topic, topics that match a filter."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearfunds.dataspace import (
    Cursor,
    FilterIndex,
    PatternError,
    TopicFilter,
    TopicIndex,
    shape_of,
    topic_matches,
)
from tests.dataspace.conftest import STEADY, inside, is_empty


@pytest.mark.parametrize(
    ("topic_filter", "topic", "matches"),
    [
        # The standard's own examples, 4.7.1.2, 4.7.1.3 and 4.7.2.
        ("sport/tennis/player1/#", "sport/tennis/player1", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/ranking", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
        ("sport/#", "sport", True),
        ("sport/tennis/+", "sport/tennis/player1", True),
        ("sport/tennis/+", "sport/tennis/player1/ranking", False),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("#", "$SYS/monitor/Clients", False),
        ("+/monitor/Clients", "$SYS/monitor/Clients", False),
        ("$SYS/#", "$SYS/monitor/Clients", True),
        ("$SYS/monitor/+", "$SYS/monitor/Clients", True),
        # Case and empty levels are significant (4.7.3).
        ("ACCOUNTS", "Accounts", False),
        ("/finance", "finance", False),
        ("a//b", "a//b", True),
        ("a/+/b", "a//b", True),
        ("a//b", "a/b", False),
        ("#", "/", True),
        ("+/#", "a", True),
        ("a/$b", "a/$b", True),
        ("a/+", "a/$b", True),
        ("a/#", "a/$b", True),
        ("$SYS/#", "$SYS", True),
        ("a/#", "ab", False),
    ],
)
def test_what_matches(topic_filter: str, topic: str, matches: bool) -> None:
    assert topic_matches(topic_filter, topic) is matches
    assert TopicFilter(topic_filter).matches(topic) is matches


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "must not be empty"),
        ("sport/tennis#", "# must be alone"),
        ("sport/tennis/#/ranking", "# must be alone in the last level"),
        ("#/", "# must be alone in the last level"),
        ("##", "# must be alone"),
        ("sport+", "[+] must be alone in its level"),
        ("a/+b/c", "[+] must be alone in its level"),
        ("++", "[+] must be alone"),
        ("+#", "# must be alone"),
    ],
)
def test_a_filter_that_is_not_well_formed_is_refused(text: str, says: str) -> None:
    with pytest.raises(PatternError, match=says):
        TopicFilter(text)


@pytest.mark.parametrize("text", ["#", "+", "/", "+/+/#", "//", "a/+/b", "a b/ü"])
def test_a_well_formed_filter_is_taken_as_it_is(text: str) -> None:
    assert TopicFilter(text).text == text


# -- at random ------------------------------------------------------------------------------------


def expression(topic_filter: str) -> str:
    """Return the filter as a regular expression: another way to say what matches."""
    levels = topic_filter.split("/")
    rest = levels[-1] == "#"
    if rest:
        levels.pop()
    text = "/".join("[^/]*" if level == "+" else re.escape(level) for level in levels)
    # A topic that begins with $ wants a filter that does so too.
    guard = "(?![$])" if topic_filter[0] in "+#" else ""
    tail = ("(/.*)?" if levels else ".*") if rest else ""
    return guard + text + tail


def brute_force(topic_filter: str, topic: str) -> bool:
    return re.fullmatch(expression(topic_filter), topic, re.DOTALL) is not None


# With characters below and above `/`, and those that stand for something in the order of topics.
LEVELS = st.sampled_from(("", "a", "b", "$s", "aa", "a-", "\0", "a\1", "\1\2"))
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join)
FILTERS = (
    st.tuples(st.lists(LEVELS | st.just("+"), max_size=4), st.booleans())
    .map(lambda parts: "/".join([*parts[0], "#"] if parts[1] else parts[0]))
    .filter(bool)
)


@STEADY
@given(FILTERS, TOPICS)
def test_matching_one_by_one(topic_filter: str, topic: str) -> None:
    assert TopicFilter(topic_filter).matches(topic) is brute_force(topic_filter, topic)


@STEADY
@given(st.lists(st.tuples(FILTERS, st.integers(0, 2), st.booleans()), max_size=30), st.data())
def test_the_index_of_filters(steps: list[tuple[str, int, bool]], data: st.DataObject) -> None:
    index: FilterIndex[int] = FilterIndex()
    kept: set[tuple[str, int]] = set()
    for topic_filter, value, add in steps:
        if add:
            index.add(topic_filter, value)
            kept.add((topic_filter, value))
        elif (topic_filter, value) in kept:
            index.remove(topic_filter, value)
            kept.remove((topic_filter, value))
        else:
            with pytest.raises(KeyError):
                index.remove(topic_filter, value)
        assert len(index) == len(kept)
        topic = data.draw(TOPICS)
        expected = Counter(value for f, value in kept if brute_force(f, topic))
        assert Counter(index.matching(topic)) == expected
        assert sum(expected.values()) == sum(topic_matches(f, topic) for f, _ in kept)
    for topic_filter, value in kept:
        index.remove(topic_filter, value)
    assert len(index) == 0
    assert is_empty(index)


def test_the_shape_of_a_filter() -> None:
    assert shape_of("a/b") is shape_of("/") is None
    assert shape_of("a/+/b") == shape_of("x/+/y")
    different = ["+", "#", "+/#", "a/#", "a/+", "+/a", "a/+/#", "a/+/b", "+/+"]
    assert len({shape_of(text) for text in different}) == len(different)


@STEADY
@given(st.lists(st.tuples(TOPICS, st.booleans()), max_size=30), st.data())
def test_the_index_of_topics(steps: list[tuple[str, bool]], data: st.DataObject) -> None:
    index: TopicIndex[str] = TopicIndex()
    kept: dict[str, str] = {}
    for n, (topic, add) in enumerate(steps):
        value = f"{topic} {n}"
        if add:
            index.set(topic, value)
            kept[topic] = value
        else:
            assert index.discard(topic) == kept.pop(topic, None)
        assert len(index) == len(kept)
        assert index.get(topic) == kept.get(topic)
        topic_filter = data.draw(FILTERS)
        found = list(index.matching(topic_filter))
        assert sorted(found) == sorted(v for t, v in kept.items() if brute_force(topic_filter, t))
    for topic, value in kept.items():
        assert index.discard(topic) == value
    assert len(index) == 0
    assert is_without_topics(index)


@STEADY
@given(st.lists(TOPICS, max_size=12), st.lists(FILTERS, max_size=12))
def test_the_two_indexes_agree(topics: list[str], filters: list[str]) -> None:
    by_filter: FilterIndex[str] = FilterIndex()
    by_topic: TopicIndex[str] = TopicIndex()
    for topic_filter in filters:
        by_filter.add(topic_filter, topic_filter)
    for topic in topics:
        by_topic.set(topic, topic)
    assert {(f, t) for t in topics for f in by_filter.matching(t)} == {
        (f, t) for f in filters for t in by_topic.matching(f)
    }


def test_depth_is_no_recursion() -> None:
    deep = "/".join("a" * 5000)
    by_filter: FilterIndex[int] = FilterIndex()
    by_topic: TopicIndex[int] = TopicIndex()
    for n, topic_filter in enumerate((deep, "#", deep + "/#", deep.replace("a", "+", 3), "a/+")):
        by_filter.add(topic_filter, n)
    by_topic.set(deep, 1)
    assert sorted(by_filter.matching(deep)) == [0, 1, 2, 3]
    assert topic_matches(deep, deep)
    for topic_filter in (deep, "#", deep + "/#", "a/+/#"):
        assert list(by_topic.matching(topic_filter)) == [1]
    assert by_topic.discard(deep) == 1
    assert is_without_topics(by_topic)


def test_what_is_looked_at_is_bounded_by_the_wildcards() -> None:
    """What follows a level without a wildcard is leapt over, however much it is."""
    by_topic: TopicIndex[int] = TopicIndex()
    for n in range(3_000):
        by_topic.set(f"a/{n % 3}/{n}", n)
        by_topic.set(f"b/{n}/x", n)
    for text, found, most in (
        ("a/1/7", 1, 6),
        ("a/+/7", 1, 20),
        ("+/1/7", 1, 12),
        ("a/+", 0, 8),
        ("+/+/z", 0, 3_010),
        ("b/#", 3_000, 3_010),
        ("c/#", 0, 2),
        ("+", 0, 8),
        ("a/1", 0, 4),
    ):
        cursor = Cursor(by_topic, text)
        steps = values = 0
        while not cursor.at_end:
            values += cursor.step() is not None
            steps += 1
        assert (text, values) == (text, found)
        assert steps <= most, text


ADD_OR_REMOVE = st.tuples(st.booleans(), TOPICS)


@STEADY
@given(
    st.lists(ADD_OR_REMOVE, max_size=30),
    st.lists(ADD_OR_REMOVE | st.none(), max_size=60),
    st.lists(FILTERS, min_size=1, max_size=3),
    st.integers(1, 3),
)
def test_a_cursor_goes_on_whatever_changes(
    before: list[tuple[bool, str]],
    meanwhile: list[tuple[bool, str] | None],
    filters: list[str],
    piece: int,
) -> None:
    """What stands all the time is found once; what comes and goes, once at the most."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clearfunds.dataspace._topic_index.PIECE", piece)
        index: TopicIndex[int] = TopicIndex()
        kept: set[str] = set()

        def change(add: bool, topic: str) -> None:
            if add:
                index.set(topic, 1)
                kept.add(topic)
            else:
                index.discard(topic)
                kept.discard(topic)

        for add, topic in before:
            change(add, topic)
        cursors = [(text, Cursor(index, text)) for text in filters]
        steady, ever = set(kept), set(kept)
        found: list[Counter[str]] = [Counter() for _ in filters]
        for step in [*meanwhile, *[None] * 200]:
            if step is not None:
                change(*step)
                steady &= kept
                ever |= kept
                continue
            for (_, cursor), topics in zip(cursors, found, strict=True):
                looked_at = None if cursor.at_end else cursor.step()
                if looked_at is not None:
                    assert looked_at in kept
                    topics[looked_at] += 1
        for (text, cursor), topics in zip(cursors, found, strict=True):
            assert cursor.at_end
            assert max(topics.values(), default=1) == 1
            assert {t for t in steady if brute_force(text, t)} <= topics.keys()
            assert topics.keys() <= {t for t in ever if brute_force(text, t)}


def is_without_topics(index: TopicIndex[Any]) -> bool:
    """Whether nothing of what was once in an index is left in it."""
    return not inside(index, "_values") and not inside(inside(index, "_keys"), "_pieces")
