"""Policies for publishers above their limits, by client and by topic.

A rule is for the publications of some clients on some topics. The first that matches both is taken;
where none does, the publisher waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import attrs

from ..accounts import OverLimitPolicy
from ..dataspace import TopicFilter
from ._patterns import EveryMatch
from ._topic_rules import TopicRules, check_client, check_filter

OverLimitWord = Literal["wait", "refuse", "shed"]
"""A policy for publishers above their limits: the values of `OverLimitPolicy`."""


@attrs.frozen(slots=True)
class PublicationPolicy:
    """The policy for publications of some clients, on some topics, above a limit.

    Raises:
        ValueError: If it is no rule.
    """

    client: str = attrs.field(validator=check_client("a publication policy"))
    """A pattern for the client's account, as `mqtt:1883/press/ticker`, or for its client
    identifier; as `AccountLimit.pattern`."""
    filter: str = attrs.field(validator=check_filter)
    """A topic filter; `#` matches topics that begin with `$`, too."""
    policy: OverLimitPolicy = attrs.field(converter=OverLimitPolicy)
    """The policy."""

    def __str__(self) -> str:
        return f"{self.client} {self.filter}={self.policy}"


def _topic_of(key: bytes) -> str:
    # As it stands in a packet, its length in front. Malformed UTF-8 is refused in its turn.
    return key[2:].decode(errors="replace")


class PublicationPolicies:
    """A relay's policies for publishers above their limits.

    Args:
        rules: The policies for some clients, on some topics; the most important first.
    """

    __slots__ = ("_rules",)

    def __init__(self, rules: Sequence[PublicationPolicy]) -> None:
        self._rules = EveryMatch((rule.client, rule) for rule in rules)

    def __repr__(self) -> str:
        return f"<PublicationPolicies: {len(self._rules)} rules>"

    def of(self, *names: str) -> TopicRules[OverLimitPolicy] | None:
        """Return the policies for a client; None: it always waits.

        Their keys are topics as they stand in a PUBLISH, the length in front.

        Args:
            names: The name of its account, and its client identifier.
        """
        found = [(TopicFilter(rule.filter), rule.policy) for rule in self._rules.of(*names)]
        if not found:
            return None
        rules = TopicRules(OverLimitPolicy.WAIT, found, _topic_of)
        return None if rules.only is OverLimitPolicy.WAIT else rules
