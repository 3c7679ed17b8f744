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

from bisect import insort
from typing import TYPE_CHECKING, Final

import attrs
import trio

if TYPE_CHECKING:
    from collections.abc import Collection

    from ._account import Account
    from ._ledger import Ledger
    from .watch._stalls import Stalls


REASONS: Final = ("account", "parent", "alarm", "share", "rate", "credit")
"""Reasons for backpressure: the reader's own account is throttled (or others stand in line there);
an account above it is; an alarm, whatever the debt (`Account.halt`); it is above its share of the
limit of the account above (`_shares.py`); it is above its rate limit (`_rate_limit.py`); a holder
has no credit left for it (`Account.block`)."""

PLAIN: Final = 0
"""The index of the first of them, and, for readers of accounts below, it means the second."""
ALARM: Final = 2
SHARE: Final = 3
RATE: Final = 4
CREDIT: Final = 5

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
    event: trio.Event = attrs.field(factory=trio.Event)
    at: Account | None = None
    blame_before: dict[str, float] = attrs.field(factory=dict[str, float])
    blame: dict[str, float] = attrs.field(factory=dict[str, float])


def waited_by_reason(
    books: Account | Ledger, waiters: Collection[Waiter], now: float
) -> dict[str, float]:
    """Return seconds waited by reason: ended stretches in `books`, of an account or of all, plus
    those of `waiters` until now.
    """  # noqa: D205
    waited = [0.0] * len(REASONS) if books.waited is None else list(books.waited)
    for waiter in waiters:
        at = waiter.at
        waited[1 if at is None else at.why(waiter.account)] += now - waiter.stretch
    return dict(zip(REASONS, waited, strict=True))


class WaitQueue:
    """The readers that wait at one account."""

    __slots__ = ("joined", "stalls", "waiters")

    def __init__(self) -> None:
        self.waiters: list[Waiter] = []
        # Readers that joined in the middle of a stretch, with the seconds of it that were over by
        # then, for which the next repayment's holder is not to blame.
        self.joined: dict[Waiter, float] = {}
        # Set while the ledger has a recorder.
        self.stalls: Stalls | None = None

    def __len__(self) -> int:
        return len(self.waiters)

    def has_before(self, ticket: int) -> bool:
        """Whether somebody with an earlier ticket stands here."""
        return bool(self.waiters) and self.waiters[0].ticket < ticket

    def join(self, waiter: Waiter) -> None:
        """Put `waiter` in line, at the place of its ticket."""
        insort(self.waiters, waiter, key=lambda w: w.ticket)

    def leave(self, waiter: Waiter) -> None:
        """Take `waiter` out of the line."""
        self.waiters.remove(waiter)
        self.joined.pop(waiter, None)

    def wake_head(self) -> None:
        """Wake the first reader in line, which then checks again."""
        if self.waiters:
            self.waiters[0].event.set()
