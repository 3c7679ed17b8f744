"""The chain of four with a real store: reader -> queue -> store, and an outlet beside it.

The numbers are those of the seeds: {200, 50} and, for the store, {2000, 500}.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from clearfunds.accounts._gate import gate_of
from clearfunds.persistence import Shelves
from clearfunds.transports.mqtt import ConnAck, Connect, PubAck, Publish, encode
from experiments.credit_flow import CREDIT_2015, STORE_CREDIT, Credit
from experiments.credit_flow._processes import QueueStation, Reader
from tests.experiments.credit_flow.relays import on_credit, scheme
from tests.transports.peers import BareClient, RunningRelay, connected, dial, running, until

NEVER = 3600.0
"""An interval between syncs in which nothing becomes durable by itself."""


SMALL = Credit(20, 10)


def hurry(relay: RunningRelay) -> None:
    """Let the store write down all that it has."""
    persistence: Any = relay.relay.persistence
    persistence.hurry()


@asynccontextmanager
async def kept(relay: RunningRelay, name: str = "kept") -> AsyncGenerator[BareClient]:
    """Connect a client whose session is kept."""
    async with dial(relay.port) as client:
        await client.stream.send_all(client.connection.send(Connect(name, False, 0)))
        packet = await client.receive()
        assert isinstance(packet, ConnAck)
        yield client
    # When it goes, the store hurries once more.
    await until(lambda: name not in relay.relay.mqtt.sessions)
    await trio.sleep(0.05)


def stream(count: int, size: int = 30, first: int = 1) -> bytes:
    """Publications with QoS 1, each with a number of its own."""
    return b"".join(
        encode(Publish("t", b"%06d" % n + bytes(size), 1, packet_id=n % 65_000 + 1))
        for n in range(first, first + count)
    )


def the_two(relay: RunningRelay) -> tuple[Reader, QueueStation]:
    found = scheme(relay)
    (queue,) = [each for each in found.stations if isinstance(each, QueueStation)]
    return found.readers[relay.account("pub")], queue


@asynccontextmanager
async def chain(
    tmp_path: Path,
    *,
    reader_outlet: Credit = CREDIT_2015,
    reader_queue: Credit = CREDIT_2015,
    queue_store: Credit = STORE_CREDIT,
    disk_limit: int = 1 << 30,
) -> AsyncGenerator[RunningRelay]:
    async with running(
        serve=on_credit(
            reader_outlet=reader_outlet, reader_queue=reader_queue, queue_store=queue_store
        ),
        store=str(tmp_path / "store"),
        fsync_interval=NEVER,
        disk_limit=disk_limit,
    ) as relay:
        # A disk that takes nothing until it is asked to.
        assert isinstance(relay.relay.persistence, Shelves)
        relay.relay.persistence.rests = None
        yield relay


async def held_back(relay: RunningRelay) -> None:
    """Wait until the publisher is not read any more, for the queue's sake."""
    _, queue = the_two(relay)
    account = relay.account("pub")
    await until(lambda: account.waiting)
    assert gate_of(account).blockers == (queue.name,)


async def drained(client: BareClient, first: int, last: int) -> None:
    """Expect the answers to these publications, in order."""
    for n in range(first, last + 1):
        await client.expect(PubAck(n % 65_000 + 1))


async def test_the_store_blocks_the_queue_which_blocks_the_reader(tmp_path: Path) -> None:
    """And one grant of the store's goes through to the reader.

    The queue takes messages in as they come and writes them down, so it has granted for 2,000 when
    the 2,000th has blocked it; the reader has 200 left. In the chain of `accounts` there is one
    more process, and each works when it is told to, so that it holds more.
    """
    async with chain(tmp_path) as relay:
        async with kept(relay) as sub:
            await sub.subscribe("t", qos=1)
        async with connected(relay.port, "pub") as pub, trio.open_nursery() as nursery:
            nursery.start_soon(pub.stream.send_all, stream(5000))
            await held_back(relay)
            reader, queue = the_two(relay)
            store = scheme(relay).store
            assert queue.received == 2200
            assert queue.flow.blockers == [store]
            assert queue.flow.credit_from == {store: -200}
            assert queue.flow.deferred == [(reader, 50)] * 4
            assert reader.flow.blockers == [queue]
            assert reader.flow.credit_from[queue] == 0
            # All of it is owed for until it is durable, and none of it is confirmed.
            assert relay.account("pub").debt_items == 2200
            assert await pub.silent(0.1)
            assert queue.received == 2200

            hurry(relay)
            await drained(pub, 1, 2200)
            # Again: for 2,200 that were handled there were four grants of 500; less what it had
            # overdrawn, that is 1,800. The reader has its 200 more, once these are spent.
            while queue.received < 4200:  # noqa: ASYNC110
                await trio.sleep(0.01)
            await held_back(relay)
            assert queue.flow.credit_from == {store: -200}
            assert store.flow.credit_to == {queue: 300}
            while queue.received < 5000 or relay.account("pub").debt_items:
                hurry(relay)
                await trio.sleep(0.02)
            await drained(pub, 2201, 5000)
        await until(lambda: len(scheme(relay).readers) == 0)
        assert queue.flow.credit_to == {}
        assert not queue.flow.deferred
        relay.audit()
        async with kept(relay) as sub:
            got = await sub.publications(5000, ack=True)
            assert [int(p.payload[:6]) for p in got] == list(range(1, 5001))


async def test_an_outlet_beside_the_queue_gets_nothing_while_the_store_blocks(
    tmp_path: Path,
) -> None:
    """Which is what credit flow does: the reader does not know where the next message goes."""
    async with (
        chain(tmp_path, queue_store=Credit(100, 50), reader_queue=SMALL) as r,
        connected(r.port, "innocent") as innocent,
    ):
        await innocent.subscribe("innocent")
        async with kept(r) as sub:
            await sub.subscribe("t", qos=1)
        async with connected(r.port, "pub") as pub:
            await pub.stream.send_all(stream(130))
            await held_back(r)
            await pub.publish("innocent", b"patience")
            assert await innocent.silent(0.2)
            hurry(r)
            assert (await innocent.publication()).payload == b"patience"
            hurry(r)
            await drained(pub, 1, 130)
        r.audit()


async def test_an_outlet_that_is_not_read_blocks_though_the_queue_does_not(tmp_path: Path) -> None:
    async with (
        chain(tmp_path, reader_outlet=Credit(20, 10)) as relay,
        connected(relay.port, "stuck", receive_buffer=4096) as stuck,
    ):
        await stuck.subscribe("t")
        async with kept(relay) as sub:
            await sub.subscribe("t", qos=1)
            async with connected(relay.port, "pub") as pub, trio.open_nursery() as nursery:
                nursery.start_soon(pub.stream.send_all, stream(200, 100_000))
                account = relay.account("pub")
                name = relay.account("stuck").name
                while gate_of(account).blockers != (name,) or not account.waiting:
                    hurry(relay)
                    await trio.sleep(0.05)
                _, queue = the_two(relay)
                assert not queue.flow.blocked
                assert scheme(relay).statistics().kinds["queue"].deferred == 0
                nursery.start_soon(stuck.publications, 200)
                nursery.start_soon(sub.publications, 200, True)
                while relay.account("pub").debt_items or queue.received != 200:
                    hurry(relay)
                    await trio.sleep(0.01)
                await drained(pub, 1, 200)
        relay.audit()


@pytest.mark.parametrize("who", ["publisher", "session"])
async def test_who_goes_while_all_are_blocked_leaves_nothing(who: str, tmp_path: Path) -> None:
    small = Credit(20, 5)
    async with chain(tmp_path, reader_queue=small, queue_store=Credit(100, 50)) as r:
        async with kept(r) as sub:
            await sub.subscribe("t", qos=1)
        async with connected(r.port, "pub") as pub:
            await pub.stream.send_all(stream(300))
            await held_back(r)
            reader, queue = the_two(r)
            account = reader.account
            if who == "session":
                sessions = r.relay.mqtt.persistent_sessions
                assert sessions is not None
                sessions.discard("kept")
                assert queue.down
                assert gate_of(account).blockers == ()
                # Nobody is there for the rest.
                await drained(pub, 1, 300)
                assert scheme(r).store.flow.credit_to == {}
            if who == "publisher":
                # With input that it has not been read for, it would be waited for.
                r.relay.mqtt.sessions["pub"].cut("the test wants it")
        if who == "publisher":
            await until(lambda: "pub" not in r.relay.mqtt.sessions)
            # It owes for what is not durable; and there is a grant that nobody will get.
            assert not reader.down
            hurry(r)
            await until(lambda: reader.down)
            assert not queue.flow.blocked
            assert not queue.flow.deferred
            assert queue.flow.credit_to == {}
            assert not queue.senders
        await until(lambda: not scheme(r).readers)
        r.audit()


async def test_a_queue_whose_budget_is_spent_holds_its_senders_back(tmp_path: Path) -> None:
    """Not for want of credit: as queues of RabbitMQ's block that are slow for another reason."""
    async with chain(tmp_path, disk_limit=20_000, reader_queue=Credit(20, 10)) as relay:
        async with kept(relay) as sub:
            await sub.subscribe("t", qos=1)
            async with connected(relay.port, "pub") as pub:
                await pub.stream.send_all(stream(300, 1000))
                await held_back(relay)
                _, queue = the_two(relay)
                assert queue.short
                assert queue.flow.credit_from[scheme(relay).store] > 0
                assert queue.received < 60
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(sub.publications, 300, True)
                    nursery.start_soon(drained, pub, 1, 300)
                    while nursery.child_tasks:
                        hurry(relay)
                        await trio.sleep(0.01)
                assert not queue.short
                assert not queue.flow.blocked
        relay.audit()


async def test_without_a_store_memory_is_what_queues_write_to() -> None:
    async with running(profile="lossless", serve=on_credit(queue_store=Credit(10, 5))) as relay:
        async with kept(relay) as sub:
            await sub.subscribe("t", qos=1)
            async with connected(relay.port, "pub") as pub, trio.open_nursery() as nursery:
                nursery.start_soon(pub.stream.send_all, stream(1000))
                nursery.start_soon(drained, pub, 1, 1000)
                await sub.publications(1000, ack=True)
        assert scheme(relay).statistics().kinds["store"].received == 1000
        assert scheme(relay).store.flow.sums().granted == 1000
        relay.audit()
