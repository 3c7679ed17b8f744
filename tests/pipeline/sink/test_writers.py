"""Writers as Spark uses them, at a real relay: what is published, and how often."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from clearfunds.pipeline._errors import (
    PipelineError,
    RelayAwayError,
    RelayError,
    RelayRefusedError,
)
from clearfunds.pipeline.sink import BatchWriter, StreamWriter, batch_writer, stream_writer
from clearfunds.ranges.client import RangeError, RangeReader, SinkWriter
from tests.pipeline.relays import SECONDS, RelayProcess
from tests.pipeline.sink.tables import schema_of
from tests.pipeline.sink.tasks import COLUMNS, Tasks, told
from tests.ports import lasting_port

A = [("out/a", f"a{number}") for number in range(7)]
B = [("out/b", f"b{number}") for number in range(4)]
C = [("out/a", "c0")]


def stream_to(port: int, **options: str) -> StreamWriter:
    return stream_writer({"port": str(port), **options}, schema_of(COLUMNS), False)


def job_to(port: int, **options: str) -> BatchWriter:
    return batch_writer({"port": str(port), **options}, schema_of(COLUMNS), False)


class Published:
    """Everything that is published below `out/` from now on, in order, as a subscription has it."""

    def __init__(self, port: int, durable: bool = False) -> None:
        name = f"published-{uuid.uuid4()}"
        self._reader = RangeReader("127.0.0.1", port, name, filters=["out/#"], durable=durable)

    def rows(self, *, repay: bool = False) -> list[tuple[str, str]]:
        low, end = self._reader.head()
        found = [
            (row.key.decode(), row.value.decode())
            for block in self._reader.fetch(low, end)
            for row in block.rows()
        ]
        if repay:
            self._reader.ack(end)
        return found

    def until(self, rows: list[tuple[str, str]]) -> None:
        """Wait until all of these are there: what is decided is published a little later."""
        deadline = time.monotonic() + SECONDS
        while len(self.rows()) < len(rows):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert self.rows() == rows

    def drop(self) -> None:
        self._reader.drop()

    def close(self) -> None:
        self._reader.close()


@pytest.fixture(scope="module")
def relay() -> Iterator[RelayProcess]:
    """A relay that the tests of this module share: each has a query of its own."""
    with RelayProcess() as process:
        yield process


@pytest.fixture
def query() -> str:
    """The id of a query."""
    return str(uuid.uuid4())


@pytest.fixture
def published(relay: RelayProcess) -> Iterator[Published]:
    found = Published(relay.ranges)
    yield found
    found.drop()


def statement(relay: RelayProcess, name: str) -> dict[str, Any]:
    """Return what the books say about one account."""
    (found,) = [each for each in relay.ledger()["accounts"] if each["name"] == name]
    return dict(found)


def accounts(relay: RelayProcess) -> set[str]:
    return {account["name"] for account in relay.ledger()["accounts"]}


def test_a_batch_is_published_when_it_is_committed_in_the_order_of_its_partitions(
    relay: RelayProcess, published: Published, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = stream_to(relay.ranges)
    tasks = Tasks(monkeypatch, writer, query)
    written = [tasks.write(0, 2, C), tasks.write(0, 0, A), tasks.write(0, 1, [])]
    assert published.rows() == []
    writer.commit([*written], 0)
    assert published.rows() == A + C
    writer.commit([tasks.write(1, 0, B)], 1)
    assert published.rows() == A + C + B


def test_a_batch_that_is_written_again_is_published_once(
    relay: RelayProcess, published: Published, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = Tasks(monkeypatch, writer := stream_to(relay.ranges), query)
    first = tasks.write(0, 0, A)
    writer.commit([first], 0)
    writer.commit([first], 0)
    # A query that is started again does not know that its last batch was taken.
    again = Tasks(monkeypatch, writer := stream_to(relay.ranges), query)
    skipped = again.write(0, 0, A)
    assert skipped.staged is None
    writer.commit([skipped], 0)
    assert published.rows() == A
    # Another query has batches of its own.
    other = Tasks(monkeypatch, writer, str(uuid.uuid4()))
    writer.commit([other.write(0, 0, B)], 0)
    assert published.rows() == A + B


def test_rows_of_a_task_that_is_run_again_count_once(
    relay: RelayProcess, published: Published, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> Iterator[tuple[str, str]]:
        yield from A
        raise OSError("a disk of Spark's")

    tasks = Tasks(monkeypatch, writer := stream_to(relay.ranges), query)
    lost = tasks.write(0, 1, B)  # its answer did not reach the driver
    with pytest.raises(OSError, match="a disk of Spark's"):
        tasks.write(0, 0, broken())
    written = [tasks.write(0, 0, A), tasks.write(0, 1, B)]
    assert lost.staged is not None
    writer.commit([*written], 0)
    assert published.rows() == A + B


def test_what_is_aborted_is_not_published_and_can_be_written_again(
    relay: RelayProcess, published: Published, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = Tasks(monkeypatch, writer := stream_to(relay.ranges), query)
    written = tasks.write(0, 0, A)
    writer.abort([written, None], 0)
    with pytest.raises(RelayError, match="has not all of the batch any more"):
        writer.commit([written], 0)
    assert published.rows() == []
    writer.commit([tasks.write(0, 0, A), tasks.write(0, 1, B)], 0)
    assert published.rows() == A + B


def test_what_was_committed_is_not_aborted(
    relay: RelayProcess, published: Published, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark aborts a batch whose `commit` has raised, also when the relay had done it."""
    tasks = Tasks(monkeypatch, writer := stream_to(relay.ranges), query)
    written = tasks.write(0, 0, A)
    writer.commit([written], 0)
    writer.abort([written], 0)
    writer.commit([tasks.write(0, 0, A)], 0)
    writer.commit([tasks.write(1, 0, B)], 1)
    assert published.rows() == A + B


def test_a_batch_without_rows_or_without_partitions(
    relay: RelayProcess, published: Published, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = Tasks(monkeypatch, writer := stream_to(relay.ranges), query)
    writer.commit([tasks.write(0, 0, [])], 0)
    writer.commit([], 1)
    writer.abort([], 2)
    writer.abort([None, None], 2)
    writer.commit([tasks.write(2, 0, A)], 2)
    assert published.rows() == A


def test_messages_that_are_not_of_one_batch_are_not_committed(
    relay: RelayProcess, published: Published, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = Tasks(monkeypatch, writer := stream_to(relay.ranges), query)
    written = tasks.write(0, 0, A)
    with pytest.raises(PipelineError, match="1 of 2 tasks have not said what they have written"):
        writer.commit([written, None], 0)
    with pytest.raises(PipelineError, match=rf"batch 1 was written as \[\('{query}', 0\)\]"):
        writer.commit([written], 1)
    assert published.rows() == []


def test_a_writer_is_known_by_its_query_and_by_the_name_it_was_given(
    relay: RelayProcess, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Tasks(monkeypatch, stream_to(relay.ranges), query).write(0, 0, A).writer == query
    named = stream_to(relay.ranges, writer="hot")
    assert Tasks(monkeypatch, named, query).write(0, 0, A).writer == f"hot/{query}"
    assert {f"sink/{query}", f"sink/hot/{query}"} <= accounts(relay)


def test_a_query_that_spark_tells_nothing_about(
    relay: RelayProcess, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = stream_to(relay.ranges)
    with pytest.raises(PipelineError, match="does not tell its tasks the query's id"):
        writer.write(iter(()))
    told(monkeypatch, 0, **{"sql.streaming.queryId": "query"})
    with pytest.raises(PipelineError, match=r"the batch's number .* write with foreachBatch"):
        writer.write(iter(()))


# -- jobs ----------------------------------------------------------------------------------------


def test_a_job_is_published_whole_and_forgotten(
    relay: RelayProcess, published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = Tasks(monkeypatch, writer := job_to(relay.ranges))
    written = [tasks.write(9, 0, A), tasks.write(9, 1, B)]
    assert published.rows() == []
    writer.commit([*written])
    assert published.rows() == A + B
    # The same rows by another job are other messages.
    tasks = Tasks(monkeypatch, other := job_to(relay.ranges))
    other.commit([tasks.write(9, 0, B)])
    assert published.rows() == A + B + B
    # Their debt is their own until it is repaid; nobody is known by these names any more.
    assert {f"sink/{writer.name}", f"sink/{other.name}"} <= accounts(relay)
    published.rows(repay=True)
    assert not accounts(relay) & {f"sink/{writer.name}", f"sink/{other.name}"}


def test_a_job_that_was_published_has_not_failed(
    relay: RelayProcess, published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: SinkWriter) -> None:
        raise RangeError("the relay has ended")

    tasks = Tasks(monkeypatch, writer := job_to(relay.ranges))
    written = tasks.write(0, 0, A)
    with monkeypatch.context() as patched:
        patched.setattr(SinkWriter, "forget", away)
        writer.commit([written])
    assert published.rows() == A


def test_a_job_that_is_aborted_leaves_nothing(
    relay: RelayProcess, published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = Tasks(monkeypatch, writer := job_to(relay.ranges))
    tasks.write(0, 0, A)
    writer.abort([None])
    assert published.rows() == []
    assert f"sink/{writer.name}" not in accounts(relay)


def test_a_job_with_a_name_and_a_number_is_published_once(
    relay: RelayProcess, published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        tasks = Tasks(monkeypatch, writer := job_to(relay.ranges, writer="daily", batch="20261121"))
        writer.commit([tasks.write(0, 0, A)])
    assert published.rows() == A
    tasks = Tasks(monkeypatch, writer := job_to(relay.ranges, writer="daily", batch="20261122"))
    writer.abort([tasks.write(0, 0, B)])
    tasks = Tasks(monkeypatch, writer := job_to(relay.ranges, writer="daily", batch="20261122"))
    writer.commit([tasks.write(0, 0, B)])
    assert published.rows() == A + B


# -- being made to wait ---------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [False, True])
def test_a_writer_waits_for_those_who_read_what_it_publishes(
    stored: bool, tmp_path: Path, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ("--store", str(tmp_path)) if stored else ()
    rows = [("out/a", str(number)) for number in range(500)]
    with (
        RelayProcess("--limit-items=100", *store) as relay,
        closing(Published(relay.ranges)) as published,
    ):
        # Nothing is said for longer than that, but that it is made to wait.
        tasks = Tasks(monkeypatch, writer := stream_to(relay.ranges, timeoutSeconds="2"), query)
        # A batch may be larger than the limit: what is staged is owed for apart.
        written = [tasks.write(0, 0, rows[:250]), tasks.write(0, 1, rows[250:])]
        if stored:
            # It is decided, and on the disk; what comes next waits until it is published.
            writer.commit([*written], 0)
            thread = threading.Thread(target=lambda: writer.commit([tasks.write(1, 0, C)], 1))
            rows += C
        else:
            thread = threading.Thread(target=lambda: writer.commit([*written], 0))
        thread.start()
        thread.join(3.0)
        assert thread.is_alive()
        told = statement(relay, f"sink/{query}")
        # The limit, and what one row causes beyond it.
        assert told["state"] == "throttled"
        assert told["debt"]["items"] == 101
        assert len(published.rows()) == 101
        seen: list[tuple[str, str]] = []
        deadline = time.monotonic() + SECONDS
        while len(seen) < len(rows):
            assert time.monotonic() < deadline
            seen += published.rows(repay=True)
            time.sleep(0.01)
        thread.join(SECONDS)
        assert not thread.is_alive()
        assert seen == rows
        if not stored:  # where there is a store, what is on its way there is owed for, too
            assert statement(relay, f"sink/{query}")["peak"]["items"] <= 102


# -- a relay that ends, and is started again ----------------------------------------------------


@contextmanager
def killed(before: RelayProcess, *options: str) -> Generator[RelayProcess]:
    """Kill a relay, and start it again on the same ports."""
    before.kill()
    with RelayProcess(*options, mqtt=before.mqtt, ranges=before.ranges) as after:
        yield after


def test_a_relay_that_is_killed_knows_with_its_store_what_it_has_taken(
    tmp_path: Path, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ("--store", str(tmp_path / "store"))
    with RelayProcess(*store) as relay, closing(Published(relay.ranges, durable=True)) as published:
        writer = stream_to(relay.ranges)
        tasks = Tasks(monkeypatch, writer, query)
        first = tasks.write(0, 0, A)
        writer.commit([first], 0)
        staged = tasks.write(1, 0, B)
        with killed(relay, *store) as relay:
            # Spark was not told: it commits again, and writes again when it is started again.
            writer.commit([first], 0)
            assert tasks.write(0, 0, A).staged is None
            # What is staged as a whole is on the disk.
            writer.commit([staged], 1)
            with killed(relay, *store):
                writer.commit([tasks.write(2, 0, C)], 2)
                published.until(A + B + C)


def test_a_relay_that_is_killed_without_a_store_has_lost_what_was_staged(
    query: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with RelayProcess() as relay:
        tasks = Tasks(monkeypatch, writer := stream_to(relay.ranges), query)
        staged = tasks.write(0, 0, A)
        with killed(relay) as relay:
            with pytest.raises(RelayError, match=r"started again without a store \(--store\)"):
                writer.commit([staged], 0)
            writer.abort([staged], 0)
            with closing(Published(relay.ranges)) as published:
                writer.commit([tasks.write(0, 0, A)], 0)
                assert published.rows() == A


# -- what cannot be had ---------------------------------------------------------------------------


def test_a_relay_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    port = lasting_port()
    tasks = Tasks(monkeypatch, stream_to(port, timeoutSeconds="0.2"))
    with pytest.raises(RelayAwayError, match=rf"127.0.0.1:{port} .* `--listen subscribe\+tcp://"):
        tasks.write(0, 0, A)


def test_a_port_that_is_something_else(
    relay: RelayProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = Tasks(monkeypatch, stream_to(relay.mqtt, timeoutSeconds="0.5"))
    with pytest.raises(RelayAwayError, match=rf"127.0.0.1:{relay.mqtt}"):
        tasks.write(0, 0, A)


def test_a_topic_with_a_wildcard(
    relay: RelayProcess, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = Tasks(monkeypatch, stream_to(relay.ranges), query)
    with pytest.raises(RelayRefusedError, match=r"refuses: .*out/\+"):
        tasks.write(0, 0, [*A, ("out/+", "x")])


def test_a_name_that_was_taken_over(
    relay: RelayProcess, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = Tasks(monkeypatch, writer := stream_to(relay.ranges), query)
    written = tasks.write(0, 0, A)
    # What was staged before is gone, and nothing of it is published.
    with (
        SinkWriter("127.0.0.1", relay.ranges, query, take_over=True),
        pytest.raises(RelayError),
    ):
        writer.commit([written], 0)
