"""All that a holder has at rest, as one loan: the books balance whatever its parts add up to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from clearfunds.accounts import NO_LIMIT, Account, Holder, Ledger, LoanAtRest, LoanedItem, Outcome
from tests.accounts.conftest import owed


class Shelf(Holder):
    """Has nothing but what is at rest, and what was taken out."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger, "shelf")
        self.at_rest = LoanAtRest(ledger.open("disk", limit=NO_LIMIT, at_rest="disk"), self)
        self.out: list[LoanedItem[Any]] = []

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        raise AssertionError(item)

    def ready(self) -> None:
        raise AssertionError

    def give_up(self, why: str) -> None:
        raise AssertionError(why)

    def loans(self) -> Iterator[LoanedItem[Any]]:
        if self.at_rest.loan is not None:
            yield self.at_rest.loan
        yield from self.out


@pytest.fixture
def shelf(ledger: Ledger) -> Shelf:
    return Shelf(ledger)


def test_what_is_taken_out_and_put_back_is_owed_for_all_the_time(shelf: Shelf) -> None:
    rest = shelf.at_rest
    rest.add(3, 30, opened=5.0)
    shelf.out.append(rest.take(["a", "b"], 2, 20))
    assert (rest.items, rest.bytes, owed(rest.account)) == (1, 10, (3, 30))
    assert shelf.out[0].opened == 5.0
    shelf.ledger.audit()
    rest.put_back(shelf.out.pop())
    assert (rest.items, rest.bytes, owed(rest.account)) == (3, 30, (3, 30))
    rest.settle(3, 30, Outcome.ACKED)
    assert rest.loan is None
    assert owed(rest.account) == (0, 0)


@pytest.mark.parametrize("size", [7, 13])
def test_sizes_may_differ_from_the_sum(shelf: Shelf, size: int) -> None:
    """After a restart the disk says that three messages have 30 bytes."""
    rest = shelf.at_rest
    rest.add(3, 30)
    rest.settle(1, size, Outcome.ACKED)
    rest.settle(1, 40, Outcome.ACKED)
    assert (rest.items, rest.bytes) == (1, 0)
    shelf.ledger.audit()
    rest.add(1, 30)
    shelf.out.append(rest.take(["c"], 2, size))
    assert rest.loan is None
    assert shelf.out[0].bytes == 30
    shelf.out.pop().settle()
    assert owed(rest.account) == (0, 0)


def test_messages_of_unknown_size_are_repaid_with_their_share(shelf: Shelf) -> None:
    rest = shelf.at_rest
    assert rest.settle_some(1, Outcome.LEAKED) == 0
    rest.add(4, 40)
    assert rest.settle_some(1, Outcome.LEAKED) == 10
    assert rest.settle_some(9, Outcome.LEAKED) == 30
    assert rest.loan is None
