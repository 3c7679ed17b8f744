"""Rules for subscribers that are stuck: which of them is whose, and for which topics."""

from __future__ import annotations

import time

import pytest

from clearfunds.access._subscription_policies import PolicyRule, SubscriptionPolicies
from clearfunds.access._topic_rules import MAX_CACHED
from clearfunds.accounts import StuckPolicy
from clearfunds.dataspace import PatternError
from clearfunds.transports import SubscriptionPolicy

DEFAULT = PolicyRule(StuckPolicy.DISCONNECT, 20.0)


def rule(
    client: str, topics: str, policy: str, patience: float | None = None
) -> SubscriptionPolicy:
    return SubscriptionPolicy(client, topics, policy, patience)


def policies(*rules: SubscriptionPolicy) -> SubscriptionPolicies:
    return SubscriptionPolicies(rules, DEFAULT, 20.0)


def test_policies_of_thousands_of_single_clients_are_not_looked_through() -> None:
    every = policies(*(rule(f"c{number}", "#", "wait") for number in range(5000)))
    began = time.process_time()
    for number in range(1000):
        assert every.of("mqtt:1883/-/x", f"c{number}").default.policy is StuckPolicy.WAIT
    assert time.process_time() - began < 0.5  # It is 0.02 s; to look through them takes 2 s.


RULES = policies(
    rule("dash*", "sensors/+/temperature", "conflate", 2.0),
    rule("dash*", "sensors/#", "drop_oldest"),
    rule("mqtt:1883/press/*", "#", "spill"),
    rule("*", "alarms/#", "wait"),
    rule("*", "#", "drop_newest", 1.0),
    rule("*", "sensors/#", "disconnect"),
)


@pytest.mark.parametrize(
    ("names", "topic", "policy", "patience"),
    [
        (["a", "dash-1"], "sensors/7/temperature", "conflate", 2.0),
        (["a", "dash-1"], "sensors/7/level", "drop_oldest", 20.0),
        (["a", "dash-1"], "sensors", "drop_oldest", 20.0),
        (["a", "dash-1"], "alarms/x", "wait", 20.0),
        (["a", "dash-1"], "else", "drop_newest", 1.0),
        (["mqtt:1883/press/dash", "dash"], "else", "spill", 20.0),
        (["mqtt:1883/press/other", "other"], "sensors/7/level", "spill", 20.0),
        (["mqtt:1883/-/other", "other"], "sensors/7/level", "drop_newest", 1.0),
        (["mqtt:1883/-/other", "other"], "$SYS/broker", "drop_newest", 1.0),
    ],
)
def test_the_first_rule_that_matches_both(
    names: list[str], topic: str, policy: str, patience: float
) -> None:
    policy_rules = RULES.of(*names)
    for _ in range(2):
        assert policy_rules.of(topic.encode()) == PolicyRule(StuckPolicy(policy), patience)


def test_without_a_rule_it_is_the_default_for_everything() -> None:
    for some in (policies(), policies(rule("other", "#", "wait"))):
        policy_rules = some.of("mqtt:1883/-/me", "me")
        assert policy_rules.only == policy_rules.of(b"t") == DEFAULT
        assert policy_rules is some.of("mqtt:1883/-/you", "you")


def test_of_several_patiences_the_least_is_known() -> None:
    assert RULES.of("a", "dash-1").patience == 1.0
    assert policies(rule("a", "x", "wait", 30.0)).of("a").patience == 20.0
    assert policies(rule("a", "#", "wait", 30.0)).of("a").patience == 30.0


def test_who_can_be_dealt_with_in_some_ways_only_has_the_rules_that_say_those() -> None:
    able = {StuckPolicy.WAIT, StuckPolicy.DISCONNECT}
    assert RULES.of("dash", able=able, topic_of=None).only == DEFAULT
    some = policies(rule("p", "#", "spill"), rule("p", "a/#", "wait"), rule("p", "#", "wait", 3.0))
    assert some.of("p", able=able, topic_of=None).only == PolicyRule(StuckPolicy.WAIT, 3.0)


def test_what_it_remembers_of_topics_is_bounded() -> None:
    policy_rules = RULES.of("dash")
    for n in range(2 * MAX_CACHED):
        policy_rules.of(b"sensors/%d/level" % n)
    assert policy_rules.remembered <= MAX_CACHED


def test_a_rule_says_itself_as_it_is_given() -> None:
    assert str(SubscriptionPolicy("a*", "b/#", "spill")) == "a* b/#=spill"
    assert str(SubscriptionPolicy("a*", "b/#", "wait", 0.5)) == "a* b/#=wait,0.5"


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        (("", "#", "wait"), ValueError, "is empty"),
        (("a", "", "wait"), PatternError, "empty"),
        (("a", "b/#/c", "wait"), PatternError, "must be alone"),
        (("a", "#", "panic"), ValueError, "panic"),
        (("a", "#", "wait", -1.0), ValueError, "at least 0"),
        (("a", "#", "wait", float("nan")), ValueError, "at least 0"),
    ],
)
def test_what_is_no_rule(wrong: tuple[str, str, str], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        rule(*wrong)
