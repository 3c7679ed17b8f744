"""A trace: one event, from its packet through its loans to their outcomes, with times.

All times are seconds since the trace began, except `Trace.began`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from .._outcome import Outcome


@attrs.frozen(slots=True)
class Settlement:
    """A loan, or a part of one, that has ended."""

    at: float
    """When; for several summed up, the time of the last."""
    items: int
    """Events."""
    bytes: int
    """Their bytes."""
    outcome: Outcome
    """Why."""
    holder: str
    """The holder that finished it."""
    times: int = 1
    """Number of settlements: after `MAX_SETTLEMENTS` those of one outcome are summed up."""


@attrs.frozen(slots=True)
class Move:
    """The move of a loan, or a part of one, to another holder."""

    at: float
    """When."""
    holder: str
    """The new holder."""
    kind: str
    """Its kind."""


@attrs.frozen(slots=True)
class StillHeld:
    """The outstanding part of a loan at one holder."""

    holder: str
    """The holder."""
    kind: str
    """Its kind."""
    items: int
    """Events."""
    idle_seconds: float | None
    """Seconds since that holder made progress; None where that is not known."""


@attrs.frozen(slots=True)
class TracedLoan:
    """The deliveries of one turn to one holder."""

    holder: str
    """The holder."""
    kind: str
    """Its kind: `outlet`, `inflight`, `mailbox`, ..."""
    label: str
    """Its topic or record label, as far as known."""
    items: int
    """Events."""
    bytes: int
    """Bytes borrowed for them, framing included."""
    lent: float
    """When it was handed over."""
    ended: float | None
    """When the last of it was settled; None if something is outstanding."""
    left_items: int
    """Outstanding events."""
    left_bytes: int
    """Their bytes."""
    held: tuple[StillHeld, ...]
    """The holders of the outstanding events."""
    moves: tuple[Move, ...]
    """Moves between holders: the latest `MAX_MOVES`."""
    settlements: tuple[Settlement, ...]
    """How it ended, in order."""
    turns: tuple[TracedTurn, ...]
    """Turns caused by handling it."""
    there: tuple[TracedThere, ...] = ()
    """What other relays did with it: the first `MAX_CROSSINGS` messages of the trace."""
    more_there: int = 0
    """Messages to other relays beyond those."""

    def outcomes(self) -> dict[Outcome, int]:
        """Return the number of events for each outcome."""
        found: dict[Outcome, int] = {}
        for each in self.settlements:
            found[each.outcome] = found.get(each.outcome, 0) + each.items
        return found


@attrs.frozen(slots=True)
class TracedTurn:
    """A turn that handled the packet itself, or a loan that it had become."""

    opened: float
    """When it began; for the first of a trace, when its input was charged."""
    ended: float | None
    """When it was over; None if it is not."""
    items: int
    """Events that came in; 0 where a loan covers them."""
    bytes: int
    """Their bytes."""
    outcome: Outcome | None
    """`delivered` if it was committed, `rejected` or `cancelled` if not."""
    labels: tuple[str, ...]
    """Different topics or labels of published events, as far as known."""
    more_labels: int
    """How many there are beyond `MAX_LABELS`."""
    loans: tuple[TracedLoan, ...]
    """Its deliveries, by holder."""


@attrs.frozen(slots=True)
class TracedWait:
    """A wait of one of the account's readers during the trace."""

    since: float
    """When it began; negative: before the trace began."""
    until: float | None
    """When it ended; None if it was still going on when the trace ended."""
    at: str | None
    """The account where it waits: its own or one above it; None when it goes on."""
    blame: dict[str, float]
    """Blocked seconds by holder, as in the account's statement."""


@attrs.frozen(slots=True)
class TracedSum:
    """Loans that are summed up."""

    loans: int = 0
    """Number of loans."""
    items: int = 0
    """Their events."""
    bytes: int = 0
    """Their bytes."""


@attrs.frozen(slots=True)
class TracedThere:
    """What another relay did with a loan, or a part of one.

    The clocks of two relays are not compared: `trace` has its times by the other relay's clock,
    from when the events came in there.
    """

    relay: str
    """The other relay."""
    sent: float
    """When the events were sent there."""
    answered: float | None
    """When the other relay last answered with a trace; None: it has not."""
    trace: Trace | None
    """The trace that came with that answer."""

    @property
    def on_the_way(self) -> float | None:
        """Seconds on the way, there and back; None: there was no answer."""
        if self.answered is None or self.trace is None:
            return None
        return max(0.0, self.answered - self.sent - self.trace.seconds)


@attrs.frozen(slots=True)
class Trace:
    """One event, or one run of events that came together, and everything that it caused."""

    account: str
    """The account that pays."""
    began: float
    """When its input was charged, in seconds since 1970."""
    seconds: float
    """Duration of the trace."""
    complete: bool
    """Whether everything has ended; otherwise the trace was cut short."""
    root: TracedTurn
    """The turn that handled the packet."""
    waits: tuple[TracedWait, ...]
    """Waits of the account's readers meanwhile: the first `MAX_WAITS`."""
    more_waits: int
    """Number of waits beyond those."""
    followed: TracedSum
    """All loans that were followed, those that are shown included."""
    outcomes: dict[Outcome, int]
    """Number of their events for each outcome."""
    left_items: int
    """Their outstanding events."""
    left_bytes: int
    """Their bytes."""
    not_shown: TracedSum
    """Loans that were followed and are not shown: the quickest, beyond the number asked for."""
    not_followed: TracedSum
    """Loans that were not followed: beyond the limit, or to holders that were not asked for."""
    turns_not_followed: int
    """Turns that were not followed, with all that they caused: beyond the limit."""

    def turns(self) -> Iterator[TracedTurn]:
        """Yield every turn that is shown, causes before effects."""
        waiting = [self.root]
        while waiting:
            turn = waiting.pop()
            yield turn
            waiting.extend(t for loan in reversed(turn.loans) for t in reversed(loan.turns))

    def loans(self) -> Iterator[TracedLoan]:
        """Yield every loan that is shown."""
        for turn in self.turns():
            yield from turn.loans
