"""Which connections are kept, where more come than there may be.

A page that says whether the relay is well has to be there when others keep connections and do
nothing with them. So there is always room for one that comes: another is closed for it, one that
waits for its peer. Of the address that has most; there, one that has been asked for nothing rather
than one whose peer does not take what it asked for, once it has waited for a second; and then the
one that has waited longest. One that the relay works for is never closed: no more are than there
may be requests at a time.
"""

from __future__ import annotations

import enum
from collections import Counter
from typing import Final, Protocol

import trio

YOUNG_SECONDS: Final = 1.0
"""For so long it does not matter what a connection waits for: on a busy machine a peer says nothing
for a moment after it has connected."""


class Waits(enum.IntEnum):
    """What a connection waits for; in the order in which they are closed."""

    READING = 0
    """For its peer to ask for something, or to close."""
    SENDING = 1
    """For its peer to take what it has asked for."""
    WORKS = 2
    """It does not; something is done for its peer."""


class Guest(Protocol):
    """A connection."""

    address: str
    """Of its peer, without the port."""
    waits: Waits
    since: float
    """When that began, on Trio's clock."""
    scope: trio.CancelScope
    """It ends when this is cancelled."""

    def has_input(self) -> bool:
        """Return whether there is something that its peer has sent and nobody has looked at."""
        ...


class Room:
    """The connections of one server; see this file's docstring.

    Attributes:
        closed: How many were closed for others.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._guests: set[Guest] = set()
        self.closed = 0

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._guests)

    def enter(self, guest: Guest) -> bool:
        """Make room for one; False if there is none, as all others are being worked for."""
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
            # What it was asked for may have come while the loop was busy with something else.
            if guest.waits is Waits.SENDING or not guest.has_input():
                return guest
        return waiting[0] if waiting else None
