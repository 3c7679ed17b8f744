"""What siblings get of a server that is too slow for all of them, by their wants and their weights.

All publish to one consumer, which takes so many events a second, first come first served: so what
each gets is what it owes, as a part of what all owe (Little's law). On Trio's mock clock; the same
seed gives the same run.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import attrs
import pytest
from trio.testing import MockClock

from clearfunds.accounts import NO_LIMIT, Account, Ledger, Limit
from tests.accounts.conftest import Box, publish, run_seeded
from tests.loops import open_nursery

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Run = Callable[[Callable[[], "World"]], tuple["World", list[float]]]

RATE = 4000
"""Events that the consumer takes in a second."""

TICK = 0.005
READ = 64
"""Events that one read brings in."""

WARM_SECONDS = 1.0
SECONDS = 3.0
LIMIT = Limit(items=1000, bytes=None)


@attrs.define
class Sibling:
    """Publishes as fast as it may."""

    weight: float = 1
    size: int = 1
    """Copies that each of its messages makes."""

    pause: float = 0.0
    """Seconds it has nothing to say between one burst and the next."""

    burst: int = 200
    account: Account = attrs.field(init=False)
    got: int = 0


def jain(figures: Sequence[float]) -> float:
    """Return Jain's index of fairness: 1 when all are equal, 1 / n when one has everything."""
    return sum(figures) ** 2 / (len(figures) * sum(each * each for each in figures))


@pytest.fixture(params=range(2))
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a world on a mock clock."""

    def run(make: Callable[[], World]) -> tuple[World, list[float]]:
        async def scenario() -> tuple[World, list[float]]:
            world = make()
            return world, await world.run()

        clock = MockClock(autojump_threshold=0)
        found: tuple[World, list[float]] = run_seeded(
            scenario, request.param, monkeypatch, clock=clock
        )
        return found

    return run


class World:
    """Siblings under one account, and the consumer."""

    def __init__(
        self,
        siblings: list[Sibling],
        *,
        small: int = 0,
        shared: bool = True,
        stuck: bool = False,
        seconds: float = SECONDS,
    ) -> None:
        self.seconds = seconds
        self.ledger = Ledger(clock=anyio.current_time)
        self.server = self.ledger.open("server", limit=LIMIT, shared=shared)
        self.siblings = siblings
        for number, each in enumerate(siblings):
            each.account = self.open(f"sibling{number}", each.weight)
        self.small = [self.open(f"small{number}") for number in range(small)]
        self.stuck = self.open("stuck") if stuck else None
        self.box = Box(self.ledger, "consumer")
        self.stuck_box = Box(self.ledger, "stuck consumer")
        self.random = random.Random(7)

    def open(self, name: str, weight: float = 1) -> Account:
        return self.ledger.open(name, limit=NO_LIMIT, parent=self.server, weight=weight)

    async def publish_all(self, each: Sibling) -> None:
        account = each.account
        while True:
            await account.ensure_clear_funds()
            for _ in range(READ):
                publish(account, [self.box], items=each.size)
                if not account.funds_are_clear():
                    break
            each.burst -= READ if each.pause else 0
            if each.burst <= 0:
                each.burst = 200
                await anyio.sleep(each.pause)
            await anyio.lowlevel.checkpoint()

    async def publish_a_little(self, account: Account) -> None:
        while True:
            await anyio.sleep(self.random.uniform(0, 0.5))
            await account.ensure_clear_funds()
            publish(account, [self.box])

    async def publish_for_nobody(self, account: Account) -> None:
        while True:
            await account.ensure_clear_funds()
            publish(account, [self.stuck_box])
            await anyio.lowlevel.checkpoint()

    async def work(self) -> None:
        began = anyio.current_time()
        while True:
            await anyio.sleep(TICK)
            owed = [each.account.debt_items for each in self.siblings]
            left = round(RATE * TICK)
            while left and self.box.queue:
                some = min(left, self.box.queue[0].items)
                self.box.work(some)
                left -= some
            if anyio.current_time() - began > WARM_SECONDS:
                for each, before in zip(self.siblings, owed, strict=True):
                    each.got += before - each.account.debt_items

    async def run(self) -> list[float]:
        """Return what each sibling got for its weight; 1.0 is the mean."""
        with anyio.move_on_after(WARM_SECONDS + self.seconds):
            async with open_nursery() as nursery:
                for each in self.siblings:
                    nursery.start_soon(self.publish_all, each)
                for account in self.small:
                    nursery.start_soon(self.publish_a_little, account)
                if self.stuck is not None:
                    nursery.start_soon(self.publish_for_nobody, self.stuck)
                nursery.start_soon(self.work)
        self.ledger.audit()
        for box in (self.box, self.stuck_box):
            box.close()
        assert not self.ledger.waiters
        parts = [each.got / each.weight for each in self.siblings]
        return [part * len(parts) / (sum(parts) or 1) for part in parts]


@pytest.mark.parametrize(
    ("sizes", "small"),
    [
        ([1] * 5, 0),
        ([1] * 20, 0),
        ([1] * 5, 50),
        # Those with large messages get no more than the others, and no less.
        ([1, 8, 1, 16], 0),
        ([1, 30], 20),
    ],
)
def test_equal_siblings_that_want_all_get_the_same(sizes: list[int], small: int, run: Run) -> None:
    world, parts = run(lambda: World([Sibling(size=size) for size in sizes], small=small))
    assert jain(parts) >= 0.99
    assert all(0.9 <= part <= 1.1 for part in parts), parts
    # Who wants little gets it, and at once.
    assert sum(account.waits for account in world.small) == 0


@pytest.mark.parametrize("small", [0, 50])
def test_unequal_siblings_get_their_weights(small: int, run: Run) -> None:
    world, parts = run(
        lambda: World([Sibling(weight=w) for w in (1, 2, 3, 4)], small=small, seconds=6.0)
    )
    assert all(0.95 <= part <= 1.05 for part in parts), parts
    assert sum(account.waits for account in world.small) == 0


def test_a_bursty_neighbour_takes_nothing_from_greedy_ones(run: Run) -> None:
    world, _ = run(lambda: World([Sibling(), Sibling(), Sibling(pause=0.3)]))
    first, second, bursty = (each.got for each in world.siblings)
    # What it leaves over is theirs, by equal parts: nothing is lost.
    assert jain([first, second]) >= 0.99
    assert bursty < first
    assert first + second + bursty == pytest.approx(RATE * SECONDS, rel=0.02)


def test_next_to_one_that_is_stuck_the_others_get_as_much_as_without(run: Run) -> None:
    """Small ones never wait; greedy ones share what the consumer does."""
    world, parts = run(lambda: World([Sibling(), Sibling()], small=20, stuck=True))
    assert jain(parts) >= 0.99
    assert sum(each.got for each in world.siblings) >= 0.95 * (RATE - 20 * 4) * SECONDS
    assert sum(account.waits for account in world.small) == 0
    assert world.stuck is not None
    assert world.stuck.waits >= 1
    # Each reader was let through for one message at most above its share.
    assert world.server.peak_items <= 2 * 1000 + 23


def test_without_shares_one_that_is_stuck_stops_everybody(run: Run) -> None:
    """What shares are for."""
    world, _ = run(lambda: World([Sibling(), Sibling()], small=20, stuck=True, shared=False))
    assert all(account.waits for account in world.small)
    assert sum(each.got for each in world.siblings) < 0.2 * RATE * SECONDS
