"""MQTT 3.1, and bridges that say that they are some."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from clearfunds.transports.mqtt import (
    ConnAck,
    Connect,
    Disconnect,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
)
from tests.transports.peers import BareClient, RunningRelay, connected, dial, running

MQTT_31: dict[str, Any] = {"protocol_name": "MQIsdp", "protocol_level": 3}


@asynccontextmanager
async def let_in(
    relay: RunningRelay, client_id: str, present: bool = False, **said: Any
) -> AsyncGenerator[BareClient]:
    async with dial(relay.port) as client:
        await client.stream.send_all(client.connection.send(Connect(client_id, **said)))
        await client.expect(ConnAck(present, 0))
        yield client


async def leave(client: BareClient) -> None:
    await client.send(Disconnect())
    assert await client.gone() == []


# -- MQTT 3.1 --------------------------------------------------------------------------------------


async def test_a_client_of_31_is_let_in_by_any_name_that_it_has() -> None:
    async with running(max_client_id=40) as relay:
        async with let_in(relay, "longer than twenty-three characters", **MQTT_31) as client:
            await client.subscribe("t", qos=2)
            await client.publish("t", b"x", 1)
            told = await client.next()
            answer = await client.next()
            assert {type(told), type(answer)} == {Publish, PubAck}
        async with dial(relay.port) as client:
            # The codec would not send it.
            await client.stream.send_all(b"\x10\x0e\0\6MQIsdp\3\2\0\0\0\0")
            client.connection.send(Connect("c", **MQTT_31))
            await client.expect(ConnAck(False, 2))
        await relay.deserted()


async def test_a_session_of_31_is_kept_and_not_told_of() -> None:
    async with running() as relay, connected(relay.port) as publisher:
        said = {**MQTT_31, "clean_session": False}
        async with let_in(relay, "c", **said) as client:
            await client.subscribe("t", qos=1)
            await leave(client)
        await publisher.publish("t", b"meanwhile", 1)
        await publisher.expect(PubAck(1))
        async with let_in(relay, "c", **said) as client:
            assert (await client.publication()).payload == b"meanwhile"
        # The same session in a newer version.
        async with let_in(relay, "c", present=True, clean_session=False) as client:
            assert (await client.publication()).dup
        async with let_in(relay, "c"):
            pass


async def test_31_has_no_code_for_a_subscription_that_is_refused() -> None:
    async with running(max_subscriptions=1) as relay:
        async with let_in(relay, "c", **MQTT_31) as client:
            await client.send(Subscribe(1, (("a", 1), ("b", 2))))
            await client.expect(SubAck(1, (1, 2)))
            assert len(relay.relay.dataspace.routes) == 1
        async with let_in(relay, "c") as client:
            await client.send(Subscribe(1, (("a", 1), ("b", 2))))
            await client.expect(SubAck(1, (1, 0x80)))


# -- bridges ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("version", [{}, MQTT_31])
async def test_a_bridge_is_not_sent_what_it_has_published(
    version: dict[str, Any], clean: bool, qos: int
) -> None:
    said: dict[str, Any] = {**version, "clean_session": clean, "bridge": True}
    async with running() as relay, connected(relay.port) as other:
        await other.subscribe("#")
        async with let_in(relay, "b", **said) as bridge:
            await bridge.subscribe("#", qos=qos)
            await bridge.publish("t", b"its own")
            await bridge.send(*(Publish("t", b"a run") for _ in range(20)))
            for _ in range(21):
                assert (await other.publication()).topic == "t"
            await other.send(*(Publish("t", b"%d" % number) for number in range(20)))
            for number in range(20):
                await other.publication()
                told = await bridge.publication()
                assert told.payload == b"%d" % number
            # RETAIN stays as it was, so that it is retained there, too.
            await other.publish("t", b"kept", qos, retain=True)
            told = await bridge.publication()
            assert (told.payload, told.qos, told.retain) == (b"kept", qos, True)
        relay.audit()
        if not clean:
            async with let_in(relay, "b"):
                pass


async def test_a_bridge_is_told_what_was_retained_before_it_came() -> None:
    async with running() as relay, connected(relay.port) as other:
        await other.publish("t", b"kept", 1, retain=True)
        await other.expect(PubAck(1))
        async with let_in(relay, "b", bridge=True) as bridge:
            await bridge.subscribe("#", qos=1)
            told = await bridge.publication()
            assert (told.payload, told.retain) == (b"kept", True)
            await bridge.send(PubAck(told.packet_id))
