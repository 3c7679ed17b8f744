"""Topic aliases that the relay assigns for one client (MQTT 5, section 3.3.2.3.4).

A message gets an alias if:

1. Its QoS is 1 or 2. Such a message is framed for each client anyway, and an alias costs one table
   lookup. A QoS 0 message is framed once for all clients, which saves more than aliases would. It
   may also be dropped, and then the client would never learn its alias.
2. Its topic is long enough and was sent before. The message that introduces an alias is three
   bytes longer than without.
3. Its topic comes again and again. An alias goes to another topic only after a time without use.
   So topics that take turns do not take aliases from each other all the time when there are more
   topics than aliases.
"""

from __future__ import annotations

from typing import Final

WORTH_IT: Final = 8
"""Least length, in bytes, of a topic that gets an alias; the alias takes three bytes."""

PATIENCE: Final = 8
"""Messages sent, for each alias allowed, before an unused alias may go to another topic."""

REMEMBERED: Final = 16
"""Topics remembered, for each alias allowed, to recognise them when they come again. Their hashes
are kept: a collision does no harm."""

_TOPIC_ALIAS: Final = b"\x23"


class Aliases:
    """The topic aliases of one connection.

    Args:
        most: The largest number of aliases.
    """

    __slots__ = ("_by_topic", "_count", "_most", "_seen")

    def __init__(self, most: int) -> None:
        self._most = most
        # By topic: the alias and its last use, in messages; the least recently used comes first.
        self._by_topic: dict[str, tuple[int, int]] = {}
        self._seen: dict[int, None] = {}
        self._count = 0

    def __len__(self) -> int:
        """Return the number of topics that have an alias."""
        return len(self._by_topic)

    def known(self, topic: str) -> bytes | None:
        """Return the property for the alias that a topic has; None: the topic has no alias.

        The caller must send the message.
        """
        found = self._by_topic.pop(topic, None)
        if found is None:
            return None
        self._count += 1
        number, _ = found
        self._by_topic[topic] = number, self._count
        return _TOPIC_ALIAS + number.to_bytes(2, "big")

    def new(self, topic: str) -> bytes:
        """Return the property that gives a topic an alias; b"" if it gets none.

        The topic has the alias from then on, so the caller must send the message.
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
