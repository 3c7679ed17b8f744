"""`recommended_limits` in DuckDB's SQL; pipeline/ledger/_limits.py has the reasons."""

from __future__ import annotations

from ._questions import percentiles

#: As in pipeline/ledger: CLEARED, ROUTER, MIN_ITEMS, INNOCENT, DEFAULT_LOW.
_CLEARED = "outcome in ('delivered', 'acked', 'stored') and kind <> 'router'"


def recommended_limits(target_ms: float, margin: float, wake_ms: float = 10.0) -> str:
    """Return the query; its arguments are those of the function of that name."""
    holds = percentiles("cleared", "account, holder", {"p99_ms": 0.99})
    return f"""
        with cleared as (
            select *, greatest(settled_ns - opened_ns, 0) as hold_ns from settlements
            where {_CLEARED}
        ),
        holds as (select account, holder, items, p99_ms from ({holds})),
        shortest as (
            select account, holder, min(hold_ns) / 1e9 as shortest_s,
                   max(bytes / nullif(items, 0)) as size
            from cleared group by all
        ),
        begun as (
            select account, holder, opened_ns, settled_ns, hold_ns, items * weight as items,
                   bytes * weight as bytes,
                   coalesce(opened_ns > max(settled_ns) over (
                       partition by account, holder order by opened_ns, settled_ns
                       rows between unbounded preceding and 1 preceding), true) as begins
            from cleared where hold_ns > {target_ms * 1e6!r}
        ),
        numbered as (
            select *, sum(cast(begins as int)) over (
                partition by account, holder order by opened_ns, settled_ns
                rows between unbounded preceding and current row) as stretch
            from begun
        ),
        stretches as (
            select account, holder, (max(settled_ns) - min(opened_ns)) / 1e9 as seconds,
                   sum(items) as items, sum(bytes) as bytes, sum(items * hold_ns / 1e9) as item_s
            from numbered group by account, holder, stretch
        ),
        busy as (
            select *, greatest(seconds - {target_ms / 1e3!r}, seconds / 2) as busy from stretches
        ),
        late as (
            select account, holder, sum(item_s) as late_item_s,
                   sum(items) / nullif(sum(busy), 0) as late_items_per_s,
                   sum(bytes) / nullif(sum(busy), 0) as late_bytes_per_s,
                   sum(item_s) / nullif(sum(items), 0) * 1e3 as late_mean_ms
            from busy group by all
        ),
        at_holders as (
            select h.*, s.shortest_s, s.size, l.* exclude (account, holder),
                   coalesce(
                       h.p99_ms > {target_ms!r} and h.items >= 100
                       and l.late_item_s * count(l.late_item_s) over (partition by h.holder)
                           >= sum(l.late_item_s) over (partition by h.holder) * 0.1,
                       false) as too_long
            from holds h join shortest s using (account, holder)
                 left join late l using (account, holder)
        ),
        last as (
            select account, arg_max({{'items': limit_items, 'bytes': limit_bytes}}, at_ns) as now,
                   max(at_rest) as at_rest
            from accounts group by account
        ),
        marks as (
            select account, arg_max({{'items': low_items / nullif(limit_items, 0),
                                      'bytes': low_bytes / nullif(limit_bytes, 0)}}, at_ns) as low
            from limits group by account
        ),
        told as (
            select account, max(copies / items) as items, max(copied_bytes / items) as bytes
            from publications where items > 0 group by account
        ),
        present as (
            select a.*, last.now.items as now_items, last.now.bytes as now_bytes,
                   greatest(coalesce(marks.low.items, 0.5), 0.05) as low_items,
                   greatest(coalesce(marks.low.bytes, 0.5), 0.05) as low_bytes
            from at_holders a left join last using (account) left join marks using (account)
            where last.at_rest is null
        ),
        known as (
            select p.*,
                   coalesce(told.items, count(holder) over (partition by account)) as fan_items,
                   coalesce(told.bytes, count(holder) over (partition by account)
                            * max(size) over (partition by account)) as fan_bytes
            from present p left join told using (account)
        ),
        computed as (
            select *, {_arithmetic("items", target_ms, margin, wake_ms)},
                   {_arithmetic("bytes", target_ms, margin, wake_ms)}
            from known
        ),
        decided as (
            select *,
                   row_number() over (
                       partition by account order by too_long desc,
                       coalesce(wanted_bytes, 0.0), p99_ms desc, holder) as place,
                   min(wanted_items) over (partition by account) as want_items,
                   min(wanted_bytes) over (partition by account) as want_bytes,
                   max(floor_items) over (partition by account) as least_items,
                   max(floor_bytes) over (partition by account) as least_bytes
            from computed
        ),
        new as (
            select *, cast(ceil(greatest(want_items, least_items)) as bigint) as new_items,
                   cast(ceil(greatest(want_bytes, least_bytes)) as bigint) as new_bytes
            from decided where place = 1
        )
        select account, holder, items_per_s, bytes_per_s, p99_ms,
               case when too_long then least(new_items, now_items) else now_items end
                   as limit_items,
               case when too_long then least(new_bytes, now_bytes) else now_bytes end
                   as limit_bytes,
               case when not too_long then 'keep'
                    when least_items > want_items or least_bytes > want_bytes then 'floor'
                    when now_items is null or new_items < now_items or now_bytes is null
                         or new_bytes < now_bytes then 'lower'
                    else 'keep' end as advice
        from new
    """


def _arithmetic(unit: str, target_ms: float, margin: float, wake_ms: float) -> str:
    rate = f"case when too_long then late_{unit}_per_s end"
    swing = f"late_mean_ms / nullif(p99_ms * (1 + low_{unit}) / 2, 0)"
    return f"""
        {rate} as {unit}_per_s,
        ({rate}) * least({swing}, 1.0) * {target_ms / 1e3 * margin!r} as wanted_{unit},
        fan_{unit} + ({rate}) * ((shortest_s + {wake_ms / 1e3!r}) / low_{unit}) as floor_{unit}
    """
