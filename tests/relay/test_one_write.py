"""Packets that are legal each, in one write that ends with DISCONNECT: nobody else notices.

What a client has caused is dealt with when it has left already: its PUBACK is due once a disk, or a
kept session's queue, has taken responsibility.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from clearfunds.transports._flusher import OUTLETS_A_STEP
from clearfunds.transports.mqtt import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    Properties,
    PubAck,
    Publish,
    Subscribe,
    Unsubscribe,
    encode,
    encode5,
)
from tests.transports.peers import BareClient, RunningRelay, connected, dial, running, until


def said(version: int, *packets: Packet) -> bytes:
    """Return packets as a client of this version writes them."""
    return b"".join(map(encode if version == 4 else encode5, packets))


def hello(version: int, client_id: str, *, kept: bool) -> Connect:
    """Return the CONNECT of a client whose session is kept, or not."""
    said_of_it = Properties(session_expiry=300) if kept and version == 5 else Properties()
    return Connect(client_id, not kept, 0, protocol_level=version, properties=said_of_it)


async def write(port: int, version: int, client_id: str, *packets: Packet, kept: bool) -> None:
    """Connect, say all that in one write, and wait until the relay has dealt with it."""
    async with dial(port) as client:
        await client.stream.send_all(said(version, hello(version, client_id, kept=kept)))
        await client.stream.receive_some(1 << 16)
        with trio.fail_after(10):
            await client.stream.send_all(said(version, *packets))
            while await client.stream.receive_some(1 << 16):
                if not isinstance(packets[-1], Disconnect):
                    break


@asynccontextmanager
async def healthy(relay: RunningRelay) -> AsyncGenerator[None]:
    """See that a pair of clients goes on as before, however the block goes."""
    async with connected(relay.port, "hears") as hears, connected(relay.port, "tells") as tells:
        await hears.subscribe("pair", qos=1)

        async def one(body: bytes) -> None:
            await tells.publish("pair", body, 1)
            assert (await hears.publications(1, ack=True))[0].payload == body
            await tells.expect(PubAck(1))

        await one(b"before")
        yield
        await one(b"after")
        # Nothing of those who have left is under way any more.
        await until(lambda: set(relay.relay.mqtt.sessions) == {"hears", "tells"})
        relay.audit()


def relay_settings(store: bool, tmp_path: Path) -> dict[str, Any]:
    return {"store": str(tmp_path / "store"), "fsync_interval": 0.0} if store else {}


@pytest.mark.parametrize("store", [False, True])
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize(
    "then",
    [
        [Subscribe(2, (("other", 1),))],
        [Unsubscribe(2, ("other",))],
        [],
        [Subscribe(2, (("t", 1),)), Unsubscribe(3, ("t",)), Subscribe(4, (("t", 2),))],
    ],
)
@pytest.mark.parametrize("retain", [False, True])
async def test_a_publication_a_subscription_and_goodbye(
    store: bool, version: int, qos: int, then: Sequence[Packet], retain: bool, tmp_path: Path
) -> None:
    async with running(**relay_settings(store, tmp_path)) as relay:
        await write(relay.port, version, "keeper", Subscribe(1, (("t", qos),)), kept=True)
        async with healthy(relay):
            for _ in range(3):
                publication = Publish("t", b"x", qos, retain, packet_id=1)
                await write(
                    relay.port, version, "sender", publication, *then, Disconnect(), kept=True
                )
        await forget(relay.port, "keeper", "sender")


async def forget(port: int, *client_ids: str) -> None:
    for client_id in client_ids:
        await write(port, 4, client_id, Disconnect(), kept=False)


@pytest.mark.parametrize("store", [False, True])
@pytest.mark.parametrize("version", [4, 5])
async def test_a_clean_clients_goodbye_behind_a_publication_for_very_many(
    store: bool, version: int, tmp_path: Path
) -> None:
    """To send it to all of them takes several steps, and the disk may be done before the last."""
    async with running(**relay_settings(store, tmp_path)) as relay, AsyncExitStack() as stack:
        await write(relay.port, 4, "keeper", Subscribe(1, (("t", 1),)), kept=True)
        many: list[BareClient] = []
        for n in range(2 * OUTLETS_A_STEP + 50):
            client = await stack.enter_async_context(connected(relay.port, f"s{n}"))
            await client.subscribe("t")
            many.append(client)
        async with connected(relay.port, "hears") as hears, connected(relay.port, "tells") as tells:
            await hears.subscribe("pair", qos=1)
            publication = Publish("t", b"x", 1, packet_id=1)
            for n in range(3):
                await write(relay.port, version, "p", publication, Disconnect(), kept=False)
                await tells.publish("pair", b"%d" % n, 1)
                assert (await hears.publications(1, ack=True))[0].payload == b"%d" % n
                await tells.expect(PubAck(1))
            for client in many:
                assert [each.payload for each in await client.publications(3)] == [b"x"] * 3
            relay.audit()
        await forget(relay.port, "keeper")


async def test_what_a_client_said_before_it_left_has_been_done() -> None:
    """It is in the kept session, and the subscription is there when the client comes back."""
    async with running() as relay:
        await write(relay.port, 4, "keeper", Subscribe(1, (("t", 1),)), kept=True)
        packets = (
            Publish("t", b"x", 1, packet_id=1),
            Subscribe(2, (("other", 1),)),
            Publish("t", b"y", 1, packet_id=2),
            Disconnect(),
        )
        await write(relay.port, 4, "sender", *packets, kept=True)
        assert relay.relay.mqtt.persistent_sessions is not None
        by_id = relay.relay.mqtt.persistent_sessions.by_id
        await until(lambda: not relay.relay.mqtt.open)
        assert set(by_id["sender"].subscriptions) == {"other"}
        assert len(by_id["keeper"].queue) == 2
        relay.audit()
        await forget(relay.port, "keeper", "sender")


async def test_acknowledgements_behind_a_cut_are_not_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While a connection waits: its queue takes back what it has sent, in the middle of them."""
    monkeypatch.setattr("clearfunds.transports._scheduler.SLICE_SECONDS", 0.0)
    count = 200
    async with (
        running(max_inflight=count) as relay,
        dial(relay.port) as keeper,
        connected(relay.port, "tells") as tells,
    ):
        await keeper.stream.send_all(keeper.connection.send(hello(4, "keeper", kept=True)))
        await keeper.expect(ConnAck(False, 0))
        await keeper.subscribe("t", qos=1)
        for n in range(count):
            await tells.publish("t", b"%d" % n, 1)
            await tells.expect(PubAck(1))
        got = await keeper.publications(count)
        mqtt = relay.relay.mqtt
        assert mqtt.persistent_sessions is not None
        kept = mqtt.persistent_sessions.by_id["keeper"]
        session: Any = mqtt.sessions["keeper"]
        mqtt.account.halt("a test")  # a publication waits, and what comes behind it does not
        answers = [PubAck(each.packet_id) for each in got]
        await keeper.send(Publish("other", b"x"), *answers)
        while len(session._unacknowledged() or ()) > count // 2:
            await trio.lowlevel.checkpoint()
        kept.queue.give_up("a test")
        await keeper.gone()
        mqtt.account.resume("a test")
        await until(lambda: session not in mqtt.open)
        relay.audit()
        # It has them again, in order, from where the cut came.
        back = len(kept.queue)
        assert 1 <= back <= count // 2
        async with dial(relay.port) as keeper:
            await keeper.stream.send_all(keeper.connection.send(hello(4, "keeper", kept=True)))
            await keeper.expect(ConnAck(True, 0))
            left = await keeper.publications(back, ack=True)
            assert left == [attrs.evolve(each, dup=True) for each in got[-back:]]
        await forget(relay.port, "keeper")
