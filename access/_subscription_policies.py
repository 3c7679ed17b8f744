"""Policies for slow consumers, by client and by topic.

Rules of this file:
1. A rule is for the messages to some clients on some topics. The first that matches both is taken;
   where none does, the relay's default is.
2. Rules are consulted only about a connection that is stuck: normal traffic does not come by here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Literal

import attrs

from ..accounts import Profile, StuckPolicy
from ..dataspace import TopicFilter
from ._patterns import EveryMatch
from ._topic_rules import EVERY_TOPIC, TopicRules, check_client, check_filter

StuckWord = Literal["wait", "disconnect", "drop_oldest", "drop_newest", "conflate", "spill"]
"""A policy for slow consumers: the values of `StuckPolicy`."""

ProfileWord = Literal["balanced", "lossless", "live"]
"""A profile: the values of `Profile`."""


def _check_patience(_: object, __: object, value: float | None) -> None:
    if value is not None and not 0 <= value < math.inf:
        msg = f"patience is a number of seconds, at least 0, not {value}"
        raise ValueError(msg)


def _policy_of(value: str) -> StuckPolicy | Profile:
    try:
        return Profile(value)
    except ValueError:
        return StuckPolicy(value)


@attrs.frozen(slots=True)
class SubscriptionPolicy:
    """The policy for messages to some clients, on some topics, that are not taken.

    Raises:
        ValueError: If it is no rule.
    """

    client: str = attrs.field(validator=check_client("a subscription policy"))
    """A pattern for the client's account, as `mqtt:1883/press/ticker`, or for its client identifier
    (MQTT) or address (Syndicate); as `AccountLimit.pattern`."""
    filter: str = attrs.field(validator=check_filter)
    """A topic filter. Only `#` matches messages without a topic, such as all messages to
    Syndicate's peers."""
    policy: StuckPolicy | Profile = attrs.field(converter=_policy_of)
    """The policy, or a profile."""
    patience: float | None = attrs.field(default=None, validator=_check_patience)
    """The patience: seconds without progress, while others wait; None: the profile's, or the
    relay's."""

    def __str__(self) -> str:
        patience = "" if self.patience is None else f",{self.patience:g}"
        return f"{self.client} {self.filter}={self.policy}{patience}"

    def rule(self, patience: float) -> PolicyRule:
        """Return the policy and its patience, in a server with this patience."""
        policy = self.policy
        if isinstance(policy, StuckPolicy):
            found = PolicyRule(policy, patience)
        else:
            found = PolicyRule.of(policy, patience)
        return found if self.patience is None else attrs.evolve(found, patience=self.patience)


@attrs.frozen(slots=True)
class PolicyRule:
    """A policy and its patience."""

    policy: StuckPolicy
    patience: float
    """Seconds without progress, while others wait."""

    @classmethod
    def of(cls, profile: Profile, patience: float) -> PolicyRule:
        """Return the rule of a profile, in a server with this patience."""
        waits = profile is Profile.LOSSLESS
        return cls(profile.policy, patience if waits else min(profile.patience, patience))


class PolicyRules(TopicRules[PolicyRule]):
    """Policies for the messages to one connection, by their topics; see `TopicRules`.

    Attributes:
        patience: The least patience of them.
        policies: All policies that may ever apply.
    """

    __slots__ = ("patience", "policies")

    def __init__(
        self,
        default: PolicyRule,
        rules: Sequence[tuple[TopicFilter, PolicyRule]] = (),
        topic_of: Callable[[bytes], str] = bytes.decode,
    ) -> None:
        super().__init__(default, rules, topic_of)
        self.patience = min(each.patience for each in self.every)
        self.policies = frozenset(each.policy for each in self.every)

    def __repr__(self) -> str:
        return f"<PolicyRules: {self.default.policy}, {len(self._rules)} rules>"


class SubscriptionPolicies:
    """A relay's policies for slow consumers.

    Args:
        rules: The policies for some clients, on some topics; the most important first.
        default: The policy for all others.
        patience: That of rules that have none of their own.
    """

    __slots__ = ("_plain", "_rules", "default")

    def __init__(
        self,
        rules: Sequence[SubscriptionPolicy],
        default: PolicyRule,
        patience: float,
    ) -> None:
        self.default = default
        # For all clients without a rule.
        self._plain = PolicyRules(default)
        self._rules = EveryMatch((each.client, (each, each.rule(patience))) for each in rules)

    def __repr__(self) -> str:
        return f"<SubscriptionPolicies: {self.default.policy}, {len(self._rules)} rules>"

    def of(
        self,
        *names: str,
        able: Collection[StuckPolicy] | None = None,
        topic_of: Callable[[bytes], str] | None = bytes.decode,
        more: Sequence[tuple[TopicFilter, PolicyRule]] = (),
    ) -> PolicyRules:
        """Return the policies for the client that has these names.

        Args:
            names: Its account's, and its client identifier.
            able: The policies that are possible for its messages; rules with other ones are
                skipped. None: all are.
            topic_of: See `PolicyRules`; None: its messages have no topics, and only rules for all
                of them apply.
            more: Rules of the client's own, after those of the server.
        """
        rules: list[tuple[TopicFilter, PolicyRule]] = []
        for each, rule in self._rules.of(*names):
            if able is not None and rule.policy not in able:
                continue
            if topic_of is None and each.filter != EVERY_TOPIC:
                continue
            rules.append((TopicFilter(each.filter), rule))
        rules.extend(more)
        if not rules:
            return self._plain
        return PolicyRules(self.default, rules, bytes.decode if topic_of is None else topic_of)
