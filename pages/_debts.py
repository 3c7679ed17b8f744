"""The ledger's totals for `/metrics`; those that need a walk are computed in steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..accounts import DebtCollector
from ..accounts._loop import now
from ..accounts.watch._core_shares import METRICS_SHARE
from ..accounts.watch._tops import tops_in_steps
from ._cooperative import Pace, run_paced
from ._walked import WalkedCollector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from ..accounts import Ledger
    from ..accounts.watch._collector import LimitsByLevel
    from ..accounts.watch._tops import Tops

SHORT_SECONDS: Final = 0.01
"""A walk shorter than this is done for each scrape: only tests scrape once a second or more
often."""


def due_after(began: float, busy: float) -> float:
    """Return when the next walk may begin after one that began at `began` and took `busy` s."""
    return began if busy < SHORT_SECONDS else began + busy / METRICS_SHARE


class SteppedDebts(WalkedCollector):
    """A `DebtCollector` that computes slow figures beforehand, in steps.

    Attributes:
        walks: The number of walks.
    """

    def __init__(self, ledger: Ledger, limits: LimitsByLevel | None = None) -> None:
        self._ledger = ledger
        self._debts = DebtCollector(ledger, limits)
        self._tops: Tops | None = None
        self._due = 0.0
        self.walks = 0

    def describe(self) -> Iterator[Metric]:
        return self._debts.describe()

    async def look(self) -> None:
        """Compute figures for `collect`; not again too soon after a long walk.

        A checkpoint, except for small ledgers. On cancellation, earlier figures stay.
        """
        began = now()
        if self._tops is not None and began < self._due:
            return
        pace = Pace()
        self._tops = await run_paced(tops_in_steps(self._ledger), pace)
        self._due = due_after(began, pace.busy_seconds)
        self.walks += 1

    def collect(self) -> Iterator[Metric]:
        """Read the totals, all at one instant, and yield them with the results of `look`."""
        return self._debts.collect(self._tops)
