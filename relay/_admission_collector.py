"""Metrics of refused and delayed connections, and of the alarm that delays them all."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from ..access._admission import Admission, Refusal


class AdmissionCollector(Collector):
    """Serves the counts as `clearfunds_refused_logins_total{cause="address"}`.

    Args:
        admission: The connection limits.
        delayed: Returns the number of wrong passwords that were answered late.
        paused: Returns how often a listener has paused for its rate.
        loop_alarm: Returns the level of the alarm for a late event loop.
    """

    def __init__(
        self,
        admission: Admission,
        delayed: Callable[[], int],
        paused: Callable[[], int] = int,
        loop_alarm: Callable[[], int] = int,
    ) -> None:
        self._admission = admission
        self._delayed = delayed
        self._paused = paused
        self._loop_alarm = loop_alarm

    def describe(self) -> Iterator[Metric]:
        """Name the metrics; for the registry."""
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        """Read the figures and yield them."""
        admission = self._admission
        refused = CounterMetricFamily(
            "clearfunds_refused_logins",
            "Connections and CONNECTs refused, by reason (docs/security.md).",
            labels=["cause"],
        )
        for reason in Refusal:
            refused.add_metric([reason.value], admission.refused[reason])
        yield refused
        yield CounterMetricFamily(
            "clearfunds_delayed_logins", "Wrong passwords answered late.", value=self._delayed()
        )
        yield CounterMetricFamily(
            "clearfunds_delayed_connections",
            "Connections that have waited for their turn: their address, or all together, opened "
            "too many a second.",
            value=admission.delayed + self._paused(),
        )
        yield GaugeMetricFamily(
            "clearfunds_loop_alarm",
            "The alarm for a late event loop. 0: it is not up, or not watched; 1: no new "
            "connections are accepted; 2: nor are new publishers read.",
            value=self._loop_alarm(),
        )
        yield CounterMetricFamily(
            "clearfunds_unlogged_events",
            "Events of peers that were not let in, and that the log only counts: there were many.",
            value=admission.strangers.unsaid,
        )
