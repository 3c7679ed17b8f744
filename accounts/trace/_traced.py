"""Traced turns: their loans are tagged with the notes of the trace that follows them.

Theory of operation. `Through` hands over each delivery of a traced turn. While it does, the
account refers to the notes (`Account.tracing`). So the notes hear of what the holder borrows on
top and what it does not take, and each loan that it makes for this account is tagged
(`LoanedItem.trace`). A tagged loan tells its notes of what becomes of it, nothing joins it, and a
turn that it opens is known to be caused by it. A trace needs no other accounting: without one,
a root turn looks once at `Account.tracers`, and a loan at its tag.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from .._holder import Recipient
from .._outcome import Outcome
from .._turn import Router, Turn

if TYPE_CHECKING:
    from .._account import Account
    from .._holder import Holder
    from ._notes import Notes
    from ._trace_notes import LoanNotes, TraceNotes, TurnNotes

N = TypeVar("N", bound="Notes")


class Tagging(Recipient, Generic[N]):
    """Stands before a recipient of a turn, and has its loans tagged with notes."""

    __slots__ = ("_notes", "_recipient")

    gathers: ClassVar[bool] = True

    def __init__(self, recipient: Recipient, notes: N) -> None:
        self._recipient = recipient
        self._notes = notes

    @property
    def last_holder(self) -> Holder | None:
        return self._recipient.last_holder

    def lend(self, item: Any, items: int, nbytes: int) -> None:
        """Note a delivery that is handed over now."""
        del item
        self._notes.borrowed(items, nbytes)

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        """See `Recipient.hold`; `account` has been charged already."""
        notes = self._notes
        self.lend(item, items, nbytes)
        try:
            account.under_trace(notes, self._recipient.hold, account, item, items, nbytes, now)
        except Exception:
            # It has taken nothing, so the commit repays it.
            notes.repaid(items, nbytes, Outcome.REJECTED, None)
            raise

    def gathered(self) -> None:
        if self._recipient.gathers:
            self._recipient.gathered()

    def ready(self) -> None:
        self._recipient.ready()


class Through(Tagging["LoanNotes"]):
    """Stands before a recipient of a traced turn."""

    __slots__ = ()

    def lend(self, item: Any, items: int, nbytes: int) -> None:
        notes = self._notes
        notes.lent_to(self.last_holder, items, nbytes, notes.trace.label(item))


def through(
    trace: TraceNotes,
    turn: TurnNotes,
    deliveries: Iterable[tuple[Recipient, int, int]],
) -> list[Recipient]:
    """Return the recipients that replace those in (recipient, items, bytes) of a turn's commit."""
    found: list[Recipient] = []
    # A recipient of several deliveries is `ready` only once.
    throughs: dict[Recipient, Through] = {}
    for recipient, items, nbytes in deliveries:
        notes = notes_for(trace, turn, recipient, items, nbytes)
        if notes is None:
            found.append(recipient)
            continue
        if recipient not in throughs:
            throughs[recipient] = Through(recipient, notes)
        found.append(throughs[recipient])
    return found


def notes_for(
    trace: TraceNotes, turn: TurnNotes, recipient: Recipient, items: int, nbytes: int
) -> LoanNotes | None:
    """Return the notes of a delivery that a turn is going to make; None if it is not followed."""
    holder = recipient.last_holder
    if holder is None:
        # Its name becomes that of the holder that finishes it.
        return trace.lend(turn, recipient, type(recipient).__name__, "", items, nbytes)
    return trace.lend(turn, holder, holder.name, holder.kind, items, nbytes)


class FollowedTurn(Turn):
    """A turn that is followed, if a tracer still wants it when it is entered."""

    __slots__ = ("_cause", "_notes")

    def __init__(
        self, account: Account, items: int, nbytes: int, cause: LoanNotes | None = None
    ) -> None:
        super().__init__(account, items, nbytes)
        self._cause = cause
        self._notes: TurnNotes | None = None

    def __enter__(self) -> Self:
        super().__enter__()
        self._notes = self._begin()
        return self

    def _begin(self) -> TurnNotes | None:
        """Return its notes; None: nobody follows it, or no longer."""
        cause = self._cause
        if cause is not None:
            if cause.trace.seconds is not None:
                return None
            return cause.trace.open_turn(cause, self.opened)
        trace = begun(self.account, self.opened, self.input_items, self.input_bytes)
        return None if trace is None else trace.root

    def _live_notes(self) -> TurnNotes | None:
        """Return its notes, if its trace has not ended."""
        notes = self._notes
        return None if notes is None or notes.trace.seconds is not None else notes

    def publish(self, router: Router, event: Any, *, nbytes: int | None = None) -> None:
        super().publish(router, event, nbytes=nbytes)
        if self._notes is not None:
            self._notes.about(event)

    def _hand_over(self) -> Iterable[Recipient]:
        notes = self._live_notes()
        if notes is not None:
            deliveries = self._deliveries
            recipients = through(
                notes.trace, notes, [(to, items, nbytes) for to, _, items, nbytes, _ in deliveries]
            )
            for number, (_, item, items, nbytes, payer) in enumerate(deliveries):
                deliveries[number] = recipients[number], item, items, nbytes, payer
        return super()._hand_over()

    def _end(self, outcome: Outcome) -> None:
        super()._end(outcome)
        if self._notes is not None:
            self._notes.over(outcome)


def begun(account: Account, opened: float, items: int, nbytes: int) -> TraceNotes | None:
    """Begin a trace for the first tracer that wants one of this account; None: none does."""
    tracers = account.tracers
    while tracers is not None:
        trace = tracers[0].begin(account, opened, items, nbytes)
        if trace is not None:
            return trace
        tracers = account.tracers = tracers[1:] or None
    return None


def trace_run(
    account: Account, holders: Collection[Recipient], item: object, items: int, nbytes: int
) -> Collection[Recipient]:
    """Return the recipients that take a run in place of `holders`; for `commit_run`."""
    if account.opens <= 0:
        account.check_open()
    trace = begun(account, account.ledger.clock(), items, nbytes)
    if trace is None:
        return holders
    turn = trace.root
    turn.about(item)
    found = through(trace, turn, [(holder, items, nbytes) for holder in holders])
    # Its commit is one step: no other code sees a state in between.
    turn.over(Outcome.DELIVERED)
    return found
