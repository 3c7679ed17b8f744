"""The questions of `pipeline/ledger`, and the report's own, in DuckDB's SQL.

Rule: the PySpark functions in `pipeline/ledger` and `pipeline/report` are the definition. Every
query here has the same columns, types and rows as the function of its name; tests compare both,
cell by cell. Whoever changes one changes the other.

The queries read the views that `_engine.py` makes: the journal's tables for the period, without
accounts at rest, and `delivered`, `published`, `still_open`. Amounts in `still_open` are weighted.
"""

from __future__ import annotations

import math
from typing import Final

#: As in pipeline/ledger/_hold.py.
_GROWTH: Final = 1.01

#: As `tenant_of` in pipeline/ledger/_sums.py.
_TENANT: Final = """
    case when parent is null or parent = 'server' then account
         when starts_with(parent, 'tenant/') then regexp_extract(parent, '^tenant/[^/]*')
         else parent end
"""

STILL_OPEN: Final = """
    with last as (select max(at_ns) as last_ns from open_loans),
    found as (select o.* from open_loans o join last on o.at_ns = last_ns),
    ended as (
        select account, holder, kind, sum(items * weight) as items, sum(bytes * weight) as bytes
        from settlements, last where settled_ns > last_ns and opened_ns <= last_ns
        group by all
    )
    select found.account, found.holder, found.kind,
           greatest(found.items - coalesce(ended.items, 0.0), 0.0) as items,
           greatest(found.bytes - coalesce(ended.bytes, 0.0), 0.0) as bytes,
           found.opened_ns, found.at_ns
    from found left join ended using (account, holder, kind)
"""

#: The same of all accounts together, as if they were one.
_STILL_OPEN_IN_ALL: Final = """
    with last as (select max(at_ns) as last_ns from open_loans),
    found as (
        select holder, kind, sum(items) as items, sum(bytes) as bytes,
               min(opened_ns) as opened_ns
        from open_loans join last on at_ns = last_ns group by all
    ),
    ended as (
        select holder, kind, sum(items * weight) as items, sum(bytes * weight) as bytes
        from settlements, last where settled_ns > last_ns and opened_ns <= last_ns
        group by all
    )
    select 'all' as account, greatest(found.items - coalesce(ended.items, 0.0), 0.0) as items,
           greatest(found.bytes - coalesce(ended.bytes, 0.0), 0.0) as bytes, found.opened_ns
    from found left join ended using (holder, kind)
"""

_OVERVIEW: Final = """
    select greatest(coalesce(min(opened_ns), 0), {since}) as began_ns,
           coalesce(max(settled_ns), 0) as ended_ns,
           count(*) as rows,
           coalesce(sum(items * weight), 0.0) as items,
           coalesce(sum(bytes * weight), 0.0) as bytes,
           count(distinct account) as accounts,
           count(distinct holder) as holders,
           coalesce(max(weight), 1.0) as weight
    from delivered
"""

_OUTCOMES: Final = """
    select outcome, sum(items * weight) as items, sum(bytes * weight) as bytes
    from delivered group by all
"""

_ACCOUNTS_NOW: Final = """
    select account, last.limit_items as limit_items, last.limit_bytes as limit_bytes from (
        select account,
               arg_max({{'limit_items': limit_items, 'limit_bytes': limit_bytes}}, at_ns) as last
        from (
            select account, at_ns, limit_items, limit_bytes from accounts
            union all select account, at_ns, limit_items, limit_bytes from limits
        ) group by account
    )
"""

_DEBT_OVER_TIME: Final = """
    with still as ({still}),
    changes as (
        select {account} as account, opened_ns // {step} as step,
               sum(items * weight) as items, sum(bytes * weight) as bytes
        from settlements group by all
        union all
        select {account} as account, settled_ns // {step}, -sum(items * weight),
               -sum(bytes * weight)
        from settlements group by all
        union all
        select account, opened_ns // {step}, items, bytes from still where items > 0 or bytes > 0
    ),
    sums as (
        select account, step, sum(items) as items, sum(bytes) as bytes from changes group by all
    )
    select make_timestamp((step + 1) * {step} // 1000) as at, account,
           cast(round(sum(items) over so_far) as bigint) as debt_items,
           cast(round(sum(bytes) over so_far) as bigint) as debt_bytes
    from sums window so_far as (partition by account order by step)
"""

#: Only some seconds have to be sorted: see pipeline/ledger/_debt.py.
_PEAK_DEBT: Final = """
    with changes as (
        select account, opened_ns as ns, 0 as repaid, items * weight as items,
               bytes * weight as bytes
        from settlements
        union all
        select account, settled_ns, 1, -items * weight, -bytes * weight from settlements
        union all
        select account, opened_ns, 0, items, bytes from still_open
    ),
    spans as (
        select account, ns // 1000000000 as span, sum(items) as items, sum(bytes) as bytes,
               sum(greatest(items, 0.0)) as made_items, sum(greatest(bytes, 0.0)) as made_bytes
        from changes group by all
    ),
    ends as (
        select *, sum(items) over until as end_items, sum(bytes) over until as end_bytes
        from spans window until as (partition by account order by span)
    ),
    worth as (
        select *, max(end_items) over (partition by account) as reached_items,
               max(end_bytes) over (partition by account) as reached_bytes
        from ends
    ),
    candidates as (
        select account, span, end_items - items as start_items, end_bytes - bytes as start_bytes
        from worth
        where end_items - items + made_items >= reached_items * (1 - 1e-9)
           or end_bytes - bytes + made_bytes >= reached_bytes * (1 - 1e-9)
    ),
    owed as (
        select c.account, c.ns, start_items + sum(c.items) over so_far as items,
               start_bytes + sum(c.bytes) over so_far as bytes
        from changes c join candidates d on c.account = d.account
             and c.ns // 1000000000 = d.span
        window so_far as (partition by c.account, d.span order by c.ns, c.repaid)
    ),
    most as (select account, max(items) as items, max(bytes) as bytes from owed group by account)
    select account, cast(round(most.items) as bigint) as peak_items,
           min(ns) filter (owed.items = most.items) as peak_items_at_ns,
           cast(round(most.bytes) as bigint) as peak_bytes,
           min(ns) filter (owed.bytes = most.bytes) as peak_bytes_at_ns
    from owed join most using (account)
    group by account, most.items, most.bytes
"""

_BLAME: Final = """
    select account, holder,
           sum(bytes * weight * (greatest(until_ns - opened_ns, 0) / 1e9)) as byte_seconds,
           sum(items * weight * (greatest(until_ns - opened_ns, 0) / 1e9)) as item_seconds
    from (
        select account, holder, items, bytes, weight, opened_ns, settled_ns as until_ns
        from settlements
        union all
        select account, holder, items, bytes, 1.0, opened_ns, at_ns from still_open
    )
    group by all
"""

_STALL_TIME: Final = """
    select account, culprit, count(*) as stalls, sum((ended_ns - began_ns) / 1e9) as seconds
    from stalls group by all
"""

_FAN_OUT: Final = """
    select account, topic, cast(round(came) as bigint) as published,
           cast(round(copied) as bigint) as copies,
           case when came > 0 then copied / came end as amplification
    from (
        select account, topic, sum(items * weight) as came, sum(copies * weight) as copied
        from publications group by all
    )
"""

_FAIRNESS: Final = f"""
    with by_tenant as (
        select {_TENANT} as tenant, sum(items * weight) as items, sum(bytes * weight) as bytes
        from published where outcome in ('delivered', 'acked') and kind <> 'router'
        group by all
    ),
    sums as (
        select count(*) as tenants, sum(items) as items, sum(bytes) as bytes,
               sum(items * items) as squares_items, sum(bytes * bytes) as squares_bytes
        from by_tenant
    )
    select tenants, coalesce(cast(round(items) as bigint), 0) as items,
           coalesce(cast(round(bytes) as bigint), 0) as bytes,
           case when squares_items > 0 then items * items / (tenants * squares_items) end
               as fairness_items,
           case when squares_bytes > 0 then bytes * bytes / (tenants * squares_bytes) end
               as fairness_bytes
    from sums
"""

_TENANTS: Final = f"""
    select {_TENANT} as tenant, sum(items * weight) as items, sum(bytes * weight) as bytes
    from published where outcome in ('delivered', 'acked') group by all
"""


def percentiles(table: str, by: str, at: dict[str, float]) -> str:
    """Return the query for percentiles of hold times: columns in `at` have its shares."""
    columns = ",\n".join(
        f"least(min(middle) filter (seen >= total * {share!r}), cast(any_value(most) as double)) "
        f"/ 1e6 as {name}"
        for name, share in at.items()
    )
    return f"""
        with holds as (
            select {by}, greatest(settled_ns - opened_ns, 0) as hold, items * weight as n
            from {table}
        ),
        counts as (
            select {by}, case when hold > 0 then cast(ceil(ln(hold) / {math.log(_GROWTH)!r}) as int)
                              else -1 end as bucket,
                   sum(n) as n, max(hold) as longest
            from holds group by all
        ),
        ranked as (
            select *, sum(n) over (partition by {by} order by bucket) as seen,
                   sum(n) over (partition by {by}) as total,
                   max(longest) over (partition by {by}) as most,
                   case when bucket = -1 then 0.0
                        else pow({_GROWTH!r}, bucket) * {2 / (1 + _GROWTH)!r} end as middle
            from counts
        )
        select {by}, cast(round(any_value(total)) as bigint) as items, {columns},
               any_value(most) / 1e6 as max_ms
        from ranked group by {by}
    """


def queries(step_ns: int) -> dict[str, str]:
    """Return the report's queries by table, but for `overview` and `recommended_limits`.

    Args:
        step_ns: The interval of debt over time.
    """
    each = {"account": "account", "still": "from still_open", "step": step_ns}
    whole = {"account": "'all'", "still": _STILL_OPEN_IN_ALL, "step": step_ns}
    total = _DEBT_OVER_TIME.format_map(whole)
    return {
        "outcomes": _OUTCOMES,
        "debt_over_time": _DEBT_OVER_TIME.format_map(each),
        "debt_total": f"select * exclude (account) from ({total})",
        "peak_debt": _PEAK_DEBT,
        "accounts_now": _ACCOUNTS_NOW.format(),
        "hold_percentiles": percentiles(
            "delivered", "holder, kind", {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99}
        ),
        "blame": _BLAME,
        "stall_time": _STALL_TIME,
        "fan_out": _FAN_OUT,
        "fairness": _FAIRNESS,
        "tenants": _TENANTS,
    }


def overview(since_ns: int | None) -> str:
    """Return the query for the report's first table."""
    return _OVERVIEW.format(since=0 if since_ns is None else since_ns)
