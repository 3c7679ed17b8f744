"""The figures of a report from Spark, which computes them with the functions of `ledger`.

This is their definition; `pipeline/local` computes the same.
"""

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
    recommended_limits,
    stall_time,
    tenant_of,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from ..ledger import Tables

_ROUTER: Final = "router"
"""The holder of input that is being handled; its loans are not deliveries."""


@attrs.frozen
class SparkJournal:
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
        """The settlements without those of the router."""
        return self.settlements.where(f.col("kind") != _ROUTER)

    def overview(self) -> Any:
        """Return the report's table `overview`, without the interval, as a `pyarrow.Table`."""
        return _collected(_overview(self))

    def answer(self, name: str, step_ns: int, target_ms: float, margin: float) -> Any:
        """Return another table of the report, as a `pyarrow.Table`."""
        return _collected(_frame(name, self, step_ns, target_ms, margin))


def spark_journal(tables: Tables, since_ns: int | None = None) -> SparkJournal:
    """Return what answers the report's questions about these tables."""
    # Messages stored in a queue are owed for days, and no reader waits for them.
    rest = tables.accounts.where("at_rest is not null").select("account").distinct()
    names = [row["account"] for row in rest.collect()]
    on_its_way = ~f.col("account").isin(names) if names else f.lit(True)
    return SparkJournal(
        settlements=tables.settlements.where(on_its_way),
        publications=tables.publications,
        open_loans=tables.open_loans.where(on_its_way),
        stalls=tables.stalls,
        accounts=tables.accounts,
        limits=tables.limits,
        since_ns=since_ns,
    )


def _collected(frame: Any) -> Any:
    """Return a DataFrame's rows as a `pyarrow.Table`."""
    return frame.toArrow()


def _frame(
    name: str, journal: SparkJournal, step_ns: int, target_ms: float, margin: float
) -> DataFrame:
    loans, still = journal.settlements, journal.open_loans
    every = f"{step_ns // 10**6} milliseconds"
    match name:
        case "outcomes":
            return _outcomes(journal.delivered)
        case "debt_over_time":
            return debt_over_time(loans, still, every)
        case "debt_total":
            # All accounts together, as if they were one.
            one = f.lit("all").alias("account")
            loans = loans.withColumn("account", one)
            still = still.groupBy(one, "at_ns", "holder", "kind").agg(
                f.sum("items").alias("items"),
                f.sum("bytes").alias("bytes"),
                f.min("opened_ns").alias("opened_ns"),
            )
            return debt_over_time(loans, still, every).drop("account")
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


def _amount(column: str) -> Column:
    return f.coalesce(f.sum(f.col(column) * f.col("weight")), f.lit(0.0)).alias(column)


def _overview(journal: SparkJournal) -> DataFrame:
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


def _outcomes(settlements: DataFrame) -> DataFrame:
    return settlements.groupBy("outcome").agg(_amount("items"), _amount("bytes"))


def _accounts_now(journal: SparkJournal) -> DataFrame:
    """Return each account's last known limit."""
    columns = ("account", "at_ns", "limit_items", "limit_bytes")
    told = journal.accounts.select(*columns).unionByName(journal.limits.select(*columns))
    last = f.max_by(f.struct("limit_items", "limit_bytes"), "at_ns").alias("last")
    return told.groupBy("account").agg(last).select("account", "last.*")


def _published(journal: SparkJournal) -> DataFrame:
    """Return the settlements of accounts that publish; the others only owe for replies."""
    sources = f.broadcast(journal.publications.select("account").distinct())
    return journal.delivered.join(sources, "account", "left_semi")


def _tenants(settlements: DataFrame) -> DataFrame:
    done = settlements.where(f.col("outcome").isin("delivered", "acked"))
    return done.groupBy(tenant_of().alias("tenant")).agg(_amount("items"), _amount("bytes"))
