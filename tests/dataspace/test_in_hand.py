"""`InHand`: which loans a consumer has taken and not settled."""

import gc

import pytest

from clearfunds.accounts import Account, Ledger, LoanedItem
from clearfunds.dataspace._in_hand import LEAST_ROOM, InHand


def a_loan(account: Account) -> LoanedItem[str]:
    return LoanedItem(account, "news")


def test_those_outstanding_come_in_the_order_in_which_they_were_taken() -> None:
    ledger = Ledger()
    account = ledger.open("ann")
    loans = [a_loan(account) for _ in range(4)]
    taken = InHand()
    for loan in loans:
        taken.add(loan)
    loans[1].settle()
    taken.discard(loans[2])
    assert list(taken) == [loans[0], loans[3]]
    for loan in taken:
        loan.settle()
    assert not list(taken)
    loans[2].settle()
    ledger.audit()


def test_one_that_its_consumer_forgets_is_not_kept_alive() -> None:
    ledger = Ledger()
    taken = InHand()
    taken.add(a_loan(ledger.open("ann")))
    gc.collect()
    assert not list(taken)
    with pytest.warns(ResourceWarning, match="never settled"):
        ledger.drain()
    assert ledger.leaked_loans == 1
    ledger.audit()


def test_it_does_not_grow_with_those_that_have_ended() -> None:
    ledger = Ledger()
    account = ledger.open("ann")
    taken = InHand()
    kept = [a_loan(account) for _ in range(3 * LEAST_ROOM)]
    for loan in kept:
        taken.add(loan)
    for _ in range(100 * LEAST_ROOM):
        loan = a_loan(account)
        taken.add(loan)
        loan.settle()
        noted = len(taken._loans)  # pyright: ignore[reportPrivateUsage]
        assert noted <= 2 * len(kept) + LEAST_ROOM
    assert list(taken) == kept
    for loan in kept:
        loan.settle()
    ledger.audit()
