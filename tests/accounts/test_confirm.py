"""A turn's confirm: who hands over can find it, at that moment and for that turn only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from clearfunds.accounts import Account, Confirm, Holder, Ledger, LoanedItem, Outcome, lent


@attrs.define(eq=False)
class Heard:
    """What a publisher was told."""

    expected: int = 0

    def expect(self) -> None:
        self.expected += 1

    def taken(self) -> None:
        self.expected -= 1

    def refused(self, reason: str) -> None:
        raise AssertionError(reason)


class Slow(Holder):
    """Takes responsibility later; sends what it is told to send on, at once."""

    kind = "slow"

    def __init__(self, ledger: Ledger, name: str, on: Slow | None = None) -> None:
        super().__init__(ledger, name)
        self.on = on
        self.confirms: list[Confirm | None] = []
        self.kept: list[LoanedItem[Any]] = []

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        confirm = self.ledger.confirming
        self.confirms.append(confirm)
        if confirm is not None:
            confirm.expect()
        self.kept.append(lent(account, item, items, nbytes, self, now))
        if self.on is not None:
            with account.turn() as turn:
                turn.send(self.on, item)

    def ready(self) -> None: ...

    def loans(self) -> Iterator[LoanedItem[Any]]:
        yield from self.kept

    def give_up(self, why: str) -> None: ...

    def end(self) -> None:
        while self.kept:
            self.kept.pop().settle(outcome=Outcome.STORED)


def test_a_holder_finds_whom_to_tell_while_it_is_handed_something() -> None:
    ledger = Ledger()
    account = ledger.open("a")
    first, second = Slow(ledger, "first"), Slow(ledger, "second")
    heard = Heard()
    with account.turn("x", confirm=heard) as turn:
        turn.send(first, "x")
        turn.send(second, "x")
        assert ledger.confirming is None
    assert ledger.confirming is None
    assert first.confirms == second.confirms == [heard]
    assert heard.expected == 2
    first.end()
    second.end()
    ledger.audit()


def test_what_is_sent_on_is_not_for_the_publisher_to_hear_of() -> None:
    ledger = Ledger()
    account = ledger.open("a")
    last = Slow(ledger, "last")
    first = Slow(ledger, "first", on=last)
    heard = Heard()
    with account.turn("x", confirm=heard) as turn:
        turn.send(first, "x")
        turn.send(first, "y")
    assert first.confirms == [heard, heard]
    assert last.confirms == [None, None]
    first.end()
    last.end()
    ledger.audit()


def test_a_turn_that_fails_asks_for_no_confirm() -> None:
    ledger = Ledger()
    account = ledger.open("a")
    holder = Slow(ledger, "holder")

    def fail() -> None:
        with account.turn("x", confirm=Heard()) as turn:
            turn.send(holder, "x")
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        fail()
    assert holder.confirms == []
    assert ledger.confirming is None
    ledger.audit()
