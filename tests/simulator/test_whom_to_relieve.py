"""Several subscribers stop at the same time; one of them holds up nearly everybody.

As in `test_simulator.py`, the books balance after each step of anybody, and nobody is handled while
no reader waits for what it holds (`Needed`).
"""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from typing import cast

import pytest
from trio.testing import MockClock

from clearfunds.accounts import Limit, Outcome, StuckPolicy
from tests.simulator.plans import Plan, PublisherPlan, Scale, Session, SubscriberPlan
from tests.simulator.world import World, run

PUBLISHERS = 12
RARE = 4

KEEP = Limit(items=3, bytes=50_000)


def plan_of(policy: StuckPolicy, seed: int) -> Plan:
    """One subscribes to everything; others to a topic each, of which there is little."""
    scale = Scale(seed=seed, publishers=PUBLISHERS, subscribers=RARE + 1, seconds=40.0)
    topics = tuple(f"area{n}/topic{n}" for n in range(RARE + 1))
    publishers = tuple(
        PublisherPlan(
            name=f"publisher/{n}",
            tenant="tenant/0",
            user="tenant/0/user0",
            limit=Limit(items=20, bytes=300_000),
            latency=None,
            turns_per_second=2.0,
            rate=None,
            batch=1,
            sizes=(10, 100),
            sessions=(Session(0.0, scale.seconds),),
            refused=False,
        )
        for n in range(PUBLISHERS)
    )

    def subscriber(name: str, filters: tuple[str, ...]) -> SubscriberPlan:
        return SubscriberPlan(
            name=name,
            kind="wire",
            filters=filters,
            seconds_per_item=0.0,
            policy=policy,
            patience=5.0,
            retain_limit=KEEP,
            sessions=(Session(0.0, scale.seconds),),
            stalls=((4.0, 20.0),),
            returns_after=0.5,
        )

    subscribers = (
        subscriber("archive", ("#",)),
        *(subscriber(f"rare/{n}", (topics[n],)) for n in range(1, RARE + 1)),
    )
    popularity = tuple(accumulate((1.0, *(0.05 for _ in range(RARE)))))
    return Plan(scale, topics, popularity, publishers, subscribers)


@pytest.mark.parametrize("policy", [StuckPolicy.DISCONNECT, StuckPolicy.DROP_OLDEST])
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2, 3))])
def test_the_culprit_is_handled_and_the_others_lose_nothing(policy: StuckPolicy, seed: int) -> None:
    async def happen(clock: MockClock) -> World:
        world = World(plan_of(policy, seed), clock, every=1)
        await world.run()
        return world

    world = cast("World", run(happen, seed))
    assert world.left_alone > 0
    lost = {Outcome.DROPPED, Outcome.WRITTEN_OFF}
    losses: Counter[str] = Counter()
    for name, ended in world.books.of_holder.items():
        losses[name.partition(" ")[0]] += sum(ended[each] for each in lost)
    assert losses.pop("archive") > 0
    rare = {name: count for name, count in losses.items() if name.startswith("rare/")}
    assert len(rare) == RARE
    assert not any(rare.values())
