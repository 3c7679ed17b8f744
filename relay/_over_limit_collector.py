"""Metrics of publications that were refused or shed above a limit, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from ..accounts import OverLimitPolicy
from ..transports.mqtt.server._over_limit import NotAccepted


class OverLimitCollector(Collector):
    """Serves the counts as `clearfunds_over_limit_messages_total{policy="shed",...}`.

    Args:
        totals: Numbers of publications by policy.
    """

    def __init__(self, totals: Mapping[OverLimitPolicy, NotAccepted]) -> None:
        self._totals = totals

    def describe(self) -> Iterator[Metric]:
        """Name the metric; for the registry."""
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        """Read the figures and yield them."""
        family = CounterMetricFamily(
            "clearfunds_over_limit_messages",
            "Messages of publishers above a limit, refused or dropped (--publication-policy).",
            labels=["policy", "result"],
        )
        for policy, gone in self._totals.items():
            family.add_metric([policy.value, "refused"], gone.refused)
            family.add_metric([policy.value, "dropped"], gone.shed)
        yield family
