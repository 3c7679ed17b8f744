"""Metrics of a relay's place in its cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from ._cluster import Cluster


class ClusterCollector(Collector):
    """Serves them as `clearfunds_cluster_items{relay="r2",place="unsent"}` and so on.

    Args:
        cluster: The relay's place.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def describe(self) -> Iterator[Metric]:
        """Name the metrics; for the registry."""
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        """Read the figures and yield them."""
        cluster = self._cluster
        yield GaugeMetricFamily(
            "clearfunds_cluster_lease",
            "1 while this relay holds its lease, as far as it can tell; 0: it is cut off from NATS "
            "or the others.",
            value=cluster.lease is not None and cluster.lease.is_held,
        )
        yield GaugeMetricFamily(
            "clearfunds_cluster_relays",
            "Other relays of the cluster that are there.",
            value=len(cluster.peers),
        )
        yield CounterMetricFamily(
            "clearfunds_cluster_rejoins",
            "Times that this relay has lost its lease and has joined again.",
            value=cluster.rejoins,
        )
        items = GaugeMetricFamily(
            "clearfunds_cluster_items",
            "Items that this relay owes for and another has to deliver: unsent, sent and not "
            "received, received and not settled.",
            labels=["relay", "place"],
        )
        resent = CounterMetricFamily(
            "clearfunds_cluster_resent_items",
            "Items that were sent to another relay again.",
            labels=["relay"],
        )
        for name, peer in sorted(cluster.peers.items()):
            hop = peer.hop
            unsent = sum(loan.items for loan in hop.queue)
            there = sum(loan.items for loan in hop.out().values()) - hop.unreceived_items
            items.add_metric([name, "unsent"], unsent)
            items.add_metric([name, "sent"], hop.unreceived_items)
            items.add_metric([name, "received"], there)
            resent.add_metric([name], peer.resent)
        yield items
        yield resent
