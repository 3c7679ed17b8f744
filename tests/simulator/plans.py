"""What is to happen in a simulated relay, drawn from a seed before anything does.

Everybody has a source of chance of his own, so that what one does never depends on when another had
his turn.
"""

from __future__ import annotations

from itertools import accumulate
from random import Random

import attrs

from clearfunds.accounts import Limit, RateLimit, StuckPolicy
from clearfunds.dataspace import topic_matches

SLOW = RateLimit(bytes_per_s=10_000, burst_bytes=50_000)

FLOOR = 5
"""What every publisher may owe, in items."""

AREAS = 7
"""How many parents the topics have, for filters with wildcards."""


@attrs.frozen
class Session:
    """From when to when somebody is connected, and how it ends."""

    begin: float
    end: float
    fails: bool = False
    """Whether it breaks off in the middle of whatever is going on."""


@attrs.frozen
class PublisherPlan:
    """One who publishes."""

    name: str
    tenant: str
    user: str
    limit: Limit
    turns_per_second: float
    latency: float | None
    """How old its debt may get, if that is what moves its limit; `limit` is the highest then."""
    rate: RateLimit | None
    batch: int
    """How many publications at most are one turn."""
    sizes: tuple[int, int]
    """Bytes of a publication, from and to."""
    sessions: tuple[Session, ...]
    refused: bool
    """Whether what it would publish above its limit is refused, and it does not wait."""


@attrs.frozen
class SubscriberPlan:
    """One who subscribes."""

    name: str
    kind: str
    """`mailbox`, `worker` (who answers what it gets), `wire`, or `fair` (a wire, in rounds)."""
    filters: tuple[str, ...]
    seconds_per_item: float
    policy: StuckPolicy
    patience: float
    retain_limit: Limit
    sessions: tuple[Session, ...]
    stalls: tuple[tuple[float, float], ...]
    """When it stops taking anything, and for how long."""
    returns_after: float
    """Seconds until it comes back when it was given up."""


@attrs.frozen(kw_only=True)
class Scale:
    """How much is to happen."""

    seed: int = 1
    publishers: int = 20
    subscribers: int = 20
    topics: int = 15
    tenants: int = 3
    users: int = 2
    """Of each tenant."""
    seconds: float = 60.0
    turns_per_second: float = 1.0
    """Of each publisher, on average."""
    skew: float = 0.9
    """Zipf's exponent: the k-th topic is as popular as the first divided by k ** skew."""
    limit: int = 60
    """Items that a publisher may owe, on average."""
    tenant_limit: int = 600
    server_limit: int = 1500
    shared: bool = True
    """Whether the server's limit and the tenants' are shared by weights."""
    policies: tuple[StuckPolicy, ...] = tuple(StuckPolicy)


@attrs.frozen
class Plan:
    """All that is to happen."""

    scale: Scale
    topics: tuple[str, ...]
    popularity: tuple[float, ...]
    """Of the topics, each with those before it."""
    publishers: tuple[PublisherPlan, ...]
    subscribers: tuple[SubscriberPlan, ...]

    def topic(self, chance: Random) -> str:
        """Draw a topic."""
        return chance.choices(self.topics, cum_weights=self.popularity)[0]

    def matching(self, some: tuple[str, ...]) -> frozenset[str]:
        """Return the topics that filters match, found by trying all of them."""
        plain = frozenset(self.topics).intersection(some)
        wild = [each for each in some if "+" in each or "#" in each]
        return plain.union(t for t in self.topics for f in wild if topic_matches(f, t))


def chance_of(scale: Scale, name: str) -> Random:
    """Return somebody's own source of chance."""
    return Random(f"{scale.seed}/{name}")


def draw(scale: Scale) -> Plan:
    """Draw all that is to happen."""
    topics = tuple(f"area{n % AREAS}/topic{n}" for n in range(scale.topics))
    popularity = tuple(accumulate((n + 1) ** -scale.skew for n in range(scale.topics)))
    plan = Plan(scale, topics, popularity, (), ())
    return attrs.evolve(
        plan,
        publishers=tuple(_publisher(scale, n) for n in range(scale.publishers)),
        subscribers=tuple(_subscriber(plan, n) for n in range(scale.subscribers)),
    )


def _sessions(scale: Scale, chance: Random) -> tuple[Session, ...]:
    """One that lasts, mostly; some come late, go early, or come and go."""
    sessions: list[Session] = []
    begin = chance.uniform(0.0, 0.05) * scale.seconds
    while begin < scale.seconds:
        lasts = chance.random() < 0.7
        end = scale.seconds if lasts else begin + chance.uniform(0.1, 0.6) * scale.seconds
        sessions.append(Session(begin, min(end, scale.seconds), fails=chance.random() < 0.5))
        begin = end + chance.choice([0.0, 0.5, 0.2 * scale.seconds])
    return tuple(sessions)


def _publisher(scale: Scale, number: int) -> PublisherPlan:
    name = f"publisher/{number}"
    chance = chance_of(scale, name)
    tenant = f"tenant/{chance.randrange(scale.tenants)}"
    sizes = chance.choice([(10, 100), (10, 100), (100, 5_000), (20_000, 60_000)])
    items = max(FLOOR, round(scale.limit * chance.uniform(0.2, 1.8)))
    greed = chance.choice([0.3, 0.5, 0.5, 1.0, 1.0, 3.0])
    batch = chance.choice([1, 1, 1, 3, 10])
    rates = [None, None, RateLimit(items_per_s=batch * scale.turns_per_second), SLOW]
    return PublisherPlan(
        name=name,
        tenant=tenant,
        user=f"{tenant}/user{chance.randrange(scale.users)}",
        # The mark at which it goes on differs, too: at once, at half, and when all is paid.
        limit=Limit(items=items, bytes=300_000, low_items=chance.choice([None, items, 0])),
        latency=chance.choice([None, None, 0.1, 1.0]),
        turns_per_second=scale.turns_per_second * greed,
        rate=chance.choice(rates),
        batch=batch,
        sizes=sizes,
        sessions=_sessions(scale, chance),
        refused=chance_of(scale, f"{name} is refused").random() < 0.25,
    )


def _subscriber(plan: Plan, number: int) -> SubscriberPlan:
    scale = plan.scale
    name = f"subscriber/{number}"
    chance = chance_of(scale, name)
    filters = {plan.topic(chance) for _ in range(chance.choice([1, 1, 2]))}
    if chance.random() < 0.03:
        filters.add(f"area{chance.randrange(AREAS)}/+")
    stalls: list[tuple[float, float]] = []
    if chance.random() < 0.25:
        for _ in range(chance.choice([1, 1, 3])):
            stalls.append((chance.uniform(0.1, 0.8) * scale.seconds, chance.uniform(1.0, 30.0)))
    policy = scale.policies[number % len(scale.policies)]
    kind = chance.choices(["mailbox", "worker", "wire", "fair"], [6, 1, 1.5, 1.5])[0]
    if policy is StuckPolicy.SPILL and kind in {"wire", "fair"}:
        kind = "mailbox"
    return SubscriberPlan(
        name=name,
        kind=kind,
        filters=tuple(sorted(filters)),
        seconds_per_item=chance.choice([0.0, 0.001, 0.01, 0.1]),
        policy=policy,
        patience=chance.choice([0.0, 2.0, 5.0, 20.0] if policy.relieves else [2.0, 5.0, 20.0]),
        retain_limit=Limit(
            items=chance.choice([3, 20, 1000]), bytes=chance.choice([50_000, 8 << 20])
        ),
        sessions=_sessions(scale, chance),
        stalls=tuple(sorted(stalls)),
        returns_after=chance.choice([0.0, 3.0]),
    )
