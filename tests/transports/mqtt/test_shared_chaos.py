"""Members of a group that come, go, take over, unsubscribe and stop acknowledging, at random.

One of them has a session that is kept throughout, so nothing with QoS 1 may be lost; nothing with
QoS 2 may come twice; the books balance after each step, and at the end nothing is owed.
"""

from __future__ import annotations

import random
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from clearfunds.transports.mqtt import (
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Unsubscribe,
)
from tests.transports.mqtt.peers5 import Client5, connected5
from tests.transports.peers import SECONDS, RunningRelay, connected, running, until

FILTER = "$share/g/t/#"
NAMES = ("anchor", "b", "c", "d")


class Scene:
    """A relay, a publisher, and members that may be there or not."""

    def __init__(self, relay: RunningRelay, seed: int) -> None:
        self.relay = relay
        self.chance = random.Random(seed)
        self.there: dict[str, tuple[AsyncExitStack, Client5]] = {}
        self.had: dict[str, dict[int, Publish]] = {}
        # Their half of a session: what they have of QoS 2, by identifier.
        self.received: dict[str, set[int]] = {name: set() for name in NAMES}
        self.kept: dict[str, bool] = {}
        self.taken: dict[str, list[bytes]] = {name: [] for name in NAMES}
        self.count = 0
        self.old: list[AsyncExitStack] = []

    async def come(self, name: str) -> None:
        """Connect, or take over."""
        await self.go(name, quietly=self.chance.random() < 0.5)
        kept = name == "anchor" or self.chance.random() < 0.5
        stack = AsyncExitStack()
        client = await stack.enter_async_context(
            connected5(
                self.relay.port,
                name,
                clean=not kept,
                receive_maximum=self.chance.choice([1, 3, 100]),
                session_expiry=1000 if kept else None,
            )
        )
        if not kept or not client.welcome.session_present:
            self.received[name].clear()
        while self.old:
            await self.old.pop().aclose()
        self.kept[name] = kept
        self.there[name] = stack, client
        self.had[name] = {}
        if name != "anchor" or not client.welcome.session_present:
            await self.subscribe(name)

    async def subscribe(self, name: str) -> None:
        # Not 0: with that, what is on its way to who leaves is lost, as it may be.
        qos = 2 if name == "anchor" else self.chance.choice([1, 2, 2])
        await self.there[name][1].send(Subscribe(9, ((FILTER, qos),)))
        await self.read(name)

    async def unsubscribe(self, name: str) -> None:
        if name != "anchor":
            await self.there[name][1].send(Unsubscribe(9, (FILTER,)))
            await self.read(name)

    async def go(self, name: str, *, quietly: bool = False) -> None:
        """Close the socket; `quietly`: only when the next one is there, which takes over."""
        if name in self.there:
            stack, _ = self.there.pop(name)
            self.had.pop(name)
            if not quietly:
                await stack.aclose()
                await until(lambda: name not in self.relay.relay.mqtt.sessions)
            else:
                self.old.append(stack)

    async def read(self, name: str) -> None:
        """Read what has come, and remember what is to be acknowledged."""
        client = self.there[name][1]
        await client.send(PingReq())
        while (packet := await client.next()) != PingResp():
            if isinstance(packet, Publish):
                if not packet.qos:
                    self.taken[name].append(packet.payload)
                else:
                    self.had[name][packet.packet_id] = packet
            elif isinstance(packet, PubRel):
                self.received[name].discard(packet.packet_id)
                await client.send(PubComp(packet.packet_id))
            else:
                assert packet is not None

    async def acknowledge(self, name: str, share: float) -> None:
        await self.read(name)
        client = self.there[name][1]
        for packet_id, packet in list(self.had[name].items()):
            if self.chance.random() > share:
                continue
            del self.had[name][packet_id]
            if packet.qos == 1:
                self.taken[name].append(packet.payload)
                await client.send(PubAck(packet_id))
            else:
                if packet_id not in self.received[name]:
                    self.received[name].add(packet_id)
                    self.taken[name].append(packet.payload)
                await client.send(PubRec(packet_id))
        await self.read(name)

    async def step(self) -> None:
        name = self.chance.choice(NAMES)
        what = self.chance.random()
        if name not in self.there or what < 0.1:
            await self.come(name)
        elif what < 0.25:
            await self.go(name)
        elif what < 0.3:
            await self.unsubscribe(name)
        elif what < 0.4:
            await self.subscribe(name)
        else:
            await self.acknowledge(name, self.chance.choice([0.3, 1.0]))


@pytest.mark.parametrize("seed", range(6))
async def test_members_that_come_and_go(seed: int, tmp_path: Path) -> None:
    store = str(tmp_path / "store") if seed % 2 else None
    async with running(store=store, fsync_interval=0.0, max_inflight=5) as relay:
        scene = Scene(relay, seed)
        sent: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
        async with connected(relay.port, "publisher") as publisher:
            await scene.come("anchor")
            for _ in range(150):
                for _ in range(scene.chance.choice([0, 1, 4])):
                    qos = scene.chance.choice([0, 1, 1, 2])
                    scene.count += 1
                    payload = b"%d" % scene.count
                    sent[qos].append(payload)
                    packet_id = scene.count if qos else 0
                    await publisher.publish("t/x", payload, qos, packet_id=packet_id)
                    if qos == 1:
                        await publisher.expect(PubAck(packet_id))
                    elif qos == 2:
                        await publisher.expect(PubRec(packet_id))
                        await publisher.send(PubRel(packet_id))
                        await publisher.expect(PubComp(packet_id))
                await scene.step()
                relay.audit()
            for name in NAMES[1:]:
                if name in scene.there:
                    await scene.go(name)
                async with connected(relay.port, name):
                    pass  # a clean session: what is kept of it is over
            if "anchor" not in scene.there:
                await scene.come("anchor")

            def missing() -> set[bytes]:
                taken = {payload for each in scene.taken.values() for payload in each}
                return set(sent[1]) - taken

            group = next(iter(relay.relay.mqtt.groups.by_key.values())).group
            with trio.move_on_after(SECONDS):
                while missing() or scene.had["anchor"] or len(group):
                    await scene.acknowledge("anchor", 1.0)
                    await trio.sleep(0.005)  # the disk may have to come first
            assert not missing()
            relay.audit()
            assert not len(group)
            every = [payload for each in scene.taken.values() for payload in each]
            twice = [payload for payload in sent[2] if every.count(payload) > 1]
            assert not twice
            assert relay.account("publisher").debt_items == 0
            await scene.go("anchor")
            async with connected(relay.port, "anchor"):
                pass
            await until(lambda: not len(relay.relay.mqtt.groups))
