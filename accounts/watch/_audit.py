"""The audit: every account's debt compared with the loans in holders (rules 8 and 15), in steps.

Other tasks may run between the steps, and change debts. So an account is judged only if it did not
change while the holders were walked:

1. Its marks (the sum it ever borrowed, its debt) are the same before and after. Borrowing only ever
   raises the first, so nothing was borrowed; and nothing was repaid, or the debt would be lower.
2. An account with children is judged only if no account changed at all, because borrowing and
   repayments of its children may cancel out in its marks.
3. A loan may move from one holder to another and be found in both, or in neither. So a discrepancy
   is reported only if several looks find the same.

Without a pause between the steps, every account is judged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from .._loan import LOOSE, LoanedItem

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from .._account import Account
    from .._holder import Holder
    from .._ledger import Ledger

LOOKS: Final = 3
"""Looks that must find a discrepancy."""

STEP: Final = 64
"""Loans, holders or accounts in one step."""


@attrs.frozen
class AuditResult:
    """Whether the books balance, as far as they could be judged."""

    discrepancies: tuple[str, ...]
    """A sentence for each fault."""
    judged: int
    """Accounts whose debt was compared with their holders' loans."""
    moving: int
    """Accounts that borrowed and repaid too busily for that."""

    @property
    def balanced(self) -> bool:
        """Whether no fault was found."""
        return not self.discrepancies


def audit_in_steps(ledger: Ledger) -> Generator[None, None, AuditResult]:
    """Walk through the books; other tasks may run in between. Returns the results.

    Nothing changes, except that leaked loans are repaid.

    Warns:
        ResourceWarning: For each loan that was found leaked.
    """
    look = _Look(ledger)
    yield from look.walk()
    found = look.found
    for _ in range(LOOKS - 1):
        # A loan garbage-collected during the walk was still owed for, but no longer held.
        if not found:
            break
        look = _Look(ledger)
        yield from look.walk()
        found = {each: None for each in found if each in look.found}
    sentences = [sentence for _, sentence in found]
    return AuditResult((*sentences, *look.totals), look.judged, look.moving)


class _Look:
    """One walk through the books."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._began = ledger.clock()
        # Numbers and names only: new objects for all loans would cause a full garbage collection.
        self._items: dict[Account, int] = {}
        self._bytes: dict[Account, int] = {}
        self._seen: dict[int, str] = {}
        self.found: dict[tuple[object, str], None] = {}
        """The discrepancies, in order: the loan concerned, if it is one, and a sentence."""
        self.totals: tuple[str, ...] = ()
        """Those of the totals, which are read at one instant."""
        self.judged = 0
        self.moving = 0

    def walk(self) -> Generator[None]:
        ledger = self._ledger
        yield
        # Loans that the garbage collector found are owed and held by nobody until drained.
        ledger.drain()
        self.totals = tuple(self._wrong_totals())
        marks: dict[Account, tuple[int, int, int, int]] = {}
        for number, account in enumerate(list(ledger.accounts.values()), 1):
            marks[account] = _marks(account)
            if not number % STEP:
                yield
        for number, holder in enumerate(list(ledger.holders), 1):
            yield from self._count(holder)
            if not number % STEP:
                yield
        yield from self._count_loans(LOOSE, [loan for loan in list(ledger.loose) if loan.items])
        for turn in list(ledger.turns):
            if turn.input_items:
                self._add(turn.account, turn.input_items, turn.input_bytes)
        yield from self._add_to_ancestors()
        yield from self._judge(marks)

    def _wrong_totals(self) -> Iterator[str]:
        ledger = self._ledger
        for unit, borrowed, repaid in (
            ("items", ledger.borrowed_items, sum(ledger.repaid_items)),
            ("bytes", ledger.borrowed_bytes, sum(ledger.repaid_bytes)),
        ):
            # A parent owes what its children owe, so the roots suffice.
            debt = sum([getattr(account, f"debt_{unit}") for account in ledger.roots])
            if borrowed - repaid != debt:
                yield f"{borrowed} {unit} were borrowed and {repaid} repaid, but {debt} are owed"

    def _count(self, holder: Holder) -> Generator[None]:
        # A holder's loans must not change during the walk, hence the copy.
        if (yield from self._count_loans(holder.name, list(holder.loans()))):
            # A loan that was settled in a pause is not here any more.
            for loan in holder.loans():
                if _is_over(loan):
                    self._note(f"{holder.name} holds {loan!r}, which has nothing outstanding", loan)
        surplus = holder.surplus()
        if surplus is not None:
            self._note(f"{holder.name} holds {surplus[0]} {surplus[1]} that no loan covers")

    def _count_loans(
        self, holder: str, loans: Sequence[LoanedItem[Any]]
    ) -> Generator[None, None, bool]:
        """Count the loans of a holder; return whether some are over."""
        seen = self._seen
        over = False
        for number, loan in enumerate(loans, 1):
            if not number % STEP:
                yield
            if not isinstance(loan, LoanedItem):  # pyright: ignore[reportUnnecessaryIsInstance]
                self._note(f"{holder} holds {loan!r}, which is not a loan")
            elif id(loan) in seen and loan.opened <= self._began:
                # A later one is another loan, at the same address.
                self._note(f"{loan!r} is held twice: by {seen[id(loan)]} and by {holder}", loan)
            elif _is_over(loan):
                over = True
            else:
                seen[id(loan)] = holder
                self._add(loan.account, loan.items, loan.bytes)
        return over

    def _add(self, account: Account, items: int, nbytes: int) -> None:
        if account not in self._items:
            self._items[account] = self._bytes[account] = 0
            if self._ledger.accounts.get(account.name) is not account:
                self._note(f"account {account.name} is not in the ledger, but has loans")
        self._items[account] += items
        self._bytes[account] += nbytes

    def _add_to_ancestors(self) -> Generator[None]:
        """Charge accounts for their descendants' debts, too (rule 13)."""
        own_bytes = dict(self._bytes)
        # An ancestor may have loans of its own, so use the amounts from before this loop.
        for number, (account, items) in enumerate(list(self._items.items()), 1):
            for each in account.chain:
                if each is not account:
                    self._items[each] = self._items.get(each, 0) + items
                    self._bytes[each] = self._bytes.get(each, 0) + own_bytes[account]
            if not number % STEP:
                yield

    def _judge(self, marks: dict[Account, tuple[int, int, int, int]]) -> Generator[None]:
        moved: set[Account] = set()
        for number, account in enumerate(list(self._ledger.accounts.values()), 1):
            if account not in marks:
                moved.add(account)
            if not number % STEP:
                yield
        for number, (account, mark) in enumerate(marks.items(), 1):
            if _marks(account) != mark:
                moved.add(account)
            if not number % STEP:
                yield
        for number, (account, (*_, owed_items, owed_bytes)) in enumerate(marks.items(), 1):
            if account in moved or (moved and account.below):
                self.moving += 1
            else:
                self.judged += 1
                items, nbytes = self._items.get(account, 0), self._bytes.get(account, 0)
                if (items, nbytes) != (owed_items, owed_bytes):
                    self._note(
                        f"account {account.name} owes {owed_items} items and {owed_bytes} bytes, "
                        f"but holders have {items} items and {nbytes} bytes of its"
                    )
            if not number % STEP:
                yield

    def _note(self, sentence: str, loan: object = None) -> None:
        self.found[loan, sentence] = None


def _is_over(loan: Any) -> bool:
    return isinstance(loan, LoanedItem) and (loan.items < 1 or loan.bytes < 0)


def _marks(account: Account) -> tuple[int, int, int, int]:
    return (
        account.borrowed_items,
        account.borrowed_bytes,
        account.debt_items,
        account.debt_bytes,
    )
