"""From MQTT through Spark to MQTT, with executors in processes of their own, as on a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tests.pipeline.conftest import needs_spark
from tests.pipeline.forwarding import LIMIT, PACKET, by_topic, forwarded, peaks, subscribe
from tests.pipeline.publishers import Flood, until
from tests.pipeline.query_process import SECONDS, QueryProcess
from tests.pipeline.relays import RelayProcess
from tests.pipeline.sink.subscribers import Subscribers

pytestmark = needs_spark


@pytest.mark.long  # three JVMs on the cores of all other tests: 45 s
@pytest.mark.relay(f"--limit-items={LIMIT}")
def test_publishers_go_at_the_pace_of_a_slow_cluster(relay: RelayProcess, tmp_path: Path) -> None:
    count = 2 * LIMIT
    subscribe(relay)
    cluster = ("--master", "local-cluster[2,1,1024]")
    with (
        Subscribers(relay, repaying=True) as subscribers,
        Flood(relay.mqtt, "in/a", count, "a") as first,
        Flood(relay.mqtt, "in/b", count, "b") as second,
        QueryProcess(relay, tmp_path, "--seconds", "1", *cluster) as query,
    ):
        query.until(lambda: len(subscribers.by_ranges()) == 2 * count)
        assert [LIMIT <= peak <= LIMIT + PACKET for peak in peaks(relay, "/a", "/b")] == [True] * 2
        query.finish()
        until(lambda: subscribers.by_ranges() and query.ended, SECONDS)
        assert query.wait() is None
        until(lambda: len(subscribers.by_mqtt()) >= 2 * count)
        until(lambda: relay.ledger()["totals"]["debt"]["items"] == 0)
        assert by_topic(subscribers.by_ranges()) == forwarded(first, second)
        assert by_topic(subscribers.by_mqtt()) == forwarded(first, second)
