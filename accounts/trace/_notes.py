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
    from ._trace import Trace


class Crossing(Protocol):
    """Events of a traced loan that go to another relay."""

    @property
    def steps(self) -> int:
        """The number of further steps, from cause to effect, for which they are followed."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether the trace has ended, so that no answer is wanted any more."""
        ...

    def told(self, trace: Trace) -> None:
        """Note what the other relay has done with them so far."""
        ...


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

    def crosses(self, relay: str) -> Crossing | None:
        """Note that some of it is sent to another relay now; None: it is not followed there."""
        ...

    def caused_turn(self, account: Account) -> Turn:
        """Return a turn for the handling of one of its loans."""
        ...
