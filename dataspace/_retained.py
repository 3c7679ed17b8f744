"""Retained publications: the last value of a topic, kept for those who subscribe later.

Standing state: it counts against its owner's quota (rule 16), and against two limits of the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from ..accounts import QuotaExceededError, Standing
from ._events import Publication
from ._topics import TopicIndex

DEFAULT_MAX_RETAINED = 100_000
"""Topics with a retained value; with 200 bytes each about 100 MiB of Python objects."""

DEFAULT_MAX_RETAINED_BYTES = 64 << 20
"""Bytes of retained topics and payloads."""


@attrs.frozen(slots=True, eq=False)
class _Retained:
    publication: Publication
    owner: Standing
    nbytes: int


class RetainedStore:
    """The last value of each topic that has one.

    Attributes:
        nbytes: Bytes of all topics and payloads that are kept.
        on_change: Called with a topic, its value from now on or None, and whose it is, at each
            change, those undone included: for who keeps them elsewhere too.
    """

    def __init__(self, max_items: int, max_bytes: int) -> None:
        self.max_items = max_items
        self.max_bytes = max_bytes
        self.nbytes = 0
        self.on_change: Callable[[str, Publication | None, str], object] | None = None
        self._topics: TopicIndex[_Retained] = TopicIndex()

    def __len__(self) -> int:
        """Return how many topics have a value."""
        return len(self._topics)

    def get(self, topic: str) -> Publication | None:
        """Return the retained publication of one topic."""
        kept = self._topics.get(topic)
        return None if kept is None else kept.publication

    def matching(self, topic_filter: str) -> Iterator[Publication]:
        """Yield what is retained on matching topics; the store must not change meanwhile."""
        for kept in self._topics.matching(topic_filter):
            yield kept.publication

    def topics(self, topic_filter: str) -> list[str]:
        """Return the matching topics, for a replay in steps that looks each up when it is due."""
        return [kept.publication.topic for kept in self._topics.matching(topic_filter)]

    def set(self, publication: Publication, owner: Standing) -> Callable[[], None]:
        """Keep `publication` as its topic's value, or remove it if its payload is empty.

        Return how to undo that.

        Raises:
            QuotaExceededError: If the owner's quota or a limit of the store is exceeded; the store
                is as it was then.
        """
        topic = publication.topic
        old = self._topics.get(topic)
        new: _Retained | None = None
        if publication.payload:
            new = _Retained(publication, owner, publication.nbytes)
        self._check_limits(old, new, topic)
        self._replace(topic, old, new)
        return lambda: self._replace(topic, new, old)

    def _check_limits(self, old: _Retained | None, new: _Retained | None, topic: str) -> None:
        if new is None:
            return
        grown = new.nbytes - (0 if old is None else old.nbytes)
        if old is None and len(self._topics) >= self.max_items:
            msg = f"{topic} cannot be retained: {self.max_items} topics are, which is the limit"
            raise QuotaExceededError(msg)
        if grown > 0 and self.nbytes + grown > self.max_bytes:
            msg = (
                f"{topic} cannot be retained: {self.nbytes} bytes are, of {self.max_bytes} allowed"
            )
            raise QuotaExceededError(msg)
        mine = old is not None and old.owner is new.owner
        new.owner.check(0 if mine else 1, grown if mine else new.nbytes)

    def _replace(self, topic: str, old: _Retained | None, new: _Retained | None) -> None:
        if old is not None:
            old.owner.release(1, old.nbytes)
            self.nbytes -= old.nbytes
        if new is not None:
            new.owner.add(1, new.nbytes)
            self.nbytes += new.nbytes
            self._topics.set(topic, new)
        elif old is not None:
            self._topics.discard(topic)
        if self.on_change is not None and (old is not None or new is not None):
            if new is not None:
                self.on_change(topic, new.publication, new.owner.owner)
            else:
                self.on_change(topic, None, "")
