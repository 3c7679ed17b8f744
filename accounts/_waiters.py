"""Readers that wait for clear funds, in order.

Rules of this file:
1. Every waiter has a ticket, drawn when it began to wait; lower tickets go first, everywhere.
2. A waiter stands in the queue of exactly one account at a time: the first of its chain (its own
   account, then the ancestors) that is closed to it.
3. Only the head of a queue is ever woken. It looks again; when it goes on, or is cancelled, or has
   to stand elsewhere, it wakes the next, if the account is still open. So all wake, in order
   (rule 6), though Trio runs the tasks of one batch in no particular order; and each sees what the
   one before it has borrowed.
4. Who has been let through keeps its ticket until it has brought something in. If it looks again
   before that, those who stand in line now are behind it; else each would make room for the next,
   and none would ever go on.
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
    from ._stalls import Stalls


REASONS: Final = ("account", "parent", "alarm", "share", "rate", "credit")
"""Why a reader waits: its own account is throttled (or others stand in line there), or one above
it; there is an alarm there, whatever is owed (`Account.halt`); it is above its share of what the
account above may owe (`_shares.py`); more comes in than may (`_rate_limit.py`); or somebody has
no credit left for it (`Account.block`)."""

PLAIN: Final = 0
"""The index of the first of them, and, for readers of accounts below, of the second."""
ALARM: Final = 2
SHARE: Final = 3
RATE: Final = 4
CREDIT: Final = 5

NOBODY: Final = -1
"""The ticket of a reader that has not waited: whoever stands in line stands before it."""


@attrs.define(slots=True, eq=False)
class Waiter:
    """One reader that waits."""

    ticket: int
    account: Account
    since: float
    stretch: float
    """Since when it stands where it stands now."""
    event: trio.Event = attrs.field(factory=trio.Event)
    at: Account | None = None
    blame_before: dict[str, float] = attrs.field(factory=dict[str, float])
    blame: dict[str, float] = attrs.field(factory=dict[str, float])


def waited_by_reason(
    books: Account | Ledger, waiters: Collection[Waiter], now: float
) -> dict[str, float]:
    """Return seconds waited by reason: those that are over, of an account or of all, and those of
    `waiters` until now.
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
        # Who joined in the middle of a stretch, with the seconds of it that were over by then:
        # for those the next repayment's holder is not to blame.
        self.joined: dict[Waiter, float] = {}
        # While the ledger has a recorder.
        self.stalls: Stalls | None = None

    def __len__(self) -> int:
        return len(self.waiters)

    def has_before(self, ticket: int) -> bool:
        """Whether somebody with an earlier ticket stands here."""
        return bool(self.waiters) and self.waiters[0].ticket < ticket

    def join(self, waiter: Waiter) -> None:
        """Stand in line, at the place of the ticket."""
        insort(self.waiters, waiter, key=lambda w: w.ticket)

    def leave(self, waiter: Waiter) -> None:
        """Stand in line no more."""
        self.waiters.remove(waiter)
        self.joined.pop(waiter, None)

    def wake_head(self) -> None:
        """Let the first look again."""
        if self.waiters:
            self.waiters[0].event.set()
