"""What observers are told."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import attrs

from ._pattern import UNSEEN, Pattern
from ._topics import TopicFilter


@attrs.frozen(slots=True)
class Asserted:
    """Something is the case from now on (or already is, to a new observer)."""

    value: Any
    """The assertion, or the tuple of what the observer's pattern captures of it."""


@attrs.frozen(slots=True)
class Retracted:
    """Something is no longer the case: the last assertion that showed this has gone."""

    value: Any
    """The same value that was `Asserted`."""


@attrs.frozen(slots=True)
class Observe:
    """The assertion that somebody observes `pattern`; it can be observed itself."""

    pattern: Pattern | TopicFilter


@attrs.frozen(slots=True)
class Publication:
    """One message on a topic, as MQTT has it."""

    topic: str
    """The topic name: no wildcards."""
    payload: bytes
    """Application data, never looked into unless a pattern does."""
    qos: int = 0
    """0 at most once, 1 at least once, 2 exactly once: as it was published."""
    retain: bool = False
    """To a dataspace: keep it as the topic's value (an empty payload removes it). To an observer:
    it is such a kept value, from before the observation."""
    properties: bytes = attrs.field(default=b"", metadata=UNSEEN)
    """What its publisher says about the payload, as it travels in MQTT 5 (payload format, content
    type, response topic, correlation data, user properties; section 3.3.2.3), without the length
    in front. Handed on as it is, never looked into."""
    expires: float | None = attrs.field(default=None, metadata=UNSEEN)
    """From when on nobody is to be sent it any more, in seconds of the wall clock (MQTT 5, message
    expiry interval, section 3.3.2.3.3). None: it does not expire."""
    was_retained: bool = attrs.field(default=False, metadata=UNSEEN, eq=False)
    """Whether it was published to be retained, also to those to whom it is news and `retain` is
    False (MQTT 5, Retain As Published, section 3.8.3.1). It does not tell equal ones apart."""

    def __repr__(self) -> str:
        shown = [f"{self.topic!r}, payload={self.payload!r}, qos={self.qos}, retain={self.retain}"]
        # What most do not have is not shown of them.
        if self.properties:
            shown.append(f"properties={self.properties!r}")
        if self.expires is not None:
            shown.append(f"expires={self.expires!r}")
        if self.was_retained:
            shown.append("was_retained=True")
        return f"Publication(topic={', '.join(shown)})"

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels of its topic; patterns may look at them as at a field."""
        return tuple(self.topic.split("/"))

    @property
    def nbytes(self) -> int:
        """What it is charged for: its topic, its payload and its properties, as they travel."""
        return len(self.topic.encode()) + len(self.payload) + len(self.properties)

    def has_expired(self, now: float) -> bool:
        """Whether nobody is to be sent it any more at `now`, in seconds of the wall clock."""
        return self.expires is not None and self.expires <= now


class Batch:
    """A run of publications that all go to the same holders, as the bytes in which they came.

    Who takes bytes as they are takes `raw`; who looks at the publications calls `events()`.

    Attributes:
        raw: Whole frames, in order.
        count: How many.
        nbytes: `len(raw)`.
        topic: Of the first, if it is known: "" says nothing.
        framed: For transports that tell several observers the same in frames of their own: these,
            by whatever tells them apart. None as long as there are none.
    """

    __slots__ = ("_explode", "count", "framed", "nbytes", "raw", "topic")

    def __init__(
        self,
        raw: bytes,
        count: int,
        explode: Callable[[bytes], Iterable[Publication]],
        topic: str = "",
    ) -> None:
        self.raw = raw
        self.count = count
        self.nbytes = len(raw)
        self._explode = explode
        self.topic = topic
        self.framed: dict[Hashable, bytes] | None = None

    def __repr__(self) -> str:
        return f"<Batch of {self.count} publications, {self.nbytes} bytes>"

    def events(self) -> Iterable[Publication]:
        """Return its publications, decoded anew at each call."""
        return self._explode(self.raw)
