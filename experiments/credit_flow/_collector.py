"""The state of credit, for Prometheus.

The number of Prometheus series is the same for ten thousand processes as for one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from ._scheme import CreditScheme


class CreditCollector(Collector):
    """Serves the sums of all processes by kind, as `clearfunds_credit_messages_total`."""

    def __init__(self, scheme: CreditScheme) -> None:
        self._scheme = scheme

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without values; for the registry."""
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        """Read the figures once, and yield all metrics."""
        seen = self._scheme.statistics()
        states = GaugeMetricFamily(
            "clearfunds_credit_processes",
            "Processes by kind and state: flow is blocked, or was a moment ago, as RabbitMQ shows "
            "it.",
            labels=["process", "state"],
        )
        blocked = GaugeMetricFamily(
            "clearfunds_credit_blocked_processes",
            "Processes that are blocked now: a receiver has no credit left for them.",
            labels=["process"],
        )
        deferred = GaugeMetricFamily(
            "clearfunds_credit_deferred_grants",
            "Grants that blocked processes hold back.",
            labels=["process"],
        )
        families = {
            "received": CounterMetricFamily(
                "clearfunds_credit_messages", "Messages sent to them.", labels=["process"]
            ),
            "overdrawn": CounterMetricFamily(
                "clearfunds_credit_overdrawn_messages",
                "Messages that they sent without credit.",
                labels=["process"],
            ),
            "blocks": CounterMetricFamily(
                "clearfunds_credit_blocks",
                "Times that they became blocked, however briefly.",
                labels=["process"],
            ),
            "seconds": CounterMetricFamily(
                "clearfunds_credit_blocked_seconds",
                "Seconds that they were blocked, including present blocks.",
                labels=["process"],
            ),
        }
        for kind, each in seen.kinds.items():
            states.add_metric([kind, "flow"], each.flow)
            states.add_metric([kind, "running"], each.processes - each.flow)
            blocked.add_metric([kind], each.blocked)
            deferred.add_metric([kind], each.deferred)
            families["received"].add_metric([kind], each.received)
            families["overdrawn"].add_metric([kind], each.sums.overdrawn)
            families["blocks"].add_metric([kind], each.sums.blocks)
            families["seconds"].add_metric([kind], each.sums.blocked_seconds)
        yield from (states, blocked, deferred, *families.values())
