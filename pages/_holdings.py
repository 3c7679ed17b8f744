"""Who holds whose debt, found by walking the holders' own records (rule 15), in steps."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypedDict

import attrs

from ..accounts import LoanedItem, LoanQueue, Relief
from ..accounts._loan import LOOSE

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

    from ..accounts import Holder, Ledger
    from ._cooperative import Pace

BREATH_EVERY: Final = 64
# Rows between two looks at the clock.


@attrs.frozen
class Hands:
    """All holders of one name. Operators choose names, which may repeat."""

    name: str
    kind: str
    holders: list[Holder]


@attrs.define
class Cell:
    """The part of one account's debt in one pair of hands."""

    opened: float
    """When the oldest of the loans was made, by the ledger's clock."""
    items: int = 0
    bytes: int = 0
    loans: int = 0

    def add(self, items: int, nbytes: int, opened: float) -> None:
        """Add one loan."""
        self.items += items
        self.bytes += nbytes
        self.loans += 1
        self.opened = min(self.opened, opened)


class Why(TypedDict):
    """Why the holders of one name are slow."""

    cause: str | None
    why: str | None


def why_of(holders: Iterable[Holder]) -> Why:
    """Return the cause of the one that has stood still the longest, of those with a known cause."""
    for holder in sorted(holders, key=attrgetter("progressed_at")):
        cause = holder.ledger.causes.of(holder)
        if cause is not None:
            return {"cause": str(cause.kind), "why": cause.about(holder.name)}
    return {"cause": None, "why": None}


class Everybody:
    """Everybody that may hold debt: the holders, the router, and nobody (`(loose)`).

    Their `Hands` are made during iteration. Ten thousand of them kept would be enough new objects
    to cause a full garbage collection, which takes longer than any step here.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._first: dict[str, Holder] = {}
        self._more: dict[str, list[Holder]] = {}
        self._loose = bool(ledger.loose)

    @classmethod
    async def of(cls, ledger: Ledger, pace: Pace) -> Everybody:
        """Find the holders, in steps."""
        everybody = cls(ledger)
        for number, holder in enumerate(list(ledger.holders)):
            if not number % BREATH_EVERY:
                await pace.breathe()
            if everybody._first.setdefault(holder.name, holder) is not holder:
                everybody._more.setdefault(holder.name, []).append(holder)
        return everybody

    def __iter__(self) -> Iterator[Hands]:
        for name, holder in self._first.items():
            yield Hands(name, holder.kind, [holder, *self._more.get(name, ())])
        if self._loose:
            yield Hands(LOOSE, "loose", [])


async def cells_of(
    hands: Hands, ledger: Ledger, pace: Pace, only: Container[str] | None = None
) -> dict[str, Cell]:
    """Return the loans of `hands`, by the name of the account that owes for them.

    Only those of the accounts in `only`, if it is given.
    """
    cells: dict[str, Cell] = {}
    for holder in hands.holders:
        await pace.breathe()
        # A holder's list of loans must not change during the walk, hence the copy; a loan that
        # was settled before its turn has nothing outstanding any more.
        await _add_all(cells, list(holder.loans()), pace, only)
        if holder is ledger.router:
            for turn in list(ledger.turns):
                name = turn.account.name
                if turn.input_items and (only is None or name in only):
                    _add(cells, name, turn.input_items, turn.input_bytes, turn.opened)
    if hands.name == LOOSE:
        await _add_all(cells, list(ledger.loose), pace, only)
    return cells


async def _add_all(
    cells: dict[str, Cell], loans: list[Any], pace: Pace, only: Container[str] | None = None
) -> None:
    for start in range(0, len(loans), BREATH_EVERY):
        if start:
            await pace.breathe()
        for loan in loans[start : start + BREATH_EVERY]:
            # The audit reports entries that are not loans (rule 15); a loan that was settled
            # meanwhile has nothing outstanding any more.
            if not isinstance(loan, LoanedItem) or not loan.items:
                continue
            # The same as `_add`, inline: there may be a hundred thousand of them.
            name = loan.account.name
            cell = cells.get(name)
            if cell is None:
                if only is None or name in only:
                    cells[name] = Cell(loan.opened, loan.items, loan.bytes, 1)
            else:
                cell.items += loan.items
                cell.bytes += loan.bytes
                cell.loans += 1
                if loan.opened < cell.opened:
                    cell.opened = loan.opened


def _add(cells: dict[str, Cell], account: str, items: int, nbytes: int, opened: float) -> None:
    cell = cells.get(account)
    if cell is None:
        cell = cells[account] = Cell(opened)
    cell.add(items, nbytes, opened)


@attrs.define
class Who:
    """The holders of one name that hold something."""

    kind: str
    patience: float | None = None
    """Seconds, the least of theirs; None for the loose loans, which have no holder."""
    progressed_at: float | None = None
    """Their last progress by the ledger's clock; the one longest ago."""
    lagging_since: float | None = None
    """Since when they have been behind, by the ledger's clock; the longest of theirs."""
    relief: Relief | None = None
    """The fate of messages they could not take; None if they were never relieved."""


@attrs.define
class Holdings:
    """The loans of all holders that have some, by name, found in one walk.

    Each holder is read at one instant. Holders without loans are not kept: there may be ten
    thousand of them.
    """

    cells: dict[str, dict[str, Cell]] = attrs.field(factory=dict[str, "dict[str, Cell]"])
    """The amounts, by the name of the account that owes for them."""
    who: dict[str, Who] = attrs.field(factory=dict[str, Who])

    @classmethod
    async def of(cls, ledger: Ledger, pace: Pace) -> Holdings:
        """Walk through the books, in steps."""
        found = cls()
        for number, holder in enumerate(list(ledger.holders)):
            if not number % BREATH_EVERY:
                await pace.breathe()
            # A holder's list of loans must not change during the walk, hence the copy.
            loans: list[Any] = list(holder.loans())
            if loans:
                await found._add(holder.name, holder.kind, holder, loans, pace)
        router = ledger.router
        for turn in list(ledger.turns):
            if turn.input_items:
                found.who.setdefault(router.name, Who(router.kind, router.patience))
                cells = found.cells.setdefault(router.name, {})
                _add(cells, turn.account.name, turn.input_items, turn.input_bytes, turn.opened)
        await found._add(LOOSE, "loose", None, list(ledger.loose), pace)
        return found

    async def _add(
        self, name: str, kind: str, holder: Holder | None, loans: list[Any], pace: Pace
    ) -> None:
        cells = self.cells.get(name, {})
        await _add_all(cells, loans, pace)
        if cells:
            self.cells[name] = cells
            who = self.who.setdefault(name, Who(kind))
            if holder is not None:
                who.patience = min(holder.patience, who.patience or holder.patience)
                who.progressed_at = min(
                    holder.progressed_at, who.progressed_at or holder.progressed_at
                )
                if holder.relief.spells:
                    who.relief = Relief() if who.relief is None else who.relief
                    who.relief.add(holder.relief)
                backlog = holder.backlog if isinstance(holder, LoanQueue) else None
                if backlog is not None:
                    who.lagging_since = min(backlog.since, who.lagging_since or backlog.since)
