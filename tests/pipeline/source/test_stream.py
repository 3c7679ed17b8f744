"""The reader of a stream, asked as Spark asks, against a real relay."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from clearfunds.pipeline._errors import (
    MessagesLostError,
    OptionError,
    QueryFencedError,
    RelayAwayError,
    RelayError,
    RelayRefusedError,
)
from clearfunds.pipeline.source import BatchReader
from clearfunds.pipeline.source import _relay_reader as connections
from clearfunds.pipeline.source._options import batch_options, stream_options
from clearfunds.ranges.client import RangeReader, Ticket
from tests.pipeline.relays import RelayProcess
from tests.pipeline.source.queries import (
    READERS,
    Query,
    heartbeats,
    pouring,
    publish,
    stop_readers,
    stream_reader,
    until,
)

HOST = "127.0.0.1"


@pytest.fixture(scope="module")
def shared() -> Iterator[RelayProcess]:
    """A relay that the tests of this module share: each with names of its own."""
    with RelayProcess("--limit-items=200") as relay:
        yield relay


@pytest.fixture(autouse=True)
def _no_connections_are_left() -> Iterator[None]:
    yield
    stop_readers()
    kept = connections._cached  # pyright: ignore[reportPrivateUsage]
    for reader in kept.values():
        reader.close()
    kept.clear()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A subscription's name, and the level under which is published for it."""
    return str(request.node.name)[:60].replace("[", "-").replace("]", "")


def query(relay: RelayProcess, name: str, **more: str) -> Query:
    told = {"relay": f"{HOST}:{relay.ranges}", "subscription": name, "subscribe": f"{name}/#"}
    return Query({**told, "timeoutSeconds": "10", **more})


def values(count: int, size: int = 1, first: int = 0) -> list[bytes]:
    return [b"%d" % number * size for number in range(first, first + count)]


def send(relay: RelayProcess, name: str, sent: list[bytes]) -> None:
    publish(relay.mqtt, sent, f"{name}/x")


def owed(relay: RelayProcess, name: str) -> int:
    with RangeReader.join(HOST, relay.ranges, Ticket(name)) as reader:
        return reader.owed().items


def told(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records)


def test_what_was_done_is_repaid_when_the_next_batch_is_planned(
    shared: RelayProcess, name: str
) -> None:
    asked = query(shared, name, maxOffsetsPerTrigger="20", minPartitions="3")
    reader = asked.start()
    send(shared, name, values(50))
    assert asked.step()
    assert owed(shared, name) == 50  # what was read is owed for still
    assert asked.read() == asked.batches[0] == values(20)
    assert asked.plan()
    assert owed(shared, name) == 30
    reported = reader.reportLatestOffset()
    assert reported is not None
    assert (reported["number"], reported["owedMessages"]) == (51, 30)
    assert reported["owedBytes"] > 30
    parts = reader.partitions(*asked.offsets[-2:])
    assert [part.value for part in parts] == [(21, 27), (27, 34), (34, 41)]
    asked.start()  # which runs what was planned; the one before is out
    assert asked.drain() == values(50)
    assert [len(batch) for batch in asked.batches] == [20, 20, 10]
    assert owed(shared, name) == 0
    assert asked.reader is not None
    asked.reader.stop()
    asked.reader.stop()


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # it is left open on purpose
def test_a_reader_that_nobody_has_stopped_is_not_kept_attached(
    shared: RelayProcess, name: str
) -> None:
    asked = query(shared, name)
    asked.start()
    assert heartbeats() == 1
    asked.reader = None
    READERS.clear()
    gc.collect()
    until(lambda: heartbeats() == 0)


def test_publishers_wait_for_a_slow_query_and_nobody_for_ever(
    shared: RelayProcess, name: str
) -> None:
    # Were publishers repaid in `commit` only, this would end with the first batch.
    asked = query(shared, name)
    asked.start()
    sent = values(1000)
    with pouring(shared.mqtt, sent, f"{name}/x"):
        most = 0
        until(lambda: owed(shared, name) >= 200)
        while sum(map(len, asked.batches)) < len(sent):
            asked.step()
            most = max(most, owed(shared, name))
    assert asked.drain() == sent
    assert (
        200 <= most <= 230
    )  # the limit, and what one read of a connection had of acknowledged ones
    assert len(asked.batches) >= 4
    assert owed(shared, name) == 0


def test_a_batch_is_the_same_after_each_start(shared: RelayProcess, name: str) -> None:
    asked = query(shared, name, maxOffsetsPerTrigger="10")
    asked.start()
    send(shared, name, values(15))
    assert asked.plan()
    first = asked.read()
    send(shared, name, values(5, first=15))
    for _ in range(2):  # it has failed, and its process is gone
        asked.reader = stream_reader(asked.options)
        assert asked.read() == first == values(10)
    asked.start()
    assert asked.drain() == values(20)
    other = query(shared, f"{name}-2")
    other.offsets = asked.offsets
    with pytest.raises(OptionError, match=r"checkpoint is of subscription .* give back the name"):
        other.start()
    # From an older checkpoint what was repaid cannot be had, and that is said.
    asked.offsets, asked.done = asked.offsets[:2], 0
    with pytest.raises(MessagesLostError, match=r"messages 1 to 20 of .*'failOnDataLoss' to false"):
        asked.start()


def test_bytes_limit_a_batch_and_both_limits_do(shared: RelayProcess, name: str) -> None:
    each = len(f"{name}/x") + 100 + 20
    asked = query(shared, name, maxBytesPerTrigger=str(each * 7 + 5))
    assert asked.start().getDefaultReadLimit() == ReadMaxBytes(each * 7 + 5)
    send(shared, name, [bytes(100)] * 20)
    asked.drain()
    assert [len(batch) for batch in asked.batches] == [7, 7, 6]
    both = query(shared, name, maxBytesPerTrigger=str(each * 7), maxOffsetsPerTrigger="5")
    reader = both.start()
    send(shared, name, [bytes(100)] * 8)
    both.drain()
    assert [len(batch) for batch in both.batches] == [5, 3]
    send(shared, name, [bytes(100)] * 8)
    # A trigger that is to have all overrules both; another one may be told a smaller one.
    number = both.offsets[-1]["number"]
    assert reader.latestOffset(both.offsets[-1], ReadAllAvailable())["number"] == number + 8
    assert reader.latestOffset(both.offsets[-1], ReadMaxRows(2))["number"] == number + 2
    assert query(shared, name, maxOffsetsPerTrigger="5").start().getDefaultReadLimit() == (
        ReadMaxRows(5)
    )
    one = query(shared, name, maxBytesPerTrigger="1")
    one.start()
    assert one.step()
    assert [len(batch) for batch in one.batches] == [1]


def test_available_now_reads_what_there_was_and_owes_nothing(
    shared: RelayProcess, name: str
) -> None:
    asked = query(shared, name, maxOffsetsPerTrigger="20")
    asked.start().stop()
    send(shared, name, values(30))
    asked.start(available_now=True)
    send(shared, name, values(10, first=30))
    assert asked.drain() == values(30)
    assert owed(shared, name) == 10
    asked.start(available_now=True)
    assert asked.drain() == values(40)
    assert owed(shared, name) == 0


def test_where_a_query_begins(shared: RelayProcess, name: str) -> None:
    query(shared, name).start()
    send(shared, name, values(5))
    latest = query(shared, name, startingOffsets="latest")
    latest.start()
    send(shared, name, values(5, first=5))
    # The relay has kept the answer: it is the same for the next process of the same query.
    again = query(shared, name, startingOffsets="latest")
    again.start()
    assert again.offsets == latest.offsets
    assert again.drain() == values(5, first=5)
    send(shared, name, values(3, first=10))
    numbered = query(shared, name, startingOffsets="12")
    numbered.start()
    assert numbered.drain() == values(2, first=11)
    shown = str(numbered.offsets[0]).replace("'", '"')
    with pytest.raises(MessagesLostError, match="messages 12 to 13 of subscription"):
        query(shared, name, startingOffsets=shown).start()
    passed = query(shared, name, startingOffsets=shown, failOnDataLoss="false")
    passed.start()
    assert passed.offsets[0]["number"] == 14
    with pytest.raises(OptionError, match=r"number 15, and subscription .* up to 13 so far"):
        query(shared, name, startingOffsets="15").start()
    with pytest.raises(RelayRefusedError, match=r"refuses: .* is bound to .*, not to other"):
        query(shared, name, subscribe="other").start()


def test_only_commit_repays_if_that_is_asked_for(shared: RelayProcess, name: str) -> None:
    asked = query(shared, name, ackMode="commit", maxOffsetsPerTrigger="4")
    reader = asked.start()
    send(shared, name, values(12))
    assert asked.step()
    assert asked.step()
    assert owed(shared, name) == 8
    reader.commit(asked.offsets[2])
    reader.commit(asked.offsets[1])
    assert owed(shared, name) == 4


def test_two_queries_need_two_names(shared: RelayProcess, name: str) -> None:
    first, second = query(shared, name), query(shared, name)
    reader = first.start()
    send(shared, name, values(3))
    assert first.plan()
    (part,) = reader.partitions(*first.offsets)
    second.start()
    for ask in (first.plan, lambda: list(reader.read(part)), first.read):
        with pytest.raises(
            QueryFencedError, match=r"another query reads from .*\(option 'subscription'\)"
        ):
            ask()
    assert second.drain() == values(3)


def test_a_subscription_that_is_dropped_is_a_loss(
    shared: RelayProcess, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    asked, lenient = query(shared, name), query(shared, name, failOnDataLoss="false")
    asked.start()
    send(shared, name, values(3))
    assert asked.step()
    drop(shared, name)
    with pytest.raises(MessagesLostError, match=r"was dropped; .* set the option 'failOnDataLoss'"):
        asked.plan()
    # Started again it is not made anew: nobody would read it, and its publishers would wait.
    asked.start()
    with pytest.raises(MessagesLostError, match="not the one that the checkpoint is of"):
        asked.plan()
    asked.start(available_now=True)
    with pytest.raises(MessagesLostError, match="not the one that the checkpoint is of"):
        asked.plan()
    nothing = query(shared, name)
    del nothing.options["subscribe"]
    with pytest.raises(RelayRefusedError, match="there is no subscription"):
        nothing.start()
    lenient.offsets, lenient.done = asked.offsets, asked.done
    caplog.set_level(logging.WARNING)
    lenient.start()
    assert not lenient.step() or lenient.batches == [[]]
    send(shared, name, values(4))
    assert lenient.drain() == values(4)
    assert "not the one that the checkpoint is of" in told(caplog)
    # In the middle of a query, too: while it is told of a range, and while it reads it.
    send(shared, name, values(2))
    assert lenient.plan()
    drop(shared, name)
    assert lenient.read() == []
    send(shared, name, values(6, first=10))
    assert lenient.drain()[-6:] == values(6, first=10)


def drop(relay: RelayProcess, name: str) -> None:
    RangeReader(HOST, relay.ranges, name).drop()


def test_what_is_lost_between_planning_and_reading_is_passed_over(
    shared: RelayProcess, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    asked = query(shared, name, failOnDataLoss="false", minPartitions="2")
    reader = asked.start()
    send(shared, name, values(10))
    assert asked.plan()
    parts = reader.partitions(*asked.offsets)
    with RangeReader.join(HOST, shared.ranges, Ticket(name)) as other:
        other.ack(4)
    caplog.set_level(logging.WARNING)
    read = [batch.column("offset").to_pylist() for part in parts for batch in reader.read(part)]
    assert read == [[4, 5], [6, 7, 8, 9, 10]]
    assert "messages 1 to 3 are lost, and skipped" in told(caplog)
    strict = stream_reader({**asked.options, "failOnDataLoss": "true"})
    with pytest.raises(MessagesLostError, match="messages 1 to 3 of subscription"):
        list(strict.read(parts[0]))
    drop(shared, name)
    assert list(reader.read(parts[0])) == []
    with pytest.raises(RelayError):
        list(strict.read(parts[0]))


def test_a_range_is_read_in_many_batches(shared: RelayProcess, name: str) -> None:
    asked = query(shared, name)
    reader = asked.start()
    send(shared, name, [bytes(100_000)] * 50)
    assert asked.plan()
    (part,) = reader.partitions(*asked.offsets)
    batches = list(reader.read(part))
    assert sum(batch.num_rows for batch in batches) == 50
    assert max(batch.num_rows for batch in batches) <= 12  # a mebibyte, and one block


def test_a_batch_puts_nobody_out_and_repays_nobody(shared: RelayProcess, name: str) -> None:
    asked = query(shared, name, maxOffsetsPerTrigger="4")
    asked.start()
    send(shared, name, values(10))
    assert asked.step()
    look = {"relay": f"{HOST}:{shared.ranges}", "subscription": name}

    def read(**more: str) -> list[bytes]:
        reader = BatchReader(batch_options({**look, **more}))
        return [
            value
            for part in reader.partitions()
            for batch in reader.read(part)
            for value in batch.column("value").to_pylist()
        ]

    assert read() == values(10)
    assert read(minPartitions="4") == values(10)
    assert read(startingOffsets="3", endingOffsets="5") == values(2, first=2)
    assert read(startingOffsets="latest") == []
    assert owed(shared, name) == 10
    assert asked.step()  # the query is not out
    with pytest.raises(MessagesLostError, match="messages 2 to 4 of subscription"):
        read(startingOffsets="2")
    assert read(startingOffsets="2", failOnDataLoss="false") == values(6, first=4)
    with pytest.raises(OptionError, match=r"'endingOffsets' has number 12, .* up to 10"):
        read(endingOffsets="12")
    other = '{"incarnation": "00", "number": 1}'
    with pytest.raises(MessagesLostError, match="of another life of subscription"):
        read(startingOffsets=other)
    assert read(startingOffsets="9", repayBelowStart="true") == values(2, first=8)
    assert owed(shared, name) == 2
    with pytest.raises(RelayRefusedError, match="there is no subscription 'nothing'"):
        read(subscription="nothing")


@pytest.mark.parametrize("which", ["mqtt", "http"])
def test_another_listener_is_told_from_a_relays(
    shared: RelayProcess, name: str, which: str
) -> None:
    port = shared.mqtt if which == "mqtt" else int(shared.http.rstrip("/").rpartition(":")[2])
    asked = query(shared, name, timeoutSeconds="0.5")
    asked.options["relay"] = f"{HOST}:{port}"
    with pytest.raises(RelayAwayError, match=r"subscribe\+tcp://"):
        asked.start()


def test_a_relay_that_is_away(tmp_path: Path) -> None:
    options = ("--store", str(tmp_path / "store"), "--fsync-interval", "0.01")
    with RelayProcess(*options) as relay:
        asked = query(relay, "s", durable="true", timeoutSeconds="20", graceSeconds="0.4")
        asked.start()
        send(relay, "s", values(10))
        until(lambda: owed(relay, "s") == 10)
        assert asked.plan()
        relay.kill()
        ports = {"mqtt": relay.mqtt, "ranges": relay.ranges}

        def come_back() -> None:
            time.sleep(0.3)
            with RelayProcess(*options, **ports):
                came_back.set()
                over.wait(60)

        came_back, over = threading.Event(), threading.Event()
        thread = threading.Thread(target=come_back)
        thread.start()
        try:
            assert asked.read() == values(10)  # it has waited, and asked again
            asked.done = 1
            # While Spark is busy for long, the heart beats: it is not away for longer than it may.
            assert came_back.wait(30)
            time.sleep(0.6)
            with RangeReader.join(HOST, ports["ranges"], Ticket("s")) as other:
                assert other.ticket.generation == 1
            send(relay, "s", values(5, first=10))
            until(asked.step)
            assert not asked.plan()
            assert owed(relay, "s") == 0
        finally:
            over.set()
            thread.join(60)
        asked.options["timeoutSeconds"] = "0.3"
        with pytest.raises(
            RelayAwayError, match=r"did not answer within 0.3 s: .*goes on where it was"
        ):
            asked.start().latestOffset(asked.offsets[-1], ReadAllAvailable())


def test_a_relay_without_a_store_that_was_started_anew_has_lost_what_it_held() -> None:
    with RelayProcess() as relay:
        asked = query(relay, "s")
        lenient = query(relay, "s", failOnDataLoss="false")
        reader = asked.start()
        send(relay, "s", values(3))
        assert asked.step()
        relay.kill()
        with RelayProcess(mqtt=relay.mqtt, ranges=relay.ranges) as second:
            with pytest.raises(
                MessagesLostError, match="not there any more; attach to make it anew"
            ):
                asked.plan()
            assert reader.reportLatestOffset() is None
            # Started again from its checkpoint.
            asked.reader = stream_reader(asked.options)
            with pytest.raises(
                MessagesLostError, match="the relay was started anew without a store"
            ):
                asked.plan()
            lenient.offsets, lenient.done = asked.offsets, asked.done
            lenient.start()
            lenient.step()
            send(second, "s", values(4))
            assert lenient.drain() == values(4)


def test_it_begins_at_a_time(shared: RelayProcess, name: str) -> None:
    with RangeReader(HOST, shared.ranges, name, filters=[f"{name}/#"]) as reader:
        publish(shared.mqtt, [b"0", b"1"], f"{name}/x")
        until(lambda: reader.head().next == 3)
        time.sleep(0.01)
        then = time.time_ns() // 1_000_000
        publish(shared.mqtt, [b"2", b"3", b"4"], f"{name}/x")
        until(lambda: reader.head().next == 6)
    late = str(then + 3_600_000)
    some = query(shared, name, startingTimestamp=str(then), startingOffsets="latest")
    assert some.start().initialOffset()["number"] == 3
    assert query(shared, name, startingTimestamp="0").start().initialOffset()["number"] == 1
    with pytest.raises(OptionError, match=r"'startingTimestamp' is .*, and no message came"):
        query(shared, name, startingTimestamp=late).start()
    latest = {"startingTimestamp": late, "startingOffsetsByTimestampStrategy": "latest"}
    assert query(shared, name, **latest).start().initialOffset()["number"] == 6
    given = {"relay": f"{HOST}:{shared.ranges}", "subscription": name}
    batch = BatchReader(
        batch_options({**given, "startingTimestamp": "0", "endingTimestamp": str(then)})
    )
    assert [(part.start, part.end) for part in batch.partitions()] == [(1, 3)]  # type: ignore[attr-defined]


def test_a_batch_waits_for_enough_messages(
    shared: RelayProcess, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = query(shared, name, minOffsetsPerTrigger="3", maxTriggerDelay="1h").start()
    begun = reader.initialOffset()

    def planned(start: dict[str, Any]) -> int:
        return int(reader.latestOffset(start, ReadAllAvailable())["number"]) - 1

    publish(shared.mqtt, [b"0"], f"{name}/x")
    # As with Kafka, the first is not delayed.
    until(lambda: planned(begun) == 1)
    one = {**begun, "number": 2}
    publish(shared.mqtt, [b"1", b"2"], f"{name}/x")
    until(lambda: (reader.reportLatestOffset() or {}).get("number") == 4)
    assert planned(one) == 1
    publish(shared.mqtt, [b"3"], f"{name}/x")
    until(lambda: planned(one) == 4)
    four = {**begun, "number": 5}
    publish(shared.mqtt, [b"4"], f"{name}/x")
    assert planned(four) == 4
    monkeypatch.setattr("clearfunds.pipeline.source._stream.QUIET_SECONDS", 0.2)
    until(lambda: planned(four) == 5)


def test_the_delay_of_a_batch_has_an_end(shared: RelayProcess, name: str) -> None:
    reader = query(shared, name, minOffsetsPerTrigger="100", maxTriggerDelay="300ms").start()
    publish(shared.mqtt, [b"0"], f"{name}/x")
    begun = reader.initialOffset()
    until(lambda: reader.latestOffset(begun, ReadAllAvailable())["number"] == 2)
    one = {**begun, "number": 2}
    publish(shared.mqtt, [b"1"], f"{name}/x")
    assert reader.latestOffset(one, ReadAllAvailable())["number"] == 2
    until(lambda: reader.latestOffset(one, ReadAllAvailable())["number"] == 3)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"maxTriggerDelay": "5m"}, "says how long 'minOffsetsPerTrigger' may delay"),
        ({"minOffsetsPerTrigger": "5", "maxTriggerDelay": "soon"}, "a time, as 15m, 30s or 500ms"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "is 5, above 'maxOffsetsPer"),
        ({"startingTimestamp": "noon"}, "'startingTimestamp' is a whole number from 0"),
        ({"endingTimestamp": "1"}, "'endingTimestamp' is one of spark.read"),
    ],
)
def test_options_about_times(more: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        stream_options({"relay": f"{HOST}:1", "subscription": "s", **more})
