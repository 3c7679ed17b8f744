"""Whether a subscriber is given exactly what it should be given, topic by topic in order."""

from collections import deque
from collections.abc import Iterable

from ._flights import Flight


class Receipts:
    """What one subscriber should be given, and has been given.

    MQTT promises order within a topic, so order is checked within a topic; contents byte by byte.
    """

    __slots__ = ("_due", "delivered", "expected", "first_fault", "unexpected")

    def __init__(self, flights: Iterable[Flight]) -> None:
        self._due: dict[str, deque[bytes]] = {}
        for flight in flights:
            self._due.setdefault(flight.topic, deque()).append(flight.payload)
        self.expected = sum(len(due) for due in self._due.values())
        """Messages that it should be given."""
        self.delivered = 0
        """Messages that came as they should: right topic, right place, right content."""
        self.unexpected = 0
        """Messages that came and should not have: twice, out of order, altered, not asked for."""
        self.first_fault: str | None = None
        """What the first of those was."""

    @property
    def complete(self) -> bool:
        """Whether all has come."""
        return self.delivered == self.expected

    @property
    def lost(self) -> int:
        """Messages that have not come (yet), or not in their place."""
        return self.expected - self.delivered

    def take(self, topic: str, payload: bytes) -> None:
        """Note a message that came."""
        due = self._due.get(topic)
        if due and due[0] == payload:
            due.popleft()
            self.delivered += 1
        elif due and payload in due:
            # Those before it are lost, or late and then out of order: either way not delivered
            # as they should be. Go on from here, so that one gap is not counted a thousand times.
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
