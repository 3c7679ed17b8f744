"""Snapshots: outstanding loans, and every account's statement, as rows; taken in steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ...accounts import LoanedItem
from ._tables import NO_HOLDER, NO_KIND

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from ...accounts import Ledger

STEP: Final = 128
"""Accounts, or loans, before other tasks may run: a fifth of a millisecond."""

Row = tuple[Any, ...]


def snapshot(ledger: Ledger) -> Generator[None, None, tuple[list[Row], list[Row]]]:
    """Return the rows of `accounts` and of `open_loans`; between two steps the books may change.

    Each account, and each loan, is read at one instant.
    """
    at = ledger.clock()
    accounts: list[Row] = []
    for number, account in enumerate(list(ledger.accounts.values()), 1):
        limit, parent = account.limit, account.parent
        accounts.append(
            (
                *(at, account.name, None if parent is None else parent.name, account.state),
                *(account.debt_items, account.debt_bytes, account.peak_items, account.peak_bytes),
                *(limit.items, limit.bytes, ledger.at_rest.get(account)),
            )
        )
        if not number % STEP:
            yield
    cells: dict[tuple[str, str, str], list[float]] = {}
    looked = 0
    for holder in list(ledger.holders):
        # A holder's loans may not change while they are walked, hence the copy.
        loans: list[Any] = list(holder.loans())
        looked += 1
        for start in range(0, len(loans), STEP):
            some = loans[start : start + STEP]
            _add(cells, some, holder.name, holder.kind, at)
            looked += len(some)
            if looked >= STEP:
                looked = 0
                yield
        if looked >= STEP:
            looked = 0
            yield
    for loan in list(ledger.loose):
        # A part that was split off has the holder of the whole.
        hands = loan.holder
        name, kind = (NO_HOLDER, NO_KIND) if hands is None else (hands.name, hands.kind)
        _add(cells, [loan], name, kind, at)
    router = ledger.router
    for turn in list(ledger.turns):
        if turn.input_items:
            key = turn.account.name, router.name, router.kind
            _charge(cells, key, turn.input_items, turn.input_bytes, turn.opened)
    loans_rows: list[Row] = [
        (at, *key, int(items), int(nbytes), opened)
        for key, (items, nbytes, opened) in cells.items()
    ]
    return accounts, loans_rows


def _add(
    cells: dict[tuple[str, str, str], list[float]],
    loans: Iterable[Any],
    holder: str,
    kind: str,
    at: float,
) -> None:
    for loan in loans:
        # The audit reports entries that are no loans; a loan may have been settled meanwhile.
        if isinstance(loan, LoanedItem) and loan.items:
            key = loan.account.name, holder, kind
            _charge(cells, key, loan.items, loan.bytes, min(at, loan.opened))


def _charge(
    cells: dict[tuple[str, str, str], list[float]],
    key: tuple[str, str, str],
    items: int,
    nbytes: int,
    opened: float,
) -> None:
    cell = cells.get(key)
    if cell is None:
        cells[key] = [items, nbytes, opened]
    else:
        cell[0] += items
        cell[1] += nbytes
        cell[2] = min(cell[2], opened)
