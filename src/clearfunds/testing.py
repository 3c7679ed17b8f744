"""Helpers for tests of programs that use clearfunds: a clock, a holder, books that must balance.

    from clearfunds import Limit
    from clearfunds.testing import Box, balanced

    def test_a_subscriber_that_takes_nothing_stops_its_publisher() -> None:
        with balanced() as ledger:
            account = ledger.open("alice", limit=Limit(items=1))
            box = Box(ledger, "bob")
            with account.turn() as turn:
                turn.send(box, "hello")
                turn.send(box, "are you there?")
            assert not account.funds_are_clear()
            box.settle_all()
            assert account.funds_are_clear()

They are to clearfunds what `trio.testing` is to Trio.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import ClassVar

from .accounts import Ledger, LoanQueue, Outcome, StuckPolicy


class Clock:
    """A clock that stands still until a test moves it: `Ledger(clock=Clock())`.

    Args:
        now: Seconds.

    Attributes:
        now: The time; set it, or call `advance`.
    """

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """Return the time, in seconds."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass."""
        self.now += seconds


class Box(LoanQueue):
    """A holder that keeps its loans in `queue` until a test settles them.

    It is the simplest slow consumer: nothing takes its loans. `settle_all` repays them; its
    patience and its policy are arguments, as those of any holder.
    """

    __slots__ = ()

    kind = "box"
    policies: ClassVar[frozenset[StuckPolicy]] = frozenset(StuckPolicy)

    def ready(self) -> None:
        """Do nothing: there is nobody to wake."""

    def give_up(self, why: str) -> None:
        """Write its debt off."""
        self.settle_all(Outcome.WRITTEN_OFF)

    def settle_all(self, outcome: Outcome = Outcome.DELIVERED) -> None:
        """Repay everything queued, with `outcome`."""
        super().settle_all(outcome)


@contextmanager
def balanced(ledger: Ledger | None = None) -> Generator[Ledger]:
    """Yield a ledger whose books must balance at the end of the block, with nothing owed.

    Args:
        ledger: The ledger to check; None: a new one.

    Raises:
        AuditError: If the books do not balance.
        AssertionError: If an account still owes; the message names it. Neither is raised if the
            block raises.
    """
    if ledger is None:
        ledger = Ledger()
    yield ledger
    ledger.audit()
    owing = [repr(account) for account in ledger.accounts.values() if account.debt_items]
    assert not owing, f"still owed at the end: {', '.join(owing)}"
