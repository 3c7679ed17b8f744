"""Writers of batches against a relay: what is published, who owes, what is refused, restarts."""

from __future__ import annotations

import contextlib
import pickle
import random
import socket
import struct
import time
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from clearfunds.accounts import Limit
from clearfunds.dataspace import Publication
from clearfunds.ranges import wire
from clearfunds.ranges.client import (
    AwayError,
    FencedError,
    NotStagedError,
    RangeReader,
    RefusedError,
    SinkRow,
    SinkWriter,
    Staged,
    ThrottledError,
    TornError,
)
from clearfunds.ranges.server import FrameReader, _sink_writing
from clearfunds.ranges.server._sink_collector import SinkCollector
from clearfunds.ranges.sink import Sink, SinkLimits
from clearfunds.ranges.wire import (
    ErrorCode,
    Frame,
    Hello,
    Kind,
    PartKey,
    Rows,
    encode_frame,
    encode_properties,
    encode_request,
    parse_request,
)
from clearfunds.store import Store, StoreSettings
from clearfunds.transports.mqtt import Publish, encode
from tests.dataspace.conftest import STEADY
from tests.ranges.blocks import encode_rows
from tests.ranges.server.relays import HOST, Relay, blocking, running
from tests.transports.peers import connected, log_of, until

QUICK = StoreSettings(fsync_interval=0.01)


@contextmanager
def opened(tmp_path: Path) -> Generator[Store]:
    store = Store.open(tmp_path, QUICK)
    try:
        yield store
    finally:
        store.close()


async def writer(relay: Relay, name: str = "w", **options: Any) -> SinkWriter:
    options.setdefault("timeout", 10)
    made: SinkWriter = await blocking(SinkWriter, HOST, relay.port, name, **options)
    relay.readers.append(made)  # closed with the others
    return made


def sink(relay: Relay, name: str = "w") -> Sink:
    found = relay.server.writing.sinks.find(name)
    assert found is not None
    return found


def read(reader: RangeReader) -> list[tuple[str, bytes]]:
    """Everything there is."""
    low, end = reader.head()
    return [
        (row.key.decode(), row.value) for block in reader.fetch(low, end) for row in block.rows()
    ]


async def values(relay: Relay, count: int, name: str = "s") -> list[bytes]:
    """What a subscription has, once it is so much."""
    await until(lambda: relay.subscription(name).next > count)
    await until(lambda: relay.subscription(name).visible == relay.subscription(name).next)
    reader = next(r for r in relay.readers if isinstance(r, RangeReader))
    return [value for _, value in await blocking(read, reader)]


async def write(client: SinkWriter, batch: int, *parts: list[tuple[str, bytes]]) -> bool:
    done = [await blocking(client.stage, batch, place, 1, rows) for place, rows in enumerate(parts)]
    return bool(await blocking(client.commit, batch, done))


def numbered(batch: int, part: int, count: int = 3) -> list[tuple[str, bytes]]:
    return [("a/b", b"%d-%d-%d" % (batch, part, row)) for row in range(count)]


@pytest.mark.parametrize("durable", [False, True])
async def test_a_batch_is_published_whole_in_order_and_once(tmp_path: Path, durable: bool) -> None:
    with opened(tmp_path) as store:
        async with running(store=store if durable else None) as relay:
            await relay.attach(durable=durable)
            client = await writer(relay)
            assert await blocking(client.last_committed) is None
            second = await blocking(client.stage, 0, 1, 5, numbered(0, 1))
            other = await blocking(client.stage, 0, 0, 5, [("a/b", b"another attempt")])
            first = await blocking(client.stage, 0, 0, 6, numbered(0, 0))
            assert second == Staged(1, 5, 3)
            rest = "disk" if durable else "staged"
            await until(lambda: relay.ledger.accounts[rest].debt_items == 7)
            assert relay.ledger.accounts["sink/w"].debt_items == 0
            relay.audit()
            assert relay.subscription().next == 1
            assert await blocking(client.commit, 0, [second, first])
            assert not await blocking(client.commit, 0, [second, first])
            assert not await blocking(client.commit, 0, [other])
            expected = [value for part in (0, 1) for _, value in numbered(0, part)]
            assert await values(relay, 6) == expected
            # What is written again of it is passed over.
            assert not await write(client, 0, numbered(0, 0))
            await blocking(client.abort, 0)
            assert await write(client, 3, numbered(3, 0))
            assert await values(relay, 9) == expected + [value for _, value in numbered(3, 0)]
            assert await blocking(client.last_committed) == 3
            await until(lambda: sink(relay).publishing is None)
            assert sink(relay).statistics().rest_items == 0
            relay.audit()
            registry = CollectorRegistry()
            registry.register(SinkCollector(relay.server.writing.sinks))
            metrics = generate_latest(registry).decode()
            assert "clearfunds_sink_committed_batches_total 2.0" in metrics
            assert "clearfunds_sink_published_rows_total 9.0" in metrics
            # The other attempt.
            assert "clearfunds_sink_discarded_rows_total 1.0" in metrics
            assert "clearfunds_sink_writers 1.0" in metrics


async def test_subscribers_get_rows_by_their_qos_and_what_is_retained_stays() -> None:
    async with running() as relay, connected(relay.mqtt_port, "reader") as reader:
        await reader.subscribe("a/#", qos=2)
        client = await writer(relay)
        rows = [
            SinkRow("a/0", b"0", 0), SinkRow(b"a/1", "1"), SinkRow("a/2", b"2", 2),
            SinkRow("a/3", b"3", 1, True),
        ]  # fmt: skip
        part = await blocking(client.stage, 0, 0, 1, rows)
        assert await blocking(client.commit, 0, [part])
        seen = await reader.publications(4)
        assert [(p.topic, p.payload, p.qos) for p in seen] == [
            ("a/0", b"0", 0), ("a/1", b"1", 1), ("a/2", b"2", 2), ("a/3", b"3", 1),
        ]  # fmt: skip
        kept = relay.dataspace.retained.get("a/3")
        assert kept is not None
        assert kept.payload == b"3"
        assert relay.dataspace.retained.get("a/1") is None
        relay.dataspace.retained.set(Publication("a/3", b"", 0, True), client_standing(relay))


async def test_runs_and_rows_of_their_own_come_in_order_whoever_takes_them() -> None:
    chance = random.Random(5)
    text = encode_properties("text/plain", [("k", "v")])
    rows = [
        SinkRow(
            f"a/{chance.randrange(3)}" if chance.random() < 0.9 else "a/b/alone",
            b"%d" % number,
            chance.choice((0, 1, 1, 1, 2)),
            chance.random() < 0.05,
            text if chance.random() < 0.1 else b"",
        )
        for number in range(600)
    ]
    async with (
        running() as relay,
        connected(relay.mqtt_port, "none") as none,
        connected(relay.mqtt_port, "one") as one,
        connected(relay.mqtt_port, "some") as some,
    ):
        reader = await relay.attach()
        await none.subscribe("a/#", qos=0)
        await one.subscribe("a/#", qos=1)
        await some.subscribe("a/b/#", qos=1)
        client = await writer(relay)
        part = await blocking(client.stage, 0, 0, 1, rows)
        assert await blocking(client.commit, 0, [part])
        for subscriber, wanted, most in (
            (none, rows, 0),
            (one, rows, 1),
            (some, [row for row in rows if row.topic == "a/b/alone"], 1),
        ):
            seen = await subscriber.publications(len(wanted), ack=True)
            # One order for each QoS: those that have to be acknowledged wait for their turn.
            for qos in range(most + 1):
                assert [(p.topic, p.payload) for p in seen if p.qos == qos] == [
                    (row.topic, row.value) for row in wanted if min(row.qos, most) == qos
                ]
        found = [
            row
            for block in await blocking(lambda: list(reader.fetch(1, 601)))
            for row in block.rows()
        ]
        assert [
            SinkRow(row.key.decode(), row.value, row.qos, row.retain, row.properties)
            for row in found
        ] == rows
        await blocking(reader.ack, 601)
        await until(lambda: sink(relay).publishing is None)
        assert sink(relay).published_rows == 600
        assert not relay.ledger.accounts["sink/w"].debt_items
        for topic in {row.topic for row in rows if row.retain}:
            relay.dataspace.retained.set(
                Publication(str(topic), b"", 0, True), client_standing(relay)
            )


async def test_properties_that_may_not_travel_are_refused() -> None:
    async with running() as relay:
        client = await writer(relay)
        for wrong, says in (
            (b"\x26\x00", "invalid properties"),
            (b"\x02\x00\x00\x00\x01", "properties that do not travel"),
            (encode_properties(None, [("k", "v")]) + encode_properties("t"), "in this order"),
        ):
            with pytest.raises(RefusedError, match=says):
                await blocking(client.stage, 0, 0, 1, [SinkRow("a", b"", properties=wrong)])


def client_standing(relay: Relay) -> Any:
    return relay.ledger.accounts["sink/w"].standing()


async def test_parts_come_from_many_connections_and_a_writer_can_be_pickled() -> None:
    async with running() as relay:
        await relay.attach()
        driver = await writer(relay, take_over=True)
        assert driver.ticket.generation == 2
        task: SinkWriter = await blocking(pickle.loads, pickle.dumps(driver))
        other: SinkWriter = await blocking(SinkWriter.join, HOST, relay.port, driver.ticket)
        relay.readers += [task, other]
        begun = task.stager(0, 0, 1)
        await blocking(begun.write, numbered(0, 0))
        second = await blocking(other.stage, 0, 1, 1, numbered(0, 1))
        first = await blocking(begun.complete)
        assert await blocking(driver.commit, 0, [first, second])
        expected = [value for part in (0, 1) for _, value in numbered(0, part)]
        assert await values(relay, 6) == expected


async def test_who_takes_a_name_over_puts_the_others_out() -> None:
    async with running() as relay:
        old = await writer(relay)
        part = await blocking(old.stage, 0, 0, 1, numbered(0, 0))
        new = await writer(relay, take_over=True)
        for ask in (
            lambda: old.stage(0, 1, 1, numbered(0, 1)),
            lambda: old.commit(0, [part]),
            lambda: old.abort(0),
            lambda: SinkWriter.join(HOST, relay.port, old.ticket),
        ):
            with pytest.raises(FencedError, match="taken over the name w"):
                await blocking(ask)
        assert await blocking(old.last_committed) is None
        # What it had staged is gone with it.
        with pytest.raises(NotStagedError, match="not staged here"):
            await blocking(new.commit, 0, [part])
        assert relay.ledger.accounts["staged"].debt_items == 0


async def test_what_is_not_committed_is_thrown_away() -> None:
    async with running() as relay:
        client = await writer(relay)
        await blocking(client.stage, 0, 0, 1, numbered(0, 0))
        await blocking(client.abort, 7)
        assert relay.ledger.accounts["staged"].debt_items == 3
        await blocking(client.abort, 0)
        assert relay.ledger.accounts["staged"].debt_items == 0
        await blocking(client.stage, 1, 0, 1, numbered(1, 0))
        await blocking(client.stage, 2, 0, 1, numbered(2, 0))
        assert relay.ledger.accounts["staged"].debt_items == 3
        with pytest.raises(RefusedError, match="batch 1 of writer w is over: batch 2"):
            await blocking(client.stage, 1, 0, 1, numbered(1, 0))
        # A connection that ends within a part takes it with it; what is whole stays.
        stager = client.stager(2, 1, 1)
        await blocking(stager.write, numbered(2, 1))
        await blocking(stager._flush)  # pyright: ignore[reportPrivateUsage]
        await until(lambda: relay.ledger.accounts["staged"].debt_items == 6)
        client.close()
        await until(lambda: relay.ledger.accounts["staged"].debt_items == 3)
        await blocking((await writer(relay)).forget)
        assert relay.ledger.accounts["staged"].debt_items == 0
        assert relay.server.writing.sinks.find("w") is None
        assert "sink/w" not in relay.ledger.accounts


async def test_nobody_comes_back_for_what_is_staged(caplog: pytest.LogCaptureFixture) -> None:
    async with running(sinks=SinkLimits(grace=0.05, expiry=0.05)) as relay:
        client = await writer(relay)
        await blocking(client.stage, 0, 0, 1, numbered(0, 0))
        await until(lambda: relay.ledger.accounts["staged"].debt_items == 0)
        assert log_of(caplog, "1 parts that writer w has staged")
        assert relay.server.writing.sinks.find("w") is not None  # somebody is connected
        client.close()
        await until(lambda: relay.server.writing.sinks.find("w") is None)
        assert "sink/w" not in relay.ledger.accounts


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (("a/#", b""), "contains a wildcard"),
        (("", b""), "at least one character"),
        (("a\0b", b""), r"U\+0000"),
        ((b"\xff", b""), "not UTF-8"),
        (("a" * 5000, b""), "5000 bytes long"),
        (("a/" * 200, b""), "201 levels"),
        (("$SYS/a", b""), "the server's own"),
        (("a", bytes(3 << 20)), "max-packet-size"),
        (("a" * 70_000, b""), "65535 are the most"),
    ],
)
async def test_rows_that_cannot_be_published_are_refused(row: tuple[str, bytes], why: str) -> None:
    async with running() as relay:
        client = await writer(relay)
        with pytest.raises(RefusedError, match=why):
            await blocking(client.stage, 0, 0, 1, [*numbered(0, 0), row])
        with pytest.raises(RefusedError, match=why):
            await blocking(client.stage, 0, 0, 2, [row])
        # The connection goes on, and nothing is kept of it.
        await until(lambda: relay.ledger.accounts["staged"].debt_items == 0)
        with pytest.raises(NotStagedError):
            await blocking(client.commit, 0, [(0, 1)])
        assert await write(client, 0, [("ok", b"")])
        assert relay.server.counters.protocol_errors == 0


async def test_who_goes_on_with_a_part_that_was_refused_is_told_again() -> None:
    async with running() as relay:
        client = await writer(relay, timeout=3)
        stager = client.stager(0, 0, 1)

        def go_on() -> None:
            stager.write([("a/+", b"1")])
            stager._flush()  # pyright: ignore[reportPrivateUsage]
            client.ping()  # by then it is here
            stager.write(numbered(0, 0))
            stager._flush()  # pyright: ignore[reportPrivateUsage]

        with pytest.raises(RefusedError, match="wildcard"):
            await blocking(go_on)
        with pytest.raises(RefusedError, match="partition 0 of batch 0"):
            await blocking(stager.complete)
        assert await write(client, 0, numbered(0, 0))


async def test_what_cannot_be_one_batch_is_refused() -> None:
    async with running(sinks=SinkLimits(max_parts=2, max_sinks=1)) as relay:
        client = await writer(relay)
        first = await blocking(client.stage, 0, 0, 1, [])
        again = await blocking(client.stage, 0, 0, 2, [])
        with pytest.raises(RefusedError, match="has partition 0 twice"):
            await blocking(client.commit, 0, [first, again])
        with pytest.raises(RefusedError, match=r"2 parts of batch 0 .* the limit"):
            await blocking(client.stage, 0, 1, 1, numbered(0, 1))
        with pytest.raises(NotStagedError, match="attempt 1 at partition 9 of batch 0"):
            await blocking(client.commit, 0, [first, (9, 1)])
        with pytest.raises(RefusedError, match="1 writers are the limit"):
            await writer(relay, "another")
        for name in ("", "a\nb", "x" * 300):
            with pytest.raises(RefusedError, match="cannot be a writer's name"):
                await writer(relay, name)
        for wrong in ((-1, 0, 0), (0, -1, 0), (0, 0, 1 << 64), (1 << 63, 0, 0)):
            with pytest.raises(ValueError, match="batch"):
                client.stager(*wrong)
        with pytest.raises(ValueError, match="QoS"):
            client.stager(0, 0, 1, qos=3)
        # Without rows, and without parts.
        assert await blocking(client.commit, 0, [first])
        assert await blocking(client.commit, 1, [])
        assert await blocking(client.last_committed) == 1


async def test_a_batch_that_is_too_large_is_refused() -> None:
    async with running(sinks=SinkLimits(batch_bytes=10_000)) as relay:
        client = await writer(relay)
        with pytest.raises(RefusedError, match=r"10000 are the limit \(--sink-batch-limit\)"):
            await blocking(client.stage, 0, 0, 1, [("a", bytes(6000)), ("a", bytes(6000))])
        assert await write(client, 0, [("a", bytes(9000))])
        # In RAM that is for all of them.
        other = await writer(relay, "other")
        await blocking(client.stage, 1, 0, 1, [("a", bytes(6000))])
        with pytest.raises(RefusedError, match="all writers together have no room"):
            await blocking(other.stage, 0, 0, 1, [("a", bytes(6000))])
        await blocking(client.abort, 1)
        assert await write(other, 0, [("a", bytes(6000))])


async def test_a_writer_that_owes_waits_and_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sink_writing, "WAITING_SECONDS", 0.05)
    limit = Limit(items=None, bytes=20_000)
    async with running(limit_of=lambda *_: limit) as relay:
        reader = await relay.attach()
        client = await writer(relay, timeout=0.5)
        rows = [("a/b", b"%05d" % n + bytes(995)) for n in range(100)]
        done = trio.Event()

        async def all_of_it() -> None:
            # A batch five times what it may owe; the relay is heard of all the time.
            assert await write(client, 0, rows)
            assert await write(client, 1, rows)
            done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(all_of_it)
            await until(lambda: relay.subscription().next > 15)
            await trio.sleep(1)
            account = relay.ledger.accounts["sink/w"]
            assert 20_000 < account.debt_bytes < 20_000 + 2 * 1003
            assert not done.is_set()
            seen: list[bytes] = []
            with trio.fail_after(20):
                while len(seen) < 200:
                    low, end = await blocking(reader.head)
                    for block in await blocking(lambda: list(reader.fetch(low, end))):  # noqa: B023
                        seen += [row.value[:5] for row in block.rows()]
                    await blocking(reader.ack, low + len(seen) - (low - 1))
                    await trio.sleep(0.01)
            await done.wait()
        assert seen == [b"%05d" % n for n in range(100)] * 2
        assert relay.ledger.accounts["sink/w"].peak_bytes < 20_000 + 2 * 1003
        impatient = await writer(relay, "impatient", patience=0.3)
        parts = [await blocking(impatient.stage, 0, 0, 1, rows)]
        with pytest.raises(ThrottledError, match=r"has not read on for 0.3 s"):
            await blocking(impatient.commit, 0, parts)


async def test_a_relay_that_says_nothing_is_away() -> None:
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(AwayError, match=r"gave no answer for 0\.2 s"):
            await blocking(SinkWriter, HOST, port, "w", timeout=0.2)
    with pytest.raises(AwayError, match="refused"):
        await blocking(SinkWriter, HOST, port, "w", timeout=0.2)


async def test_a_relay_that_cannot_be_connected_to_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = 1.3  # more than is slept between two attempts

    def never(address: tuple[str, int], timeout: float) -> socket.socket:
        time.sleep(timeout + 0.001)
        raise TimeoutError("timed out")

    # As a firewall does, which answers nothing.
    monkeypatch.setattr(socket, "create_connection", never)
    with trio.fail_after(10), pytest.raises(AwayError, match=r"gave no answer for 1\.3 s"):
        await blocking(SinkWriter, HOST, 1, "w", timeout=seconds)


@pytest.mark.parametrize("replay_bytes", [1 << 20, 1000])
async def test_a_connection_breaks_within_a_part(replay_bytes: int) -> None:
    async with running() as relay:
        await relay.attach()
        client = await writer(relay, replay_bytes=replay_bytes)
        stager = client.stager(0, 0, 1)
        rows = [("a/b", b"%d" % n + bytes(50_000)) for n in range(10)]
        await blocking(stager.write, rows[:6])
        for session in list(relay.server.open):
            if session._writing is not None:  # pyright: ignore[reportPrivateUsage]
                session.cut("the test says so")
        if replay_bytes > 1000:
            await blocking(stager.write, rows[6:])
            part = await blocking(stager.complete)
            assert await blocking(client.commit, 0, [part])
            assert await values(relay, 10) == [value for _, value in rows]
            return

        def go_on() -> None:
            stager.write(rows[6:] * 3)
            stager.complete()

        with pytest.raises(TornError, match="stage it anew"):
            await blocking(go_on)
        part = await blocking(client.stage, 0, 0, 2, rows[:1])
        assert await blocking(client.commit, 0, [part])
        assert await values(relay, 1) == [rows[0][1]]


async def test_the_answer_to_the_end_of_a_large_part_is_lost() -> None:
    async with running() as relay:
        await relay.attach()
        client = await writer(relay, replay_bytes=0)
        stager = client.stager(0, 0, 1)
        await blocking(stager.write, numbered(0, 0))
        part = await blocking(stager.complete)
        for session in list(relay.server.open):
            session.cut("the test says so")
        await until(lambda: not relay.server.open)
        # What was sent is not kept here; but it is all there.
        assert await blocking(stager.complete) == part
        await blocking(client.abort, 0)
        for session in list(relay.server.open):
            session.cut("the test says so")
        with pytest.raises(TornError, match="stage it anew"):
            await blocking(stager.complete)


async def test_what_is_staged_and_what_was_committed_survives_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        async with running(store=store) as relay:
            await relay.attach(durable=True)
            port = relay.port
            client = await writer(relay)
            relay.readers.remove(client)
            assert await write(client, 4, numbered(4, 0))
            await values(relay, 3)
            parts = [
                await blocking(client.stage, 5, place, 1, numbered(5, place)) for place in (0, 1, 2)
            ]
            stager = client.stager(5, 3, 1)
            await blocking(stager.write, numbered(5, 3))
            await blocking(stager._flush)  # pyright: ignore[reportPrivateUsage]
            ticket = client.ticket
    with opened(tmp_path) as store:
        async with running(store=store, port=port) as relay:
            assert sink(relay).statistics().parts == 3
            assert sink(relay).statistics().staged_items == 9
            assert relay.ledger.accounts["staged/w"].debt_items == 9
            relay.audit()
            assert await blocking(client.last_committed) == 4
            assert client.ticket == ticket
            assert await blocking(client.commit, 5, parts[:2])
            reader = await relay.attach(filters=[])
            expected = [
                v for batch, part in ((4, 0), (5, 0), (5, 1)) for _, v in numbered(batch, part)
            ]
            assert await values(relay, 9) == expected
            await until(lambda: sink(relay).publishing is None)
            assert not store.values("sink/part/")
            assert not store.values("sink/mark/")
            assert [name for name in store.queues if name.startswith("sink/")] == []
            await blocking(reader.drop)
            await blocking(client.forget)
            assert not store.values("sink/")


async def test_writers_of_another_life_of_a_relay_without_a_store() -> None:
    async with running() as relay:
        port = relay.port
        client = await writer(relay)
        relay.readers.remove(client)
        part = await blocking(client.stage, 0, 0, 1, numbered(0, 0))
    async with running(port=port):
        with pytest.raises(FencedError, match="not remembered here"):
            await blocking(client.commit, 0, [part])
        again = await blocking(SinkWriter, HOST, port, "w")
        with pytest.raises(NotStagedError, match="not staged here"):
            await blocking(again.commit, 0, [part])
        again.close()
    client.close()
    client.close()
    with pytest.raises(Exception, match="closed"):
        await blocking(client.ping)


# -- bytes ----------------------------------------------------------------------------------------


def block(*rows: Publication) -> bytes:
    return encode_rows(rows)


GOOD = block(Publication("a/b", b"1", 1))
STAGE = struct.pack("<qIIQQ", 0, 0, 0, 1, 0)


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (64, b""),
        (64, struct.pack("<Q16sB7xH", 0, b"", 2, 1) + b"x"),
        (64, struct.pack("<Q16sB7xH", 0, b"", 0, 9) + b"x"),
        (64, struct.pack("<Q16sB7xH", 0, b"", 0, 1) + b"\xff"),
        (65, b""),
        (66, STAGE),
        (66, STAGE + GOOD + b"x"),
        (66, STAGE + GOOD[:-1]),
        (66, struct.pack("<qIIQQ", -1, 0, 0, 1, 0) + GOOD),
        (66, STAGE + struct.pack("<IIQ", 0, 0, 0)),
        (66, STAGE + struct.pack("<IIQHIB", 1, 1, 1, 2, 0, 1) + b"ab"),
        (66, STAGE + struct.pack("<IIQHIB", 1, 1, 1, 1, 1, 3) + b"ab"),
        (66, STAGE + struct.pack("<IIQHIB", 1, 1, 1, 1, 1, 9) + b"ab"),
        (66, STAGE + struct.pack("<IIQ", 5000, 0, 0) + bytes(35_000)),
        (68, bytes(39)),
        (70, struct.pack("<qII", 0, 9, 0)),
        (72, struct.pack("<q", -3)),
        (74, b"x"),
        (79, b""),
        (95, b""),
    ],
)
async def test_what_is_not_of_the_protocol_ends_the_connection(kind: int, payload: bytes) -> None:
    async with running() as relay:
        stream = await trio.open_tcp_stream(HOST, relay.port)
        async with stream:
            await stream.send_all(encode_request(1, Hello(1, 1)) + encode_frame(kind, 2, payload))
            heard = bytearray()
            with trio.fail_after(10):
                while data := await stream.receive_some():
                    heard += data
        # WELCOME, and an ERROR of the whole connection.
        size, of, number = struct.unpack_from("<IB3xI", heard, 20)
        assert (of, number) == (Kind.ERROR, 0)
        (code,) = struct.unpack_from("<H", heard, 32)
        assert code == ErrorCode.PROTOCOL
        assert len(heard) == 20 + size + 4
        assert relay.server.counters.protocol_errors == 1


async def test_what_is_of_the_protocol_and_makes_no_sense_is_refused() -> None:
    async with running() as relay:
        stream = await trio.open_tcp_stream(HOST, relay.port)
        key, rows = PartKey(0, 0, 1), Rows(GOOD)
        crc = zlib.crc32(GOOD)
        asked: list[tuple[Any, int | None]] = [
            (Hello(1, 1), Kind.WELCOME),
            (wire.Commit(0, ()), ErrorCode.REFUSED),  # nobody said OPEN
            (wire.Stage(PartKey(0, 9, 1), 0, rows), ErrorCode.REFUSED),
            (wire.Open("w", 7), ErrorCode.OTHER_INCARNATION),
            (wire.Open("w"), 65),
            (wire.Open("v"), ErrorCode.REFUSED),
            (wire.Stage(key, 5, rows), ErrorCode.REFUSED),  # not from its first row on
            (wire.Stage(key, 6, rows), None),  # of which no more is said
            (wire.StageEnd(key, 1, len(GOOD), crc), ErrorCode.REFUSED),
            (wire.Stage(key, 0, rows), None),
            (wire.StageEnd(key, 1, len(GOOD), crc ^ 1), ErrorCode.REFUSED),  # torn
            (wire.Commit(0, ((0, 1),)), ErrorCode.NOT_STAGED),
            (wire.Stage(key, 0, rows), None),
            (wire.Stage(key, 1, rows), None),
            (wire.Stage(key, 1, rows), ErrorCode.REFUSED),  # twice
            (wire.Stage(key, 0, rows), None),
            (wire.StageEnd(key, 1, len(GOOD), crc), 69),
            (wire.StageEnd(key, 1, len(GOOD), crc), 69),
            (wire.Stage(key, 1, rows), ErrorCode.REFUSED),  # it is whole
            (wire.Commit(0, ((0, 1),)), 71),
            (wire.Stage(key, 0, rows), None),  # passed over
            (wire.StageEnd(key, 1, len(GOOD), crc), 69),
            (wire.Forget(), 77),
            (wire.AskLast(), 75),
            (wire.Abort(0), ErrorCode.OTHER_INCARNATION),
        ]
        heard: list[int] = []
        async with stream:
            for number, (request, _) in enumerate(asked):
                await stream.send_all(encode_request(number + 1, request))
            buffer = bytearray()
            wanted = [answer for _, answer in asked if answer is not None]
            with trio.move_on_after(5):
                while len(heard) < len(wanted):
                    buffer += await stream.receive_some()
                    while len(buffer) >= 12:
                        size, kind, _ = struct.unpack_from("<IB3xI", buffer)
                        if len(buffer) < size + 4:
                            break
                        (code,) = struct.unpack_from("<H", buffer, 12) if size > 8 else (0,)
                        heard.append(code if kind == Kind.ERROR else kind)
                        del buffer[: size + 4]
        assert heard == wanted
        assert relay.server.counters.protocol_errors == 0


@settings(STEADY, max_examples=150)
@given(
    kind=st.integers(64, 95),
    good=st.sampled_from([b"", STAGE + GOOD, STAGE + GOOD * 2, bytes(16), bytes(40), bytes(300)]),
    where=st.integers(0, 100),
    put=st.binary(max_size=20),
)
def test_no_bytes_raise_anything_but_what_they_are_refused_with(
    kind: int, good: bytes, where: int, put: bytes
) -> None:
    payload = good[:where] + put + good[where + len(put) :]
    with contextlib.suppress(ValueError):
        request = parse_request(Frame(kind, 1, payload))
        if isinstance(request, wire.Stage):
            rows = request.rows
            if rows.fault(lambda _: None) is None:
                assert [rows[place] for place in range(rows.count)]


def test_rows_are_what_they_were() -> None:
    rows = [
        Publication("a", b"", 0),
        Publication("ä/b", b"xyz", 2, True),
        Publication("a", bytes(300), 1),
    ]
    found = Rows(encode_rows(rows))
    assert [Publication(*found[place]) for place in range(found.count)] == rows
    assert found.fault(lambda topic: None) is None
    assert found.fault(lambda topic: topic if topic != "a" else None) == "ä/b"


def test_requests_are_read_as_they_were_written() -> None:
    key = PartKey(3, 4, 5)
    requests: list[wire.SinkRequest] = [
        wire.Open("name", 3, bytes(range(16))),
        wire.Open("näme", take_over=True),
        wire.StageEnd(key, 6, 7, 8),
        wire.Commit(3, ((0, 9), (1, 1 << 63))),
        wire.Abort(3),
        wire.AskLast(),
        wire.Forget(),
    ]
    reader = FrameReader()
    reader.receive_data(b"".join(encode_request(n, each) for n, each in enumerate(requests)))
    for number, request in enumerate(requests):
        frame = reader.next_frame()
        assert isinstance(frame, tuple)
        assert frame.request == number
        assert parse_request(frame) == request
    staged = wire.Stage(key, 9, Rows(GOOD))
    reader.receive_data(encode_request(1, staged))
    frame = reader.next_frame()
    assert isinstance(frame, tuple)
    found = parse_request(frame)
    assert isinstance(found, wire.Stage)
    assert (found.key, found.at, found.rows.block) == (key, 9, GOOD)


def test_a_publication_costs_what_its_packet_has() -> None:
    """A row that MQTT's clients may publish fits into a frame."""
    largest = (2 << 20) - 10
    packet = encode(Publish("t", bytes(largest), 1, packet_id=1))
    assert len(packet) <= 2 << 20
    assert len(block(Publication("t", bytes(largest), 1))) + 1024 < (2 << 20) + (64 << 10)
