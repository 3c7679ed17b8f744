"""Turns: committed whole or not at all, children before parent, and the run that does it all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearfunds.accounts import (
    Account,
    AccountStatistics,
    ClosedAccountError,
    Holding,
    Ledger,
    LedgerStatistics,
    Limit,
    LoanedItem,
    Outcome,
    RateLimit,
    SettledError,
    Turn,
    borrow_run,
    commit_run,
    pass_run,
)
from tests.accounts.conftest import Box, boxes, owed, publish
from tests.loops import open_nursery

# -- what a root turn charges (rule 3) ------------------------------------------------------------


@pytest.mark.rule(1, 3)
def test_the_input_is_owed_while_the_turn_is_open(ledger: Ledger) -> None:
    """Rules 1 and 3: the holder is the router."""
    account = ledger.open("a")
    with account.turn(b"payload") as turn:
        assert owed(account) == (1, 7)
        (row,) = ledger.matrix()
        assert (row.account, row.holder, row.items, row.bytes) == ("a", "router", 1, 7)
        assert "a: open, 0 actions" in repr(turn)
        ledger.audit()
    assert owed(account) == (0, 0)
    assert not ledger.matrix()
    assert not ledger.turns
    assert "ended" in repr(turn)


@pytest.mark.rule(1)
@pytest.mark.parametrize(("items", "nbytes"), [(0, 0), (0, 5), (-1, 5), (1, -1)])
def test_a_root_turn_is_never_free(ledger: Ledger, items: int, nbytes: int) -> None:
    """Rule 1: there is no way to send without an account."""
    with pytest.raises(ValueError, match=f"at least one item .*, not {items}, {nbytes}"):
        ledger.open("a").turn(items=items, nbytes=nbytes)


@pytest.mark.rule(3)
def test_children_are_borrowed_before_the_input_is_repaid(ledger: Ledger) -> None:
    """Rule 3: the debt never touches zero in the middle of a chain."""
    account = ledger.open("a")
    lowest: list[int] = []

    class Watcher(Box):
        def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
            super().hold(account, item, items, nbytes, now)
            lowest.append(account.debt_items)

    here, there = Watcher(ledger, "here"), Watcher(ledger, "there")
    publish(account, [here])
    for _ in range(5):
        loan = here.take()
        with loan, loan.turn() as turn:
            turn.send(there, b"")
        here, there = there, here
    assert lowest == [2] * 6
    here.work()


def test_a_turn_counts_items_and_bytes(ledger: Ledger) -> None:
    account = ledger.open("a")
    box = Box(ledger, "b")
    with account.turn(items=3, nbytes=30) as turn:
        turn.send(box, b"xx")
        turn.send(box, b"yyy", items=2)
        turn.send(box, b"zzz", nbytes=100)
        assert (owed(account), box.items) == ((3, 30), 0)  # only noted so far
    assert owed(account) == (4, 105)
    assert box.queue[0].item == [b"xx", b"yyy", b"zzz"]
    assert (account.peak_items, account.peak_bytes) == (7, 135)
    box.work(4)


def test_each_holder_is_told_once_when_all_is_done(ledger: Ledger) -> None:
    account = ledger.open("a")
    first, second = boxes(ledger, 2)
    with account.turn() as turn:
        for holder in (first, second, first, first):
            turn.send(holder, b"")
    assert (first.heard, second.heard) == (1, 1)
    assert (first.items, second.items) == (3, 1)
    first.work(3)
    second.work()


class Hub:
    """A router that delivers everything to everybody."""

    def __init__(self, holders: list[Box]) -> None:
        self.holders = holders

    def route(self, turn: Turn, event: Any, nbytes: int | None) -> None:
        for holder in self.holders:
            turn.deliver(holder, event, 1, 10 if nbytes is None else nbytes)


def test_publishing_asks_the_router_at_the_commit(ledger: Ledger) -> None:
    account = ledger.open("a")
    hub = Hub(boxes(ledger, 2))
    with account.turn() as turn:
        turn.publish(hub, "event")
        turn.publish(hub, "event", nbytes=5)
        hub.holders.append(Box(ledger, "late"))
    assert [holder.items for holder in hub.holders] == [2, 2, 2]
    assert owed(account) == (6, 45)
    for holder in hub.holders:
        holder.work(2)


# -- all or nothing (rule 4) ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad"),
        KeyboardInterrupt(),
        ExceptionGroup("both", [ValueError(), TypeError()]),
    ],
)
def test_a_turn_that_raises_sends_nothing(ledger: Ledger, error: BaseException) -> None:
    account = ledger.open("a")
    box = Box(ledger, "b")

    def handle() -> None:
        with account.turn(b"123") as turn:
            turn.send(box, b"")
            raise error

    with pytest.raises(type(error)):
        handle()
    assert (box.items, box.heard) == (0, 0)
    assert owed(account) == (0, 0)
    assert ledger.repaid_items[Outcome.REJECTED] == 1
    assert ledger.repaid_bytes[Outcome.REJECTED] == 3
    assert not ledger.turns


async def test_a_turn_that_is_cancelled_sends_nothing(ledger: Ledger) -> None:
    account = ledger.open("a")
    box = Box(ledger, "b")
    with anyio.CancelScope() as scope, account.turn() as turn:
        turn.send(box, b"")
        scope.cancel()
        await anyio.lowlevel.checkpoint()
    assert (box.items, owed(account)) == (0, (0, 0))
    assert ledger.repaid_items[Outcome.CANCELLED] == 1
    assert not ledger.inside


def test_an_action_that_raises_undoes_what_was_done(ledger: Ledger) -> None:
    account = ledger.open("a")
    box = Box(ledger, "b")
    state: list[str] = []

    def put(name: str) -> Callable[[Turn], None]:
        def action(turn: Turn) -> None:
            state.append(name)
            turn.on_undo(lambda: state.append(f"not {name}"))
            turn.deliver(box, name, 1, 1)

        return action

    def fail(_: Turn) -> None:
        raise LookupError

    def handle() -> None:
        with account.turn() as turn:
            for action in (put("a"), put("b"), fail, put("c")):
                turn.act(action)

    with pytest.raises(LookupError):
        handle()
    assert state == ["a", "b", "not b", "not a"]
    assert (box.items, box.heard, owed(account)) == (0, 0, (0, 0))
    assert ledger.repaid_items[Outcome.REJECTED] == 1


def test_all_is_undone_even_if_a_part_of_that_fails(ledger: Ledger) -> None:
    account = ledger.open("a")
    undone: list[str] = []

    def act(turn: Turn) -> None:
        turn.on_undo(lambda: undone.append("first"))
        turn.on_undo(lambda: undone[99])
        turn.on_undo(lambda: undone.append("last"))
        raise ValueError("the cause")

    def handle() -> None:
        with account.turn() as turn:
            turn.act(act)

    with pytest.RaisesGroup(IndexError) as caught:
        handle()
    assert isinstance(caught.value.__context__, ValueError)
    assert undone == ["last", "first"]
    assert not ledger.turns


@pytest.mark.rule(4)
def test_the_loan_that_was_handled_ends_with_its_turn(ledger: Ledger) -> None:
    """Rule 4: the loan is repaid as `rejected`, and nothing is left of what its turn noted."""
    account = ledger.open("a")
    here, there = boxes(ledger, 2)
    publish(account, [here])

    def fail(_: Turn) -> None:
        raise LookupError

    def work(loan: LoanedItem[Any]) -> None:
        with loan:
            with loan.turn() as turn:
                turn.send(there, b"before")
            with loan.turn() as turn:
                turn.send(there, b"during")
                turn.act(fail)

    with pytest.raises(LookupError):
        work(here.take())
    assert there.queue[0].item == [b"before"]
    assert ledger.repaid_items[Outcome.REJECTED] == 1
    assert owed(account) == (1, 0 + 6)
    there.work()


@pytest.mark.rule(4)
async def test_a_turn_whose_account_is_gone_by_its_end_sends_nothing(ledger: Ledger) -> None:
    """Rule 4: the loan was settled inside its turn, and nobody is left to charge."""
    account = ledger.open("a")
    here, there = boxes(ledger, 2)
    publish(account, [here])
    account.close()
    loan = here.take()
    undone: list[str] = []

    def handle() -> None:
        with loan.turn() as turn:
            turn.act(lambda turn: turn.on_undo(lambda: undone.append("undone")))
            turn.send(there, b"")
            loan.settle()

    with pytest.raises(ClosedAccountError):
        handle()
    assert undone == ["undone"]
    assert not there.queue
    assert not ledger.turns
    assert not ledger.inside
    with ledger.open("a") as again:
        await again.ensure_clear_funds()


async def test_a_holder_that_breaks_its_word_leaves_no_turn_open(ledger: Ledger) -> None:
    """`Holder.hold` must not raise. If it does, nothing is owed for it, and others have theirs."""

    class Broken(Box):
        def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
            raise NotImplementedError

    account = ledger.open("a", limit=Limit(items=1))
    broken, box = Broken(ledger, "broken"), Box(ledger, "box")
    with pytest.raises(NotImplementedError):
        publish(account, [broken, box])
    assert owed(account) == (1, len(box.queue[0].item[0]))
    assert not ledger.turns
    with pytest.raises(NotImplementedError):
        commit_run(account, [broken, box], b"run", 1, 3)
    with pytest.raises(ExceptionGroup, match="several holders"):
        commit_run(account, [broken, broken], b"run", 1, 3)
    ledger.audit()
    assert sum(loan.items for loan in box.queue) == account.debt_items == 2
    while box.queue:
        box.take().settle()
    assert owed(account) == (0, 0)
    await account.ensure_clear_funds()


def test_what_cannot_be_sent_is_refused_and_nothing_is_owed(ledger: Ledger) -> None:
    account, box = ledger.open("a"), Box(ledger, "box")
    for holder, amounts, error in (
        (print, {}, TypeError),
        ("box", {}, TypeError),
        (box, {"items": 0}, ValueError),
        (box, {"items": -3}, ValueError),
        (box, {"nbytes": -1}, ValueError),
        (box, {"nbytes": float("nan")}, ValueError),
    ):
        with pytest.raises(error), account.turn() as turn:
            turn.send(holder, b"x", **amounts)  # type: ignore[arg-type]
        assert owed(account) == (0, 0)
    with pytest.raises(ValueError, match="not -1"), account.turn() as turn:
        turn.publish(None, b"x", nbytes=-1)  # type: ignore[arg-type]
    assert owed(account) == (0, 0)
    assert not box.queue
    ledger.audit()


@pytest.mark.rule(4)
def test_a_malformed_57th_leaves_the_56_before_it(ledger: Ledger) -> None:
    """Rule 4: a turn is one packet."""
    account = ledger.open("a")
    box = Box(ledger, "b")

    def parse(packet: int) -> bytes:
        if packet == 57:
            raise ValueError(packet)
        return b"%d" % packet

    def read() -> None:
        for packet in range(1, 100):
            with account.turn() as turn:
                turn.send(box, parse(packet))

    with pytest.raises(ValueError, match="57"):
        read()
    assert len(box.queue[0].item) == account.debt_items == 56
    box.work(56)


def test_turns_may_be_nested(ledger: Ledger) -> None:
    """Each commits for itself: the inner one stands when the outer one fails."""
    a, b = ledger.open("a"), ledger.open("b")
    box = Box(ledger, "box")

    def handle() -> None:
        with a.turn() as outer:
            outer.send(box, b"outer")
            with b.turn() as inner:
                inner.send(box, b"inner")
                assert (a.debt_items, b.debt_items) == (1, 1)
                ledger.audit()
            raise ValueError("outer")

    with pytest.raises(ValueError, match="outer"):
        handle()
    assert [loan.item for loan in box.queue] == [[b"inner"]]
    assert (a.debt_items, b.debt_items) == (0, 1)
    box.work()


def test_a_turn_has_one_use(ledger: Ledger) -> None:
    account = ledger.open("a")
    box = Box(ledger, "b")
    turn = account.turn()
    with pytest.raises(SettledError, match="is not open; send from inside its `with` block"):
        turn.send(box, b"")
    with turn, pytest.raises(SettledError, match="cannot be entered again"), turn:
        pass
    with pytest.raises(SettledError, match="cannot be entered again"), turn:
        pass
    with pytest.raises(SettledError, match="is not open"):
        turn.publish(Hub([box]), b"")
    assert not box.queue


@pytest.mark.rule(7)
def test_only_an_action_delivers(ledger: Ledger) -> None:
    """Rule 7: after the end of the turn it would be lost in silence."""
    account = ledger.open("a")
    box = Box(ledger, "b")
    with account.turn() as turn, pytest.raises(SettledError, match=r"open, 0 .* is not committing"):
        turn.deliver(box, b"", 1, 0)
    with pytest.raises(SettledError, match="ended, 0 actions> is not committing"):
        turn.deliver(box, b"", 1, 0)
    assert not box.queue


def test_an_action_delivers_and_notes_nothing_more(ledger: Ledger) -> None:
    account = ledger.open("a")
    box = Box(ledger, "b")
    with pytest.raises(SettledError, match="committing"), account.turn() as turn:
        turn.act(lambda late: late.send(box, b""))
    assert not box.queue


# -- the whole in one step ------------------------------------------------------------------------


def books(ledger: Ledger) -> list[Any]:
    """All that the ledger says of accounts and holders, but for time."""
    values: list[AccountStatistics | Holding | LedgerStatistics] = [
        *ledger.account_statistics(),
        *ledger.matrix(),
        ledger.statistics(),
    ]
    return [
        {
            name: amount
            for name, amount in attrs.asdict(value).items()
            if name != "blame" and not name.endswith("seconds")
        }
        for value in values
    ]


runs = st.lists(
    st.tuples(
        st.integers(0, 1),  # whose
        st.sets(st.integers(0, 3)),  # to which boxes
        st.integers(1, 50),  # items
        st.integers(0, 30_000),  # bytes
        st.integers(0, 3),  # how many loans the first box finishes afterwards
    ),
    max_size=12,
)


@pytest.mark.rule(3, 8)
@given(runs=runs)
def test_a_run_has_the_same_books_as_a_turn(
    runs: list[tuple[int, set[int], int, int, int]],
) -> None:
    """Rules 3 and 8: the same debts, peaks, totals, loans and joins."""
    ends: list[Any] = []
    for in_one_step in (True, False):
        ledger = Ledger()
        server = ledger.open("server")
        accounts = [ledger.open(name, parent=server) for name in "ab"]
        peers = boxes(ledger, 4)
        for who, which, items, nbytes, work in runs:
            account, holders = accounts[who], [peers[i] for i in sorted(which)]
            if in_one_step:
                commit_run(account, holders, b"run", items, nbytes)
                for holder in holders:
                    holder.ready()
            else:
                with account.turn(items=items, nbytes=nbytes) as turn:
                    for holder in holders:
                        turn.send(holder, b"run", items=items, nbytes=nbytes)
            ledger.audit()
            for _ in range(min(work, len(peers[0].queue))):
                peers[0].queue.popleft().settle()
        held = [[(x.account.name, x.items, x.bytes, x.item) for x in p.queue] for p in peers]
        ends.append((books(ledger), held, [p.heard for p in peers]))
        for peer in peers:
            peer.close()
        ledger.audit()
    assert ends[0] == ends[1]


@pytest.mark.rule(3)
@given(
    before=st.integers(0, 30),
    runs=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9), st.integers(0, 500)), max_size=8),
    limit=st.sampled_from([None, 5, 20]),
    rate=st.sampled_from([None, 7]),
    shared=st.booleans(),
)
def test_a_run_that_is_delivered_at_once_has_the_same_books(
    before: int,
    runs: list[tuple[int, int, int]],
    limit: int | None,
    rate: int | None,
    shared: bool,
) -> None:
    """Rule 3: debts, peaks, totals, gates, tokens and ages are those of borrowing and repaying."""
    ends: list[Any] = []
    for in_one_walk in (True, False):
        ledger = Ledger(clock=lambda: 0.0)
        server = ledger.open("server", limit=Limit(items=limit, low_items=limit and 1))
        account = ledger.open("a", parent=server)
        account.rate = None if rate is None else RateLimit(items_per_s=rate)
        server.shared = shared
        box = Box(ledger, "box")
        with account.lend("", items=before or 1):
            account.funds_are_clear()  # closes the gate of one that is shared, if it is over
            for copies, items, nbytes in runs:
                if in_one_walk:
                    pass_run(account, items, nbytes, copies, box if copies else None)
                else:
                    borrow_run(account, items, nbytes, copies)
                    if copies:
                        box.ages.counts[0] += copies * items
                        account.repay(copies * items, copies * nbytes, Outcome.DELIVERED, box)
            ends.append((books(ledger), account.room(), server.state, list(box.ages.counts)))
        ledger.audit()
    assert ends[0] == ends[1]


def test_a_run_that_nobody_wants_is_repaid(ledger: Ledger) -> None:
    account = ledger.open("a")
    commit_run(account, [], b"", 5, 100)
    assert (owed(account), account.peak_items, account.peak_bytes) == ((0, 0), 5, 100)
    assert ledger.statistics().repaid_items["delivered"] == 5


def test_a_run_of_a_closed_account_changes_nothing(ledger: Ledger) -> None:
    account = ledger.open("a")
    account.close()
    box = Box(ledger, "b")
    with pytest.raises(ClosedAccountError):
        commit_run(account, [box], b"", 1, 1)
    assert not box.queue


async def test_a_reader_woken_by_a_commit_runs_after_it(ledger: Ledger) -> None:
    """A commit does not await: nobody sees the middle of one."""
    account = ledger.open("a", limit=Limit(items=2, low_items=1))
    seen: list[tuple[int, int]] = []
    gone = Box(ledger, "gone")
    gone.close()
    box = Box(ledger, "b")
    loan: LoanedItem[Any] = account.lend("", items=3)

    async def reader() -> None:
        await account.ensure_clear_funds()
        seen.append((account.debt_items, box.items))

    async with open_nursery() as nursery:
        nursery.start_soon(reader)
        await anyio.wait_all_tasks_blocked()
        loan.settle(2)  # wakes
        with account.turn() as turn:
            turn.send(gone, b"")  # repaid in the middle of the commit
            turn.send(box, b"")
    # It looked again after the commit and found two owed, which its limit allows.
    assert seen == [(2, 1)]
    loan.settle()
    box.work()
