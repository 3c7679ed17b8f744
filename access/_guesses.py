"""Password guessing: wrong passwords are answered later and later, and few of them at a time.

A password that is right is never delayed. One that is wrong is answered after 2, 4, 8, then 15 s
(Dovecot's authentication penalty). The delay depends on how often its address was wrong lately, or,
with more patience, its user at all addresses. Only some answers may be due at a time, for one
address and for one user: while they are, further attempts are refused without a look at the
password. So a client that opens many connections at once makes no more guesses than one that waits
for each answer.

That would lock out a user whose password others guess. Therefore an attempt from where the user was
right lately (the same address, user and client identifier) is looked at all the same, until it was
wrong a few times itself. OWASP's "Slow Down Online Guessing Attacks with Device Cookies" does that
with a cookie, which MQTT has not.

All sans-I/O: times are passed in.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import attrs

from ._lately import REMEMBERED, Lately

DELAYS: Final = (2.0, 4.0, 8.0, 15.0)
"""Seconds; as Dovecot's AUTH_PENALTY_INIT_SECS and AUTH_PENALTY_MAX_SECS."""

FREE_OF_ADDRESS: Final = 3
"""Wrong passwords of one address that are answered at once: a person's typing mistakes."""

FREE_OF_USER: Final = 10
"""The same for one user from all addresses: many devices may have an old password."""

DUE_OF_ADDRESS: Final = 16
"""Delayed answers to one address at a time: with 15 s each, one guess a second."""

DUE_OF_USER: Final = 16
"""Delayed answers to attempts for one user at a time."""

FORGOTTEN_SECONDS: Final = 120.0
"""After so long without a wrong password all is forgotten; Dovecot's AUTH_PENALTY_TIMEOUT."""


@attrs.define(slots=True)
class _Wrongs:
    count: int = 0
    last: float = float("-inf")
    due: deque[float] = attrs.field(factory=deque[float])
    """The times at which delayed answers are due."""

    def forgive(self, now: float) -> None:
        while self.due and self.due[0] <= now:
            self.due.popleft()
        if now - self.last >= FORGOTTEN_SECONDS:
            self.count = 0

    def add(self, now: float) -> None:
        self.count += 1
        self.last = now

    def delay(self, free: int) -> float:
        over = self.count - free
        return 0.0 if over <= 0 else DELAYS[min(over, len(DELAYS)) - 1]


@attrs.frozen(slots=True)
class Attempt:
    """An attempt to log in."""

    address: str | None
    """The part of the address that stands for one subscriber; None over a Unix socket."""
    user: str
    client: str


class Guesses:
    """Decides which attempts are checked, and when wrong ones are answered.

    Args:
        longest: The longest delay of an answer, in seconds; 0: none is delayed, and every attempt
            is checked.
        remembered: Addresses, users, and log-ins that were right, that are remembered, of each.
    """

    def __init__(self, longest: float = DELAYS[-1], remembered: int = REMEMBERED) -> None:
        self.longest = longest
        self._addresses: Lately[str, _Wrongs] = Lately(_Wrongs, remembered)
        self._users: Lately[str, _Wrongs] = Lately(_Wrongs, remembered)
        self._right: Lately[Attempt, _Wrongs] = Lately(_Wrongs, remembered)

    def __len__(self) -> int:
        """Return the number of remembered entries."""
        return len(self._addresses) + len(self._users) + len(self._right)

    def trusts(self, attempt: Attempt) -> bool:
        """Whether an attempt is from where its user was right lately."""
        known = self._right.get(attempt)
        return known is not None and known.count <= FREE_OF_ADDRESS

    def looks_at(self, attempt: Attempt, now: float) -> bool:
        """Whether the password of an attempt is checked; else it is refused at once."""
        if not self.longest or self.trusts(attempt):
            return True
        return all(
            len(wrongs.due) < most for wrongs, _, most in self._known(attempt, now, make=False)
        )

    def right(self, attempt: Attempt) -> None:
        """Note that a password was right.

        Earlier wrong guesses of its address still count: somebody with a password of his own must
        not be able to guess other users' in between.
        """
        self._right.of(attempt).count = 0

    def wrong(self, attempt: Attempt, now: float) -> float:
        """Note that a password was wrong; return the delay of the answer in seconds."""
        known = self._right.get(attempt)
        if known is not None:
            known.add(now)
        about = self._known(attempt, now, make=True)
        for wrongs, _, _ in about:
            wrongs.add(now)
        delay = min(self.longest, max(wrongs.delay(free) for wrongs, free, _ in about))
        if delay:
            for wrongs, _, most in about:
                # In order of time, except for few: an answer due later is also removed later.
                if len(wrongs.due) < most:
                    wrongs.due.append(max(now + delay, wrongs.due[-1] if wrongs.due else 0.0))
        return delay

    def _known(self, attempt: Attempt, now: float, *, make: bool) -> list[tuple[_Wrongs, int, int]]:
        """Return the records of an address and a user, how many are free, and how many due."""
        about: list[tuple[_Wrongs, int, int]] = []
        user = self._users.of(attempt.user) if make else self._users.get(attempt.user)
        if user is not None:
            about.append((user, FREE_OF_USER, DUE_OF_USER))
        where = attempt.address
        if where is not None:
            address = self._addresses.of(where) if make else self._addresses.get(where)
            if address is not None:
                about.append((address, FREE_OF_ADDRESS, DUE_OF_ADDRESS))
        for wrongs, _, _ in about:
            wrongs.forgive(now)
        return about
