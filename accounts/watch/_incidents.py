"""Recent incidents: slow consumers and long waits, for operators that look afterwards.

Rules of this file:

1. It is bounded, however much happens: the latest `LATEST` incidents with a holder that was handled
   by its policy and as many without; `NAMED` names in each. One sort does not push out the other.
2. Nothing is written until something has gone wrong: by `watch_patience` when it gives a holder up
   or relieves it, by `watch_slow_waits` when a slow wait is over. No turn runs this code.
3. Waits for one holder that end within `TOGETHER_SECONDS` of each other are one incident; so are
   waits that end because it was given up, or relieved.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import attrs

from ._timelines import Timelines

if TYPE_CHECKING:
    from .._backlog import Relief
    from .._holder import Holder
    from ._stuck_policy import StuckPolicy

LATEST: Final = 8

NAMED: Final = 3

TOGETHER_SECONDS: Final = 10.0
"""Same as `STRETCH_SECONDS` of the log: a publisher that the same subscriber blocks again and again
fills one row, and not all of them."""


@attrs.frozen(slots=True)
class GivenUp:
    """A slow consumer that was given up."""

    kind: str
    """Its kind of holder."""
    items: int
    """Events that were written off."""
    bytes: int
    """Their bytes."""
    debtors: tuple[str, ...]
    """The accounts they were charged to, the largest debt first."""
    debtors_more: int
    """Number of further accounts."""
    idle_seconds: float
    """Seconds without progress while a reader waited on it."""
    ring: int
    """Number of members of the ring that this opened; 0 if it was on none."""
    why: str | None = None
    """Why it was slow, as a sentence; None: unknown."""


@attrs.frozen(slots=True)
class Relieved:
    """A slow consumer that was relieved, and stayed."""

    kind: str
    """Its kind of holder."""
    policy: StuckPolicy
    """The policy by which it was relieved."""
    lost: Relief
    """Messages dropped and spilled in this spell; it changes while the spell lasts."""
    debtors: tuple[str, ...]
    """The accounts that owed for its loans, the largest debt first."""
    debtors_more: int
    """Number of further accounts."""
    idle_seconds: float
    """Seconds without progress while a reader waited on it."""
    ring: int
    """Number of members of the ring that this opened; 0 if it was on none."""
    why: str | None = None
    """Why it was slow, as a sentence; None: unknown."""


@attrs.define(slots=True)
class Incident:
    """A holder and the waits that it caused."""

    at: float
    """When it ended, or the last of its waits did, by the ledger's clock."""
    holder: str | None
    """The holder with the most blocked time; None if unknown."""
    given_up: GivenUp | None = None
    """Details, if it was given up."""
    relieved: Relieved | None = None
    """Details, if it was relieved."""
    waits: int = 0
    """Number of slow waits that are over."""
    cancelled: int = 0
    """How many of them ended without clear funds, as when the waiting connection has ended."""
    seconds: float = 0.0
    """Duration of the longest of them."""
    accounts: list[str] = attrs.field(factory=list[str])
    """The accounts of the waiting readers, the first few."""
    accounts_more: bool = False
    """Whether there are others."""


class Incidents:
    """The latest incidents of one ledger.

    Args:
        timelines: Also told of each, for the clients concerned.
    """

    def __init__(self, timelines: Timelines | None = None) -> None:
        self._timelines = Timelines() if timelines is None else timelines
        self._given_up: deque[Incident] = deque(maxlen=LATEST)
        self._waits: deque[Incident] = deque(maxlen=LATEST)

    def latest(self) -> list[Incident]:
        """Return them, the latest first."""
        every = [*self._given_up, *self._waits]
        every.sort(key=lambda each: -each.at)
        return every

    def add_given_up(self, holder: Holder, what: GivenUp, now: float) -> None:
        """Note that a holder was given up."""
        self._given_up.append(Incident(now, holder.name, what))
        self._timelines.given_up(holder.name, what.why, what.idle_seconds, what.items, now)

    def add_relieved(self, holder: Holder, what: Relieved, now: float) -> None:
        """Note that a holder was relieved."""
        self._given_up.append(Incident(now, holder.name, relieved=what))
        policy = str(what.policy)
        self._timelines.relieved(holder.name, policy, what.idle_seconds, what.lost, now)

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
        """Note that a slow wait for `holder` is over."""
        self._timelines.waited(account, holder, seconds, now)
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
