"""The ledger's totals for Prometheus: as many series for ten thousand accounts as for one.

Nothing is counted here. Each scrape reads the plain integers that the hot path counts, all at one
instant, so that within a scrape borrowed - repaid = debt + at rest (rule 8). Figures that need a
walk of the books (`_tops.py`) may be some milliseconds older than the rest. Messages that queues
have paged out are reported apart from publishers' debt (`Ledger.open`). Limits stand beside the
values they bound, in separate metrics, because sums over both would mean nothing. No label has
values that a peer could choose, except the names of the ten largest debtors and the ten largest
holders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from prometheus_client import Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeHistogramMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

from .._account import Account
from .._cooperative import run_to_end
from .._histogram import Histogram
from .._ledger import Ledger
from ..limits._limit import Limit
from ._tops import Tops, tops_in_steps

LimitsByLevel: TypeAlias = Mapping[str, Limit | Account | Callable[[], Limit]]
"""Limits on debt, by level; an account stands for its present limit, a function returns it."""


class DebtCollector(Collector):
    """Serves a ledger's totals to a `prometheus_client.CollectorRegistry`::

        registry = CollectorRegistry()
        registry.register(DebtCollector(ledger, {"server": server, "connection": Limit()}))

    Args:
        ledger: The ledger to read.
        limits: Limits on debt, by level. A level without a limit in some unit has no series for it.

    Collecting takes time in proportion to the number of accounts, about 0.5 us each, of holders and
    of loans, about 1 us each. To avoid a pause for the latter, walk in steps (`tops_in_steps`)
    beforehand and pass the result to `collect`: the rest takes about 0.1 us for each account. Call
    it in the thread of the loop that the ledger's accounts are used in.
    """

    def __init__(self, ledger: Ledger, limits: LimitsByLevel | None = None) -> None:
        self._ledger = ledger
        self._limits = dict(limits or {})

    def describe(self) -> Iterator[Metric]:
        """Name the metrics without looking at the ledger; for the registry."""
        for name in _METRICS:
            yield _family(name)

    def collect(self, tops: Tops | None = None) -> Iterator[Metric]:
        """Read the ledger, once for all metrics, and yield them.

        Args:
            tops: The result of a walk just now; without it, the walk is done here, in one go.
        """
        ledger = self._ledger
        if tops is None:
            tops = run_to_end(tops_in_steps(ledger))
        totals = ledger.statistics()
        limits = {
            level: limit.limit
            if isinstance(limit, Account)
            else limit()
            if callable(limit)
            else limit
            for level, limit in self._limits.items()
        }
        roots = [account for account in ledger.roots if account not in ledger.at_rest]
        values: dict[str, _Value] = {
            "debt_items": totals.debt_items,
            "debt_bytes": totals.debt_bytes,
            "at_rest_items": totals.at_rest_items,
            "at_rest_bytes": totals.at_rest_bytes,
            "debt_peak_items": max((a.peak_items for a in roots), default=0),
            "debt_peak_bytes": max((a.peak_bytes for a in roots), default=0),
            "debt_limit_items": {level: limit.items for level, limit in limits.items()},
            "debt_limit_bytes": {level: limit.bytes for level, limit in limits.items()},
            "top_debt_items": totals.top_debt_items,
            "top_debtor_debt_items": _ranked(tops.debtors),
            "top_holder_items": _ranked(tops.holders),
            "account_debt_items_distribution": tops.debts,
            "accounts": totals.accounts,
            "holders": totals.holders,
            "holders_behind": totals.lagging,
            "relieved_holders_total": totals.relieved,
            "relieved_items_total": totals.relieved_items,
            "relieved_bytes_total": totals.relieved_bytes,
            "oldest_loan_age_seconds": tops.oldest_seconds,
            "waiting_readers": totals.waiting,
            "alarm": ledger.alarms,
            "rings": tops.rings,
            "moving_limit_accounts": tops.moving.states,
            "moving_limit_age_seconds": tops.moving.age_seconds,
            "moving_limit_target_seconds": tops.moving.target_seconds,
            "standing_items": totals.standing_items,
            "standing_bytes": totals.standing_bytes,
            "borrowed_items_total": totals.borrowed_items,
            "borrowed_bytes_total": totals.borrowed_bytes,
            "repaid_items_total": totals.repaid_items,
            "repaid_bytes_total": totals.repaid_bytes,
            "loan_age_seconds": ledger.loan_ages,
            "fanout_copies": ledger.fanout_copies,
            "throttle_events_total": totals.waits_by_reason,
            "throttled_seconds_total": totals.waited_by_reason,
            "throttle_duration_seconds": ledger.wait_seconds,
            "overshoot_items": ledger.overshoot_items,
            "overshoot_bytes": ledger.overshoot_bytes,
            "leaked_loans_total": totals.leaked_loans,
        }
        for name, value in values.items():
            family = _family(name)
            _fill(family, value)
            yield family


def _ranked(rows: tuple[tuple[str, int], ...]) -> dict[tuple[str, str], int]:
    return {(str(rank), _printable(name)): items for rank, (name, items) in enumerate(rows, 1)}


def _printable(name: str) -> str:
    # Half of a surrogate pair cannot be encoded, and NUL ends the input for Prometheus's lexer: a
    # peer's name must not break the whole page.
    return name.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


_PREFIX: Final = "clearfunds_"

_METRICS: Final[dict[str, tuple[type[Any], str, tuple[str, ...]]]] = {
    "debt_items": (
        GaugeMetricFamily,
        "Events whose work is unfinished, over all accounts; not those at rest.",
        (),
    ),
    "debt_bytes": (
        GaugeMetricFamily,
        "Bytes of the events whose work is unfinished; not those at rest.",
        (),
    ),
    "at_rest_items": (
        GaugeMetricFamily,
        "Events that queues have put aside and owe for themselves, by where they are.",
        ("place",),
    ),
    "at_rest_bytes": (
        GaugeMetricFamily,
        "Bytes of the events that queues have put aside and owe for themselves.",
        ("place",),
    ),
    "debt_peak_items": (
        GaugeMetricFamily,
        "Highest debt in events so far, of an account without a parent.",
        (),
    ),
    "debt_peak_bytes": (
        GaugeMetricFamily,
        "Highest debt in bytes so far, of an account without a parent.",
        (),
    ),
    "debt_limit_items": (
        GaugeMetricFamily,
        "Debt in events above which readers wait, or queues put nothing more aside.",
        ("level",),
    ),
    "debt_limit_bytes": (
        GaugeMetricFamily,
        "Debt in bytes above which readers wait, or queues put nothing more aside.",
        ("level",),
    ),
    "top_debt_items": (
        GaugeMetricFamily,
        "Debt in events of the account that owes most now.",
        (),
    ),
    "top_debtor_debt_items": (
        GaugeMetricFamily,
        "Debt in events of those accounts, neither above others nor at rest, that owe most now.",
        ("rank", "account"),
    ),
    "top_holder_items": (
        GaugeMetricFamily,
        "Events that those holders have who hold most now, whoever owes; not those at rest.",
        ("rank", "holder"),
    ),
    "account_debt_items_distribution": (
        GaugeHistogramMetricFamily,
        "Present debts in events of the accounts, but for those above others or at rest.",
        (),
    ),
    "accounts": (
        GaugeMetricFamily,
        "Accounts that are open or still being paid off, but for those at rest.",
        ("state",),
    ),
    "holders": (GaugeMetricFamily, "Mailboxes, outlets and queues in which loans may sit.", ()),
    "holders_behind": (
        GaugeMetricFamily,
        "Holders that were stuck and are behind: they bound what they keep, nobody waits on them.",
        (),
    ),
    "relieved_holders_total": (
        CounterMetricFamily,
        "Slow consumers that stayed connected while messages were dropped, conflated or spilled.",
        ("policy",),
    ),
    "relieved_items_total": (
        CounterMetricFamily,
        "Events that holders which were behind could not take: put aside (spill), or dropped.",
        ("policy",),
    ),
    "relieved_bytes_total": (
        CounterMetricFamily,
        "Bytes of the events that holders which were behind could not take.",
        ("policy",),
    ),
    "oldest_loan_age_seconds": (
        GaugeMetricFamily,
        "Age of the oldest loan that is neither repaid nor at rest; 0 if there is none.",
        (),
    ),
    "waiting_readers": (GaugeMetricFamily, "Readers that wait for debt to be repaid.", ()),
    "alarm": (
        GaugeMetricFamily,
        "Whether an alarm is up that stops all who publish: 1, or 0 if it is watched and is not.",
        ("kind",),
    ),
    "rings": (
        GaugeMetricFamily,
        "Rings of readers each of which goes on only if another of them does.",
        (),
    ),
    "moving_limit_accounts": (
        GaugeMetricFamily,
        "Accounts with limits that follow the rate at which their debt is cleared, by state.",
        ("state",),
    ),
    "moving_limit_age_seconds": (
        GaugeMetricFamily,
        "How long clearing what one of these owes takes, as fast as of late; the highest.",
        (),
    ),
    "moving_limit_target_seconds": (
        GaugeMetricFamily,
        "How long that should be at most; the lowest. Nothing if no limit is moved.",
        (),
    ),
    "standing_items": (GaugeMetricFamily, "Assertions and retained messages.", ()),
    "standing_bytes": (GaugeMetricFamily, "Bytes of the assertions and retained messages.", ()),
    "borrowed_items_total": (CounterMetricFamily, "Events charged to accounts.", ()),
    "borrowed_bytes_total": (CounterMetricFamily, "Bytes charged to accounts.", ()),
    "repaid_items_total": (
        CounterMetricFamily,
        "Events delivered or discarded, by outcome.",
        ("outcome",),
    ),
    "repaid_bytes_total": (
        CounterMetricFamily,
        "Bytes delivered or discarded, by outcome.",
        ("outcome",),
    ),
    "loan_age_seconds": (
        HistogramMetricFamily,
        "How old loans were when their holders were done with them, each event counting once.",
        ("hop",),
    ),
    "fanout_copies": (
        HistogramMetricFamily,
        "Copies made of each message that was published; 0 of one that concerned nobody.",
        (),
    ),
    "throttle_events_total": (
        CounterMetricFamily,
        "Times a reader had to wait for debt to be repaid.",
        ("reason",),
    ),
    "throttled_seconds_total": (
        CounterMetricFamily,
        "Seconds that readers waited, those that wait now included.",
        ("reason",),
    ),
    "throttle_duration_seconds": (
        HistogramMetricFamily,
        "How long the waits of readers were that have ended.",
        (),
    ),
    "overshoot_items": (
        HistogramMetricFamily,
        "Events by which an account was over its limit when a reader found it so.",
        (),
    ),
    "overshoot_bytes": (
        HistogramMetricFamily,
        "Bytes by which an account was over its limit when a reader found it so.",
        (),
    ),
    "leaked_loans_total": (
        CounterMetricFamily,
        "Loans that nobody settled, found by the garbage collector.",
        (),
    ),
}
"""Type, description and labels of each metric."""

_Value = (
    float
    | None
    | Histogram
    | Mapping[str, int]
    | Mapping[str, int | None]
    | Mapping[str, float]
    | Mapping[str, Histogram]
    | Mapping[tuple[str, str], int]
)


def _family(name: str) -> Metric:
    kind, documentation, labels = _METRICS[name]
    # For a counter, prometheus_client adds `_total` to the name itself.
    family: Metric = kind(_PREFIX + name.removesuffix("_total"), documentation, labels=labels)
    return family


def _fill(family: Any, value: _Value) -> None:
    rows: Mapping[Any, Any] = value if isinstance(value, Mapping) else {(): value}
    for labels, amount in rows.items():
        names: list[str] = [labels] if isinstance(labels, str) else list(labels)
        if isinstance(amount, Histogram):
            family.add_metric(names, amount.cumulative(), amount.total)
        elif amount is not None:
            family.add_metric(names, amount)
