"""Rules for publishers above their limits: which of them is whose, and for which topics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearfunds.access._publication_policies import PublicationPolicies
from clearfunds.access._topic_rules import MAX_CACHED
from clearfunds.accounts import OverLimitPolicy
from clearfunds.dataspace import LONG_TOPIC, PatternError, TopicFilter
from clearfunds.transports import PublicationPolicy

RULES = PublicationPolicies(
    [
        PublicationPolicy("sensor*", "raw/+/fast", "shed"),
        PublicationPolicy("sensor*", "raw/#", "refuse"),
        PublicationPolicy("mqtt:1883/press/*", "#", "refuse"),
        PublicationPolicy("*", "jobs/#", "shed"),
        PublicationPolicy("*", "#", "wait"),
        PublicationPolicy("*", "late/#", "refuse"),
    ]
)

LEVELS = st.sampled_from(["a", "b", "", "raw"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = st.one_of(
    TOPICS,
    TOPICS.map(lambda topic: f"{topic}/#"),
    TOPICS.map(lambda topic: f"+/{topic}"),
    st.just("#"),
)
POLICIES = st.builds(
    PublicationPolicy,
    st.sampled_from(["*", "me", "you", "m?"]),
    FILTERS,
    st.sampled_from(OverLimitPolicy),
)


def key_of(topic: str) -> bytes:
    """A topic as it stands in a packet."""
    encoded = topic.encode()
    return len(encoded).to_bytes(2, "big") + encoded


@pytest.mark.parametrize(
    ("names", "topic", "policy"),
    [
        (["a", "sensor-1"], "raw/7/fast", "shed"),
        (["a", "sensor-1"], "raw/7/slow", "refuse"),
        (["a", "sensor-1"], "jobs/1", "shed"),
        (["a", "sensor-1"], "late/1", "wait"),
        (["mqtt:1883/press/x", "x"], "jobs/1", "refuse"),
        (["mqtt:1883/press/x", "x"], "$SYS/x", "refuse"),
        (["mqtt:1883/-/x", "x"], "else", "wait"),
    ],
)
def test_the_first_rule_that_matches_both(names: list[str], topic: str, policy: str) -> None:
    rules = RULES.of(*names)
    assert rules is not None
    for _ in range(2):
        assert rules.of(key_of(topic)) == policy


@given(st.lists(POLICIES, max_size=5), TOPICS)
def test_it_is_what_the_first_match_says(rules: list[PublicationPolicy], topic: str) -> None:
    mine = [rule for rule in rules if rule.client in ("*", "me", "m?")]
    matching = [
        rule.policy
        for rule in mine
        if rule.filter == "#" or TopicFilter(rule.filter).matches(topic)
    ]
    expected = matching[0] if matching else OverLimitPolicy.WAIT
    found = PublicationPolicies(rules).of("mqtt:1883/-/me", "me")
    assert (OverLimitPolicy.WAIT if found is None else found.of(key_of(topic))) is expected


def test_who_only_ever_waits_has_no_rules() -> None:
    assert PublicationPolicies([]).of("a") is None
    rules = [PublicationPolicy("a", "b/#", "wait"), PublicationPolicy("b", "#", "shed")]
    assert PublicationPolicies(rules).of("a") is None
    assert PublicationPolicies(rules).of("b") is not None


def test_what_it_remembers_of_topics_is_bounded() -> None:
    rules = RULES.of("sensor")
    assert rules is not None
    for n in range(2 * MAX_CACHED):
        assert rules.of(key_of(f"raw/{n}/fast")) == "shed"
    assert 0 < rules.remembered <= MAX_CACHED
    before = rules.remembered
    assert rules.of(key_of("raw/" + "x" * LONG_TOPIC)) == "refuse"
    assert rules.remembered == before


def test_a_topic_that_is_no_utf_8_has_a_policy_until_it_is_refused() -> None:
    rules = RULES.of("sensor")
    assert rules is not None
    assert rules.of(b"\0\1\xff") == "wait"


def test_a_rule_says_itself_as_it_is_given() -> None:
    assert str(PublicationPolicy("a*", "b/#", "refuse")) == "a* b/#=refuse"


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        (("", "#", "shed"), ValueError, "is empty"),
        (("a", "", "shed"), PatternError, "empty"),
        (("a", "b/#/c", "shed"), PatternError, "must be alone"),
        (("a", "#", "drop"), ValueError, "drop"),
    ],
)
def test_what_is_no_rule(wrong: tuple[str, str, str], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        PublicationPolicy(*wrong)
