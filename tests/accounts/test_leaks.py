"""A leak is told of in the log: at once, with names, and not once for each of a thousand."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from clearfunds.accounts import Account, ClosedAccountError, Ledger, commit_run
from clearfunds.testing import Clock
from tests.accounts.conftest import boxes, publish


def leak(account: Account, times: int = 1) -> None:
    for _ in range(times):
        account.lend("", items=2, nbytes=20)


def told(caplog: pytest.LogCaptureFixture) -> list[Any]:
    """Return the records so far; they are forgotten then."""
    records = list(caplog.records)
    assert all(r.levelno == logging.ERROR and r.name == "clearfunds.accounts" for r in records)
    caplog.clear()
    return records


def drained(ledger: Ledger) -> None:
    with pytest.warns(ResourceWarning, match="was never settled"):
        ledger.drain()


def test_a_leak_is_told_of_with_who_owed_it_and_who_had_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ledger = Ledger()
    account = ledger.open("publisher")
    (box,) = boxes(ledger, 1)
    publish(account, [box], items=3, nbytes=30)
    box.queue.clear()
    leak(account)
    drained(ledger)
    (line,) = told(caplog)
    assert line.getMessage() == (
        "2 loans of 5 items and 50 bytes in all leaked: nobody settled them, of publisher at "
        f"{box.name} and of publisher before any holder took it; repaid as `leaked`, but not "
        "delivered: this is a fault in the program"
    )
    assert (line.event, line.loans, line.items, line.bytes) == ("leaked", 2, 5, 50)
    assert line.leaks == [
        {"account": "publisher", "holder": box.name, "items": 3, "bytes": 30},
        {"account": "publisher", "holder": None, "items": 2, "bytes": 20},
    ]
    assert line.leaks_more == 0
    ledger.drain()
    assert told(caplog) == []
    assert account.debt_items == 0


def test_many_leaks_are_one_line_in_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock(100.0)
    ledger = Ledger(clock=clock)
    account = ledger.open("publisher")
    leak(account)
    drained(ledger)
    assert [line.loans for line in told(caplog)] == [1]
    for _ in range(9):
        clock.now += 1
        leak(account, times=3)
        drained(ledger)
    assert told(caplog) == []
    clock.now += 1
    # Nothing new: the watch over patience comes by every half second.
    ledger.drain()
    (line,) = told(caplog)
    assert (line.loans, line.items, line.bytes) == (27, 54, 540)
    assert (len(line.leaks), line.leaks_more) == (5, 22)
    assert "and 22 more; repaid" in line.getMessage()
    # What has been told of is not told of again.
    clock.now += 20
    ledger.drain()
    assert told(caplog) == []
    assert ledger.leaked_loans == 28


def test_a_run_is_not_charged_to_an_account_that_only_a_leak_kept() -> None:
    ledger = Ledger()
    account = ledger.open("gone")
    (box,) = boxes(ledger, 1)
    leak(account)
    account.close()
    with (
        pytest.warns(ResourceWarning, match="gone"),
        pytest.raises(ClosedAccountError, match="gone is closed"),
    ):
        commit_run(account, [box], b"", 1, 10)
    assert not box.queue
    assert "gone" not in ledger.accounts
    assert account.debt_items == account.debt_bytes == 0
    ledger.audit()
