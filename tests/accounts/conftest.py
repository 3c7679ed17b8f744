"""What the tests of accounts share: a holder, and a ledger that has to balance at the end."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Collection, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest
import trio

from clearfunds.accounts import (
    DEFAULT_PATIENCE,
    Account,
    Gone,
    Holder,
    Ledger,
    Limit,
    LoanedItem,
    LoanQueue,
    Outcome,
    StuckPolicy,
)
from clearfunds.accounts._loop import Lot
from tests.loops import (
    loop_of_the_test,
    pytest_collection_modifyitems,
    pytest_generate_tests,
    pytest_pyfunc_call,
)

__all__ = [
    "loop_of_the_test",
    "pytest_collection_modifyitems",
    "pytest_generate_tests",
    "pytest_pyfunc_call",
]


@attrs.frozen
class Settled:
    """What a ledger's recorder was told of one settlement."""

    account: str
    holder: str | None
    kind: str | None
    items: int
    bytes: int
    outcome: Outcome
    opened: float | None


class Recording:
    """Keeps what a ledger's recorder is told, by names."""

    def __init__(self) -> None:
        self.settlements: list[Settled] = []
        self.publications: list[tuple[str, object, int, int, int, int]] = []
        self.stalls: list[tuple[str, str, str, float, float, str]] = []
        self.limits: list[tuple[str, Limit]] = []

    def settled(
        self,
        account: Account,
        holder: Holder | Gone | None,
        items: int,
        nbytes: int,
        outcome: Outcome,
        opened: float | None,
    ) -> None:
        name, kind = (None, None) if holder is None else (holder.name, holder.kind)
        self.settlements.append(Settled(account.name, name, kind, items, nbytes, outcome, opened))

    def delivered(
        self, account: Account, ended: Collection[tuple[Holder, int, int, float]]
    ) -> None:
        for holder, items, nbytes, opened in ended:
            self.settled(account, holder, items, nbytes, Outcome.DELIVERED, opened)

    def published(
        self,
        account: Account,
        about: object,
        items: int,
        nbytes: int,
        copies: int,
        copied_bytes: int,
    ) -> None:
        self.publications.append((account.name, about, items, nbytes, copies, copied_bytes))

    def stalled(
        self,
        account: Account,
        at: Account,
        culprit: str,
        seconds: float,
        ended: float,
        reason: str,
    ) -> None:
        self.stalls.append((account.name, at.name, culprit, seconds, ended, reason))

    def limit_changed(self, account: Account) -> None:
        self.limits.append((account.name, account.limit))

    def repaid(self, outcome: Outcome) -> tuple[int, int]:
        """Return items and bytes that were repaid so."""
        some = [each for each in self.settlements if each.outcome is outcome]
        items = sum(each.items for each in some)
        nbytes = sum(each.bytes for each in some)
        if outcome is Outcome.DELIVERED:
            items += sum(each[2] for each in self.publications)
            nbytes += sum(each[3] for each in self.publications)
        return items, nbytes

    def agrees(self, ledger: Ledger) -> None:
        """Check that every repayment was told of once, with its outcome."""
        for outcome in Outcome:
            books = ledger.repaid_items[outcome], ledger.repaid_bytes[outcome]
            assert self.repaid(outcome) == books


class Box(LoanQueue):
    """A holder that keeps what it gets until a test takes it: the smallest mailbox there is."""

    __slots__ = ("_arrivals", "given_up", "heard", "in_hand")

    kind = "box"

    def __init__(
        self,
        ledger: Ledger,
        name: str,
        *,
        patience: float = DEFAULT_PATIENCE,
        policy: StuckPolicy = StuckPolicy.DISCONNECT,
    ) -> None:
        super().__init__(ledger, name, patience=patience, policy=policy)
        self.heard = 0
        self.given_up: list[str] = []
        self.in_hand: weakref.WeakSet[LoanedItem[list[Any]]] = weakref.WeakSet()
        self._arrivals = Lot()

    def ready(self) -> None:
        self.heard += 1
        self._arrivals.unpark_all()

    def take(self) -> LoanedItem[list[Any]]:
        """Take the oldest loan out of the queue; the box counts as its holder until it ends."""
        loan = self.queue.popleft()
        self.in_hand.add(loan)
        return loan

    def put(self, loan: LoanedItem[list[Any]]) -> None:
        """Also take back what was taken out of here."""
        super().put(loan)
        self.in_hand.discard(loan)

    async def receive(self) -> LoanedItem[list[Any]]:
        """Take the oldest loan, waiting for it; a checkpoint before anything is taken."""
        await anyio.lowlevel.checkpoint()
        while not self.queue:
            await self._arrivals.park()
        return self.take()

    def work(self, n: int = 1) -> None:
        """Finish the `n` oldest events that are queued."""
        while n:
            loan = self.queue[0]
            done = min(n, loan.items)
            loan.settle(done)
            n -= done
            if not loan.items:
                self.queue.popleft()

    def loans(self) -> Iterator[LoanedItem[Any]]:
        yield from self.queue
        # What was taken and handed on is the next holder's.
        yield from [loan for loan in self.in_hand if loan.items and loan.holder is self]

    @property
    def items(self) -> int:
        """Events that are here, by what the loans say."""
        return sum(loan.items for loan in self.loans())

    def close(self) -> None:
        self.closed = True
        self.settle_all(Outcome.DROPPED)

    def give_up(self, why: str) -> None:
        self.given_up.append(why)
        self.closed = True
        for loan in list(self.loans()):
            if loan.items:
                loan.settle(outcome=Outcome.WRITTEN_OFF)
        self.queue.clear()


def boxes(ledger: Ledger, n: int, prefix: str = "O") -> list[Box]:
    """Return `n` boxes called `O1`, `O2`, ... as the seed's example has them."""
    return [Box(ledger, f"{prefix}{i}") for i in range(1, n + 1)]


def publish(account: Account, holders: list[Box], *, items: int = 1, nbytes: int = 0) -> None:
    """Do a root turn that sends one thing to each of `holders`."""
    with account.turn(items=items, nbytes=nbytes) as turn:
        for holder in holders:
            turn.send(holder, b"", items=items, nbytes=nbytes)


def owed(account: Account) -> tuple[int, int]:
    """What an account owes, in items and bytes."""
    return account.debt_items, account.debt_bytes


def balance(ledger: Ledger) -> None:
    """Audit a ledger whose leaked loans are not what the test is about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        ledger.audit()


def run_seeded(
    scenario: Callable[[], Any], seed: int, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> Any:
    """Run an async function in a loop of its own, whose scheduling `seed` decides.

    Trio shuffles each batch of tasks with a private generator. Where a later Trio has it no more,
    the order is still random, only not the same in each run.
    """
    import random

    monkeypatch.setattr("trio._core._run._r", random.Random(seed), raising=False)
    return trio.run(scenario, **options)


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    """A ledger on the loop-independent clock; it has to balance when the test is over (rule 8)."""
    ledger = Ledger()
    yield ledger
    balance(ledger)
