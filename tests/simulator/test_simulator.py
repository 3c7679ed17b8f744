"""A relay in small, with everything that may happen to it at once, and what has to hold throughout.

After each step of anybody: the books balance, whatever was sent is accounted for, no account has
ever owed more than its limit and one turn, no more came in than may, each got what was sent in
order and knows of each gap, nobody waits on who is behind, and nobody whose policy says otherwise
has been waited for much longer than its patience (`World.check`). At the end nothing is left, and
who has caught up has got the latest.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import cast

import attrs
import pytest
from trio.testing import MockClock

from clearfunds.accounts import Outcome, StuckPolicy
from tests.simulator.plans import Scale, draw
from tests.simulator.world import World, run

SMALL = Scale(limit=25, tenants=2, tenant_limit=50, server_limit=80, turns_per_second=1.5)
MIDDLE = Scale(
    publishers=100,
    subscribers=100,
    topics=60,
    tenants=5,
    turns_per_second=0.3,
    tenant_limit=100,
    server_limit=300,
)
LARGE = Scale(
    publishers=1000, subscribers=1000, topics=1000, tenants=10, users=5,
    seconds=30.0, turns_per_second=0.06, tenant_limit=200, server_limit=1000,
)  # fmt: skip


def simulate(scale: Scale, every: int = 1) -> World:
    """Let a world of that scale happen."""

    async def happen(clock: MockClock) -> World:
        world = World(draw(scale), clock, every)
        try:
            await world.run()
        except BaseException as exc:
            exc.add_note("the last that happened:\n" + "".join(world.log.latest[-World.TOLD :]))
            raise
        return world

    return cast("World", run(happen, scale.seed))


def has_been_through_a_lot(world: World) -> None:
    """See that what a scenario is about has happened in it."""
    ledger = world.ledger
    for outcome in set(Outcome) - {Outcome.EXPIRED, Outcome.LEAKED}:
        assert ledger.repaid_items[outcome] > 0, outcome
    waits = ledger.statistics().waits_by_reason
    assert waits["account"] > 0
    assert waits["share"] > 0
    assert waits["rate"] > 0
    for policy, relief in ledger.relief.items():
        assert relief.spells > 0, policy
    # Debts were taken over, and somebody behind was looked at.
    assert world.inherited > 0
    assert world.lagging > 0
    # Some have lost what their policies drop, and have got the latest all the same.
    assert world.caught_up[StuckPolicy.DROP_OLDEST] > 0
    assert world.caught_up[StuckPolicy.CONFLATE] > 0
    assert world.longest_wait > 2.0
    assert world.refused > 0


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in range(1, 40))]
)
def test_after_each_step_of_anybody(seed: int) -> None:
    world = simulate(attrs.evolve(SMALL, seed=seed, shared=seed % 2 == 0))
    waits = world.ledger.statistics().waits_by_reason
    assert waits["account"] > 0
    if seed < 4:  # in others it may be, as chance has it, that nobody waits for those above
        assert waits["share" if world.plan.scale.shared else "parent"] > 0
    assert world.checks > world.steps > 500


@pytest.mark.long
def test_a_thousand_publishers_and_a_thousand_subscribers() -> None:
    world = simulate(LARGE, every=3000)
    has_been_through_a_lot(world)
    assert world.copies > 40_000


# -- the same seed, the same run ------------------------------------------------------------------


@pytest.mark.long
def test_the_same_seed_gives_the_same_run() -> None:
    first, second = simulate(MIDDLE, 1000), simulate(MIDDLE, 1000)
    has_been_through_a_lot(first)
    assert first.log.lines > 10_000
    assert (first.log.digest, first.log.lines) == (second.log.digest, second.log.lines)


def test_another_seed_gives_another_run() -> None:
    scales = [attrs.evolve(SMALL, seed=seed, seconds=10.0) for seed in (1, 2)]
    assert len({simulate(scale, 100).log.digest for scale in scales}) == 2


def test_it_does_so_in_a_process_that_hashes_otherwise() -> None:
    script = (
        "from tests.simulator.test_simulator import SMALL, simulate; "
        "print(simulate(SMALL, every=500).log.digest)"
    )
    told = subprocess.run(
        [sys.executable, "-c", script],
        # (That of this process is a random one, unless it was told.)
        cwd=Path(__file__).parents[2], env={**os.environ, "PYTHONHASHSEED": "1"},
        check=True, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert told.stdout.strip() == simulate(SMALL, every=500).log.digest
