"""Metrics of the queues of a relay's virtual hosts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from ._virtual_hosts import VirtualHosts

NAMED: Final = 1_000
"""Queues that have metrics of their own, at most: Prometheus' advice is to stay below ten thousand
series a target, and each has eight."""

_LABELS: Final = ["host", "queue"]


class QueuesCollector(Collector):
    """Serves them as `clearfunds_queue_ready_messages{host="/",queue="jobs"}` and so on.

    Exclusive queues, which come and go with their connections, are counted together, as the queue
    `(exclusive)`; so are those beyond a thousand, as `(others)`.

    Args:
        hosts: The virtual hosts.
    """

    def __init__(self, hosts: VirtualHosts) -> None:
        self._hosts = hosts

    def describe(self) -> Iterator[Metric]:
        """Name the metrics; for the registry."""
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        """Read the figures and yield them."""
        gauges = {
            "ready_messages": "Messages that wait for a consumer.",
            "unacked_messages": "Messages that are delivered and not acknowledged.",
            "at_rest_bytes": "Bytes of messages at rest, which no publisher owes for.",
            "consumers": "Consumers.",
            "full_consumers": "Consumers whose prefetch window is full.",
        }
        counters = {
            "published": "Messages that have come.",
            "delivered": "Deliveries to consumers.",
            "acked": "Messages that were acknowledged.",
        }
        sums: dict[tuple[str, str], list[int]] = {}
        queues: dict[str, int] = dict.fromkeys(self._hosts.by_name, 0)
        for host in self._hosts.by_name.values():
            for declared in host.queues.values():
                queues[host.name] += 1
                name = declared.name
                if declared.exclusive_to is not None:
                    name = "(exclusive)"
                elif len(sums) >= NAMED:
                    name = "(others)"
                found = declared.queue.statistics()
                values = (
                    *(found.ready, found.unacked, found.disk_bytes),
                    *(found.consumers, found.consumers_full),
                    *(found.counters.published, found.counters.delivered, found.counters.acked),
                )
                row = sums.setdefault((host.name, name), [0] * len(values))
                for at, value in enumerate(values):
                    row[at] += value
        count = GaugeMetricFamily("clearfunds_queues", "Queues of AMQP.", labels=["host"])
        for name, number in queues.items():
            count.add_metric([name], number)
        yield count
        families = [
            *(
                GaugeMetricFamily(f"clearfunds_queue_{n}", t, labels=_LABELS)
                for n, t in gauges.items()
            ),
            *(
                CounterMetricFamily(f"clearfunds_queue_{n}_messages", t, labels=_LABELS)
                for n, t in counters.items()
            ),
        ]
        for key, row in sums.items():
            for family, value in zip(families, row, strict=True):
                family.add_metric(list(key), value)
        yield from families
