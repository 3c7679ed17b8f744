"""The order in which slow consumers are handled: against a search that looks at everybody anew."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clearfunds.accounts.watch._relief_order import Blocked, Candidate, ReliefOrder

Shares = dict[int, tuple[int, int]]

places = st.integers(0, 3)
debts = st.tuples(st.integers(0, 20), st.integers(0, 200))
blocks = st.dictionaries(
    places, st.builds(Blocked, st.integers(0, 9), st.integers(-3, 30), st.integers(-3, 300))
)
holders = st.lists(
    st.tuples(st.dictionaries(places, debts, min_size=1), st.integers(0, 60)), max_size=6
)


def order_of(blocked: dict[int, Blocked], some: list[tuple[Shares, int]]) -> ReliefOrder[int, int]:
    """Make an order; candidates are known by their numbers, and of equals the first goes first."""
    order: ReliefOrder[int, int] = ReliefOrder()
    for at, each in blocked.items():
        order.block(at, each)
    for number, (shares, lost) in enumerate(some):
        order.add(Candidate(number, shares, lost))
    return order


def freed_by(
    shares: Shares, blocked: dict[int, Blocked], left: dict[int, tuple[int, int]]
) -> tuple[int, float]:
    """Return how many readers go on if these shares are repaid; and with those freed in part."""
    freed, in_part = 0, 0.0
    for at, share in shares.items():
        if at not in blocked or max(left[at]) <= 0:
            continue
        each, rest = blocked[at], left[at]
        if share[0] >= rest[0] and share[1] >= rest[1]:
            freed += each.readers
        parts = [
            min(mine, max(0, now)) / whole
            for mine, now, whole in zip(share, rest, (each.items, each.bytes), strict=True)
            if whole > 0
        ]
        in_part += each.readers * (sum(parts) / len(parts))
    return freed, in_part


@given(blocks, holders)
def test_each_is_the_best_of_those_left(
    blocked: dict[int, Blocked], some: list[tuple[Shares, int]]
) -> None:
    order = order_of(blocked, some)
    left = {at: (each.items, each.bytes) for at, each in blocked.items()}
    rest = dict(enumerate(some))
    while (best := order.pop()) is not None:

        def rank(number: int) -> tuple[float, float, int]:
            shares, lost = rest[number]
            freed, in_part = (
                (float("inf") if each and not lost else float(f"{each / (lost or 1):.6g}"))
                for each in freed_by(shares, blocked, left)
            )
            return -freed, -in_part, number

        assert best.what == min(rest, key=rank)
        shares, _ = rest.pop(best.what)
        order.took(best)
        for at, (items, nbytes) in shares.items():
            if at in left:
                left[at] = left[at][0] - items, left[at][1] - nbytes
    assert not rest


@given(blocks, holders, st.sets(st.integers(0, 5)))
def test_one_that_could_not_be_handled_leaves_the_others_their_gains(
    blocked: dict[int, Blocked], some: list[tuple[Shares, int]], fails: set[int]
) -> None:
    """As if it had never been there."""

    def handled(order: ReliefOrder[int, int]) -> list[int]:
        found: list[int] = []
        while (best := order.pop()) is not None:
            if best.what not in fails:
                order.took(best)
                found.append(best.what)
        return found

    without = order_of(blocked, [])
    for number, (shares, lost) in enumerate(some):
        if number not in fails:
            without.add(Candidate(number, shares, lost))
    assert handled(order_of(blocked, some)) == handled(without)


def first_of(*some: Candidate[str, str], **blocked: Blocked) -> str:
    order: ReliefOrder[str, str] = ReliefOrder()
    for at, each in blocked.items():
        order.block(at, each)
    for candidate in some:
        order.add(candidate)
    best = order.pop()
    assert best is not None
    return best.what


def test_who_frees_many_goes_before_who_frees_few() -> None:
    few = Candidate("few", {"a": (10, 0)}, 10)
    many = Candidate("many", {"b": (10, 0)}, 10)
    assert first_of(few, many, a=Blocked(1, 10, 0), b=Blocked(12, 10, 0)) == "many"


def test_who_loses_little_goes_before_who_loses_much() -> None:
    much = Candidate("much", {"a": (10, 0)}, 1000)
    little = Candidate("little", {"a": (10, 0)}, 10)
    assert first_of(much, little, a=Blocked(3, 10, 0)) == "little"


def test_who_loses_nothing_goes_first() -> None:
    spills = Candidate("spills", {"a": (10, 0)}, 0)
    loses = Candidate("loses", {"a": (10, 0)}, 1)
    assert first_of(loses, spills, a=Blocked(3, 10, 0)) == "spills"


def test_who_frees_nobody_goes_last_though_it_loses_nothing() -> None:
    spills = Candidate("spills", {"b": (10, 0)}, 0)
    loses = Candidate("loses", {"a": (10, 0)}, 10)
    assert first_of(spills, loses, a=Blocked(3, 10, 0), b=Blocked(0, 10, 0)) == "loses"


def test_of_equals_the_tie_decides() -> None:
    second = Candidate("second", {"a": (3, 0)}, 3, (2,))
    first = Candidate("first", {"a": (7, 0)}, 7, (1,))
    assert first_of(second, first, a=Blocked(3, 10, 0)) == "first"


def test_who_frees_some_alone_goes_before_many_who_only_do_together() -> None:
    """However little these would lose: it would have to go all the same."""
    culprit = Candidate("culprit", {"a": (8, 0)}, 96)
    others = [Candidate("other", {"a": (1, 0)}, 1) for _ in range(3)]
    assert first_of(*others, culprit, a=Blocked(12, 6, 0)) == "culprit"


def test_who_frees_nobody_alone_may_after_others() -> None:
    order: ReliefOrder[str, str] = ReliefOrder()
    order.block("a", Blocked(1, 10, 0))
    order.block("b", Blocked(1, 3, 0))
    order.add(Candidate("most", {"a": (7, 0)}, 7))
    order.add(Candidate("rest", {"a": (3, 0)}, 3))
    order.add(Candidate("too much", {"b": (3, 0)}, 100))
    found: list[str] = []
    while (best := order.pop()) is not None:
        found.append(best.what)
        order.took(best)
    assert found == ["too much", "most", "rest"]
