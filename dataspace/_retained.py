"""Retained publications: the last value of a topic, kept for later subscribers.

Standing state: it counts against its owner's quota (rule 16), and against two limits of the store.

Nobody gets a publication that has expired (`Publication.expires`; MQTT 5, section 3.3.2.3.3). It is
removed when a look-up finds it, or by `RetainedStore.expire`. Publications that can expire are in a
heap, by time, also those that have been replaced since. If most have been, the heap is rebuilt.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Final

import attrs

from ..accounts import QuotaExceededError, Standing
from ._events import Publication
from ._topic_index import Cursor, TopicIndex

DEFAULT_MAX_RETAINED = 100_000
"""Topics with a retained value; with 200 bytes each about 100 MiB of Python objects."""

DEFAULT_MAX_RETAINED_BYTES = 64 << 20
"""Limit on bytes of retained topics and payloads."""

EXPIRY_BATCH: Final = 1_000
"""Most expired ones that one call of `RetainedStore.expire` removes: a few milliseconds' worth."""

STALE_AT_LEAST: Final = 64
"""The heap is rebuilt when it has at least this many entries and most of them are stale."""


@attrs.frozen(slots=True, eq=False)
class _Retained:
    publication: Publication
    owner: Standing
    nbytes: int
    number: int
    """Identifies its entry in the heap, which is stale once the value has been replaced."""


class RetainedStore:
    """The last value of each topic that has one.

    Attributes:
        nbytes: Bytes of all topics, payloads and properties that are kept.
        wall: The wall clock, for expiry.
        on_change: Called at each change with a topic, its new value or None, and the owner's name;
            also when a change is undone. For a copy that is kept elsewhere.
    """

    def __init__(self, max_items: int, max_bytes: int) -> None:
        self.max_items = max_items
        self.max_bytes = max_bytes
        self.nbytes = 0
        self.on_change: Callable[[str, Publication | None, str], object] | None = None
        self.wall: Callable[[], float] = time.time
        self._topics: TopicIndex[_Retained] = TopicIndex()
        # Heap of those that can expire, by time; and how many of them are current.
        self._by_expiry: list[tuple[float, int, str]] = []
        self._expiring = 0
        self._numbers = count()

    def __len__(self) -> int:
        """Return the number of topics with a value, expired ones included while they are here."""
        return len(self._topics)

    def get(self, topic: str) -> Publication | None:
        """Return the retained publication of one topic."""
        kept = self._topics.get(topic)
        if kept is None:
            return None
        if kept.publication.expires is not None and kept.publication.has_expired(self.wall()):
            self._replace(topic, kept, None)
            return None
        return kept.publication

    def owner_of(self, topic: str) -> str | None:
        """Return the name of the owner of a topic's value, if it has one."""
        kept = self._topics.get(topic)
        return None if kept is None else kept.owner.owner

    def matching(self, topic_filter: str) -> Iterator[Publication]:
        """Yield the retained publications on matching topics; changes meanwhile may show or not."""
        found = self._topics.matching(topic_filter)
        yield from self._current(found) if self._expiring else (kept.publication for kept in found)

    def topics(self, topic_filter: str) -> list[str]:
        """Return the matching topics, all at once."""
        return [publication.topic for publication in self.matching(topic_filter)]

    def cursor(self, topic_filter: str) -> Cursor:
        """Return a cursor over matching topics, with bounded steps; the store may change meanwhile.

        Look each topic up (`get`) when it is found: its value may have expired.
        """
        return Cursor(self._topics, topic_filter)

    def _current(self, found: Iterator[_Retained]) -> Iterator[Publication]:
        """Yield those that have not expired, and remove the others at the end."""
        now = self.wall()
        over: list[_Retained] = []
        for kept in found:
            if kept.publication.has_expired(now):
                over.append(kept)
            else:
                yield kept.publication
        for kept in over:
            self._replace(kept.publication.topic, kept, None)

    def expire(self, now: float) -> int:
        """Remove values that have expired at `now`, in seconds of the wall clock; return how many.

        It removes at most `EXPIRY_BATCH` of them, the first to have expired, so call it again
        and again. It costs nothing as long as none has expired.
        """
        heap = self._by_expiry
        removed = 0
        while heap and heap[0][0] <= now and removed < EXPIRY_BATCH:
            _, number, topic = heapq.heappop(heap)
            kept = self._topics.get(topic)
            if kept is not None and kept.number == number:
                self._replace(topic, kept, None)
                removed += 1
        return removed

    def set(self, publication: Publication, owner: Standing) -> Callable[[], None]:
        """Keep `publication` as its topic's value, or remove it if its payload is empty.

        Return a function that undoes that.

        Raises:
            QuotaExceededError: If the owner's quota or a limit of the store is exceeded; the store
                is then unchanged.
        """
        topic = publication.topic
        old = self._topics.get(topic)
        new: _Retained | None = None
        if publication.payload:
            new = _Retained(publication, owner, publication.nbytes, next(self._numbers))
        self._check_limits(old, new, topic)
        self._replace(topic, old, new)
        # The topic may have no value by then: it may have expired and been removed.
        return lambda: self._replace(topic, self._topics.get(topic), old)

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
            self._expiring -= old.publication.expires is not None
        if new is not None:
            new.owner.add(1, new.nbytes)
            self.nbytes += new.nbytes
            self._topics.set(topic, new)
            if new.publication.expires is not None:
                self._will_expire(new.publication.expires, new.number, topic)
        elif old is not None:
            self._topics.discard(topic)
        if self.on_change is not None and (old is not None or new is not None):
            if new is not None:
                self.on_change(topic, new.publication, new.owner.owner)
            else:
                self.on_change(topic, None, "")

    def _will_expire(self, when: float, number: int, topic: str) -> None:
        self._expiring += 1
        heap = self._by_expiry
        heapq.heappush(heap, (when, number, topic))
        if len(heap) > max(STALE_AT_LEAST, 2 * self._expiring):
            heap[:] = filter(self._is_current, heap)
            heapq.heapify(heap)

    def _is_current(self, entry: tuple[float, int, str]) -> bool:
        kept = self._topics.get(entry[2])
        return kept is not None and kept.number == entry[1]
