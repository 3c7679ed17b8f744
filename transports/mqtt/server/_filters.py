"""One client's subscriptions, with the options of MQTT 5, and their joint effect on a topic.

A client with overlapping subscriptions gets a publication once (as in `Routes`). So its form
depends on all of them together, not on a single one (MQTT 5, sections 3.3.4 and 3.8.3.1).
"""

from __future__ import annotations

from typing import Final

import attrs

from ....dataspace import LONG_TOPIC, FilterIndex, topic_matches
from ..codec._options import NO_LOCAL, RETAIN_AS_PUBLISHED

CACHED_TOPICS: Final = 1_024
"""Topics whose joint options are cached: about 200 KiB for one client."""


FEW_FILTERS: Final = 8
"""More than these are matched by an index: it has 1.2 KB, and most clients have one filter."""


@attrs.frozen(slots=True)
class Chosen:
    """The joint options of all subscriptions of a client that match a topic."""

    local: bool = True
    """Whether the client gets its own publications: unless all have No Local."""
    as_published: bool = False
    """Whether RETAIN stays as published: if one of them has Retain As Published."""
    identifiers: tuple[int, ...] = ()
    """Their subscription identifiers, in order, each once."""


_PLAIN: Final = Chosen()


class Filters:
    """The topic filters of one client, with their options and identifiers."""

    __slots__ = ("_cached", "_filters", "_identified", "_index", "_selecting")

    def __init__(self) -> None:
        # By filter: the options, and the identifier or 0.
        self._filters: dict[str, tuple[int, int]] = {}
        self._index: FilterIndex[str] | None = None
        self._cached: dict[str, Chosen] = {}
        # Numbers of filters with options, and with an identifier.
        self._selecting = 0
        self._identified = 0

    def __len__(self) -> int:
        """Return the number of filters."""
        return len(self._filters)

    def __bool__(self) -> bool:
        return bool(self._filters)

    @property
    def selects(self) -> bool:
        """Whether a filter has No Local or Retain As Published; else no topic is special."""
        return self._selecting > 0

    @property
    def identifies(self) -> bool:
        """Whether a filter has an identifier."""
        return self._identified > 0

    def add(self, text: str, options: int = 0, identifier: int = 0) -> None:
        """Add a filter, or change its options; `identifier` 0 means none."""
        self.remove(text)
        self._filters[text] = options, identifier
        if self._index is not None:
            self._index.add(text, text)
        elif len(self._filters) > FEW_FILTERS:
            self._index = FilterIndex()
            for known in self._filters:
                self._index.add(known, known)
        self._note(options, identifier, 1)

    def remove(self, text: str) -> None:
        """Remove a filter, if present."""
        old = self._filters.pop(text, None)
        if old is not None:
            if self._index is not None:
                self._index.remove(text, text)
            self._note(*old, -1)

    def clear(self) -> None:
        """Remove all filters."""
        for text in list(self._filters):
            self.remove(text)

    def of(self, topic: str) -> Chosen:
        """Return the joint options for a topic; no options if no filter matches."""
        chosen = self._cached.get(topic)
        if chosen is None:
            chosen = self._choose(topic)
            if len(topic) <= LONG_TOPIC:
                if len(self._cached) >= CACHED_TOPICS:
                    del self._cached[next(iter(self._cached))]
                self._cached[topic] = chosen
        return chosen

    def _choose(self, topic: str) -> Chosen:
        index, filters = self._index, self._filters
        if index is None:
            found = [of for text, of in filters.items() if topic_matches(text, topic)]
        else:
            found = [filters[text] for text in index.matching(topic)]
        if not found:
            return _PLAIN
        return Chosen(
            local=not all(options & NO_LOCAL for options, _ in found),
            as_published=any(options & RETAIN_AS_PUBLISHED for options, _ in found),
            identifiers=tuple(sorted({identifier for _, identifier in found if identifier})),
        )

    def _note(self, options: int, identifier: int, change: int) -> None:
        self._selecting += change * (options & (NO_LOCAL | RETAIN_AS_PUBLISHED) != 0)
        self._identified += change * (identifier != 0)
        self._cached.clear()
