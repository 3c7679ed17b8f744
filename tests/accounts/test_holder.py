"""Holders: they take loans only, join them, and show what they physically hold."""

from __future__ import annotations

from typing import Any, cast

import pytest

from clearfunds.accounts import (
    DEFAULT_PATIENCE,
    JOIN_BYTES,
    AuditError,
    Ledger,
    NotALoanError,
    Outcome,
    StuckPolicy,
)
from tests.accounts.conftest import Box, balance, owed, publish

# -- joining --------------------------------------------------------------------------------------


def test_deliveries_in_a_row_join_one_loan(ledger: Ledger) -> None:
    a, b = ledger.open("a"), ledger.open("b")
    box = Box(ledger, "box")
    for account, n in ((a, 3), (b, 1), (a, 2)):
        for _ in range(n):
            publish(account, [box], nbytes=10)
    assert [(x.account.name, x.items, x.bytes) for x in box.queue] == [
        ("a", 3, 30),
        ("b", 1, 10),
        ("a", 2, 20),
    ]
    assert [len(x.item) for x in box.queue] == [3, 1, 2]
    ledger.audit()
    box.work(6)


def test_a_grown_loan_is_not_joined_any_more(ledger: Ledger) -> None:
    account = ledger.open("a")
    box = Box(ledger, "box")
    for _ in range(5):
        publish(account, [box], nbytes=JOIN_BYTES // 2)
    assert [x.items for x in box.queue] == [2, 2, 1]
    box.work(5)


def test_what_has_been_taken_is_not_joined(ledger: Ledger) -> None:
    account = ledger.open("a")
    box = Box(ledger, "box")
    publish(account, [box])
    with box.take() as events:
        publish(account, [box])
        assert len(events) == 1
        assert account.debt_items == 2
        ledger.audit()
    box.work()


# -- loans only (rule 15) -------------------------------------------------------------------------


@pytest.mark.parametrize("thing", [b"bytes", None, ["list"], object()])
def test_what_is_not_a_loan_is_refused(ledger: Ledger, thing: object) -> None:
    box = Box(ledger, "box")
    with pytest.raises(NotALoanError, match=r"box holds loans only, not .*; make it a LoanedItem"):
        box.put(cast("Any", thing))
    assert not box.queue


def test_a_settled_loan_is_refused(ledger: Ledger) -> None:
    box = Box(ledger, "box")
    loan = ledger.open("a").lend([""])
    loan.settle()
    with pytest.raises(NotALoanError, match=r"box was given .*, which is already settled"):
        box.put(loan)


def test_a_loan_of_no_list_is_refused(ledger: Ledger) -> None:
    """Or the next delivery, which joins it, would fail in the middle of a commit."""
    account = ledger.open("a")
    box = Box(ledger, "box")
    loan = account.lend(b"payload")
    with pytest.raises(TypeError, match="box takes loans of lists, not of b'payload'"):
        box.put(cast("Any", loan))
    publish(account, [box])
    assert account.debt_items == 2
    loan.settle()
    box.work()


def test_what_was_smuggled_in_is_found_by_the_audit(ledger: Ledger) -> None:
    box = Box(ledger, "box")
    box.queue.append(cast("Any", b"smuggled"))
    with pytest.raises(AuditError, match="box holds b'smuggled', which is not a loan"):
        ledger.audit()
    box.queue.clear()


def test_a_loan_that_is_handed_on_is_held_once(ledger: Ledger) -> None:
    account = ledger.open("a")
    first, second = Box(ledger, "first"), Box(ledger, "second")
    loan = account.lend([b""])
    first.put(loan)
    assert loan.holder is first
    assert first.heard == 1
    ledger.audit()
    first.queue.clear()
    second.put(loan)
    assert loan.holder is second
    ledger.audit()
    first.queue.append(loan)
    with pytest.raises(AuditError, match=r"is held twice: by (first|second) and by"):
        ledger.audit()
    first.queue.clear()
    second.work()


def test_a_settled_loan_that_is_still_held_is_found(ledger: Ledger) -> None:
    box = Box(ledger, "box")
    publish(ledger.open("a"), [box])
    box.queue[0].settle()
    with pytest.raises(AuditError, match=r"box holds .*settled>, which has nothing outstanding"):
        ledger.audit()
    box.queue.clear()


# -- closed ---------------------------------------------------------------------------------------


@pytest.mark.rule(7)
def test_what_comes_too_late_is_dropped(ledger: Ledger) -> None:
    """Rule 7: given up with an outcome that is counted."""
    account = ledger.open("a")
    box = Box(ledger, "box")
    box.close()
    publish(account, [box], nbytes=9)
    box.put(account.lend([b""], nbytes=1))
    assert (box.items, owed(account)) == (0, (0, 0))
    assert ledger.repaid_items[Outcome.DROPPED] == 2
    assert ledger.repaid_bytes[Outcome.DROPPED] == 10


def test_what_comes_too_late_is_dropped_also_while_the_rest_drains(ledger: Ledger) -> None:
    """A holder may be closed and still have loans: nothing joins them."""
    a, b = ledger.open("a"), ledger.open("b")
    box = Box(ledger, "box")
    publish(a, [box], items=2)
    box.closed = True
    publish(a, [box])
    publish(b, [box])
    box.put(a.lend([b""]))
    assert (a.debt_items, b.debt_items) == (2, 0)
    assert box.items == 2
    assert ledger.repaid_items[Outcome.DROPPED] == 3
    box.work(2)


def test_closing_settles_all_that_is_left(ledger: Ledger) -> None:
    a, b = ledger.open("a"), ledger.open("b")
    box = Box(ledger, "box")
    for account in (a, b, a):
        publish(account, [box], items=2, nbytes=5)
    box.queue[1].settle()  # where it is
    box.settle_all(Outcome.EXPIRED)
    assert not box.queue
    assert (owed(a), owed(b)) == ((0, 0), (0, 0))
    assert ledger.repaid_items[Outcome.EXPIRED] == 4


# -- progress and what is seen --------------------------------------------------------------------


def test_settling_is_progress_and_so_is_having_nothing_to_do() -> None:
    now = [0.0]
    ledger = Ledger(clock=lambda: now[0])
    account = ledger.open("a")
    box = Box(ledger, "box")
    now[0] = 5.0
    publish(account, [box], items=2)
    assert box.progressed_at == 5.0  # it held nothing before
    now[0] = 6.0
    publish(account, [box])
    assert box.progressed_at == 5.0
    now[0] = 7.0
    box.work(2)
    assert box.progressed_at == 7.0
    now[0] = 8.0
    box.work()
    box.put(account.lend([b""]))
    now[0] = 9.0
    box.put(account.lend([b""]))
    assert box.progressed_at == 8.0
    box.work(2)
    balance(ledger)


def test_the_statistics_of_a_holder() -> None:
    now = [10.0]
    ledger = Ledger(clock=lambda: now[0])
    a, b = ledger.open("a"), ledger.open("b")
    box = Box(ledger, "box", patience=3.0, policy=StuckPolicy.WAIT)
    empty = ledger.holder_statistics(box)
    assert (empty.items, empty.bytes, empty.loans) == (0, 0, 0)
    assert (empty.oldest_seconds, empty.idle_seconds) == (0.0, 0.0)
    publish(a, [box], items=2, nbytes=20)
    now[0] = 12.0
    publish(b, [box], items=3, nbytes=30)
    now[0] = 15.0
    statistics = ledger.holder_statistics(box)
    assert (statistics.name, statistics.kind) == ("box", "box")
    assert (statistics.items, statistics.bytes, statistics.loans) == (5, 50, 2)
    assert (statistics.oldest_seconds, statistics.idle_seconds) == (5.0, 5.0)
    assert (statistics.patience, statistics.policy) == (3.0, "wait")
    box.work(2)
    assert ledger.holder_statistics(box).idle_seconds == 0.0
    assert ledger.holder_statistics(box).oldest_seconds == 3.0
    box.work(3)


def test_defaults(ledger: Ledger) -> None:
    box = Box(ledger, "box")
    assert (box.patience, box.policy) == (DEFAULT_PATIENCE, StuckPolicy.DISCONNECT)
    assert DEFAULT_PATIENCE == 20.0
    assert box.surplus() is None


@pytest.mark.rule(15)
def test_bytes_that_no_loan_covers_are_found() -> None:
    """Rule 15: a holder that has bytes beside its loans says so."""

    class Buffer(Box):
        def surplus(self) -> tuple[int, str] | None:
            return 17, "unsent bytes"

    ledger = Ledger()
    buffer = Buffer(ledger, "buffer")
    with pytest.raises(AuditError, match="buffer holds 17 unsent bytes that no loan covers"):
        ledger.audit()
    ledger.unregister(buffer)
    ledger.audit()
