"""Who holds memory when it is short, and who of them can be made to let go of it.

An alarm of memory stops those who publish, so that what is owed can be dealt with. Where debt does
not explain what is in use, stopping them helps nobody: then connections with unfinished input are
cut, those that hold most first (`InputBook.relieve`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..accounts import MEMORY

if TYPE_CHECKING:
    from ..accounts import Ledger
    from ._input import InputBook

RELIEF_SECONDS: Final = 5.0
"""How often connections are cut for an alarm: what they let go of shows only when free memory has
been given back to the system."""


class MemoryHolders:
    """Looks who holds memory, when `Alarms` finds too much of it in use.

    Args:
        ledger: The books.
        book: The unfinished input of all connections.
    """

    def __init__(self, ledger: Ledger, book: InputBook) -> None:
        self._ledger = ledger
        self._book = book
        self._relieved_at = -RELIEF_SECONDS

    def short(self, kind: str, excess: int) -> str:
        """Make room if `excess` bytes are more than debt explains; return who holds memory.

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
        """Say how many bytes are in which book."""
        totals = self._ledger.statistics()
        held = self._book.nbytes
        at_rest = totals.at_rest_bytes.get("ram", 0) - held
        return (
            f"{totals.debt_bytes} bytes are owed, {held} are unfinished input, {at_rest} are kept "
            f"in RAM, {totals.standing_bytes} are retained messages, subscriptions and wills"
        )
