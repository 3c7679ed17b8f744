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
        yield from self._sessions()
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
        for name, peer in sorted({**cluster.away, **cluster.peers}.items()):
            hop = peer.hop
            unsent = sum(loan.items for loan in hop.queue)
            there = sum(loan.items for loan in hop.out().values()) - hop.unreceived_items
            items.add_metric([name, "unsent"], unsent)
            items.add_metric([name, "sent"], hop.unreceived_items)
            items.add_metric([name, "received"], there)
            resent.add_metric([name], peer.resent)
        yield items
        yield resent

    def _sessions(self) -> Iterator[Metric]:
        forwarding, homes = self._cluster.forwarding, self._cluster.homes
        connections = GaugeMetricFamily(
            "clearfunds_cluster_forwarded_connections",
            "Connections that one relay accepts and another one serves, which has the session: "
            "accepted here, or served here.",
            labels=["here"],
        )
        moved = CounterMetricFamily(
            "clearfunds_cluster_sessions_moved",
            "Persistent sessions that began anew, since the relay that had them has left: taken by "
            "this relay, or dropped by it when it has come back.",
            labels=["here"],
        )
        refused = CounterMetricFamily(
            "clearfunds_cluster_sessions_refused",
            "Clients told to come again, since their session could not be reached.",
            value=0 if homes is None else homes.refused,
        )
        connections.add_metric(["accepted"], len(forwarding.opened) if forwarding else 0)
        connections.add_metric(["served"], len(forwarding.served) if forwarding else 0)
        moved.add_metric(["taken"], 0 if homes is None else homes.taken)
        moved.add_metric(["dropped"], 0 if homes is None else homes.dropped)
        yield connections
        yield moved
        yield refused
