"""What the ledger's functions say, from plain definitions, by DuckDB: an independent computation.

Each answer is its definition: a loan is alive from its opening to its settlement, both included; a
debt is the sum of what is alive; a percentile is a row in an ordered list. Nothing here knows how
the functions go about it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import duckdb

if TYPE_CHECKING:
    from pathlib import Path

    from duckdb import DuckDBPyConnection

SECOND = 1_000_000_000

#: What the last snapshot found, less what of it ended afterwards: as loans that never end.
LEFT = """
    with newest as (select * from open_loans where at_ns = (select max(at_ns) from open_loans)),
    gone as (
        select s.account, s.holder, s.kind,
               sum(s.items * s.weight) items, sum(s.bytes * s.weight) bytes
        from settlements s
        where s.opened_ns <= (select max(at_ns) from open_loans)
          and s.settled_ns > (select max(at_ns) from open_loans)
        group by all
    )
    select n.account, n.holder, n.kind, n.opened_ns, n.at_ns,
           greatest(n.items - coalesce(g.items, 0), 0) items,
           greatest(n.bytes - coalesce(g.bytes, 0), 0) bytes
    from newest n left join gone g
      on n.account = g.account and n.holder = g.holder and n.kind = g.kind
"""

ALL_LOANS = """
    select account, opened_ns, settled_ns, items * weight items, bytes * weight bytes
    from settlements
    union all
    select account, opened_ns, null, items, bytes from left_open
    where items > 0 or bytes > 0
"""

#: What had been borrowed before a moment, less what had been repaid before it; looked up at each
#: second in which something happened.
DEBT_OVER_TIME = f"""
    with borrowed as (
        select account, opened_ns ns, sum(items) items, sum(bytes) bytes from loans group by all
    ),
    repaid as (
        select account, settled_ns ns, sum(items) items, sum(bytes) bytes from loans
        where settled_ns is not null group by all
    ),
    up as (
        select account, ns, sum(items) over w items, sum(bytes) over w bytes from borrowed
        window w as (partition by account order by ns)
    ),
    down as (
        select account, ns, sum(items) over w items, sum(bytes) over w bytes from repaid
        window w as (partition by account order by ns)
    ),
    ends as (
        select account, (opened_ns // {SECOND} + 1) * {SECOND} ns from loans
        union
        select account, (settled_ns // {SECOND} + 1) * {SECOND} from loans
        where settled_ns is not null
    )
    select make_timestamp(e.ns // 1000) as "at", e.account,
           cast(coalesce(up.items, 0) - coalesce(down.items, 0) as bigint) debt_items,
           cast(coalesce(up.bytes, 0) - coalesce(down.bytes, 0) as bigint) debt_bytes
    from ends e
    asof left join up on e.account = up.account and e.ns > up.ns
    asof left join down on e.account = down.account and e.ns > down.ns
    order by e.account, e.ns
"""

#: The debt is highest at some moment when something was borrowed: all that was opened by then,
#: less what had been settled before.
PEAK_DEBT = """
    with borrowed as (
        select account, opened_ns ns, sum(items) items, sum(bytes) bytes from loans group by all
    ),
    repaid as (
        select account, settled_ns ns, sum(items) items, sum(bytes) bytes from loans
        where settled_ns is not null group by all
    ),
    up as (
        select account, ns, sum(items) over w items, sum(bytes) over w bytes from borrowed
        window w as (partition by account order by ns)
    ),
    down as (
        select account, ns, sum(items) over w items, sum(bytes) over w bytes from repaid
        window w as (partition by account order by ns)
    ),
    owed as (
        select up.account, up.ns, up.items - coalesce(down.items, 0) items,
               up.bytes - coalesce(down.bytes, 0) bytes
        from up asof left join down on up.account = down.account and up.ns > down.ns
    ),
    most as (select account, max(items) items, max(bytes) bytes from owed group by all)
    select m.account,
           cast(m.items as bigint) peak_items,
           min(o.ns) filter (where o.items = m.items) peak_items_at_ns,
           cast(m.bytes as bigint) peak_bytes,
           min(o.ns) filter (where o.bytes = m.bytes) peak_bytes_at_ns
    from most m join owed o on o.account = m.account
    group by m.account, m.items, m.bytes
    order by m.account
"""


def hold_percentiles(by: tuple[str, ...]) -> str:
    """Return the query: the least hold with which that share of the messages is reached."""
    keys = ", ".join(by)
    return f"""
        with holds as (
            select {keys}, greatest(settled_ns - opened_ns, 0) as hold, sum(items * weight) n
            from settlements group by all
        ),
        ranked as (
            select *, sum(n) over (partition by {keys} order by hold) seen,
                   sum(n) over (partition by {keys}) total
            from holds
        )
        select {keys}, cast(any_value(total) as bigint) items,
               min(hold) filter (where seen >= total * 0.5) / 1e6 p50_ms,
               min(hold) filter (where seen >= total * 0.9) / 1e6 p90_ms,
               min(hold) filter (where seen >= total * 0.99) / 1e6 p99_ms,
               max(hold) / 1e6 max_ms
        from ranked group by {keys} order by {keys}
    """


FAN_OUT = """
    select account, topic, cast(sum(items * weight) as bigint) published,
           cast(sum(copies * weight) as bigint) copies,
           sum(copies * weight) / sum(items * weight) amplification
    from publications group by all order by account, topic
"""

BLAME = """
    select account, holder, sum(bytes * (until - opened_ns) / 1e9) byte_seconds,
           sum(items * (until - opened_ns) / 1e9) item_seconds
    from (
        select account, holder, opened_ns, settled_ns as until, items * weight items,
               bytes * weight bytes from settlements
        union all
        select account, holder, opened_ns, at_ns, items, bytes from left_open
        where items > 0 or bytes > 0
    )
    group by all order by account, holder
"""

STALL_TIME = """
    select account, culprit, count(*) stalls, sum(ended_ns - began_ns) / 1e9 as "seconds"
    from stalls group by all order by account, culprit
"""

FAIRNESS = """
    select count(*) tenants, cast(sum(items) as bigint) items, cast(sum(bytes) as bigint) bytes,
           pow(sum(items), 2) / (count(*) * sum(pow(items, 2))) fairness_items,
           pow(sum(bytes), 2) / (count(*) * sum(pow(bytes, 2))) fairness_bytes
    from (
        select case when parent is null or parent = 'server' then account else parent end tenant,
               sum(items * weight) items, sum(bytes * weight) bytes
        from settlements
        where outcome in ('delivered', 'acked') and kind <> 'router'
        group by all
    )
"""

QUERIES = {
    "debt_over_time": DEBT_OVER_TIME,
    "peak_debt": PEAK_DEBT,
    "hold_percentiles": hold_percentiles(("holder", "kind")),
    "fan_out": FAN_OUT,
    "blame": BLAME,
    "stall_time": STALL_TIME,
    "fairness": FAIRNESS,
}
"""By the name of the function that says the same."""


def connect(folder: Path, threads: int = 2) -> DuckDBPyConnection:
    """Return a connection with the tables of a journal as views."""
    connection = duckdb.connect()
    connection.execute(f"set threads = {threads}")
    connection.execute("set TimeZone = 'UTC'")
    for table in ("settlements", "publications", "open_loans", "accounts", "stalls"):
        connection.execute(
            f"create view {table} as select * from "
            f"read_parquet('{folder}/{table}/*/*/*.parquet', hive_partitioning = false)"
        )
    connection.execute(f"create view left_open as {LEFT}")
    connection.execute(f"create view loans as {ALL_LOANS}")
    return connection


def answer(connection: DuckDBPyConnection, query: str) -> Any:
    """Return what a query says, as a `pandas.DataFrame`."""
    return connection.execute(query).df()
