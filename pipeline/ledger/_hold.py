"""Hold times of loans.

Holds are counted in buckets that grow by one percent (as in DDSketch: Masson, Rim and Lee, 2019).
So a percentile is within half a percent of the exact one, whatever the spread. Counts of parts add
up to the count of the whole, so the result is the same over a stream. Weights are just counts.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as fn

from .._errors import OptionError
from ._columns import told_at, weighted, whole, windows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

GROWTH: Final = 1.01
"""A bucket's upper end as a multiple of its lower end; the error is half a percent."""

_NO_TIME: Final = -1
"""The bucket of loans held for no time."""


def hold_percentiles(
    settlements: DataFrame,
    by: Sequence[str | Column] = ("holder", "kind"),
    at: Sequence[float] = (0.5, 0.9, 0.99),
    *,
    every: str | None = None,
) -> DataFrame:
    """Return percentiles of hold times, by holder or by the columns in `by`.

    Each message counts (`items` times `weight`), not each loan. A percentile is within 0.5 % of the
    least hold that at least that share of the messages did not exceed; the maximum is exact.

    Over a stream: with `every` and in append mode, from a table with a watermark; by the interval
    in which loans ended.

    Args:
        settlements: Loans that ended.
        by: The groups; columns, or expressions with names (`fn.col("x").alias("y")`).
        at: The percentiles, as shares between 0 and 1.
        every: Group by intervals, too, as `1 minute`; `at` is then the first column.

    Returns:
        [at,] by..., items, p50_ms, p90_ms, p99_ms, max_ms. 0.999 is `p99_9_ms`.

    Raises:
        OptionError: A share is not between 0 and 1.
    """
    for share in at:
        if not 0 <= share <= 1:
            msg = f"at={share} is not between 0 and 1: give 0.99 for the 99th percentile"
            raise OptionError(msg)
    keys = [fn.col(each) if isinstance(each, str) else each for each in by]
    hold = fn.greatest(fn.col("settled_ns") - fn.col("opened_ns"), fn.lit(0))
    bucket = fn.when(hold > 0, fn.ceil(fn.log(hold) / math.log(GROWTH))).otherwise(fn.lit(_NO_TIME))
    # If all are names, the table's columns are not needed: Declarative Pipelines do not allow
    # asking for them.
    given = [each for each in by if isinstance(each, str)]
    names = given if len(given) == len(keys) else settlements.select(*keys).columns
    counted = settlements.select(
        *([fn.col("settled").alias("_settled")] if every else []),
        *keys,
        hold.alias("_hold"),
        bucket.cast("int").alias("_bucket"),
        weighted("items").alias("_items"),
    )
    counts = counted.groupBy(*windows("_settled", every), *names, "_bucket").agg(
        fn.sum("_items").alias("_items"), fn.max("_hold").alias("_max")
    )
    gathered = counts.groupBy(*(["window"] if every else []), *names).agg(
        fn.sort_array(fn.collect_list(fn.struct("_bucket", "_items"))).alias("_counts"),
        fn.sum("_items").alias("_total"),
        fn.max("_max").alias("_max"),
    )
    columns = {f"p{_percent(share)}_ms": _percentile(share) for share in at}
    result = gathered.withColumns(
        {
            **{name: value / 1e6 for name, value in columns.items()},
            "max_ms": fn.col("_max") / 1e6,
            "items": whole(fn.col("_total")),
        }
    )
    return told_at(result, every, [*names, "items", *columns, "max_ms"])


def _percent(share: float) -> str:
    return f"{round(share * 100, 6):g}".replace(".", "_")


def _percentile(share: float) -> Column:
    """Return the hold, in ns, of the first bucket in which the share is reached."""
    wanted = fn.col("_total") * fn.lit(share)
    start = fn.struct(fn.lit(0.0).alias("seen"), fn.lit(None).cast("int").alias("bucket"))

    def count(before: Column, each: Column) -> Column:
        seen = before["seen"] + each["_items"]
        reached = fn.when(seen >= wanted, each["_bucket"])
        return fn.struct(seen.alias("seen"), fn.coalesce(before["bucket"], reached).alias("bucket"))

    bucket = fn.aggregate("_counts", start, count)["bucket"]
    middle = fn.pow(fn.lit(GROWTH), bucket) * (2 / (1 + GROWTH))
    value = fn.when(bucket == fn.lit(_NO_TIME), fn.lit(0.0)).otherwise(middle)
    return fn.least(value, fn.col("_max").cast("double"))
