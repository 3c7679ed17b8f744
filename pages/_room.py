"""The choice of a connection to close, when there are too many.

The health pages have to be available when others keep idle connections. So there is always room for
a new connection: one that waits for its peer is closed for it. The choice is among the connections
of the address with the most. There, a connection without a request goes before one whose peer does
not take the answer, once it has waited for a second; and then the one that has waited longest. A
connection that the relay works for is never closed: there are no more of them than concurrent
requests allowed.
"""

from __future__ import annotations

import enum
from collections import Counter
from typing import Final, Protocol

import trio

YOUNG_SECONDS: Final = 1.0
"""Time during which it does not matter what a connection waits for: on a busy machine a peer is
silent for a moment after it has connected."""


class Waits(enum.IntEnum):
    """The states of a connection, in the order in which they are closed."""

    READING = 0
    """It waits for its peer to send a request, or to close."""
    SENDING = 1
    """It waits for its peer to take the answer."""
    WORKS = 2
    """It does not wait: the relay works on a request."""


class Guest(Protocol):
    """A connection."""

    address: str
    """The peer's address, without the port."""
    waits: Waits
    since: float
    """When the wait began, on Trio's clock."""
    scope: trio.CancelScope
    """Cancelling this ends the connection."""

    def has_input(self) -> bool:
        """Return whether the peer has sent data that was not read."""
        ...


class Room:
    """The connections of one server; see this file's docstring.

    Attributes:
        closed: The number of connections closed for others.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._guests: set[Guest] = set()
        self.closed = 0

    def __len__(self) -> int:
        """Return the number of connections."""
        return len(self._guests)

    def enter(self, guest: Guest) -> bool:
        """Make room for one; False if there is none, because all others are being worked for."""
        if len(self._guests) >= self._limit:
            other = self._least_missed()
            if other is None:
                return False
            self.leave(other)
            other.scope.cancel()
            self.closed += 1
        self._guests.add(guest)
        return True

    def leave(self, guest: Guest) -> None:
        """Note that one has ended, if it has not been closed before."""
        self._guests.discard(guest)

    def _least_missed(self) -> Guest | None:
        of = Counter(guest.address for guest in self._guests)
        old = trio.current_time() - YOUNG_SECONDS
        waiting = [guest for guest in self._guests if guest.waits is not Waits.WORKS]

        def order(guest: Guest) -> tuple[int, int, float]:
            young = guest.since > old
            return -of[guest.address], Waits.WORKS if young else guest.waits, guest.since

        waiting.sort(key=order)
        for guest in waiting:
            # Its request may have arrived while the loop was busy.
            if guest.waits is Waits.SENDING or not guest.has_input():
                return guest
        return waiting[0] if waiting else None
