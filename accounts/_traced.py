"""Traced turns: their loans are charged through stand-ins for the account.

Theory of operation. The deliveries of a traced turn are charged through a `StandIn` for its
account, one for each place where they end up. To the books a stand-in is the account: it borrows
and repays for the account. But it is not the same object. So no other delivery joins its loan,
every repayment of the loan goes through it (`LoanedItem.settle`, the flusher's sums), and a turn
that the loan opens is known to be caused by it. A trace needs no other accounting, and without a
trace none of it exists: accounts that are not traced pay for one look at `Account.tracers`, once a
turn.
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
    """A stand-in for an account, for the deliveries of one traced turn to one holder.

    It shares all state of the account, and is equal to it.

    Attributes:
        real: The account.
        notes: The notes about the loan; None when the trace has ended.
    """

    __slots__ = ("notes", "real")

    real: Account
    notes: LoanNotes | None

    def __init__(self, real: Account, notes: LoanNotes) -> None:  # pyright: ignore[reportMissingSuperCall]
        # Account's is not called: the attributes that it sets are properties here, see below.
        self.real = real
        self.notes = notes

    def __eq__(self, other: object) -> bool:
        return other is self.real or (isinstance(other, StandIn) and other.real is self.real)

    def __hash__(self) -> int:
        return hash(self.real)

    def borrow(self, items: int, nbytes: int) -> None:
        self.real.borrow(items, nbytes)
        if self.notes is not None:
            self.notes.borrowed(items, nbytes)

    def borrow_run(self, items: int, nbytes: int, copies: int) -> None:
        self.real.borrow_run(items, nbytes, copies)

    def repay(
        self,
        items: int,
        nbytes: int,
        outcome: Outcome = Outcome.DELIVERED,
        holder: Holder | Gone | None = None,
        opened: float | None = None,
    ) -> None:
        self.real.repay(items, nbytes, outcome, holder, opened)
        if self.notes is not None:
            self.notes.repaid(items, nbytes, outcome, holder)

    def repay_delivered(self, ended: Collection[tuple[Holder, int, int, float]]) -> None:
        for holder, items, nbytes, opened in ended:
            self.repay(items, nbytes, Outcome.DELIVERED, holder, opened)

    def caused_turn(self) -> Turn:
        return FollowedTurn(self.real, 0, 0, self.notes)

    def moved(self, before: Holder | None, holder: Holder, items: int) -> None:
        if self.notes is not None:
            self.notes.moved(before, holder, items)

    async def ensure_clear_funds(self) -> None:
        await self.real.ensure_clear_funds()

    def close(self) -> None:
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
    """A recipient of a traced turn: it charges its deliveries through a stand-in."""

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
        if self._recipient.gathers:
            self._recipient.gathered()

    def ready(self) -> None:
        self._recipient.ready()


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
        holder = recipient.last_holder
        if holder is None:
            # Its name becomes that of the holder that finishes it.
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
