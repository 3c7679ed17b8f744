"""A journal that nobody recorded, of any size: for tests and benchmarks/ledger.py.

An hour of a relay with 500 accounts, of which few do most (a power law), under 20 tenants and the
server. Each publication reaches some of eight holders, quick ones and slow ones, which clear it
after times that are spread as a lognormal; a loan stands for several items where deliveries joined
it. All outcomes occur. For five minutes the journal kept one row in four. When the relay was looked
at, some loans were open; some of those ended before the record does, the others never did.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clearfunds.accounts import Outcome
from clearfunds.pipeline.journal import TABLES

if TYPE_CHECKING:
    from collections.abc import Mapping

pa: Any = import_module("pyarrow")  # without types
pq: Any = import_module("pyarrow.parquet")

BEGIN_NS = 1_760_000_000 * 10**9
LENGTH_NS = 3600 * 10**9
ACCOUNTS = 500
TENANTS = 20
HOLDERS = ("outlet/etl", "outlet/audit", "outlet/dash", "outlet/slow", "outlet/search",
           "queue/jobs", "inflight/mail", "router")  # fmt: skip
KINDS = ("outlet", "outlet", "outlet", "outlet", "outlet", "queue", "inflight", "router")
#: How likely a publication reaches each of them, and the median of how long they take, in ms.
REACHED = (0.8, 0.5, 0.5, 0.3, 0.2, 0.1, 0.1, 0.0)
MEDIAN_MS = (50.0, 10.0, 20.0, 900.0, 30.0, 5000.0, 120.0, 0.0)
FILES = 4


def _strings(values: list[str], index: Any) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array(index), pa.array(values)).cast(pa.string())


def _moments(ns: Any) -> Any:
    return pa.array(ns // 1000).cast(pa.timestamp("us", tz="UTC"))


def accounts_and_parents() -> tuple[list[str], list[str | None]]:
    """Return the accounts' names and their parents'."""
    names = [f"mqtt/tenant{i % TENANTS}/10.0.{i // 256}.{i % 256}" for i in range(ACCOUNTS)]
    parents: list[str | None] = [f"tenant{i % TENANTS}" for i in range(ACCOUNTS)]
    # Some stand directly below the server, and one below nobody.
    for i in range(0, ACCOUNTS, 7):
        parents[i] = "server"
    parents[3] = None
    return names, parents


def generate(settlements: int, seed: int = 7) -> dict[str, Any]:
    """Return all tables of such a journal, as `pyarrow.Table`s by name."""
    rng = np.random.default_rng(seed)
    names, parents = accounts_and_parents()
    events = int(settlements / sum(REACHED) * 1.04) + 50
    at = np.sort(rng.integers(0, LENGTH_NS, events)) + BEGIN_NS
    account = (rng.zipf(1.3, events) - 1) % ACCOUNTS
    size = rng.lognormal(6.5, 1.0, events).astype("int64") + 1
    run = rng.choice([1, 1, 1, 1, 2, 5, 40], events)
    reached = rng.random((events, len(HOLDERS))) < np.array(REACHED)
    reached[rng.random(events) < 0.02] = False  # nobody's
    sampled = (at - BEGIN_NS >= 600 * 10**9) & (at - BEGIN_NS < 900 * 10**9)
    weight = np.where(sampled, 4.0, 1.0)

    event, holder = np.nonzero(reached)
    event, holder = event[:settlements], holder[:settlements]
    n = len(event)
    opened = at[event]
    median = np.array(MEDIAN_MS)[holder] * 1e6
    hold = (median * rng.lognormal(0.0, 0.8, n)).astype("int64")
    hold[rng.random(n) < 0.01] = 0
    # The clock of some platforms steps: moments coincide.
    coarse = rng.random(n) < 0.05
    opened = np.where(coarse, opened // 10**6 * 10**6, opened)
    settled = np.where(coarse, (opened + hold) // 10**6 * 10**6, opened + hold)
    settled = np.maximum(settled, opened)
    outcome = rng.choice(len(Outcome), n, p=[0.8, 0.1, 0.01, 0.01, 0.01, 0.03, 0.02, 0.019, 0.001])
    parts = rng.choice([1, 1, 1, 3], n)  # deliveries that joined
    items = run[event] * parts
    looked = BEGIN_NS + LENGTH_NS - 60 * 10**9
    never = (rng.random(n) < 0.0005) & (opened < looked)
    was_open = (opened <= looked) & ((settled > looked) | never)
    keep = ~never
    order = np.argsort(settled[keep], kind="stable")

    def column(values: Any) -> Any:
        return values[keep][order]

    outcomes = [each.label for each in Outcome]
    done = {
        "settled": _moments(column(settled)),
        "opened_ns": pa.array(column(opened)),
        "settled_ns": pa.array(column(settled)),
        "account": _strings(names, column(account[event])),
        "parent": pa.array(parents).take(pa.array(column(account[event]))),
        "holder": _strings(list(HOLDERS), column(holder)),
        "kind": _strings(list(KINDS), column(holder)),
        "outcome": _strings(outcomes, column(outcome)),
        "items": pa.array(column(items)),
        "bytes": pa.array(column(items * size[event])),
        "weight": pa.array(column(weight[event])),
    }
    copies = reached.sum(axis=1) * run
    publications = {
        "at": _moments(at),
        "at_ns": pa.array(at),
        "account": _strings(names, account),
        "parent": pa.array(parents).take(pa.array(account)),
        "topic": _strings([f"plant/{i}/state" for i in range(40)], rng.integers(0, 40, events)),
        "items": pa.array(run),
        "bytes": pa.array(run * size),
        "copies": pa.array(copies),
        "copied_bytes": pa.array(copies * size),
        "weight": pa.array(weight),
    }
    return {
        "settlements": _table("settlements", done),
        "publications": _table("publications", publications),
        "open_loans": _open_loans(
            looked, names, account[event], holder, items, items * size[event], opened, was_open
        ),
        "accounts": _statements(looked, names, parents),
        "stalls": _stalls(rng, max(20, settlements // 100), names),
        "limits": _table("limits", {c.name: [] for c in TABLES["limits"].columns}),
    }


def _table(name: str, columns: Mapping[str, Any]) -> Any:
    schema = TABLES[name].schema
    return pa.table(dict(columns), schema=schema)


def _open_loans(
    looked: int, names: list[str], account: Any, holder: Any, items: Any, nbytes: Any,
    opened: Any, was_open: Any,
) -> Any:  # fmt: skip
    """Sum up the loans that were open, as a snapshot does; and a snapshot from before that."""
    loans = pa.table(
        {
            "account": _strings(names, account[was_open]),
            "holder": _strings(list(HOLDERS), holder[was_open]),
            "kind": _strings(list(KINDS), holder[was_open]),
            "items": pa.array(items[was_open]),
            "bytes": pa.array(nbytes[was_open]),
            "opened_ns": pa.array(opened[was_open]),
        }
    )
    summed = loans.group_by(["account", "holder", "kind"]).aggregate(
        [("items", "sum"), ("bytes", "sum"), ("opened_ns", "min")]
    )
    snapshots: list[Any] = []
    for at, rows in ((looked - 10 * 10**9, summed.slice(0, 5)), (looked, summed)):
        moments = np.full(rows.num_rows, at, dtype="int64")
        columns = {
            "at": _moments(moments),
            "at_ns": pa.array(moments),
            "account": rows["account"],
            "holder": rows["holder"],
            "kind": rows["kind"],
            "items": rows["items_sum"],
            "bytes": rows["bytes_sum"],
            "opened_ns": rows["opened_ns_min"],
        }
        snapshots.append(_table("open_loans", columns))
    return pa.concat_tables(snapshots)


def _statements(looked: int, names: list[str], parents: list[str | None]) -> Any:
    n = len(names)
    moments = np.full(n, looked, dtype="int64")
    return _table(
        "accounts",
        {
            "at": _moments(moments),
            "at_ns": pa.array(moments),
            "account": names,
            "parent": parents,
            "state": ["owing"] * n,
            "debt_items": [0] * n,
            "debt_bytes": [0] * n,
            "peak_items": [0] * n,
            "peak_bytes": [0] * n,
            "limit_items": [10_000 if i % 3 else None for i in range(n)],
            "limit_bytes": [8 << 20] * n,
            "at_rest": [None] * n,
        },
    )


def _stalls(rng: Any, n: int, names: list[str]) -> Any:
    began = np.sort(rng.integers(0, LENGTH_NS, n)) + BEGIN_NS
    ended = began + rng.exponential(2e8, n).astype("int64")
    order = np.argsort(ended, kind="stable")
    account = ((rng.zipf(1.3, n) - 1) % ACCOUNTS)[order]
    return _table(
        "stalls",
        {
            "ended": _moments(ended[order]),
            "began_ns": pa.array(began[order]),
            "ended_ns": pa.array(ended[order]),
            "account": _strings(names, account),
            "at_account": _strings(names, account),
            "culprit": _strings(list(HOLDERS), rng.integers(0, len(HOLDERS), n)),
            "reason": ["account"] * n,
        },
    )


def write(tables: Mapping[str, Any], folder: Path) -> Path:
    """Write tables as the journal does: folders by date and hour, some files each."""
    for name, table in tables.items():
        if not table.num_rows:
            continue
        step = -(-table.num_rows // FILES)
        for i in range(0, table.num_rows, step):
            part = table.slice(i, step)
            hour = part[TABLES[name].columns[0].name][0].as_py()
            where = folder / name / f"date={hour:%Y-%m-%d}" / f"hour={hour:%H}"
            where.mkdir(parents=True, exist_ok=True)
            file, hidden = where / f"part-{i:09}.parquet", where / "_part"
            pq.write_table(part, hidden, compression="zstd", row_group_size=500_000)
            # Streams take them in this order.
            os.utime(hidden, (hour.timestamp(), hour.timestamp()))
            hidden.rename(file)
    return folder
