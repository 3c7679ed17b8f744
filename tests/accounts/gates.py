"""What the tests of gates share: readers that note when they go on, by a clock that a test sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyio import wait_all_tasks_blocked
from anyio.abc import TaskGroup

from clearfunds.accounts import Account, AccountStatistics, Ledger, LedgerStatistics
from clearfunds.testing import Clock

if TYPE_CHECKING:
    from collections.abc import Callable


def is_tight(account: Account) -> bool:
    """Whether its children have to keep to their shares."""
    return account.shares is not None and account.shares.tight


def is_full(account: Account) -> bool:
    """Whether everybody below it waits, though it is shared."""
    return account.shares is not None and account.shares.full


class Place:
    """A ledger, and readers that note in which order they go on."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self.clock = Clock()
        self.ledger = Ledger(clock=clock or self.clock)
        self.went_on: list[str] = []

    async def read(self, account: Account, borrow: int = 0) -> None:
        await account.ensure_clear_funds()
        self.went_on.append(account.name)
        if borrow:
            account.borrow(borrow, 0)

    async def come(self, nursery: TaskGroup, *accounts: Account, borrow: int = 0) -> None:
        """Let a reader of each come, one after the other, and wait until none can go further."""
        for account in accounts:
            nursery.start_soon(self.read, account, borrow)
            await wait_all_tasks_blocked()

    async def pass_(self, seconds: float) -> None:
        await wait_all_tasks_blocked()
        self.clock.now += seconds


def waited(of: Account | Ledger) -> dict[str, float]:
    """Return the seconds waited by reason, of those that there are."""
    statement: AccountStatistics | LedgerStatistics = of.statistics()
    assert statement.waited_seconds == sum(statement.waited_by_reason.values())
    return {reason: seconds for reason, seconds in statement.waited_by_reason.items() if seconds}


def waits(ledger: Ledger) -> dict[str, int]:
    """Return how often somebody had to wait by reason, of those that there are."""
    statement = ledger.statistics()
    assert statement.waits == sum(statement.waits_by_reason.values())
    return {reason: count for reason, count in statement.waits_by_reason.items() if count}
