"""A ledger's recorder is told of everything once: by what is here, and by the machine of rule 8."""

from __future__ import annotations

import gc
from typing import Any

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from trio.testing import MockClock

from clearfunds.accounts import Ledger, Limit, LoanedItem, Outcome, Tracer, commit_run
from tests.accounts.conftest import Box, Recording, Settled
from tests.loops import open_nursery


@pytest.fixture
def recording(ledger: Ledger) -> Recording:
    ledger.recorder = recording = Recording()
    return recording


@pytest.mark.parametrize("outcome", [o for o in Outcome if o is not Outcome.LEAKED])
def test_a_loan_is_told_of_when_it_ends(
    ledger: Ledger, recording: Recording, outcome: Outcome
) -> None:
    account = ledger.open("a", parent=ledger.open("server"))
    box = Box(ledger, "box")
    loan = account.lend([1, 2, 3], items=3, nbytes=30)
    box.put(loan)
    assert not recording.settlements
    loan.settle(1, outcome)
    box.take().settle(outcome=outcome)
    assert recording.settlements == [
        Settled("a", "box", "box", 1, 10, outcome, loan.opened),
        Settled("a", "box", "box", 2, 20, outcome, loan.opened),
    ]


def test_a_loan_that_nobody_took(ledger: Ledger, recording: Recording) -> None:
    loan = ledger.open("a").lend("", nbytes=4)
    loan.settle()
    assert recording.settlements == [Settled("a", None, None, 1, 4, Outcome.DELIVERED, loan.opened)]


def test_a_part_was_opened_when_the_whole_was(ledger: Ledger, recording: Recording) -> None:
    loan = ledger.open("a").lend([1, 2], items=2)
    part = loan.split(1)
    part.settle()
    loan.settle()
    assert [each.opened for each in recording.settlements] == [loan.opened] * 2


def test_what_has_leaked_names_who_had_it(ledger: Ledger, recording: Recording) -> None:
    account = ledger.open("a")
    box = Box(ledger, "box")
    loan: LoanedItem[list[Any]] = account.lend([1], nbytes=4)
    opened = loan.opened
    box.put(loan)
    box.queue.clear()
    del loan
    gc.collect()
    with pytest.warns(ResourceWarning):
        ledger.audit()
    assert recording.settlements == [Settled("a", "box", "box", 1, 4, Outcome.LEAKED, opened)]


def test_a_traced_loan_is_told_of_as_any(ledger: Ledger, recording: Recording) -> None:
    account = ledger.open("a")
    box = Box(ledger, "box")
    with Tracer(ledger, "a".__eq__), account.turn(nbytes=1) as turn:
        turn.send(box, "news", nbytes=7)
    loan = box.take()
    loan.settle()
    assert recording.settlements == [
        Settled("a", "box", "box", 1, 7, Outcome.DELIVERED, loan.opened)
    ]
    assert recording.publications == [("a", "news", 1, 1, 1, 7)]


def test_a_root_turn_is_a_publication(ledger: Ledger, recording: Recording) -> None:
    account = ledger.open("a")
    boxes = [Box(ledger, "one"), Box(ledger, "two")]
    with account.turn(items=3, nbytes=30) as turn:
        for box in boxes:
            turn.send(box, box.name, items=2, nbytes=20)
    assert recording.publications == [("a", "one", 3, 30, 4, 40)]
    assert not recording.settlements
    for box in boxes:
        box.close()


def test_what_is_published_counts_not_what_is_shown(ledger: Ledger, recording: Recording) -> None:
    class Nowhere:
        def route(self, turn: object, event: object, nbytes: int | None) -> None:
            pass

    with ledger.open("a").turn(nbytes=3) as turn:
        turn.publish(Nowhere(), "first")
        turn.publish(Nowhere(), "second")
    assert recording.publications == [("a", "first", 1, 3, 0, 0)]


def test_a_turn_that_says_nothing_is_settled_by_the_router(
    ledger: Ledger, recording: Recording
) -> None:
    with ledger.open("a").turn(nbytes=3) as turn:
        pass
    assert not recording.publications
    assert recording.settlements == [
        Settled("a", "router", "router", 1, 3, Outcome.DELIVERED, turn.opened)
    ]


def test_a_turn_that_fails_is_settled_by_the_router(ledger: Ledger, recording: Recording) -> None:
    box = Box(ledger, "box")
    turn = ledger.open("a").turn(nbytes=3)

    def fails(_: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), turn:  # noqa: PT012
        turn.send(box, "news")
        turn.act(fails)
    assert not recording.publications
    assert recording.settlements == [
        Settled("a", "router", "router", 1, 3, Outcome.REJECTED, turn.opened)
    ]


def test_what_a_loan_causes_is_no_publication(ledger: Ledger, recording: Recording) -> None:
    box = Box(ledger, "box")
    with ledger.open("a").lend("", nbytes=1) as _:
        pass
    loan = ledger.open("a").lend("")
    with loan.turn() as turn:
        turn.send(box, "answer")
    loan.settle()
    box.close()
    assert not recording.publications
    assert [each.holder for each in recording.settlements] == [None, None, "box"]


def test_a_run_is_one_publication(ledger: Ledger, recording: Recording) -> None:
    boxes = [Box(ledger, f"box {i}") for i in range(3)]
    commit_run(ledger.open("a"), boxes, "run", 5, 50)
    commit_run(ledger.open("a"), [], "nobody's", 1, 2)
    assert recording.publications == [("a", "run", 5, 50, 15, 150), ("a", "nobody's", 1, 2, 0, 0)]
    for box in boxes:
        box.close()
    assert [each.items for each in recording.settlements] == [5, 5, 5]


def test_what_comes_too_late_is_dropped_at_once(ledger: Ledger, recording: Recording) -> None:
    box = Box(ledger, "box")
    box.close()
    commit_run(ledger.open("a"), [box], "run", 5, 50)
    assert recording.settlements == [Settled("a", "box", "box", 5, 50, Outcome.DROPPED, None)]


@pytest.mark.parametrize("recorded", [False, True])
def test_several_loans_at_once_are_repaid_as_one_by_one(ledger: Ledger, recorded: bool) -> None:
    if recorded:
        ledger.recorder = Recording()
    server = ledger.open("server")
    account = ledger.open("a", parent=server)
    boxes = [Box(ledger, "one"), Box(ledger, "two")]
    account.borrow(5, 50)
    account.close()
    if ledger.recorder is not None:
        ledger.recorder.delivered(account, [(boxes[0], 2, 20, 1.0), (boxes[1], 3, 30, 2.0)])
    account.repay(5, 50, holder=boxes[0], lent=True, recorded=True)
    assert (server.debt_items, server.debt_bytes) == (0, 0)
    assert "a" not in ledger.accounts  # it was paid off, and forgotten
    assert ledger.repaid_items[Outcome.DELIVERED] == 5
    assert ledger.repaid_bytes[Outcome.DELIVERED] == 50
    if isinstance(ledger.recorder, Recording):
        assert ledger.recorder.settlements == [
            Settled("a", "one", "box", 2, 20, Outcome.DELIVERED, 1.0),
            Settled("a", "two", "box", 3, 30, Outcome.DELIVERED, 2.0),
        ]


async def test_several_loans_at_once_let_readers_go_on(autojump_clock: MockClock) -> None:
    ledger = Ledger(clock=anyio.current_time)
    account = ledger.open("a", limit=Limit(items=1, low_items=0))
    boxes = [Box(ledger, "one"), Box(ledger, "two")]
    account.borrow(5, 50)
    async with open_nursery() as nursery:
        nursery.start_soon(account.ensure_clear_funds)
        await anyio.sleep(3)
        account.repay(5, 50, holder=boxes[0], lent=True, recorded=True)
    assert account.statistics().blame == {"one": 3.0}
    ledger.audit()


def test_a_limit_that_is_the_same_has_not_changed(ledger: Ledger, recording: Recording) -> None:
    account = ledger.open("a", limit=Limit(items=5))
    account.limit = Limit(items=5)
    assert not recording.limits
    account.limit = Limit(items=6)
    account.limit = Limit(items=7)
    assert recording.limits == [("a", Limit(items=6)), ("a", Limit(items=7))]


# -- stalls -------------------------------------------------------------------------------------


def by_culprit(recording: Recording, account: str) -> dict[tuple[str, str, str], float]:
    """Return seconds by (where, culprit, reason) of one account's stalls."""
    found: dict[tuple[str, str, str], float] = {}
    for name, at, culprit, seconds, _, reason in recording.stalls:
        if name == account:
            key = at, culprit, reason
            found[key] = round(found.get(key, 0.0) + seconds, 6)
    return found


async def test_each_stretch_has_its_culprit(autojump_clock: MockClock) -> None:
    ledger = Ledger(clock=anyio.current_time)
    ledger.recorder = recording = Recording()
    account = ledger.open("a", limit=Limit(items=1, low_items=0))
    one, two = Box(ledger, "one"), Box(ledger, "two")
    commit_run(account, [one, two], "run", 2, 0)
    began = anyio.current_time()
    async with open_nursery() as nursery:
        nursery.start_soon(account.ensure_clear_funds)
        await anyio.sleep(3)
        one.work(2)
        await anyio.sleep(2)
        two.work(1)
        await anyio.sleep(1)
        assert not recording.stalls
        two.work(1)
    assert by_culprit(recording, "a") == {
        ("a", "one", "account"): 3.0,
        ("a", "two", "account"): 3.0,
    }
    assert {ended - began for *_, ended, _ in recording.stalls} == {6.0}
    assert account.statistics().blame == {"one": 3.0, "two": 3.0}


async def test_who_comes_late_has_not_waited_all_of_it(autojump_clock: MockClock) -> None:
    ledger = Ledger(clock=anyio.current_time)
    ledger.recorder = recording = Recording()
    server = ledger.open("server", limit=Limit(items=1, low_items=0))
    early, late = ledger.open("early", parent=server), ledger.open("late", parent=server)
    one, two = Box(ledger, "one"), Box(ledger, "two")
    commit_run(early, [one, two], "run", 2, 0)
    async with open_nursery() as nursery:
        nursery.start_soon(early.ensure_clear_funds)
        await anyio.sleep(3)
        nursery.start_soon(late.ensure_clear_funds)
        await anyio.sleep(1)
        one.work(2)
        await anyio.sleep(2)
        two.work(2)
    assert by_culprit(recording, "early") == {
        ("server", "one", "parent"): 4.0,
        ("server", "two", "parent"): 2.0,
    }
    assert by_culprit(recording, "late") == {
        ("server", "one", "parent"): 1.0,
        ("server", "two", "parent"): 2.0,
    }
    for account in (early, late):
        blame = account.statistics().blame
        told = {who: s for (_, who, _), s in by_culprit(recording, account.name).items()}
        assert told == pytest.approx(blame)


async def test_waits_that_go_on_are_told_of_on_demand(autojump_clock: MockClock) -> None:
    ledger = Ledger(clock=anyio.current_time)
    ledger.recorder = recording = Recording()
    account = ledger.open("a", limit=Limit(items=1, low_items=0))
    box = Box(ledger, "box")
    commit_run(account, [box], "run", 3, 0)
    async with open_nursery() as nursery:
        nursery.start_soon(account.ensure_clear_funds)
        await anyio.sleep(1)
        box.work(1)
        ledger.tell_stalls()
        assert by_culprit(recording, "a") == {("a", "box", "account"): 1.0}
        ledger.tell_stalls()
        assert len(recording.stalls) == 1
        await anyio.sleep(2)
        box.work(2)
    assert by_culprit(recording, "a") == {("a", "box", "account"): 3.0}


async def test_an_alarm_is_to_blame_for_itself(autojump_clock: MockClock) -> None:
    ledger = Ledger(clock=anyio.current_time)
    ledger.recorder = recording = Recording()
    server = ledger.open("server", limit=Limit(items=1, low_items=0))
    account = ledger.open("a", parent=server)
    box = Box(ledger, "box")
    commit_run(account, [box], "run", 2, 0)
    async with open_nursery() as nursery:
        nursery.start_soon(account.ensure_clear_funds)
        await anyio.sleep(1)
        server.halt("memory")
        await anyio.sleep(2)
        server.resume("memory")
        await anyio.sleep(4)
        box.work(2)
    # The first second nobody repaid anything: until the alarm nobody could say who it was.
    assert by_culprit(recording, "a") == {
        ("server", "(alarm: memory)", "alarm"): 2.0,
        ("server", "box", "parent"): 4.0,
    }


async def test_a_wait_that_began_before_the_recorder(autojump_clock: MockClock) -> None:
    ledger = Ledger(clock=anyio.current_time)
    account = ledger.open("a", limit=Limit(items=1, low_items=0))
    box = Box(ledger, "box")
    commit_run(account, [box], "run", 2, 0)
    async with open_nursery() as nursery:
        nursery.start_soon(account.ensure_clear_funds)
        await wait_all_tasks_blocked()
        ledger.recorder = recording = Recording()
        await anyio.sleep(1)
        box.work(1)
        ledger.recorder = None
        box.work(1)
    assert not recording.stalls
    assert [each.items for each in recording.settlements] == [1]
