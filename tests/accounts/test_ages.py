"""How old loans were when their holders were done with them, by the holder's kind."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clearfunds.accounts import Ledger, Outcome, commit_run
from clearfunds.accounts._histogram import AGE_BUCKETS, Histogram
from clearfunds.testing import Clock
from tests.accounts.conftest import Box, balance


class Shelf(Box):
    """Another kind of holder."""

    __slots__ = ()

    kind = "shelf"


def up_to(histogram: Histogram, seconds: float) -> int:
    """Return how many observations are in the buckets up to that bound."""
    return dict(histogram.cumulative())[repr(seconds)]


def test_ages_are_told_apart_by_kind_and_weighed_by_events() -> None:
    clock = Clock()
    ledger = Ledger(clock=clock)
    alice = ledger.open("alice")
    box, shelf = Box(ledger, "box"), Shelf(ledger, "shelf")
    with alice.turn() as turn:
        turn.send(box, ["x"], items=5, nbytes=10)
        turn.send(shelf, "y", nbytes=1)
    clock.now = 0.2
    box.take().settle(2)
    clock.now = 3.0
    shelf.take().settle(outcome=Outcome.REJECTED)
    boxes, shelves = ledger.loan_ages["box"], ledger.loan_ages["shelf"]
    # Two events that were 0.2 s old; three that are still there are of no age yet.
    assert (boxes.count, boxes.total) == (2, 0.4)
    assert (up_to(boxes, 0.1), up_to(boxes, 0.25)) == (0, 2)
    # Whatever the outcome: 3 s.
    assert (shelves.count, shelves.total) == (1, 3.0)
    assert (up_to(shelves, 2.5), up_to(shelves, 5.0)) == (0, 1)
    # The input of the turn, which took no time by this clock.
    router = ledger.loan_ages["router"]
    assert (router.count, router.total, up_to(router, 0.001)) == (1, 0, 1)


def test_the_input_of_a_run_is_as_old_as_nothing() -> None:
    ledger = Ledger(clock=Clock(7.0))
    commit_run(ledger.open("alice"), [Box(ledger, "box")], b"", 12, 300)
    router = ledger.loan_ages["router"]
    assert (router.count, router.total, up_to(router, 0.001)) == (12, 0, 12)


def test_a_turn_that_takes_long_is_seen() -> None:
    clock = Clock()
    ledger = Ledger(clock=clock)
    with ledger.open("alice").turn(items=2, nbytes=0):
        clock.now = 0.02
    router = ledger.loan_ages["router"]
    assert (router.count, router.total) == (2, 0.04)


def test_a_part_that_moves_on_keeps_its_age() -> None:
    clock = Clock()
    ledger = Ledger(clock=clock)
    box, shelf = Box(ledger, "box"), Shelf(ledger, "shelf")
    box.put(ledger.open("alice").lend(["a", "b", "c"], items=3, nbytes=3))
    clock.now = 1.0
    loan = box.take()
    shelf.put(loan.split(1))
    clock.now = 4.0
    shelf.take().settle()
    loan.settle()
    assert (ledger.loan_ages["shelf"].count, ledger.loan_ages["shelf"].total) == (1, 4.0)
    assert (ledger.loan_ages["box"].count, ledger.loan_ages["box"].total) == (2, 8.0)


def test_ages_stay_when_account_and_holder_have_gone() -> None:
    clock = Clock()
    ledger = Ledger(clock=clock)
    alice = ledger.open("alice")
    box = Box(ledger, "box")
    with alice.turn() as turn:
        turn.send(box, "x", nbytes=1)
    clock.now = 1.5
    alice.close()
    box.give_up("the test is over")
    ledger.unregister(box)
    assert not ledger.accounts
    assert (ledger.loan_ages["box"].count, ledger.loan_ages["box"].total) == (1, 1.5)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("send"), st.integers(1, 4)),
            st.tuples(st.just("settle"), st.integers(1, 4)),
            st.tuples(st.just("pass"), st.sampled_from([0.001, 0.004, 0.3, 30.0])),
        )
    )
)
def test_every_event_is_counted_once_with_the_age_of_its_loan(
    steps: list[tuple[str, float]],
) -> None:
    clock = Clock()
    ledger = Ledger(clock=clock)
    box = Box(ledger, "box")
    ages: list[float] = []
    # A new account for each, so that no delivery joins another's loan.
    for number, (what, amount) in enumerate(steps):
        if what == "pass":
            clock.now += amount
        elif what == "send":
            with ledger.open(f"account {number}").turn() as turn:
                turn.send(box, ["x"], items=int(amount), nbytes=1)
        elif box.queue:
            loan = box.queue[0]
            n = min(int(amount), loan.items)
            ages += [clock.now - loan.opened] * n
            box.work(n)
    expected = Histogram(AGE_BUCKETS)
    for age in ages:
        expected.add(age)
    assert ledger.loan_ages["box"].counts == expected.counts
    assert abs(ledger.loan_ages["box"].total - expected.total) < 1e-9
    balance(ledger)
