"""The figures of a report: Spark computes them from a journal with the functions of `ledger`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs
from pyspark.sql import functions as f

from ..ledger import (
    blame,
    debt_over_time,
    fairness,
    fan_out,
    hold_percentiles,
    peak_debt,
    read,
    recommended_limits,
    stall_time,
    tenant_of,
)
from ._book import Book

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession

    Note = Callable[[str, int, int], None]

TABLES: Final = (
    *("overview", "outcomes", "debt_over_time", "debt_total", "peak_debt", "accounts_now"),
    *("hold_percentiles", "blame", "stall_time", "fan_out", "fairness", "tenants"),
    "recommended_limits",
)
"""The tables, in the order of computation; each is a file in the report's `tables`."""

_POINTS: Final = 240
"""Most moments of debt over time; the picture is not wider."""

_STEPS_MS: Final = (
    *(100, 200, 500, 1_000, 2_000, 5_000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000),
    *(600_000, 900_000, 1_800_000, 3_600_000, 7_200_000, 14_400_000, 43_200_000, 86_400_000),
)

_ROUTER: Final = "router"
"""The holder of input that is being handled; its loans are not deliveries."""


@attrs.frozen
class _Journal:
    """The tables of a journal, without accounts at rest, and the period that they cover."""

    settlements: DataFrame
    publications: DataFrame
    open_loans: DataFrame
    stalls: DataFrame
    accounts: DataFrame
    limits: DataFrame
    since_ns: int | None

    @property
    def delivered(self) -> DataFrame:
        return self.settlements.where(f.col("kind") != _ROUTER)


def compute(
    spark: SparkSession,
    folder: Path,
    *,
    target_ms: float,
    margin: float,
    last: float | None = None,
    note: Note = lambda _, __, ___: None,
) -> Book:
    """Compute all tables.

    Args:
        spark: The session.
        folder: The journal.
        target_ms: The target for the 99th percentile of hold times.
        margin: The share of the computed limit to recommend.
        last: Use only this many seconds up to the last settlement; None: all.
        note: Called with the table being computed, the number of tables done, and that of all.

    Raises:
        PipelineError: The folder holds no journal.
    """
    total = len(TABLES)
    note("reading the journal", 0, total)
    journal = _journal(spark, folder, last)
    overview = _collected(_overview(journal))
    (row,) = overview.to_pylist()
    step_ms = _step(row)
    overview = overview.append_column("step_ns", [[step_ms * 10**6]])
    tables: dict[str, Any] = {"overview": overview}
    for name in TABLES[1:]:
        note(name.replace("_", " "), len(tables), total)
        if row["rows"]:
            frame = _frame(name, journal, f"{step_ms} milliseconds", target_ms, margin)
            tables[name] = _collected(frame)
    note("writing", total, total)
    return Book(tables)


def _collected(frame: Any) -> Any:
    """Return a DataFrame's rows as a `pyarrow.Table`."""
    return frame.toArrow()


def _frame(name: str, journal: _Journal, every: str, target_ms: float, margin: float) -> DataFrame:
    loans, still = journal.settlements, journal.open_loans
    match name:
        case "outcomes":
            return _outcomes(journal.delivered)
        case "debt_over_time":
            return debt_over_time(loans, still, every)
        case "debt_total":
            # All accounts together, as if they were one.
            one = f.lit("all")
            both = (loans.withColumn("account", one), still.withColumn("account", one))
            return debt_over_time(*both, every).drop("account")
        case "peak_debt":
            return peak_debt(loans, still)
        case "accounts_now":
            return _accounts_now(journal)
        case "hold_percentiles":
            return hold_percentiles(journal.delivered)
        case "blame":
            return blame(loans, still)
        case "stall_time":
            return stall_time(journal.stalls)
        case "fan_out":
            return fan_out(journal.publications)
        case "fairness":
            return fairness(_published(journal))
        case "tenants":
            return _tenants(_published(journal))
        case _:
            assert name == "recommended_limits"
            return recommended_limits(
                loans,
                journal.accounts,
                journal.limits,
                journal.publications,
                target_ms=target_ms,
                margin=margin,
            )


def _journal(spark: SparkSession, folder: Path, last: float | None) -> _Journal:
    tables = read(spark, folder)
    # Messages stored in a queue are owed for days, and no reader waits for them.
    rest = tables.accounts.where("at_rest is not null").select("account").distinct()
    names = [row["account"] for row in rest.collect()]
    on_its_way = ~f.col("account").isin(names) if names else f.lit(True)
    settlements = tables.settlements.where(on_its_way)
    publications, stalls = tables.publications, tables.stalls
    since_ns: int | None = None
    if last is not None:
        end: int | None = tables.settlements.agg(f.max("settled_ns")).collect()[0][0]
        since = since_ns = 0 if end is None else end - int(last * 1e9)
        settlements = settlements.where(f.col("settled_ns") >= since)
        publications = publications.where(f.col("at_ns") >= since)
        stalls = stalls.where(f.col("ended_ns") >= since)
    return _Journal(
        settlements=settlements,
        publications=publications,
        open_loans=tables.open_loans.where(on_its_way),
        stalls=stalls,
        accounts=tables.accounts,
        limits=tables.limits,
        since_ns=since_ns,
    )


def _amount(column: str) -> Column:
    return f.coalesce(f.sum(f.col(column) * f.col("weight")), f.lit(0.0)).alias(column)


def _overview(journal: _Journal) -> DataFrame:
    began = f.coalesce(f.min("opened_ns"), f.lit(0))
    if journal.since_ns is not None:
        began = f.greatest(began, f.lit(journal.since_ns))
    return journal.delivered.agg(
        began.alias("began_ns"),
        f.coalesce(f.max("settled_ns"), f.lit(0)).alias("ended_ns"),
        f.count(f.lit(1)).alias("rows"),
        _amount("items"),
        _amount("bytes"),
        f.count_distinct("account").alias("accounts"),
        f.count_distinct("holder").alias("holders"),
        f.coalesce(f.max("weight"), f.lit(1.0)).alias("weight"),
    )


def _step(overview: dict[str, Any]) -> int:
    """Return the interval of debt over time, in milliseconds."""
    span_ms = (overview["ended_ns"] - overview["began_ns"]) / 1e6
    return next((step for step in _STEPS_MS if span_ms / step <= _POINTS), _STEPS_MS[-1])


def _outcomes(settlements: DataFrame) -> DataFrame:
    return settlements.groupBy("outcome").agg(_amount("items"), _amount("bytes"))


def _accounts_now(journal: _Journal) -> DataFrame:
    """Return each account's last known limit."""
    columns = ("account", "at_ns", "limit_items", "limit_bytes")
    told = journal.accounts.select(*columns).unionByName(journal.limits.select(*columns))
    last = f.max_by(f.struct("limit_items", "limit_bytes"), "at_ns").alias("last")
    return told.groupBy("account").agg(last).select("account", "last.*")


def _published(journal: _Journal) -> DataFrame:
    """Return the settlements of accounts that publish; the others only owe for replies."""
    sources = f.broadcast(journal.publications.select("account").distinct())
    return journal.delivered.join(sources, "account", "left_semi")


def _tenants(settlements: DataFrame) -> DataFrame:
    done = settlements.where(f.col("outcome").isin("delivered", "acked"))
    return done.groupBy(tenant_of().alias("tenant")).agg(_amount("items"), _amount("bytes"))
