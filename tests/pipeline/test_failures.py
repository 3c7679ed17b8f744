"""From MQTT through Spark to MQTT, and what is killed meanwhile: no row is lost, none doubled.

That a batch fails and is written again, once, is in `sink/test_spark_sink.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tests.pipeline.conftest import needs_spark
from tests.pipeline.forwarding import (
    LIMIT,
    PACKET,
    by_topic,
    drain,
    forwarded,
    names,
    peaks,
    subscribe,
)
from tests.pipeline.publishers import Flood
from tests.pipeline.query_process import FAILING, QueryProcess
from tests.pipeline.relays import RelayProcess
from tests.pipeline.sink.subscribers import Subscribers
from tests.pipeline.source.queries import publish

pytestmark = [
    pytest.mark.long,
    needs_spark,
]


def _has_run(query: QueryProcess, subscribers: Subscribers) -> bool:
    subscribers.by_ranges()  # which repays the query, or it would wait for that
    return query.has_run()


@pytest.mark.relay(f"--limit-items={LIMIT}")
def test_a_query_is_killed(relay: RelayProcess, tmp_path: Path) -> None:
    count = 2 * LIMIT
    subscribe(relay)
    with (
        Subscribers(relay, repaying=True) as subscribers,
        Flood(relay.mqtt, "in/a", count, "a") as first,
        Flood(relay.mqtt, "in/b", count, "b") as second,
    ):
        with QueryProcess(relay, tmp_path, "--seconds", "0.3") as query:
            # In the middle of a batch, as like as not.
            query.until(lambda: _has_run(query, subscribers))
        with QueryProcess(relay, tmp_path) as query:
            query.until(lambda: len(subscribers.by_ranges()) == 2 * count)
        drain(relay, tmp_path, subscribers, 2 * count)
        assert by_topic(subscribers.by_ranges()) == forwarded(first, second)
        assert by_topic(subscribers.by_mqtt()) == forwarded(first, second)
        assert max(peaks(relay, "/a", "/b")) <= LIMIT + PACKET
        # What Spark publishes goes to a client and to a subscription.
        (writer,) = [name for name in names(relay) if name.startswith("sink/")]
        assert LIMIT <= peaks(relay, writer)[0] <= LIMIT + PACKET + 1


def test_the_process_that_asks_the_relay_is_killed(relay: RelayProcess, tmp_path: Path) -> None:
    values = [b"%d" % number for number in range(200)]
    subscribe(relay)
    with Subscribers(relay, repaying=True) as subscribers:
        publish(relay.mqtt, values[:100], "in/a")
        with QueryProcess(relay, tmp_path, "--seconds", "0.3") as query:
            query.until(query.has_run)
            query.kill_runner()
            publish(relay.mqtt, values[100:], "in/a")
            assert query.wait() is not None
        drain(relay, tmp_path, subscribers, len(values))
        subscribers.expect([("out/a", value) for value in values])


def test_a_task_that_fails_is_run_again(relay: RelayProcess, tmp_path: Path) -> None:
    values = [b"%d" % number for number in range(200)]
    subscribe(relay)
    with Subscribers(relay, repaying=True) as subscribers:
        publish(relay.mqtt, values, "in/a")
        (tmp_path / FAILING).touch()
        # The query does not see it: two attempts at each task.
        drain(relay, tmp_path, subscribers, len(values), "--master", "local[2,2]")
        assert not (tmp_path / FAILING).exists()
        subscribers.expect([("out/a", value) for value in values])


def test_a_relay_with_a_store_is_killed(tmp_path: Path) -> None:
    store = ("--store", str(tmp_path / "store"))
    values = [b"%d" % number for number in range(1_000)]
    with RelayProcess(*store) as relay, Subscribers(relay, durable=True) as subscribers:
        subscribe(relay, durable=True)
        publish(relay.mqtt, values[:500], "in/a")
        with QueryProcess(relay, tmp_path, "--seconds", "0.2") as query:
            query.until(query.has_run)
            relay.kill()
            with RelayProcess(*store, mqtt=relay.mqtt, ranges=relay.ranges) as relay:
                publish(relay.mqtt, values[500:], "in/a")
                query.until(lambda: len(query.batches) > 1)
                query.kill()
                relay.kill()
                with RelayProcess(*store, mqtt=relay.mqtt, ranges=relay.ranges) as relay:
                    with QueryProcess(relay, tmp_path, "--once") as query:
                        assert query.wait() is None
                    subscribers.expect([("out/a", value) for value in values])
