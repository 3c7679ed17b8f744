"""Debt over time and its peak, out of loans: what each adds when it is made and takes when it ends.

A loan counts from the moment it was made to the moment it was repaid, both included: what is caused
is borrowed before what caused it is repaid (rule 3), so where both are told with one moment, both
were owed for. The debt is that of loans charged to the account itself; that of the accounts below
it comes on top (rule 13), and is in the snapshots of statements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as fn

from ._columns import end_of, interval_ns, refuse_streams, weighted, whole
from ._open_loans import still_open

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SPAN_NS: Final = 60 * 10**9
"""Peaks are sought a minute of an account at a time, and then put together: an account that does
most of what there is is not one task's work."""


def debt_over_time(
    settlements: DataFrame, open_loans: DataFrame | None = None, every: str = "1 second"
) -> DataFrame:
    """Return what each account owed at the end of each interval.

    Batch only; over a stream, `running_debt`.

    Args:
        settlements: Loans that ended.
        open_loans: Snapshots of those that had not; without them, what never ended never was.
        every: How long an interval is, as `1 second`; intervals begin with 1970.

    Returns:
        at (the end of the interval), account, debt_items, debt_bytes: a row for each interval in
        which a loan was made or ended. From there on the debt is the same until the next row.

    Raises:
        OptionError: `every` is no interval.
        PipelineError: A table is a stream.
    """
    _refuse("debt over time", settlements, open_loans)
    step = interval_ns(every)
    interval = fn.floor(fn.col("ns") / fn.lit(step)) if step == 1 else fn.expr(f"ns div {step}")
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
    """Return the most that each account ever owed, exactly, and when that was first so.

    Batch only; over a stream, `running_debt`.

    Args:
        settlements: Loans that ended.
        open_loans: Snapshots of those that had not.

    Returns:
        account, peak_items, peak_items_at_ns, peak_bytes, peak_bytes_at_ns.

    Raises:
        PipelineError: A table is a stream.
    """
    _refuse("peak debt", settlements, open_loans)
    changes = _changes(settlements, open_loans).withColumn("span", fn.expr(f"ns div {_SPAN_NS}"))
    so_far = Window.partitionBy("account", "span").orderBy("ns", "repaid")
    so_far = so_far.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    running = changes.select(
        "account",
        "span",
        "ns",
        "items",
        "bytes",
        fn.sum("items").over(so_far).alias("high_items"),
        fn.sum("bytes").over(so_far).alias("high_bytes"),
    )
    spans = running.groupBy("account", "span").agg(
        fn.sum("items").alias("items"),
        fn.sum("bytes").alias("bytes"),
        _highest("high_items", "ns").alias("high_items"),
        _highest("high_bytes", "ns").alias("high_bytes"),
    )
    before = Window.partitionBy("account").orderBy("span")
    before = before.rowsBetween(Window.unboundedPreceding, -1)

    def high(unit: str) -> Column:
        owed = fn.coalesce(fn.sum(unit).over(before), fn.lit(0.0))
        top = fn.col(f"high_{unit}")
        return fn.struct((owed + top["debt"]).alias("debt"), top["early"].alias("early"))

    return (
        spans.select("account", high("items").alias("items"), high("bytes").alias("bytes"))
        .groupBy("account")
        .agg(fn.max("items").alias("items"), fn.max("bytes").alias("bytes"))
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


def _highest(debt: str, ns: str) -> Column:
    # The highest, and of several the earliest.
    return fn.max(fn.struct(fn.col(debt).alias("debt"), (-fn.col(ns)).alias("early")))


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
