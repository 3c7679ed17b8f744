"""Tracing a cause: one event, through its loans to its outcomes; and the books as without."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from hypothesis import given, settings
from hypothesis import strategies as st

from clearfunds.accounts import (
    NO_LIMIT,
    Account,
    ClosedAccountError,
    Ledger,
    Limit,
    Outcome,
    Recipient,
    Trace,
    TracedLoan,
    Tracer,
    commit_run,
)
from clearfunds.testing import Clock
from tests.accounts.conftest import Box, balance, boxes, owed, publish
from tests.loops import open_nursery


class Note:
    """An event with a topic."""

    def __init__(self, topic: str) -> None:
        self.topic = topic


class Everybody:
    """A router that sends everything to all its holders."""

    def __init__(self, *holders: Recipient) -> None:
        self.holders = holders

    def route(self, turn: Any, event: Any, nbytes: int | None) -> None:
        for holder in self.holders:
            turn.deliver(holder, event, 1, nbytes or 0)


def only(traces: tuple[Trace, ...]) -> Trace:
    assert len(traces) == 1
    return traces[0]


def one(trace: Trace) -> TracedLoan:
    (loan,) = trace.loans()
    return loan


async def ended(tracer: Tracer) -> Trace:
    """Return what has been traced to its end already."""
    with anyio.fail_after(1):
        return await tracer.next()


async def test_a_packet_is_followed_through_its_loans_to_their_outcomes() -> None:
    clock = Clock(100.0)
    ledger = Ledger(clock=clock)
    account = ledger.open("pub")
    first, second = boxes(ledger, 2)
    with Tracer(ledger, "pub".__eq__) as tracer:
        assert tracer.armed == 1
        with account.turn(nbytes=5) as turn:
            turn.publish(Everybody(first, second), Note("a/b"), nbytes=5)
            clock.now += 1
        ledger.audit()
        assert {row.account for row in ledger.matrix()} == {"pub"}
        assert owed(account) == (2, 10)
        clock.now += 1
        first.work()
        clock.now += 2
        second.take().settle(outcome=Outcome.ACKED)
        trace = await ended(tracer)
    assert trace.account == "pub"
    assert trace.complete
    assert trace.seconds == 4
    assert trace.began > 1_700_000_000
    root = trace.root
    assert (root.opened, root.ended, root.items, root.bytes) == (0, 1, 1, 5)
    assert root.outcome is Outcome.DELIVERED
    assert root.labels == ("a/b",)
    a, b = root.loans
    assert (a.holder, a.kind, a.label, a.items, a.bytes) == ("O1", "box", "a/b", 1, 5)
    assert (a.lent, a.ended, a.left_items, a.held) == (1, 2, 0, ())
    assert (b.lent, b.ended) == (1, 4)
    assert a.outcomes() == {Outcome.DELIVERED: 1}
    assert b.settlements[0].outcome is Outcome.ACKED
    assert b.settlements[0].holder == "O2"
    assert trace.outcomes == {Outcome.DELIVERED: 1, Outcome.ACKED: 1}
    ledger.audit()


async def test_a_run_is_followed_as_one(ledger: Ledger) -> None:
    account = ledger.open("pub")
    holders = boxes(ledger, 9)
    with Tracer(ledger) as tracer:
        commit_run(account, holders, Note("t"), 50, 500)
        ledger.audit()
        assert owed(account) == (450, 4500)
        assert account.peak_items == 500
        for box in holders:
            box.settle_all(Outcome.DELIVERED)
        trace = await ended(tracer)
    assert (trace.root.items, trace.root.bytes, trace.root.labels) == (50, 500, ("t",))
    assert [loan.holder for loan in trace.loans()] == [box.name for box in holders]
    assert trace.followed.items == 450
    assert trace.outcomes == {Outcome.DELIVERED: 450}


async def test_a_run_that_concerns_nobody_has_been_dealt_with(ledger: Ledger) -> None:
    account = ledger.open("pub")
    with Tracer(ledger) as tracer:
        commit_run(account, [], Note("t"), 3, 30)
        trace = await ended(tracer)
    assert trace.complete
    assert trace.root.labels == ("t",)
    assert trace.root.loans == ()


async def test_what_handling_a_loan_causes_hangs_below_it(ledger: Ledger) -> None:
    account = ledger.open("pub")
    inbox, outbox = boxes(ledger, 2)
    with Tracer(ledger) as tracer:
        publish(account, [inbox])
        loan = inbox.take()
        with loan:
            for number in range(2):
                with loan.turn() as turn:
                    assert turn.account is account
                    turn.publish(Everybody(outbox), Note(f"answer/{number}"))
        assert owed(account) == (2, 0)
        ledger.audit()
        outbox.work(1)
        outbox.work(1)
        trace = await ended(tracer)
    (parent,) = trace.root.loans
    assert [caused.labels for caused in parent.turns] == [("answer/0",), ("answer/1",)]
    for caused in parent.turns:
        assert caused.items == 0
        (child,) = caused.loans
        assert parent.ended is not None
        assert child.ended is not None
        assert parent.lent <= caused.opened <= child.lent <= parent.ended <= child.ended
    assert [loan.holder for loan in trace.loans()] == ["O1", "O2", "O2"]


async def test_it_is_not_over_while_a_turn_is_open(ledger: Ledger) -> None:
    account = ledger.open("pub")
    (box,) = boxes(ledger, 1)
    with Tracer(ledger) as tracer:
        publish(account, [box])
        loan = box.take()
        with loan.turn() as turn:
            loan.settle()
            await wait_all_tasks_blocked()
            turn.send(box, b"x")
        trace = only(tracer.rest())
    assert not trace.complete
    assert [loan.left_items for loan in trace.loans()] == [0, 1]
    box.settle_all(Outcome.DELIVERED)


async def test_parts_are_settled_and_moved_one_by_one(ledger: Ledger) -> None:
    account = ledger.open("pub")
    first, second = boxes(ledger, 2)
    with Tracer(ledger) as tracer:
        publish(account, [first], items=4, nbytes=40)
        loan = first.queue[0]
        loan.item[:] = [b""] * 4
        part = loan.split(2)
        loan.settle(1, Outcome.ACKED)
        second.put(part)
        ledger.audit()
        part.settle(1, Outcome.DROPPED)
        trace = only(tracer.rest())
    found = one(trace)
    assert not trace.complete
    assert (found.items, found.bytes, found.left_items, found.left_bytes) == (4, 40, 2, 20)
    assert {held.holder: held.items for held in found.held} == {"O1": 1, "O2": 1}
    assert [move.holder for move in found.moves] == ["O2"]
    assert found.outcomes() == {Outcome.ACKED: 1, Outcome.DROPPED: 1}
    assert trace.left_items == 2
    first.settle_all(Outcome.DELIVERED)
    second.settle_all(Outcome.DELIVERED)


async def test_nothing_else_joins_a_loan_that_is_followed(ledger: Ledger) -> None:
    account = ledger.open("pub")
    (box,) = boxes(ledger, 1)
    publish(account, [box])
    with Tracer(ledger) as tracer:
        publish(account, [box], items=2)
        publish(account, [box], items=4)
        assert [loan.items for loan in box.queue] == [1, 2, 4]
        box.work(1)
        assert tracer.rest()[0].left_items == 2
    publish(account, [box], items=8)
    assert [loan.items for loan in box.queue] == [2, 12]
    box.work(14)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
async def test_a_turn_that_raises_has_sent_nothing(
    ledger: Ledger, error: type[BaseException]
) -> None:
    account = ledger.open("pub")
    (box,) = boxes(ledger, 1)
    with Tracer(ledger) as tracer:

        def fail() -> None:
            with account.turn(nbytes=7) as turn:
                turn.publish(Everybody(box), Note("t"))
                raise error

        with pytest.raises(error):
            fail()
        trace = await ended(tracer)
    assert trace.root.outcome is Outcome.REJECTED
    assert (trace.root.items, trace.root.bytes) == (1, 7)
    assert trace.root.loans == ()
    assert owed(account) == (0, 0)


async def test_a_commit_that_fails_has_sent_nothing(ledger: Ledger) -> None:
    account = ledger.open("pub")
    (box,) = boxes(ledger, 1)

    def fail(turn: Any) -> None:
        raise ZeroDivisionError

    with Tracer(ledger) as tracer:
        turn = account.turn()
        turn.__enter__()
        turn.send(box, b"")
        turn.act(fail)
        with pytest.raises(ZeroDivisionError):
            turn.__exit__(None, None, None)
        assert (await ended(tracer)).root.outcome is Outcome.REJECTED
    assert not box.queue


async def test_work_that_is_cancelled_ends_so(ledger: Ledger) -> None:
    account = ledger.open("pub")
    (box,) = boxes(ledger, 1)
    with Tracer(ledger) as tracer:
        publish(account, [box])
        with anyio.CancelScope() as scope, box.take():
            scope.cancel()
            await anyio.sleep_forever()
        trace = await ended(tracer)
    assert trace.outcomes == {Outcome.CANCELLED: 1}


async def test_waiting_for_a_trace_that_is_cancelled_loses_none(ledger: Ledger) -> None:
    account = ledger.open("pub")
    (box,) = boxes(ledger, 1)
    with Tracer(ledger) as tracer:
        with anyio.move_on_after(0):
            await tracer.next()
        publish(account, [box])
        box.work()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await tracer.next()
        assert (await ended(tracer)).complete


async def test_a_loan_that_is_lost_is_seen_as_leaked() -> None:
    ledger = Ledger()
    account = ledger.open("pub")
    (box,) = boxes(ledger, 1)
    with Tracer(ledger) as tracer:
        publish(account, [box])
        box.queue.clear()
        gc.collect()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            ledger.drain()
        assert (await ended(tracer)).outcomes == {Outcome.LEAKED: 1}
    ledger.audit()


async def test_a_closed_holder_drops_what_comes(ledger: Ledger) -> None:
    account = ledger.open("pub")
    box, other = boxes(ledger, 2)
    box.close()
    with Tracer(ledger) as tracer:
        commit_run(account, [box, other], b"", 2, 0)
        other.work(2)
        trace = await ended(tracer)
    assert [loan.outcomes() for loan in trace.loans()] == [
        {Outcome.DROPPED: 2},
        {Outcome.DELIVERED: 2},
    ]


class Nowhere(Recipient):
    """Nobody's hands."""

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        account.repay(items, nbytes, Outcome.DROPPED)

    def ready(self) -> None:
        pass


async def test_what_ends_in_nobodys_hands_has_ended(ledger: Ledger) -> None:
    account = ledger.open("pub")
    with Tracer(ledger) as tracer:
        with account.turn() as turn:
            turn.send(Nowhere(), b"")
        trace = await ended(tracer)
    assert one(trace).holder == "Nowhere"
    assert one(trace).settlements[0].holder == "(nobody)"
    assert trace.outcomes == {Outcome.DROPPED: 1}


async def test_hands_that_are_not_known_before_are_known_afterwards(ledger: Ledger) -> None:
    account = ledger.open("pub")
    (box,) = boxes(ledger, 1)

    class Before(Recipient):
        def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
            box.hold(account, item, items, nbytes, now)

        def ready(self) -> None:
            box.ready()

    with Tracer(ledger) as tracer:
        with account.turn() as turn:
            turn.send(Before(), b"")
        ledger.audit()
        box.work()
        trace = await ended(tracer)
    assert (one(trace).holder, one(trace).kind) == ("O1", "box")


async def test_what_is_borrowed_on_top_is_part_of_it(ledger: Ledger) -> None:
    account = ledger.open("pub")
    (box,) = boxes(ledger, 1)

    class Framing(Recipient):
        @property
        def last_holder(self) -> Box:
            return box

        def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
            account.borrow(0, 6)
            box.hold(account, item, items, nbytes + 6, now)

        def ready(self) -> None:
            box.ready()

    with Tracer(ledger) as tracer:
        with account.turn() as turn:
            turn.send(Framing(), b"", nbytes=10)
            turn.send(box, b"", nbytes=1)  # by another way, into the same hands
        ledger.audit()
        box.settle_all(Outcome.DELIVERED)
        trace = await ended(tracer)
    assert one(trace).bytes == 17
    assert one(trace).holder == "O1"


# -- arming ----------------------------------------------------------------------------------------


async def test_as_many_events_as_are_wanted_and_no_more(ledger: Ledger) -> None:
    account = ledger.open("pub")
    (box,) = boxes(ledger, 1)
    with Tracer(ledger, events=2) as tracer:
        for _ in range(4):
            publish(account, [box])
        assert account.tracers is None
        box.settle_all(Outcome.DELIVERED)
        assert [trace.complete for trace in tracer.rest()] == [True, True]


async def test_only_those_that_match_also_if_they_come_later(ledger: Ledger) -> None:
    (box,) = boxes(ledger, 1)
    old, other = ledger.open("a/old"), ledger.open("b")
    with Tracer(ledger, lambda name: name.startswith("a/"), events=9) as tracer:
        new = ledger.open("a/new", parent=ledger.open("a/tenant", limit=NO_LIMIT))
        assert ledger.open("a/new", parent=new.parent) is new
        assert tracer.armed == 3
        for account in (other, old, new):
            publish(account, [box])
        box.settle_all(Outcome.DELIVERED)
        assert [trace.account for trace in tracer.rest()] == ["a/old", "a/new"]
    assert other.tracers is None


async def test_two_who_trace_get_one_event_each(ledger: Ledger) -> None:
    account = ledger.open("pub")
    (box,) = boxes(ledger, 1)
    with Tracer(ledger) as first, Tracer(ledger) as second:
        publish(account, [box], nbytes=1)
        publish(account, [box], nbytes=2)
        box.settle_all(Outcome.DELIVERED)
        assert (await ended(first)).root.bytes == 1
        assert (await ended(second)).root.bytes == 2


async def test_one_who_gives_up_leaves_the_other_in_place(ledger: Ledger) -> None:
    account = ledger.open("pub")
    with Tracer(ledger) as second:
        with Tracer(ledger):
            pass
        assert account.tracers == (second,)


async def test_a_turn_in_which_nothing_is_sent_is_passed_over(ledger: Ledger) -> None:
    account = ledger.open("pub")
    (box,) = boxes(ledger, 1)
    with Tracer(ledger) as tracer:
        with account.turn():
            pass
        publish(account, [box], nbytes=3)
        box.work()
        assert (await ended(tracer)).root.bytes == 3


async def test_loans_beyond_the_limit_are_counted(ledger: Ledger) -> None:
    account = ledger.open("pub")
    holders = boxes(ledger, 7)
    with Tracer(ledger, max_loans=5, shown=2) as tracer:
        publish(account, holders, items=2, nbytes=20)
        ledger.audit()
        for box in holders[:4]:
            box.settle_all(Outcome.DELIVERED)
        for box in holders[5:]:
            box.settle_all(Outcome.DELIVERED)
        trace = only(tracer.rest())
    # What is outstanding comes first.
    assert "O5" in [loan.holder for loan in trace.loans()]
    assert len(list(trace.loans())) == 2
    assert (trace.not_shown.loans, trace.not_shown.items) == (3, 6)
    assert (trace.not_followed.loans, trace.not_followed.items) == (2, 4)
    assert trace.followed.bytes == 100
    assert trace.left_items == 2
    holders[4].settle_all(Outcome.DELIVERED)


async def test_only_loans_to_holders_that_are_asked_for(ledger: Ledger) -> None:
    account = ledger.open("pub")
    holders = boxes(ledger, 3)
    with Tracer(ledger, holders="O2".__eq__) as tracer:
        publish(account, holders)
        holders[1].work()
        trace = await ended(tracer)
    assert one(trace).holder == "O2"
    assert trace.not_followed.loans == 2
    for box in holders:
        box.settle_all(Outcome.DELIVERED)


async def test_turns_beyond_the_limit_are_counted(ledger: Ledger) -> None:
    account = ledger.open("pub")
    (box,) = boxes(ledger, 1)
    with Tracer(ledger, max_loans=3) as tracer:
        publish(account, [box])
        loan = box.take()
        with loan:
            for _ in range(5):
                with loan.turn():
                    pass
        trace = await ended(tracer)
    assert len(one(trace).turns) == 2
    assert trace.turns_not_followed == 3


async def test_causes_of_causes_are_followed_so_far_and_no_further(ledger: Ledger) -> None:
    account = ledger.open("pub")
    (box,) = boxes(ledger, 1)
    with Tracer(ledger, shown=1000) as tracer:
        publish(account, [box])
        for _ in range(200):
            loan = box.take()
            with loan, loan.turn() as turn:
                turn.send(box, b"")
        trace = await ended(tracer)
    assert len(list(trace.loans())) == 65
    assert trace.turns_not_followed == 1
    box.work()


async def test_what_causes_a_shown_loan_is_shown(ledger: Ledger) -> None:
    account = ledger.open("pub")
    inbox, *rest = boxes(ledger, 6)
    with Tracer(ledger, shown=2) as tracer:
        publish(account, [*rest, inbox])
        loan = inbox.take()
        with loan, loan.turn() as turn:
            turn.send(rest[0], b"")
        for box in rest[1:]:
            box.work()
        rest[0].queue.popleft().settle()
        trace = only(tracer.rest())
    (parent,) = trace.root.loans
    assert parent.holder == "O1"
    assert parent.turns[0].loans[0].left_items == 1
    rest[0].work()


async def test_many_settlements_are_summed_up(ledger: Ledger) -> None:
    account = ledger.open("pub")
    (box,) = boxes(ledger, 1)
    with Tracer(ledger) as tracer:
        publish(account, [box], items=100)
        for number in range(100):
            box.queue[0].settle(1, Outcome.DROPPED if number % 2 else Outcome.ACKED)
        box.queue.clear()
        trace = await ended(tracer)
    assert len(one(trace).settlements) < 20
    assert one(trace).outcomes() == {Outcome.ACKED: 50, Outcome.DROPPED: 50}
    assert sum(each.times for each in one(trace).settlements) == 100


async def test_many_labels_are_counted(ledger: Ledger) -> None:
    account = ledger.open("pub")
    with Tracer(ledger) as tracer:
        with account.turn() as turn:
            for number in range(20):
                turn.publish(Everybody(), Note(f"{number}" + "x" * 500))
        root = (await ended(tracer)).root
    assert len(root.labels) == 8
    assert root.more_labels == 12
    assert max(map(len, root.labels)) == 128


# -- waiting ---------------------------------------------------------------------------------------


async def test_the_accounts_waits_meanwhile_are_told_of() -> None:
    clock = Clock(100.0)
    ledger = Ledger(clock=clock)
    account = ledger.open("pub", limit=Limit(items=1, low_items=0))
    fast, slow = boxes(ledger, 2)
    async with open_nursery() as nursery:
        with Tracer(ledger) as tracer:
            publish(account, [fast, slow])
            nursery.start_soon(account.ensure_clear_funds)
            await wait_all_tasks_blocked()
            clock.now += 1
            fast.work()
            clock.now += 2
            slow.work()
            await wait_all_tasks_blocked()
            trace = await ended(tracer)
    (wait,) = trace.waits
    assert wait.since == 0
    # The reader goes on a moment after the last loan has ended: with it, the trace.
    assert wait.until is None
    assert wait.blame == {"O1": 1.0, "O2": 2.0}


async def test_a_wait_that_goes_on_says_where() -> None:
    clock = Clock(100.0)
    ledger = Ledger(clock=clock)
    server = ledger.open("server", limit=Limit(items=2, low_items=1))
    account = ledger.open("pub", parent=server)
    other = ledger.open("other", parent=server)
    (box,) = boxes(ledger, 1)
    publish(other, [box], items=3)
    async with open_nursery() as nursery:
        nursery.start_soon(account.ensure_clear_funds)
        nursery.start_soon(other.ensure_clear_funds)
        await wait_all_tasks_blocked()
        clock.now += 4
        with Tracer(ledger, "pub".__eq__) as tracer:
            publish(account, [box])
            clock.now += 1
            box.work(2)
            trace = only(tracer.rest())
        (wait,) = trace.waits
        assert (wait.since, wait.until, wait.at) == (-4, None, "server")
        box.settle_all(Outcome.DELIVERED)


# -- nothing is left behind ------------------------------------------------------------------------


async def test_disarmed_it_leaves_nothing_behind(ledger: Ledger) -> None:
    account = ledger.open("pub")
    (box,) = boxes(ledger, 1)
    tracer = Tracer(ledger, events=3)
    with tracer:
        publish(account, [box])
        loan = box.take()
        notes = weakref.ref(ledger.traces[0])
        with loan.turn() as turn:
            turn.send(box, b"")
    gone = weakref.ref(tracer)
    del tracer, turn
    gc.collect()
    assert gone() is None
    assert notes() is None
    assert account.tracers is None
    assert ledger.tracers == []
    assert ledger.traces == []
    # What is outstanding goes on as if nothing had been.
    assert owed(account) == (2, 0)
    with loan.turn() as turn:
        turn.send(box, b"")
    loan.settle()
    box.settle_all(Outcome.DELIVERED)
    assert owed(account) == (0, 0)


async def test_disarmed_within_a_turn_it_leaves_nothing_behind(ledger: Ledger) -> None:
    account = ledger.open("pub")
    (box,) = boxes(ledger, 1)
    for send in (False, True):
        with account.turn() as before, Tracer(ledger) as tracer, account.turn() as turn:
            trace = only(tracer.rest())
            assert (trace.complete, trace.root.ended, trace.root.outcome) == (False, None, None)
            if send:
                turn.send(box, b"")
        del before, turn
    assert ledger.traces == []
    assert box.queue[0].account is account
    box.work()


async def test_a_trace_that_has_ended_is_not_kept_by_what_is_used_again(ledger: Ledger) -> None:
    account = ledger.open("pub")
    (box,) = boxes(ledger, 1)
    with Tracer(ledger) as tracer:
        publish(account, [box])
        loan = box.take()
        notes = weakref.ref(ledger.traces[0])
        loan.settle()
        assert (await ended(tracer)).complete
        assert ledger.traces == []
    del tracer
    gc.collect()
    assert notes() is None
    assert loan.account is account


async def test_an_account_that_is_forgotten_forgets_its_tracers(ledger: Ledger) -> None:
    account = ledger.open("pub")
    with Tracer(ledger):
        account.close()
        assert account.tracers is None


async def test_a_closed_account_has_no_run_to_follow(ledger: Ledger) -> None:
    account = ledger.open("pub")
    (box,) = boxes(ledger, 1)
    keeper = ledger.open("keeper", parent=account)
    account.close()
    with Tracer(ledger, "pub".__eq__) as tracer:
        with pytest.raises(ClosedAccountError):
            commit_run(account, [box], b"", 1, 0)
        assert ledger.traces == []
        assert tracer.rest() == ()
    keeper.close()


# -- a traced loan is a loan of the account --------------------------------------------------------


async def test_a_traced_loan_is_charged_to_the_account_itself(ledger: Ledger) -> None:
    account = ledger.open("pub")
    box, other = boxes(ledger, 2)
    with Tracer(ledger):
        publish(account, [box])
        loan = box.take()
        with loan.turn() as turn:
            assert turn.account is account
            turn.send(other, b"")
        assert loan.account is other.queue[0].account is account
        lent = loan.account.lend([b"more"], nbytes=0)
        assert lent.trace is None
        other.put(lent)
        ledger.audit()
        loan.settle()
        other.settle_all(Outcome.DELIVERED)
    assert owed(account) == (0, 0)


async def test_another_payer_of_a_traced_turn_pays_and_is_followed(ledger: Ledger) -> None:
    account, payer = ledger.open("pub"), ledger.open("payer")
    (box,) = boxes(ledger, 1)
    with Tracer(ledger, "pub".__eq__) as tracer:
        with account.turn() as turn:
            turn.act(lambda turn: turn.deliver(box, b"", 2, 8, payer))
        ledger.audit()
        assert (owed(account), owed(payer)) == ((0, 0), (2, 8))
        box.settle_all(Outcome.DELIVERED)
        assert one(await ended(tracer)).outcomes() == {Outcome.DELIVERED: 2}


@pytest.mark.parametrize("traced", [False, True])
async def test_a_holder_that_raises_is_at_fault_also_in_a_traced_turn(
    ledger: Ledger, traced: bool
) -> None:
    account = ledger.open("pub")
    box, broken = boxes(ledger, 2)
    at_fault: list[object] = []

    def end(whose: object, doing: str, exc: Exception) -> bool:
        at_fault.append(whose)
        return True

    def fail(*args: object) -> None:
        raise ZeroDivisionError

    ledger.faults.ends.append(end)
    with Tracer(ledger, events=traced) as tracer, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Box, "hold", fail)
        publish(account, [broken])
        patch.undo()
        publish(account, [box])
        assert at_fault == [broken]
        assert owed(account) == (1, 0)
        box.work()
        assert [trace.outcomes for trace in tracer.rest()] == traced * [{Outcome.REJECTED: 1}]


async def test_what_a_holder_does_besides_taking_a_traced_loan_is_not_followed(
    ledger: Ledger,
) -> None:
    account = ledger.open("pub")
    queue, dead = boxes(ledger, 2)
    publish(account, [queue], nbytes=3)

    class Full(Recipient):
        """Sends the oldest to another place first."""

        def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
            oldest = queue.take()
            with oldest, oldest.turn() as turn:
                turn.send(dead, b"", nbytes=3)
            with account.turn() as turn:
                turn.send(dead, b"", nbytes=4)
            queue.hold(account, item, items, nbytes, now)

        def ready(self) -> None:
            queue.ready()

    with Tracer(ledger) as tracer:
        with account.turn() as turn:
            turn.send(Full(), b"", nbytes=5)
        assert [loan.trace is None for loan in (*dead.queue, *queue.queue)] == [True, False]
        dead.settle_all(Outcome.DELIVERED)
        queue.settle_all(Outcome.ACKED)
        trace = await ended(tracer)
    assert (trace.followed.items, trace.followed.bytes) == (1, 5)
    assert trace.outcomes == {Outcome.ACKED: 1}
    ledger.audit()


# -- conservation ----------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["run", "turn", "raise", "settle", "work", "put", "split", "lose", "close"]
        ),
        st.integers(0, 5),
        st.integers(1, 4),
    ),
    max_size=40,
)


def steps(ledger: Ledger, account: Account, holders: list[Box]) -> dict[str, Callable[..., None]]:
    """What may happen, with a number that says where and one that says how much."""

    def some(where: int) -> list[Box]:
        return [box for number, box in enumerate(holders) if (where + 1) >> number & 1]

    def run(where: int, much: int) -> None:
        commit_run(account, some(where), b"", much, 3 * much)

    def turn(where: int, much: int) -> None:
        publish(account, some(where), items=much, nbytes=5)

    def raise_(where: int, much: int) -> None:
        turn = account.turn()
        turn.__enter__()
        turn.send(holders[0], b"")
        turn.__exit__(ValueError, ValueError(), None)

    def settle(where: int, much: int) -> None:
        box = holders[where % len(holders)]
        if box.queue:
            loan = box.queue[0]
            loan.settle(min(much, loan.items), list(Outcome)[where])
            if not loan.items:
                box.queue.popleft()

    def work(where: int, much: int) -> None:
        box = holders[where % len(holders)]
        if box.queue:
            loan = box.take()
            with loan, loan.turn() as turn:
                for each in some(much):
                    turn.send(each, b"", nbytes=much)

    def put(where: int, much: int) -> None:
        box = holders[where % len(holders)]
        if box.queue:
            holders[much % len(holders)].put(box.take())

    def split(where: int, much: int) -> None:
        box = holders[where % len(holders)]
        loan = box.queue[0] if box.queue else None
        if loan is not None and len(loan.item) == loan.items > much:
            part = loan.split(much)
            holders[(where + 1) % len(holders)].put(part)

    def lose(where: int, much: int) -> None:
        box = holders[where % len(holders)]
        if box.queue:
            box.queue.pop()

    def close(where: int, much: int) -> None:
        holders[-1].close()

    return {
        "run": run,
        "turn": turn,
        "raise": raise_,
        "settle": settle,
        "work": work,
        "put": put,
        "split": split,
        "lose": lose,
        "close": close,
    }


@settings(max_examples=300, deadline=None)
@given(history=STEPS, events=st.integers(1, 6), max_loans=st.sampled_from([2, 5, 1000]))
def test_whatever_happens_what_was_borrowed_is_what_has_ended(
    history: list[tuple[str, int, int]], events: int, max_loans: int
) -> None:
    """For each trace: what was borrowed = what has ended + what is outstanding, at every time."""
    ledger = Ledger()
    account = ledger.open("pub", parent=ledger.open("server", limit=NO_LIMIT))
    holders = boxes(ledger, 3)
    tracer = Tracer(ledger, "pub".__eq__, events=events, max_loans=max_loans)
    with tracer:
        may = steps(ledger, account, holders)
        for what, where, much in history:
            may[what](where, much)
            balance(ledger)
            for notes in ledger.traces:
                check(notes.told(1000))
        for box in holders:
            box.settle_all(Outcome.EXPIRED)
        balance(ledger)
        assert owed(account) == (0, 0)
        assert ledger.traces == []
        for trace in tracer.rest():
            check(trace)
            assert trace.complete
            assert trace.left_items == trace.left_bytes == 0


def check(trace: Trace) -> None:
    loans = list(trace.loans())
    assert trace.followed.items == sum(loan.items for loan in loans)
    assert sum(trace.outcomes.values()) + trace.left_items == trace.followed.items
    for loan in loans:
        assert sum(each.items for each in loan.settlements) + loan.left_items == loan.items
        assert sum(each.bytes for each in loan.settlements) + loan.left_bytes == loan.bytes
        assert sum(each.items for each in loan.held) == loan.left_items
        assert (loan.ended is None) == bool(loan.left_items or loan.left_bytes)
