"""What one client has subscribed to, with MQTT 5's options, and what they make of a topic.

Of overlapping subscriptions a client gets a publication once (as `Routes` has it); what it gets is
for all of them together, which no single one can tell (MQTT 5, sections 3.3.4 and 3.8.3.1).
"""

from __future__ import annotations

from typing import Final

import attrs

from ...dataspace import LONG_TOPIC, FilterIndex
from ._options import NO_LOCAL, RETAIN_AS_PUBLISHED

CACHED_TOPICS: Final = 1_024
"""Topics for which it is remembered what was chosen: about 200 KiB for one client."""


@attrs.frozen(slots=True)
class Chosen:
    """What a client's subscriptions make of a topic, all together."""

    local: bool = True
    """Whether the client gets what it has published itself: unless all have No Local."""
    as_published: bool = False
    """Whether RETAIN stays as it was published: if one of them wants that."""
    identifiers: tuple[int, ...] = ()
    """The subscription identifiers of those that have one, in order, each once."""


_PLAIN: Final = Chosen()


class Filters:
    """The topic filters of one client, with their options and identifiers."""

    __slots__ = ("_cached", "_filters", "_identified", "_index", "_selecting")

    def __init__(self) -> None:
        # By filter: the options, and the identifier or 0.
        self._filters: dict[str, tuple[int, int]] = {}
        self._index: FilterIndex[str] = FilterIndex()
        self._cached: dict[str, Chosen] = {}
        # How many have options, and how many an identifier.
        self._selecting = 0
        self._identified = 0

    def __len__(self) -> int:
        """Return how many filters there are."""
        return len(self._filters)

    def __bool__(self) -> bool:
        return bool(self._filters)

    @property
    def selects(self) -> bool:
        """Whether one of them has No Local or Retain As Published: else no topic is special."""
        return self._selecting > 0

    @property
    def identifies(self) -> bool:
        """Whether one of them has an identifier."""
        return self._identified > 0

    def add(self, text: str, options: int = 0, identifier: int = 0) -> None:
        """Add a filter, or change its options; `identifier` 0 is none."""
        self.remove(text)
        self._index.add(text, text)
        self._filters[text] = options, identifier
        self._note(options, identifier, 1)

    def remove(self, text: str) -> None:
        """Remove a filter, if it is there."""
        old = self._filters.pop(text, None)
        if old is not None:
            self._index.remove(text, text)
            self._note(*old, -1)

    def clear(self) -> None:
        """Remove all."""
        for text in list(self._filters):
            self.remove(text)

    def of(self, topic: str) -> Chosen:
        """Return what they make of a topic; as of one without options, if none matches."""
        chosen = self._cached.get(topic)
        if chosen is None:
            chosen = self._choose(topic)
            if len(topic) <= LONG_TOPIC:
                if len(self._cached) >= CACHED_TOPICS:
                    del self._cached[next(iter(self._cached))]
                self._cached[topic] = chosen
        return chosen

    def _choose(self, topic: str) -> Chosen:
        found = [self._filters[text] for text in self._index.matching(topic)]
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
