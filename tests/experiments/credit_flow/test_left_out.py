"""Messages that come to a subscriber and are not sent to it: its senders get their credit back."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import pytest

from clearfunds.transports.mqtt import Disconnect, Properties, Publish, encode, encode5
from experiments.credit_flow import Credit
from tests.experiments.credit_flow.relays import on_credit
from tests.experiments.credit_flow.test_others import all_given_back
from tests.experiments.credit_flow.test_relay import nothing_is_kept
from tests.transports.mqtt.peers5 import Client5, connected5
from tests.transports.peers import BareClient, RunningRelay, connected, running, until

SMALL = Credit(20, 10)
NO_LOCAL = 4
COUNT = 600


async def left_out(relay: RunningRelay, why: str, stack: AsyncExitStack) -> tuple[Any, Client5]:
    """Connect a publisher and a subscriber who is not sent what that publishes, 600 messages."""
    if why == "too large":
        sub = await stack.enter_async_context(connected5(relay.port, "sub", maximum_packet_size=30))
        await sub.subscribe("t")
        pub: BareClient | Client5 = await stack.enter_async_context(connected(relay.port, "pub"))
        await pub.stream.send_all(encode(Publish("t", bytes(50))) * COUNT)
        return pub, sub
    pub = sub = await stack.enter_async_context(connected5(relay.port, "pub"))
    options = NO_LOCAL if why == "its own" else 0
    await sub.subscribe("t", options=options)
    expired = Properties(message_expiry=0 if why == "expired" else None)
    await pub.stream.send_all(encode5(Publish("t", bytes(50), properties=expired)) * COUNT)
    return pub, sub


@pytest.mark.parametrize("why", ["too large", "its own", "expired"])
@pytest.mark.parametrize("first", ["subscriber", "publisher"])
async def test_whoever_leaves_first_the_relay_goes_on(why: str, first: str) -> None:
    async with (
        running(profile="lossless", serve=on_credit(reader_outlet=SMALL)) as relay,
        connected(relay.port, "hears") as hears,
        connected(relay.port, "tells") as tells,
    ):
        await hears.subscribe("pair")
        async with AsyncExitStack() as stack:
            pub, sub = await left_out(relay, why, stack)
            await until(lambda: relay.relay.mqtt.counters.received >= COUNT)
            await until(lambda: not relay.account("pub").debt_items)
            all_given_back(relay)
            clients = [sub, pub] if first == "subscriber" else [pub, sub]
            for client in clients:
                await client.send(Disconnect())
                await client.gone()
                if pub is sub:
                    break
        await tells.publish("pair", b"x")
        assert (await hears.publication()).payload == b"x"
        await until(lambda: len(relay.relay.mqtt.open) == 2)
        relay.audit()
    nothing_is_kept(relay)


async def test_what_some_of_do_not_fit_takes_credit_once() -> None:
    """Of runs, those that fit are sent, and what is granted is what was sent."""
    async with (
        running(profile="lossless", serve=on_credit(reader_outlet=SMALL)) as relay,
        connected5(relay.port, "sub", maximum_packet_size=30) as sub,
        connected(relay.port, "pub") as pub,
    ):
        await sub.subscribe("t")
        both = encode(Publish("t", bytes(50))) + encode(Publish("t", b"fits"))
        await pub.stream.send_all(both * COUNT)
        for _ in range(COUNT):
            assert (await sub.publication()).payload == b"fits"
        await until(lambda: not relay.account("pub").debt_items)
        all_given_back(relay)
