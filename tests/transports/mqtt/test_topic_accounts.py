"""Accounts for topics within one connection: a stuck topic, and the others beside it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import pytest
import trio

from clearfunds.accounts import OverLimitPolicy
from clearfunds.relay import RelaySettings, serve_relay
from clearfunds.transports import ListenURLError, PublicationPolicy, TopicAccount
from clearfunds.transports.mqtt import PingReq, PingResp, PubAck, Publish, Will
from clearfunds.transports.mqtt.codec._packets5 import encode5
from clearfunds.transports.mqtt.codec._reasons import Reason
from tests.transports.mqtt.peers5 import Client5, connected5
from tests.transports.mqtt.test_over_limit import LITTLE, deserted, fill
from tests.transports.peers import BareClient, RunningRelay, connected, running, until

TOPICS = 8
ROUNDS = 200


def separate(*policies: PublicationPolicy, **settings: Any) -> Any:
    """Run a relay that separates the topics of the client `pub`."""
    given: dict[str, Any] = {
        "limit_bytes": 100_000,
        "profile": "lossless",
        "patience": 1000.0,
        "topic_account": (TopicAccount("pub", "t/+"), TopicAccount("pub", "jobs/#")),
        "publication_policy": policies,
        **settings,
    }
    return running(**given)


async def with_one_stuck(stack: AsyncExitStack, relay: RunningRelay) -> list[BareClient]:
    """Subscribe one client to each topic; the first does not read."""
    subscribers: list[BareClient] = []
    for n in range(TOPICS):
        buffer = None if n else LITTLE
        sub = await stack.enter_async_context(connected(relay.port, f"s{n}", receive_buffer=buffer))
        await sub.subscribe(f"t/{n}")
        subscribers.append(sub)
    return subscribers


async def publish_to_all(publisher: Client5, qos: int) -> int:
    """Publish to all topics in turn; return how many were refused, each on the first topic."""
    refused = 0
    for number in range(ROUNDS):
        packets = [
            Publish(f"t/{n}", b"%d" % number, qos, packet_id=n + 1 if qos else 0)
            for n in range(TOPICS)
        ]
        await publisher.send(*packets)
        for n in range(TOPICS if qos else 0):
            answer = await publisher.next()
            assert isinstance(answer, PubAck)
            assert answer.packet_id == n + 1
            if n:
                assert answer.reason == 0
            refused += answer.reason == Reason.QUOTA_EXCEEDED
    return refused


@pytest.mark.parametrize(("word", "qos"), [("refuse", 1), ("refuse", 0), ("shed", 1), ("shed", 0)])
async def test_one_stuck_topic_of_eight_stops_none_of_the_others(word: str, qos: int) -> None:
    policy = PublicationPolicy("pub", "#", word)
    async with separate(policy) as relay:
        async with AsyncExitStack() as stack:
            subscribers = await with_one_stuck(stack, relay)
            publisher = await stack.enter_async_context(connected5(relay.port, "pub"))
            accepted = await fill(publisher, relay, "t/0")
            got: list[list[bytes]] = []

            async def read(sub: BareClient) -> None:
                got.append([(await sub.publication()).payload for _ in range(ROUNDS)])

            async with trio.open_nursery() as nursery:
                for sub in subscribers[1:]:
                    nursery.start_soon(read, sub)
                refused = await publish_to_all(publisher, qos)
            # All that went to the seven, in order, while the first topic was over.
            assert got == [[b"%d" % number for number in range(ROUNDS)]] * (TOPICS - 1)
            stuck = relay.ledger.accounts[f"mqtt:{relay.port}/-/pub topic t/0"]
            assert not stuck.funds_are_clear()
            gone = relay.relay.mqtt.over_limits.totals[OverLimitPolicy(word)]
            assert (gone.refused, gone.shed) == (refused, ROUNDS - refused)
            assert refused == (ROUNDS if (word, qos) == ("refuse", 1) else 0)
            relay.audit()
            for _ in range(accepted):
                await subscribers[0].publication()
            await until(stuck.funds_are_clear)
            await publisher.published("t/0", b"taken")
            assert (await subscribers[0].publication()).payload == b"taken"
        await deserted(relay)


async def test_where_the_policy_is_to_wait_the_connection_waits_for_that_topic() -> None:
    async with separate() as relay:
        async with AsyncExitStack() as stack:
            subscribers = await with_one_stuck(stack, relay)
            publisher = await stack.enter_async_context(connected5(relay.port, "pub"))
            accepted = await fill(publisher, relay, "t/0")
            # Another topic has room, and is read on.
            await publisher.published("t/1", b"first")
            await publisher.publish("t/0", b"waited for", 1)
            await publisher.publish("t/1", b"behind it")
            await until(lambda: relay.ledger.waiters)
            (waiter,) = relay.ledger.waiters
            assert waiter.account.name == f"mqtt:{relay.port}/-/pub topic t/0"
            assert (await subscribers[1].publication()).payload == b"first"
            assert await subscribers[1].silent()
            for _ in range(accepted):
                await subscribers[0].publication()
            await publisher.expect(PubAck(1))
            assert (await subscribers[0].publication()).payload == b"waited for"
            assert (await subscribers[1].publication()).payload == b"behind it"
            relay.audit()
        await deserted(relay)


async def test_all_topics_without_an_account_have_one_together() -> None:
    async with separate(max_topic_accounts=2) as relay:
        async with AsyncExitStack() as stack:
            sub = await stack.enter_async_context(connected(relay.port, "sub"))
            await sub.subscribe("#")
            publisher = await stack.enter_async_context(connected5(relay.port, "pub"))
            topics = ["jobs/a/b", "jobs/c", "t/x", "t/y", "t/z", "else", "t/" + "x" * 300, "jobs"]
            for topic in topics:
                await publisher.published(topic, b"")
                assert (await sub.publication()).topic == topic
            names = [name for name in relay.ledger.accounts if "/-/pub" in name]
            own = f"mqtt:{relay.port}/-/pub"
            assert names == [own, f"{own} topic jobs", f"{own} topic t/x", f"{own} (other topics)"]
            assert relay.ledger.accounts[own].shared
            relay.audit()
        await deserted(relay)


async def test_a_will_and_no_local_know_the_accounts_of_topics() -> None:
    will = Will("t/will", b"gone", 1)
    async with separate() as relay:
        async with connected(relay.port, "sub") as sub:
            await sub.subscribe("t/will")
            async with connected5(relay.port, "pub", will=will) as publisher:
                no_local = 0b100
                await publisher.subscribe("t/#", options=no_local)
                await publisher.publish("t/1", b"my own")
                await publisher.send(PingReq())
                await publisher.expect(PingResp())
            assert (await sub.publication()).payload == b"gone"
        await deserted(relay)


async def test_a_run_ends_where_its_topic_has_another_account() -> None:
    async with separate() as relay:
        async with connected(relay.port, "sub") as sub, connected5(relay.port, "pub") as publisher:
            await sub.subscribe("#")
            data = b"".join(encode5(Publish(f"t/{n % 3}", b"%d" % n)) for n in range(300))
            await publisher.stream.send_all(data)
            for n in range(300):
                packet = await sub.publication()
                assert (packet.topic, packet.payload) == (f"t/{n % 3}", b"%d" % n)
            own = relay.account("pub")
            accounts = [each for each in relay.ledger.accounts.values() if each.parent is own]
            assert [account.borrowed_items for account in accounts] == [200, 200, 200]
            relay.audit()
        await deserted(relay)


async def test_it_is_not_possible_where_limits_move() -> None:
    rules = (TopicAccount("*", "+/#"),)
    settings = RelaySettings(
        listen=("mqtt+tcp://127.0.0.1:0",), limit_latency=0.1, topic_account=rules
    )
    with pytest.raises(ListenURLError, match="--topic-account shares the limit"):
        await serve_relay(settings)
