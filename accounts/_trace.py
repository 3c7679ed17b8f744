"""What a trace says: one event, from its packet through its loans to their outcomes, with times.

All times are seconds since the trace began, but for `Trace.began`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from ._outcome import Outcome


@attrs.frozen(slots=True)
class Settlement:
    """A loan, or a part of one, that has ended."""

    at: float
    """When; where several are given as one, when the last of them was."""
    items: int
    """Events."""
    bytes: int
    """Their bytes."""
    outcome: Outcome
    """Why."""
    holder: str
    """Who finished it."""
    times: int = 1
    """How many settlements this is: after `MAX_SETTLEMENTS` those of one outcome are summed up."""


@attrs.frozen(slots=True)
class Move:
    """A loan, or a part of one, that went into other hands."""

    at: float
    """When."""
    holder: str
    """Whose."""
    kind: str
    """What sort of holder that is."""


@attrs.frozen(slots=True)
class StillHeld:
    """What of a loan has not ended."""

    holder: str
    """Who has it."""
    kind: str
    """What sort of holder that is."""
    items: int
    """Events."""
    idle_seconds: float | None
    """For how long that holder had made no progress; None where that is not known."""


@attrs.frozen(slots=True)
class TracedLoan:
    """What one turn gave to one holder."""

    holder: str
    """To whom."""
    kind: str
    """What sort of holder that is: `outlet`, `inflight`, `mailbox`, ..."""
    label: str
    """What it is about, as far as that is known: a topic, a record's label."""
    items: int
    """Events."""
    bytes: int
    """What was borrowed for them, framing included."""
    lent: float
    """When it was handed over."""
    ended: float | None
    """When the last of it was settled; None if something is outstanding."""
    left_items: int
    """Events that are outstanding."""
    left_bytes: int
    """Their bytes."""
    held: tuple[StillHeld, ...]
    """Who holds what is outstanding."""
    moves: tuple[Move, ...]
    """How it changed hands: the latest `MAX_MOVES`."""
    settlements: tuple[Settlement, ...]
    """How it ended, in order."""
    turns: tuple[TracedTurn, ...]
    """What handling it caused."""

    def outcomes(self) -> dict[Outcome, int]:
        """Return how many events ended how."""
        found: dict[Outcome, int] = {}
        for each in self.settlements:
            found[each.outcome] = found.get(each.outcome, 0) + each.items
        return found


@attrs.frozen(slots=True)
class TracedTurn:
    """What handling something caused: the packet itself, or a loan that it had become."""

    opened: float
    """When it began; for the first of a trace, when its input was charged."""
    ended: float | None
    """When it was over; None if it is not."""
    items: int
    """Events that came in; 0 where a loan covers them."""
    bytes: int
    """Their bytes."""
    outcome: Outcome | None
    """`delivered` where it was committed, `rejected` or `cancelled` where nothing of it was."""
    labels: tuple[str, ...]
    """What was published, as far as that is known: different topics, different labels."""
    more_labels: int
    """How many there are beyond `MAX_LABELS`."""
    loans: tuple[TracedLoan, ...]
    """What it gave to whom."""


@attrs.frozen(slots=True)
class TracedWait:
    """A reader of the account that had to wait meanwhile."""

    since: float
    """Since when; before the trace began, where it is negative."""
    until: float | None
    """Until when; None if it went on when the trace ended."""
    at: str | None
    """Where it waits: its own account or one above it; None when it goes on."""
    blame: dict[str, float]
    """Seconds by who had to finish something before it could go on, as in the account's
    statement."""


@attrs.frozen(slots=True)
class TracedSum:
    """Loans that are told of together."""

    loans: int = 0
    """How many."""
    items: int = 0
    """Their events."""
    bytes: int = 0
    """Their bytes."""


@attrs.frozen(slots=True)
class Trace:
    """One event, or one run of events that came together, and everything that it caused."""

    account: str
    """Who pays."""
    began: float
    """When its input was charged, in seconds since 1970."""
    seconds: float
    """For how long it was followed."""
    complete: bool
    """Whether everything has ended; otherwise the time was over before."""
    root: TracedTurn
    """What became of the packet."""
    waits: tuple[TracedWait, ...]
    """When the account's readers had to wait meanwhile: the first `MAX_WAITS`."""
    more_waits: int
    """How many waits there were beyond those."""
    followed: TracedSum
    """All loans that were followed, those that are shown included."""
    outcomes: dict[Outcome, int]
    """How many of their events have ended how."""
    left_items: int
    """How many of their events are outstanding."""
    left_bytes: int
    """Their bytes."""
    not_shown: TracedSum
    """Those that were followed and are not shown: the quickest ones, beyond what was asked for."""
    not_followed: TracedSum
    """Those that were not followed: beyond the limit, or to holders that were not asked for."""
    turns_not_followed: int
    """Turns that were not followed, with all that they caused: beyond the limit."""

    def turns(self) -> Iterator[TracedTurn]:
        """Yield every turn that is shown, causes before what they caused."""
        waiting = [self.root]
        while waiting:
            turn = waiting.pop()
            yield turn
            waiting.extend(t for loan in reversed(turn.loans) for t in reversed(loan.turns))

    def loans(self) -> Iterator[TracedLoan]:
        """Yield every loan that is shown."""
        for turn in self.turns():
            yield from turn.loans
