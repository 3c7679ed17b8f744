"""The loans that consumers have taken and not settled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from weakref import ref

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..accounts import LoanedItem

LEAST_ROOM: Final = 16
"""Loans that are noted before the first look for those that have ended."""


class InHand:
    """Loans, held weakly, until they are settled: one that its consumer forgets has leaked.

    A `WeakSet` does the same for three times the CPU. Those that have ended are thrown out when
    there are twice as many as after the last time.
    """

    __slots__ = ("_loans", "_room")

    def __init__(self) -> None:
        self._loans: list[ref[LoanedItem[Any]]] = []
        self._room = LEAST_ROOM

    def __iter__(self) -> Iterator[LoanedItem[Any]]:
        """Yield those that are outstanding, in the order in which they were taken."""
        for each in self._loans:
            loan = each()
            if loan is not None and loan.items:
                yield loan

    def add(self, loan: LoanedItem[Any]) -> None:
        """Note a loan that is not here."""
        if len(self._loans) >= self._room:
            self._loans = [ref(each) for each in self]
            self._room = max(LEAST_ROOM, 2 * len(self._loans))
        self._loans.append(ref(loan))

    def discard(self, loan: LoanedItem[Any]) -> None:
        """Forget a loan that was put back, if it is here."""
        self._loans = [ref(each) for each in self if each is not loan]
