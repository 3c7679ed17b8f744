"""Relays without sockets, and a network between them that loses, repeats and reorders."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, asynccontextmanager
from itertools import count
from random import Random
from typing import Any

import attrs
import trio

from clearfunds.accounts import Account, Ledger, Limit, LoanedItem
from clearfunds.accounts._cooperative import run_to_end
from clearfunds.dataspace import Dataspace, Mailbox, Publication, TopicFilter
from clearfunds.dataspace.hops import (
    Hop,
    Landing,
    Receipt,
    Seen,
    Shipment,
    WaitPaths,
    compare,
    via,
)

TICK = 0.1
"""Seconds between two receipts."""


@attrs.frozen
class Network:
    """What becomes of a message on its way."""

    chance: Random
    lost: float = 0.0
    repeated: float = 0.0
    slowest: float = 0.0
    """Seconds; 0: messages stay in order."""

    def send(self, nursery: trio.Nursery, deliver: Callable[[Any], object], message: Any) -> None:
        """Send a message."""
        if self.chance.random() < self.lost:
            return
        for _ in range(2 if self.chance.random() < self.repeated else 1):
            nursery.start_soon(self._later, deliver, message)

    async def _later(self, deliver: Callable[[Any], object], message: Any) -> None:
        await trio.sleep(self.chance.random() * self.slowest)
        deliver(message)


class Relay:
    """A relay: its books, its dataspace, and its hops to the others."""

    def __init__(
        self, name: str, limit: Limit, clock: Callable[[], float] = trio.current_time
    ) -> None:
        self.name = name
        self.ledger = Ledger(clock=clock)
        self.dataspace = Dataspace(self.ledger)
        self.limit = limit
        self.hops: dict[str, Hop] = {}
        self.landings: dict[str, Landing] = {}
        self.seen: dict[str, Seen] = {}
        self.subscriptions: dict[str, ExitStack] = {}
        self.stack = ExitStack()
        self.server = self.ledger.open("server", limit=Limit(items=None, bytes=None))
        self.got: dict[str, list[tuple[str, int]]] = {}
        self.paths = WaitPaths(self.ledger, name)

    async def watch_waits(self) -> None:
        """Find out, from time to time, who waits for whom over several relays."""
        while True:
            await trio.sleep(TICK)
            remotes = [remote for hop in self.hops.values() for remote in hop.remotes]
            run_to_end(self.paths.look_in_steps(remotes))

    def open_via(self, relay: str) -> Callable[[str, tuple[str, ...]], Account]:
        """Return what opens the accounts of another relay's origins."""

        def open_account(origin: str, above: tuple[str, ...]) -> Account:
            return self.ledger.open(via(relay, origin), limit=self.limit)

        return open_account

    def subscribe(self, name: str, topics: str, **options: Any) -> Mailbox[Publication]:
        """Return a subscriber's mailbox; its account has its name."""
        account = self.ledger.open(name, limit=self.limit)
        box = Mailbox[Publication](self.ledger, name, **options)
        box.owner = account
        self.stack.enter_context(self.dataspace.observed(account, TopicFilter(topics), box))
        self.got[name] = []
        return box

    async def read(
        self, box: Mailbox[Publication], pause: Callable[[], float], until: trio.Event | None = None
    ) -> None:
        """Take and settle what comes, with pauses."""
        while True:
            await self.take(box, pause)

    async def take(
        self, box: Mailbox[Publication], pause: Callable[[], float] = lambda: 0.0
    ) -> None:
        """Take and settle what comes next."""
        loan: LoanedItem[list[Publication]] = await box.receive()
        with loan as events:
            await trio.sleep(pause())
            for event in events:
                origin, _, number = event.payload.decode().partition(" ")
                self.got[box.name].append((origin, int(number)))

    async def publish(
        self, name: str, topic: str, count: int, pause: Callable[[], float] = lambda: 0.0
    ) -> None:
        """Publish so many messages, each behind clear funds."""
        with self.ledger.open(name, limit=self.limit) as account:
            for number in range(count):
                await account.ensure_clear_funds()
                with account.turn() as turn:
                    turn.publish(
                        self.dataspace, Publication(topic, f"{name} {number}".encode()), nbytes=100
                    )
                await trio.sleep(pause())

    def owed(self, account: str) -> dict[str, int]:
        """Return what an account owes, in items by holder."""
        return {each.holder: each.items for each in self.ledger.matrix() if each.account == account}

    def audit(self) -> None:
        self.ledger.audit()


class World:
    """Relays, all connected to all."""

    def __init__(
        self, nursery: trio.Nursery, network: Network, relays: int = 2, limit: Limit | None = None
    ) -> None:
        self.nursery = nursery
        self.network = network
        self.lives = count(1)
        self.gave_up = False
        """Whether hops were given up or closed, so that landings have more than is owed for."""
        limit = limit or Limit(items=100, bytes=None)
        self.relays = [Relay(f"r{number}", limit) for number in range(relays)]
        for one in self.relays:
            for other in self.relays:
                if one is not other:
                    self._connect(one, other)
            nursery.start_soon(one.watch_waits)

    def _connect(self, one: Relay, other: Relay) -> None:
        self.restart_hop(one, other)
        self.restart_landing(one, other)
        self.nursery.start_soon(self._ship, one, other)
        self.nursery.start_soon(self._answer, one, other)

    def part(self, one: Relay, other: Relay) -> None:
        """Let one relay know that another one has gone, and may come back."""
        one.hops[other.name].leave()
        other.landings[one.name].close()

    def meet(self, one: Relay, other: Relay, *, forgets: bool = False) -> None:
        """Let a relay that has gone come back; or, if it forgets, the next one of that name."""
        seen = None if forgets else other.seen[one.name]
        self.restart_hop(one, other, goes_on=True)
        self.restart_landing(one, other, seen)

    def restart_hop(self, one: Relay, other: Relay, *, goes_on: bool = False) -> None:
        """Begin another life of a hop; what the last one had goes on, or else is written off."""
        before = one.hops.get(other.name)
        if before is not None and not goes_on:
            before.close()
        hop = one.hops[other.name] = Hop(
            one.ledger,
            other.name,
            next(self.lives),
            window=Limit(items=30, bytes=None),
            patience=5,
            me=one.name,
        )
        # As a hop's subscription ends with it.
        subscription = one.subscriptions.pop(other.name, None)
        if subscription is not None:
            subscription.close()
        stack = one.subscriptions[other.name] = ExitStack()
        stack.enter_context(one.dataspace.observed(one.server, TopicFilter("#"), hop))
        if before is not None and goes_on:
            hop.take_over(before)

    def restart_landing(self, one: Relay, other: Relay, seen: Seen | None = None) -> None:
        """Begin another life of a landing; what had come stays, as if others had caused it."""
        before = other.landings.get(one.name)
        if before is not None:
            before.close()
        seen = other.seen[one.name] = Seen() if seen is None else seen
        other.landings[one.name] = Landing(
            other.ledger,
            other.dataspace,
            other.open_via(one.name),
            next(self.lives),
            seen=seen,
            paths_of=other.paths.of,
        )

    async def _ship(self, one: Relay, other: Relay) -> None:
        nursery = self.nursery

        def accept(shipment: Shipment) -> None:
            landing = other.landings[one.name]
            for origin in landing.accept(shipment):
                nursery.start_soon(landing.serve, origin)

        last = 0.0
        while True:
            hop = one.hops[other.name]
            shipment = hop.shipment() if hop.queue else hop.hello()
            self.network.send(nursery, accept, shipment)
            if hop.is_lost and trio.current_time() - last > 3 * TICK:
                for each in hop.again():
                    self.network.send(nursery, accept, each)
                last = trio.current_time()
            await trio.sleep(TICK / 2)

    async def _answer(self, one: Relay, other: Relay) -> None:
        def take(receipt: Receipt) -> None:
            one.hops[other.name].receipt(receipt)

        for number in count():
            await trio.sleep(TICK)
            receipt = other.landings[one.name].receipt(full=number % 3 == 0)
            self.network.send(self.nursery, take, receipt)

    def audit(self) -> None:
        """Audit all books: also that what has landed is owed for where it came from."""
        for one in self.relays:
            one.audit()
            for name, hop in one.hops.items():
                (other,) = [each for each in self.relays if each.name == name]
                landing = other.landings[one.name]
                self.check(hop, landing)

    def check(self, hop: Hop, landing: Landing) -> None:
        """Check that what has landed is owed for where it came from, if neither has restarted."""
        if landing.receipt(full=False).epoch != hop.epoch or self.gave_up:
            return
        out = hop.out()
        for number, parcel in landing.unsettled().items():
            loan = out[number]
            assert (loan.account.name, loan.items, loan.bytes) == (
                parcel.origin, parcel.items, parcel.nbytes,
            )  # fmt: skip
        found = compare(hop.books(), landing.books())
        assert found is None or not found.faults

    def is_quiet(self) -> bool:
        """Whether nobody owes anything."""
        return not any(
            account.debt_items
            for relay in self.relays
            for account in relay.ledger.accounts.values()
        )

    async def quiet(self, seconds: float = 600) -> None:
        """Wait until nobody owes anything."""
        with trio.fail_after(seconds):
            while not self.is_quiet():
                await trio.sleep(TICK)
                self.audit()


@asynccontextmanager
async def open_world(
    network: Network, relays: int = 2, limit: Limit | None = None
) -> AsyncGenerator[World, None]:
    """Run relays for the length of a block, and audit their books at its end."""
    async with trio.open_nursery() as nursery:
        world = World(nursery, network, relays, limit)
        try:
            yield world
            world.audit()
        finally:
            nursery.cancel_scope.cancel()
            for relay in world.relays:
                relay.stack.close()
                for each in relay.subscriptions.values():
                    each.close()
