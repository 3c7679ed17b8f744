"""What becomes of a fault of our own in code that belongs to one connection."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from trio.testing import MockClock

from clearfunds.accounts import Account, Faults, Ledger, commit_run
from tests.accounts.conftest import Box


class ConfirmedError(Exception):
    """What is raised in here."""


class Fragile(Box):
    """A holder that raises when it is given something."""

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        raise ConfirmedError


class Durable(Fragile):
    """One whose word is believed by publishers."""

    takes_responsibility = True


def nobody(whose: object, doing: str, exc: Exception) -> bool:
    """End nobody."""
    return False


def somebody(whose: object, doing: str, exc: Exception) -> bool:
    """End whose it is."""
    return True


class Confirm:
    def __init__(self) -> None:
        self.expected = 0
        self.why: list[str] = []

    def expect(self) -> None:
        self.expected += 1

    def taken(self) -> None:
        self.expected -= 1

    def refused(self, reason: str) -> None:
        self.expected -= 1
        self.why.append(reason)


def test_where_nobody_ends_connections_a_fault_is_raised() -> None:
    faults = Faults()
    with pytest.raises(ConfirmedError):
        faults.note(None, "testing", ConfirmedError())
    with pytest.raises(ZeroDivisionError):
        faults.call(None, "testing", lambda: 1 / 0)
    assert faults.unowned == 0


def test_the_first_whose_it_is_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    faults = Faults()
    ended: list[tuple[str, object, str]] = []

    def ends(name: str, mine: object) -> None:
        def end(whose: object, doing: str, exc: Exception) -> bool:
            assert isinstance(exc, ConfirmedError)
            if whose != mine:
                return False
            ended.append((name, whose, doing))
            return True

        faults.ends.append(end)

    ends("a", 1)
    ends("b", 2)
    ends("c", 2)
    faults.note(2, "testing", ConfirmedError())
    assert ended == [("b", 2, "testing")]
    assert faults.unowned == 0
    assert not caplog.records
    for _ in range(10):  # a flood of faults is no flood of log lines
        faults.note(3, "testing", ConfirmedError())
    assert faults.unowned == 10
    (record,) = caplog.records
    assert (record.levelno, record.exc_info is not None) == (logging.ERROR, True)
    assert record.getMessage() == "internal error, while testing"


async def test_a_task_that_fails_begins_anew(autojump_clock: MockClock) -> None:
    assert autojump_clock
    faults = Faults()
    faults.ends.append(nobody)
    began: list[float] = []

    async def run(most: int) -> None:
        began.append(anyio.current_time())
        await anyio.lowlevel.checkpoint()
        if len(began) < most:
            raise ConfirmedError

    await faults.keep_going("testing", run, 3)
    assert [after - began[0] for after in began] == pytest.approx([0, 1, 2])
    assert faults.unowned == 2


@pytest.fixture
def account(ledger: Ledger) -> Account:
    return ledger.open("a")


@pytest.mark.parametrize("run", [False, True])
def test_a_holder_that_fails_is_ended_and_others_have_theirs(
    ledger: Ledger, account: Account, run: bool
) -> None:
    ended: list[object] = []

    def end(whose: object, doing: str, exc: Exception) -> bool:
        ended.append(whose)
        return True

    ledger.faults.ends.append(end)
    box, fragile = Box(ledger, "b"), Fragile(ledger, "f")
    if run:
        commit_run(account, [fragile, box], b"x", 1, 1)
    else:
        with account.turn() as turn:
            for holder in (fragile, box):
                turn.send(holder, b"x")
    assert ended == [fragile]
    assert len(box.queue) == 1
    ledger.audit()
    assert account.debt_items == 1


def test_a_publisher_is_not_told_that_it_is_there_when_it_is_not(
    ledger: Ledger, account: Account
) -> None:
    ledger.faults.ends.append(somebody)
    for holder, refused in ((Fragile(ledger, "f"), 0), (Durable(ledger, "d"), 1)):
        confirm = Confirm()
        with account.turn(confirm=confirm) as turn:
            turn.send(holder, b"x")
        assert confirm.expected == 0
        assert len(confirm.why) == refused
    ledger.audit()
    assert account.debt_items == 0


def test_a_turn_that_fails_for_another_reason_is_undone(ledger: Ledger, account: Account) -> None:
    """Faults change nothing about rule 4: what is raised before anything is handed over."""
    ledger.faults.ends.append(somebody)
    box = Box(ledger, "b")

    def fail(_: object) -> None:
        raise ConfirmedError

    with pytest.raises(ConfirmedError), account.turn() as turn:  # noqa: PT012 (at its end)
        turn.send(box, b"x")
        turn.act(fail)
    assert not box.queue
    assert account.debt_items == 0
    assert ledger.faults.unowned == 0
    ledger.audit()
