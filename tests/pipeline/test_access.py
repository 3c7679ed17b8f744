"""The source and the sink with TLS, users and passwords."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from clearfunds.ranges.client import Access, RangeReader
from tests.pipeline.relays import RelayProcess
from tests.transports.certificates import papers_in
from tests.transports.mqtt.users import user_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS = 180
"""More than anything here takes on a busy machine."""


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[tuple[RelayProcess, Path]]:
    """Run a relay that asks for passwords; its last listener speaks TLS."""
    papers = papers_in(tmp_path / "papers")
    server = papers.for_server()
    users = tmp_path / "users"
    users.write_text("\n".join(user_line(user, b"secret") for user in ("press", "bank")))
    users.chmod(0o600)
    with RelayProcess(
        *("--listen", "subscribe+tls://127.0.0.1:0"),
        *("--passwords", str(users)),
        *("--tls-certificate", str(server.chain), "--tls-key", str(server.key)),
    ) as running:
        yield running, papers.trusted


def test_a_query_reads_and_writes_as_its_user(
    spark: SparkSession, relay: tuple[RelayProcess, Path], tmp_path: Path
) -> None:
    running, trusted = relay
    url = f"subscribe+tls://127.0.0.1:{running.ranges}"
    press = {"relay": url, "ca": str(trusted), "user": "press", "password": "secret"}
    bank = {**press, "user": "bank"}
    access = Access(user="press", password="secret", ca=str(trusted), tls=True)
    with RangeReader(url, None, "news", filters=["news/#"], access=access) as reader:
        columns = "concat('news/', id) as topic", "cast(cast(id as string) as binary) as value"
        rows = spark.range(20).selectExpr(*columns)
        rows.write.format("clearfunds").mode("append").options(**press).save()
        assert reader.head().next == 21
        read = spark.read.format("clearfunds").options(**press, subscription="news").load()
        assert sorted(int(row.value) for row in read.collect()) == [*range(20)]
        with pytest.raises(Exception, match="there is no subscription"):
            spark.read.format("clearfunds").options(**bank, subscription="news").load().collect()
        guess = {**press, "password": "guess"}
        with pytest.raises(Exception, match="do not agree who they are"):
            spark.read.format("clearfunds").options(**guess, subscription="news").load().collect()
        # A stream of its own, and into the sink again.
        query = (
            spark.readStream.format("clearfunds")
            .options(**press, subscription="stream", subscribe="news/#")
            .load()
            .selectExpr("concat('copy/', topic) as topic", "value")
            .writeStream.format("clearfunds")
            .options(**press)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        try:
            with RangeReader(url, None, "copies", filters=["copy/#"], access=access) as copies:
                while query.lastProgress is None:
                    assert query.awaitTermination(1) is False
                rows.write.format("clearfunds").mode("append").options(**press).save()
                for _ in range(SECONDS):
                    if copies.head().next == 21:
                        break
                    assert not query.awaitTermination(1)
                assert copies.head().next == 21
        finally:
            query.stop()
