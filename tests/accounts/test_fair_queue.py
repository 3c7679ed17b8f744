"""A fair queue: accounts are served in turn, sparse ones first, and each one's loans in order."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearfunds.accounts import JOIN_BYTES, Account, Holder, Ledger, Limit, LoanedItem, Tracer
from clearfunds.accounts._fair_queue import QUANTUM, FairQueue

LARGEST = 3 * JOIN_BYTES
LARGEST_JOINED = 2 * JOIN_BYTES
"""If nobody sends more than a run."""

TREE = {
    # Tenants of a shared server, users of a shared tenant, and one of nobody's.
    "red": "server", "blue": "server", "red/1": "red", "red/2": "red", "blue/1": "blue",
    "blue/2": "blue", "lone": "server", "nobody's": None,
}  # fmt: skip
LEAVES = ("red/1", "red/2", "blue/1", "blue/2", "lone", "nobody's")


class Waiting(Holder):
    """A holder of what waits in a fair queue."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger, "waiting")
        self.queue = FairQueue()

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        """See `Holder.hold`."""
        self.queue.hold(account, item, items, nbytes, now, self)

    def ready(self) -> None:
        """See `Holder.ready`."""

    def loans(self) -> Iterator[LoanedItem[Any]]:
        """See `Holder.loans`."""
        return iter(self.queue)

    def give_up(self, why: str) -> None:
        """See `Holder.give_up`: nobody does, here."""
        raise AssertionError(why)


class World:
    """A ledger with the tree above, and a fair queue."""

    def __init__(self, *, shared: tuple[str, ...] = ("server", "red")) -> None:
        self.ledger = Ledger()
        self.waiting = Waiting(self.ledger)
        self.queue = self.waiting.queue
        self.accounts = {"server": self.ledger.open("server", limit=Limit(), shared=True)}
        for name, parent in TREE.items():
            self.accounts[name] = self.ledger.open(
                name, parent=None if parent is None else self.accounts[parent],
                shared=name in shared,
            )  # fmt: skip
        self.numbers: Counter[str] = Counter()

    def hold(self, name: str, nbytes: int) -> None:
        """Take one delivery, numbered for each account."""
        account = self.accounts[name]
        self.numbers[name] += 1
        account.borrow(1, nbytes)
        entry = name, self.numbers[name]
        self.queue.hold(account, entry, 1, nbytes, self.ledger.clock(), self.waiting)

    def put(self, name: str, nbytes: int) -> None:
        """Put a loan that is not to overtake any other that is put."""
        self.numbers["put"] += 1
        entry: Any = "put", self.numbers["put"]
        self.queue.put(LoanedItem(self.accounts[name], [entry], 1, nbytes, self.waiting))

    def pop(self) -> tuple[str, int]:
        """Settle the loan whose turn it is; return whose flow it is of, and its bytes."""
        loan = self.queue.pop()
        nbytes = loan.bytes
        loan.settle()
        return loan.item[0][0], nbytes

    def fill(self, names: tuple[str, ...], nbytes: int, count: int = 100) -> None:
        """Let some have a long backlog of loans of their own."""
        for name in names:
            for _ in range(count):
                self.hold(name, nbytes)

    def served(self, nbytes: int) -> Counter[str]:
        """Return how many bytes each has got when so many have gone out."""
        got: Counter[str] = Counter()
        while got.total() < nbytes:
            name, size = self.pop()
            got[name] += size
        return got


sizes = st.sampled_from([0, 1, 100, 3_000, JOIN_BYTES, LARGEST]) | st.integers(0, LARGEST)
leaves = st.sampled_from(LEAVES)
steps = st.one_of(
    st.tuples(st.just("hold"), leaves, sizes),
    st.tuples(st.just("hold"), leaves, sizes),
    st.tuples(st.just("put"), leaves, sizes),
    st.tuples(st.just("pop"), st.integers(1, 5)),
    st.tuples(st.just("weight"), st.sampled_from([*TREE]), st.sampled_from([1e-9, 0.01, 0.5, 7])),
    st.tuples(st.just("in order")),
)


@given(st.lists(steps, max_size=60))
def test_each_account_in_order_and_nothing_is_lost(todo: list[tuple[Any, ...]]) -> None:
    w = World()
    came: dict[str, list[int]] = defaultdict(list)
    early: set[tuple[str, int]] = set()

    def pop() -> None:
        # What was there when the order was to be kept comes before everything else.
        first = {entry for loan in w.queue.first for entry in loan.item}
        assert first == early
        loan = w.queue.pop()
        for name, number in loan.item:
            came[name].append(number)
            if early:
                early.remove((name, number))
        loan.settle()

    for step in todo:
        match step:
            case ("hold", name, nbytes):
                w.hold(name, nbytes)
            case ("put", name, nbytes):
                w.put(name, nbytes)
            case ("pop", count):
                for _ in range(min(count, len(w.queue))):
                    pop()
            case ("weight", name, weight):
                w.accounts[name].weight = weight
            case _:
                w.queue.in_order()
                early.update(entry for loan in w.queue for entry in loan.item)
        assert len(w.queue) == len(list(w.queue))
        w.ledger.audit()
    while w.queue:
        pop()
    with pytest.raises(IndexError):
        w.queue.pop()
    assert came == {name: [*range(1, count + 1)] for name, count in w.numbers.items()}
    assert not w.ledger.statistics().debt_bytes
    w.ledger.audit()


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, JOIN_BYTES), st.booleans()), max_size=150),
)
def test_nobody_waits_for_more_than_a_round(todo: list[tuple[int, int, bool]]) -> None:
    """Beside it, each other account has at most a run for its own last run, and another one."""
    w = World()
    accounts = [w.ledger.open(f"flow {n}") for n in range(6)]
    since: list[Counter[Account] | None] = [None] * 6
    served: list[Account] = []

    def pop() -> None:
        loan = w.queue.pop()
        served.append(loan.account)
        for place, others in enumerate(since):
            if others is None:
                continue
            if accounts[place] is loan.account:
                others.clear()
                continue
            others[loan.account] += loan.bytes
            # As much as it had itself before, and each turn ends with the loan that exceeds it.
            assert others[loan.account] <= 2 * LARGEST_JOINED + 3 * QUANTUM
        loan.settle()
        for place, account in enumerate(accounts):
            if not any(each.account is account for each in w.queue):
                since[place] = None

    for place, nbytes, pops in todo:
        account = accounts[place]
        account.borrow(1, nbytes)
        w.queue.hold(account, b"", 1, nbytes, 0.0, w.waiting)
        if since[place] is None:
            since[place] = Counter()
        if pops:
            pop()
    while w.queue:
        pop()
    assert set(served) == {accounts[place] for place, _, _ in todo}


def test_a_sparse_account_never_waits_for_a_round() -> None:
    w = World()
    greedy = tuple(name for name in LEAVES if name != "lone")
    w.fill(greedy, JOIN_BYTES)
    for _ in range(20):
        w.served(20 * JOIN_BYTES)  # long enough for the flow to be forgotten
        w.hold("lone", 200)
        assert w.pop() == ("lone", 200)


def test_an_account_that_sends_much_waits_though_it_has_never_two_messages() -> None:
    """Or one that sends a message as soon as the last has gone would have all to itself."""
    w = World()
    w.fill(("red/1",), JOIN_BYTES)
    waits: list[int] = []
    for _ in range(20):
        w.hold("lone", JOIN_BYTES // 2)
        waits.append(0)
        while w.pop()[0] != "lone":
            waits[-1] += 1
    assert sum(waits[4:]) == 8
    assert max(waits) == 1


@pytest.mark.parametrize("nbytes", [100, 30_000, JOIN_BYTES, LARGEST])
def test_equal_accounts_get_the_same_whatever_their_messages_size(nbytes: int) -> None:
    w = World(shared=())
    accounts = ("red/1", "red/2")
    for _ in range(100):
        w.hold("red/1", JOIN_BYTES)
    for _ in range(100 * JOIN_BYTES // nbytes):
        w.hold("red/2", nbytes)
    got = w.served(60 * JOIN_BYTES)
    assert got["red/1"] == pytest.approx(got["red/2"], abs=2 * LARGEST)
    assert set(got) == set(accounts)


@pytest.mark.parametrize("scale", [1, 100, 0.001])
def test_accounts_get_what_they_weigh(scale: float) -> None:
    w = World()
    for name, weight in (("red", 1), ("blue", 2), ("lone", 4)):
        w.accounts[name].weight = weight * scale
    w.fill(("red/1", "blue/1", "lone"), JOIN_BYTES, count=300)
    got = w.served(70 * JOIN_BYTES)
    slack = 4 * JOIN_BYTES
    assert got["blue/1"] == pytest.approx(2 * got["red/1"], abs=slack)
    assert got["lone"] == pytest.approx(2 * got["blue/1"], abs=slack)


def test_weights_count_at_each_level() -> None:
    """A tenant gets its part, however many connections it has; they part that among them."""
    w = World(shared=("server", "red"))
    w.accounts["red"].weight = 2
    w.accounts["red/1"].weight = 3
    w.fill(("red/1", "red/2", "lone"), JOIN_BYTES // 2, count=600)
    got = w.served(120 * JOIN_BYTES)
    red = got["red/1"] + got["red/2"]
    assert red == pytest.approx(80 * JOIN_BYTES, abs=4 * JOIN_BYTES)
    assert got["red/1"] == pytest.approx(60 * JOIN_BYTES, abs=4 * JOIN_BYTES)


def test_deliveries_of_an_account_in_a_row_join_one_loan() -> None:
    """Whatever others send in between; but not those of a trace, and no more than a run."""
    w = World()
    for _ in range(10):
        w.hold("red/1", 100)
        w.hold("blue/1", 100)
    assert [loan.items for loan in w.queue] == [10, 10]
    w.hold("red/1", JOIN_BYTES)
    w.hold("red/1", 1)
    assert [loan.items for loan in w.queue] == [11, 1, 10]
    with Tracer(w.ledger, "blue/1".__eq__), w.accounts["blue/1"].turn() as turn:
        turn.send(w.waiting, ("blue/1", 0))
    assert [loan.items for loan in w.queue] == [11, 1, 10, 1]
    w.hold("blue/1", 1)
    assert [loan.items for loan in w.queue] == [11, 1, 10, 1, 1]
    w.served(JOIN_BYTES)
    while w.queue:
        w.pop()


def test_what_was_first_stays_first() -> None:
    w = World()
    loans = [LoanedItem(w.accounts["lone"], [("first", n)], 1, 10, w.waiting) for n in range(3)]
    w.queue.first.extend(loans)
    w.hold("red/1", 10)
    w.put("red/2", 10)
    assert [w.pop()[0] for _ in range(5)] == ["first"] * 3 + ["red/1", "put"]


def test_in_order_is_by_age_where_it_may_be() -> None:
    w = World()
    at = deque([3.0, 1.0, 2.0, 4.0])
    for name in ("red/1", "blue/1", "lone", "red/2"):
        w.accounts[name].borrow(1, 1)
        w.queue.hold(w.accounts[name], (name, 1), 1, 1, at.popleft(), w.waiting)
    w.queue.in_order()
    opened = [loan.opened for loan in w.queue]
    assert opened == [1.0, 2.0, 3.0, 4.0]
    assert all(a <= b for a, b in pairwise(opened))
    for loan in w.queue.clear():
        loan.settle()
    assert not w.queue


def test_accounts_that_have_nothing_any_more_are_forgotten() -> None:
    """Or each that ever sent something would be kept for as long as others have a backlog."""
    w = World()
    w.fill(("lone",), JOIN_BYTES)
    for n in range(50):
        w.accounts["red/1"] = account = w.ledger.open(f"{n}", parent=w.accounts["red"])
        w.hold("red/1", 10)
        w.served(3 * JOIN_BYTES // 2)
        account.close()
        assert len(list(w.queue.lines())) <= 5
    while w.queue:
        w.pop()
