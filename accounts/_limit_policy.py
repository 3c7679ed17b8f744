"""What sets an account's limit: nobody but its owner, or a controller that moves it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import attrs
import trio

from ._limit import Limit
from ._steps import STEP

if TYPE_CHECKING:
    from ._account import Account
    from ._ledger import Ledger

TICK_SECONDS: Final = 0.05
"""How often limits are looked at, where the ledger is small. What counts happens in between: a
controller is asked at each opening of its account's gate."""

TICK_SHARE: Final = 0.01
"""What part of a processor's time that may take."""

LOOK_SECONDS: Final = 5e-6
"""What a look at one account takes, if it is busy: with 10,000 there are 5 s between two looks."""


@attrs.frozen(slots=True)
class MovingLimit:
    """What there is to see of a limit that is moved."""

    state: str
    """What its controller is doing; for those of a `LatencyLimit`, see there."""
    target_seconds: float
    """How old debt should get at most."""
    age_seconds: float
    """How long it takes to clear what is owed now, as fast as was cleared of late; or for how long
    nothing has been borrowed, if that is longer. 0.0 for no debt."""
    items_per_second: float
    """How fast was cleared of late; 0.0 where nothing has been measured."""
    bytes_per_second: float
    """The same in bytes."""


class LimitControl(Protocol):
    """What moves one account's limit.

    It is called in the middle of repayments: it must not raise, must not await, and must not change
    the books but by `Account.move_limit`.
    """

    def closed(self) -> None:
        """The account is above its limit: its readers wait from now on."""
        ...

    def may_open(self) -> bool:
        """The debt is at or below the lower marks. Whether that holds for the limit as it is then.

        Here is the time to move it, before anybody goes on.
        """
        ...

    def repaid(self) -> None:
        """More has been repaid since the account opened, and before its readers have gone on."""
        ...

    def tick(self, now: float) -> None:
        """Some time has passed."""
        ...

    def statistics(self) -> MovingLimit:
        """Return what there is to see."""
        ...


class LimitPolicy(Protocol):
    """A rule for the limits of accounts; see `Account.limit_by`."""

    def control(self, account: Account) -> LimitControl | None:
        """Set the account's limit to what it is at first; return what moves it, if anything."""
        ...


@attrs.frozen(slots=True)
class FixedLimit:
    """A limit that stays as it is."""

    limit: Limit = attrs.field(factory=Limit)
    """Which."""

    def control(self, account: Account) -> LimitControl | None:
        """See `LimitPolicy.control`."""
        account.limit = self.limit
        return None


async def watch_limits(ledger: Ledger, *, every: float = TICK_SECONDS) -> None:
    """Move the limits that a `LimitPolicy` has a say in, every `every` seconds, until cancelled.

    Where there are more accounts than can be looked at so often within 1 % of the time, less often:
    by their number, not by how long it took, so that the same happens each time.
    """
    while True:
        moved = 0
        for account in list(ledger.accounts.values()):
            if account.control is not None:
                account.control.tick(ledger.clock())
                moved += 1
                if not moved % STEP:
                    await trio.lowlevel.checkpoint()
        await trio.sleep(max(every, moved * LOOK_SECONDS / TICK_SHARE))
