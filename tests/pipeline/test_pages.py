"""The parts of programs in docs/spark.md and docs/ledger.md, with a relay and a journal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from clearfunds.ranges.client import RangeReader
from tests.docs.blocks import code_of
from tests.pipeline.ledger.generated import generate, write
from tests.pipeline.ledger.test_streams import closed
from tests.pipeline.publishers import until
from tests.pipeline.sink.subscribers import Subscribers
from tests.pipeline.source.queries import publish

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.pipeline.relays import RelayProcess

pytestmark = pytest.mark.long


def run(code: str, names: dict[str, Any]) -> None:
    exec(code, names)  # noqa: S102 - the page's own


def test_a_query_that_writes_a_batch_and_a_job(
    spark: SparkSession, relay: RelayProcess, tmp_path: Path
) -> None:
    where = {"127.0.0.1:7700": f"127.0.0.1:{relay.ranges}"}
    RangeReader("127.0.0.1", relay.ranges, "readings", filters=["plant/#"]).close()
    publish(relay.mqtt, [b"95"], "plant/1")
    names: dict[str, Any] = {"spark": spark}
    run(code_of("spark.md", 5), names)

    run("readings = " + code_of("spark.md", 2, changes=where), names)
    (row,) = names["readings"].collect()
    assert (row.topic, bytes(row.value)) == ("plant/1", b"95")

    with Subscribers(relay, "alarms/#") as subscribers:
        stream = spark.readStream.format("clearfunds").option("url", where["127.0.0.1:7700"])
        names["alarms"] = (
            stream.option("subscription", "readings")
            .load()
            .selectExpr("replace(topic, 'plant', 'alarms') AS topic", "value")
        )
        places = {"checkpoints/alarms": str(tmp_path / "alarms")}
        run(code_of("spark.md", 3, changes={**where, **places}), names)
        try:
            until(subscribers.by_mqtt)
        finally:
            names["query"].stop()
        assert subscribers.by_mqtt() == [("alarms/1", b"95")]

    with Subscribers(relay, "means/#") as subscribers:
        names["means"] = spark.sql("SELECT 'means/1' AS topic, '20.5' AS value")
        job = code_of("spark.md", 4, changes=where)
        run(job, names)
        run(job, names)  # of one writer each batch is taken once
        publish(relay.mqtt, [b"the end"], "means/1")
        until(lambda: len(subscribers.by_mqtt()) > 1)
        assert subscribers.by_mqtt() == [("means/1", b"20.5"), ("means/1", b"the end")]


def test_a_journal_is_read(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    journal = write(closed(generate(300)), tmp_path / "journal")
    monkeypatch.setattr(sys, "argv", ["program", str(journal)])
    run(code_of("ledger.md", 1), {})
    shown = capsys.readouterr().out
    for column in ("peak_bytes", "p99_ms", "byte_seconds"):
        assert column in shown
    assert shown.count("outlet/etl") > 1
    stream = code_of(
        "ledger.md",
        2,
        changes={
            '"console"': '"memory").queryName("holds"',
            ".start()": ".trigger(availableNow=True).start()",
        },
    )
    run(stream, {})
    assert {"outlet/etl"} <= {row.holder for row in spark.table("holds").collect()}
