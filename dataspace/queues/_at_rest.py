"""Debt of the queue itself for messages on disk: one loan that grows and shrinks."""

from __future__ import annotations

from typing import Any

from ...accounts import Account, Holder, LoanedItem, Outcome


class AtRest:
    """The ready messages of one queue that are durable on disk, as one loan of its own account.

    A message that is delivered is taken out, as a loan of its own, and put back when it is
    requeued; the debt stays the same.

    Attributes:
        account: The queue's own. Its limit is the disk budget.
        loan: The loan for all of them; None when there are none.
    """

    __slots__ = ("_holder", "account", "loan")

    def __init__(self, account: Account, holder: Holder) -> None:
        self.account = account
        self._holder = holder
        self.loan: LoanedItem[list[Any]] | None = None

    @property
    def items(self) -> int:
        """The number of messages."""
        return 0 if self.loan is None else self.loan.items

    @property
    def bytes(self) -> int:
        """Their bytes."""
        return 0 if self.loan is None else self.loan.bytes

    def add(self, items: int, nbytes: int) -> None:
        """Borrow for messages that have come to rest."""
        self.account.borrow(items, nbytes)
        self._join(items, nbytes)

    def put_back(self, loan: LoanedItem[list[Any]]) -> None:
        """Take back a loan from `take`, or another loan of the same account; that loan ends."""
        items, nbytes = loan.items, loan.bytes
        loan.items = loan.bytes = 0
        self._join(items, nbytes)

    def _join(self, items: int, nbytes: int) -> None:
        loan = self.loan
        if loan is None:
            self.loan = LoanedItem(
                self.account, [], items, nbytes, self._holder,
                self.account.ledger.clock(), charged=True,
            )  # fmt: skip
        else:
            loan.items += items
            loan.bytes += nbytes

    def _share(self, nbytes: int) -> int:
        # After a restart the shelf's total of bytes may differ from the sum over its messages; the
        # ledger has to balance all the same.
        loan = self.loan
        assert loan is not None
        return loan.bytes if loan.items == 1 else min(nbytes, loan.bytes)

    def take(self, event: Any, nbytes: int, now: float) -> LoanedItem[list[Any]]:
        """Take one message out, as a loan of its own."""
        loan = self.loan
        assert loan is not None
        nbytes = self._share(nbytes)
        loan.items -= 1
        loan.bytes -= nbytes
        if not loan.items:
            self.loan = None
        return LoanedItem(self.account, [event], 1, nbytes, self._holder, now, charged=True)

    def settle(self, nbytes: int, outcome: Outcome) -> None:
        """Repay one message."""
        loan = self.loan
        assert loan is not None
        loan.settle(1, outcome, self._share(nbytes))
        if not loan.items:
            self.loan = None

    def settle_some(self, items: int, outcome: Outcome) -> int:
        """Repay `items` messages of unknown size; return the bytes: their share."""
        loan = self.loan
        if loan is None or items < 1:
            return 0
        before = loan.bytes
        loan.settle(min(items, loan.items), outcome)
        if not loan.items:
            self.loan = None
        return before - loan.bytes
