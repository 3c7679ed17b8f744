"""Fairness: who gets how much when a shared account's limit is less than what all want together.

What counts is what was dealt with: one consumer at the end takes the oldest first, whoever's it is,
so that each gets of its rate what it has of the debt. Or it is sent in rounds, and each gets its
turn, whatever it owes.
"""

from __future__ import annotations

import attrs
import pytest

from clearfunds.accounts import Limit
from tests.simulator.fairness import Level, Measured, Source, Taker, compete, jain

BYTES_PER_S = 100_000
LIMIT = Limit(items=None, bytes=400_000)
TAKERS = {"all": Taker(items_per_s=float("inf"), bytes_per_s=BYTES_PER_S)}
SIZES = (200, 800)

GREEDY = Source("greedy", sizes=SIZES, batch=2, readers=20)
LARGE = Source("large", sizes=(1_000, 3_000))
TINY = Source("tiny", sizes=(50, 100))
BURSTY = Source("bursty", sizes=SIZES, burst=200, pause=4.0)


def parts(got: Measured, sources: list[Source]) -> dict[str, float]:
    """Return what each got of its part, by weights, of what all of them got; 1.0 is just that."""
    everything = sum(got.bytes[source.name] for source in sources)
    weights = sum(source.weight for source in sources)
    return {s.name: got.bytes[s.name] / everything * weights / s.weight for s in sources}


def equals(count: int, prefix: str = "equal", **more: object) -> list[Source]:
    return [Source(f"{prefix}/{n}", sizes=SIZES, **more) for n in range(count)]  # type: ignore[arg-type]


# -- one level ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "neighbours",
    [
        (GREEDY, LARGE, TINY),
        pytest.param((), marks=pytest.mark.long),
        pytest.param((GREEDY,), marks=pytest.mark.long),
        pytest.param((LARGE,), marks=pytest.mark.long),
    ],
)
def test_equal_siblings_get_the_same(neighbours: tuple[Source, ...]) -> None:
    sources = [*equals(6), *neighbours]
    got = compete(sources, limit=LIMIT, takers=TAKERS)
    assert jain(list(got.bytes.values())) >= 0.99
    # All that can be dealt with is.
    assert sum(got.bytes.values()) >= 0.98 * BYTES_PER_S


@pytest.mark.long
def test_equal_siblings_get_the_same_beside_bursts() -> None:
    """What one leaves over between its bursts is for the others, in equal parts."""
    peers = equals(6)
    got = compete([*peers, BURSTY], limit=LIMIT, takers=TAKERS, seconds=60.0)
    assert jain([got.bytes[peer.name] for peer in peers]) >= 0.99
    part = BYTES_PER_S / 7
    assert min(got.bytes[peer.name] for peer in peers) >= 0.95 * part
    assert 0.5 * part <= got.bytes["bursty"] <= 1.05 * part
    assert sum(got.bytes.values()) >= 0.98 * BYTES_PER_S


def test_unequal_siblings_get_what_they_weigh() -> None:
    sources = [Source(f"weight/{n}", sizes=SIZES, weight=n) for n in range(1, 6)]
    got = compete(sources, limit=LIMIT, takers=TAKERS, seconds=60.0)
    assert parts(got, sources) == {s.name: pytest.approx(1.0, abs=0.05) for s in sources}


@pytest.mark.long
def test_they_do_so_beside_greedy_and_large_neighbours() -> None:
    sources = [Source(f"weight/{n}", sizes=SIZES, weight=n) for n in range(1, 6)]
    sources += [attrs.evolve(GREEDY, weight=2.0, batch=1), attrs.evolve(LARGE, weight=3.0)]
    got = compete(sources, limit=LIMIT, takers=TAKERS, seconds=80.0)
    assert parts(got, sources) == {s.name: pytest.approx(1.0, abs=0.05) for s in sources}


@pytest.mark.long
def test_where_both_units_count_it_is_by_the_one_of_which_each_takes_more() -> None:
    """Small messages fill the limit of items, large ones that of bytes; the parts are equal."""
    limit = Limit(items=400, bytes=1_000_000)
    small = [Source(f"small/{n}") for n in range(4)]
    large = [Source(f"large/{n}", sizes=(10_000, 20_000)) for n in range(2)]
    got = compete([*small, *large], limit=limit, takers={"all": Taker(items_per_s=200)})
    dominant = [max(got.items[s.name] / 400, got.bytes[s.name] / 1_000_000) for s in small + large]
    assert jain(dominant) >= 0.99


# -- tenants, users, connections ------------------------------------------------------------------


def part_of_all(items: float) -> Limit:
    """Return that part of the server's limit."""
    assert LIMIT.bytes is not None
    return Limit(items=None, bytes=round(items * LIMIT.bytes))


LEVELS = {
    # Tenants weigh 2 : 1, users 1 : 3.
    "server": {"t1": Level(weight=2.0), "t1/b": Level(weight=3.0)},
    "tenants": {
        "t1": Level(part_of_all(2 / 3)), "t2": Level(part_of_all(1 / 3)), "t1/b": Level(weight=3.0),
    },
    "users": {
        "t1": Level(part_of_all(2 / 3)), "t2": Level(part_of_all(1 / 3)),
        "t1/a": Level(part_of_all(1 / 6)), "t1/b": Level(part_of_all(1 / 2), weight=3.0),
        "t2/a": Level(part_of_all(1 / 3)),
    },
}  # fmt: skip


@pytest.mark.parametrize(
    "level",
    [
        "server",
        pytest.param("tenants", marks=pytest.mark.long),
        pytest.param("users", marks=pytest.mark.long),
    ],
)
def test_shares_of_tenants_of_users_and_of_connections(level: str) -> None:
    """Whether only the server's limit is too low, or those of tenants are, or of users as well."""
    sources: list[Source] = []
    for tenant, user, connections in (("t1", "t1/a", 4), ("t1", "t1/b", 2), ("t2", "t2/a", 3)):
        for n in range(connections):
            # Those that come first want the most.
            sources.append(
                Source(f"{user}/{n}", (tenant, user), sizes=SIZES, readers=1 if n else 5)
            )
    got = compete(sources, limit=LIMIT, takers=TAKERS, levels=LEVELS[level], seconds=60.0)
    expected = {
        **dict.fromkeys([f"t1/a/{n}" for n in range(4)], 1 / 24),
        **dict.fromkeys([f"t1/b/{n}" for n in range(2)], 1 / 4),
        **dict.fromkeys([f"t2/a/{n}" for n in range(3)], 1 / 9),
    }
    everything = sum(got.bytes.values())
    assert {name: each / everything for name, each in got.bytes.items()} == {
        name: pytest.approx(part, rel=0.06) for name, part in expected.items()
    }


# -- the innocent ---------------------------------------------------------------------------------

ITEMS = Limit(items=500, bytes=None)

INNOCENT = {
    "steady": [Source(f"innocent/{n}", rate=20.0) for n in range(3)],
    "greedy": [Source(f"innocent/{n}") for n in range(3)],
}

STUCK = Source("stuck/0", box="stuck", batch=5, readers=5)
"""Nobody takes what it publishes."""

PLACES: dict[str, tuple[tuple[str, ...], tuple[str, ...], dict[str, Level]]] = {
    # Where the innocent are, where the stuck, and the limits below the server's.
    "siblings": ((), (), {}),
    "tenants": (("t1", "t1/a"), ("t2", "t2/a"), {}),
    "users of the server's limit": (("t1", "t1/a"), ("t1", "t1/b"), {}),
    "users": (("t1", "t1/a"), ("t1", "t1/b"), {"t1": Level(limit=Limit(items=300, bytes=None))}),
    "connections": (
        ("t1", "t1/a"), ("t1", "t1/a"), {"t1/a": Level(limit=Limit(items=200, bytes=None))},
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("place", "innocent", "late"),
    [
        pytest.param(
            place, innocent, late, marks=() if innocent == "steady" and late else pytest.mark.long
        )
        for place in PLACES
        for innocent in INNOCENT
        for late in (False, True)
    ],
)
def test_the_innocent_keep_their_rate_beside_a_stuck_one(
    place: str, innocent: str, late: bool
) -> None:
    """Also if they come when the stuck one has already taken all that there was."""
    theirs, others, levels = PLACES[place]
    sources = [
        attrs.evolve(source, parents=theirs, begins=5.0 * late) for source in INNOCENT[innocent]
    ]
    takers = {"all": Taker(items_per_s=100.0), "stuck": Taker(stuck=True)}

    def rates(*more: Source) -> dict[str, float]:
        some = [*sources, *more]
        return compete(some, limit=ITEMS, takers=takers, levels=levels, seconds=20.0).items

    alone = rates()
    beside = rates(attrs.evolve(STUCK, parents=others))
    assert beside.pop(STUCK.name) == 0.0
    assert all(rate >= 0.95 * alone[name] for name, rate in beside.items())
    assert sum(alone.values()) >= 0.98 * min(100.0, 60.0 if innocent == "steady" else 100.0)


# -- in rounds -------------------------------------------------------------------------------------

FAST = 2_000_000
"""Bytes a second: a round of seven is a quarter of a second."""

ROUNDS = Limit(items=None, bytes=8 * FAST)
"""What all may owe: eight seconds' worth."""

LUMPS = (5_000, 15_000)


def in_rounds(fair: bool) -> dict[str, Taker]:
    return {"all": Taker(items_per_s=float("inf"), bytes_per_s=FAST, fair=fair)}


@pytest.mark.parametrize("fair", [True, False])
def test_an_innocent_one_does_not_wait_behind_the_others_debt(fair: bool) -> None:
    greedy = [Source(f"greedy/{n}", sizes=LUMPS, readers=n + 1) for n in range(6)]
    innocent = Source("innocent", sizes=(100, 200), rate=20.0)
    got = compete([*greedy, innocent], limit=ROUNDS, takers=in_rounds(fair), seconds=10.0)
    assert got.items["innocent"] >= 0.9 * 20.0
    ages = sorted(got.ages["innocent"])
    assert len(ages) > 150
    if fair:
        # It has a turn before all others, after the one whose turn it is.
        assert ages[-2] <= 0.1
    else:
        assert ages[0] >= 3.0
    assert sum(got.bytes.values()) >= 0.98 * FAST


@pytest.mark.parametrize("fair", [True, pytest.param(False, marks=pytest.mark.long)])
def test_in_rounds_what_each_gets_is_not_what_it_owes(fair: bool) -> None:
    """Nobody waits for a share here: each has a limit of its own, of which one is much higher."""
    limits = [Limit(items=None, bytes=FAST * (4 if n == 3 else 1) // 2) for n in range(4)]
    sources = [
        Source(f"equal/{n}", sizes=LUMPS, readers=4, limit=limit) for n, limit in enumerate(limits)
    ]
    got = compete(sources, limit=attrs.evolve(ROUNDS, bytes=1 << 30), takers=in_rounds(fair))
    assert (jain(list(got.bytes.values())) >= 0.999) == fair


def test_rounds_are_by_weight_at_each_level() -> None:
    levels = {"t1": Level(weight=2.0), "t2": Level()}
    own = Limit(items=None, bytes=FAST)
    sources = [
        Source("a", ("t1",), weight=3.0, sizes=LUMPS, limit=own),
        Source("b", ("t1",), sizes=LUMPS, limit=own, readers=9),
        Source("c", ("t2",), sizes=LUMPS, limit=own, readers=3),
    ]
    got = compete(
        sources,
        limit=attrs.evolve(ROUNDS, bytes=1 << 30),
        takers=in_rounds(True),
        levels=levels,
        seconds=60.0,
    )
    everything = sum(got.bytes.values())
    assert {name: each / everything for name, each in got.bytes.items()} == {
        "a": pytest.approx(1 / 2, rel=0.05),
        "b": pytest.approx(1 / 6, rel=0.05),
        "c": pytest.approx(1 / 3, rel=0.05),
    }
