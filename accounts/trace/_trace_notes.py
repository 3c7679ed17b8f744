"""Notes that a trace collects while it is under way.

Rules of this file:

1. Nothing here borrows or repays: the books are the same as without a trace.
2. Nothing here raises, and nothing takes long: it is called in the middle of turns and flushes.
   The slow part (`TraceNotes.told`) runs in the task that wanted the trace.
3. Everything that traffic can make grow has a limit. Anything beyond it is counted.
4. A trace that has ended is `let_go`: outstanding loans no longer refer to it.
"""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Final

import attrs

from .._line import blame_of, readers_of
from .._outcome import Outcome
from ._trace import (
    Move,
    Settlement,
    StillHeld,
    Trace,
    TracedLoan,
    TracedSum,
    TracedThere,
    TracedTurn,
    TracedWait,
)
from ._traced import FollowedTurn

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .._account import Account
    from .._holder import Holder
    from .._leaks import Gone
    from .._loan import LoanedItem
    from .._turn import Turn
    from .._waiters import Waiter

MAX_SETTLEMENTS: Final = 16
"""Settlements listed of one loan; after that, those of one outcome are summed up."""

MAX_MOVES: Final = 8
"""Moves listed of one loan, between holders: the latest."""

MAX_LABELS: Final = 8
"""Labels listed of one turn."""

MAX_LABEL: Final = 128
"""Characters of a label."""

MAX_DEPTH: Final = 64
"""Most steps from the packet to an effect: causes of causes, each inside the other."""

MAX_CROSSINGS: Final = 16
"""Messages to other relays that are followed there, of one trace."""

MAX_WAITS: Final = 32
"""Waits of the account's readers listed in one trace."""

NOBODY: Final = "(nobody)"


class SentNotes:
    """Notes about events that went to another relay: a `Crossing`."""

    __slots__ = ("_told", "_trace", "answered", "relay", "sent", "steps")

    def __init__(self, trace: TraceNotes, relay: str, steps: int) -> None:
        self._trace = trace
        self.relay = relay
        self.steps = steps
        self.sent = trace.now()
        self.answered: float | None = None
        self._told: Trace | None = None

    @property
    def is_over(self) -> bool:
        """Whether the trace has ended."""
        return self._trace.seconds is not None

    def told(self, trace: Trace) -> None:
        """Note an answer; one that was overtaken by a later one is ignored."""
        before = self._told
        if not self.is_over and (before is None or before.seconds <= trace.seconds):
            self._told = trace
            self.answered = self._trace.now()

    def value(self) -> TracedThere:
        """Return the notes so far, as a value."""
        return TracedThere(self.relay, self.sent, self.answered, self._told)


class LoanNotes:
    """Notes about the deliveries of one turn to one holder."""

    __slots__ = (
        "__weakref__", "bytes", "ended", "expected", "held", "holder", "idle", "items", "kind",
        "label", "left_bytes", "left_items", "lent", "more_there", "moves", "settlements", "there",
        "trace", "turn", "turns",
    )  # fmt: skip

    def __init__(self, turn: TurnNotes, name: str, kind: str) -> None:
        self.trace = turn.trace
        self.turn = turn
        self.holder = name
        self.kind = kind
        self.label = ""
        self.lent = 0.0
        self.ended: float | None = None
        # Deliveries that the commit has still to make.
        self.expected = 0
        self.items = 0
        self.bytes = 0
        self.left_items = 0
        self.left_bytes = 0
        # Holder's name -> (its kind, number of these events that it has).
        self.held: dict[str, tuple[str, int]] = {}
        self.idle: dict[str, weakref.ref[Holder]] = {}
        self.moves: list[Move] = []
        self.settlements: list[Settlement] = []
        self.turns: list[TurnNotes] = []
        self.there: list[SentNotes] = []
        self.more_there = 0

    def tag(self, loan: LoanedItem[Any]) -> None:
        """Have a loan tell these notes of what becomes of it."""
        loan.trace = self
        loan.grows_to = 0
        self.trace.tagged.add(loan)

    def lent_to(self, holder: Holder | None, items: int, nbytes: int, label: str) -> None:
        """Note that the commit hands over a delivery now."""
        now = self.trace.now()
        if not self.items:
            self.lent = now
        if self.turn.ended is not None:
            # A run's commit, which was over before it began.
            self.turn.ended = now
        self.label = self.label or label[:MAX_LABEL]
        self.expected -= 1
        self.borrowed(items, nbytes)
        name, kind = (self.holder, self.kind) if holder is None else (holder.name, holder.kind)
        self.held[name] = kind, self.held.get(name, (kind, 0))[1] + items
        if holder is not None:
            self.idle[name] = weakref.ref(holder)

    def borrowed(self, items: int, nbytes: int) -> None:
        """Note that more was borrowed for it."""
        if self.ended is not None:
            self.ended = None
            self.trace.unfinished += 1
        self.items += items
        self.bytes += nbytes
        self.left_items += items
        self.left_bytes += nbytes

    def moved(self, before: Holder | None, holder: Holder, items: int) -> None:
        """Note that `holder` has `items` of it from now on."""
        self._let_off(None if before is None else before.name, items)
        self.held[holder.name] = holder.kind, self.held.get(holder.name, ("", 0))[1] + items
        self.idle[holder.name] = weakref.ref(holder)
        if len(self.moves) >= MAX_MOVES:
            del self.moves[0]
        self.moves.append(Move(self.trace.now(), holder.name, holder.kind))

    def repaid(
        self, items: int, nbytes: int, outcome: Outcome, holder: Holder | Gone | None
    ) -> None:
        """Note that some of it has ended."""
        self.left_items -= items
        self.left_bytes -= nbytes
        name = NOBODY if holder is None else holder.name
        if holder is not None and not self.kind:
            self.holder = name
            self.kind = holder.kind
        self._let_off(name, items)
        now = self.trace.now()
        settlements = self.settlements
        if len(settlements) >= MAX_SETTLEMENTS:
            for number, each in enumerate(settlements):
                if each.outcome is outcome and number >= MAX_SETTLEMENTS - 1:
                    settlements[number] = Settlement(
                        now, each.items + items, each.bytes + nbytes, outcome, name, each.times + 1
                    )
                    break
            else:
                settlements.append(Settlement(now, items, nbytes, outcome, name))
        else:
            settlements.append(Settlement(now, items, nbytes, outcome, name))
        # During a commit more deliveries may still come.
        if not (self.left_items or self.left_bytes or self.expected) and self.ended is None:
            self.ended = now
            self.trace.one_ended()

    def _let_off(self, name: str | None, items: int) -> None:
        held = self.held
        for each in (name, *list(held)):
            if not items:
                return
            if each is not None and each in held:
                kind, has = held[each]
                gone = min(has, items)
                items -= gone
                if has > gone:
                    held[each] = kind, has - gone
                else:
                    del held[each]

    def crosses(self, relay: str) -> SentNotes | None:
        """See `Notes.crosses`."""
        trace = self.trace
        steps = MAX_DEPTH - self.turn.depth - 1
        if trace.seconds is not None:
            return None
        if trace.crossings >= MAX_CROSSINGS or steps <= 0:
            self.more_there += 1
            return None
        trace.crossings += 1
        notes = SentNotes(trace, relay, steps)
        self.there.append(notes)
        return notes

    def caused_turn(self, account: Account) -> Turn:
        """Return a turn for the handling of one of its loans, which is followed, too."""
        return FollowedTurn(account, 0, 0, self)

    def seconds(self, now: float) -> float:
        """Return the seconds that it took, or has taken by `now`."""
        return (now if self.ended is None else self.ended) - self.lent

    def told(self, now: float, shown: set[LoanNotes]) -> TracedLoan:
        """Return the notes so far, as a value."""
        clock = self.trace.account.ledger.clock()
        held: list[StillHeld] = []
        for name, (kind, items) in self.held.items():
            reference = self.idle.get(name)
            holder = None if reference is None else reference()
            idle = None if holder is None else clock - holder.progressed_at
            held.append(StillHeld(name, kind, items, idle))
        return TracedLoan(
            holder=self.holder,
            kind=self.kind,
            label=self.label,
            items=self.items,
            bytes=self.bytes,
            lent=self.lent,
            ended=self.ended,
            left_items=self.left_items,
            left_bytes=self.left_bytes,
            held=tuple(held),
            moves=tuple(self.moves),
            settlements=tuple(self.settlements),
            turns=tuple([turn.told(now, shown) for turn in self.turns]),
            there=tuple([sent.value() for sent in self.there]),
            more_there=self.more_there,
        )


class TurnNotes:
    """Notes about one turn."""

    __slots__ = (
        "by_place", "bytes", "cause", "depth", "ended", "items", "labels", "loans", "more_labels",
        "opened", "outcome", "trace",
    )  # fmt: skip

    def __init__(
        self, trace: TraceNotes, cause: LoanNotes | None, items: int, nbytes: int, opened: float
    ) -> None:
        self.trace = trace
        self.cause = cause
        self.depth: int = 0 if cause is None else cause.turn.depth + 1
        self.items = items
        self.bytes = nbytes
        self.opened = opened
        self.ended: float | None = None
        self.outcome: Outcome | None = None
        self.labels: dict[str, None] = {}
        self.more_labels = 0
        self.loans: list[LoanNotes] = []
        # Notes by the place where deliveries end up.
        self.by_place: dict[int, LoanNotes] = {}

    def about(self, event: object) -> None:
        """Note the label of a published event."""
        self.trace.sent = True
        label = self.trace.label(event)[:MAX_LABEL]
        if label not in self.labels:
            if len(self.labels) < MAX_LABELS:
                self.labels[label] = None
            else:
                self.more_labels += 1

    def over(self, outcome: Outcome) -> None:
        """Note that it is over."""
        self.ended = self.trace.now()
        self.outcome = outcome
        self.by_place.clear()
        trace = self.trace
        if trace.root is self and not trace.sent and outcome is Outcome.DELIVERED:
            trace.is_nothing()
        else:
            trace.one_ended()

    def told(self, now: float, shown: set[LoanNotes]) -> TracedTurn:
        """Return the notes so far as a value, with those of its loans that are `shown`."""
        return TracedTurn(
            opened=self.opened,
            ended=self.ended,
            items=self.items,
            bytes=self.bytes,
            outcome=self.outcome,
            labels=tuple(self.labels),
            more_labels=self.more_labels,
            loans=tuple([loan.told(now, shown) for loan in self.loans if loan in shown]),
        )


@attrs.define(slots=True)
class _WaitNotes:
    since: float
    blame: dict[str, float]
    at: str | None = None
    until: float | None = None


@attrs.define(slots=True)
class _Sum:
    loans: int = 0
    items: int = 0
    bytes: int = 0

    def told(self) -> TracedSum:
        return TracedSum(self.loans, self.items, self.bytes)


class TraceNotes:
    """Notes of one trace under way.

    Args:
        account: The account that pays.
        opened: When its input was charged, on the ledger's clock.
        items: The events that came in.
        nbytes: Their bytes.
        label: Returns the label of a published event.
        wants: Whether loans to a holder of that name are followed.
        max_loans: Most loans that are followed, and most turns.
        at_end: Called with it once everything has ended.
        is_nothing: Called with it instead if nothing was sent or published: no trace then.
        depth: How many steps from a packet have led here, at other relays.
    """

    __slots__ = (
        "__weakref__", "_at_end", "_is_nothing", "account", "began", "complete", "crossings",
        "label", "loans", "max_loans", "more_waits", "not_followed", "readers", "root", "seconds",
        "sent", "start", "tagged", "turns", "turns_not_followed", "unfinished", "waits", "wants",
    )  # fmt: skip

    def __init__(
        self,
        account: Account,
        opened: float,
        items: int,
        nbytes: int,
        *,
        label: Callable[[object], str],
        wants: Callable[[str], bool],
        max_loans: int,
        at_end: Callable[[TraceNotes], object],
        is_nothing: Callable[[TraceNotes], object],
        depth: int = 0,
    ) -> None:
        self.account = account
        self.start = opened
        self.began = time.time() - (account.ledger.clock() - opened)
        self.label = label
        self.wants = wants
        self.max_loans = max_loans
        self._at_end = at_end
        self._is_nothing = is_nothing
        self.complete = False
        self.seconds: float | None = None
        self.sent = False
        self.root = TurnNotes(self, None, items, nbytes, 0.0)
        self.root.depth = depth
        self.turns = 1
        self.crossings = 0
        self.loans: list[LoanNotes] = []
        # Outstanding loans that refer to those notes.
        self.tagged: weakref.WeakSet[LoanedItem[Any]] = weakref.WeakSet()
        # Number of open turns plus outstanding loans.
        self.unfinished = 1
        self.not_followed = _Sum()
        self.turns_not_followed = 0
        self.waits: list[_WaitNotes] = []
        self.more_waits = 0
        self.readers: dict[Waiter, _WaitNotes] = {}
        account.ledger.traces.append(self)
        for waiter in readers_of(account):
            self.wait_began(waiter)

    def now(self) -> float:
        """Return the seconds since it began."""
        return self.account.ledger.clock() - self.start

    # -- what goes on ---------------------------------------------------------------------------

    def open_turn(self, cause: LoanNotes, opened: float) -> TurnNotes | None:
        """Note that handling a loan has opened a turn; None if it is one too many."""
        if self.turns >= self.max_loans or cause.turn.depth >= MAX_DEPTH:
            self.turns_not_followed += 1
            return None
        self.turns += 1
        turn = TurnNotes(self, cause, 0, 0, opened - self.start)
        cause.turns.append(turn)
        self.unfinished += 1
        return turn

    def lend(
        self, turn: TurnNotes, place: object, name: str, kind: str, items: int, nbytes: int
    ) -> LoanNotes | None:
        """Note that a turn is going to make a delivery; None if that is not followed.

        Deliveries to one `place` share their notes: they may be reported together.
        """
        self.sent = True
        loan = turn.by_place.get(id(place))
        if loan is None:
            if len(self.loans) >= self.max_loans or not self.wants(name):
                self.not_followed.loans += 1
                self.not_followed.items += items
                self.not_followed.bytes += nbytes
                return None
            loan = LoanNotes(turn, name, kind)
            turn.by_place[id(place)] = loan
            turn.loans.append(loan)
            self.loans.append(loan)
            self.unfinished += 1
        loan.expected += 1
        return loan

    def wait_began(self, waiter: Waiter) -> None:
        """Note that a reader waits from now on, if it is the account's."""
        if waiter.account is not self.account:
            return
        if len(self.waits) >= MAX_WAITS:
            self.more_waits += 1
            return
        notes = _WaitNotes(waiter.since - self.start, dict(blame_of(self.account)))
        self.waits.append(notes)
        self.readers[waiter] = notes

    def wait_ended(self, waiter: Waiter) -> None:
        """Note that a reader no longer waits."""
        notes = self.readers.pop(waiter, None)
        if notes is not None:
            notes.until = self.now()
            notes.blame = self._blamed_since(notes.blame)

    def _blamed_since(self, before: dict[str, float]) -> dict[str, float]:
        since: dict[str, float] = {}
        for name, seconds in blame_of(self.account).items():
            if seconds > before.get(name, 0.0):
                since[name] = seconds - before.get(name, 0.0)
        return since

    def is_nothing(self) -> None:
        """Forget it: the turn has neither published nor sent anything."""
        if self.seconds is None:
            self.let_go()
            self._is_nothing(self)

    def one_ended(self) -> None:
        """Note that a turn or a loan has ended; the last one ends the trace."""
        self.unfinished -= 1
        if not self.unfinished and self.seconds is None:
            self.complete = True
            self.let_go()
            self._at_end(self)

    # -- the end --------------------------------------------------------------------------------

    def end(self) -> None:
        """Stop following; `told` returns the notes so far."""
        if self.seconds is not None:
            return
        self.seconds = self.now()
        for waiter, notes in self.readers.items():
            notes.at = None if waiter.at is None else waiter.at.name
            notes.blame = self._blamed_since(notes.blame)
        self.readers.clear()
        traces = self.account.ledger.traces
        if self in traces:
            traces.remove(self)

    def let_go(self) -> None:
        """End it, and drop the references to it from outstanding loans."""
        self.end()
        for loan in self.tagged:
            loan.trace = None
        self.tagged.clear()

    def told(self, most: int) -> Trace:
        """Return the trace so far, with `most` loans: outstanding ones, then the slowest."""
        seconds = self.now() if self.seconds is None else self.seconds
        outcomes: dict[Outcome, int] = {}
        every = _Sum()
        left_items = left_bytes = 0
        for loan in self.loans:
            _add(every, loan)
            left_items += loan.left_items
            left_bytes += loan.left_bytes
            for each in loan.settlements:
                outcomes[each.outcome] = outcomes.get(each.outcome, 0) + each.items
        shown = self._shown(most, seconds)
        left_out = _Sum()
        for loan in self.loans:
            if loan not in shown:
                _add(left_out, loan)
        return Trace(
            account=self.account.name,
            began=self.began,
            seconds=seconds,
            complete=self.complete,
            root=self.root.told(seconds, shown),
            waits=tuple([TracedWait(w.since, w.until, w.at, w.blame) for w in self.waits]),
            more_waits=self.more_waits,
            followed=every.told(),
            outcomes=outcomes,
            left_items=left_items,
            left_bytes=left_bytes,
            not_shown=left_out.told(),
            not_followed=self.not_followed.told(),
            turns_not_followed=self.turns_not_followed,
        )

    def _shown(self, most: int, seconds: float) -> set[LoanNotes]:
        if len(self.loans) <= most:
            return set(self.loans)
        found: set[LoanNotes] = set()
        slowest = sorted(
            self.loans, key=lambda loan: (loan.ended is None, loan.seconds(seconds)), reverse=True
        )
        for loan in slowest:
            # Its causes are shown, too, or it would have no place in the tree.
            chain: list[LoanNotes] = []
            each: LoanNotes | None = loan
            while each is not None and each not in found:
                chain.append(each)
                each = each.turn.cause
            if len(found) + len(chain) <= most:
                found.update(chain)
            if len(found) >= most:
                break
        return found


def _add(to: _Sum, loan: LoanNotes) -> None:
    to.loans += 1
    to.items += loan.items
    to.bytes += loan.bytes
