"""A subscriber that does not keep up: publishers are served in turn, or with `--no-fair` in order.

Over sockets; the subscriber reads nothing until everybody has published.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from clearfunds.transports._listener import DEFAULT_UNSENT_BYTES
from clearfunds.transports.mqtt import PingReq, PingResp, PubAck, Publish, Subscribe, encode
from tests.transports.mqtt.peers5 import connected5
from tests.transports.peers import BareClient, RunningRelay, connected, dial, running, until

LITTLE = 4096
NOISY = [b"%04d" % n + bytes(20_000) for n in range(150)]
"""3 MB, less than a publisher may owe."""


@asynccontextmanager
async def scene(
    **settings: Any,
) -> AsyncGenerator[tuple[RunningRelay, BareClient, BareClient, BareClient]]:
    """Run a relay with a subscriber that has a backlog of one publisher's; and there is another."""
    async with (
        running(**settings) as relay,
        connected(relay.port, "slow", receive_buffer=LITTLE) as slow,
        connected(relay.port, "noisy") as noisy,
        connected(relay.port, "innocent") as innocent,
    ):
        await slow.subscribe("#")
        await noisy.send(*(Publish("noisy", each) for each in NOISY))
        await noisy.send(PingReq())
        await noisy.expect(PingResp())  # all has been read
        yield relay, slow, noisy, innocent


async def after(slow: BareClient, relay: RunningRelay, count: int = 1) -> list[tuple[str, bytes]]:
    """Return what the subscriber gets, to the end."""
    got: list[tuple[str, bytes]] = []
    while len(got) < len(NOISY) + count:
        relay.audit()
        packet = await slow.receive()
        assert isinstance(packet, Publish | PingResp)
        if isinstance(packet, Publish):
            got.append((packet.topic, packet.payload))
        else:
            got.append(("ping", b""))
    return got


@pytest.mark.parametrize("fair", [True, False])
async def test_a_message_of_another_publisher_comes_soon(fair: bool) -> None:
    async with scene(fair=fair, unsent_bytes=16 << 10) as (relay, slow, _, innocent):
        for n in range(5):
            await innocent.publish("innocent", b"%d" % n)
        await slow.send(PingReq())
        await until(lambda: relay.account("innocent").debt_items == 5)
        await until(lambda: relay.account("slow").debt_items == 1)
        relay.audit()
        got = await after(slow, relay, 6)
        assert [payload for topic, payload in got if topic == "noisy"] == NOISY
        assert [x for topic, x in got if topic == "innocent"] == [b"%d" % n for n in range(5)]
        topics = [topic for topic, _ in got]
        if fair:
            # All of them come with what the kernel had, what was being sent, and one turn.
            assert max(n for n, topic in enumerate(topics) if topic != "noisy") < len(NOISY) // 2
        else:
            assert topics == ["noisy"] * len(NOISY) + ["innocent"] * 5 + ["ping"]
        relay.audit()


async def test_a_retained_message_that_is_told_comes_before_later_ones_and_after_earlier() -> None:
    """It is the subscriber's debt, but one publisher's message: the order on a topic is his."""
    async with scene(unsent_bytes=16 << 10) as (relay, slow, _, innocent):
        await innocent.publish("state", b"1", retain=True)
        await until(lambda: len(relay.relay.dataspace.retained))
        for _ in range(3):
            await slow.send(Subscribe(9, (("#", 0),)))
        outlet = relay.relay.mqtt.sessions["slow"].outlet
        told = Publish("state", b"1", retain=True)
        await until(
            lambda: sum(encode(told) in chunk for x in outlet.loans() for chunk in x.item) == 3
        )
        await innocent.publish("state", b"2", retain=True)
        await innocent.publish("state", b"3", retain=True)
        await until(lambda: relay.account("innocent").debt_items >= 3)
        relay.audit()
        states: list[bytes] = []
        while len(states) < 6:
            packet = await slow.receive()
            if isinstance(packet, Publish) and packet.topic == "state":
                states.append(packet.payload)
        assert states == [b"1"] * 4 + [b"2", b"3"]
        relay.audit()


async def test_topic_aliases_are_known_before_they_are_used() -> None:
    """They are given when a message is framed; what is framed keeps its order."""
    async with (
        running(unsent_bytes=16 << 10, max_inflight=1_000) as relay,
        connected5(relay.port, "slow", topic_alias_maximum=3) as slow,
        connected(relay.port, "noisy") as noisy,
        connected(relay.port, "innocent") as innocent,
    ):
        await slow.subscribe("#", options=1)
        sent: list[tuple[str, bytes]] = []
        for n in range(200):
            # Each topic is new, then gets an alias from the noisy one, and the other uses it.
            topic = f"a/long/topic/{n // 30}"
            sent.append((topic, b"%04d" % n + bytes(30_000 if n % 3 < 2 else 10)))
            publisher = noisy if n % 3 < 2 else innocent
            await publisher.publish(topic, sent[-1][1], 1, packet_id=n + 1)
            await publisher.expect(PubAck(n + 1))
        assert relay.relay.mqtt.sessions["slow"].outlet.blocked
        relay.audit()
        aliases: dict[int, str] = {}
        got: list[tuple[str, bytes]] = []
        for _ in sent:
            packet = await slow.publication()
            alias = packet.properties.topic_alias
            topic = packet.topic or aliases[alias or 0]
            if alias:
                aliases[alias] = topic
            got.append((topic, packet.payload))
            await slow.send(PubAck(packet.packet_id))
        assert len(aliases) == 3
        assert sorted(got) == sorted(sent)
        relay.audit()


async def test_syndicates_outlets_are_not_fair() -> None:
    """The order of all turns of a peer matters there, whoever caused them."""
    async with running(listen=("mqtt+tcp://127.0.0.1:0", "syndicate+tcp://127.0.0.1:0")) as relay:
        ports = [int(each.rpartition(":")[2]) for each in relay.addresses.listening]
        async with connected(ports[0], "mqtt"), dial(ports[1]):
            server = relay.relay.syndicate
            assert server is not None
            await until(lambda: len(server.open) == 1)
            (mqtt,), (syndicate,) = relay.relay.mqtt.open, server.open
            assert mqtt.outlet.fair
            assert not syndicate.outlet.fair


@pytest.mark.skipif(
    not hasattr(socket, "TCP_NOTSENT_LOWAT"), reason="the system has no such option"
)
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, DEFAULT_UNSENT_BYTES),
        ({"unsent_bytes": 5_000}, 5_000),
        ({"limit_latency": 1.0}, 16 << 10),
        ({"limit_latency": 1.0, "unsent_bytes": 5_000}, 5_000),
        ({"limit_latency": 1.0, "unsent_bytes": None}, 16 << 10),
        ({"unsent_bytes": None}, 0),
    ],
)
async def test_the_kernel_keeps_little_for_a_peer(settings: dict[str, Any], expected: int) -> None:
    async with running(**settings) as relay, connected(relay.port, "c"):
        (session,) = relay.relay.mqtt.open
        option = socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT
        sock: Any = session.outlet.sock
        assert sock.getsockopt(*option) == expected
        await trio.lowlevel.checkpoint()
