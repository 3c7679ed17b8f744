"""The relay's connections and messages for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from prometheus_client import Metric


@attrs.frozen
class TransportCounts:
    """The counts of one protocol's sessions so far; a protocol leaves unused counts at 0.

    All but `connections` and `subscriptions` only ever rise.
    """

    connections: int = 0
    """Connections open now."""
    accepted_connections_total: int = 0
    """Connections ever accepted."""
    refused_connections_total: int = 0
    """Connections turned away by a limit, or before they authenticated."""
    broken_connections_total: int = 0
    """Connections closed because the peer broke the protocol."""
    silent_connections_total: int = 0
    """Connections closed because the peer sent nothing for longer than was agreed."""
    subscriptions: int = 0
    """Subscriptions, or patterns observed, at present."""
    messages_received_total: int = 0
    """Messages published by peers."""
    messages_rejected_total: int = 0
    """Messages that were not routed: to reserved topics, or over a quota."""
    messages_unroutable_total: int = 0
    """Messages of all transports that concerned nobody: counted once, with one of them."""
    messages_delivered_total: int = 0
    """Messages handed to peers of all transports, once for each: counted with one of them."""
    received_bytes_total: int = 0
    """Bytes read from peers."""
    internal_errors_total: int = 0
    """Internal errors. Each closes the connection that it belongs to; errors that belong to none
    are counted with one of the transports."""


class RelayCollector(Collector):
    """Serves the counts of each protocol, as `clearfunds_connections{transport="mqtt"}`.

    Args:
        read: Returns the present counts by protocol. The protocols are few and known beforehand.
    """

    def __init__(self, read: Callable[[], Mapping[str, TransportCounts]]) -> None:
        self._read = read

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without values, reading nothing; for the registry."""
        return self._families({})

    def collect(self) -> Iterator[Metric]:
        """Read the counts once, and yield all metrics."""
        return self._families(self._read())

    def _families(self, counts: Mapping[str, TransportCounts]) -> Iterator[Metric]:
        for name, documentation in _METRICS.items():
            # For a counter, prometheus_client adds `_total` to the name itself.
            kind: Any = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            metric = kind(
                f"clearfunds_{name.removesuffix('_total')}", documentation, labels=["transport"]
            )
            for transport, each in counts.items():
                metric.add_metric([transport], getattr(each, name))
            yield metric


_METRICS: Final = {
    "connections": "Connections open now.",
    "accepted_connections_total": "Connections accepted.",
    "refused_connections_total": "Connections turned away.",
    "broken_connections_total": "Connections closed because the peer broke the protocol.",
    "silent_connections_total": "Connections closed because the peer sent nothing for too long.",
    "subscriptions": "Subscriptions, or patterns observed, at present.",
    "messages_received_total": "Messages published by peers.",
    "messages_rejected_total": "Messages not routed: to reserved topics, or over a quota.",
    "messages_unroutable_total": "Messages without any recipient, over all transports.",
    "messages_delivered_total": "Messages handed to peers, once for each, over all transports.",
    "received_bytes_total": "Bytes read from peers.",
    "internal_errors_total": "Internal errors of the relay; each closes at most one connection.",
}
