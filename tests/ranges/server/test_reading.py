"""Readers of ranges and a whole relay: attaching, fetching, acknowledging, being away."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import pytest
import trio

from clearfunds.accounts import Limit
from clearfunds.ranges.client import (
    AwayError,
    Block,
    DataLossError,
    FencedError,
    RangeError,
    RangeReader,
    RefusedError,
    Ticket,
)
from clearfunds.ranges.log import SubscriptionLimits
from tests.ranges.server.relays import HOST, Relay, blocking, running
from tests.transports.peers import connected, log_of, until


async def publish(relay: Relay, count: int, size: int = 10, first: int = 0) -> None:
    """Publish by a client of its own, and wait until the relay has it all."""
    before = relay.subscription().next
    async with connected(relay.mqtt_port, "publisher") as client:
        for number in range(first, first + count):
            await client.publish(f"a/{number}", b"%d" % number * size)
        await until(lambda: relay.subscription().next == before + count)


def numbers(reader: RangeReader, start: int, end: int) -> list[int]:
    """Fetch, and return the numbers that came."""
    return [row.number for block in reader.fetch(start, end) for row in block.rows()]


def values(reader: RangeReader, start: int, end: int) -> list[bytes]:
    return [row.value for block in reader.fetch(start, end) for row in block.rows()]


async def test_what_is_published_can_be_fetched_again_and_again_until_it_is_acknowledged() -> None:
    async with running() as relay:
        reader = await relay.attach(start="earliest")
        assert (reader.start, await blocking(reader.head)) == (1, (1, 1))
        assert await blocking(numbers, reader, 1, 5) == []
        await publish(relay, 20)
        assert await blocking(reader.head) == (1, 21)
        for _ in range(2):
            assert await blocking(values, reader, 1, 21) == [b"%d" % n * 10 for n in range(20)]
        assert await blocking(numbers, reader, 5, 8) == [5, 6, 7]
        (block,) = await blocking(lambda: list(reader.fetch(3, 100)))
        assert (block.first, block.end, block.accounts) == (
            3,
            21,
            [f"mqtt:{relay.mqtt_port}/-/publisher"],
        )
        assert list(block.offsets(block.key_lengths))[:3] == [0, 3, 6]
        assert bytes(block.keys)[:9] == b"a/2a/3a/4"
        assert (await blocking(reader.owed)).items == relay.subscription().unpaid_items == 20
        assert await blocking(reader.ack, 11) == (11, 21)
        assert await blocking(reader.ack, 5) == (11, 21)
        relay.audit()
        assert (await blocking(reader.owed)).items == 10
        with pytest.raises(DataLossError, match="messages 10 to 10 of subscription s are not"):
            await blocking(numbers, reader, 10, 12)
        with pytest.raises(RefusedError, match="22 cannot be acknowledged"):
            await blocking(reader.ack, 22)
        with pytest.raises(RefusedError, match="there is no message 22 yet"):
            await blocking(numbers, reader, 22, 23)
        assert await blocking(numbers, reader, 11, 13) == [11, 12]  # it goes on all the same
        await blocking(reader.ping)
        reader.close()
        with pytest.raises(RangeError, match="this reader was closed"):
            await blocking(reader.head)
        await until(lambda: not relay.subscription().attached)


async def test_publishers_wait_for_acknowledgements() -> None:
    # The need of it: a slow reader throttles who publishes, at the far end.
    async with running(mqtt_limit=Limit(items=100)) as relay, trio.open_nursery() as nursery:
        reader = await relay.attach()

        async def pour() -> None:
            async with connected(relay.mqtt_port, "publisher") as client:
                for number in range(1000):
                    await client.publish("a/b", b"%d" % number)
                await until(lambda: relay.subscription().next == 1001)

        nursery.start_soon(pour)
        await until(lambda: relay.ledger.waiters)
        held = relay.subscription().unpaid_items
        assert 100 <= held <= 120
        assert relay.client("publisher").waiting == 1
        at = 1
        seen: list[bytes] = []
        while at < 1001:
            relay.audit()
            assert relay.subscription().unpaid_items <= 120
            low, end = await blocking(reader.head)
            seen += await blocking(values, reader, low, end)
            at = end
            await blocking(reader.ack, at)
        assert seen == [b"%d" % number for number in range(1000)]


async def test_the_newest_reader_puts_the_older_one_out() -> None:
    async with running() as relay:
        older = await relay.attach(start="latest")
        along = await relay.join(older.ticket)
        await publish(relay, 3)
        assert await blocking(numbers, along, 1, 4) == [1, 2, 3]
        newer = await relay.attach(start="latest")
        assert newer.start == 1  # as it was pinned for the first of them
        assert (older.ticket.generation, newer.ticket.generation) == (1, 2)
        for out in (older, along):
            with pytest.raises(FencedError, match="generation 1 has ended, 2 has it now"):
                await blocking(out.ack, 2)
            with pytest.raises(FencedError):
                await blocking(numbers, out, 1, 2)
        with pytest.raises(FencedError):
            await relay.join(older.ticket, seconds=5)
        assert await blocking(numbers, newer, 1, 4) == [1, 2, 3]
        older.close()
        along.close()
        await until(lambda: len(relay.server.open) == 1)
        assert relay.subscription().attached


async def test_who_reads_along_does_not_keep_it_attached() -> None:
    async with running() as relay:
        reader = await relay.attach(grace=0.2, after_grace="drop")
        ticket = pickle.loads(pickle.dumps(reader.ticket))
        along = await relay.join(ticket)
        await publish(relay, 2)
        reader.close()
        await until(lambda: not relay.subscription().attached)
        assert await blocking(numbers, along, 1, 3) == [1, 2]
        await until(lambda: not len(relay.server.subscriptions))
        assert relay.ledger.statistics().repaid_items["dropped"] == 2
        with pytest.raises(RefusedError, match="subscription s was dropped"):
            await blocking(along.head)
        with pytest.raises(DataLossError, match="not there any more"):
            await relay.join(ticket)
        await relay.attach()
        with pytest.raises(DataLossError, match="made anew"):
            await relay.join(ticket)


@pytest.mark.parametrize("policy", ["hold", "write_off"])
async def test_what_happens_when_nobody_comes_back(
    policy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with running() as relay:
        reader = await relay.attach(grace=0.01, after_grace=policy)
        await publish(relay, 2)
        reader.close()
        await until(lambda: not relay.subscription().attached)
        await trio.sleep(0.02)
        relay.server.look_for_the_lost()
        reader = await relay.attach()
        held = policy == "hold"
        assert await blocking(reader.head) == (1 if held else 3, 3)
        assert bool(log_of(caplog, "its messages were written off")) is not held
        assert relay.subscription().options.after_grace == policy


async def test_who_looks_on_does_not_put_the_reader_out() -> None:
    async with running() as relay:
        with pytest.raises(RefusedError, match="there is no subscription 's' here"):
            await relay.join(Ticket("s"))
        reader = await relay.attach()
        await publish(relay, 3)
        along = await relay.join(Ticket("s"))
        assert along.ticket == reader.ticket
        assert await blocking(numbers, along, 1, 4) == await blocking(numbers, reader, 1, 4)
        await relay.attach()
        with pytest.raises(FencedError, match="another reader has attached"):
            await blocking(along.head)
        assert (await relay.join(Ticket("s"))).ticket.generation == 2


async def test_how_far_so_many_bytes_reach() -> None:
    async with running() as relay:
        reader = await relay.attach()
        assert await blocking(reader.reach, 1, 1000) == 1
        await publish(relay, 10, size=100)  # on topics of three bytes
        assert await blocking(reader.reach, 1, 1000) == 1 + 1000 // 123
        assert await blocking(reader.reach, 9, 1000) == 11
        assert await blocking(reader.reach, 3, 0) == 4
        await blocking(reader.ack, 5)
        standing = await blocking(reader.standing)
        assert standing[:3] == (5, 11, 6)
        assert standing.bytes == (await blocking(reader.owed)).bytes > 0
        with pytest.raises(DataLossError):
            await blocking(reader.reach, 4, 1)


async def test_several_fetch_at_the_same_time() -> None:
    count = 3000
    async with running() as relay:
        reader = await relay.attach(fetch_bytes=20_000)
        await publish(relay, count)
        wanted = [b"%d" % n * 10 for n in range(count)]
        found: dict[int, list[bytes]] = {}

        async def fetch(which: int, by: RangeReader) -> None:
            found[which] = await blocking(values, by, 1 + which, count + 1)

        along = await relay.join(reader.ticket)
        async with trio.open_nursery() as nursery:
            for which in range(6):
                # By threads that share a connection, and over several.
                nursery.start_soon(fetch, which, along if which % 3 else reader)
        assert found == {which: wanted[which:] for which in range(6)}
        relay.audit()
        # And from other processes, which need nothing but the ticket.
        code = (
            "import sys, pickle\n"
            "from clearfunds.ranges.client import RangeReader\n"
            "port, ticket = pickle.loads(bytes.fromhex(sys.argv[1]))\n"
            "with RangeReader.join('127.0.0.1', port, ticket) as reader:\n"
            "    print(sum(block.count for block in reader.fetch(1, 10**6)))\n"
            "print([name for name in sys.modules if name == 'trio' or name.startswith('attr')])\n"
        )
        ticket = pickle.dumps((relay.port, reader.ticket)).hex()
        runs = await blocking(
            lambda: [
                run.communicate(timeout=30)[0]
                for run in [
                    subprocess.Popen(
                        [sys.executable, "-c", code, ticket], stdout=subprocess.PIPE, text=True
                    )
                    for _ in range(2)
                ]
            ]
        )
        assert runs == [f"{count}\n[]\n"] * 2
        await until(lambda: len(relay.server.open) == 2)


async def test_a_reader_that_is_killed_has_gone() -> None:
    code = (
        "import sys, time\n"
        "from clearfunds.ranges.client import RangeReader\n"
        "reader = RangeReader('127.0.0.1', int(sys.argv[1]), 's', filters=['a/#'])\n"
        "print(reader.ticket.generation, flush=True)\n"
        "time.sleep(60)\n"
    )
    async with running() as relay:
        command = [sys.executable, "-c", code, str(relay.port)]
        process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        async with process.stdout:
            assert (await process.stdout.receive_some(10)).strip() == b"1"
            assert relay.subscription().attached
            process.kill()
            await process.wait()
        await until(lambda: not relay.subscription().attached)


async def test_a_fetch_may_be_left_half_way() -> None:
    async with running() as relay:
        reader = await relay.attach(fetch_bytes=1)
        await publish(relay, 10, size=30_000)

        def first(start: int) -> Block:
            return next(iter(reader.fetch(start, 11)))

        for start in (1, 4, 2):
            assert (await blocking(first, start)).first == start
        assert await blocking(numbers, reader, 1, 11) == list(range(1, 11))


async def test_a_broken_connection_is_made_again_with_the_same_generation() -> None:
    async with running() as relay:
        reader = await relay.attach(start="latest", fetch_bytes=1)
        await publish(relay, 12, size=70_000)
        found: list[int] = []
        fetching = reader.fetch(1, 13)
        for _ in range(6):
            found.append((await blocking(lambda: next(fetching))).first)
            for session in list(relay.server.open):
                session.cut("a cable was pulled")
            await until(lambda: not relay.server.open)
        found += [block.first for block in await blocking(lambda: list(fetching))]
        assert found == sorted(set(found))
        assert await blocking(numbers, reader, 1, 13) == list(range(1, 13))
        assert reader.ticket.generation == relay.subscription().generation == 1


async def test_a_relay_that_is_away_and_one_that_has_forgotten() -> None:
    async with running() as relay:
        port = relay.port
        reader = await relay.attach(timeout=0.3)
        relay.readers.remove(reader)  # it outlives the relay
        ticket = reader.ticket
        with pytest.raises(RefusedError, match="attach with topic filters"):
            await relay.attach("other", filters=[])
    with pytest.raises(AwayError, match=rf"the relay at {HOST}:{port} did not answer within 0.3 s"):
        await blocking(reader.head)
    reader.close()
    with pytest.raises(AwayError):
        await blocking(RangeReader, HOST, port, "s", timeout=0.1)
    async with running() as relay:
        # Another process would have kept nothing of what was in RAM.
        with pytest.raises(DataLossError, match="'s' is not there any more"):
            await relay.join(ticket)
        assert len(relay.server.subscriptions) == 0
        await relay.attach()
        with pytest.raises(DataLossError, match="made anew"):
            await relay.join(ticket)


async def test_a_subscription_can_be_dropped() -> None:
    async with running() as relay:
        reader = await relay.attach()
        await publish(relay, 3)
        await blocking(reader.drop)
        assert len(relay.server.subscriptions) == relay.dataspace.statistics().subscriptions == 0
        assert set(relay.ledger.accounts) - {"server", "readers", "staged"} <= {
            f"mqtt:{relay.mqtt_port}/-/publisher",
            *(s.name for s in relay.server.open),
        }
        relay.audit()


async def test_there_are_limits() -> None:
    limits = SubscriptionLimits(max_subscriptions=1)
    async with running(limits=limits, max_connections=2) as relay:
        with pytest.raises(RefusedError, match="this relay has no store"):
            await relay.attach(durable=True)
        with pytest.raises(RefusedError, match="at most 128"):
            await relay.attach(filters=["a/" * 128 + "#"])
        reader = await relay.attach()
        with pytest.raises(RefusedError, match=r"max_subscriptions"):
            await relay.attach("t")
        with pytest.raises(RefusedError, match="is bound to a/#, not to b"):
            await relay.attach(filters=["b"])
        await until(lambda: len(relay.server.open) == 1)
        await relay.join(reader.ticket)
        with pytest.raises(AwayError):
            await relay.join(reader.ticket, seconds=0.1)


def test_the_client_needs_neither_trio_nor_the_relay() -> None:
    code = (
        "import sys, clearfunds.ranges.client\n"
        "print(sorted({name.partition('.ranges.')[2].partition('.')[0] or name\n"
        "              for name in sys.modules if name.split('.')[0] in\n"
        "              ('trio', 'attr', 'attrs', 'clearfunds', 'prometheus_client')}))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "['clearfunds', 'clearfunds.ranges', 'client', 'wire']\n"
