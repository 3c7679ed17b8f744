"""The CPU time that hostile clients can make one operation of the dataspace cost.

    python benchmarks/hostile.py            # a table
    python benchmarks/hostile.py --check    # exit 1 if an operation costs more than it may

Each row is the most expensive of a few kinds of subscriptions, patterns or retained messages within
a client's default limits. A figure is the time of one step of the loop, the median over `--repeats`
runs.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import sys
from time import process_time
from typing import TYPE_CHECKING, TypeAlias

from clearfunds.accounts import Ledger, QuotaExceededError
from clearfunds.dataspace import (
    ANY,
    DEFAULT_CACHED_ROUTES,
    DEFAULT_MAX_SHAPES,
    Dataspace,
    Group,
    Mailbox,
    Publication,
    TopicFilter,
    compile_pattern,
)
from clearfunds.transports.mqtt.server._replays import LOOKS_A_STEP

if TYPE_CHECKING:
    from collections.abc import Callable

    from clearfunds.accounts import Account

CLIENTS = 12
LEVELS = 128


class Scene:
    """A dataspace with what some strangers have in it."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.dataspace = Dataspace(self.ledger, max_retained=1_000_000)
        self.innocent = self.ledger.open("innocent")
        self.inbox = Mailbox(self.ledger, "innocent")
        self.taken = 0

    def stranger(self, number: int) -> tuple[Account, Mailbox]:
        """Open the account of one, and what it observes with."""
        name = f"stranger {number}"
        return self.ledger.open(name), Mailbox(self.ledger, name)

    def observe(self, account: Account, mailbox: Mailbox, pattern: object) -> None:
        """Observe a pattern, if the limits allow it."""
        try:
            with account.turn() as turn:
                self.dataspace.observe(turn, pattern, mailbox, replay=False)
            self.taken += 1
        except QuotaExceededError:
            pass

    def cache_routes(self) -> None:
        """Have routes of as many topics as are kept."""
        for number in range(DEFAULT_CACHED_ROUTES):
            self.dataspace.routes.of(f"{number}/a/b/c")


def deep_filters() -> Scene:
    """Return a scene with filters of as many levels as there may be, wildcards at random."""
    scene = Scene()
    dice = random.Random(1)
    for number in range(CLIENTS):
        account, mailbox = scene.stranger(number)
        for _ in range(1_000):
            text = "/".join(dice.choice("a+") for _ in range(LEVELS - 1)) + "/#"
            scene.observe(account, mailbox, TopicFilter(text))
    return scene


def route_of_a_deep_topic(scene: Scene) -> float:
    """Return the seconds for which the route of a topic is looked for that all filters match."""
    topic = "/".join("a" * (LEVELS - 1)) + f"/{random.random()}"
    return timed(lambda: scene.dataspace.routes.of(topic))


def route_of_a_topic(scene: Scene) -> float:
    """Return the same for a topic of four levels."""
    return timed(lambda: scene.dataspace.routes.of(f"a/a/a/{random.random()}"))


def change_beside_many_routes(scene: Scene) -> float:
    """Return the seconds of one subscription that may concern all topics whose route is kept."""
    scene.cache_routes()
    pattern = TopicFilter(f"+/+/+/{random.random()}")
    return timed(lambda: scene.observe(scene.innocent, scene.inbox, pattern))


def packet_of_filters(scene: Scene) -> float:
    """Return the seconds of a thousand subscriptions one after the other."""
    scene.cache_routes()
    account, mailbox = scene.stranger(random.randrange(1 << 60))
    filters = [TopicFilter(f"+/+/+/z{number}") for number in range(1_000)]

    def subscribe() -> None:
        for each in filters:
            scene.observe(account, mailbox, each)

    return timed(subscribe)


def churn_beside_a_publisher(scene: Scene) -> float:
    """Return the seconds of a change and a publication after it, on a topic as before."""
    pattern = TopicFilter("+/+/z")
    topic = f"{random.random()}/a/b/c"

    def both() -> None:
        with scene.innocent.turn() as turn:
            observation = scene.dataspace.observe(turn, pattern, scene.inbox, replay=False)
        scene.dataspace.routes.of(topic)
        with scene.innocent.turn() as turn:
            scene.dataspace.unobserve(turn, observation)
        scene.dataspace.routes.of(topic)

    return timed(both) / 2


def many_retained() -> Scene:
    """Return a scene with retained messages, all beside what is looked for."""
    scene = Scene()
    owner = scene.ledger.standing_of("owner")
    for number in range(100_000):
        publication = Publication(f"site/{number}/temperature", b"1", retain=True)
        scene.dataspace.retained.set(publication, owner)
    return scene


def step_of_a_replay(scene: Scene) -> float:
    """Return the seconds of one step of a replay that finds nothing."""
    cursor = scene.dataspace.retained.cursor("+/+/humidity")

    def step() -> None:
        for _ in range(LOOKS_A_STEP):
            cursor.step()

    return timed(step)


def many_shapes() -> Scene:
    """Return a scene with as many shapes of patterns for publications as there may be."""
    scene = Scene()
    dice = random.Random(1)
    number = 0
    while scene.taken < DEFAULT_MAX_SHAPES:
        account, mailbox = scene.stranger(number)
        number += 1
        for _ in range(100):
            levels = tuple("a" if dice.random() < 0.5 else ANY for _ in range(20))
            entries = (("levels", compile_pattern((*levels, "no"))),)
            scene.observe(account, mailbox, Group(Publication, entries))
    return scene


def publication_beside_shapes(scene: Scene) -> float:
    """Return the seconds for which it is looked for who observes a publication: nobody does."""
    publication = Publication("/".join("a" * 21), b"")
    return timed(lambda: scene.dataspace.recipients(publication))


def timed(action: Callable[[], object]) -> float:
    """Return the CPU seconds of doing something once."""
    before = process_time()
    action()
    return process_time() - before


Row: TypeAlias = "tuple[str, Callable[[Scene], float], float]"

ROWS: tuple[tuple[Callable[[], Scene], tuple[Row, ...]], ...] = (
    (
        deep_filters,
        (
            ("route of a topic of 128 levels, 12 x 1,000 deep filters", route_of_a_deep_topic, 4),
            ("route of a topic of 4 levels, beside these", route_of_a_topic, 0.2),
            ("one SUBSCRIBE to +/+/+/x, 16,384 routes kept", change_beside_many_routes, 2),
            ("1,000 of them in turn, 16,384 routes kept", packet_of_filters, 100),
            ("a change of +/+/z and a route after it", churn_beside_a_publisher, 0.5),
        ),
    ),
    (many_retained, (("one step of a replay, 100,000 retained", step_of_a_replay, 2),)),
    (many_shapes, (("a publication, 1,000 shapes of patterns", publication_beside_shapes, 4),)),
)  # fmt: skip
"""Scenes, and what is measured in each: its name, how, and how many ms it may take."""


def main() -> int:
    """Read the command line; measure."""
    parser = argparse.ArgumentParser(description="The cost of the dataspace beside strangers.")
    parser.add_argument("--repeats", type=int, default=7, help="runs of each (7)")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a budget is missed")
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error("--repeats: at least 1")
    print("| operation | ms, median | least | most | budget |")
    print("| - | - | - | - | - |")
    missed = 0
    for make, cases in ROWS:
        scene = make()
        gc.collect()
        for name, measure, budget in cases:
            samples = sorted(measure(scene) * 1e3 for _ in range(arguments.repeats))
            median = statistics.median(samples)
            print(f"| {name} | {median:.3f} | {samples[0]:.3f} | {samples[-1]:.3f} | {budget} |")
            if median > budget:
                missed += 1
                print(f"hostile: budget missed: {name}: {median:.3f} ms", file=sys.stderr)
    return 1 if missed and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
