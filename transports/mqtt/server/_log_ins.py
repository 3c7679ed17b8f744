"""Password checks: which attempts are checked, their order, and the delay of refusals."""

from __future__ import annotations

import enum
import os
from collections import Counter
from collections.abc import Callable
from typing import Final

import attrs
import trio

from ....access._admission import Refusal
from ....access._fair_turns import FairTurns, QueueFullError
from ....access._guesses import Attempt, Guesses
from ....access._passwords import Authenticator, Passwords
from ..codec._packets import ConnectReturnCode

CONCURRENT_CHECKS: Final = max(1, (os.cpu_count() or 1) - 1)
"""Passwords checked at a time, each in a thread: hashing leaves a core to the event loop."""


class Finding(enum.Enum):
    """The result of a check."""

    RIGHT = enum.auto()
    WRONG = enum.auto()
    NOT_LOOKED_AT = enum.auto()
    BUSY = enum.auto()


@attrs.frozen(slots=True)
class Checked:
    """The result of an attempt to log in."""

    finding: Finding
    delay: float = 0.0
    """Seconds to wait before the client is told."""

    def fault(self, user: str) -> tuple[int, str] | None:
        """Return the return code and the reason, for the client and the log; None: it was right."""
        match self.finding:
            case Finding.RIGHT:
                return None
            case Finding.WRONG:
                why = "the user name or the password is wrong"
            case Finding.NOT_LOOKED_AT:
                why = "there were too many wrong passwords, this one was not checked"
            case Finding.BUSY:
                why = "too many clients from its address wait for their passwords to be checked"
                return ConnectReturnCode.SERVER_UNAVAILABLE, why
        return ConnectReturnCode.BAD_USER_NAME_OR_PASSWORD, f"{why} (user {user})"


_RIGHT: Final = Checked(Finding.RIGHT)


class LogIns:
    """Checks passwords in a bounded number of threads, with fair turns by address.

    Args:
        guesses: Decides which attempts are checked.
        clock: The time, in seconds.
        refused: Counts refused attempts at once, even if the client is told later.

    Attributes:
        guesses: See above.
        turns: The line of attempts that wait for a check; bounds the checks at a time.
        threads: The threads that check; a thread whose client has left counts until it ends.
        delayed: The number of refusals that were delayed.
    """

    def __init__(
        self, guesses: Guesses, clock: Callable[[], float], refused: Counter[Refusal]
    ) -> None:
        self.guesses = guesses
        self._refused = refused
        self.turns = FairTurns(CONCURRENT_CHECKS)
        self.threads = trio.CapacityLimiter(CONCURRENT_CHECKS)
        self.delayed = 0
        self._clock = clock

    def look(
        self, passwords: Authenticator | None, attempt: Attempt, password: bytes | None
    ) -> Checked | None:
        """Check a password at once if that is quick; else return None."""
        if password is None or passwords is None:
            self._refused[Refusal.PASSWORD] += 1
            return Checked(Finding.WRONG)
        if not (isinstance(passwords, Passwords) and passwords.quick):
            return None
        return self.refusal(attempt) or self._noted(
            attempt, passwords.check(attempt.user, password)
        )

    async def check(self, passwords: Authenticator, attempt: Attempt, password: bytes) -> Checked:
        """Check a password in a thread, when it is the attempt's turn.

        Cancellation: a thread that has begun ends on its own, and counts until then.

        Raises:
            Exception: The exception of the check.
        """
        turns = self.turns
        try:
            await turns.take(attempt.address, first=self.guesses.trusts(attempt))
        except QueueFullError:
            self._refused[Refusal.CHECKS] += 1
            return Checked(Finding.BUSY)
        try:
            # Only now: wrong passwords that were checked while it waited count.
            if not self.guesses.looks_at(attempt, self._clock()):
                return self._not_looked_at()
            right = await trio.to_thread.run_sync(
                passwords.check,
                attempt.user,
                password,
                abandon_on_cancel=True,
                limiter=self.threads,
            )
        finally:
            turns.leave()
        return self._noted(attempt, right)

    def refusal(self, attempt: Attempt) -> Checked | None:
        """Return the result for an attempt that is not checked; None: it is to be checked."""
        if self.guesses.looks_at(attempt, self._clock()):
            return None
        return self._not_looked_at()

    def failed(self, attempt: Attempt) -> Checked:
        """Note a wrong attempt that another party has checked."""
        return self._noted(attempt, right=False)

    def _not_looked_at(self) -> Checked:
        self._refused[Refusal.GUESSES] += 1
        return Checked(Finding.NOT_LOOKED_AT)

    def _noted(self, attempt: Attempt, right: bool) -> Checked:
        if right:
            self.guesses.right(attempt)
            return _RIGHT
        self._refused[Refusal.PASSWORD] += 1
        delay = self.guesses.wrong(attempt, self._clock())
        self.delayed += delay > 0
        return Checked(Finding.WRONG, delay)
