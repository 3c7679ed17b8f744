"""A journal's folder as it may be found: just begun, with what else lies there, or none at all."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from clearfunds.pipeline._errors import PipelineError
from clearfunds.pipeline.journal import TABLES
from clearfunds.pipeline.ledger import fairness, peak_debt, read, read_stream, tenant_of
from tests.pipeline.ledger.generated import generate, write
from tests.pipeline.ledger.test_agrees import rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_an_empty_folder_has_all_tables_with_their_columns(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "stalls" / "date=2026-11-21").mkdir(parents=True)
    tables = read(spark, tmp_path)
    for name, table in TABLES.items():
        frame = getattr(tables, name)
        assert frame.columns == [column.name for column in table.columns]
    assert tables.stalls.isEmpty()
    assert tables.publications.isEmpty()
    assert peak_debt(tables.settlements, tables.open_loans).isEmpty()
    found = rows(fairness(tables.settlements)).iloc[0]
    assert (found["tenants"], found["items"]) == (0, 0)
    assert found.isna()["fairness_items"]


def test_what_is_hidden_or_foreign_is_passed_over(spark: SparkSession, tmp_path: Path) -> None:
    journal = write(generate(300), tmp_path / "a [journal] {1}")
    there = sorted((journal / "settlements").rglob("*.parquet"))
    expected = read(spark, journal).settlements.count()
    assert expected > 250
    half = there[0].read_bytes()[:100]
    for name in ("_part-9.parquet", ".part-9.parquet.crc", ".part-8.parquet", "notes.txt"):
        (there[0].parent / name).write_bytes(half)
    (journal / "_tmp").mkdir()
    (journal / "settlements" / "_tmp").mkdir()
    shutil.copy(there[0], journal / "settlements" / "_tmp" / "part-7.parquet")
    (journal / "settlements" / "lost+found").mkdir()
    (journal / "README").write_text("mine")
    assert read(spark, journal).settlements.count() == expected
    stream = read_stream(spark, str(journal)).settlements
    query = (
        stream.writeStream.format("memory").queryName("foreign").trigger(availableNow=True).start()
    )
    assert query.awaitTermination(60)
    assert spark.table("foreign").count() == expected


def test_a_stream_begins_before_its_table_is_there(spark: SparkSession, tmp_path: Path) -> None:
    stream = read_stream(spark, tmp_path).stalls
    query = stream.writeStream.format("memory").queryName("early").start()
    try:
        query.processAllAvailable()
        write({"stalls": generate(100)["stalls"]}, tmp_path)
        deadline = time.monotonic() + 60
        # All that had been there when it was called, which may be some of the files.
        while spark.table("early").count() < 20 and time.monotonic() < deadline:
            query.processAllAvailable()
        assert spark.table("early").count() == 20
    finally:
        query.stop()


@pytest.mark.parametrize("how", [read, read_stream])
def test_a_folder_that_is_no_journal_is_said_to_be_none(how: object, tmp_path: Path) -> None:
    assert callable(how)
    with pytest.raises(PipelineError, match=r"is not there; give the folder"):
        how(None, tmp_path / "away")
    (tmp_path / "file").write_text("")
    with pytest.raises(PipelineError, match=r"is a file, not a folder"):
        how(None, tmp_path / "file")
    with pytest.raises(PipelineError, match=r"none of its folders is one of settlements"):
        how(None, tmp_path)
    with pytest.raises(PipelineError, match=r"is not there"):
        how(None, f"file://{tmp_path}/away")


def test_users_of_a_tenant_are_one_tenant(spark: SparkSession) -> None:
    parents = {
        "mqtt:1/ann/a": "tenant/press/ann",
        "mqtt:1/bob/b": "tenant/press/bob/of/that/name",
        "mqtt:1/c/c": "tenant/press",
        "mqtt:1/c/d@press": "tenant/press",
        "mqtt:1/-/e": "tenant/shop",
        "mqtt:1/-/f": "server",
        "g": None,
        "h": "elsewhere/h",
    }
    session: Any = spark
    frame = session.createDataFrame(list(parents.items()), "account string, parent string")
    told = frame.select("account", tenant_of().alias("tenant")).collect()
    found = {row.account: row.tenant for row in told}
    assert found == {
        "mqtt:1/ann/a": "tenant/press",
        "mqtt:1/bob/b": "tenant/press",
        "mqtt:1/c/c": "tenant/press",
        "mqtt:1/c/d@press": "tenant/press",
        "mqtt:1/-/e": "tenant/shop",
        "mqtt:1/-/f": "mqtt:1/-/f",
        "g": "g",
        "h": "elsewhere/h",
    }
