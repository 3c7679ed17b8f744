"""The audit, in steps: `Ledger.audit` for a relay that cannot pause.

`Ledger.discrepancies` looks at everything at one instant, and holds the loop for more than a
microsecond for each loan. This module walks the same books with pauses, during which debts go on
changing. So an account is judged only if it did not change between the beginning of the walk and
its judgement:

1. Its marks (the sum it ever borrowed, its debt) are the same as at the beginning. Borrowing only
   ever raises the first, so nothing was borrowed; and nothing was repaid, or the debt would be
   lower.
2. An account with children is judged only if no account changed at all, because borrowing and
   repayments of its children may cancel out in its marks.
3. A loan may move from one holder to another and be counted twice, or not at all. So a discrepancy
   is checked again, and reported only if each look finds the same.

A small ledger is walked without a pause, and then all of it is judged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from ..accounts import LoanedItem
from ._holdings import BREATH_EVERY

if TYPE_CHECKING:
    from ..accounts import Account, Ledger
    from ._cooperative import Pace

LOOKS: Final = 3
# Times that a discrepancy must be found, if looking took time.

DISCREPANCIES_MAX: Final = 100
# Most sentences; a broken relay has one for each account.


@attrs.frozen
class AuditResult:
    """Whether the books balance, as far as they could be judged."""

    discrepancies: tuple[str, ...]
    """A sentence for each fault; at most a hundred, and the number of others."""
    judged: int
    """Accounts whose debt was compared with their holders' loans."""
    moving: int
    """Accounts that borrowed and repaid too busily for that."""

    @property
    def balanced(self) -> bool:
        """Whether no fault was found."""
        return not self.discrepancies


async def audit(ledger: Ledger, pace: Pace) -> AuditResult:
    """Walk the books in steps and describe their faults.

    On cancellation nothing has changed, except that leaked loans found on the way are repaid.
    """
    # A new stretch: the totals must be read in one, however many accounts there are.
    await pace.pause()
    look = _Look(ledger)
    await look.walk(pace)
    found = look.found
    looks = 1
    while found and look.paused and looks < LOOKS:
        await pace.pause()
        look = _Look(ledger)
        await look.walk(pace)
        found = [sentence for sentence in found if sentence in look.found]
        looks += 1
    if len(found) > DISCREPANCIES_MAX:
        more = len(found) - DISCREPANCIES_MAX
        found = [*found[:DISCREPANCIES_MAX], f"and {more} discrepancies more"]
    return AuditResult(tuple(found), look.judged, look.moving)


class _Look:
    """One walk through the books."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        # Two dictionaries of numbers instead of one of pairs: see `Everybody`.
        self._items: dict[Account, int] = {}
        self._bytes: dict[Account, int] = {}
        self.found: list[str] = []
        self.judged = 0
        self.moving = 0
        self.paused = False

    async def walk(self, pace: Pace) -> None:
        ledger = self._ledger
        pauses = pace.pauses
        # Loans that the garbage collector found are owed and held by nobody until drained.
        ledger.drain()
        self._compare_totals()
        marks: dict[Account, tuple[int, int, int, int]] = {}
        for number, account in enumerate(list(ledger.accounts.values())):
            if not number % BREATH_EVERY:
                await pace.breathe()
            marks[account] = _marks(account)
        await self._count_held(pace)
        # Ancestors owe their descendants' debts, too (rule 13).
        own_bytes = dict(self._bytes)
        for number, (account, items) in enumerate(list(self._items.items())):
            if not number % BREATH_EVERY:
                await pace.breathe()
            # An ancestor may have loans of its own, so use the amounts from before this loop.
            for ancestor in account.chain[1:]:
                self._add(ancestor, items, own_bytes[account])
        await self._judge(marks, pace)
        self.paused = pace.pauses > pauses

    def _compare_totals(self) -> None:
        totals = self._ledger.statistics()
        owed_items = totals.debt_items + sum(totals.at_rest_items.values())
        owed_bytes = totals.debt_bytes + sum(totals.at_rest_bytes.values())
        for unit, borrowed, repaid, debt in (
            ("items", totals.borrowed_items, totals.repaid_items, owed_items),
            ("bytes", totals.borrowed_bytes, totals.repaid_bytes, owed_bytes),
        ):
            difference = borrowed - sum(repaid.values()) - debt
            if difference:
                self.found.append(
                    f"{abs(difference)} {unit} {'more' if difference > 0 else 'fewer'} were "
                    "borrowed than were repaid or are owed"
                )

    async def _count_held(self, pace: Pace) -> None:
        ledger = self._ledger
        for holder_number, holder in enumerate(list(ledger.holders)):
            if not holder_number % BREATH_EVERY:
                await pace.breathe()
            loans: list[Any] = list(holder.loans())
            for number, loan in enumerate(loans, 1):
                if not number % BREATH_EVERY:
                    await pace.breathe()
                if isinstance(loan, LoanedItem):
                    self._add(loan.account, loan.items, loan.bytes)
                else:
                    self.found.append(f"{holder.name} holds {loan!r}, which is not a loan")
            surplus = holder.surplus()
            if surplus is not None:
                self.found.append(
                    f"{holder.name} holds {surplus[0]} {surplus[1]} that no loan covers"
                )
        for loan in list(ledger.loose):
            self._add(loan.account, loan.items, loan.bytes)
        for turn in list(ledger.turns):
            self._add(turn.account, turn.input_items, turn.input_bytes)

    def _add(self, account: Account, items: int, nbytes: int) -> None:
        self._items[account] = self._items.get(account, 0) + items
        self._bytes[account] = self._bytes.get(account, 0) + nbytes

    async def _judge(self, marks: dict[Account, tuple[int, int, int, int]], pace: Pace) -> None:
        parents: list[Account] = []
        moved = False
        for number, account in enumerate(list(self._ledger.accounts.values())):
            if not number % BREATH_EVERY:
                await pace.breathe()
            moved = moved or account not in marks
        for number, (account, mark) in enumerate(marks.items()):
            if not number % BREATH_EVERY:
                await pace.breathe()
            if _marks(account) != mark:
                moved = True
                self.moving += 1
            elif account.below:
                parents.append(account)
            else:
                self._compare(account)
        if moved:
            self.moving += len(parents)
        else:
            for account in parents:
                self._compare(account)
        for number, account in enumerate(self._items):
            if not number % BREATH_EVERY:
                await pace.breathe()
            known = self._ledger.accounts.get(account.name)
            if known != account and account.debt_items:
                self.found.append(f"account {account.name} is not in the ledger, but has loans")

    def _compare(self, account: Account) -> None:
        self.judged += 1
        items, nbytes = self._items.get(account, 0), self._bytes.get(account, 0)
        if (items, nbytes) != (account.debt_items, account.debt_bytes):
            self.found.append(
                f"account {account.name} owes {account.debt_items} items and {account.debt_bytes} "
                f"bytes, but holders have {items} items and {nbytes} bytes of its"
            )


def _marks(account: Account) -> tuple[int, int, int, int]:
    return (
        account.borrowed_items,
        account.borrowed_bytes,
        account.debt_items,
        account.debt_bytes,
    )
