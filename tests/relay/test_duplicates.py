"""A publication that comes again while it is not acknowledged is charged, and delivered, once."""

from __future__ import annotations

import errno

import pytest

from clearfunds.transports.mqtt import PingReq, PingResp, PubAck, Publish
from tests.relay.brokers import Broker, bodies
from tests.relay.powered import powered
from tests.store.disk import Disks, refuse
from tests.transports.peers import until

FULL = refuse(errno.ENOSPC, "write")


async def test_a_duplicate_is_the_same_debt_until_it_is_acknowledged(disks: Disks) -> None:
    disk = disks()
    async with powered(disk) as relay:
        broker = Broker(relay.port, 32, "d")
        async with broker.visit(leave=True) as client:
            await client.subscribe(broker.topic, qos=1)
        async with broker.publisher() as publisher:
            account = relay.account(f"{broker.prefix}-publisher")
            disk.fault = FULL
            first = [Publish(broker.topic, b"%d" % n, 1, packet_id=n) for n in (1, 2, 3)]
            again = [Publish(p.topic, p.payload, 1, dup=True, packet_id=p.packet_id) for p in first]
            await publisher.send(*first, PingReq())
            await publisher.expect(PingResp())
            owed = account.debt_items, account.debt_bytes
            borrowed = account.borrowed_items
            assert owed[0] == 3
            # A client that times out, and sends everything once more, again and again.
            rounds = 10
            for _ in range(rounds):
                await publisher.send(*again, PingReq())
                await publisher.expect(PingResp())
            assert (account.debt_items, account.debt_bytes) == owed
            assert account.borrowed_items == borrowed + rounds  # for the answers to pings
            relay.audit()
            disk.fault = None
            await publisher.expect(PubAck(1), PubAck(2), PubAck(3))
            await until(lambda: account.debt_items == 0)
            # From here on the identifier stands for another publication [MQTT-4.3.2-2].
            await publisher.send(again[1])
            await publisher.expect(PubAck(2))
            assert account.borrowed_items > borrowed + rounds
        async with broker.visit(present=True) as client:
            assert bodies(await client.take(4)) == [b"1", b"2", b"3", b"2"]
        relay.audit()


async def test_it_is_so_for_a_session_that_comes_back_on_another_connection(disks: Disks) -> None:
    disk = disks()
    async with powered(disk) as relay:
        broker = Broker(relay.port, 32, "d")
        async with broker.visit(leave=True) as client:
            await client.subscribe(broker.topic, qos=1)
        async with broker.visit("publisher", leave=True):
            pass
        for number in range(3):
            async with broker.visit("publisher", present=True) as publisher:
                if not number:
                    disk.fault = FULL
                message = Publish(broker.topic, b"x", 1, dup=number > 0, packet_id=9)
                await publisher.send(message, PingReq())
                await publisher.expect(PingResp())
                assert relay.statistics().debt_items == 1
                relay.audit()
                if number == 2:
                    disk.fault = None
                    await publisher.expect(PubAck(9))
        async with broker.visit(present=True) as client:
            assert bodies(await client.take(1)) == [b"x"]
            assert await client.all() == []
        relay.audit()


@pytest.mark.parametrize("dup", [False, True])
async def test_without_an_earlier_one_it_is_an_ordinary_publication(
    dup: bool, disks: Disks
) -> None:
    async with powered(disks()) as relay:
        broker = Broker(relay.port, 32, "d")
        async with broker.visit() as client, broker.publisher() as publisher:
            await client.subscribe(broker.topic, qos=1)
            await publisher.send(Publish(broker.topic, b"x", 1, dup=dup, packet_id=4))
            await publisher.expect(PubAck(4))
            assert bodies(await client.take(1)) == [b"x"]
