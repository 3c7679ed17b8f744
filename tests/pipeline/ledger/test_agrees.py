"""Every function agrees, cell by cell, with an independent computation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from clearfunds.pipeline.ledger import (
    Tables,
    blame,
    debt_over_time,
    fairness,
    fan_out,
    hold_percentiles,
    peak_debt,
    read,
    stall_time,
)
from tests.pipeline.ledger import plain_sql
from tests.pipeline.ledger.generated import generate, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FUNCTIONS: dict[str, tuple[Callable[[Tables], DataFrame], list[str]]] = {
    "debt_over_time": (lambda t: debt_over_time(t.settlements, t.open_loans), ["account", "at"]),
    "peak_debt": (lambda t: peak_debt(t.settlements, t.open_loans), ["account"]),
    "hold_percentiles": (lambda t: hold_percentiles(t.settlements), ["holder", "kind"]),
    "fan_out": (lambda t: fan_out(t.publications), ["account", "topic"]),
    "blame": (lambda t: blame(t.settlements, t.open_loans), ["account", "holder"]),
    "stall_time": (lambda t: stall_time(t.stalls), ["account", "culprit"]),
    "fairness": (lambda t: fairness(t.settlements), []),
}
"""Each function, and what to order its rows by."""

APPROXIMATE = {"p50_ms": 0.005, "p90_ms": 0.005, "p99_ms": 0.005}
"""How far off these may be, as a share; in sums of seconds the last digits may differ."""


def rows(frame: DataFrame) -> Any:
    """Return what a query gives, as a `pandas.DataFrame`, whose types are no help."""
    return frame.toPandas()


def agree(ours: Any, theirs: Any, keys: list[str]) -> None:
    """Compare two data frames cell by cell."""
    assert list(ours.columns) == list(theirs.columns)
    assert len(ours) == len(theirs)
    if keys:
        ours, theirs = (f.sort_values(keys, ignore_index=True) for f in (ours, theirs))
    for name in ours.columns:
        mine, other = ours[name].to_numpy(), theirs[name].to_numpy()
        if mine.dtype.kind == "f":
            np.testing.assert_allclose(
                mine, other, rtol=APPROXIMATE.get(name, 1e-9) * 1.0001, atol=1e-9, err_msg=name
            )
        elif mine.dtype.kind == "M":
            assert (mine.astype("datetime64[us]") == other.astype("datetime64[us]")).all(), name
        else:
            assert (mine == other).all(), name


def check(spark: SparkSession, folder: Path, name: str) -> None:
    function, keys = FUNCTIONS[name]
    ours = rows(function(read(spark, folder)))
    agree(ours, plain_sql.answer(plain_sql.connect(folder), plain_sql.QUERIES[name]), keys)


@pytest.mark.long
def test_fifty_thousand_settlements(spark: SparkSession, tmp_path: Path) -> None:
    journal = write(generate(50_000), tmp_path)
    for name in FUNCTIONS:
        check(spark, journal, name)


@pytest.fixture(scope="module")
def five_million(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(generate(5_000_000), tmp_path_factory.mktemp("journal"))


@pytest.mark.long
@pytest.mark.parametrize("name", FUNCTIONS)
def test_five_million_settlements(spark: SparkSession, five_million: Path, name: str) -> None:
    check(spark, five_million, name)


@pytest.mark.long
def test_holds_of_many_groups_of_few(spark: SparkSession, five_million: Path) -> None:
    by = ("account", "holder", "outcome")
    ours = rows(hold_percentiles(read(spark, five_million).settlements, by=by))
    connection = plain_sql.connect(five_million)
    theirs = plain_sql.answer(connection, plain_sql.hold_percentiles(by))
    agree(ours, theirs, list(by))
