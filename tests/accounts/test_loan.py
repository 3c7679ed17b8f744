"""Loans: made, settled, split, worked on, forgotten."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearfunds.accounts import (
    Ledger,
    Limit,
    LoanedItem,
    Outcome,
    SettledError,
)
from clearfunds.accounts._loan import settle_whole
from tests.accounts.conftest import Box, Recording, owed, publish
from tests.loops import open_nursery

# -- made and settled -----------------------------------------------------------------------------


@pytest.mark.rule(1, 8)
def test_a_loan_is_charged_from_the_start(ledger: Ledger) -> None:
    """Rules 1 and 8: also while no holder has taken it."""
    account = ledger.open("a")
    loan = account.lend(b"12345")
    assert (loan.item, loan.items, loan.bytes, loan.holder) == (b"12345", 1, 5, None)
    assert owed(account) == (1, 5)
    (row,) = ledger.matrix()
    assert (row.account, row.holder, row.items, row.bytes) == ("a", "(loose)", 1, 5)
    ledger.audit()
    assert repr(loan) == "<LoanedItem of a at nobody else: 1 items, 5 bytes>"
    loan.settle()
    assert repr(loan) == "<LoanedItem of a at nobody else: settled>"
    assert owed(account) == (0, 0)


@pytest.mark.parametrize(("items", "nbytes"), [(0, 0), (-1, 0), (1, -1)])
def test_there_is_no_loan_of_nothing(ledger: Ledger, items: int, nbytes: int) -> None:
    account = ledger.open("a")
    with pytest.raises(ValueError, match="at least one item and no negative bytes"):
        account.lend("", items=items, nbytes=nbytes)
    assert owed(account) == (0, 0)


def test_a_prefix_is_repaid_with_its_share_of_the_bytes(ledger: Ledger) -> None:
    account = ledger.open("a")
    loan = account.lend(list("abc"), items=3, nbytes=100)
    loan.settle(1)
    assert (loan.items, loan.bytes, owed(account)) == (2, 67, (2, 67))
    loan.settle(1, Outcome.ACKED, nbytes=60)
    assert (loan.items, loan.bytes, owed(account)) == (1, 7, (1, 7))
    loan.settle(1)
    assert owed(account) == (0, 0)
    assert ledger.statistics().repaid_items["acked"] == 1
    assert ledger.statistics().repaid_bytes["acked"] == 60


def test_no_more_is_repaid_than_is_owed(ledger: Ledger) -> None:
    account = ledger.open("a")
    loan = account.lend("", items=3, nbytes=10)
    for n in (0, -1, 4):
        with pytest.raises(SettledError, match=f"cannot settle {n} of 3 outstanding items"):
            loan.settle(n)
    for nbytes in (-1, 11):
        with pytest.raises(SettledError, match=f"cannot settle {nbytes} of 10 outstanding bytes"):
            loan.settle(1, nbytes=nbytes)
    assert owed(account) == (3, 10)
    loan.settle()
    with pytest.raises(SettledError, match="has ended; it cannot be settled again"):
        loan.settle()
    with pytest.raises(SettledError, match="cannot settle 1 of 0"):
        loan.settle(1)
    assert owed(account) == (0, 0)


@pytest.mark.rule(8)
@given(
    items=st.integers(1, 50),
    nbytes=st.integers(0, 1000),
    cuts=st.lists(st.tuples(st.booleans(), st.integers(1, 20)), max_size=20),
)
def test_however_it_is_cut_the_sum_stays(
    items: int, nbytes: int, cuts: list[tuple[bool, int]]
) -> None:
    """Rule 8: splitting conserves what is owed, settling in parts repays it exactly."""
    ledger = Ledger()
    account = ledger.open("a")
    loans = [account.lend(list(range(items)), items=items, nbytes=nbytes)]
    order: list[int] = []
    for split, n in cuts:
        last = loans[-1]
        if split and n < last.items:
            before = (last.items, last.bytes)
            part = last.split(n)
            assert (part.items + last.items, part.bytes + last.bytes) == before
            assert (len(part.item), len(last.item)) == (part.items, last.items)
            loans.insert(-1, part)
        assert sum(x.items for x in loans) == account.debt_items
        assert sum(x.bytes for x in loans) == account.debt_bytes
        assert all(x.bytes >= 0 for x in loans)
        ledger.audit()
    for loan in loans:
        order += loan.item
        while loan.items:
            loan.settle(min(3, loan.items))
            ledger.audit()
    assert order == list(range(items))
    assert owed(account) == (0, 0)


def test_a_part_is_a_loan_of_its_own(ledger: Ledger) -> None:
    account = ledger.open("a")
    loan = account.lend(list("abcd"), items=4, nbytes=40)
    part = loan.split(1, nbytes=25)
    assert (part.item, part.items, part.bytes) == (["a"], 1, 25)
    assert (loan.item, loan.items, loan.bytes) == (["b", "c", "d"], 3, 15)
    assert part.opened == loan.opened
    assert part.account is account
    assert owed(account) == (4, 40)
    loan.settle()
    ledger.audit()
    part.settle()


@pytest.mark.rule(8)
def test_a_part_of_what_a_holder_has_is_in_the_books(ledger: Ledger) -> None:
    """Rule 8: between being taken out and being put somewhere, too."""
    account = ledger.open("a")
    here, there = Box(ledger, "here"), Box(ledger, "there")
    here.put(account.lend([1, 2, 3], items=3, nbytes=30))
    part = here.queue[0].split(2)
    assert part.holder is here
    assert {(row.holder, row.items) for row in ledger.matrix()} == {("here", 1), ("(loose)", 2)}
    ledger.audit()
    there.put(part)
    assert {(row.holder, row.items) for row in ledger.matrix()} == {("here", 1), ("there", 2)}
    ledger.audit()
    here.work()
    there.work(2)


def test_what_cannot_be_split(ledger: Ledger) -> None:
    account = ledger.open("a")
    batch = account.lend(["three events in one"], items=3)
    with pytest.raises(TypeError, match="one entry for each item"):
        batch.split(1)
    other = account.lend("text", items=4)
    with pytest.raises(TypeError):
        other.split(1)
    loan = account.lend([1, 2, 3], items=3, nbytes=24)
    for n in (0, -1, 3, 4):
        with pytest.raises(SettledError, match=f"cannot split {n} items off a loan of 3"):
            loan.split(n)
    for nbytes in (-1, 25):
        with pytest.raises(SettledError, match=f"cannot split {nbytes} bytes off a loan of 24"):
            loan.split(1, nbytes=nbytes)
    assert (loan.item, loan.items, loan.bytes) == ([1, 2, 3], 3, 24)
    for each in (batch, other, loan):
        each.settle()


# -- worked on ------------------------------------------------------------------------------------


@pytest.mark.rule(7)
def test_the_end_of_the_block_repays(ledger: Ledger) -> None:
    """Rule 7: finished, not forwarded."""
    account = ledger.open("a")
    with account.lend(["x"]) as events:
        assert events == ["x"]
        assert account.debt_items == 1
    assert account.debt_items == 0
    assert ledger.statistics().repaid_items["delivered"] == 1


@pytest.mark.rule(4)
def test_a_block_that_raises_rejects(ledger: Ledger) -> None:
    """Rule 4."""
    account = ledger.open("a")
    with pytest.raises(LookupError), account.lend("", items=2):
        raise LookupError
    assert ledger.statistics().repaid_items["rejected"] == 2
    assert account.debt_items == 0


@pytest.mark.rule(4)
async def test_a_block_that_is_cancelled_says_so(ledger: Ledger) -> None:
    """Rule 4."""
    account = ledger.open("a")
    with anyio.move_on_after(0), account.lend(""):
        await anyio.sleep_forever()
    assert ledger.statistics().repaid_items["cancelled"] == 1
    assert not ledger.inside


async def test_what_was_settled_in_the_block_is_not_repaid_again(ledger: Ledger) -> None:
    account = ledger.open("a")
    loan = account.lend("", items=3)
    with loan:
        loan.settle(1, Outcome.ACKED)
    assert ledger.statistics().repaid_items["delivered"] == 2
    loan = account.lend("")
    with loan:
        loan.settle(outcome=Outcome.EXPIRED)
    assert ledger.statistics().repaid_items["expired"] == 1
    assert not ledger.inside


def test_a_loan_that_has_ended_cannot_be_used(ledger: Ledger) -> None:
    loan = ledger.open("a").lend("")
    loan.settle()
    with pytest.raises(SettledError, match="has ended"), loan:
        pass
    with pytest.raises(SettledError, match="nothing more can be caused by it"):
        loan.turn()


@pytest.mark.rule(2)
def test_what_is_sent_while_handling_is_charged_to_the_cause(ledger: Ledger) -> None:
    """Rule 2: and the turn borrows nothing for its input, which the loan covers."""
    account = ledger.open("a")
    here, there = Box(ledger, "here"), Box(ledger, "there")
    publish(account, [here], nbytes=5)
    loan = here.take()
    with loan:
        with loan.turn() as turn:
            assert owed(account) == (1, 5)
            turn.send(there, b"answer")
        assert owed(account) == (2, 11)
        assert there.queue[0].account is account
    assert owed(account) == (1, 6)
    there.work()


# -- forgotten (rule 12) --------------------------------------------------------------------------


def test_a_leak_is_seen_at_the_next_audit(ledger: Ledger) -> None:
    account = ledger.open("a")
    loan = account.lend("", items=2, nbytes=20)
    loan.settle(1)
    del loan
    assert owed(account) == (1, 10)  # a finalizer only leaves a note
    with pytest.warns(ResourceWarning, match=r"loan of a \(1 items, 10 bytes\), before any holder"):
        ledger.audit()
    assert owed(account) == (0, 0)
    totals = ledger.statistics()
    assert (totals.leaked_loans, totals.repaid_items["leaked"]) == (1, 1)
    assert totals.repaid_bytes["leaked"] == 10
    ledger.audit()  # once


def test_a_leak_is_seen_at_the_next_turn(ledger: Ledger) -> None:
    account = ledger.open("a")
    box = Box(ledger, "box")
    publish(account, [box])
    box.take()
    with pytest.warns(ResourceWarning, match="held by box, was never settled; use it as a context"):
        publish(account, [])
    assert account.debt_items == 0


def test_a_leak_from_a_holder_that_has_a_length(ledger: Ledger) -> None:
    class Sized(Box):
        def __len__(self) -> int:
            return len(self.queue)

    account = ledger.open("a")
    box = Sized(ledger, "sized")
    publish(account, [box])
    box.take()
    assert [gone and gone.name for _, _, _, gone, *_ in ledger.leaked] == ["sized"]
    with pytest.warns(ResourceWarning, match="held by sized"):
        ledger.audit()


def test_a_settled_loan_leaks_nothing(ledger: Ledger) -> None:
    account = ledger.open("a")
    with account.lend(""):
        pass
    loan = account.lend("")
    loan.settle()
    del loan
    assert not ledger.leaked
    ledger.audit()


def test_a_forgotten_holder_is_found_through_its_loans() -> None:
    """The ledger does not keep a holder alive; its loans and it keep each other until the gc."""
    ledger = Ledger()
    account = ledger.open("a")
    box = Box(ledger, "box")
    publish(account, [box], items=4)
    gone = weakref.ref(box)
    del box
    gc.collect()
    assert gone() is None
    with pytest.warns(ResourceWarning, match=r"4 items, 0 bytes.*held by box"):
        ledger.audit()
    assert account.debt_items == 0
    assert ledger.statistics().leaked_loans == 1


def test_leaks_in_other_threads_only_leave_a_note() -> None:
    """Finalizers run in the middle of anything, in any thread: the books are not touched there."""
    ledger = Ledger()
    account = ledger.open("a")
    n, threads = 200, 4
    loans = [[account.lend("", nbytes=1) for _ in range(n)] for _ in range(threads)]
    start = threading.Barrier(threads + 1)

    def forget(mine: list[LoanedItem[str]]) -> None:
        start.wait()
        while mine:
            mine.pop()

    workers = [threading.Thread(target=forget, args=(mine,)) for mine in loans]
    del loans
    for worker in workers:
        worker.start()
    start.wait()
    for _ in range(1000):  # meanwhile, here
        account.borrow(1, 1)
        account.repay(1, 1)
    for worker in workers:
        worker.join()
    assert owed(account) == (n * threads, n * threads)
    with pytest.warns(ResourceWarning) as warned:
        ledger.audit()
    assert len(warned) == n * threads
    assert owed(account) == (0, 0)
    assert ledger.leaked_loans == n * threads


@pytest.mark.rule(12)
def test_loans_collected_in_the_middle_of_a_commit_wait_for_the_next(ledger: Ledger) -> None:
    """Rule 12: the deque is drained at the beginning of a turn."""
    account = ledger.open("a")
    box = Box(ledger, "box")
    forgotten: list[Any] = [account.lend("")]
    with account.turn() as turn:
        turn.act(lambda _: forgotten.clear())
        turn.send(box, b"")
    assert account.debt_items == 2
    with pytest.warns(ResourceWarning):
        publish(account, [box])
    assert account.debt_items == 2
    box.work(2)


@pytest.mark.rule(6, 12)
async def test_a_leak_does_not_keep_readers_waiting(ledger: Ledger) -> None:
    """Rules 6 and 12."""
    account = ledger.open("a", limit=Limit(items=1, low_items=0))
    loans = [account.lend("", items=5)]
    bystander = ledger.open("b")
    went_on = False

    async def reader() -> None:
        nonlocal went_on
        await account.ensure_clear_funds()
        went_on = True

    async with open_nursery() as nursery:
        nursery.start_soon(reader)
        await anyio.wait_all_tasks_blocked()
        loans.clear()
        with pytest.warns(ResourceWarning), bystander.turn():
            pass
    assert went_on


def test_an_outcome_that_is_none_repays_nothing(ledger: Ledger) -> None:
    account = ledger.open("a")
    loan = account.lend("", items=2, nbytes=10)
    for outcome in ("delivered", 0, None):
        with pytest.raises(TypeError, match="is one of Outcome's"):
            loan.settle(outcome=outcome)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="is one of Outcome's"):
            loan.transfer(ledger.open("b"), outcome)  # type: ignore[arg-type]
    assert (loan.items, loan.bytes) == owed(account) == (2, 10)
    ledger.audit()
    loan.settle()


def test_a_loan_stays_in_its_ledger(ledger: Ledger) -> None:
    account = ledger.open("a")
    loan = account.lend("", items=2, nbytes=10)
    other = Ledger()
    with pytest.raises(ValueError, match="of another ledger"):
        loan.transfer(other.open("b"))
    assert owed(account) == (2, 10)
    ledger.audit()
    other.audit()
    loan.settle()


@pytest.mark.parametrize("amounts", [(float("nan"), 1), (1, float("nan")), (0, 1), (1, -1)])
def test_what_no_loan_can_cover(ledger: Ledger, amounts: tuple[int, int]) -> None:
    account = ledger.open("a")
    with pytest.raises(ValueError, match="at least one item"):
        account.lend("", items=amounts[0], nbytes=amounts[1])
    assert owed(account) == (0, 0)


# -- several at once -------------------------------------------------------------------------------


@pytest.mark.rule(7, 8)
@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from("xy"), st.integers(1, 3), st.booleans()),
        max_size=12,
    ),
    st.booleans(),
)
def test_whole_loans_are_settled_together_as_one_by_one(
    made: list[tuple[str, str, int, bool]], recorded: bool
) -> None:
    books: list[object] = []
    for together in (True, False):
        now = [0.0]
        ledger = Ledger(clock=lambda now=now: now[0])  # type: ignore[misc]
        recording = Recording()
        if recorded:
            ledger.recorder = recording
        accounts = {name: ledger.open(name) for name in "ab"}
        boxes = {name: Box(ledger, name) for name in "xy"}
        loans: list[LoanedItem[Any]] = []
        for account, box, items, later in made:
            now[0] += later
            loan = accounts[account].lend([b"12"] * items, items=items, nbytes=2 * items)
            loan.held_by(boxes[box])
            loans.append(loan)
        now[0] += 3.0
        if together:
            settle_whole(loans, Outcome.ACKED)
        else:
            for loan in loans:
                loan.settle(outcome=Outcome.ACKED)
        ledger.audit()
        assert not any(loan.items or loan.bytes for loan in loans)
        books.append(
            (
                [owed(account) for account in accounts.values()],
                list(ledger.repaid_items),
                list(ledger.repaid_bytes),
                [(list(box.ages.counts), box.progressed_at) for box in boxes.values()],
                len(recording.settlements),
            )
        )
    assert books[0] == books[1]
