"""Makes `docs/metrics.md` from the collectors, so that it cannot drift::

python -m dashboards.metrics_reference > docs/metrics.md
python -m dashboards.metrics_reference --check docs/metrics.md
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from clearfunds.accounts import LIMIT_STATES, DebtCollector, Ledger, Outcome, StuckPolicy
from clearfunds.accounts._histogram import AGE_BUCKETS, BYTE_BUCKETS, COUNT_BUCKETS
from clearfunds.accounts._ledger import STATES
from clearfunds.accounts._tops import TOP_MAX
from clearfunds.accounts._waiters import REASONS
from clearfunds.pages._detailed import SERIES_DEFAULT, SERIES_MAX, TABLES, TRUNCATED
from clearfunds.pages._loop_lag import LAG_BUCKETS, LoopLag
from clearfunds.pages._pages import BuildInfo
from clearfunds.pages._persistence_collector import KeptCollector
from clearfunds.pages._process import ProcessFigures
from clearfunds.pages._relay_collector import RelayCollector
from clearfunds.relay._admission_collector import AdmissionCollector
from clearfunds.transports._admission import Admission
from clearfunds.transports.acl import Denied
from clearfunds.transports.acl._collector import DeniedCollector

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from prometheus_client import Metric
    from prometheus_client.registry import Collector

HEAD: Final = f"""\
# Metrics

The relay's metrics for Prometheus. `python -m dashboards.metrics_reference` makes
this page from the code; a test fails where the two differ.

*Items* are events (messages); *bytes* are their sizes. A debt always has both. Counters and
histograms only rise while the relay runs, also when their accounts and connections are gone; gauges
show the present. One scrape reads all debts, loans and counters at one instant, so that
borrowed - repaid = debt + at rest holds in each scrape. Figures that take a walk through the books
(the ranks, the distribution of debts, the oldest loan, the rings, all queues' figures) may be some
milliseconds older, and if the walk takes more than ten milliseconds, up to two hundred times as
long as the walk took.

`/metrics` has as many series for ten thousand accounts as for ten. `/metrics/detailed` has series
for each account, holder, queue, member of a group and tenant. It shows only the families in
`?family=account,holder,matrix,blame,queue,group,tenant`, and with `account=PATTERN` and
`holder=PATTERN` only the names that match (as in a shell: `*` is any text, `?` any character; a
field may be given more than once), and never more than `limit=` series ({SERIES_DEFAULT:,} by
default, {SERIES_MAX:,} at most).

Where the relay has `--http-token` or `--http-password`, Prometheus has to give one (`authorization`
or `basic_auth` in its scrape configuration, see [security.md](security.md#the-pages)).
"""

UNITS: Final = (
    "seconds", "bytes", "items", "loans", "copies", "accounts", "holders", "readers", "rings",
    "connections", "subscriptions", "messages", "errors", "series", "events", "fds", "alarm",
    "sessions", "queues", "segments", "commits", "batches", "fsyncs", "snapshots", "failures",
    "damages", "trouble", "consumers", "weight", "members", "groups", "flows", "logins",
)  # fmt: skip
"""The last of these words in a metric's name is its unit."""

LABELS: Final = {
    "cause": "Why somebody was not let in: there are too many `connections`, or too many of one "
    "`address`, `user` or `tenant`; its address connects too often (`rate`); its `password` was "
    "wrong, or was not looked at, because of earlier `guesses` or because too many `checks` were "
    "waited for; or `other` reasons.",
    "action": "What a client is not allowed: to `publish`; to `subscribe`, where it may read "
    "nothing that matches; that its `will` is published; to receive messages `queued` before its "
    "rights were taken away; to keep the `connection` on which that was under way.",
    "account": "The name of an account, as `mqtt:1883/-/publisher`: listener, user, client.",
    "holder": "The name of a holder: a connection's outlet, mostly called like its account; a "
    "mailbox; `router`, for events that are being routed; `(loose)`, for events not handed on yet.",
    "hop": "The kind of holder: `outlet` (bytes for a connection's kernel), `inflight` (sent, to "
    "be acknowledged by the subscriber), `credited` (sent, to be credited by a Syndicate peer), "
    "`mailbox` (a consumer in the same process), `group` (of those who share a subscription), "
    "`router` (being routed), `input` (an incomplete packet, or what is read ahead of a "
    "connection that waits).",
    "kind": "The same of one holder; of an alarm: `memory`, `disk`.",
    "member": "A member of a group that shares a subscription: the name of its account.",
    "level": "The account that has the limit: each `connection`, the whole `server`, messages that "
    "queues keep on `disk`, or in memory in a relay without a store (`kept`), or unfinished "
    "`input`.",
    "outcome": f"Why a loan ended: {', '.join(f'`{o.label}`' for o in Outcome)}.",
    "parent": "The name of the account above, or nothing.",
    "place": "Where it is kept: `disk`, in the store; `ram`, in a relay without one, for a lagging "
    "consumer, or as unfinished input.",
    "policy": "The policy for a slow consumer that stays connected: "
    f"{', '.join(f'`{policy}`' for policy in StuckPolicy if policy.relieves)}.",
    "rank": f"`1` for the largest, up to `{TOP_MAX}`; no series for a rank that nobody has.",
    "reason": f"Why readers wait: `{REASONS[0]}`, for their own account's debt; "
    f"`{REASONS[1]}`, for that of one above it; at either: `{REASONS[2]}`, while an alarm is up; "
    f"`{REASONS[3]}`, above its share of what the account above may owe; `{REASONS[4]}`, when more "
    f"came in than may; `{REASONS[5]}`, while somebody has no credit left for it.",
    "state": f"Of accounts: {', '.join(f'`{state}`' for state in STATES)}: owes nothing, owes, "
    "above its limit (or its share) and not yet at its lower mark, closed and still being paid "
    "off, without credit. Of limits that are moved: "
    f"{', '.join(f'`{state}`' for state in LIMIT_STATES)}, which [latency-limit.md]"
    "(latency-limit.md#its-states) tells of. Of messages in queues: `ready` to be delivered, "
    "`unacked`: delivered. Of sessions: `connected`, `away`. Of the store's bytes: `live`, needed, "
    "and `dead`, to be given back.",
    "tenant": "The name of a tenant; its account is called `tenant/` and that.",
    "transport": "The protocol: `mqtt`, `syndicate`.",
    "version": "Of the package.",
}
"""The meaning of each label. Peers can choose the values of names only; of these `/metrics` has
ten at a time."""

BUCKETS: Final = {
    "loan_age_seconds": AGE_BUCKETS,
    "throttle_duration_seconds": AGE_BUCKETS,
    "event_loop_lag_seconds": LAG_BUCKETS,
    "overshoot_items": COUNT_BUCKETS,
    "fanout_copies": COUNT_BUCKETS,
    "account_debt_items_distribution": COUNT_BUCKETS,
    "overshoot_bytes": BYTE_BUCKETS,
}
"""The upper bounds of each histogram's buckets, except the last, which has none."""

NOTES: Final = """\
## How to read some of them

- `rate(clearfunds_throttled_seconds_total[1m])` is how many readers wait, on average: 1 is one
  reader that waits all the time. The seconds of waits that go on are in it.
- `clearfunds_loan_age_seconds` counts each event when its holder is done with it, whatever the
  outcome. Deliveries that have joined one loan are as old as the first of them. Events that left in
  the same step that read them count as 0 seconds.
- `clearfunds_overshoot_items` has one observation for each time that an account is found above its
  limit by a reader who then waits; those who join that reader add none. What is over in bytes only
  is not in it, and the other way round.
- `clearfunds_account_debt_items_distribution` is no counter: it has the present debts, each account
  once, and may fall. `_bucket` is as in a histogram; there are `_gcount` and `_gsum`.
- `clearfunds_detailed_blamed_seconds_total` is 0 for those who hold some of an account's debt and
  have not been waited for yet. So a first stall, whose seconds come all at once when it ends, is
  seen by `rate` and `increase`, unless it began and ended between two scrapes.
- Accounts above others (the server's) owe for those below them. They are neither in the
  distribution nor among the ranks; `clearfunds_top_debt_items` is of all accounts.
- Messages that a queue has paged out are charged to the queue's own account, and no longer to
  their publishers. So they are not in `clearfunds_debt_items`, the peaks, the distribution, the
  ranks, the accounts by state or the oldest loan, but only in `clearfunds_at_rest_items`.
  `/metrics/detailed` has all of them: the accounts under `disk` (or `kept`) are the queues' own.
- The same goes for messages kept for a lagging connection or mailbox
  (`clearfunds_holders_behind`, and [patience.md](patience.md)): they are at rest, in `ram`, on an
  account under `behind`. For their publisher they have ended as `stored` if they were kept, as
  `dropped` if not.
- A tenant owes for its connections, so its debt is theirs in all. `_share_items` and `_share_bytes`
  are there only while the server's account is above its limit: see [fairness.md](fairness.md).
- A relay with a journal has those of [ledger.md](ledger.md#the-journal), too.
- A relay whose readers wait for credit (`--flow credit`) has those of
  [credit-flow.md](credit-flow.md#metrics), too.
- A relay that readers of ranges and writers of batches can connect to has those of
  [sinks.md](sinks.md#metrics), too.
"""


@attrs.frozen
class Entry:
    """One metric of the reference."""

    name: str
    """The name in the samples, without the suffixes of histograms."""
    kind: str
    labels: tuple[str, ...]
    meaning: str

    @property
    def unit(self) -> str:
        """The unit that it counts or measures.

        Raises:
            ValueError: If its name does not contain a unit.
        """
        if self.name.endswith("_info"):
            return "-"
        units = [word for word in self.name.split("_") if word in UNITS]
        if not units:
            msg = f"the name of {self.name} has no unit; rename it, or add its unit to UNITS"
            raise ValueError(msg)
        return "file descriptors" if units[-1] == "fds" else units[-1]

    def row(self) -> str:
        """Return its row in the table."""
        labels = ", ".join(f"`{label}`" for label in self.labels) or "-"
        return f"| `{self.name}` | {self.kind} | {self.unit} | {labels} | {self.meaning} |\n"


def _entry(metric: Metric | Any) -> Entry:
    name = metric.name
    if metric.type == "counter":
        name += "_total"
    labels: Sequence[str] = getattr(metric, "_labelnames", ())
    if metric.type == "info":
        name += "_info"
        labels = sorted(metric.samples[0].labels)
    kind = {"gaugehistogram": "gauge histogram"}.get(metric.type, metric.type)
    return Entry(name, kind, tuple(labels), metric.documentation)


def entries(collectors: Iterable[Collector]) -> list[Entry]:
    """Return the metrics of collectors, in their order."""
    return [_entry(m) for each in collectors for m in each.collect()]


def totals() -> list[Entry]:
    """Return the metrics of `/metrics`, except those of the process."""
    return entries(
        [
            DebtCollector(Ledger()),
            RelayCollector(dict),
            KeptCollector(None, None),
            AdmissionCollector(Admission(1), int),
            DeniedCollector(Denied()),
            LoopLag(),
            BuildInfo(),
        ]
    )


def detailed() -> dict[str, list[Entry]]:
    """Return the metrics of `/metrics/detailed`, by family."""
    pages = {
        name: [
            Entry(family.name, family.kind, family.labels, family.documentation)
            for families, _ in tables
            for family in families
        ]
        for name, tables in TABLES.items()
    }
    last = Entry(TRUNCATED.name, TRUNCATED.kind, TRUNCATED.labels, TRUNCATED.documentation)
    return {**pages, "": [last]}


def _table(rows: Iterable[Entry]) -> str:
    head = "| metric | type | unit | labels | meaning |\n| - | - | - | - | - |\n"
    return head + "".join(row.row() for row in rows)


def reference() -> str:
    """Return the text of `docs/metrics.md`.

    Raises:
        KeyError: If a label, or a histogram's buckets, are not described here.
        ValueError: If a metric's name has no unit.
    """
    here, pages = totals(), detailed()
    every = [*here, *(entry for page in pages.values() for entry in page)]
    parts = [HEAD, "\n## `/metrics`\n\n", _table(here)]
    parts.append("\nAnd of the process, where there is a `/proc`:\n\n")
    parts.append(_table(entries([ProcessFigures()])))
    parts.append("\n## `/metrics/detailed`\n")
    for name, rows in pages.items():
        parts.append(f"\n`family={name}`:\n\n" if name else "\nOn each page:\n\n")
        parts.append(_table(rows))
    parts.append("\n## Labels\n\n| label | what it says |\n| - | - |\n")
    for label in sorted({label for entry in every for label in entry.labels}):
        parts.append(f"| `{label}` | {LABELS[label]} |\n")
    parts.append("\n## Buckets\n\n| histogram | upper bounds, beside `+Inf` |\n| - | - |\n")
    for entry in here:
        if "histogram" in entry.kind:
            bounds = BUCKETS[entry.name.removeprefix("clearfunds_")]
            shown = ", ".join(f"{bound:,g}" if bound < 1 else f"{bound:,.15g}" for bound in bounds)
            parts.append(f"| `{entry.name}` | {shown} |\n")
    parts.append(f"\n{NOTES}")
    return "".join(parts)


def main(arguments: Sequence[str]) -> int:
    """Print the reference, or compare it with a file; return the exit status."""
    text = reference()
    if not arguments:
        sys.stdout.write(text)
        return 0
    if len(arguments) != 2 or arguments[0] != "--check":
        sys.stderr.write(__doc__ or "")
        return 2
    path = Path(arguments[1])
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return 0
    sys.stderr.write(
        f"{path} is not up to date; write it again: "
        f"python -m dashboards.metrics_reference > {path}\n"
    )
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
