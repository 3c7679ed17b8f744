"""Topics of publishers and filters of subscribers.

A topic pattern may have `{publisher}` in it, and `{topic}`, which counts through the topics of each
publisher; a filter pattern may have `{subscriber}` and `{topic}`.
"""

from __future__ import annotations

import re
from typing import Final

import attrs

from ..dataspace import FilterIndex
from ..transports import ProtocolError
from ..transports.mqtt import Publish, Subscribe, encode
from ._errors import ScenarioError

_FIELD: Final = re.compile(r"\{([a-z]*)\}")


def _fields(pattern: str, known: frozenset[str]) -> set[str]:
    found = set(_FIELD.findall(pattern))
    for field in sorted(found - known):
        names = " and ".join(f"{{{name}}}" for name in sorted(known))
        msg = f'"{pattern}" has {{{field}}}; known are {names}'
        raise ScenarioError(msg)
    return found


@attrs.frozen
class Topics:
    """The topics and filters of a scenario."""

    topic: str
    filter: str
    per_publisher: int

    @classmethod
    def make(cls, topic: str, filter_: str | None, per_publisher: int) -> Topics:
        """Check the patterns; without a filter, subscribers take everything published.

        Raises:
            ScenarioError: A field is unknown, or the result is no topic or filter.
        """
        fields = _fields(topic, frozenset({"publisher", "topic"}))
        if per_publisher > 1 and "topic" not in fields:
            msg = f'{per_publisher} topics a publisher, but no {{topic}} in "{topic}"'
            raise ScenarioError(msg)
        if filter_ is None:
            filter_ = "/".join("+" if "{" in level else level for level in topic.split("/"))
        else:
            _fields(filter_, frozenset({"subscriber", "topic"}))
        made = cls(topic, filter_, per_publisher)
        try:
            encode(Publish(made.topic_of(0, 0), b""))
            encode(Subscribe(1, tuple((each, 0) for each in made.filters_of(0))))
        except ProtocolError as error:
            raise ScenarioError(str(error)) from error
        return made

    def topic_of(self, publisher: int, number: int) -> str:
        """Return one topic of a publisher."""
        return self.topic.replace("{publisher}", str(publisher)).replace("{topic}", str(number))

    def topics_of(self, publisher: int) -> list[str]:
        """Return all topics of a publisher, in the order of their numbers."""
        return [self.topic_of(publisher, number) for number in range(self.per_publisher)]

    def filters_of(self, subscriber: int) -> list[str]:
        """Return the filters of a subscriber."""
        mine = self.filter.replace("{subscriber}", str(subscriber))
        numbers = range(self.per_publisher) if "{topic}" in mine else range(1)
        return [mine.replace("{topic}", str(number)) for number in numbers]

    def takers(self, publishers: int, subscribers: int) -> list[list[frozenset[int]]]:
        """Return the numbers of the subscribers, by publisher and topic."""
        index: FilterIndex[int] = FilterIndex()
        for subscriber in range(subscribers):
            for each in self.filters_of(subscriber):
                index.add(each, subscriber)
        known: dict[frozenset[int], frozenset[int]] = {}
        return [
            [
                known.setdefault(found, found)
                for topic in self.topics_of(publisher)
                for found in [frozenset(index.matching(topic))]
            ]
            for publisher in range(publishers)
        ]
