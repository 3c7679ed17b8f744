"""Prometheus metric of operations refused by authorisation."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from ._denied import Denied


class DeniedCollector(Collector):
    """Serves the counts as `clearfunds_denied_events_total{action="publish"}`.

    Args:
        denied: The counts.
    """

    def __init__(self, denied: Denied) -> None:
        self._denied = denied

    def collect(self) -> Iterator[Metric]:
        """Yield the one metric."""
        metric = CounterMetricFamily(
            "clearfunds_denied_events",
            "Operations refused by authorisation (docs/security.md).",
            labels=["action"],
        )
        for field in attrs.fields(Denied):
            metric.add_metric([field.name], getattr(self._denied, field.name))
        yield metric
