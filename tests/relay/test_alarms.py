"""An alarm stops who publishes, and nobody else."""

from __future__ import annotations

from clearfunds.accounts import MEMORY
from clearfunds.transports.mqtt import (
    PingReq,
    PingResp,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)
from tests.transports.peers import connected, running, until


async def test_who_only_consumes_is_not_stopped() -> None:
    """Consumers come, subscribe, take, acknowledge and leave: that is what an alarm waits for."""
    async with (
        running() as relay,
        connected(relay.port, "consumer") as consumer,
        connected(relay.port, "publisher") as publisher,
    ):
        await consumer.subscribe("t", qos=1)
        await publisher.publish("t", b"before", qos=1, packet_id=1)
        before = await consumer.publication()
        server = relay.ledger.accounts["server"]
        server.halt(MEMORY)
        assert relay.account("consumer").debt_items == 0
        assert relay.account("publisher").debt_items == 1
        await consumer.send(Subscribe(2, (("u", 0),)), PingReq(), Unsubscribe(3, ("u",)))
        await consumer.expect(SubAck(2, (0,)))
        await consumer.expect(PingResp())
        await consumer.expect(UnsubAck(3))
        await consumer.send(PubAck(before.packet_id))
        await until(lambda: relay.account("publisher").debt_items == 0)
        async with connected(relay.port, "late") as late:
            await late.subscribe("t")
            assert relay.statistics().waiting == 0
        server.resume(MEMORY)
        await publisher.expect(PubAck(1))


async def test_who_publishes_waits_until_the_alarm_is_over_and_loses_nothing() -> None:
    async with (
        running() as relay,
        connected(relay.port, "consumer") as consumer,
        connected(relay.port, "publisher") as publisher,
        connected(relay.port, "other") as other,
    ):
        await consumer.subscribe("t", qos=1)
        server = relay.ledger.accounts["server"]
        server.halt(MEMORY)
        await publisher.send(
            PingReq(), *[Publish("t", b"%d" % n) for n in range(100)], Subscribe(5, (("u", 0),))
        )
        await other.publish("t", b"acked", qos=1, packet_id=7)
        await publisher.expect(PingResp())
        await until(lambda: relay.statistics().waiting == 2)
        assert await consumer.silent()
        assert await other.silent()
        # What comes after a publication waits with it; but for what is answered out of turn.
        await publisher.send(PingReq())
        await publisher.expect(PingResp())
        server.resume(MEMORY)
        await publisher.expect(SubAck(5, (0,)))
        await other.expect(PubAck(7))
        payloads = [(await consumer.publication()).payload for _ in range(101)]
        assert [each for each in payloads if each != b"acked"] == [b"%d" % n for n in range(100)]
        assert relay.statistics().waits_by_reason["alarm"] == relay.statistics().waits == 2


async def test_what_frees_memory_is_not_stopped() -> None:
    """What is retained may be the cause: clearing it, and unsubscribing, go on."""
    async with (
        running() as relay,
        connected(relay.port, "keeper") as keeper,
        connected(relay.port, "consumer") as consumer,
    ):
        await keeper.publish("kept/0", b"x", qos=1, retain=True, packet_id=1)
        await keeper.expect(PubAck(1))
        await keeper.publish("kept/1", b"x", retain=True)
        await until(lambda: len(relay.relay.dataspace.retained) == 2)
        await consumer.subscribe("news")
        server = relay.ledger.accounts["server"]
        server.halt(MEMORY)
        await keeper.publish("kept/0", b"", qos=1, retain=True, packet_id=2)
        await keeper.expect(PubAck(2))
        await keeper.publish("kept/1", b"", retain=True)
        await until(lambda: not len(relay.relay.dataspace.retained))
        await consumer.send(Unsubscribe(3, ("news",)))
        await consumer.expect(UnsubAck(3))
        # What is published, or retained anew, waits.
        for publication in (Publish("kept/2", b"x", retain=True), Publish("kept/2", b"")):
            await keeper.send(publication)
        await until(lambda: relay.statistics().waiting == 1)
        assert not len(relay.relay.dataspace.retained)
        server.resume(MEMORY)
        await until(lambda: len(relay.relay.dataspace.retained) == 1)
