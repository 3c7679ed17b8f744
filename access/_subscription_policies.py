"""Policies for slow consumers, by client and by topic.

Rules of this file:
1. A rule is for the messages to some clients on some topics. The first that matches both is taken;
   where none does, the relay's default is.
2. Rules are consulted only about a connection that is stuck: normal traffic does not come by here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, Literal

import attrs

from ..accounts import Profile, StuckPolicy
from ..dataspace import TopicFilter
from ._patterns import Patterns

StuckWord = Literal["wait", "disconnect", "drop_oldest", "drop_newest", "conflate", "spill"]
"""A policy for slow consumers: the values of `StuckPolicy`."""

ProfileWord = Literal["balanced", "lossless", "live"]
"""A profile: the values of `Profile`."""

EVERY_TOPIC: Final = "#"
"""The filter of a rule for all messages of a client. It matches topics that begin with `$`, too."""

MAX_CACHED: Final = 4_096
"""Topics of one connection whose policy is remembered."""


def _check_client(_: object, __: object, value: str) -> None:
    if not value:
        raise ValueError("the client of a subscription policy is empty; * matches every client")


def _check_filter(_: object, __: object, value: str) -> None:
    TopicFilter(value)


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

    client: str = attrs.field(validator=_check_client)
    """A pattern for the client's account, as `mqtt:1883/press/ticker`, or for its client identifier
    (MQTT) or address (Syndicate); as `AccountLimit.pattern`."""
    filter: str = attrs.field(validator=_check_filter)
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


class PolicyRules:
    """Policies for the messages to one connection, by their topics.

    Args:
        default: The policy where no rule matches.
        rules: Filters and their policies, the most important first.
        topic_of: Makes a topic of a key, as the connection's protocol has it in its frames.

    Attributes:
        every: All policies that may apply.
        only: The one policy for everything; None if it depends on the topic.
        patience: The least patience of them.
    """

    __slots__ = ("_by_key", "_rules", "_topic_of", "default", "every", "only", "patience")

    def __init__(
        self,
        default: PolicyRule,
        rules: Sequence[tuple[TopicFilter, PolicyRule]] = (),
        topic_of: Callable[[bytes], str] = bytes.decode,
    ) -> None:
        reached: list[tuple[TopicFilter, PolicyRule]] = []
        for topic_filter, rule in rules:
            reached.append((topic_filter, rule))
            if topic_filter.text == EVERY_TOPIC:
                # Nothing comes by it.
                default = rule
                reached.pop()
                break
        self.default = default
        self._rules = tuple(reached)
        self._topic_of = topic_of
        self._by_key: dict[bytes, PolicyRule] = {}
        self.every = frozenset((default, *(rule for _, rule in reached)))
        self.only = default if len(self.every) == 1 else None
        self.patience = min(each.patience for each in self.every)

    def __repr__(self) -> str:
        return f"<PolicyRules: {self.default.policy}, {len(self._rules)} rules>"

    @property
    def remembered(self) -> int:
        """The number of topics whose policy is remembered."""
        return len(self._by_key)

    @property
    def policies(self) -> frozenset[StuckPolicy]:
        """All policies that may ever apply."""
        return frozenset(each.policy for each in self.every)

    def of(self, key: bytes | None) -> PolicyRule:
        """Return the policy for messages on the topic that `key` is; None: it has no topic."""
        if self.only is not None:
            return self.only
        if key is None:
            return self.default
        found = self._by_key.get(key)
        if found is None:
            if len(self._by_key) >= MAX_CACHED:
                self._by_key.clear()
            topic = self._topic_of(key)
            found = self.default
            for topic_filter, rule in self._rules:
                if topic_filter.matches(topic):
                    found = rule
                    break
            self._by_key[key] = found
        return found


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
        self._rules = [(Patterns([each.client]), each, each.rule(patience)) for each in rules]

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
        for pattern, each, rule in self._rules:
            if able is not None and rule.policy not in able:
                continue
            if topic_of is None and each.filter != EVERY_TOPIC:
                continue
            if any(map(pattern.matches, names)):
                rules.append((TopicFilter(each.filter), rule))
        rules.extend(more)
        if not rules:
            return self._plain
        return PolicyRules(self.default, rules, bytes.decode if topic_of is None else topic_of)


def unable(names: Collection[str], rules: PolicyRules, able: Collection[Any]) -> str | None:
    """Return which policies for a kind of peers are impossible; None if all are possible."""
    wrong = sorted(rules.policies.difference(able))
    if not wrong:
        return None
    return f"{', '.join(wrong)} cannot be done for {', '.join(names)}"
