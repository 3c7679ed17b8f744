"""A relay whose store lies in JetStream, as a process: what it has confirmed is there, anywhere."""

from __future__ import annotations

import random
import resource
import subprocess
import sys
from collections.abc import Generator
from functools import partial
from pathlib import Path

import pytest
import trio

from clearfunds.ranges.client import RangeReader
from clearfunds.transports.mqtt import PubAck, Publish, PubRec
from tests.nats_servers import NatsServer, nats_server, needs_nats
from tests.ports import lasting_port
from tests.relay.brokers import Broker, bodies, numbered
from tests.relay.faithful import Life, Load, mixed
from tests.relay.relay_process import relay_process
from tests.transports.peers import SECONDS, until

pytestmark = needs_nats


@pytest.fixture
def server(tmp_path: Path) -> Generator[NatsServer]:
    folder = tmp_path / "nats"
    folder.mkdir()
    with nats_server(folder) as server:
        yield server


async def test_everything_is_there_after_a_kill_on_another_machine(
    server: NatsServer, tmp_path: Path
) -> None:
    """Queues with QoS 1 and 2, retained messages, and a reader's place."""
    listen = f"subscribe+tcp://127.0.0.1:{lasting_port()}"
    port = int(listen.rpartition(":")[2])

    def read(start: int, count: int, done: int | None) -> list[bytes]:
        with RangeReader(
            "127.0.0.1", port, "news", filters=["news"], durable=True, timeout=SECONDS
        ) as reader:
            head = reader.head()
            assert (head.low, head.next) == (start, start + count)
            blocks = reader.fetch(head.low, head.next) if count else ()
            rows = [row.value for block in blocks for row in block.rows()]
            if done is not None:
                reader.ack(done)
            return rows

    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    async with relay_process(tmp_path / "a", "--listen", listen, nats=server.url) as relay:
        assert [each.name for each in relay.temporary.iterdir()] != []
        broker = Broker(relay.port, 32, "d")
        async with broker.visit(leave=True) as client:
            await client.subscribe(broker.topic, qos=2)
        await trio.to_thread.run_sync(read, 1, 0, None)
        await broker.publish(numbered(20), 1)
        await broker.publish([b"twice?"], 2)
        await broker.publish([b"retained"], 1, topic="kept", retain=True)
        await broker.publish(numbered(5), 1, topic="news")
        assert await trio.to_thread.run_sync(read, 1, 5, 4) == numbered(5)
        async with broker.visit("qos2") as publisher:
            await publisher.send(Publish(broker.topic, b"once", 2, packet_id=9))
            await publisher.expect(PubRec(9))
        await relay.kill()
    async with relay_process(tmp_path / "b", "--listen", listen, nats=server.url) as relay:
        broker = Broker(relay.port, 32, "d")
        async with broker.visit("qos2", present=True) as publisher:
            # It is known, and not published again.
            await publisher.send(Publish(broker.topic, b"once", 2, dup=True, packet_id=9))
            await publisher.expect(PubRec(9))
        async with broker.visit(present=True) as client:
            taken = await client.take(22)
            assert bodies(taken) == [*numbered(20), b"twice?", b"once"]
            await client.subscribe("kept")
            assert (await client.message()).payload == b"retained"
            assert await client.all() == []
        assert await trio.to_thread.run_sync(read, 4, 2, None) == numbered(5)[3:]
        await relay.audit()
        await relay.stop()


async def test_an_orderly_stop_stores_everything_and_leaves_no_copy(
    server: NatsServer, tmp_path: Path
) -> None:
    async with relay_process(tmp_path, nats=server.url) as relay:
        broker = Broker(relay.port, 32, "d")
        async with broker.visit(leave=True) as client:
            await client.subscribe(broker.topic, qos=1)
        async with broker.publisher() as publisher:
            await publisher.send(
                *(Publish(broker.topic, each, 1, packet_id=int(each) + 1) for each in numbered(300))
            )
            await publisher.expect(PubAck(1))
        metrics = await relay.page("/metrics")
        for name in ("entries_total", "bytes", "snapshots_total", "pending_bytes"):
            assert f"clearfunds_store_replicated_{name} " in metrics
        await relay.stop()  # which looks for what is left
        await relay.start()
        async with broker.visit(present=True) as client:
            taken = bodies(await client.take(1))
            assert taken == [b"0"]
        await relay.stop()
        assert "Traceback" not in relay.log


async def test_while_jetstream_is_away_nothing_is_confirmed_and_then_it_goes_on(
    server: NatsServer, tmp_path: Path
) -> None:
    async with relay_process(tmp_path, "--limit-items", "20", nats=server.url) as relay:
        broker = Broker(relay.port, 32, "d")
        async with broker.visit(leave=True) as client:
            await client.subscribe(broker.topic, qos=1)
        async with broker.publisher() as publisher:
            await publisher.publish(broker.topic, b"0", 1)
            server.kill()
            await publisher.send(
                *(Publish(broker.topic, each, 1, packet_id=int(each)) for each in numbered(101)[1:])
            )
            await until(lambda: "JetStream does not take what is to be stored" in relay.log)
            assert await publisher.client.silent(0.2)
            debts = (await relay.ledger())["accounts"]
            (owed,) = (each for each in debts if each["name"].endswith("d-publisher"))
            assert 20 <= owed["debt"]["items"] <= 21
            async with broker.visit("other", clean=True) as other:
                # Who does not need the store goes on.
                await other.subscribe("other", qos=0)
                await other.send(Publish("other", b"x"))
                assert (await other.message()).payload == b"x"
            assert "clearfunds_store_trouble 1.0" in await relay.page("/metrics")
            server.start()
            for number in range(1, 101):
                await publisher.expect(PubAck(number))
        await until(lambda: "the store can be written to again" in relay.log)
        await relay.kill()
        await relay.start()
        async with broker.visit(present=True) as client:
            assert bodies(await client.take(101)) == numbered(101)


async def test_while_the_disk_of_the_copy_is_full_publishers_wait_and_nothing_is_lost(
    server: NatsServer, tmp_path: Path
) -> None:
    """As far as one can be had: files of this process may not be longer than so much."""
    first = b"first" + bytes(200_000)
    async with relay_process(tmp_path, nats=server.url) as relay:
        broker = Broker(relay.port, 32, "d")
        async with broker.visit(leave=True) as client:
            await client.subscribe(broker.topic, qos=1)
        # The soft limit only, so that it can be taken back.
        limits = resource.RLIMIT_FSIZE
        hard = resource.prlimit(relay.pid, limits)[1]
        resource.prlimit(relay.pid, limits, (100_000, hard))
        await broker.publish([first], 1)
        await until(lambda: "cannot write to the store" in relay.log)
        async with broker.publisher() as publisher:
            await publisher.send(Publish(broker.topic, b"second", 1, packet_id=1))
            await relay.audit()
            resource.prlimit(relay.pid, limits, (hard, hard))
            await publisher.expect(PubAck(1))
        resource.prlimit(relay.pid, limits, (100_000, hard))
        await broker.publish([b"third"], 1)
        await relay.kill()
        await relay.start()
        async with broker.visit(present=True) as client:
            assert bodies(await client.take(3)) == [first, b"second", b"third"]
        await relay.stop()
        assert "Traceback" not in relay.log


async def test_a_stop_while_jetstream_is_away_says_what_is_not_stored(
    server: NatsServer, tmp_path: Path
) -> None:
    async with relay_process(tmp_path, "--grace", "1", nats=server.url) as relay:
        broker = Broker(relay.port, 32, "d")
        async with broker.visit(leave=True) as client:
            await client.subscribe(broker.topic, qos=1)
        async with broker.publisher() as publisher:
            server.kill()
            await publisher.send(Publish(broker.topic, b"lost", 1, packet_id=1))
            await until(lambda: "JetStream does not take what is to be stored" in relay.log)
        began = trio.current_time()
        await relay.stop()
        assert trio.current_time() - began < 20  # a machine may be slow
        assert "bytes of changes are not stored" in relay.log
        assert "Traceback" not in relay.log


async def test_a_relay_that_was_taken_for_dead_ends_with_a_sentence(
    server: NatsServer, tmp_path: Path
) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    async with relay_process(tmp_path / "a", nats=server.url) as one:
        broker = Broker(one.port, 32, "d")
        async with broker.visit(leave=True) as client:
            await client.subscribe(broker.topic, qos=1)
        await broker.publish([b"1"], 1)
        async with broker.publisher() as publisher:
            one.stop_for_now()
            async with relay_process(tmp_path / "b", nats=server.url) as two:
                await publisher.send(Publish(broker.topic, b"2", 1, packet_id=1))
                one.go_on()
                with trio.fail_after(SECONDS):
                    assert await one.ended() == 1
                assert "another relay has taken over the store of r" in one.log
                assert "another relay of the cluster has the name 'r'" in one.log
                assert "Traceback" not in one.log
                assert list(one.temporary.iterdir()) == []
                broker = Broker(two.port, 32, "d")
                async with broker.visit(present=True) as client:
                    assert bodies(await client.take(1)) == [b"1"]
                await two.stop()


async def test_a_second_relay_of_that_name_is_refused(server: NatsServer, tmp_path: Path) -> None:
    async with relay_process(tmp_path, nats=server.url) as relay:
        options = ("--store", "nats", "--cluster", server.url, "--name", "r")
        said = await trio.to_thread.run_sync(refused, *options, "--disk-limit", "8MiB")
        assert "another relay of the cluster has the name 'r'" in said
        await relay.audit()
        await relay.stop()


def _has_confirmed(load: Load, number: int) -> bool:
    return len(load.confirmed) > number


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.long) for n in range(5))])
async def test_jetstream_is_killed_again_and_again_under_load(
    seed: int, server: NatsServer, tmp_path: Path
) -> None:
    """And at the end the relay, too: nothing confirmed is lost, nothing of QoS 2 comes twice."""
    chance = random.Random(seed)
    load = Load(seed)
    mixed(load)
    async with relay_process(tmp_path, nats=server.url) as relay, trio.open_nursery() as nursery:
        load.life = Life(relay.port)
        load.start(nursery)
        for _ in range(3):
            wanted = len(load.confirmed) + 20
            await until(partial(_has_confirmed, load, wanted))
            load.life.failing = True
            await trio.to_thread.run_sync(server.kill)
            await trio.sleep(chance.uniform(0.0, 3.0))
            await trio.to_thread.run_sync(server.start)
            await load.stores_again()
        await relay.kill()
        await relay.start()
        await load.settled()
        await relay.audit()
        load.over = True
        nursery.cancel_scope.cancel()
    assert "Traceback" not in relay.log
    load.check()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--store", "nats"), "--store nats needs --cluster nats://HOST:PORT"),
        (("--store-replicas", "3"), "--store-replicas needs --store nats"),
        (
            ("--store-replicas", "3", "--cluster", "nats://127.0.0.1:1"),
            "--store-replicas needs --store nats",
        ),
    ],
)
def test_options_that_need_others_are_refused(options: tuple[str, ...], sentence: str) -> None:
    assert sentence in refused(*options)


async def test_what_the_server_refuses_is_one_sentence(server: NatsServer, tmp_path: Path) -> None:
    where = ("--store", "nats", "--cluster", server.url, "--name", "r")
    said = await trio.to_thread.run_sync(
        refused, *where, "--store-replicas", "3", "--disk-limit", "8MiB"
    )
    assert "replicas > 1 not supported in non-clustered mode" in said
    said = await trio.to_thread.run_sync(refused, *where, "--disk-limit", "999GiB")
    assert "insufficient storage resources" in said
    assert "--disk-limit" in said
    async with relay_process(tmp_path, nats=server.url) as relay:
        await relay.stop()
    # The same for a stream that is there.
    said = await trio.to_thread.run_sync(refused, *where, "--disk-limit", "999GiB")
    assert "insufficient storage resources" in said


async def test_no_server_is_one_sentence() -> None:
    where = ("--store", "nats", "--cluster", f"nats://127.0.0.1:{lasting_port()}")
    assert "cannot be opened" in await trio.to_thread.run_sync(refused, *where)


def refused(*options: str) -> str:
    """Start a relay that has to refuse, and say so in one line; return that."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "clearfunds", "relay", "--listen", "mqtt+tcp://127.0.0.1:0"),
            *options,
        ],
        capture_output=True,
        text=True,
        timeout=2 * SECONDS,
        check=False,
    )
    assert done.returncode in (1, 2), done
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr
