"""What a connection owes on its own account to itself, and relays that echo each other (rule 11).

Who is subscribed to what it publishes, and does not read, waits on nobody but itself: a ring of
one. So does, in each of two relays, the bridge between them, if both send it what they get from it.
"""

from __future__ import annotations

import json
import socket
from contextlib import AsyncExitStack
from typing import Any

import pytest
import trio

from clearfunds.accounts import Outcome, StuckPolicy, rings
from clearfunds.transports.mqtt import Publish, encode
from tests.transports.peers import (
    BareClient,
    RunningRelay,
    connected,
    fetch,
    log_of,
    running,
    until,
)

pytestmark = pytest.mark.rule(11)


PATIENCE = 1.5
BUFFER_BYTES = 32 << 10
PAYLOAD = bytes(4000)
ENOUGH = 3_000
"""Messages, more than the relay's kernel keeps for one connection."""

SERVE = 10_000
"""More than all kernels on the way round keep, by far."""

POLICIES = [
    StuckPolicy.WAIT,
    StuckPolicy.DISCONNECT,
    StuckPolicy.DROP_OLDEST,
    pytest.param(StuckPolicy.DROP_NEWEST, marks=pytest.mark.long),
    pytest.param(StuckPolicy.CONFLATE, marks=pytest.mark.long),
]


def a_relay(policy: StuckPolicy, **options: Any) -> Any:
    return running(
        patience=PATIENCE, stuck=str(policy), limit_items=50, http="127.0.0.1:0", **options
    )


async def the_ring(relay: RunningRelay, name: str) -> None:
    """See that it is found, by those who look, with its one member."""
    await until(lambda: rings(relay.ledger))
    (ring,) = rings(relay.ledger)
    assert ring.members == (f"mqtt:{relay.port}/-/{name}",)
    page = json.loads(await fetch(f"{relay.addresses.http}/ledger.json"))
    (row,) = page["rings"]
    assert row["members"] == list(ring.members)
    metrics = await fetch(f"{relay.addresses.http}/metrics")
    assert "clearfunds_rings 1.0" in metrics


def named(caplog: pytest.LogCaptureFixture, relay: RunningRelay, name: str) -> list[str]:
    member = f"mqtt:{relay.port}/-/{name}"
    return [
        line
        for line in log_of(caplog, "in a ring of one: ")
        if f"{member} waits on what its own peer does not take: outlet {member} (" in line
    ]


@pytest.mark.parametrize("policy", POLICIES)
async def test_who_is_subscribed_to_what_it_publishes_and_does_not_read(
    policy: StuckPolicy, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        a_relay(policy) as relay,
        connected(relay.port, "self", receive_buffer=4096) as client,
        connected(relay.port, "bystander") as bystander,
    ):
        await client.subscribe("mine")
        await bystander.subscribe("theirs")
        sent = trio.Event()

        async def publish() -> None:
            try:
                await client.stream.send_all(encode(Publish("mine", PAYLOAD)) * ENOUGH)
            except trio.BrokenResourceError:
                return
            sent.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish)
            with trio.fail_after(PATIENCE + 10):
                await until(lambda: relay.account("self").waiting)
                await the_ring(relay, "self")
                await until(lambda: named(caplog, relay, "self"))
            relay.audit()
            if policy is StuckPolicy.WAIT:
                assert relay.account("self").waiting
            elif policy is StuckPolicy.DISCONNECT:
                await until(lambda: "self" not in relay.relay.mqtt.sessions)
                assert relay.ledger.repaid_items[Outcome.WRITTEN_OFF] > 10
            else:
                # It is read to the end, though it does not read; and nothing is lost in silence.
                with trio.fail_after(20):
                    await sent.wait()
                    await until(lambda: relay.relay.mqtt.counters.received >= ENOUGH)
                    await until(lambda: not relay.account("self").debt_items)
                assert len(relay.ledger.lagging) == 1
                received = 0
                lost = relay.ledger.relief[policy]
                while relay.ledger.lagging:
                    with trio.move_on_after(1):
                        received += len(await client.publications(1))
                with trio.move_on_after(1):
                    while True:
                        received += len(await client.publications(1))
                assert received + lost.dropped_items == ENOUGH
                assert len(named(caplog, relay, "self")) == 1
                (end,) = log_of(caplog, "has caught up")
                assert f"{lost.dropped_items} items" in end
            await bystander.publish("theirs", b"still here")
            assert (await bystander.publication()).payload == b"still here"
            nursery.cancel_scope.cancel()


async def echo(one: BareClient, other: BareClient) -> None:
    """Send on, as it is, what one relay sends, to the other; a write that blocks stops it."""
    try:
        while data := await one.stream.receive_some(1 << 16):
            await other.stream.send_all(data)
    except trio.BrokenResourceError:
        pass


@pytest.mark.parametrize("policy", POLICIES)
async def test_two_relays_that_echo_each_other(
    policy: StuckPolicy, caplog: pytest.LogCaptureFixture
) -> None:
    """A bridge is subscribed in each to all that it publishes there."""
    async with AsyncExitStack() as stack:
        relays: list[RunningRelay] = []
        ends: list[BareClient] = []
        for _ in range(2):
            relay = await stack.enter_async_context(a_relay(policy))
            end = await stack.enter_async_context(
                connected(relay.port, "bridge", receive_buffer=4096)
            )
            end.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
            await end.subscribe("echo")
            relays.append(relay)
            ends.append(end)
        first, second = ends

        async def serve() -> None:
            try:
                await first.stream.send_all(encode(Publish("echo", PAYLOAD)) * SERVE)
                await echo(second, first)
            except trio.BrokenResourceError:
                pass

        def all_named() -> list[str]:
            return [line for relay in relays for line in named(caplog, relay, "bridge")]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            nursery.start_soon(echo, first, second)
            with trio.fail_after(PATIENCE + 15):
                await until(all_named)
            if policy is StuckPolicy.WAIT:
                pass
            elif policy is StuckPolicy.DISCONNECT:
                await until(lambda: any("bridge" not in r.relay.mqtt.sessions for r in relays))
            else:
                # It goes round again, with less of it.
                assert any(relay.ledger.relief[policy].spells for relay in relays)
                before = [relay.relay.mqtt.counters.received for relay in relays]
                with trio.fail_after(20):
                    await until(
                        lambda: all(
                            relay.relay.mqtt.counters.received > count + 2000
                            for relay, count in zip(relays, before, strict=True)
                        )
                    )
                assert all("bridge" in relay.relay.mqtt.sessions for relay in relays)
            for relay in relays:
                relay.audit()
            nursery.cancel_scope.cancel()
