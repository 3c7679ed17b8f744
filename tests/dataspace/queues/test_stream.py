"""Deliveries to iterate over."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from clearfunds.dataspace.queues import Channel, QueueDeletedError, QueueInUseError
from tests.dataspace.queues.conftest import Bench, name_of
from tests.loops import open_nursery, yields


async def test_iterating(bench: Bench) -> None:
    queue = bench.queue()
    bench.publish(*"abc")
    seen: list[str] = []
    with queue.consumer(prefetch=2) as deliveries:
        async for delivery in deliveries:
            with delivery as event:
                seen.append(event.payload.decode())
            if len(seen) == 3:
                break
    assert seen == [*"abc"]
    assert not bench.publisher.debt_items
    assert not queue.consumers


async def test_waiting_for_a_delivery(bench: Bench) -> None:
    queue = bench.queue()
    seen: list[str] = []

    async def work() -> None:
        async for delivery in stream:
            seen.append(name_of(delivery))
            delivery.ack()

    async with open_nursery() as nursery:
        stream = queue.consumer()
        nursery.start_soon(work)
        nursery.start_soon(work)
        await anyio.wait_all_tasks_blocked()
        bench.publish(*"abcd")
        await anyio.wait_all_tasks_blocked()
        assert sorted(seen) == [*"abcd"]
        queue.delete()
    with pytest.raises(QueueDeletedError, match="was deleted"):
        await stream.receive()


async def test_receiving_checkpoints_before_it_takes(bench: Bench) -> None:
    queue = bench.queue()
    bench.publish("a")
    with queue.consumer() as stream:
        with anyio.move_on_after(0) as scope:
            await stream.receive()
        assert scope.cancelled_caught
        async with yields():
            delivery = await stream.receive()
        delivery.ack()
        with anyio.move_on_after(0.01) as scope:
            await stream.receive()
        assert scope.cancelled_caught


async def test_what_was_not_dealt_with_goes_back(bench: Bench) -> None:
    queue = bench.queue()
    bench.publish(*"abc")
    with queue.consumer(prefetch=3) as stream:
        first = await stream.receive()
        await stream.receive()
        first.ack()
    assert len(queue) == 2
    stream.close()
    assert "0 to receive" in repr(stream)
    with pytest.raises(QueueDeletedError, match="closed"):
        await stream.receive()


async def test_on_somebody_elses_channel_only_what_was_not_received(bench: Bench) -> None:
    queue = bench.queue()
    bench.publish(*"abc")
    channel = Channel("mine")
    with queue.consumer(prefetch=3, channel=channel) as stream:
        delivery = await stream.receive()
    assert len(queue) == 2
    assert channel.outstanding() == [delivery]
    assert not channel.closed


async def test_a_block_that_is_cancelled_puts_it_back_and_it_is_no_failure(bench: Bench) -> None:
    queue = bench.queue(delivery_limit=0)
    bench.publish("a")
    with queue.consumer() as stream:
        delivery = await stream.receive()
        with anyio.CancelScope() as scope, delivery:
            scope.cancel()
            await anyio.lowlevel.checkpoint()
        again = await stream.receive()
        assert again.redelivered
        assert not again.message.failures
        again.ack()


async def test_exclusive(bench: Bench) -> None:
    queue = bench.queue()
    with queue.consumer(exclusive=True), pytest.raises(QueueInUseError):
        queue.consumer()
    assert not queue.consumers


async def test_when_its_channel_is_closed_nothing_is_received(bench: Bench) -> None:
    queue = bench.queue()
    channel = Channel("shared")
    stream = queue.consumer(prefetch=2, channel=channel)

    async def receive() -> None:
        with pytest.raises(QueueDeletedError, match=r"channel .* is closed"):
            await stream.receive()

    async with open_nursery() as nursery:
        nursery.start_soon(receive)
        await anyio.wait_all_tasks_blocked()
        channel.close()
    stream.close()
    with queue.consumer(prefetch=2) as stream:
        bench.publish(*"ab")
        stream.channel.close()
        # Both are the queue's again, and another consumer's to take.
        await receive()
        assert len(queue) == 2
