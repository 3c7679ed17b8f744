"""The lag of the event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from ..accounts._histogram import Histogram
from ..accounts._loop import now, sleep_until
from ..accounts._ticker import following

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

EVERY_SECONDS: Final = 0.5
"""The interval of the watch over slow consumers, too. Waking an idle process takes up to half a
millisecond: twice a second is a thousandth of a core, ten times would be half a hundredth."""

LAG_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Seconds. prometheus_client's default buckets, from a millisecond on; a page may hold up the loop
for 5 ms."""


class LoopLag(Collector):
    """Measures how late a task is woken that sleeps for half a second, again and again.

    It meets a step that holds up the loop with a probability that grows with the step's length; a
    step longer than the sleep is always met.
    """

    def __init__(self) -> None:
        self._late = Histogram(LAG_BUCKETS)

    async def watch(self) -> None:
        """Measure until cancelled."""
        while True:
            due = following(now(), EVERY_SECONDS)
            await sleep_until(due)
            self._late.add(max(0.0, now() - due))

    def describe(self) -> Iterator[Metric]:
        """Yield the metric without values; for the registry."""
        yield self._family()

    def collect(self) -> Iterator[Metric]:
        """Yield the measurements so far."""
        family = self._family()
        family.add_metric([], self._late.cumulative(), self._late.total)
        yield family

    @staticmethod
    def _family() -> HistogramMetricFamily:
        return HistogramMetricFamily(
            "clearfunds_event_loop_lag_seconds",
            "How late the event loop woke a task that had slept for half a second.",
            labels=[],
        )
