"""Short names for topics, from the relay to one client (Topic Alias, MQTT 5, section 3.3.2.3.4).

Which messages have one:

1. Those of QoS 1 and 2, which are framed for each client anyway: a short name costs a look into a
   table there. What is sent with QoS 0 is framed once for all clients, which spares more than short
   names would; and it may be dropped, so that what it names may never be heard of.
2. Those whose topic is long enough, and was sent before: the first message with a short name is
   three bytes longer than without.
3. Those whose topics come again and again: a name is taken from a topic for another one only when
   it has not been used for a while. So topics in turn, more than there are names, do not take them
   from each other all the time.
"""

from __future__ import annotations

from typing import Final

WORTH_IT: Final = 8
"""Bytes of a topic from which on it gets a short name, which takes three."""

PATIENCE: Final = 8
"""So many messages for each name there is may be sent before one that was not used is another's."""

REMEMBERED: Final = 16
"""So many topics for each name there is are remembered, to be known when they come again: by their
hashes, since of two with the same one it does not matter which has come."""

_TOPIC_ALIAS: Final = b"\x23"


class Aliases:
    """The short names on one connection.

    Args:
        most: How many there may be.
    """

    __slots__ = ("_by_topic", "_count", "_most", "_seen")

    def __init__(self, most: int) -> None:
        self._most = most
        # The number, and when it was last used, in messages; the least recently used first.
        self._by_topic: dict[str, tuple[int, int]] = {}
        self._seen: dict[int, None] = {}
        self._count = 0

    def __len__(self) -> int:
        """Return how many topics have one."""
        return len(self._by_topic)

    def known(self, topic: str) -> bytes | None:
        """Return the property that stands for a topic which has a name already; None: it has none.

        What it is returned for is to be sent.
        """
        found = self._by_topic.pop(topic, None)
        if found is None:
            return None
        self._count += 1
        number, _ = found
        self._by_topic[topic] = number, self._count
        return _TOPIC_ALIAS + number.to_bytes(2, "big")

    def new(self, topic: str) -> bytes:
        """Return the property that gives a topic a name; b"" if it gets none.

        It has one from then on: what it is returned for is to be sent.
        """
        self._count += 1
        if len(topic) < WORTH_IT:
            return b""
        key = hash(topic)
        if key not in self._seen:
            if len(self._seen) >= REMEMBERED * self._most:
                del self._seen[next(iter(self._seen))]
            self._seen[key] = None
            return b""
        number = len(self._by_topic) + 1
        if number > self._most:
            oldest, (number, used) = next(iter(self._by_topic.items()))
            if self._count - used <= PATIENCE * self._most:
                return b""
            del self._by_topic[oldest]
        del self._seen[key]
        self._by_topic[topic] = number, self._count
        return _TOPIC_ALIAS + number.to_bytes(2, "big")
