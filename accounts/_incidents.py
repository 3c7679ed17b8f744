"""What has happened lately to those who waited, for whoever looks when it is over.

Rules of this file:

1. It is bounded, however much happens: `KEPT` incidents with a holder that was dealt with by its
   policy and as many without, the latest; `NAMED` names in each. Those of one sort do not push out
   the other.
2. Nothing is written until something has gone wrong: by `watch_patience` when it gives a holder up
   or relieves it, by `watch_slow_waits` when a wait is over that was slow. No turn comes by here.
3. Waits for one holder that end within `TOGETHER_SECONDS` of each other are one incident; so are
   those that end because it was given up, or relieved.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from ._backlog import Relief
    from ._holder import Holder
    from ._stuck_policy import StuckPolicy

KEPT: Final = 8

NAMED: Final = 3

TOGETHER_SECONDS: Final = 10.0
"""As `STRETCH_SECONDS` of the log: a publisher that is held up again and again by the same
subscriber is one row, and not all of them."""


@attrs.frozen(slots=True)
class GivenUp:
    """What became of a holder whose patience had run out."""

    kind: str
    """What sort of holder it was."""
    items: int
    """Events that were written off."""
    bytes: int
    """Their bytes."""
    debtors: tuple[str, ...]
    """The accounts they were charged to, those with the most first."""
    debtors_more: int
    """How many others there were."""
    idle_seconds: float
    """For how long it had made no progress while somebody waited on it."""
    ring: int
    """How many waited on each other in a ring that was parted by it; 0 if it was on none."""


@attrs.frozen(slots=True)
class Relieved:
    """What became of a holder whose patience had run out, and which stayed."""

    kind: str
    """What sort of holder it is."""
    policy: StuckPolicy
    """By what it was relieved."""
    lost: Relief
    """What has been dropped and put aside in this spell; it changes while that lasts."""
    debtors: tuple[str, ...]
    """The accounts that owed for what it held, those with the most first."""
    debtors_more: int
    """How many others there were."""
    idle_seconds: float
    """For how long it had made no progress while somebody waited on it."""
    ring: int
    """How many waited on each other in a ring that was opened by it; 0 if it was on none."""


@attrs.define(slots=True)
class Incident:
    """A holder and those who waited for it."""

    at: float
    """When it ended, or the last of its waits did, by the ledger's clock."""
    holder: str | None
    """Who was waited on for the most time; None if nobody knows."""
    given_up: GivenUp | None = None
    """What became of it, if it was given up."""
    relieved: Relieved | None = None
    """What became of it, if it was relieved."""
    waits: int = 0
    """How many waits that were slow are over."""
    cancelled: int = 0
    """How many of them without clear funds, as when the connection that waits has ended."""
    seconds: float = 0.0
    """How long the longest of them was."""
    accounts: list[str] = attrs.field(factory=list[str])
    """Whose they were, the first few."""
    accounts_more: bool = False
    """Whether there are others."""


class Incidents:
    """The latest of one ledger."""

    def __init__(self) -> None:
        self._given_up: deque[Incident] = deque(maxlen=KEPT)
        self._waits: deque[Incident] = deque(maxlen=KEPT)

    def latest(self) -> list[Incident]:
        """Return them, the latest first."""
        every = [*self._given_up, *self._waits]
        every.sort(key=lambda each: -each.at)
        return every

    def add_given_up(self, holder: Holder, what: GivenUp, now: float) -> None:
        """Note that a holder was given up."""
        self._given_up.append(Incident(now, holder.name, what))

    def add_relieved(self, holder: Holder, what: Relieved, now: float) -> None:
        """Note that a holder was relieved."""
        self._given_up.append(Incident(now, holder.name, relieved=what))

    def has_given_up(self, holder: Holder, since: float) -> bool:
        """Whether it was noted that a holder was given up, at that time or later."""
        return any(
            each.holder == holder.name
            and each.at >= since
            and each.given_up is not None
            and each.given_up.kind == holder.kind
            for each in self._given_up
        )

    def add_wait(
        self, account: str, holder: str | None, seconds: float, now: float, *, clear: bool
    ) -> None:
        """Note that a wait is over which was slow, and for whom it was."""
        incident = self._going_on(holder, now)
        if incident is None:
            incident = Incident(now, holder)
            self._waits.append(incident)
        incident.at = now
        incident.waits += 1
        incident.cancelled += not clear
        incident.seconds = max(incident.seconds, seconds)
        if account not in incident.accounts:
            if len(incident.accounts) < NAMED:
                incident.accounts.append(account)
            else:
                incident.accounts_more = True

    def _going_on(self, holder: str | None, now: float) -> Incident | None:
        for kept in (self._given_up, self._waits):
            for incident in reversed(kept):
                if incident.holder == holder and now - incident.at <= TOGETHER_SECONDS:
                    return incident
        return None
