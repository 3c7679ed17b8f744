"""The access control list's file: what it says, and what is said of one that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearfunds.access._filters import covers, overlap
from clearfunds.access.acl import Access, Acl, AclFileError, AclRules, Rule, parse_acl
from clearfunds.dataspace import TopicFilter


def test_a_file_is_read_as_mosquitto_reads_it() -> None:
    text = (
        "# of nobody\n"
        "topic read  lobby/two  words\r\n"
        "\n"
        "user  anna b \n"
        "topic news/#  \n"
        "topic deny news/drafts\n"
        "pattern write %u/%c\n"
        "user bert\n"
        "  topic write a\n"
        "user anna b\n"
        "topic readwrite deny\n"
    )
    assert parse_acl(text) == AclRules(
        {
            None: [Rule(Access.READ, "lobby/two  words")],
            "anna b": [
                Rule(Access.READWRITE, "news/#"),
                Rule(Access.DENY, "news/drafts"),
                Rule(Access.READWRITE, "deny"),
            ],
            "bert": [Rule(Access.WRITE, "a")],
        },
        [Rule(Access.WRITE, "%u/%c")],
    )


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("topic", "there is no topic behind topic; write one, or remove the line"),
        ("topic read", "for a topic with that name: topic readwrite read"),
        ("pattern deny ", "there is no topic behind pattern deny"),
        ("topic my topic", "'my' is not read, write, readwrite or deny"),
        ("topic Read a", "'Read' is not read"),
        ("user  ", "there is no name behind user"),
        (" # said", "a comment has # as the first character of its line"),
        ("topic\tread\ta", "has a tab in it; separate words with spaces"),
        ("foo", "'foo' does not begin with user, topic or pattern"),
        ("topic read a#", "# must be alone in the last level"),
        ("pattern read a/+%c", "+ must be alone in its level"),
        ("topic a\0b", "NUL"),
        ("\ufeffuser x", "byte order mark"),
        ("topic " + "a" * 65_536, "more than 65535 bytes"),
        ("topic a\udcff", "not in UTF-8"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(line: str, error: str) -> None:
    with pytest.raises(AclFileError) as raised:
        parse_acl(f"user x\n\n{line}\n", "acl, ")
    assert str(raised.value).startswith("acl, line 3: ")
    assert error in str(raised.value)
    assert str(raised.value).isprintable()


def test_a_file_that_is_wrong_leaves_the_rules_as_they_were(tmp_path: Path) -> None:
    file = tmp_path / "acl"
    file.write_text("topic read a\n")
    acl = Acl.from_file(file)
    changes: list[int] = []
    acl.on_change.append(lambda: changes.append(len(acl)))
    file.write_bytes(b"topic read \xff\n")
    with pytest.raises(AclFileError, match=f"{file}, line 1: it is not in UTF-8"):
        acl.reload()
    file.unlink()
    with pytest.raises(OSError, match="No such file"):
        acl.reload()
    assert acl.rules == parse_acl("topic read a")
    file.write_text("topic read a\ntopic b\n")
    acl.reload()
    assert changes == [2]


words = st.sampled_from(
    ["user", "topic", "pattern", "read", "deny", " ", "\n", "a", "#", "+", "/", "%u", "\t", "\0"]
)


@given(st.text() | st.lists(words).map("".join))
def test_any_text_is_rules_or_an_error(text: str) -> None:
    try:
        rules = parse_acl(text)
    except AclFileError:
        return
    every = [*rules.patterns, *(rule for each in rules.users.values() for rule in each)]
    assert len(every) == len(rules) <= text.count("\n") + 1
    for rule in every:
        TopicFilter(rule.filter)


def test_names_with_wildcards_match_nothing_by_patterns() -> None:
    rules = parse_acl("pattern read %u/%c/#")
    assert rules.patterns_of("u", "c") == [Rule(Access.READ, "u/c/#")]
    assert rules.patterns_of("%c", "%u") == [Rule(Access.READ, "%c/%u/#")]
    for user, client in (("+", "c"), ("u", "#"), ("a+b", "c")):
        assert rules.patterns_of(user, client) is None
    assert rules.patterns_of(None, "c") == []


levels = st.lists(st.sampled_from(["a", "b", "", "$x", "+"]), min_size=1, max_size=3)
rests: st.SearchStrategy[list[str]] = st.sampled_from([[], ["#"]])
filters = st.tuples(levels, rests).map(lambda parts: "/".join(parts[0] + parts[1])).filter(
    bool
) | st.just("#")
names = st.lists(st.sampled_from(["a", "b", "", "$x"]), min_size=1, max_size=4).map("/".join)


@given(filters, filters, names.filter(bool))
def test_how_two_filters_stand_to_each_other(first: str, second: str, topic: str) -> None:
    one, other = TopicFilter(first).matches(topic), TopicFilter(second).matches(topic)
    assert overlap(first, second) is overlap(second, first)
    if one and other:
        assert overlap(first, second)
    if covers(first, second):
        assert overlap(first, second)
        assert one or not other


@given(filters, filters)
def test_filters_that_overlap_have_a_topic_in_common(first: str, second: str) -> None:
    """And one that does not cover another one misses one of its topics."""
    alphabet = ["a", "b", "", "$x", "other"]
    topics = ["/".join(t) for n in range(1, 5) for t in _tuples(alphabet, n) if any(t) or n > 1]
    one, other = TopicFilter(first), TopicFilter(second)
    common = any(one.matches(topic) and other.matches(topic) for topic in topics)
    assert overlap(first, second) is common
    assert covers(first, second) is all(one.matches(t) for t in topics if other.matches(t))


def _tuples(alphabet: list[str], length: int) -> list[tuple[str, ...]]:
    if not length:
        return [()]
    return [(letter, *rest) for letter in alphabet for rest in _tuples(alphabet, length - 1)]
