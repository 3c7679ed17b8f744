"""A holder's own debt for all that it has at rest (stored): one loan that grows and shrinks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._loan import LoanedItem, lent

if TYPE_CHECKING:
    from ._account import Account
    from ._holder import Holder
    from ._outcome import Outcome


class LoanAtRest:
    """All that one holder has at rest, as one loan of the holder's own account.

    What leaves rest and stays with the holder is taken out, as a loan of its own, and may be put
    back; the debt stays the same.

    Attributes:
        account: The holder's own. Its limit is the disk or memory quota.
        loan: The loan for everything at rest; None when there is nothing.
    """

    __slots__ = ("_holder", "account", "loan")

    def __init__(self, account: Account, holder: Holder) -> None:
        self.account = account
        self._holder = holder
        self.loan: LoanedItem[Any] | None = None

    @property
    def items(self) -> int:
        """The number of messages."""
        return 0 if self.loan is None else self.loan.items

    @property
    def bytes(self) -> int:
        """Their bytes."""
        return 0 if self.loan is None else self.loan.bytes

    def add(self, items: int, nbytes: int, opened: float | None = None) -> None:
        """Borrow for messages that have come to rest; repay their publishers after that.

        `opened` is the time when a new loan begins: by default now.
        """
        self.account.borrow(items, nbytes)
        self._join(items, nbytes, opened)

    def put_back(self, loan: LoanedItem[Any]) -> None:
        """Take back a loan from `take`, or another loan of the same account; that loan ends."""
        items, nbytes = loan.items, loan.bytes
        loan.items = loan.bytes = 0
        self._join(items, nbytes, None)

    def _join(self, items: int, nbytes: int, opened: float | None) -> None:
        loan = self.loan
        if loan is None:
            self.loan = lent(self.account, [], items, nbytes, self._holder, opened)
        else:
            loan.items += items
            loan.bytes += nbytes

    # After a restart the disk's total of bytes may differ from the sum over its messages; the
    # ledger has to balance all the same: the last items take what is left, and none takes more.

    def take(
        self, item: list[Any], items: int, nbytes: int, opened: float | None = None
    ) -> LoanedItem[list[Any]]:
        """Take some out, as a loan of `item`; `opened` is by default that of the loan here."""
        loan = self.loan
        assert loan is not None
        nbytes = loan.bytes if items == loan.items else min(nbytes, loan.bytes)
        loan.items -= items
        loan.bytes -= nbytes
        if not loan.items:
            self.loan = None
        if opened is None:
            opened = loan.opened
        return lent(self.account, item, items, nbytes, self._holder, opened)

    def settle(self, items: int, nbytes: int, outcome: Outcome) -> None:
        """Repay some, of `nbytes` together."""
        loan = self.loan
        assert loan is not None
        loan.settle(items, outcome, min(nbytes, loan.bytes))
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
