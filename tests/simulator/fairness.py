"""Who gets how much where more is wanted than can be dealt with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import cast

import attrs
import trio
from trio.testing import MockClock

from clearfunds.accounts import NO_LIMIT, Account, Ledger, Limit
from tests.simulator.books import Books, EventLog
from tests.simulator.world import Box, Wire, event_of, run, size_of

SETTLING_SECONDS = 20.0
"""Before anything is measured."""

PAUSE_SECONDS = 0.01
"""For how long a taker works before it looks at the clock."""


def jain(shares: Sequence[float]) -> float:
    """Return Jain's index of fairness: 1 if all have the same, 1/n if one has everything.

    R. Jain, D. Chiu and W. Hawe, "A quantitative measure of fairness and discrimination", 1984.
    """
    return sum(shares) ** 2 / (len(shares) * sum(each * each for each in shares))


@attrs.frozen
class Source:
    """One who publishes as much as may be, unless it does so in bursts."""

    name: str
    parents: tuple[str, ...] = ()
    """The accounts above its own, the highest first, the server left out."""
    weight: float = 1.0
    sizes: tuple[int, int] = (100, 100)
    batch: int = 1
    """Messages in a turn."""
    readers: int = 1
    """How many connections publish on this account."""
    burst: int = 0
    """How many messages it has at a time; 0: it has always more."""
    pause: float = 0.0
    """Seconds between two bursts."""
    rate: float = 0.0
    """Messages a second, if it does not publish all it may."""
    box: str = "all"
    """Who takes what it publishes."""
    begins: float = 0.0
    """When."""
    limit: Limit = NO_LIMIT
    """Of its own account."""


@attrs.frozen
class Level:
    """An account between the server's and the sources'."""

    limit: Limit = NO_LIMIT
    weight: float = 1.0
    shared: bool = True


@attrs.frozen
class Taker:
    """One who deals with what is published, at so many messages and bytes a second."""

    items_per_s: float = 200.0
    bytes_per_s: float = float("inf")
    stuck: bool = False
    """Whether it takes nothing at all."""
    fair: bool | None = None
    """Whether it is sent in rounds, or as it came; None: it has a mailbox, and takes as it came."""


@attrs.frozen
class Measured:
    """What somebody got while it was measured."""

    items: dict[str, float]
    """Messages a second, by source."""
    bytes: dict[str, float]
    """Bytes a second."""
    waited: dict[str, float]
    """The part of the time in which its readers waited, added up."""
    ages: dict[str, list[float]]
    """Seconds from when each of its messages was sent until it was taken, in order; of wires."""


class Contest:
    """Sources that compete for what takers can deal with."""

    def __init__(
        self,
        clock: MockClock,
        sources: Iterable[Source],
        *,
        limit: Limit,
        levels: dict[str, Level] | None = None,
        takers: dict[str, Taker] | None = None,
        seed: int = 1,
    ) -> None:
        self.seed = seed
        self.ledger = Ledger(clock=clock.current_time)
        self.books = self.ledger.recorder = Books(EventLog(self.ledger))
        self.sources = tuple(sources)
        self.server = self.ledger.open("server", limit=limit, shared=True)
        self.takers = {"all": Taker()} if takers is None else takers
        self.boxes: dict[str, Box | Wire] = {
            name: Box(self.ledger, name, n)
            if taker.fair is None
            else Wire(self.ledger, name, n, fair=taker.fair)
            for n, (name, taker) in enumerate(self.takers.items())
        }
        self.sent: dict[bytes, float] = {}
        self.ages: dict[str, list[float]] = {source.name: [] for source in self.sources}
        self.accounts: dict[str, Account] = {}
        levels = {} if levels is None else levels
        for source in self.sources:
            parent = self.server
            for name in source.parents:
                level = levels.get(name, Level())
                if name not in self.accounts:
                    self.accounts[name] = self.ledger.open(
                        name, limit=level.limit, parent=parent,
                        weight=level.weight, shared=level.shared,
                    )  # fmt: skip
                parent = self.accounts[name]
            self.accounts[source.name] = self.ledger.open(
                source.name, limit=source.limit, parent=parent, weight=source.weight
            )

    async def run(self, seconds: float) -> Measured:
        """Let them compete, and measure for so long once they have settled."""
        async with trio.open_nursery() as nursery:
            for name, taker in self.takers.items():
                box = self.boxes[name]
                if isinstance(box, Wire):
                    nursery.start_soon(self.send, box, taker)
                else:
                    nursery.start_soon(self.take, box, taker)
            for source in self.sources:
                for reader in range(source.readers):
                    nursery.start_soon(self.publish, source, reader)
            await trio.sleep(SETTLING_SECONDS)
            items, nbytes = dict(self.books.paid_items), dict(self.books.paid)
            waited = self.waited()
            for ages in self.ages.values():
                ages.clear()
            for _ in range(20):
                await trio.sleep(seconds / 20)
                self.check()
            measured = Measured(
                {s.name: (self.books.paid_items[s.name] - items.get(s.name, 0)) / seconds
                 for s in self.sources},
                {s.name: (self.books.paid[s.name] - nbytes.get(s.name, 0)) / seconds
                 for s in self.sources},
                {name: (each - waited[name]) / seconds for name, each in self.waited().items()},
                self.ages,
            )  # fmt: skip
            nursery.cancel_scope.cancel()
        for box in self.boxes.values():
            box.close()
        self.ledger.audit()
        assert not self.ledger.statistics().debt_items
        return measured

    def waited(self) -> dict[str, float]:
        """Return for how long the readers of each source have waited."""
        return {s.name: self.accounts[s.name].statistics().waited_seconds for s in self.sources}

    def check(self) -> None:
        """Look whether all is well."""
        self.ledger.audit()
        self.books.check_totals(self.ledger)

    async def publish(self, source: Source, reader: int) -> None:
        """Publish as one connection of a source does."""
        chance = Random(f"{self.seed}/{source.name}/{reader}")
        account, box = self.accounts[source.name], self.boxes[source.box]
        left = source.burst
        number = 0
        await trio.sleep(source.begins)
        while True:
            await account.ensure_clear_funds()
            with account.turn(items=source.batch) as turn:
                for _ in range(source.batch):
                    size = chance.randint(*source.sizes)
                    number += 1
                    event = event_of(f"{source.name} {reader}", number, "all", size)
                    if isinstance(box, Wire):
                        self.sent[event.payload] = trio.current_time()
                    turn.send(box, event, nbytes=size)
            left -= source.batch
            if source.rate:
                await trio.sleep(source.batch / source.rate)
            elif source.burst and left <= 0:
                await trio.sleep(source.pause)
                left = source.burst
            else:
                await trio.lowlevel.checkpoint()

    async def take(self, box: Box, taker: Taker) -> None:
        """Deal with one message after the other."""
        if taker.stuck:
            await trio.sleep_forever()
        spent = 0.0
        async for loan in box:
            with loan:
                while loan.items:
                    size = loan.bytes // loan.items
                    spent += 1 / taker.items_per_s + size / taker.bytes_per_s
                    if spent > PAUSE_SECONDS:
                        await trio.sleep(spent)
                        spent = 0.0
                    loan.settle(1, nbytes=size if loan.items > 1 else loan.bytes)

    async def send(self, wire: Wire, taker: Taker) -> None:
        """Let a wire's peer take one message after the other."""
        spent = 0.0
        while await wire.offer():
            event = wire.sent()
            if event is None:
                return
            name = event.payload.partition(b" ")[0].decode()
            self.ages[name].append(trio.current_time() - self.sent.pop(event.payload))
            spent += 1 / taker.items_per_s + size_of(event) / taker.bytes_per_s
            if spent > PAUSE_SECONDS:
                await trio.sleep(spent)
                spent = 0.0


def compete(
    sources: Iterable[Source],
    *,
    limit: Limit,
    levels: dict[str, Level] | None = None,
    takers: dict[str, Taker] | None = None,
    seconds: float = 40.0,
) -> Measured:
    """Return what each of some sources got."""

    async def happen(clock: MockClock) -> Measured:
        contest = Contest(clock, sources, limit=limit, levels=levels, takers=takers)
        return await contest.run(seconds)

    return cast("Measured", run(happen, 1))
