"""Readers that wait for clear funds, in order.

Rules of this file:
1. Every waiter has a ticket, drawn when it began to wait; lower tickets go first, everywhere.
2. A waiter stands in the queue of exactly one account at a time: the first of its chain (its own
   account, then the ancestors) that is closed to it.
3. Only the head of a queue is ever woken. It checks again; when it goes on, or is cancelled, or has
   to stand elsewhere, it wakes the next, if the account is still open. So all wake, in order
   (rule 6), though Trio runs the tasks of one batch in no particular order; and each sees the debt
   that the one before it has borrowed.
4. A reader that has been let through keeps its ticket until it has brought something in. If it
   checks again before that, the readers in line are behind it. Otherwise each would make room for
   the next, and none would ever go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ._account import Account
    from ._loop import Event


REASONS: Final = ("account", "parent", "alarm", "share", "rate", "blocked")
"""Reasons for backpressure: the reader's own account is throttled (or others stand in line there);
an account above it is; an alarm, whatever the debt (`Account.halt`); it is above its share of the
limit of the account above (`_shares.py`); it is above its rate limit (`_rate_limit.py`); a holder
blocks it (`Gate.block`)."""

PLAIN: Final = 0
"""The index of the first of them, and, for readers of accounts below, it means the second."""
ALARM: Final = 2
SHARE: Final = 3
RATE: Final = 4
BLOCKED: Final = 5

NOBODY: Final = -1
"""The ticket of a reader that has not waited: every reader in line stands before it."""


@attrs.define(slots=True, eq=False)
class Waiter:
    """One reader that waits."""

    ticket: int
    account: Account
    since: float
    stretch: float
    """When its current stretch began: at its current place, for its current reason."""
    event: Event | None = None
    """Wakes it, while it waits."""
    at: Account | None = None
    blame_before: dict[str, float] = attrs.field(factory=dict[str, float])
    blame: dict[str, float] = attrs.field(factory=dict[str, float])

    def wake(self) -> None:
        """Let it check again."""
        if self.event is not None:
            self.event.set()

    @property
    def waits_on_holders(self) -> bool:
        """Whether holders are blocking it where it stands; see `Gate.waits_on_holders`."""
        at = self.at
        return at is not None and (at.gate is None or at.gate.waits_on_holders)

    @property
    def why(self) -> int:
        """Why it waits, as an index of `REASONS`."""
        at = self.at
        if at is None:
            return 1
        # Readers stand only where there is a gate.
        return 0 if at.gate is None else at.gate.why(self.account)


def ticket_of(account: Account) -> int:
    """Return the ticket of the calling reader, if it has one that is still valid."""
    line = account.line
    if account.passed == NOBODY or line is None:
        return NOBODY
    task = account.ledger.task()
    if task is None:  # no event loop: nobody has waited
        return NOBODY
    # The same task: not one that came after it, at its place in memory.
    passer = None if line.passer is None else line.passer()
    return account.passed if task is passer else NOBODY


def waited_by_reason(
    ended: Sequence[float], waiters: Collection[Waiter], now: float
) -> dict[str, float]:
    """Return seconds waited by reason: the `ended` stretches, plus those of `waiters` until now."""
    waited = list(ended)
    for waiter in waiters:
        waited[waiter.why] += now - waiter.stretch
    return dict(zip(REASONS, waited, strict=True))
