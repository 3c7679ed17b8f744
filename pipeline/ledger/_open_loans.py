"""Open loans. Settled loans are journalled when they settle; these appear in snapshots only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as fn

from ._columns import weighted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def still_open(settlements: DataFrame, open_loans: DataFrame) -> DataFrame:
    """Return the open loans of the last snapshot that no settlement has ended since.

    A row for each account, holder and kind: items, bytes, `opened_ns`, when the oldest of the loans
    was made, and `at_ns`, when the snapshot was begun. Settlements after the snapshot are
    subtracted, so that no loan counts twice.

    Batch only.
    """
    keys = ["account", "holder", "kind"]
    last = fn.broadcast(open_loans.agg(fn.max("at_ns").alias("last_ns")))
    found = open_loans.join(last, fn.col("at_ns") == fn.col("last_ns")).drop("last_ns")
    ended = (
        settlements.join(
            last,
            (fn.col("settled_ns") > fn.col("last_ns")) & (fn.col("opened_ns") <= fn.col("last_ns")),
        )
        .groupBy(*keys)
        .agg(
            fn.sum(weighted("items")).alias("ended_items"),
            fn.sum(weighted("bytes")).alias("ended_bytes"),
        )
    )

    def left(unit: str) -> Column:
        rest = fn.col(unit) - fn.coalesce(fn.col(f"ended_{unit}"), fn.lit(0.0))
        return fn.greatest(rest, fn.lit(0.0)).alias(unit)

    return (
        found.join(ended, keys, "left")
        .select(*keys, left("items"), left("bytes"), "opened_ns", "at_ns")
        .where((fn.col("items") > 0) | (fn.col("bytes") > 0))
    )
