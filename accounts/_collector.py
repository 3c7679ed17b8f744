"""The ledger's totals for Prometheus: as many series for ten thousand accounts as for one.

Nothing is counted here. What the hot path counts in plain integers is read at each scrape, all at
one instant, so that within a scrape borrowed - repaid = debt (rule 8). Limits stand beside the
values they bound, in metrics of their own, because sums over both would mean nothing. There is no
label whose values a peer could choose.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from ._account import Account
from ._ledger import Ledger
from ._limit import Limit


class DebtCollector(Collector):
    """Serves a ledger's totals to a `prometheus_client.CollectorRegistry`::

        registry = CollectorRegistry()
        registry.register(DebtCollector(ledger, {"server": server, "connection": Limit()}))

    Args:
        ledger: The books to read.
        limits: What bounds debt, by the level it is a limit of; an account stands for its present
            limit. A level without a limit in some unit has no series for it.

    Collecting takes time in proportion to the number of accounts, about 0.3 us each. It must be
    done in the thread of the loop that the ledger's accounts are used in.
    """

    def __init__(self, ledger: Ledger, limits: Mapping[str, Limit | Account] | None = None) -> None:
        self._ledger = ledger
        self._limits = dict(limits or {})

    def describe(self) -> Iterator[Metric]:
        """Name the metrics without looking at the ledger; for the registry."""
        for gauge in _GAUGES:
            yield _gauge(gauge)
        for counter in _COUNTERS:
            yield _counter(counter)

    def collect(self) -> Iterator[Metric]:
        """Read the ledger, once for all metrics, and yield them."""
        totals = self._ledger.statistics()
        roots = [a for a in self._ledger.accounts.values() if a.parent is None]
        limits = {
            level: limit.limit if isinstance(limit, Account) else limit
            for level, limit in self._limits.items()
        }
        yield _gauge("debt_items", totals.debt_items)
        yield _gauge("debt_bytes", totals.debt_bytes)
        yield _gauge("debt_peak_items", max((a.peak_items for a in roots), default=0))
        yield _gauge("debt_peak_bytes", max((a.peak_bytes for a in roots), default=0))
        yield _gauge("debt_limit_items", {level: limit.items for level, limit in limits.items()})
        yield _gauge("debt_limit_bytes", {level: limit.bytes for level, limit in limits.items()})
        yield _gauge("top_debt_items", totals.top_debt_items)
        yield _gauge("accounts", totals.accounts)
        yield _gauge("holders", totals.holders)
        yield _gauge("waiting_readers", totals.waiting)
        yield _gauge("standing_items", totals.standing_items)
        yield _gauge("standing_bytes", totals.standing_bytes)
        yield _counter("borrowed_items", totals.borrowed_items)
        yield _counter("borrowed_bytes", totals.borrowed_bytes)
        yield _counter("repaid_items", totals.repaid_items)
        yield _counter("repaid_bytes", totals.repaid_bytes)
        yield _counter("throttle_events", totals.waits)
        yield _counter("throttled_seconds", totals.waited_seconds)
        yield _counter("leaked_loans", totals.leaked_loans)


_PREFIX = "clearfunds_"

# What each metric means, and its label if it has one.
_GAUGES: dict[str, tuple[str, str | None]] = {
    "debt_items": ("Events whose work is unfinished, over all accounts.", None),
    "debt_bytes": ("Bytes of the events whose work is unfinished.", None),
    "debt_peak_items": ("Highest debt in events so far, of an account without a parent.", None),
    "debt_peak_bytes": ("Highest debt in bytes so far, of an account without a parent.", None),
    "debt_limit_items": ("Debt in events above which the readers of an account wait.", "level"),
    "debt_limit_bytes": ("Debt in bytes above which the readers of an account wait.", "level"),
    "top_debt_items": ("Debt in events of the account that owes most now.", None),
    "accounts": ("Accounts that are open or still being paid off.", "state"),
    "holders": ("Mailboxes, outlets and queues in which loans may sit.", None),
    "waiting_readers": ("Readers that wait for debt to be repaid.", None),
    "standing_items": ("Assertions and retained messages.", None),
    "standing_bytes": ("Bytes of the assertions and retained messages.", None),
}

_COUNTERS: dict[str, tuple[str, str | None]] = {
    "borrowed_items": ("Events charged to accounts.", None),
    "borrowed_bytes": ("Bytes charged to accounts.", None),
    "repaid_items": ("Events finished or given up, by what became of them.", "outcome"),
    "repaid_bytes": ("Bytes finished or given up, by what became of them.", "outcome"),
    "throttle_events": ("Times a reader had to wait for debt to be repaid.", None),
    "throttled_seconds": ("Seconds that readers waited, those that wait now included.", None),
    "leaked_loans": ("Loans that nobody settled, found by the garbage collector.", None),
}

_Value = float | Mapping[str, int] | Mapping[str, int | None] | None


def _gauge(name: str, value: _Value = None) -> Metric:
    documentation, label = _GAUGES[name]
    metric = GaugeMetricFamily(_PREFIX + name, documentation, labels=[label] if label else [])
    _fill(metric, value)
    return metric


def _counter(name: str, value: _Value = None) -> Metric:
    documentation, label = _COUNTERS[name]
    metric = CounterMetricFamily(_PREFIX + name, documentation, labels=[label] if label else [])
    _fill(metric, value)
    return metric


def _fill(metric: GaugeMetricFamily | CounterMetricFamily, value: _Value) -> None:
    if isinstance(value, Mapping):
        for label, amount in value.items():
            if amount is not None:
                metric.add_metric([label], amount)
    elif value is not None:
        metric.add_metric([], value)
