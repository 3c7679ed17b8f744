"""Binding, retracting, asking and leaving in any order: each asker has the answer that is due."""

from __future__ import annotations

from random import Random

import attrs
import pytest

from clearfunds.transports.syndicate import Symbol, mint
from tests.transports.peers import until
from tests.transports.syndicate.relay.peers import TCP, Peer, SyndicateRelay, relay

KEY = b"the relay's"
NAMES = ("a", "b", "c")
KEYS = (b"one", b"two")
STEPS = 60


@attrs.define(eq=False)
class Owner:
    """A peer that binds: what stands of what it has asserted, by handle."""

    peer: Peer
    bound: dict[int, tuple[str, bytes]] = attrs.field(factory=dict[int, "tuple[str, bytes]"])


@attrs.define(eq=False)
class Walk:
    """The relay, and what should be the case there."""

    served: SyndicateRelay
    random: Random
    owners: list[Owner]
    asker: Peer
    handle: int = 100
    asked: dict[int, tuple[str, bytes]] = attrs.field(factory=dict[int, "tuple[str, bytes]"])
    names: dict[str, tuple[int, bytes]] = attrs.field(factory=dict[str, "tuple[int, bytes]"])

    async def step(self) -> None:
        """Do something, all of whose effects are over then."""
        self.handle += 1
        owner = self.random.choice(self.owners)
        name, key = self.random.choice(NAMES), self.random.choice(KEYS)
        match self.random.choice(["bind", "bind", "retract", "ask", "ask", "withdraw"]):
            case "bind":
                bind = f'<bind <ref {{oid: {name} key: #"{key.decode()}"}}> #:[0 8] #f>'
                await owner.peer.send(f"[[1 <A {bind} {self.handle}>]]")
                owner.bound[self.handle] = name, key
                self.names.setdefault(name, (self.handle, key))
            case "retract" if owner.bound:
                handle = self.random.choice(list(owner.bound))
                await owner.peer.send(f"[[1 <R {handle}>]]")
                name, _ = owner.bound.pop(handle)
                # One that was refused stays so: the first come is served.
                if self.names.get(name, (0, b""))[0] == handle:
                    del self.names[name]
            case "ask":
                ref = mint(Symbol(name), key)
                await self.asker.send(
                    f"[[0 <A <resolve {ref} #:[0 {self.handle}]> {self.handle}>]]"
                )
                self.asked[self.handle] = name, key
            case "withdraw" if self.asked:
                handle = self.random.choice(list(self.asked))
                await self.asker.send(f"[[0 <R {handle}>]]")
                del self.asked[handle]
            case _:
                return
        await owner.peer.sync()
        await self.asker.sync()

    def check(self) -> None:
        """See that each question has the one answer that is due."""
        standing = dict(self.asker.standing.values())
        assert len(standing) == len(self.asker.standing)
        assert set(standing) == set(self.asked)
        for handle, (name, key) in self.asked.items():
            due = "<ok #:" if self.names.get(name, (0, None))[1] == key else "<error "
            assert standing[handle].startswith(due), (name, key, standing[handle])
        bindings = self.served.side.gatekeeper._bindings  # pyright: ignore[reportPrivateUsage]
        assert len(bindings) == len(self.names)
        self.served.audit()


async def bindspace(peer: Peer) -> None:
    await peer.send(f"[[0 <A <resolve {mint('bind', KEY)} #:[0 1]> 1>]]")
    assert await peer.told() == ["1 + <ok #:[0 1]>"]


@pytest.mark.parametrize("seed", range(8))
async def test_the_answer_is_always_the_one_that_is_due(seed: int) -> None:
    listen = (f"{TCP}?gatekeeper",)
    async with (
        relay(listen=listen, sturdy_key=KEY, resolve_answer="ok") as served,
        served.peer() as asker,
        served.peer() as stays,
    ):
        async with served.peer() as leaves:
            owners = [Owner(stays), Owner(leaves)]
            for owner in owners:
                await bindspace(owner.peer)
            walk = Walk(served, Random(seed), owners, asker)
            for _ in range(STEPS):
                await walk.step()
                walk.check()
        # Its bindings go with it.
        await until(lambda: len(served.side.open) == 2)
        gone = set(owners[1].bound)
        walk.names = {name: by for name, by in walk.names.items() if by[0] not in gone}
        walk.owners = owners[:1]
        await asker.sync()
        walk.check()
        for _ in range(STEPS // 3):
            await walk.step()
            walk.check()
