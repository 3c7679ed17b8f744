"""The ledger's totals for `/metrics`, with the walk that some of them take done in steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio
from prometheus_client.registry import Collector

from ...accounts import DebtCollector
from ...accounts._tops import tops_in_steps
from ._cooperative import Pace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client import Metric

    from ...accounts import Account, Ledger, Limit
    from ...accounts._tops import Tops

SHARE_MAX: Final = 0.005
"""Of a core: how much the walks may take together, however many loans there are and however often
is scraped. The live page may take three times as much."""

SHORT_SECONDS: Final = 0.01
"""A walk that takes less than this is done for each scrape: nobody scrapes once a second or more
often, but for tests."""


def due_after(began: float, busy: float) -> float:
    """Return when a walk may be done again that began then and took `busy` seconds."""
    return began if busy < SHORT_SECONDS else began + busy / SHARE_MAX


class SteppedDebts(Collector):
    """A `DebtCollector` that finds out beforehand, in steps, what takes long.

    Attributes:
        walks: How often that was done.
    """

    def __init__(self, ledger: Ledger, limits: Mapping[str, Limit | Account] | None = None) -> None:
        self._ledger = ledger
        self._debts = DebtCollector(ledger, limits)
        self._tops: Tops | None = None
        self._due = 0.0
        self.walks = 0

    def describe(self) -> Iterator[Metric]:
        return self._debts.describe()

    async def look(self) -> None:
        """Find out what `collect` is to tell of; not again too soon after a walk that took long.

        A checkpoint, but for small ledgers. On cancellation, what was found before stays.
        """
        began = trio.current_time()
        if self._tops is not None and began < self._due:
            return
        pace = Pace()
        steps = tops_in_steps(self._ledger)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                self._tops = end.value
                break
            await pace.breathe()
        self._due = due_after(began, pace.busy_seconds)
        self.walks += 1

    def collect(self) -> Iterator[Metric]:
        """Read the totals, all at one instant, and yield them with what `look` has found."""
        return self._debts.collect(self._tops)
