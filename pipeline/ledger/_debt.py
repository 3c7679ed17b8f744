"""Debt over time and its peak, from loans: each adds to the debt when made, until it ends.

A loan counts from the moment it was made to the moment it was repaid, both included. Events are
borrowed before the event that caused them is repaid (rule 3), so if both have the same moment, the
account owed for both. The debt is that of loans charged to the account itself. The snapshots of
statements also include the debt of the accounts below it (rule 13).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as fn

from ._columns import end_of, interval_ns, refuse_streams, weighted, whole
from ._open_loans import still_open

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_UNITS: Final = ("items", "bytes")

_SPAN_NS: Final = 10**9
"""Peaks are searched in spans of one second."""


def debt_over_time(
    settlements: DataFrame, open_loans: DataFrame | None = None, every: str = "1 second"
) -> DataFrame:
    """Return what each account owed at the end of each interval.

    Batch only; over a stream, use `running_debt`.

    Args:
        settlements: Loans that ended.
        open_loans: Snapshots of open loans; without them, loans that did not end do not count.
        every: The length of an interval, as `1 second`; intervals are counted from 1970.

    Returns:
        at (the end of the interval), account, debt_items, debt_bytes: a row for each interval in
        which a loan was made or ended. The debt stays the same until the next row.

    Raises:
        OptionError: `every` is no interval.
        PipelineError: A table is a stream.
    """
    _refuse("debt over time", settlements, open_loans)
    step = interval_ns(every)
    interval = fn.expr(f"ns div {step}")
    sums = (
        _changes(settlements, open_loans)
        .groupBy("account", interval.alias("interval"))
        .agg(fn.sum("items").alias("items"), fn.sum("bytes").alias("bytes"))
    )
    so_far = Window.partitionBy("account").orderBy("interval")
    return sums.select(
        end_of(fn.col("interval"), step).alias("at"),
        "account",
        whole(fn.sum("items").over(so_far)).alias("debt_items"),
        whole(fn.sum("bytes").over(so_far)).alias("debt_bytes"),
    )


def peak_debt(settlements: DataFrame, open_loans: DataFrame | None = None) -> DataFrame:
    """Return the exact peak of each account's debt, and when it was first reached.

    Batch only; over a stream, use `running_debt`.

    Args:
        settlements: Loans that ended.
        open_loans: Snapshots of open loans.

    Returns:
        account, peak_items, peak_items_at_ns, peak_bytes, peak_bytes_at_ns.

    Raises:
        PipelineError: A table is a stream.
    """
    _refuse("peak debt", settlements, open_loans)
    changes = _changes(settlements, open_loans).withColumn("span", fn.expr(f"ns div {_SPAN_NS}"))
    # Only some seconds have to be sorted. Within a second, the debt is at most that at its
    # beginning plus all loans made in it. If this is less than the debt at the end of another
    # second, the peak is not in it.
    spans = changes.groupBy("account", "span").agg(
        *(fn.sum(unit).alias(unit) for unit in _UNITS),
        *(fn.sum(fn.greatest(fn.col(unit), fn.lit(0.0))).alias(f"made_{unit}") for unit in _UNITS),
    )
    account = Window.partitionBy("account")
    until = account.orderBy("span")
    ends = spans.withColumns({f"end_{unit}": fn.sum(unit).over(until) for unit in _UNITS})
    worth = ends.withColumns(
        {f"reached_{unit}": fn.max(f"end_{unit}").over(account) for unit in _UNITS}
    )
    # Sums of weights that are not whole numbers differ in their last digits.
    may_be = [
        fn.col(f"end_{unit}") - fn.col(unit) + fn.col(f"made_{unit}")
        >= fn.col(f"reached_{unit}") * (1 - 1e-9)
        for unit in _UNITS
    ]
    candidates = worth.where(may_be[0] | may_be[1]).select(
        "account",
        "span",
        *((fn.col(f"end_{unit}") - fn.col(unit)).alias(f"start_{unit}") for unit in _UNITS),
    )
    so_far = Window.partitionBy("account", "span").orderBy("ns", "repaid")
    so_far = so_far.rowsBetween(Window.unboundedPreceding, Window.currentRow)

    def owed(unit: str) -> Column:
        debt = fn.col(f"start_{unit}") + fn.sum(unit).over(so_far)
        # The highest debt; the earliest of several.
        return fn.struct(debt.alias("debt"), (-fn.col("ns")).alias("early")).alias(unit)

    return (
        changes.join(fn.broadcast(candidates), ["account", "span"])
        .select("account", *(owed(unit) for unit in _UNITS))
        .groupBy("account")
        .agg(*(fn.max(unit).alias(unit) for unit in _UNITS))
        .select(
            "account",
            whole(fn.col("items.debt")).alias("peak_items"),
            (-fn.col("items.early")).alias("peak_items_at_ns"),
            whole(fn.col("bytes.debt")).alias("peak_bytes"),
            (-fn.col("bytes.early")).alias("peak_bytes_at_ns"),
        )
    )


def _refuse(what: str, settlements: DataFrame, open_loans: DataFrame | None) -> None:
    instead = "running_debt() does that, interval by interval"
    refuse_streams(what, instead, settlements, open_loans)


def _changes(settlements: DataFrame, open_loans: DataFrame | None) -> DataFrame:
    """Return account, ns, repaid (0 made, 1 ended), items and bytes, negative where repaid."""
    items, nbytes = weighted("items"), weighted("bytes")

    def change(ns: str, repaid: int, sign: int) -> Column:
        return fn.struct(
            fn.col(ns).alias("ns"),
            fn.lit(repaid).alias("repaid"),
            (items * sign).alias("items"),
            (nbytes * sign).alias("bytes"),
        )

    both = fn.array(change("opened_ns", 0, 1), change("settled_ns", 1, -1))
    changes = settlements.select("account", fn.inline(both))
    if open_loans is None:
        return changes
    made = still_open(settlements, open_loans)
    return changes.unionByName(
        made.select("account", fn.col("opened_ns").alias("ns"), fn.lit(0).alias("repaid"),
                    "items", "bytes")
    )  # fmt: skip
