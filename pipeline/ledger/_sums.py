"""Sums: blocked debt by holder, stall time by culprit, fan-out by topic, and fairness."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as fn

from .._errors import PipelineError
from ._columns import ROUTER, refuse_streams, told_at, weighted, whole, windows
from ._open_loans import still_open

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SERVER: str = "server"
"""The account above all others of a relay; not a tenant."""

TENANT: str = "tenant/"
"""The prefix of the names of tenants' accounts, and of their users' (with one more / in them)."""


def tenant_of() -> Column:
    """Return the tenant of an account, by its columns `account` and `parent`.

    It is the account above. If that is a user's, as `tenant/press/ann`, it is the one above that,
    `tenant/press`. If only the server's account is above, it is the account itself.
    """
    above = fn.col("parent")
    return (
        fn.when(above.isNull() | (above == SERVER), fn.col("account"))
        .when(above.startswith(TENANT), fn.regexp_extract(above, f"^{TENANT}[^/]*", 0))
        .otherwise(above)
    )


def fan_out(publications: DataFrame, *, every: str | None = None) -> DataFrame:
    """Return the write amplification of each account's messages, by topic.

    Over a stream: in update or complete mode; with `every` in append mode, too.

    Args:
        publications: Messages that came in and were handed on. A run of messages is one row, under
            the topic of its first.
        every: Group by intervals, too, as `1 minute`; `at` is then the first column.

    Returns:
        [at,] account, topic, published, copies, amplification (copies for each one published).
    """
    sums = publications.groupBy(*windows("at", every), "account", "topic").agg(
        fn.sum(weighted("items")).alias("_items"), fn.sum(weighted("copies")).alias("_copies")
    )
    result = sums.withColumns(
        {
            "published": whole(fn.col("_items")),
            "copies": whole(fn.col("_copies")),
            "amplification": fn.when(fn.col("_items") > 0, fn.col("_copies") / fn.col("_items")),
        }
    )
    return told_at(result, every, ["account", "topic", "published", "copies", "amplification"])


def blame(
    settlements: DataFrame, open_loans: DataFrame | None = None, *, every: str | None = None
) -> DataFrame:
    """Return how much of each account's debt each holder had, for how long.

    The unit is bytes, or messages, times seconds.

    Over a stream: without `open_loans`, in update or complete mode; with `every` in append mode,
    too. A loan counts for the interval in which it ended.

    Args:
        settlements: Loans that ended.
        open_loans: Snapshots of open loans, which count up to the last snapshot.
        every: Group by intervals, too, as `1 minute`; `at` is then the first column. Not with
            `open_loans`: those have not ended.

    Returns:
        [at,] account, holder, byte_seconds, item_seconds.

    Raises:
        PipelineError: `open_loans` is given with a stream or with `every`.
    """
    loans = settlements
    if open_loans is not None:
        what = "what is still open"
        refuse_streams(what, "leave open_loans out", settlements, open_loans)
        if every is not None:
            msg = f"{what} cannot be told by interval (every=): leave open_loans out"
            raise PipelineError(msg)
        opened = still_open(settlements, open_loans)
        columns = ["account", "holder", "items", "bytes", "weight", "opened_ns", "settled_ns"]
        loans = settlements.select(*columns).unionByName(
            opened.withColumns({"weight": fn.lit(1.0), "settled_ns": fn.col("at_ns")}).select(
                *columns
            )
        )
    held = fn.greatest(fn.col("settled_ns") - fn.col("opened_ns"), fn.lit(0)) / 1e9
    sums = loans.groupBy(*windows("settled", every), "account", "holder").agg(
        fn.sum(weighted("bytes") * held).alias("byte_seconds"),
        fn.sum(weighted("items") * held).alias("item_seconds"),
    )
    return told_at(sums, every, ["account", "holder", "byte_seconds", "item_seconds"])


def stall_time(stalls: DataFrame, *, every: str | None = None) -> DataFrame:
    """Return how long each account's readers waited, by the culprit they waited for.

    Over a stream: in update or complete mode; with `every` in append mode, too.

    Args:
        stalls: Stretches of waits.
        every: Group by intervals, too, as `1 minute`, by the end of the stretch; `at` is then the
            first column.

    Returns:
        [at,] account, culprit, stalls (how many stretches), seconds.
    """
    seconds = (fn.col("ended_ns") - fn.col("began_ns")) / 1e9
    sums = stalls.groupBy(*windows("ended", every), "account", "culprit").agg(
        fn.count(fn.lit(1)).alias("stalls"), fn.sum(seconds).alias("seconds")
    )
    return told_at(sums, every, ["account", "culprit", "stalls", "seconds"])


def fairness(
    settlements: DataFrame, tenant: str | Column | None = None, *, every: str | None = None
) -> DataFrame:
    """Return Jain's fairness index of the tenants' deliveries.

    It is 1 if all tenants got as much, and 1/n if one got everything. For the amounts x of n
    tenants it is (sum of x)^2 / (n * sum of x^2) (Jain, Chiu and Hawe, 1984). Deliveries and
    acknowledgements count. The router's loans do not, nor do stored messages, which are delivered
    later.

    Over a stream: with `every` and in append mode, from a table with a watermark.

    Args:
        settlements: Loans that ended.
        tenant: The tenant of a row: a column, or an expression. By default `tenant_of()`.
        every: Group by intervals, too, as `1 minute`; `at` is then the first column. A tenant
            without deliveries in an interval is not counted in it.

    Returns:
        [at,] tenants, items, bytes, fairness_items, fairness_bytes: one row, or one an interval.
        The fairness is null if nothing was delivered.
    """
    if tenant is None:
        tenant = tenant_of()
    elif isinstance(tenant, str):
        tenant = fn.col(tenant)
    done = settlements.where(
        fn.col("outcome").isin("delivered", "acked") & (fn.col("kind") != ROUTER)
    )
    by_tenant = done.groupBy(*windows("settled", every), tenant.alias("_tenant")).agg(
        fn.sum(weighted("items")).alias("_items"), fn.sum(weighted("bytes")).alias("_bytes")
    )
    window = ["window"] if every else []
    sums = by_tenant.groupBy(*window).agg(
        fn.count(fn.lit(1)).alias("tenants"),
        fn.sum("_items").alias("_sum_items"),
        fn.sum("_bytes").alias("_sum_bytes"),
        fn.sum(fn.col("_items") * fn.col("_items")).alias("_squares_items"),
        fn.sum(fn.col("_bytes") * fn.col("_bytes")).alias("_squares_bytes"),
    )

    def index(unit: str) -> Column:
        total, squares = fn.col(f"_sum_{unit}"), fn.col(f"_squares_{unit}")
        return fn.when(squares > 0, total * total / (fn.col("tenants") * squares))

    result = sums.withColumns(
        {
            "items": fn.coalesce(whole(fn.col("_sum_items")), fn.lit(0)),
            "bytes": fn.coalesce(whole(fn.col("_sum_bytes")), fn.lit(0)),
            "fairness_items": index("items"),
            "fairness_bytes": index("bytes"),
        }
    )
    columns = ["tenants", "items", "bytes", "fairness_items", "fairness_bytes"]
    return told_at(result, every, columns)
