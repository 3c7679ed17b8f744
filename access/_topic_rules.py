"""Rules for the messages of one connection, by topic: the first that matches applies."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Final, Generic, TypeVar

from ..dataspace import LONG_TOPIC, TopicFilter

EVERY_TOPIC: Final = "#"
"""The filter of a rule for all messages of a client. It matches topics that begin with `$`, too."""

MAX_CACHED: Final = 4_096
"""Topics of one connection whose rule is remembered; long ones are not."""


def check_client(of: str) -> Callable[[object, object, str], None]:
    """Return a validator (attrs) for the pattern of clients in `of`: words for what the rule is."""

    def check(_: object, __: object, value: str) -> None:
        if not value:
            msg = f"the client of {of} is empty; * matches every client"
            raise ValueError(msg)

    return check


def check_filter(_: object, __: object, value: str) -> None:
    """Validate (attrs) a topic filter."""
    TopicFilter(value)


RuleT = TypeVar("RuleT", bound=Hashable)


class TopicRules(Generic[RuleT]):
    """Rules for one connection, by the topics of its messages.

    Args:
        default: The rule where no other one matches.
        rules: Filters and their rules, the most important first.
        topic_of: Makes a topic of a key, as the connection's protocol has it in its frames.

    Attributes:
        default: See above; or the rule for `#`, if there is one.
        every: All rules that may apply.
        only: The one rule for everything; None if it depends on the topic.
    """

    __slots__ = ("_by_key", "_rules", "_topic_of", "default", "every", "only")

    def __init__(
        self,
        default: RuleT,
        rules: Sequence[tuple[TopicFilter, RuleT]] = (),
        topic_of: Callable[[bytes], str] = bytes.decode,
    ) -> None:
        reached: list[tuple[TopicFilter, RuleT]] = []
        for topic_filter, rule in rules:
            if topic_filter.text == EVERY_TOPIC:
                default = rule  # nothing comes by it
                break
            reached.append((topic_filter, rule))
        self.default = default
        self._rules = tuple(reached)
        self._topic_of = topic_of
        self._by_key: dict[bytes, RuleT] = {}
        self.every = frozenset((default, *(rule for _, rule in reached)))
        self.only = default if len(self.every) == 1 else None

    @property
    def remembered(self) -> int:
        """The number of topics whose rule is remembered."""
        return len(self._by_key)

    def of(self, key: bytes | None) -> RuleT:
        """Return the rule for messages on the topic that `key` is; None: it has no topic."""
        if self.only is not None:
            return self.only
        if key is None:
            return self.default
        found = self._by_key.get(key)
        if found is None:
            topic = self._topic_of(key)
            found = self.default
            for topic_filter, rule in self._rules:
                if topic_filter.matches(topic):
                    found = rule
                    break
            if len(key) <= LONG_TOPIC:
                if len(self._by_key) >= MAX_CACHED:
                    self._by_key.clear()
                self._by_key[key] = found
        return found
