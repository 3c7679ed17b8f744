"""`clearfunds.testing`: the example of its docstring, and what `balanced` finds."""

from __future__ import annotations

import pytest
import trio

from clearfunds import Limit
from clearfunds.accounts import AuditError, Ledger, Outcome, StuckPolicy, watch_patience
from clearfunds.testing import Box, Clock, balanced


def test_the_example() -> None:
    with balanced() as ledger:
        account = ledger.open("alice", limit=Limit(items=1))
        box = Box(ledger, "bob")
        with account.turn() as turn:
            turn.send(box, "hello")
            turn.send(box, "are you there?")
        assert not account.funds_are_clear()
        box.settle_all()
        assert account.funds_are_clear()


def with_nothing_in_it(ledger: Ledger) -> None:
    with balanced(ledger):
        pass


def test_debt_at_the_end_is_named() -> None:
    ledger = Ledger()
    box = Box(ledger, "bob")
    with ledger.open("alice").turn() as turn:
        turn.send(box, "hello")
    with pytest.raises(AssertionError, match="still owed at the end: <Account alice"):
        with_nothing_in_it(ledger)
    box.settle_all()
    with_nothing_in_it(ledger)


def test_books_that_do_not_balance_are_an_error() -> None:
    ledger = Ledger()
    ledger.open("alice").debt_items += 1
    with pytest.raises(AuditError):
        with_nothing_in_it(ledger)


def test_a_fault_of_the_block_is_not_hidden() -> None:
    def divide() -> None:
        with balanced() as ledger:
            ledger.open("alice").borrow(1, 1)
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        divide()


def test_the_clock_goes_when_it_is_told_to() -> None:
    clock = Clock(10.0)
    ledger = Ledger(clock=clock)
    assert ledger.clock() == 10.0
    clock.advance(2.5)
    assert ledger.clock() == clock.now == 12.5


async def test_a_box_is_a_slow_consumer() -> None:
    with balanced() as ledger:
        account = ledger.open("alice", limit=Limit(items=0))
        box = Box(ledger, "bob", patience=0.05, policy=StuckPolicy.DISCONNECT)
        with account.turn() as turn:
            turn.send(box, "hello")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch_patience, ledger)
            with trio.fail_after(30):
                await account.ensure_clear_funds()
            nursery.cancel_scope.cancel()
        assert ledger.repaid_items[Outcome.WRITTEN_OFF] == 1
