"""Rules change while messages wait: nobody gets what it may not read, and the books balance."""

from __future__ import annotations

import random
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
import trio

from clearfunds.access._tenants import Peer
from clearfunds.access.acl import Access, Acl, AclRules, Authority, Rights, Rule
from clearfunds.transports.mqtt import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Will,
)
from tests.transports.mqtt.peers5 import Client5, dial5
from tests.transports.peers import SECONDS, RunningRelay, running, until

USERS: Final = ("anna", "bert", "carl")
TOPICS: Final = ("a", "a/1", "a/2", "b", "b/1")
FILTERS: Final = ("#", "a/#", "a/+", "b", "a/1")


def rules(rng: random.Random) -> AclRules:
    """Make rules for all users."""
    access = (Access.READ, Access.WRITE, Access.READWRITE, Access.READWRITE, Access.DENY)
    return AclRules(
        {
            user: [
                Rule(rng.choice(access), rng.choice((*FILTERS, *TOPICS)))
                for _ in range(rng.randrange(5))
            ]
            for user in USERS
        },
        [Rule(rng.choice(access), rng.choice(("a/%c", "%u/#", "b/#")))] * rng.randrange(2),
    )


@attrs.define
class Visitor:
    """A client, and what it may read."""

    name: str
    client: Client5
    rights: Rights
    acknowledges: bool
    packet_id: int = 0
    waiting: list[int] = attrs.field(factory=list[int])
    got: int = 0

    async def send(self, *packets: Packet) -> None:
        """Send, unless it has been disconnected, which is found when it reads."""
        with suppress(trio.BrokenResourceError):
            await self.client.send(*packets)

    async def settle(self, *, before: bool = False) -> bool:
        """Read all that has been sent; see that it may be read now, unless it came `before`."""
        await self.send(PingReq())
        with trio.fail_after(SECONDS):
            while (packet := await self.client.receive()) != PingResp():
                if packet is None or isinstance(packet, Disconnect):
                    return False
                await self._take(packet, before)
        return True

    async def _take(self, packet: Packet, before: bool) -> None:
        match packet:
            case Publish():
                self.got += 1
                assert before or self.rights.may_read(packet.topic), packet
                if packet.qos:
                    self.waiting.append(packet.packet_id << 2 | packet.qos)
            case PubRec() if packet.reason < 0x80:
                await self.send(PubRel(packet.packet_id))
            case PubRel():
                await self.send(PubComp(packet.packet_id))
            case PubAck() | PubRec() | PubComp() | SubAck():
                pass
            case _:
                raise AssertionError(packet)

    async def acknowledge(self) -> None:
        """Acknowledge all that has come."""
        for each in self.waiting:
            answer = PubAck(each >> 2) if each & 3 == 1 else PubRec(each >> 2)
            await self.send(answer)
        self.waiting.clear()


class Run:
    """Some clients at one relay, and what happens to them."""

    def __init__(self, relay: RunningRelay, acl: Acl, rng: random.Random) -> None:
        self.relay = relay
        self.acl = acl
        self.rng = rng
        self.here: dict[str, tuple[Visitor, AsyncExitStack]] = {}
        self.authority = Authority(acl)

    async def step(self) -> None:
        """Let something happen."""
        rng = self.rng
        chosen = rng.random()
        if chosen < 0.15 or not self.here:
            await self.come(rng.choice(("c1", "c2", "c3", "c4")))
        elif chosen < 0.25:
            await self.go(rng.choice(list(self.here)))
        elif chosen < 0.35:
            self.acl.replace(rules(rng))
            await self.settle(before=True)
        else:
            await self.act(self.here[rng.choice(list(self.here))][0])
        if rng.random() < 0.5:
            await self.settle()

    async def come(self, name: str) -> None:
        rng = self.rng
        if name in self.here:
            await self.go(name)
        stack = AsyncExitStack()
        client = await stack.enter_async_context(dial5(self.relay.port))
        user = USERS[int(name[1]) % len(USERS)]
        will = Will(rng.choice(TOPICS), b"will", rng.randrange(3), retain=rng.random() < 0.3)
        kept = Properties(session_expiry=rng.choice((0, 60)), receive_maximum=rng.choice((1, 20)))
        await client.send(Connect(name, rng.random() < 0.2, 0, user, None, will, "MQTT", 5, kept))
        answer = await client.next()
        assert isinstance(answer, ConnAck)
        assert answer.return_code == 0
        rights = self.authority.of(Peer(f"mqtt:{self.relay.port}", user, name))
        self.here[name] = Visitor(name, client, rights, rng.random() < 0.7), stack

    async def go(self, name: str) -> None:
        visitor, stack = self.here.pop(name)
        if self.rng.random() < 0.5:
            await visitor.send(Disconnect())
        await stack.aclose()
        await until(lambda: name not in self.relay.relay.mqtt.sessions)

    async def act(self, visitor: Visitor) -> None:
        rng = self.rng
        visitor.packet_id += 1
        if rng.random() < 0.25:
            filters = tuple((rng.choice(FILTERS), rng.randrange(3)) for _ in range(2))
            await visitor.send(Subscribe(visitor.packet_id, filters))
        elif rng.random() < 0.3:
            await visitor.acknowledge()
        for _ in range(rng.choice((1, 1, 3))):
            visitor.packet_id += 1
            qos = rng.randrange(3)
            await visitor.send(
                Publish(
                    rng.choice(TOPICS),
                    b"%d" % rng.randrange(100),
                    qos,
                    retain=rng.random() < 0.2,
                    packet_id=visitor.packet_id if qos else 0,
                )
            )

    async def settle(self, *, before: bool = False) -> None:
        """Let all read what there is for them."""
        # What each causes is there when all have been answered once.
        for _ in range(2):
            for name, (visitor, stack) in list(self.here.items()):
                if not await visitor.settle(before=before):
                    del self.here[name]
                    await stack.aclose()
                elif visitor.acknowledges:
                    await visitor.acknowledge()
        self.relay.audit()


async def run(seed: int, steps: int, **settings: Any) -> None:
    rng = random.Random(seed)
    acl = Acl(rules(rng))
    async with running(acl=acl, max_inflight=5, **settings) as relay:
        course = Run(relay, acl, rng)
        for _ in range(steps):
            await course.step()
        for name in list(course.here):
            await course.go(name)
        await until(lambda: not relay.relay.mqtt.open)
        relay.audit()
        course.authority.close()


@pytest.mark.parametrize("seed", range(4))
async def test_the_books_balance(seed: int) -> None:
    await run(seed, 60)


@pytest.mark.parametrize("seed", range(2))
async def test_the_books_balance_with_a_store(seed: int, tmp_path: Path) -> None:
    await run(seed + 50, 40, store=str(tmp_path / "store"), fsync_interval=0.0)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 160))
async def test_the_books_balance_for_long(seed: int) -> None:
    await run(seed, 400)
