"""Holders of memory when it is short, and cutting those that can release some.

A memory alarm stops publishers, so that debt can be worked off. Where debt does not explain the
memory in use, stopping them helps nobody: then connections with unfinished input are cut, those
that hold most first (`InputBook.relieve`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..accounts import MEMORY

if TYPE_CHECKING:
    from ..accounts import Ledger
    from ..transports._input import InputBook

RELIEF_SECONDS: Final = 5.0
"""The least interval between cuts for an alarm: the memory that they release shows only when free
memory has been given back to the system."""


class MemoryHolders:
    """Finds the holders of memory when `Alarms` measures too much in use.

    Args:
        ledger: The ledger of all debt.
        book: The unfinished input of all connections.
    """

    def __init__(self, ledger: Ledger, book: InputBook) -> None:
        self._ledger = ledger
        self._book = book
        self._relieved_at = -RELIEF_SECONDS

    def short(self, kind: str, excess: int) -> str:
        """Make room if debt does not explain `excess` bytes; return a sentence on the holders.

        For `Alarms.on_short`.
        """
        if kind != MEMORY:
            return ""
        sentence = self.sentence()
        now = self._ledger.clock()
        unexplained = excess - self._ledger.statistics().debt_bytes
        if unexplained > 0 and now - self._relieved_at >= RELIEF_SECONDS:
            self._relieved_at = now
            self._book.relieve(unexplained)
        return sentence

    def sentence(self) -> str:
        """Return a sentence with the bytes of each kind."""
        totals = self._ledger.statistics()
        held = self._book.nbytes
        at_rest = totals.at_rest_bytes.get("ram", 0) - held
        return (
            f"{totals.debt_bytes} bytes are owed, {held} are unfinished input, {at_rest} are kept "
            f"in RAM, {totals.standing_bytes} are retained messages, subscriptions and wills"
        )
