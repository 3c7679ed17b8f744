"""The interface that loans tell of their fate: a trace's, or a parcel's from another relay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .._account import Account
    from .._holder import Holder
    from .._leaks import Gone
    from .._loan import LoanedItem
    from .._outcome import Outcome
    from .._turn import Turn


class Notes(Protocol):
    """Notes about the deliveries of one turn. They borrow and repay nothing, and never raise."""

    def tag(self, loan: LoanedItem[Any]) -> None:
        """Have a loan tell these notes of its fate (`LoanedItem.trace`), and never grow."""
        ...

    def borrowed(self, items: int, nbytes: int) -> None:
        """Note that more was borrowed for it."""
        ...

    def moved(self, before: Holder | None, holder: Holder, items: int) -> None:
        """Note that `holder` has `items` of it from now on."""
        ...

    def repaid(
        self, items: int, nbytes: int, outcome: Outcome, holder: Holder | Gone | None
    ) -> None:
        """Note that some of it has ended."""
        ...

    def caused_turn(self, account: Account) -> Turn:
        """Return a turn for the handling of one of its loans."""
        ...
