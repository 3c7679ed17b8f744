"""Topics that have accounts of their own, and what names these."""

from __future__ import annotations

import pytest

from clearfunds.access._topic_accounts import LONGEST_PREFIX, TopicAccounts
from clearfunds.dataspace import PatternError
from clearfunds.transports import TopicAccount

RULES = TopicAccounts(
    [
        TopicAccount("bridge*", "jobs/#"),
        TopicAccount("bridge*", "line/+"),
        TopicAccount("bridge*", "plant/+/#"),
        TopicAccount("bridge*", "+/only/#"),
        TopicAccount("*", "#"),
    ]
)


@pytest.mark.parametrize(
    ("topic", "prefix"),
    [
        ("jobs", "jobs"),
        ("jobs/1/2", "jobs"),
        ("line/1", "line/1"),
        ("line/1/2", "#"),
        ("plant/a", "plant/a"),
        ("plant/a/b/c", "plant/a"),
        ("x/only/y", "x/only"),
        ("/only", "/only"),
        ("else", "#"),
        ("line/" + "x" * LONGEST_PREFIX, None),
    ],
)
def test_as_many_levels_as_the_filter_has_name_the_account(topic: str, prefix: str | None) -> None:
    prefixes = RULES.of("mqtt:1883/-/bridge-1", "bridge-1")
    assert prefixes is not None
    assert prefixes.of(topic) == prefix


def test_a_topic_without_a_rule_has_none() -> None:
    prefixes = TopicAccounts([TopicAccount("a", "jobs/#")]).of("a")
    assert prefixes is not None
    assert prefixes.of("other") is None
    assert TopicAccounts([TopicAccount("a", "jobs/#")]).of("b") is None


def test_a_rule_says_itself_as_it_is_given() -> None:
    assert str(TopicAccount("a*", "b/#")) == "a* b/#"


@pytest.mark.parametrize(
    ("client", "topics", "error", "says"),
    [
        ("", "#", ValueError, "is empty"),
        ("a", "", PatternError, "empty"),
        ("a", "b/#/c", PatternError, "must be alone"),
    ],
)
def test_what_is_no_rule(client: str, topics: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        TopicAccount(client, topics)
