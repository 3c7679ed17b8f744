"""How a traced turn is told from all others: by whom its loans are charged through.

Theory of operation. What a traced turn hands over is charged through a `StandIn` for its account,
one for each place that it ends up at. To the books a stand-in is the account: what is borrowed and
repaid through it is the account's own, as it says itself. But it is not the same object, so that
nothing else joins its loan, whoever finishes the loan repays through it, whichever way that goes
(`LoanedItem.settle`, the flusher's sums), and a turn that the loan opens is known to be caused by
it. That is all of the accounting that a trace takes, and nothing of it is there without one: who is
not traced pays for one look at `Account.tracers`, once a turn.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Self

from ._account import Account
from ._holder import Recipient
from ._outcome import Outcome
from ._turn import Router, Turn

if TYPE_CHECKING:
    from ._holder import Holder
    from ._leaks import Gone
    from ._trace_notes import LoanNotes, TraceNotes, TurnNotes


class StandIn(Account):
    """An account, for what one traced turn gave to one holder.

    Everything about it is the account's, and it is equal to the account.

    Attributes:
        real: The account.
        notes: What is noted of the loan; None when the trace has ended.
    """

    __slots__ = ("notes", "real")

    real: Account
    notes: LoanNotes | None

    def __init__(self, real: Account, notes: LoanNotes) -> None:  # pyright: ignore[reportMissingSuperCall]
        # Not Account's: what that sets is looked up at the account itself, see below.
        self.real = real
        self.notes = notes

    def __eq__(self, other: object) -> bool:
        return other is self.real or (isinstance(other, StandIn) and other.real is self.real)

    def __hash__(self) -> int:
        return hash(self.real)

    def borrow(self, items: int, nbytes: int) -> None:
        """See `Account.borrow`."""
        self.real.borrow(items, nbytes)
        if self.notes is not None:
            self.notes.borrowed(items, nbytes)

    def borrow_run(self, items: int, nbytes: int, copies: int) -> None:
        """See `Account.borrow_run`."""
        self.real.borrow_run(items, nbytes, copies)

    def repay(
        self,
        items: int,
        nbytes: int,
        outcome: Outcome = Outcome.DELIVERED,
        holder: Holder | Gone | None = None,
        opened: float | None = None,
    ) -> None:
        """See `Account.repay`."""
        self.real.repay(items, nbytes, outcome, holder, opened)
        if self.notes is not None:
            self.notes.repaid(items, nbytes, outcome, holder)

    def repay_delivered(self, ended: Collection[tuple[Holder, int, int, float]]) -> None:
        """See `Account.repay_delivered`."""
        for holder, items, nbytes, opened in ended:
            self.repay(items, nbytes, Outcome.DELIVERED, holder, opened)

    def caused_turn(self) -> Turn:
        """See `Account.caused_turn`."""
        return FollowedTurn(self.real, 0, 0, self.notes)

    def moved(self, before: Holder | None, holder: Holder, items: int) -> None:
        """See `Account.moved`."""
        if self.notes is not None:
            self.notes.moved(before, holder, items)

    async def ensure_clear_funds(self) -> None:
        """See `Account.ensure_clear_funds`."""
        await self.real.ensure_clear_funds()

    def close(self) -> None:
        """See `Account.close`."""
        self.real.close()


def _of_the_account(name: str) -> property:
    def get(stand_in: StandIn) -> Any:
        return getattr(stand_in.real, name)

    def set_(stand_in: StandIn, value: Any) -> None:
        setattr(stand_in.real, name, value)

    return property(get, set_)


for _name in Account.__slots__:
    if _name != "__weakref__":
        setattr(StandIn, _name, _of_the_account(_name))


class Through(Recipient):
    """A recipient of a traced turn: charges what it is given through a stand-in."""

    __slots__ = ("_notes", "_recipient", "_stand_in")

    gathers: ClassVar[bool] = True

    def __init__(self, recipient: Recipient, notes: LoanNotes, account: Account) -> None:
        self._recipient = recipient
        self._notes = notes
        if notes.stand_in is None:
            notes.stand_in = StandIn(account, notes)
        self._stand_in = notes.stand_in

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        """See `Recipient.hold`; `account` has been charged already."""
        notes = self._notes
        recipient = self._recipient
        notes.lent_to(recipient.last_holder, items, nbytes, notes.trace.label(item))
        recipient.hold(self._stand_in, item, items, nbytes, now)

    def gathered(self) -> None:
        """See `Recipient.gathered`."""
        if self._recipient.gathers:
            self._recipient.gathered()

    def ready(self) -> None:
        """See `Recipient.ready`."""
        self._recipient.ready()


def through(
    trace: TraceNotes,
    turn: TurnNotes,
    deliveries: Iterable[tuple[Recipient, int, int]],
) -> list[Recipient]:
    """Return who takes the (recipient, items, bytes) of a turn's commit in their places."""
    found: list[Recipient] = []
    # Who is given several things is told once that this was all.
    throughs: dict[Recipient, Through] = {}
    for recipient, items, nbytes in deliveries:
        holder = recipient.last_holder
        if holder is None:
            # It is known by the hands that finish it, when they do.
            notes = trace.lend(turn, recipient, type(recipient).__name__, "", items, nbytes)
        else:
            notes = trace.lend(turn, holder, holder.name, holder.kind, items, nbytes)
        if notes is None:
            found.append(recipient)
            continue
        if recipient not in throughs:
            throughs[recipient] = Through(recipient, notes, trace.account)
        found.append(throughs[recipient])
    return found


class FollowedTurn(Turn):
    """A turn that is followed, if somebody still wants to when it is entered."""

    __slots__ = ("_cause", "_notes")

    def __init__(
        self, account: Account, items: int, nbytes: int, cause: LoanNotes | None = None
    ) -> None:
        super().__init__(account, items, nbytes)
        self._cause = cause
        self._notes: TurnNotes | None = None

    def __enter__(self) -> Self:
        super().__enter__()
        cause = self._cause
        if cause is not None:
            if cause.stand_in is not None:  # else the trace has ended
                self._notes = cause.trace.open_turn(cause, self.opened)
        else:
            trace = begun(self.account, self.opened, self.input_items, self.input_bytes)
            if trace is not None:
                self._notes = trace.root
        return self

    def publish(self, router: Router, event: Any, *, nbytes: int | None = None) -> None:
        """See `Turn.publish`."""
        super().publish(router, event, nbytes=nbytes)
        if self._notes is not None:
            self._notes.about(event)

    def _hand_over(self) -> Iterable[Recipient]:
        notes = self._notes
        if notes is not None and notes.trace.seconds is None:
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
    """Begin a trace for the first who wants one of this account; nobody may, any more."""
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
    """Return who takes a run in the place of `holders`; for `commit_run`."""
    if account.opens <= 0:
        account.check_open()
    trace = begun(account, account.ledger.clock(), items, nbytes)
    if trace is None:
        return holders
    turn = trace.root
    turn.about(item)
    found = through(trace, turn, [(holder, items, nbytes) for holder in holders])
    # Its commit is one step, in which nobody can look.
    turn.over(Outcome.DELIVERED)
    return found
