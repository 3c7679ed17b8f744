"""What is summed up: who held whose debt, who kept whom waiting, what one message became."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as fn

from .._errors import PipelineError
from ._columns import ROUTER, refuse_streams, told_at, weighted, whole, windows
from ._open_loans import still_open

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SERVER: str = "server"
"""The account above all others of a relay; no tenant."""

TENANT: str = "tenant/"
"""How the names of tenants' accounts begin, and of their users', which have one more / in them."""


def tenant_of() -> Column:
    """Return the tenant of an account, by its columns `account` and `parent`.

    It is the account above. Where a tenant's users have accounts, `tenant/press/ann`, it is the one
    above that, `tenant/press`; where there is none but the server's, it is the account itself.
    """
    above = fn.col("parent")
    return (
        fn.when(above.isNull() | (above == SERVER), fn.col("account"))
        .when(above.startswith(TENANT), fn.regexp_extract(above, f"^{TENANT}[^/]*", 0))
        .otherwise(above)
    )


def fan_out(publications: DataFrame, *, every: str | None = None) -> DataFrame:
    """Return how many messages each account's messages became, by topic.

    Over a stream: in update or complete mode; with `every` in append mode, too.

    Args:
        publications: What came in and was handed on. A run of messages is one row, under the
            topic of its first.
        every: Tell intervals apart, too, as `1 minute`; `at` is then the first column.

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
    """Return who held how much of whose debt for how long: bytes, and messages, times seconds.

    Over a stream: without `open_loans`, in update or complete mode; with `every` in append mode,
    too. A loan counts for the interval in which it ended.

    Args:
        settlements: Loans that ended.
        open_loans: Snapshots of those that had not, which count up to the last snapshot.
        every: Tell intervals apart, too, as `1 minute`; `at` is then the first column. Not with
            `open_loans`: those have not ended.

    Returns:
        [at,] account, holder, byte_seconds, item_seconds.

    Raises:
        PipelineError: There are `open_loans`, and one of the tables is a stream, or `every` given.
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
    """Return how long each account's readers stood still, by whom they waited for.

    Over a stream: in update or complete mode; with `every` in append mode, too.

    Args:
        stalls: Stretches of waits.
        every: Tell intervals apart, too, as `1 minute`, by when the stretch ended; `at` is then
            the first column.

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
    """Return Jain's index over what tenants had delivered: 1 is alike, 1/n is one for itself.

    For the amounts x of n tenants it is (sum of x)^2 / (n * sum of x^2) (Jain, Chiu and Hawe,
    1984). What was delivered or acknowledged counts; not what the router had, nor what was stored,
    which is delivered later.

    Over a stream: with `every` and in append mode, from a table with a watermark.

    Args:
        settlements: Loans that ended.
        tenant: Who is who: a column, or an expression. By default `tenant_of()`.
        every: Tell intervals apart, too, as `1 minute`; `at` is then the first column. A tenant
            for whom nothing was delivered in an interval is not among its tenants.

    Returns:
        [at,] tenants, items, bytes, fairness_items, fairness_bytes: one row, or one an interval.
        None where nothing was delivered.
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
