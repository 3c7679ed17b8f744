"""The state of credit, for Prometheus and for `/ledger.json`.

The number of Prometheus series is the same for ten thousand processes as for one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from ...accounts import Credit
    from ._scheme import CreditScheme
    from ._statistics import ProcessStatistics


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


class CreditPage:
    """The part of `/ledger.json` about credit."""

    def __init__(self, scheme: CreditScheme) -> None:
        self._scheme = scheme

    def row(self) -> dict[str, Any]:
        """Return its state by kind of process, and the initial amounts."""
        return flow_row(self._scheme)

    def blocked(self) -> list[dict[str, Any]]:
        """Return a row for each blocked process, the longest blocked first."""
        return [blocked_row(each) for each in self._scheme.statistics().blocked]


def flow_row(scheme: CreditScheme) -> dict[str, Any]:
    """Return the part of `/ledger.json` about credit, without blocked processes."""
    settings = scheme.settings
    return {
        "scheme": "credit",
        "hops": {
            "reader_outlet": _credit_row(settings.reader_outlet),
            "reader_queue": _credit_row(settings.reader_queue),
            "queue_store": _credit_row(settings.queue_store),
        },
        "processes": {
            kind: {
                "processes": each.processes,
                "flow": each.flow,
                "blocked": each.blocked,
                "deferred_grants": each.deferred,
                "messages": each.received,
                "overdrawn_messages": each.sums.overdrawn,
                "blocks": each.sums.blocks,
                "blocked_seconds": round(each.sums.blocked_seconds, 6),
            }
            for kind, each in scheme.statistics().kinds.items()
        },
    }


def blocked_row(process: ProcessStatistics) -> dict[str, Any]:
    """Return the row of a blocked process: its blockers, and the credit left with them."""
    flow = process.flow
    return {
        "kind": process.kind,
        "name": flow.name,
        "state": flow.state,
        "by": [
            {"name": each.peer, "seconds": round(each.seconds, 6), "credit": each.credit}
            for each in flow.blockers
        ],
        "deferred_grants": flow.deferred,
        "blocked_seconds": round(flow.blocked_seconds, 6),
        "blame": {name: round(seconds, 6) for name, seconds in flow.blame.items()},
    }


def _credit_row(credit: Credit) -> dict[str, int]:
    return {"initial": credit.initial, "more_after": credit.more_after}
