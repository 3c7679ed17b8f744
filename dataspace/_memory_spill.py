"""Messages that a lagging mailbox has spilled to memory (`StuckPolicy.SPILL` without a queue).

They stay in the mailbox, in order, and the mailbox's own account owes for them: nobody waits. That
account, and the one above it, bound them (`Backlog`, rule 2). Messages beyond the bound stay on
their publishers' accounts, which wait until the consumer has made room, or until the patience with
a full mailbox is over: then the mailbox is given up (`Holder.full_patience`).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from ..accounts import DEFAULT_PATIENCE, Account, LoanedItem, lent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..accounts import Backlog
    from ._mailbox import Mailbox


class MemorySpill:
    """One spell of spilling; made when the mailbox is relieved."""

    __slots__ = ("_backlog", "_beyond", "_mailbox")

    def __init__(self, mailbox: Mailbox, backlog: Backlog) -> None:
        self._mailbox = mailbox
        self._backlog = backlog
        # Loans there is no room for: the last ones of the mailbox.
        self._beyond: deque[LoanedItem[Any]] = deque()

    def put(self, account: Account, entry: Any, items: int, nbytes: int, now: float) -> None:
        """Take a message for which `account` owes; it goes on owing if there is no room."""
        mailbox = self._mailbox
        self.take(lent(account, [entry], items, nbytes, mailbox, now))

    def take(self, loan: LoanedItem[list[Any]]) -> None:
        """Take a loan of the mailbox's, as it is; its account goes on owing if there is no room."""
        self._mailbox.append(loan)
        if not self._beyond and self._backlog.fits(loan.items, loan.bytes):
            loan.transfer(self._backlog.account)
            return
        self._beyond.append(loan)
        self._mailbox.full_patience = DEFAULT_PATIENCE

    def ready(self) -> None:
        """Take over what there is room for by now."""
        beyond, backlog = self._beyond, self._backlog
        while beyond:
            loan = beyond[0]
            if loan.items and loan.holder is self._mailbox and not backlog.owes_for(loan):
                if not backlog.fits(loan.items, loan.bytes):
                    return
                loan.transfer(backlog.account)
            beyond.popleft()
        self._mailbox.full_patience = None

    def received(self, loan: LoanedItem[Any]) -> None:
        """Note that the consumer has received this one."""
        del loan
        self.ready()

    def waited_for(self) -> Iterator[LoanedItem[Any]]:
        """Yield the loans for which publishers wait."""
        for loan in self._beyond:
            if loan.items and loan.holder is self._mailbox:
                yield loan

    @property
    def is_over(self) -> bool:
        """Whether all messages have come back: they are in the mailbox's own queue."""
        return True

    def end(self) -> None:
        """End it; publishers owe for what is beyond the bound until it is settled."""
        self._beyond.clear()
        self._mailbox.full_patience = None
