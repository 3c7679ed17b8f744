"""Makes `docs/metrics.md` from the collectors, so that it cannot drift::

python -m dashboards.metrics_reference > docs/metrics.md
python -m dashboards.metrics_reference --check docs/metrics.md
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import attrs

from clearfunds.access._admission import Admission
from clearfunds.access.acl import Denied
from clearfunds.access.acl._collector import DeniedCollector
from clearfunds.accounts import LIMIT_STATES, DebtCollector, Ledger, Outcome, StuckPolicy
from clearfunds.accounts._histogram import AGE_BUCKETS, BYTE_BUCKETS, COUNT_BUCKETS
from clearfunds.accounts._ledger import STATES
from clearfunds.accounts._waiters import REASONS
from clearfunds.accounts.watch._tops import TOP_MAX
from clearfunds.pages._detailed import SERIES_DEFAULT, SERIES_MAX, TABLES, TRUNCATED
from clearfunds.pages._loop_lag import LAG_BUCKETS, LoopLag
from clearfunds.pages._pages import BuildInfo
from clearfunds.pages._persistence_collector import PersistenceCollector
from clearfunds.pages._process import ProcessFigures
from clearfunds.pages._relay_collector import RelayCollector
from clearfunds.pages._unsent_collector import UnsentCollector
from clearfunds.relay._admission_collector import AdmissionCollector
from clearfunds.relay._over_limit_collector import OverLimitCollector
from clearfunds.transports.mqtt.server._over_limit import no_totals

from ._printed import print_or_check

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from prometheus_client import Metric
    from prometheus_client.registry import Collector

HEAD: Final = f"""\
# Metrics

The relay's metrics for Prometheus. `python -m dashboards.metrics_reference` makes
this page from the code; a test fails where the two differ.

*Items* are events (messages); *bytes* are their sizes. A debt always has both. Counters and
histograms only rise while the relay runs, even when an account or a connection is gone; gauges show
the present. A scrape reads all debts, loans and counters at one instant, so borrowed - repaid =
debt + at rest in each scrape. Some figures need a walk through the books: the ranks, the
distribution of debts, the oldest loan, the rings and all figures of queues. These may be some
milliseconds older. If the walk takes more than ten milliseconds, they may be up to two hundred
times as old as the walk took.

`/metrics` has as many series for ten thousand accounts as for ten. `/metrics/detailed` has series
for each account, holder, queue, member of a group and tenant. It shows only the families in
`?family=account,holder,matrix,blame,queue,group,tenant`, and with `account=PATTERN` and
`holder=PATTERN` only the names that match (as in a shell: `*` is any text, `?` any character; a
field may be given more than once), and never more than `limit=` series ({SERIES_DEFAULT:,} by
default, {SERIES_MAX:,} at most).

If the relay has `--http-token` or `--http-password`, Prometheus must send one (`authorization` or
`basic_auth` in its scrape configuration, see [security.md](security.md#the-pages)).
"""

UNITS: Final = (
    "seconds", "bytes", "items", "loans", "copies", "accounts", "holders", "readers", "rings",
    "connections", "subscriptions", "messages", "errors", "series", "events", "fds", "alarm",
    "sessions", "queues", "commits", "fsyncs", "failures", "damages", "trouble", "consumers",
    "weight", "members", "groups", "flows", "logins", "entries", "snapshots",
)  # fmt: skip
"""The last of these words in a metric's name is its unit."""

LABELS: Final = {
    "cause": "Why the relay refused a peer: `connections`, too many in all; `address`, "
    "`user` or `tenant`, too many of that one; `rate`, its address connects too often; `password`, "
    "the password was wrong; `guesses`, the password was not checked, because of earlier wrong "
    "ones; `checks`, the password was not checked, because too many checks were waiting; `other`.",
    "action": "The action that the access control list denies: `publish`; `subscribe`, if the "
    "client may read nothing that matches; `will`, to publish its will; `queued`, to receive "
    "messages that were queued before it lost its rights; `connection`, to keep the connection "
    "on which it lost them.",
    "account": "The name of an account, for example `mqtt:1883/-/publisher`: listener, user, "
    "client.",
    "holder": "The name of a holder: a connection's send buffer (outlet), which mostly has the "
    "name of its account; a mailbox; `router`, events that are being routed; `(loose)`, events "
    "that no holder has yet.",
    "hop": "The kind of holder: `outlet` (bytes for a connection's kernel), `inflight` (sent; the "
    "subscriber has not acknowledged them), `credited` (sent; a Syndicate peer has not credited "
    "them), `mailbox` (a consumer in the same process), `group` (a shared subscription), `hop` (on "
    "its way to another relay of the cluster), `remote` (a holder there, as `r2/NAME`), `router` "
    "(being routed), `input` (an incomplete packet, or input read ahead from a connection that "
    "waits).",
    "kind": "For a holder, its kind, as in `hop`; for an alarm, `memory` or `disk`.",
    "member": "The name of the account of a member of a shared subscription.",
    "level": "The account with the limit: `connection`, each connection; `server`, the whole "
    "server; `disk`, messages that queues keep on disk; `kept`, messages that queues keep in "
    "memory, in a relay without a store; `input`, unfinished input.",
    "outcome": f"How a loan ended: {', '.join(f'`{o.label}`' for o in Outcome)}.",
    "parent": "The name of the account above; empty if there is none.",
    "place": "Where the messages are: `disk`, in the store; `ram`, in memory: in a relay without a "
    "store, for a lagging consumer, or as unfinished input.",
    "policy": "The policy for a slow consumer that stays connected: "
    f"{', '.join(f'`{policy}`' for policy in StuckPolicy if policy.relieves)}; or that "
    "for a publisher above its limit: `refuse`, `shed`.",
    "rank": f"`1` for the largest, up to `{TOP_MAX}`; a rank that is not taken has no series.",
    "reason": f"Why readers wait: `{REASONS[0]}`, for the debt of their own account; "
    f"`{REASONS[1]}`, for the debt of an account above it. At either, `{REASONS[2]}`: an alarm is "
    f"up; `{REASONS[3]}`: the account is above its share of the limit above it; `{REASONS[4]}`: "
    f"more came in than the rate limit allows; `{REASONS[5]}`: a holder blocks it.",
    "result": "What became of a message above a limit: `refused`, answered with reason code 0x97 "
    "of MQTT 5; `dropped`, with QoS 1 and 2 acknowledged all the same.",
    "state": f"Of accounts, in this order: {', '.join(f'`{state}`' for state in STATES)}: owes "
    "nothing; owes something; is above its limit (high-water mark) or its share, and not yet back "
    "at its lower mark; is closed and still owes; is blocked by a holder. Of moving limits: "
    f"{', '.join(f'`{state}`' for state in LIMIT_STATES)}; see [latency-limit.md]"
    "(latency-limit.md#its-states). Of messages in queues: `ready`, not delivered yet; `unacked`, "
    "delivered and not acknowledged. Of sessions: `connected`, `away`. Of the store's bytes: "
    "`used` and `free`, of the database; `log`, its write-ahead log.",
    "tenant": "The name of a tenant; its account is `tenant/` and that name.",
    "transport": "The protocol: `mqtt`, `syndicate`.",
    "version": "The version of the package.",
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

- `rate(clearfunds_throttled_seconds_total[1m])` is the average number of readers that wait
  (backpressure): 1 means one reader that waits all the time. It includes waits that have not ended.
- `clearfunds_loan_age_seconds` counts each event when its holder is done with it, whatever the
  outcome. If deliveries share a loan, all have the age of the first. Events that left in the step
  that read them count as 0 seconds.
- `clearfunds_overshoot_items` gets an observation each time that a reader finds an account above
  its limit and waits; readers that join this wait add none. It does not count an account that is
  above its limit of bytes only; `clearfunds_overshoot_bytes` does not count one that is above its
  limit of items only.
- `clearfunds_account_debt_items_distribution` is not a counter: it shows present debts, each
  account once, and may fall. `_gcount` and `_gsum` take the place of `_count` and `_sum`.
- `clearfunds_detailed_blamed_seconds_total` is 0 for a holder that has some of an account's debt,
  but for which the account has not waited yet. The seconds of a stall are added when it ends. So
  `rate` and `increase` see a first stall, unless it began and ended between two scrapes.
- An account above others (the server's) owes for those below it. It is neither in the distribution
  nor among the ranks; `clearfunds_top_debt_items` is of all accounts.
- Messages that a queue has paged out are charged to the queue's own account, and no longer to
  their publishers. So only `clearfunds_at_rest_items` counts them; `clearfunds_debt_items`, the
  peaks, the distribution, the ranks, the accounts by state and the oldest loan do not.
  `/metrics/detailed` has them all: the accounts under `disk` (or `kept`) are those of the queues.
- The same holds for messages that are kept for a lagging consumer, a connection or a mailbox
  (`clearfunds_holders_behind`, and [patience.md](patience.md)): they are at rest in `ram`, on an
  account under `behind`. For their publisher they have ended as `stored` if they were kept, as
  `dropped` if not.
- A tenant owes for its connections: its debt is the sum of theirs. `_share_items` and
  `_share_bytes` exist only while the server's account is above its limit: see
  [fairness.md](fairness.md).
- An event is `delivered` when the kernel has taken its last byte for the peer.
  `clearfunds_kernel_unsent_bytes` are those that the kernel has not sent yet; what has left the
  machine is `rate(clearfunds_repaid_bytes_total{outcome="delivered"})` less the `deriv` of these.
- A relay with a journal also has the metrics of [ledger.md](ledger.md#the-journal).
- A relay of a cluster also has the metrics of [cluster.md](cluster.md#metrics).
- A relay with a listener for readers of ranges and writers of batches also has the metrics of
  [sinks.md](sinks.md#metrics).
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
            PersistenceCollector(None, None),
            AdmissionCollector(Admission(1), int),
            OverLimitCollector(no_totals()),
            UnsentCollector(dict),
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
    parts.append("\n## Labels\n\n| label | meaning |\n| - | - |\n")
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
    return print_or_check(reference(), arguments, "dashboards.metrics_reference", __doc__ or "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
