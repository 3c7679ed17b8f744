"""Rings of one to fifty members: each is found within its patience and named with its members.

A ring is drawn from its size: who owes how much to whom, short cuts from one member to another,
bystanders who wait on members but on whom nobody waits, and holders on the way that are well.
"""

from __future__ import annotations

import logging
from random import Random

import attrs
import pytest
import trio
from trio.testing import MockClock

from clearfunds.accounts import (
    Account,
    Ledger,
    Limit,
    StuckPolicy,
    rings,
    watch_patience,
)
from clearfunds.accounts.watch._patience import WATCH_SECONDS
from tests.simulator.world import DISK_SECONDS, Box, Disk, run

SIZES = range(1, 51)
KEEP = Limit(items=5)

LOW = 3
"""Up to how many items each of them may owe to go on; it waits above twice as many."""


@attrs.frozen
class RingPlan:
    """One ring."""

    size: int
    patience: float
    around: tuple[tuple[int, int], ...]
    """Who follows each member, and how much of its debt that one holds."""
    short_cuts: tuple[tuple[int, int, int], ...]
    """From which member to which other, and how much; never enough to wait for."""
    bystanders: tuple[tuple[int, int], ...]
    """On whom they wait, and for how much."""


def draw_ring(size: int) -> RingPlan:
    """Draw a ring with so many members."""
    chance = Random(size)
    order = chance.sample(range(size), size)
    follower = dict(zip(order, [*order[1:], order[0]], strict=True))
    return RingPlan(
        size=size,
        patience=chance.choice([1.0, 5.0, 20.0]),
        around=tuple((follower[n], chance.randint(2 * LOW + 1, 5 * LOW)) for n in range(size)),
        short_cuts=tuple(
            (debtor, chance.randrange(size), chance.randint(1, LOW - 1))
            for debtor in chance.sample(range(size), chance.choice([0, size // 3]))
        ),
        bystanders=tuple(
            (chance.randrange(size), chance.randint(2 * LOW + 1, 5 * LOW))
            for _ in range(chance.randrange(4))
        ),
    )


class RingScene:
    """Connections that publish and are published to; each takes what is its own while it is read.

    Args:
        plan: The ring.
        ledger: The books.
        policy: That of all its members.
    """

    def __init__(self, plan: RingPlan, ledger: Ledger, policy: StuckPolicy) -> None:
        self.plan = plan
        self.ledger = ledger
        self.went_on: dict[str, float] = {}
        self.members = [self.account(f"member/{n}") for n in range(plan.size)]
        self.disk = Disk(ledger)
        self.boxes: list[Box] = []
        for n in range(plan.size):
            name = f"to member/{n}"
            spool = None
            if policy is StuckPolicy.SPILL:
                spool = self.disk.spool(name, plan.size + 1 + n)
            self.boxes.append(
                Box(
                    ledger,
                    name,
                    n,
                    patience=plan.patience,
                    policy=policy,
                    retain_limit=KEEP,
                    spill=spool,
                )
            )
        for member, box in zip(self.members, self.boxes, strict=True):
            box.owner = member
        # On these, nobody waits for long.
        self.well = Box(ledger, "well", plan.size)
        for n, (follower, items) in enumerate(plan.around):
            self.owes(self.members[n], self.boxes[follower], items)
            self.owes(self.members[n], self.well, 1)
        for debtor, holder, items in plan.short_cuts:
            self.owes(self.members[debtor], self.boxes[holder], items)
        self.bystanders = [self.account(f"bystander/{n}") for n in range(len(plan.bystanders))]
        for account, (holder, items) in zip(self.bystanders, plan.bystanders, strict=True):
            self.owes(account, self.boxes[holder], items)

    def account(self, name: str) -> Account:
        return self.ledger.open(name, limit=Limit(items=2 * LOW, low_items=LOW))

    def owes(self, debtor: Account, holder: Box, items: int) -> None:
        for _ in range(items):
            with debtor.turn(nbytes=10) as turn:
                turn.send(holder, b"", nbytes=10)

    def names(self, accounts: list[Account]) -> list[str]:
        return sorted(account.name for account in accounts)

    async def read(self, account: Account, box: Box | None) -> None:
        """Wait for clear funds; the peer that is read then takes what is there for it."""
        await account.ensure_clear_funds()
        self.went_on[account.name] = trio.current_time()
        if box is not None and not box.closed:
            self.take(box)

    def take(self, box: Box) -> None:
        while box.queue:
            with box.receive_nowait():
                pass

    def close(self) -> None:
        """End it all, and see that nothing is left."""
        for box in [*self.boxes, self.well]:
            box.close()
        self.disk.close()
        self.ledger.audit()
        assert not self.ledger.statistics().debt_items
        assert not self.ledger.statistics().at_rest_items

    async def is_well(self) -> None:
        async for loan in self.well:
            with loan:
                await trio.sleep(0.01)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.message for r in caplog.records if r.levelno >= logging.WARNING]


def is_quick(size: int) -> bool:
    """Whether a ring is for every run; most of the large ones take their time."""
    return size <= 12 or size % 10 == 0


@pytest.mark.parametrize(
    "size", [pytest.param(n, marks=() if is_quick(n) else pytest.mark.long) for n in SIZES]
)
@pytest.mark.parametrize("policy", StuckPolicy)
def test_a_ring_is_found_and_named_and_opened_by_policy(
    policy: StuckPolicy, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    plan = draw_ring(size)

    async def happen(clock: MockClock) -> None:
        ledger = Ledger(clock=clock.current_time)
        scene = RingScene(plan, ledger, policy)
        members = scene.names(scene.members)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch_patience, ledger)
            nursery.start_soon(scene.is_well)
            nursery.start_soon(scene.disk.turning)
            for account, box in zip(scene.members, scene.boxes, strict=True):
                nursery.start_soon(scene.read, account, box)
            for account in scene.bystanders:
                nursery.start_soon(scene.read, account, None)
            await trio.sleep(0.9)
            (ring,) = rings(ledger, still=0.8)
            assert sorted(ring.members) == members
            assert not scene.went_on
            await trio.sleep_until(plan.patience + 0.2 + WATCH_SECONDS)
            told = [each for each in warnings_of(caplog) if ring.sentence() in each]
            assert len(told) == 1
            closed = sum(box.closed for box in scene.boxes)
            relieved = sum(box.relief.spells for box in scene.boxes)
            if policy is StuckPolicy.WAIT:
                assert not scene.went_on
                assert closed == relieved == 0
                scene.take(scene.boxes[0])
            else:
                # One is enough.
                assert (closed, relieved) == ((0, 1) if policy.relieves else (1, 0))
            await trio.sleep(4 * DISK_SECONDS)
            assert set(members) <= set(scene.went_on)
            assert policy is StuckPolicy.DISCONNECT or not any(box.lagging for box in scene.boxes)
            nursery.cancel_scope.cancel()
        scene.close()

    run(happen, size)


@pytest.mark.parametrize("size", range(2, 51, 4))
def test_rings_that_hang_together_are_all_opened(
    size: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Each member owes enough to wait for to several others."""
    chance = Random(size)

    async def happen(clock: MockClock) -> None:
        ledger = Ledger(clock=clock.current_time)
        plan = attrs.evolve(draw_ring(size), patience=5.0)
        scene = RingScene(plan, ledger, StuckPolicy.DISCONNECT)
        for debtor in scene.members:
            for holder in chance.sample(scene.boxes, min(size, chance.randint(1, 3))):
                scene.owes(debtor, holder, chance.randint(LOW + 1, 3 * LOW))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch_patience, ledger)
            nursery.start_soon(scene.is_well)
            async with trio.open_nursery() as readers:
                for account, box in zip(scene.members, scene.boxes, strict=True):
                    readers.start_soon(scene.read, account, box)
            nursery.cancel_scope.cancel()
        # The first rings after their patience, each of those that are left over at the next look.
        assert plan.patience <= trio.current_time() <= 2 * plan.patience
        named = [each for each in warnings_of(caplog) if ", in a ring: " in each]
        given_up = sum(box.closed for box in scene.boxes)
        assert 1 <= len(named) <= given_up == len(warnings_of(caplog))
        assert given_up < size or size == 2
        scene.close()

    run(happen, size)
