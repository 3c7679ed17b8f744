"""What a holder keeps that is behind: loans that are begun, or pass, or do not come apart."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearfunds.accounts import (
    LAGGING,
    NO_LIMIT,
    Account,
    Ledger,
    Limit,
    LoanedItem,
    LoanQueue,
    Outcome,
    Relief,
    SettledError,
    StuckPolicy,
    UnfitPolicyError,
)
from tests.accounts.conftest import Box

RELIEVING = [policy for policy in StuckPolicy if policy.relieves]
KEEPING = [policy for policy in RELIEVING if policy is not StuckPolicy.SPILL]


@pytest.fixture
def account(ledger: Ledger) -> Account:
    """Somebody who publishes."""
    return ledger.open("somebody", limit=NO_LIMIT)


class Line(LoanQueue):
    """A way out whose first loans may have been begun."""

    kind = "line"
    policies: ClassVar[frozenset[StuckPolicy]] = frozenset(StuckPolicy)

    def __init__(self, ledger: Ledger, policy: StuckPolicy, keep: int | None = 3) -> None:
        super().__init__(ledger, "line", policy=policy, retain_limit=Limit(items=keep, bytes=None))
        self.sending = 0
        self.aside: list[Any] = []

    @property
    def begun(self) -> int:
        return self.sending

    def key_of(self, entry: Any) -> Hashable:
        return str(entry)[0]

    def spill(self, account: Account, entry: Any, items: int, nbytes: int, now: float) -> None:
        self.aside.append(entry)
        account.repay(items, nbytes, Outcome.STORED, self, now)

    def ready(self) -> None:
        pass

    def give_up(self, why: str) -> None:
        raise AssertionError

    def entries(self) -> list[Any]:
        return [entry for loan in self.queue for entry in loan.item]

    def close(self) -> None:
        self.closed = True
        self.settle_all(Outcome.DROPPED)
        if self.lagging:
            self.caught_up("has ended")


def publish(account: Account, holder: LoanQueue, *events: Any, items: int = 1) -> None:
    for event in events:
        with account.turn() as turn:
            turn.send(holder, event, items=items, nbytes=10 * items)


@pytest.mark.parametrize("policy", RELIEVING)
def test_what_has_been_begun_stays_in_front(
    policy: StuckPolicy, ledger: Ledger, account: Account
) -> None:
    line = Line(ledger, policy, keep=2)
    first = LoanedItem(account, ["begun", "begun, too"], 2, 20)
    line.put(first)
    line.sending = 1
    other = ledger.open("other", limit=NO_LIMIT)
    publish(other, line, *(f"{n}" for n in range(5)))
    line.relieve("it is stuck")
    assert account.debt_items == other.debt_items == 0
    assert line.queue[0] is first
    assert line.entries()[:2] == ["begun", "begun, too"]
    assert (
        line.entries()[2:]
        == {
            StuckPolicy.DROP_OLDEST: ["3", "4"],
            StuckPolicy.DROP_NEWEST: ["0", "1"],
            StuckPolicy.CONFLATE: ["3", "4"],
            StuckPolicy.SPILL: [],
        }[policy]
    )
    # It does not count against the bound, nor does it go when others do.
    publish(account, line, *(f"{n}" for n in range(5, 10)))
    assert line.queue[0] is first
    assert account.debt_items == 0
    assert (
        line.entries()[2:]
        == {
            StuckPolicy.DROP_OLDEST: ["8", "9"],
            StuckPolicy.DROP_NEWEST: ["0", "1"],
            StuckPolicy.CONFLATE: ["8", "9"],
            StuckPolicy.SPILL: [],
        }[policy]
    )
    assert line.aside == ([f"{n}" for n in range(10)] if policy is StuckPolicy.SPILL else [])
    ledger.audit()
    line.close()


@pytest.mark.parametrize("policy", KEEPING)
def test_what_only_passes_is_left_alone(
    policy: StuckPolicy, ledger: Ledger, account: Account
) -> None:
    """An outlet forwards loans that another holder keeps until they are acknowledged."""
    line = Line(ledger, policy, keep=1)
    keeper = Box(ledger, "keeper")
    publish(account, keeper, "kept")
    publish(account, line, "1", "2")
    line.queue.append(keeper.queue[0])
    publish(ledger.open("other", limit=NO_LIMIT), line, "3", "4")
    line.relieve("it is stuck")
    publish(account, line, "5", "6")
    kept = "1" if policy is StuckPolicy.DROP_NEWEST else "6"
    assert [entry for entry in line.entries() if entry != "kept"] == [kept]
    assert keeper.queue[0] in line.queue
    assert account.debt_items == 1
    line.queue.remove(keeper.queue[0])
    ledger.audit()
    line.close()
    keeper.close()


@pytest.mark.parametrize("policy", KEEPING)
def test_what_cannot_be_told_apart_stays_whole_or_goes(
    policy: StuckPolicy, ledger: Ledger, account: Account
) -> None:
    line = Line(ledger, policy, keep=5)
    for number in range(3):
        # Two entries that stand for three events: nobody knows which for two.
        line.put(LoanedItem(account, [f"{number}a", f"{number}b"], 3, 30))
    line.relieve("it is stuck")
    assert (
        line.entries()
        == {
            StuckPolicy.DROP_OLDEST: ["2a", "2b"],
            StuckPolicy.DROP_NEWEST: ["0a", "0b"],
            StuckPolicy.CONFLATE: [],
        }[policy]
    )
    assert account.debt_items == 0
    dropped = line.relief.dropped_items
    assert dropped == (9 if policy is StuckPolicy.CONFLATE else 6)
    ledger.audit()
    line.close()


def test_the_policy_of_what_comes_may_be_its_own(ledger: Ledger, account: Account) -> None:
    """On one connection several subscriptions have policies of their own."""
    line = Line(ledger, StuckPolicy.DROP_OLDEST, keep=3)
    line.relieve("it is stuck")

    def comes(event: str, policy: StuckPolicy, key: Hashable = None) -> None:
        account.borrow(1, 10)
        line.hold_lagging(account, event, 1, 10, ledger.clock(), policy, key)

    comes("a", StuckPolicy.CONFLATE, "temperature")
    comes("b", StuckPolicy.DROP_OLDEST)
    comes("c", StuckPolicy.CONFLATE, "temperature")
    assert line.entries() == ["b", "c"]
    comes("d", StuckPolicy.DROP_NEWEST)
    comes("e", StuckPolicy.DROP_NEWEST)
    assert line.entries() == ["b", "c", "d"]
    comes("f", StuckPolicy.SPILL)
    assert (line.entries(), line.aside) == (["b", "c", "d"], ["f"])
    comes("g", StuckPolicy.DROP_OLDEST)
    assert line.entries() == ["c", "d", "g"]
    # Each loss is counted for the policy by which it was lost.
    assert {policy: relief.items for policy, relief in ledger.relief.items()} == {
        StuckPolicy.DROP_OLDEST: 1,
        StuckPolicy.DROP_NEWEST: 1,
        StuckPolicy.CONFLATE: 1,
        StuckPolicy.SPILL: 1,
    }
    assert line.relief == Relief(1, 3, 30, 1, 10)
    line.close()


@pytest.mark.parametrize("policy", KEEPING)
def test_what_all_keep_may_have_a_limit_of_its_own(
    policy: StuckPolicy, ledger: Ledger, account: Account
) -> None:
    with ledger.open(LAGGING, limit=Limit(items=5, bytes=None), at_rest="ram") as all_of_them:
        lines = [Line(ledger, policy, keep=4) for _ in range(3)]
        for line in lines:
            publish(account, line, "1", "2")
            line.relieve("it is stuck")
        assert [len(line.queue) for line in lines] == [2, 2, 1]
        for line in lines:
            publish(account, line, "3", "4", "5")
            assert all_of_them.debt_items <= 5
        if policy is not StuckPolicy.DROP_NEWEST:
            # Each has its latest.
            assert all(line.entries()[-1] == "5" for line in lines)
        assert account.debt_items == 0
        ledger.audit()
        for line in lines:
            line.close()
        assert all_of_them.limit == Limit(items=5, bytes=None)


def test_setting_the_policy_does_not_change_a_spell(ledger: Ledger, account: Account) -> None:
    line = Line(ledger, StuckPolicy.DROP_OLDEST, keep=1)
    line.relieve("it is stuck")
    line.policy = StuckPolicy.DISCONNECT
    publish(account, line, "1", "2")
    assert line.entries() == ["2"]
    with pytest.raises(UnfitPolicyError, match="cannot be relieved"):
        line.relieve("it is stuck again")
    line.close()


def test_a_loan_that_has_ended_changes_no_account(ledger: Ledger, account: Account) -> None:
    loan = account.lend("x")
    loan.settle()
    with pytest.raises(SettledError, match="nobody owes for it"):
        loan.transfer(ledger.open("another"))


def test_a_transfer_is_told_of_as_what_it_is(ledger: Ledger, account: Account) -> None:
    other = ledger.open("other")
    loan = account.lend(["x"], nbytes=7)
    loan.transfer(other)
    assert (account.debt_items, account.debt_bytes) == (0, 0)
    assert (other.debt_items, other.debt_bytes) == (1, 7)
    assert ledger.statistics().repaid_items["stored"] == 1
    with loan, loan.turn() as turn:
        assert turn.account is other
    ledger.audit()


@settings(deadline=None, max_examples=60)
@given(
    policy=st.sampled_from(KEEPING),
    keep=st.integers(0, 6),
    begun=st.integers(0, 2),
    loans=st.lists(st.integers(1, 4), max_size=6),
    then=st.lists(st.integers(1, 9), max_size=12),
)
def test_the_bound_and_the_books_hold_whatever_comes(
    policy: StuckPolicy, keep: int, begun: int, loans: list[int], then: list[int]
) -> None:
    logging.getLogger("clearfunds.accounts").setLevel(logging.CRITICAL)
    try:
        ledger = Ledger()
        account = ledger.open("p", limit=NO_LIMIT)
        line = Line(ledger, policy, keep=keep)
        number = 0
        for items in loans:
            line.put(LoanedItem(account, list(range(number, number + items)), items, 7 * items))
            number += items
        line.sending = min(begun, len(loans))
        sent = sum(loans[: line.sending])
        line.relieve("it is stuck")
        for items in then:
            # What cannot be taken apart counts as many as it is.
            publish(account, line, number, items=items)
            number += 1
        assert account.debt_items == 0
        here = sum(loan.items for loan in line.queue)
        assert here <= keep + sent
        assert line.entries() == sorted(line.entries())
        assert here + line.relief.dropped_items == sum(loans) + sum(then)
        ledger.audit()
        line.close()
        ledger.audit()
        assert not ledger.statistics().at_rest_items.get("ram")
    finally:
        logging.getLogger("clearfunds.accounts").setLevel(logging.NOTSET)
