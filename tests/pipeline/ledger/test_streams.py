"""The same functions over a table that is being written: what comes out is what a batch says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from clearfunds.pipeline._errors import PipelineError
from clearfunds.pipeline.ledger import (
    Tables,
    blame,
    debt_over_time,
    fairness,
    fan_out,
    hold_percentiles,
    peak_debt,
    read,
    read_stream,
    recommended_limits,
    running_debt,
    stall_time,
)
from tests.pipeline.ledger.generated import LENGTH_NS, generate, pa, write
from tests.pipeline.ledger.test_agrees import agree, rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession


def closed(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Add to each table a row of long afterwards, with which all windows before it are over."""
    later = 10 * LENGTH_NS
    result = dict(tables)
    for name in ("settlements", "publications", "stalls"):
        last = tables[name].slice(tables[name].num_rows - 1)
        moment = last.schema.names[0]
        columns: dict[str, Any] = {each: last[each] for each in last.schema.names}
        for each in columns:
            if each.endswith("_ns"):
                columns[each] = pa.array([last[each][0].as_py() + later])
        at = last[moment].cast(pa.int64())[0].as_py() + later // 1000
        columns[moment] = pa.array([at]).cast(pa.timestamp("us", tz="UTC"))
        columns["account"] = pa.array(["(afterwards)"])
        result[name] = pa.concat_tables([tables[name], pa.table(columns, schema=last.schema)])
    return result


def drained(stream: DataFrame, folder: Path, mode: str = "append") -> Any:
    """Run a query over what is there, and return its rows."""
    name = folder.name.replace("-", "_")
    query = (
        stream.writeStream.format("memory")
        .queryName(name)
        .outputMode(mode)
        .option("checkpointLocation", str(folder))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    return rows(stream.sparkSession.table(name))


EVERY = "5 minutes"

BY_INTERVAL: dict[str, tuple[Callable[[Tables], DataFrame], list[str]]] = {
    # Two aggregates, one upon the other.
    "holds": (lambda t: hold_percentiles(t.settlements, every=EVERY), ["holder", "kind"]),
    "fairness": (lambda t: fairness(t.settlements, every=EVERY), []),
    "blame": (lambda t: blame(t.settlements, every=EVERY), ["account", "holder"]),
    "fan_out": (lambda t: fan_out(t.publications, every=EVERY), ["account", "topic"]),
    "stall_time": (lambda t: stall_time(t.stalls, every=EVERY), ["account", "culprit"]),
}


def check_windows(name: str, spark: SparkSession, folder: Path) -> None:
    journal = write(closed(generate(4_000)), folder / "journal")
    function, keys = BY_INTERVAL[name]
    expected = rows(function(read(spark, journal)))
    # The window of the row of afterwards is not over.
    expected = expected[expected["at"] < expected["at"].max()]
    assert len(expected) > 10
    told = drained(function(read_stream(spark, journal, max_files=2)), folder / name)
    agree(told, expected, ["at", *keys])


@pytest.mark.long
@pytest.mark.parametrize("name", BY_INTERVAL)
def test_windows_in_append_mode(name: str, spark: SparkSession, tmp_path: Path) -> None:
    check_windows(name, spark, tmp_path)


@pytest.mark.long
def test_totals_in_complete_mode(spark: SparkSession, tmp_path: Path) -> None:
    journal = write(generate(2_000), tmp_path / "journal")
    whole = rows(blame(read(spark, journal).settlements))
    parts = drained(blame(read_stream(spark, journal).settlements), tmp_path / "totals", "complete")
    agree(parts, whole, ["account", "holder"])


def test_running_debt_is_debt_over_time_and_its_peaks(spark: SparkSession, tmp_path: Path) -> None:
    journal = write(closed(generate(1_500)), tmp_path / "journal")
    batch, stream = read(spark, journal), read_stream(spark, journal, max_files=2)
    told = drained(running_debt(stream.settlements, "10 seconds", "1 hour"), tmp_path / "running")
    over_time = rows(debt_over_time(batch.settlements, every="10 seconds"))
    over_time = over_time[over_time["account"] != "(afterwards)"]
    agree(told[list(over_time.columns)], over_time, ["account", "at"])
    assert (told["late_items"] == 0).all()
    peaks = rows(peak_debt(batch.settlements)).set_index("account")
    for unit in ("items", "bytes"):
        order = told.sort_values(f"peak_{unit}_at_ns")
        best = order.loc[order.groupby("account")[f"peak_{unit}"].idxmax()].set_index("account")
        for name in (f"peak_{unit}", f"peak_{unit}_at_ns"):
            assert (best[name] == peaks[name].drop("(afterwards)")).all(), name


def test_what_cannot_stream_says_so(spark: SparkSession, tmp_path: Path) -> None:
    tables = read_stream(spark, tmp_path)
    settlements = tables.settlements
    with pytest.raises(PipelineError, match=r"peak debt .* stream; running_debt"):
        peak_debt(settlements)
    with pytest.raises(PipelineError, match=r"debt over time .* stream; running_debt"):
        debt_over_time(settlements)
    with pytest.raises(PipelineError, match="leave open_loans out"):
        blame(settlements, tables.open_loans)
    with pytest.raises(PipelineError, match=r"what read\(\) returns"):
        recommended_limits(settlements, target_ms=100)
    with pytest.raises(PipelineError, match="debt_over_time"):
        running_debt(read(spark, tmp_path).settlements)
