"""Traces of another relay, followed here: for parcels that come with `Parcel.steps`.

Theory of operation. Each such parcel has a trace of its own here (`TraceNotes`), from when it came
in. Receipts take it back, so far as it has come, and in the end with the one that says that the
parcel is settled. The loans that the parcel causes tell both the landing, which has to know when
all has ended, and the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from ...accounts import Recipient, Turn
from ...accounts.trace._trace_notes import MAX_DEPTH, TraceNotes
from ...accounts.trace._traced import FollowedTurn, Tagging, begun, notes_for
from ...accounts.trace._tracer import anybody

if TYPE_CHECKING:
    from ...accounts import Account, Holder, LoanedItem, Outcome, Trace
    from ...accounts._leaks import Gone
    from ...accounts.trace._notes import Crossing
    from ...accounts.trace._trace_notes import LoanNotes, TurnNotes
    from ._landing import Landed
    from ._wire import Parcel

MAX_TRACES: Final = 20
"""Parcels of one relay that are followed at a time: as many as one `clearfunds trace` asks for."""

FOLLOWED: Final = 100
"""Loans, and turns, that are followed of one parcel: as many as a trace shows by default."""

SHOWN: Final = 20
"""Loans of one parcel that a receipt shows: as many as `clearfunds trace` shows by default."""


class LandedLoanNotes:
    """The notes of loans of a traced parcel: those of the landing, and those of the trace."""

    __slots__ = ("_landed", "_loan")

    def __init__(self, landed: Landed, loan: LoanNotes) -> None:
        self._landed = landed
        self._loan = loan

    def tag(self, loan: LoanedItem[Any]) -> None:
        self._landed.tag(loan)
        loan.trace = self

    def lent(self, holder: Holder | None, item: object, items: int, nbytes: int) -> None:
        """Note that the commit hands over a delivery now."""
        self._landed.borrowed(items, nbytes)
        self._loan.lent_to(holder, items, nbytes, self._loan.trace.label(item))

    def borrowed(self, items: int, nbytes: int) -> None:
        self._landed.borrowed(items, nbytes)
        self._loan.borrowed(items, nbytes)

    def moved(self, before: Holder | None, holder: Holder, items: int) -> None:
        self._loan.moved(before, holder, items)

    def repaid(
        self, items: int, nbytes: int, outcome: Outcome, holder: Holder | Gone | None
    ) -> None:
        # The trace first: what settles the parcel ends the trace, and they go back together.
        self._loan.repaid(items, nbytes, outcome, holder)
        self._landed.repaid(items, nbytes, outcome, holder)

    def crosses(self, relay: str) -> Crossing | None:
        return self._loan.crosses(relay)

    def caused_turn(self, account: Account) -> Turn:
        return FollowedLandedTurn(account, self._landed, cause=self._loan)


class _Through(Tagging[LandedLoanNotes]):
    """Stands before a recipient of a traced turn."""

    __slots__ = ()

    def lend(self, item: Any, items: int, nbytes: int) -> None:
        self._notes.lent(self.last_holder, item, items, nbytes)


class FollowedLandedTurn(FollowedTurn):
    """A turn that a traced parcel causes; the one that publishes it has the parcel's `trace`."""

    __slots__ = ("_landed", "_trace")

    def __init__(
        self,
        account: Account,
        landed: Landed,
        items: int = 0,
        nbytes: int = 0,
        *,
        cause: LoanNotes | None = None,
        trace: TraceNotes | None = None,
    ) -> None:
        super().__init__(account, items, nbytes, cause)
        self._landed = landed
        self._trace = trace

    def _begin(self) -> TurnNotes | None:
        trace = self._trace
        if trace is None:
            return super()._begin()
        if trace.seconds is not None:
            return None
        trace.root.opened = trace.now()  # later than the trace, where it has waited
        return trace.root

    def _hand_over(self) -> Iterable[Recipient]:
        notes = self._live_notes()
        deliveries = self._deliveries
        if self._trace is not None:
            self._landed.keep_here(deliveries)
        stand_ins: dict[Recipient, Recipient] = {}
        for number, (recipient, item, items, nbytes, payer) in enumerate(deliveries):
            if payer is not None:
                continue
            loan = None
            if notes is not None:
                loan = notes_for(notes.trace, notes, recipient, items, nbytes)
            if recipient not in stand_ins:
                stand_ins[recipient] = (
                    Tagging(recipient, self._landed)
                    if loan is None
                    else _Through(recipient, LandedLoanNotes(self._landed, loan))
                )
            deliveries[number] = stand_ins[recipient], item, items, nbytes, None
        return Turn._hand_over(self)


class LandedTraces:
    """The traced parcels of a landing, until their relay knows that they have ended.

    Args:
        label: Names an event in a word or two; must not raise.
    """

    def __init__(self, label: Callable[[object], str]) -> None:
        self._label = label
        self._traces: dict[int, TraceNotes] = {}

    def __len__(self) -> int:
        return len(self._traces)

    def begin(self, account: Account, parcel: Parcel) -> TraceNotes | None:
        """Begin the trace of a parcel that has come; None: there are too many, or none wants it.

        A tracer of this relay that wants the account's next event gets it, too.
        """
        now = account.ledger.clock()
        trace = begun(account, now, parcel.items, parcel.nbytes)
        if not parcel.steps or not self._has_room():
            return trace
        if trace is None:
            trace = TraceNotes(
                account,
                now,
                parcel.items,
                parcel.nbytes,
                label=self._label,
                wants=anybody,
                max_loans=FOLLOWED,
                at_end=_ignore,
                is_nothing=_end,
                depth=max(0, MAX_DEPTH - parcel.steps),
            )
        self._traces[parcel.number] = trace
        return trace

    def _has_room(self) -> bool:
        if len(self._traces) < MAX_TRACES:
            return True
        for number, trace in self._traces.items():
            if trace.complete:
                del self._traces[number]
                return True
        return False

    def told(self, numbers: Iterable[int] | None = None) -> tuple[tuple[int, Trace], ...]:
        """Return the traces of these parcels, so far; None: of all."""
        found = self._traces
        return tuple(
            [
                (number, found[number].told(SHOWN))
                for number in (found if numbers is None else numbers)
                if number in found
            ]
        )

    def forget(self, number: int) -> None:
        """Forget one, if it is known: nothing becomes of it here."""
        trace = self._traces.pop(number, None)
        if trace is not None:
            trace.let_go()

    def forget_below(self, floor: int) -> None:
        """Forget those whose end the other relay knows."""
        for number in [each for each in self._traces if each < floor]:
            self.forget(number)

    def clear(self) -> None:
        """Forget all: the other relay has gone."""
        for trace in self._traces.values():
            trace.let_go()
        self._traces.clear()


def _ignore(trace: TraceNotes) -> None:
    """Do nothing at the end of a trace: the next receipt takes it back."""


def _end(trace: TraceNotes) -> None:
    """Let a trace end whose parcel has brought no events."""
    trace.complete = True
