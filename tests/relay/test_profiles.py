"""Profiles: balanced, which is the default, lossless and live."""

from __future__ import annotations

import socket
from contextlib import AsyncExitStack

import pytest
import trio
import trio.testing

from clearfunds.accounts import Outcome, Profile, StuckPolicy
from clearfunds.transports import SubscriptionPolicy
from clearfunds.transports.mqtt import PubAck, Publish, SubAck, Unsubscribe, encode
from clearfunds.transports.mqtt.codec._packets import Subscribe
from clearfunds.transports.mqtt.codec._properties import Properties
from tests.transports.mqtt.peers5 import connected5
from tests.transports.peers import BareClient, RunningRelay, connected, log_of, running, until

SIZE = 2_000
COUNT = 4_000
"""Together more than sockets hold."""


def publication(topic: str, n: int) -> bytes:
    return encode(Publish(topic, b"%08d" % n + bytes(SIZE)))


def numbers(packets: list[Publish]) -> list[int]:
    return [int(packet.payload[:8]) for packet in packets]


async def stuck_and_reading(
    stack: AsyncExitStack, relay: RunningRelay, name: str = "stuck"
) -> tuple[BareClient, BareClient]:
    """Return two subscribers of `t`, the first of which does not read."""
    stuck = await stack.enter_async_context(connected(relay.port, name, receive_buffer=4096))
    reads = await stack.enter_async_context(connected(relay.port, "reads"))
    for each in (stuck, reads):
        await each.subscribe("t")
    return stuck, reads


async def publish(relay: RunningRelay, reads: BareClient, count: int = COUNT) -> None:
    """Publish everything; the one that reads gets all of it, in order."""
    async with connected(relay.port, "pub") as pub, trio.open_nursery() as nursery:

        async def send() -> None:
            for start in range(0, count, 100):
                await pub.stream.send_all(
                    b"".join(publication("t", n) for n in range(start, start + 100))
                )

        nursery.start_soon(send)
        assert numbers(await reads.publications(count)) == list(range(count))


async def test_by_default_nobody_waits_for_long_and_nothing_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(limit_items=500) as relay, AsyncExitStack() as stack:
        stuck, reads = await stuck_and_reading(stack, relay)
        outlet = relay.relay.mqtt.sessions["stuck"].outlet
        assert outlet.policy is Profile.BALANCED.policy is StuckPolicy.SPILL
        assert outlet.patience == Profile.BALANCED.patience <= 1
        await publish(relay, reads)
        assert outlet.lagging
        assert not relay.ledger.waiters
        assert relay.ledger.relief[StuckPolicy.SPILL].stored_items > COUNT // 2
        relay.audit()
        assert numbers(await stuck.publications(COUNT)) == list(range(COUNT))
        await until(lambda: not outlet.lagging)
        assert relay.ledger.repaid_items[Outcome.DROPPED] == 0
        (line,) = log_of(caplog, "made no progress")
        assert "it is behind now" in line


async def test_without_room_publishers_wait_and_go_on_when_there_is_some() -> None:
    async with (
        running(limit_items=500, spill_limit=2_000_000, patience=60.0) as relay,
        AsyncExitStack() as stack,
    ):
        stuck, reads = await stuck_and_reading(stack, relay)
        outlet = relay.relay.mqtt.sessions["stuck"].outlet
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish, relay, reads)
            await until(lambda: outlet.full_patience is not None and relay.ledger.waiters)
            assert outlet.policy is StuckPolicy.DISCONNECT
            assert outlet.patience == 60.0
            relay.audit()
            assert numbers(await stuck.publications(COUNT)) == list(range(COUNT))
        await until(lambda: not outlet.lagging)
        assert outlet.full_patience is None
        assert outlet.patience < 1


@pytest.mark.parametrize("qos", [0, 1])
async def test_without_room_publishers_go_on_when_somebody_else_makes_some(qos: int) -> None:
    """What may be spilled to memory is bounded for all together: another one may have read."""
    async with (
        running(limit_items=100, spill_limit=600_000, patience=60.0) as relay,
        connected(relay.port, "first", receive_buffer=4096) as first,
        connected(relay.port, "second", receive_buffer=4096) as second,
        connected(relay.port, "pub-first") as pub_first,
        connected(relay.port, "pub-second") as pub_second,
    ):
        await first.subscribe("first", qos=1)
        await second.subscribe("second", qos=qos)
        sent = {"first": 0, "second": 0}
        enough = False

        def is_full(client: str) -> bool:
            name = f"mqtt:{relay.port}/-/{client}"
            holders = [each for each in relay.ledger.holders if each.name == name]
            return any(each.full_patience is not None for each in holders)

        async def publish_until_full(pub: BareClient, topic: str) -> None:
            while not (is_full(topic) or enough):
                sent[topic] += 1
                await pub.publish(topic, b"%08d" % sent[topic] + bytes(SIZE), qos=1)
                await pub.expect(PubAck(1))

        async with trio.open_nursery() as nursery:
            await publish_until_full(pub_first, "first")
            nursery.start_soon(publish_until_full, pub_second, "second")
            await until(lambda: is_full("second") and relay.ledger.waiters)
            before = sent["second"]
            got = numbers(await first.publications(sent["first"], ack=True))
            assert got == list(range(1, sent["first"] + 1))
            # It goes on until there is no room again, which may be soon.
            await until(
                lambda: sent["second"] > before or not (is_full("second") or relay.ledger.waiters)
            )
            enough = True
            relay.audit()
        got = numbers(await second.publications(sent["second"], ack=True))
        assert got == list(range(1, sent["second"] + 1))


@pytest.mark.parametrize("qos", [0, 1])
async def test_without_room_it_is_disconnected_after_the_patience(
    qos: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        running(limit_items=100, spill_limit=600_000, patience=1.0) as relay,
        connected(relay.port, "stuck", receive_buffer=4096) as stuck,
        connected(relay.port, "reads") as reads,
    ):
        await stuck.subscribe("t", qos=qos)
        await reads.subscribe("t")
        async with connected(relay.port, "pub") as pub, trio.open_nursery() as nursery:

            async def answers() -> None:
                for _ in range(COUNT * qos):
                    await pub.receive()

            nursery.start_soon(answers)
            nursery.start_soon(reads.publications, COUNT)
            for n in range(COUNT):
                if qos:
                    packet = Publish("t", b"%08d" % n + bytes(SIZE), qos=1, packet_id=n + 1)
                    await pub.stream.send_all(encode(packet))
                else:
                    await pub.stream.send_all(publication("t", n))
        got = numbers([each for each in await stuck.gone() if isinstance(each, Publish)])
        assert got == list(range(len(got)))
        (full,) = log_of(caplog, "no more may be")
        assert "publishers wait for it" in full
        assert [line for line in log_of(caplog, "giving it up") if "patience 1 s" in line]
        assert relay.ledger.repaid_items[Outcome.WRITTEN_OFF] > 0
        relay.audit()


async def test_a_quiet_publisher_does_not_wait_behind_what_is_spilled() -> None:
    async with (
        running(limit_items=500) as relay,
        AsyncExitStack() as stack,
    ):
        stuck, reads = await stuck_and_reading(stack, relay)
        await publish(relay, reads)
        outlet = relay.relay.mqtt.sessions["stuck"].outlet
        assert outlet.lagging
        spilled = relay.ledger.relief[StuckPolicy.SPILL].stored_items
        async with connected(relay.port, "quiet") as quiet:
            for n in range(3):
                await quiet.stream.send_all(publication("t", COUNT + n))
            await reads.publications(3)
            assert relay.ledger.relief[StuckPolicy.SPILL].stored_items == spilled
            relay.audit()
            got = numbers(await stuck.publications(COUNT + 3))
        loud = [number for number in got if number < COUNT]
        assert loud == list(range(COUNT))
        assert [number for number in got if number >= COUNT] == [COUNT, COUNT + 1, COUNT + 2]
        assert got.index(COUNT) < COUNT - spilled + 10


async def test_a_quiet_publisher_that_is_not_quiet_any_more_keeps_its_order() -> None:
    async with (
        running(limit_items=500) as relay,
        AsyncExitStack() as stack,
    ):
        stuck, reads = await stuck_and_reading(stack, relay)
        await publish(relay, reads)
        async with connected(relay.port, "quiet") as quiet, trio.open_nursery() as nursery:
            nursery.start_soon(reads.publications, 100)
            for n in range(100):
                await quiet.stream.send_all(publication("t", COUNT + n))
        relay.audit()
        got = numbers(await stuck.publications(COUNT + 100))
        for first, last in ((0, COUNT), (COUNT, COUNT + 100)):
            assert [n for n in got if first <= n < last] == list(range(first, last))


async def test_what_is_retained_comes_between_what_was_before_and_what_comes_later() -> None:
    """Also to who lags: or the last value that it gets of a topic would be an old one."""
    async with (
        running(limit_items=500) as relay,
        AsyncExitStack() as stack,
    ):
        stuck, reads = await stuck_and_reading(stack, relay)
        await publish(relay, reads)
        assert relay.relay.mqtt.sessions["stuck"].outlet.lagging

        def subscribers() -> int:
            return len(relay.relay.dataspace.route_of("t").plain.holders)

        async with connected(relay.port, "quiet") as quiet:
            await stuck.send(Unsubscribe(1, ("t",)))
            await until(lambda: subscribers() == 1)
            await quiet.publish("t", b"%08d" % COUNT, qos=1, retain=True)
            await quiet.expect(PubAck(1))
            await stuck.send(Subscribe(2, (("t", 0),)))
            await until(lambda: subscribers() == 2)
            await trio.testing.wait_all_tasks_blocked(0.1)
            await quiet.publish("t", b"%08d" % (COUNT + 1), qos=1)
            await quiet.expect(PubAck(1))
        found: list[Publish] = []
        while len(found) < COUNT + 2:
            packet = await stuck.next()
            if isinstance(packet, Publish):
                found.append(packet)
        assert numbers(found) == list(range(COUNT + 2))
        relay.audit()


async def test_live_holds_nobody_up() -> None:
    async with (
        running(profile="live", limit_items=500, patience=60.0) as relay,
        AsyncExitStack() as stack,
    ):
        _, reads = await stuck_and_reading(stack, relay)
        await publish(relay, reads)
        assert relay.relay.mqtt.sessions["stuck"].outlet.relief.dropped_items > 0
        relay.audit()


async def test_a_rule_may_name_a_profile_and_a_policy_comes_before_the_profile() -> None:
    rules = (
        SubscriptionPolicy("live", "#", "live"),
        SubscriptionPolicy("own", "#", "lossless", 3.0),
        SubscriptionPolicy("less", "#", "lossless"),
    )
    async with (
        running(subscription_policy=rules, stuck="wait", profile="live", patience=7.0) as relay,
        connected(relay.port, "live"),
        connected(relay.port, "own"),
        connected(relay.port, "less"),
        connected(relay.port, "other"),
    ):
        found = {
            name: (session.outlet.policy, session.outlet.patience)
            for name, session in relay.relay.mqtt.sessions.items()
        }
        assert found == {
            "live": (StuckPolicy.DROP_OLDEST, 0.0),
            "own": (StuckPolicy.DISCONNECT, 3.0),
            "less": (StuckPolicy.DISCONNECT, 7.0),
            "other": (StuckPolicy.WAIT, 7.0),
        }


def wants(packet_id: int, topic_filter: str, value: str | None, qos: int = 0) -> Subscribe:
    user = () if value is None else (("slow-consumer", value),)
    return Subscribe(packet_id, ((topic_filter, qos),), Properties(user=user))


async def test_a_subscriber_may_say_that_nobody_is_to_wait_for_it() -> None:
    rule = SubscriptionPolicy("*", "orders/#", "wait")
    async with (
        running(profile="lossless", subscription_policy=(rule,), limit_items=500) as relay,
        AsyncExitStack() as stack,
    ):
        client = await stack.enter_async_context(connected5(relay.port, "chart"))
        client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        outlet = relay.relay.mqtt.sessions["chart"].outlet

        def policies() -> list[StuckPolicy]:
            policy = outlet.consumer_policy
            assert policy is not None
            return [policy.rules.of(topic).policy for topic in (b"t", b"orders/1", b"else")]

        wait, cut, drop = StuckPolicy.WAIT, StuckPolicy.DISCONNECT, StuckPolicy.DROP_OLDEST
        assert policies() == [cut, wait, cut]
        await client.send(wants(1, "t", "live"), wants(2, "orders/#", "live"))
        await client.next()
        await client.next()
        assert policies() == [drop, wait, cut]
        reads = await stack.enter_async_context(connected(relay.port, "reads"))
        await reads.subscribe("t")
        await publish(relay, reads)
        assert outlet.relief.dropped_items > 0
        relay.audit()
        # Without the property it is as before; a wish for more than its server grants is none.
        await client.send(wants(3, "t", "lossless"))
        await until(lambda: policies() == [cut, wait, cut])


async def test_nobody_waits_for_the_acknowledgements_either_of_who_has_said_so() -> None:
    async with (
        running(profile="lossless", limit_items=500) as relay,
        connected5(relay.port, "chart") as client,
        connected(relay.port, "reads") as reads,
    ):
        await reads.subscribe("t")
        for value in (None, "live"):
            await client.send(wants(1, "t", value, qos=1))
            assert isinstance(await client.next(), SubAck)
        (inflight,) = [each for each in relay.ledger.holders if each.kind == "inflight"]
        assert (inflight.policy, inflight.patience) == (StuckPolicy.SPILL, 0.0)
        async with connected(relay.port, "pub") as pub, trio.open_nursery() as nursery:

            async def send() -> None:
                for n in range(COUNT):
                    await pub.publish("t", b"%08d" % n, qos=1, packet_id=n + 1)
                    await pub.expect(PubAck(n + 1))

            nursery.start_soon(send)
            assert numbers(await reads.publications(COUNT)) == list(range(COUNT))
        relay.audit()
        got: list[Publish] = []
        while len(got) < COUNT:
            got.append(await client.publication())
            await client.send(PubAck(got[-1].packet_id))
        assert numbers(got) == list(range(COUNT))
        # Without the property it is as before.
        await client.send(wants(2, "t", None, qos=1))
        assert isinstance(await client.next(), SubAck)
        assert (inflight.policy, inflight.patience) == (StuckPolicy.DISCONNECT, 20.0)


async def test_a_subscriber_that_says_so_often_says_it_for_everything() -> None:
    async with (
        running(profile="lossless") as relay,
        connected5(relay.port, "chart") as client,
    ):
        for n in range(129):
            await client.send(wants(n + 1, f"t/{n}", "live"))
            await client.next()
        policy = relay.relay.mqtt.sessions["chart"].outlet.consumer_policy
        assert policy is not None
        assert policy.rules.only is not None
        assert policy.rules.only.policy is StuckPolicy.DROP_OLDEST
