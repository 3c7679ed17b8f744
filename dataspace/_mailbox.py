"""A mailbox: loans for one consumer in this process."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, Self

import trio

from ..accounts import DEFAULT_PATIENCE, Ledger, LoanedItem, LoanQueue, Outcome, StuckPolicy
from ._errors import GivenUpError, MailboxClosedError
from ._events import Batch


class Mailbox(LoanQueue):
    """Loans for one consumer: what is observed arrives here, and is owed for until it is done.

    ::

        async for loan in mailbox:
            with loan as events:  # one or more, all charged to one account
                for event in events:
                    ...

    A loan that has been taken and not settled still counts as held by the mailbox. It is unbounded:
    what bounds it is that the accounts which fill it stop reading (rule 5), and `patience`.

    Closing it (or leaving its `with` block) drops what nobody took.
    """

    __slots__ = ("_given_up", "_lot", "_taken")

    kind = "mailbox"

    def __init__(
        self,
        ledger: Ledger,
        name: str,
        *,
        patience: float = DEFAULT_PATIENCE,
        policy: StuckPolicy = StuckPolicy.DISCONNECT,
    ) -> None:
        super().__init__(ledger, name, patience=patience, policy=policy)
        self._lot = trio.lowlevel.ParkingLot()
        self._taken: weakref.WeakSet[LoanedItem[Any]] = weakref.WeakSet()
        self._given_up: str | None = None

    def __repr__(self) -> str:
        return (
            f"<Mailbox {self.name}: {len(self.queue)} loans queued, {len(self._in_hand())} taken>"
        )

    def ready(self) -> None:
        """See `Holder.ready`: wakes the consumer."""
        if self._lot:
            self._lot.unpark()

    def loans(self) -> Iterator[LoanedItem[Any]]:
        """See `Holder.loans`: what waits, and what was taken and is not settled."""
        yield from self.queue
        yield from self._in_hand()

    def _in_hand(self) -> list[LoanedItem[Any]]:
        # One that was put into another holder is there now.
        return [loan for loan in self._taken if loan.items and loan.holder is self]

    def put(self, loan: LoanedItem[list[Any]]) -> None:
        """See `LoanQueue.put`: what was taken may be put back, or into another mailbox."""
        super().put(loan)
        self._taken.discard(loan)

    async def receive(self) -> LoanedItem[list[Any]]:
        """Wait for the next loan and take it; its `item` is a list of events of one account.

        Several tasks may receive from one mailbox; each loan goes to one of them.

        Cancellation: always a checkpoint, before anything is taken, so no loan is ever lost.

        Raises:
            MailboxClosedError: When the mailbox is closed.
            GivenUpError: When it was closed because it made no progress (rule 11).
        """
        await trio.lowlevel.checkpoint()
        while not self.queue:
            self._raise_if_closed()
            await self._lot.park()
        return self.receive_nowait()

    def receive_nowait(self) -> LoanedItem[list[Any]]:
        """Take the next loan, if there is one.

        Raises:
            trio.WouldBlock: If there is none.
            MailboxClosedError: When the mailbox is closed.
        """
        if not self.queue:
            self._raise_if_closed()
            raise trio.WouldBlock
        loan = self.queue.popleft()
        if any(isinstance(entry, Batch) for entry in loan.item):
            loan.item[:] = _explode(loan.item)
        self._taken.add(loan)
        self.settled()
        if self.queue:
            # Another consumer may have been passed over while this one was on its way.
            self.ready()
        return loan

    def _raise_if_closed(self) -> None:
        if self._given_up is not None:
            raise GivenUpError(self._given_up)
        if self.closed:
            msg = f"mailbox {self.name} is closed"
            raise MailboxClosedError(msg)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> LoanedItem[list[Any]]:
        try:
            return await self.receive()
        except GivenUpError:
            raise
        except MailboxClosedError:
            raise StopAsyncIteration from None

    def close(self) -> None:
        """Take nothing more: what is queued is repaid as `dropped`, consumers see the end.

        What has been taken stays with whoever took it.
        """
        self._close(Outcome.DROPPED)

    def give_up(self, why: str) -> None:
        """See `Holder.give_up`: also writes off what was taken and is not settled."""
        self._given_up = f"mailbox {self.name} was closed: {why}"
        self._close(Outcome.WRITTEN_OFF)
        for loan in self._in_hand():
            loan.settle(outcome=Outcome.WRITTEN_OFF)

    def _close(self, outcome: Outcome) -> None:
        self.closed = True
        self.settle_all(outcome)
        self._lot.unpark_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _explode(entries: list[Any]) -> Iterator[Any]:
    for entry in list(entries):
        if isinstance(entry, Batch):
            yield from entry.events()
        else:
            yield entry
