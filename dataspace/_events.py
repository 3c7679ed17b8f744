"""The events that observers receive."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import attrs

from ._pattern import UNSEEN, Pattern
from ._topics import TopicFilter


@attrs.frozen(slots=True)
class Asserted:
    """Something is the case from now on (or already is, to a new observer)."""

    value: Any
    """The assertion, or the tuple of the pattern's captures from it."""


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
    """One message on a topic, as in MQTT.

    Raises:
        TypeError: If the payload is not bytes.
        ValueError: If the topic is empty, or has wildcards or NUL characters.
    """

    topic: str
    """The topic name: no wildcards."""
    payload: bytes
    """Application data. Only patterns look into it."""
    qos: int = 0
    """0 at most once, 1 at least once, 2 exactly once: as it was published."""
    retain: bool = False
    """To a dataspace: keep it as the topic's value (an empty payload removes it). To an observer:
    it is such a kept value, from before the observation."""
    properties: bytes = attrs.field(default=b"", metadata=UNSEEN)
    """The publisher's MQTT 5 properties as they travel (payload format, content type, response
    topic, correlation data, user properties; section 3.3.2.3), without the length in front. Handed
    on unchanged, never looked into."""
    expires: float | None = attrs.field(default=None, metadata=UNSEEN)
    """The time after which it is not sent any more, in seconds of the wall clock (MQTT 5, message
    expiry interval, section 3.3.2.3.3). None: it does not expire."""
    was_retained: bool = attrs.field(default=False, metadata=UNSEEN, eq=False)
    """Whether it was published to be retained, also where `retain` is False because its recipient
    already subscribed (MQTT 5, Retain As Published, section 3.8.3.1). Equality ignores it."""

    def __attrs_post_init__(self) -> None:
        topic = self.topic
        if self.payload.__class__ is not bytes:
            msg = f"the payload is bytes, not {self.payload!r}; encode it: `text.encode()`"
            raise TypeError(msg)
        if not topic or "+" in topic or "#" in topic or "\0" in topic:
            raise ValueError(_why_no_topic(topic))

    def __repr__(self) -> str:
        shown = [f"{self.topic!r}, payload={self.payload!r}, qos={self.qos}, retain={self.retain}"]
        # Fields that most publications do not have are left out.
        if self.properties:
            shown.append(f"properties={self.properties!r}")
        if self.expires is not None:
            shown.append(f"expires={self.expires!r}")
        if self.was_retained:
            shown.append("was_retained=True")
        return f"Publication(topic={', '.join(shown)})"

    @property
    def count(self) -> int:
        """1: it is a run of one, for `Dataspace.route_run`."""
        return 1

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels of its topic. Patterns may look at them as at a field."""
        return tuple(self.topic.split("/"))

    @property
    def nbytes(self) -> int:
        """The bytes it is charged for: its topic, payload and properties, as they travel."""
        return len(self.topic.encode()) + len(self.payload) + len(self.properties)

    def has_expired(self, now: float) -> bool:
        """Whether it must not be sent any more at `now`, in seconds of the wall clock."""
        return self.expires is not None and self.expires <= now


def _why_no_topic(topic: str) -> str:
    if not topic:
        return "the topic of a publication is not empty"
    if "\0" in topic:
        return f"the topic of a publication has no NUL characters: {topic!r}"
    return (
        f"a publication goes to one topic, without wildcards, not to {topic!r}; a filter "
        "(`TopicFilter`) is for those who subscribe"
    )


class Batch:
    """A run of publications that all go to the same holders, as the bytes in which they came.

    A holder that can forward bytes unchanged takes `raw`; one that looks at the publications calls
    `events()`.

    Attributes:
        raw: Whole frames, in order.
        count: The number of publications.
        nbytes: `len(raw)`.
        topic: The topic of the first, if it is known; "" if not.
        alike: Whether all are known to have one topic, and frames of one size.
        framed: For transports that send several observers the same in frames of their own: these
            frames, by whatever key tells them apart. None as long as there are none.
    """

    __slots__ = ("_explode", "alike", "count", "framed", "nbytes", "raw", "topic")

    def __init__(
        self,
        raw: bytes,
        count: int,
        explode: Callable[[bytes], Iterable[Publication]],
        topic: str = "",
        alike: bool = False,
    ) -> None:
        self.raw = raw
        self.count = count
        self.nbytes = len(raw)
        self._explode = explode
        self.topic = topic
        self.alike = alike
        self.framed: dict[Hashable, bytes] | None = None

    def __repr__(self) -> str:
        return f"<Batch of {self.count} publications, {self.nbytes} bytes>"

    def events(self) -> Iterable[Publication]:
        """Return its publications, decoded anew at each call."""
        return self._explode(self.raw)


@attrs.frozen(slots=True, eq=False)
class ColumnRun:
    """A run of publications without properties, of any QoS, none to be retained, in columns.

    For recipients with `takes_columns`.
    """

    key_lengths: Sequence[int]
    """The length of each topic, in UTF-8."""
    value_lengths: Sequence[int]
    """The length of each payload."""
    keys: bytes
    """All topics, joined."""
    values: bytes
    """All payloads, joined."""
    qos: bytes
    """The QoS of each."""

    @property
    def count(self) -> int:
        """The number of publications."""
        return len(self.qos)

    @property
    def nbytes(self) -> int:
        """The bytes that they are charged for: topics and payloads."""
        return len(self.keys) + len(self.values)

    @property
    def topic(self) -> str:
        """The topic of the first."""
        return self.keys[: self.key_lengths[0]].decode()
