"""Power that fails: what a relay has acknowledged was on the disk, not on its way there."""

from __future__ import annotations

import errno
import random
from functools import partial

import pytest
import trio

from clearfunds.transports.mqtt import PubComp, Publish, PubRec, PubRel
from tests.relay.brokers import Broker
from tests.relay.faithful import Life, Load, mixed
from tests.relay.powered import powered
from tests.store.disk import Disks, refuse
from tests.transports.peers import until

ENOUGH = 101
"""Messages to be confirmed in all."""


async def rounds(disks: Disks, seed: int, number: int, **settings: object) -> Load:
    """Let the power fail so many times under load; return what was seen.

    Before each failure some messages are confirmed, however slow the machine is.
    """
    chance = random.Random(seed)
    disk = disks(seed)
    load = Load(seed)
    mixed(load)
    async with trio.open_nursery() as nursery:
        load.start(nursery)
        for number_left in range(number, -1, -1):
            async with powered(disk, **settings) as relay:
                load.life = Life(relay.port)
                enough = len(load.confirmed) + chance.randrange(40)
                await until(partial(load.has_confirmed, enough))
                await trio.sleep(chance.uniform(0.0, 0.3))
                if not number_left:
                    await until(partial(load.has_confirmed, ENOUGH))
                    await load.settled()
                    load.over = True
        nursery.cancel_scope.cancel()
    load.check()
    return load


@pytest.mark.parametrize(
    ("seed", "interval"), [(1, 0.0), pytest.param(2, 0.02, marks=pytest.mark.long), (3, 0.1)]
)
async def test_power_fails_under_load(seed: int, interval: float, disks: Disks) -> None:
    load = await rounds(disks, seed, 6, fsync_interval=interval)
    assert len(load.confirmed) > 100
    assert sum(each.again for each in load.subscribers) > 10


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 120))
async def test_power_fails_under_load_a_hundred_times(seed: int, disks: Disks) -> None:
    await rounds(disks, seed, 10)


async def test_what_is_given_once_was_on_disk_before(disks: Disks) -> None:
    """Or after a crash another message would have its identifier, and be taken for it."""
    disk = disks(1)
    async with powered(disk, fsync_interval=0.1) as relay:
        broker = Broker(relay.port, 32, "p")
        async with broker.visit(leave=True) as client:
            await client.subscribe(broker.topic, qos=2)
        async with broker.visit() as client, broker.publisher() as publisher:
            await publisher.publish(broker.topic, b"1", 2)
            (first,) = await client.messages(1)
            await publisher.send(Publish(broker.topic, b"2", 2, packet_id=7))
            message = await client.message()
            assert message.payload == b"2"
    async with powered(disk) as relay:
        broker = Broker(relay.port, 32, "p")
        async with broker.visit(present=True) as client:
            again = await client.messages(2)
            assert [(m.payload, m.dup, m.packet_id) for m in again] == [
                (b"1", True, first.packet_id),
                (b"2", True, message.packet_id),
            ]


async def test_what_is_received_is_released_once_that_is_on_disk_also_by_the_next_connection(
    disks: Disks,
) -> None:
    """Or after a crash it would come again to who has been told that it is over."""
    disk = disks(1)
    async with powered(disk) as relay:
        broker = Broker(relay.port, 32, "p")
        async with broker.visit() as client:
            await client.subscribe(broker.topic, qos=2)
            await broker.publish([b"1"], 2)
            (message,) = await client.messages(1)
            disk.fault = refuse(errno.EIO, "sync")
            await client.send(PubRec(message.packet_id))
            assert await client.all() == []
        async with broker.visit(present=True) as client:
            assert await client.all() == []
            disk.fault = None
            await client.expect(PubRel(message.packet_id))
            await client.send(PubComp(message.packet_id))
            assert await client.all() == []
