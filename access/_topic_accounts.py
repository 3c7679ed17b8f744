"""Accounts for topics within one connection: one topic that is over need not stop the others.

A rule is for some clients. Its filter says which topics have accounts of their own, and how much of
a topic names the account: as many levels as the filter has before `#`. So `jobs/#` is one account
for all topics below `jobs`, `+/#` one for each first level, `line/+` one for each topic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from ..dataspace import TopicFilter
from ._patterns import Patterns
from ._topic_rules import check_client, check_filter

LONGEST_PREFIX: Final = 200
"""Characters of a topic that name an account; as of a pattern from a peer (`_patterns.py`)."""


@attrs.frozen(slots=True)
class TopicAccount:
    """Which topics of some clients have accounts of their own.

    Raises:
        ValueError: If it is no rule.
    """

    client: str = attrs.field(validator=check_client("a topic account"))
    """A pattern for the client's account, or for its client identifier; as
    `AccountLimit.pattern`."""
    filter: str = attrs.field(validator=check_filter)
    """A topic filter."""

    def __str__(self) -> str:
        return f"{self.client} {self.filter}"

    @property
    def levels(self) -> int:
        """The number of levels of a topic that name its account; 0: all topics have one account."""
        levels = self.filter.split("/")
        return len(levels) - (levels[-1] == "#")


class TopicPrefixes:
    """The topics of one client that have accounts of their own; the first rule that matches counts.

    Args:
        rules: Its rules, the most important first.
    """

    __slots__ = ("_rules",)

    def __init__(self, rules: Sequence[TopicAccount]) -> None:
        self._rules = [(TopicFilter(rule.filter), rule.levels) for rule in rules]

    def of(self, topic: str) -> str | None:
        """Return what names the account of a topic; None: it has none of its own."""
        for topic_filter, levels in self._rules:
            if topic_filter.matches(topic):
                prefix = "/".join(topic.split("/", levels)[:levels]) if levels else "#"
                return prefix if len(prefix) <= LONGEST_PREFIX else None
        return None


class TopicAccounts:
    """A relay's rules for accounts of topics.

    Args:
        rules: The rules, the most important first.
    """

    __slots__ = ("_rules",)

    def __init__(self, rules: Sequence[TopicAccount]) -> None:
        self._rules = [(Patterns([rule.client]), rule) for rule in rules]

    def __repr__(self) -> str:
        return f"<TopicAccounts: {len(self._rules)} rules>"

    def of(self, *names: str) -> TopicPrefixes | None:
        """Return the rules for a client with these names; None: there are none."""
        found = [rule for pattern, rule in self._rules if any(map(pattern.matches, names))]
        return TopicPrefixes(found) if found else None
