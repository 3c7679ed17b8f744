"""Publications one at a time, each in a read of its own, and what is remembered of the last."""

from __future__ import annotations

import random

import pytest
import trio

from clearfunds.transports.mqtt import Publish, Subscribe, Unsubscribe, encode
from tests.transports.peers import BareClient, connected, running, until

TOPICS = ("a", "a/b", "b")


async def one_at_a_time(pub: BareClient, sub: BareClient, payloads: list[bytes]) -> None:
    for payload in payloads:
        await pub.publish("a", payload)
        assert await sub.publication() == Publish("a", payload)


async def test_alike_and_then_not() -> None:
    async with running() as relay, connected(relay.port, "sub") as sub:
        await sub.subscribe("#")
        async with connected(relay.port, "pub") as pub:
            await one_at_a_time(pub, sub, [b"1", b"2", b"3", b"33", b"4", b"5", b"x" * 200, b"6"])
            # The same size and the same beginning, but two.
            await pub.send(Publish("a", b""), Publish("a", b""))
            assert await sub.publications(2) == [Publish("a", b"")] * 2
            await one_at_a_time(pub, sub, [b"1234567", b"1234567"])


async def test_who_is_concerned_is_looked_up_each_time() -> None:
    async with (
        running() as relay,
        connected(relay.port, "first") as first,
        connected(relay.port, "second") as second,
        connected(relay.port, "pub") as pub,
    ):
        await first.subscribe("a")
        await one_at_a_time(pub, first, [b"1", b"2", b"3"])
        await second.subscribe("#")
        await pub.publish("a", b"4")
        assert await first.publication() == await second.publication() == Publish("a", b"4")
        await first.send(Unsubscribe(1, ("a",)))
        await first.receive()
        await one_at_a_time(pub, second, [b"5", b"6"])
        await second.send(Unsubscribe(1, ("#",)))
        await second.receive()
        await pub.publish("a", b"7")
        await until(lambda: relay.relay.dataspace.unrouted == 1)


async def test_a_packet_in_pieces_is_no_packet_alike() -> None:
    async with running() as relay, connected(relay.port, "sub") as sub:
        await sub.subscribe("#")
        async with connected(relay.port, "pub") as pub:
            await one_at_a_time(pub, sub, [b"123456"] * 3)
            raw = encode(Publish("a", b"123456"))
            await pub.stream.send_all(raw + raw[:4])
            assert await sub.publication() == Publish("a", b"123456")
            await pub.stream.send_all(raw[4:])
            assert await sub.publication() == Publish("a", b"123456")


async def test_who_has_to_wait_waits() -> None:
    async with (
        running(limit_items=3, stuck="wait") as relay,
        connected(relay.port, "sub", receive_buffer=4096) as sub,
        connected(relay.port, "pub") as pub,
    ):
        await sub.subscribe("a")
        payload = bytes(20_000)
        account = relay.account("pub")
        counters = relay.relay.mqtt.counters
        sent = 0
        with trio.fail_after(30):
            while account.debt_items <= 3:
                sent += 1
                await pub.publish("a", payload)
                await until(lambda n=sent: counters.received == n)  # type: ignore[misc]
            # Its socket takes some more; the relay does not.
            await pub.publish("a", payload)
            await trio.sleep(0.1)
            relay.audit()
            assert counters.received == sent
            assert await sub.publications(sent + 1) == [Publish("a", payload)] * (sent + 1)
            await until(lambda: not account.debt_items)


@pytest.mark.parametrize("seed", range(3))
async def test_any_order_of_anything(seed: int) -> None:
    chance = random.Random(seed)
    async with running() as relay, connected(relay.port, "sub") as sub:
        await sub.subscribe("#")
        async with connected(relay.port, "pub") as pub:
            for number in range(300):
                topic = chance.choices(TOPICS, (8, 1, 1))[0]
                sent = [
                    Publish(topic, b"%03d" % number) for _ in range(chance.choice((1, 1, 1, 2)))
                ]
                await pub.send(*sent)
                if chance.random() < 0.8:
                    assert await sub.publications(len(sent)) == sent
                else:
                    # The next ones come in one read, or in two.
                    more = [Publish(topic, b"+%02d" % (number % 100))]
                    await pub.send(*more)
                    assert await sub.publications(len(sent) + 1) == sent + more
                if chance.random() < 0.05:
                    await sub.send(Subscribe(7, (("+", 0),)))
                    await sub.receive()
                    await sub.send(Unsubscribe(8, ("+",)))
                    await sub.receive()
        assert relay.statistics().debt_items == 0
