"""Checking that a subscriber gets exactly its messages, in order within each topic."""

from collections import deque
from collections.abc import Iterable

from ._flights import Flight


class Receipts:
    """The expected and the received messages of one subscriber.

    MQTT promises order within a topic, so order is checked within a topic; contents byte by byte.
    """

    __slots__ = ("_due", "delivered", "expected", "first_fault", "unexpected")

    def __init__(self, flights: Iterable[Flight]) -> None:
        self._due: dict[str, deque[bytes]] = {}
        for flight in flights:
            self._due.setdefault(flight.topic, deque()).append(flight.payload)
        self.expected = sum(len(due) for due in self._due.values())
        """Messages that it should get."""
        self.delivered = 0
        """Correct messages: right topic, right order, right content."""
        self.unexpected = 0
        """Wrong messages: duplicates, out of order, altered, or not subscribed to."""
        self.first_fault: str | None = None
        """The first of these, in a sentence."""

    @property
    def complete(self) -> bool:
        """Whether all messages have come."""
        return self.delivered == self.expected

    @property
    def lost(self) -> int:
        """Messages that have not come (yet), or came out of order."""
        return self.expected - self.delivered

    def take(self, topic: str, payload: bytes) -> None:
        """Note a received message."""
        due = self._due.get(topic)
        if due and due[0] == payload:
            due.popleft()
            self.delivered += 1
        elif due and payload in due:
            # Those before it are lost, or late and then out of order: both count as not delivered.
            # Go on from here, so that one gap is not counted a thousand times.
            while due.popleft() != payload:
                pass
            self.delivered += 1
            self._blame(f"{topic}: a message came before others that were published earlier")
        else:
            self.unexpected += 1
            self._blame(f"{topic}: {payload[:80]!r} was not due there")

    def _blame(self, what: str) -> None:
        if self.first_fault is None:
            self.first_fault = what
