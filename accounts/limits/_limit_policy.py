"""Policies for an account's limit: fixed by its owner, or moved by a controller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import attrs

from .._cooperative import STEP
from .._loop import checkpoint, sleep
from ._limit import Limit

if TYPE_CHECKING:
    from .._account import Account
    from .._ledger import Ledger

TICK_SECONDS: Final = 0.05
"""Interval between ticks of controllers in a small ledger. The important decisions come in between:
a controller is asked at each opening of its account's gate."""

TICK_SHARE: Final = 0.01
"""The fraction of a processor's time that ticks may take."""

LOOK_SECONDS: Final = 5e-6
"""Time for one busy account's tick: with 10,000 accounts there are 5 s between two ticks."""


@attrs.frozen(slots=True)
class MovingLimit:
    """The state of a moving limit."""

    state: str
    """The state of its controller; for a `LatencyLimit`, see there."""
    target_seconds: float
    """The target for the highest age of debt."""
    age_seconds: float
    """The time to clear the present debt at the recent rate; or the time since anything was
    borrowed, if that is longer. 0.0 for no debt."""
    items_per_second: float
    """The recent rate of clearing; 0.0 where nothing has been measured."""
    bytes_per_second: float
    """The same in bytes."""


class LimitControl(Protocol):
    """A controller that moves one account's limit.

    It is called in the middle of repayments: it must not raise, must not await, and must not change
    the books except by `Gate.move_limit`.
    """

    def closed(self) -> None:
        """Note that the account is above its limit: its readers wait from now on."""
        ...

    def may_open(self) -> bool:
        """Whether the debt is still at or below the lower marks of the limit that is set now.

        Called when it is at or below them. Here is the time to move the limit, before any reader
        goes on.
        """
        ...

    def repaid(self) -> None:
        """Note a repayment after the account opened, and before its readers have gone on."""
        ...

    def tick(self, now: float) -> None:
        """Note that some time has passed."""
        ...

    def statistics(self) -> MovingLimit:
        """Return the state of the limit."""
        ...


class LimitPolicy(Protocol):
    """A rule for the limits of accounts; see `Account.limit_by`."""

    def control(self, account: Account) -> LimitControl | None:
        """Set the account's initial limit; return the controller that moves it, if any."""
        ...


@attrs.frozen(slots=True)
class FixedLimit:
    """A limit that never moves."""

    limit: Limit = attrs.field(factory=Limit)
    """The limit."""

    def control(self, account: Account) -> LimitControl | None:
        """See `LimitPolicy.control`."""
        account.limit = self.limit
        return None


async def watch_limits(ledger: Ledger, *, every: float = TICK_SECONDS) -> None:
    """Move the limits that a `LimitPolicy` controls, every `every` seconds, until cancelled.

    If there are more accounts than fit into 1 % of the time, it ticks less often. The interval
    depends on their number, not on measured time, so that runs are reproducible.
    """
    while True:
        moved = 0
        for account in list(ledger.accounts.values()):
            if account.control is not None:
                account.control.tick(ledger.clock())
                moved += 1
                if not moved % STEP:
                    await checkpoint()
        await sleep(max(every, moved * LOOK_SECONDS / TICK_SHARE))
