"""Prometheus metrics of writers of batches. The number of series is the same for any number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from ..sink import Sinks


class SinkCollector(Collector):
    """Serves the sums of all sinks, as `clearfunds_sink_committed_batches_total`."""

    def __init__(self, sinks: Sinks) -> None:
        self._sinks = sinks

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without values; for the registry."""
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        """Read the figures once, and yield all metrics."""
        seen = self._sinks.statistics()
        yield GaugeMetricFamily(
            "clearfunds_sink_writers", "Writers of batches that are known.", value=seen.sinks
        )
        yield GaugeMetricFamily(
            "clearfunds_sink_rest_rows",
            "Rows at rest: staged, or committed and not yet taken by all.",
            value=seen.rest_items,
        )
        yield GaugeMetricFamily(
            "clearfunds_sink_rest_bytes", "Bytes of rows at rest.", value=seen.rest_bytes
        )
        yield CounterMetricFamily(
            "clearfunds_sink_committed_batches", "Batches committed.", value=seen.committed
        )
        yield CounterMetricFamily(
            "clearfunds_sink_published_rows", "Rows of batches published.", value=seen.published
        )
        yield CounterMetricFamily(
            "clearfunds_sink_discarded_rows",
            "Rows that were staged and thrown away.",
            value=seen.discarded,
        )
