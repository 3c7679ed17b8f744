"""Helpers: weighted amounts, intervals of time, and the refusal of streams."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pyspark.errors import AnalysisException
from pyspark.sql import functions as fn

from .._errors import OptionError, PipelineError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

ROUTER: Final = "router"
"""The kind of holder that has input while it is handed on; no reader waits for it."""

CLEARED: Final = ("delivered", "acked", "stored")
"""The outcomes of loans that a holder finished; with the others a loan was discarded."""

_UNITS: Final = {
    "microsecond": 10**3,
    "millisecond": 10**6,
    "second": 10**9,
    "minute": 60 * 10**9,
    "hour": 3600 * 10**9,
    "day": 86_400 * 10**9,
}


def weighted(name: str) -> Column:
    """Return an amount times the row's weight."""
    return fn.col(name) * fn.col("weight")


def whole(amount: Column) -> Column:
    """Return a sum of weighted amounts, rounded to an integer."""
    return fn.round(amount).cast("long")


def interval_ns(every: str) -> int:
    """Return the nanoseconds in `1 second`, `500 milliseconds`, `5 minutes`.

    Raises:
        OptionError: It is not such an interval.
    """
    match = re.fullmatch(r"\s*(\d+)\s*([a-z]+?)s?\s*", every)
    if match is None or match[2] not in _UNITS or int(match[1]) == 0:
        units = ", ".join(_UNITS)
        msg = f"every={every!r} is no interval; give a number and one of {units}, as '1 second'"
        raise OptionError(msg)
    return int(match[1]) * _UNITS[match[2]]


def end_of(interval: Column, step_ns: int) -> Column:
    """Return the end of the interval with that number, as a timestamp."""
    return fn.timestamp_micros((interval + 1) * fn.lit(step_ns // 1000))


def windows(time: str, every: str | None) -> list[Column]:
    """Return the columns to group by for results by interval: the window, or none."""
    return [] if every is None else [fn.window(time, every)]


def told_at(df: DataFrame, every: str | None, columns: Sequence[str]) -> DataFrame:
    """Put the end of the window, `at`, before the other columns of a result by interval."""
    if every is None:
        return df.select(*columns)
    return df.select(fn.col("window.end").alias("at"), *columns)


def _streams(table: DataFrame) -> bool:
    try:
        return table.isStreaming
    except AnalysisException as error:
        # Declarative Pipelines do not allow `isStreaming` where tables are declared; they check
        # themselves whether a result can be computed over a stream.
        if error.getCondition() != "ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION":
            raise
        return False


def refuse_streams(what: str, instead: str, *tables: DataFrame | None) -> None:
    """Refuse streaming tables, for which the result would be unsound.

    Raises:
        PipelineError: One of them is a stream.
    """
    if any(table is not None and _streams(table) for table in tables):
        msg = f"{what} cannot be computed over a stream; {instead}"
        raise PipelineError(msg)
