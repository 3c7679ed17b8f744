"""Rule 8: the books balance after every step of whatever may happen.

A machine does to a ledger what a server does, in any order, and keeps books of its own, in the
plainest way there is: a slip of paper for each loan, and for each account two sums that it adds to
and takes from by the rules. After each step the audit has to find nothing, and both must agree.
"""

from __future__ import annotations

import gc
import warnings
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from clearfunds.accounts import (
    JOIN_BYTES,
    NO_LIMIT,
    Account,
    ClosedAccountError,
    Ledger,
    Limit,
    LoanedItem,
    NotALoanError,
    Outcome,
    SettledError,
    Turn,
    commit_run,
)
from tests.accounts.conftest import Box, Recording

pytestmark = pytest.mark.rule(8)


#: Who is below whom (rule 13).
PARENTS: dict[str, str | None] = {
    "server": None,
    "tenant": "server",
    "a": "tenant",
    "b": "tenant",
    "c": "server",
    "d": None,
}

names = st.sampled_from(list(PARENTS))
limits = st.sampled_from(
    [NO_LIMIT, Limit(), Limit(items=3), Limit(items=None, bytes=500), Limit(items=9, low_items=9)]
)
outcomes = st.sampled_from([o for o in Outcome if o is not Outcome.LEAKED])
counts = st.integers(1, 5)
sizes = st.sampled_from([0, 1, 7, 100, 40_000])
picks = st.integers(0, 1 << 16)
deliveries = st.lists(st.tuples(picks, counts, sizes), max_size=4)
ends = st.sampled_from(["well", "well", "raise", "action raises"])


class HandlerError(Exception):
    """What handlers raise here."""


@attrs.define(eq=False)
class Paper:
    """A slip for one loan: who owes how much. The loan itself is beside it to be acted upon."""

    name: str
    items: int
    bytes: int
    in_hand: LoanedItem[list[Any]] | None = None
    """None while it is in a box's queue."""

    @property
    def loan(self) -> LoanedItem[list[Any]]:
        assert self.in_hand is not None
        return self.in_hand


@attrs.define(eq=False)
class Shelf:
    """A box, and the slips of what is in its queue and of what was taken out of it."""

    box: Box
    papers: list[Paper] = attrs.field(factory=list[Paper])
    taken: list[Paper] = attrs.field(factory=list[Paper])
    closed: bool = False


class OwnBooks:
    """What each account should owe, kept independently."""

    def __init__(self) -> None:
        self.opens: dict[str, int] = {}  # of the names that are known
        self.owes: dict[str, tuple[int, int]] = {}
        self.peaks: dict[str, tuple[int, int]] = {}
        self.borrowed = (0, 0)
        self.repaid: dict[Outcome, tuple[int, int]] = defaultdict(lambda: (0, 0))

    def lineage(self, name: str) -> Iterator[str]:
        above: str | None = name
        while above is not None:
            yield above
            above = PARENTS[above]

    def open(self, name: str) -> None:
        self.opens[name] = self.opens.get(name, 0) + 1
        self.owes.setdefault(name, (0, 0))
        self.peaks.setdefault(name, (0, 0))

    def close(self, name: str) -> None:
        self.opens[name] = max(0, self.opens[name] - 1)
        self.forget()

    def may_send(self, name: str) -> bool:
        return bool(self.opens.get(name)) or self.owes.get(name, (0, 0)) != (0, 0)

    def borrow(self, name: str, items: int, nbytes: int) -> None:
        self.borrowed = (self.borrowed[0] + items, self.borrowed[1] + nbytes)
        for each in self.lineage(name):
            i, b = self.owes[each]
            self.owes[each] = i, b = i + items, b + nbytes
            self.peaks[each] = max(self.peaks[each][0], i), max(self.peaks[each][1], b)

    def repay(self, name: str, items: int, nbytes: int, outcome: Outcome) -> None:
        i, b = self.repaid[outcome]
        self.repaid[outcome] = i + items, b + nbytes
        for each in self.lineage(name):
            i, b = self.owes[each]
            self.owes[each] = i - items, b - nbytes
        self.forget()

    def forget(self) -> None:
        """Names are known while open, owing, or above another that is known (rule 14)."""
        while True:
            above = {PARENTS[name] for name in self.opens}
            gone = [n for n in self.opens if not self.may_send(n) and n not in above]
            if not gone:
                return
            for name in gone:
                del self.opens[name], self.owes[name], self.peaks[name]


class Books(RuleBasedStateMachine):
    """Accounts, turns, loans, holders, closes and forgotten loans, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.own = OwnBooks()
        self.accounts: dict[str, Account] = {}  # the last that was opened by each name
        self.limits: dict[str, Limit] = {}
        self.papers: list[Paper] = []  # loans in nobody's queue
        self.shelves = [Shelf(Box(self.ledger, f"box {i}")) for i in range(3)]
        self.made = 3
        self.leaks: list[Paper] = []  # forgotten, and not found yet
        self.recording: Recording | None = None

    # -- accounts -------------------------------------------------------------------------------

    @initialize(some=st.sets(names), recorded=st.booleans())
    def begin(self, some: set[str], recorded: bool) -> None:
        if recorded:
            self.ledger.recorder = self.recording = Recording()
        for name in sorted(some):
            self.open(name, None)

    @rule(name=names, limit=st.none() | limits)
    def open(self, name: str, limit: Limit | None) -> None:
        for each in reversed(list(self.own.lineage(name))):
            if each == name or not self.own.may_send(each):
                parent = PARENTS[each]
                above = None if parent is None else self.accounts[parent]
                was_known = each in self.own.opens
                account = self.ledger.open(each, parent=above)
                if limit is not None:
                    account.limit = limit
                assert was_known == (self.accounts.get(each) is account)
                self.accounts[each] = account
                self.own.open(each)
                if limit is not None or not was_known:
                    self.limits[each] = limit or Limit()

    @rule(name=names)
    def close(self, name: str) -> None:
        if name in self.accounts:
            self.accounts[name].close()
            if name in self.own.opens:
                self.own.close(name)

    @rule(name=names, limit=limits)
    def set_limit(self, name: str, limit: Limit) -> None:
        if name in self.own.opens:
            self.accounts[name].limit = limit
            self.limits[name] = limit

    # -- loans ----------------------------------------------------------------------------------

    @rule(name=names, items=counts, nbytes=sizes)
    def lend(self, name: str, items: int, nbytes: int) -> None:
        account = self.accounts.get(name)
        if account is None:
            return
        if not self.own.may_send(name):
            with pytest.raises(ClosedAccountError):
                account.lend([], items=items, nbytes=nbytes)
            return
        loan = account.lend(list(range(items)), items=items, nbytes=nbytes)
        self.own.borrow(name, items, nbytes)
        self.papers.append(Paper(name, items, nbytes, loan))

    def end(self, paper: Paper, outcome: Outcome) -> None:
        """Note on paper that all that is left of a loan is repaid."""
        self.own.repay(paper.name, paper.items, paper.bytes, outcome)
        paper.items = paper.bytes = 0
        paper.in_hand = None
        if paper in self.papers:
            self.papers.remove(paper)
        for shelf in self.shelves:
            if paper in shelf.taken:
                shelf.taken.remove(paper)

    @precondition(lambda self: self.papers)
    @rule(pick=picks, outcome=outcomes)
    def settle(self, pick: int, outcome: Outcome) -> None:
        paper = self.papers[pick % len(self.papers)]
        paper.loan.settle(outcome=outcome)
        self.end(paper, outcome)

    @precondition(lambda self: self.papers)
    @rule(pick=picks, n=st.integers(0, 6), outcome=outcomes, all_bytes=st.booleans())
    def settle_a_part(self, pick: int, n: int, outcome: Outcome, all_bytes: bool) -> None:
        paper = self.papers[pick % len(self.papers)]
        nbytes = paper.bytes if all_bytes else None
        if not 1 <= n <= paper.items:
            with pytest.raises(SettledError):
                paper.loan.settle(n, outcome, nbytes)
            return
        paper.loan.settle(n, outcome, nbytes)
        if n == paper.items:
            self.end(paper, outcome)
            return
        repaid = paper.bytes if all_bytes else paper.bytes * n // paper.items
        paper.items -= n
        paper.bytes -= repaid
        self.own.repay(paper.name, n, repaid, outcome)

    @precondition(lambda self: self.papers)
    @rule(pick=picks, n=counts)
    def split(self, pick: int, n: int) -> None:
        paper = self.papers[pick % len(self.papers)]
        if n >= paper.items or len(paper.loan.item) != paper.items:
            with pytest.raises((SettledError, TypeError)):
                paper.loan.split(n)
            return
        nbytes = paper.bytes * n // paper.items
        part = paper.loan.split(n)
        paper.items -= n
        paper.bytes -= nbytes
        self.papers.append(Paper(paper.name, n, nbytes, part))

    # -- holders --------------------------------------------------------------------------------

    def shelf(self, pick: int) -> Shelf:
        return self.shelves[pick % len(self.shelves)]

    @precondition(lambda self: self.papers)
    @rule(pick=picks, where=picks)
    def put(self, pick: int, where: int) -> None:
        paper, shelf = self.papers[pick % len(self.papers)], self.shelf(where)
        shelf.box.put(paper.loan)
        paper.in_hand = None
        self.papers.remove(paper)
        for other in self.shelves:
            if paper in other.taken:
                other.taken.remove(paper)
        if shelf.closed:
            self.end(paper, Outcome.DROPPED)
        else:
            shelf.papers.append(paper)

    @rule(where=picks, thing=st.sampled_from([None, b"", []]))
    def put_something_else(self, where: int, thing: Any) -> None:
        with pytest.raises(NotALoanError):
            self.shelf(where).box.put(thing)

    @rule(where=picks)
    def take(self, where: int) -> None:
        shelf = self.shelf(where)
        if shelf.papers:
            paper = shelf.papers.pop(0)
            paper.in_hand = loan = shelf.box.take()
            assert loan.account.name == paper.name
            assert (loan.items, loan.bytes) == (paper.items, paper.bytes)
            shelf.taken.append(paper)
            self.papers.append(paper)

    @rule(where=picks, give_up=st.booleans(), anew=st.booleans())
    def close_box(self, where: int, give_up: bool, anew: bool) -> None:
        """Either way with another in its place, or not: what is sent then is dropped."""
        shelf = self.shelf(where)
        if give_up:
            shelf.box.give_up("of no reason")
        else:
            shelf.box.close()
        for paper in shelf.papers + (shelf.taken if give_up else []):
            self.end(paper, Outcome.WRITTEN_OFF if give_up else Outcome.DROPPED)
        shelf.papers.clear()
        shelf.closed = True
        if anew and not shelf.taken:
            self.shelves[self.shelves.index(shelf)] = self.new_shelf()

    def new_shelf(self) -> Shelf:
        self.made += 1
        return Shelf(Box(self.ledger, f"box {self.made}"))

    @rule(where=picks)
    def forget_box(self, where: int) -> None:
        """The ledger does not keep a forgotten holder: its loans are found by the collector."""
        shelf = self.shelf(where)
        for paper in list(shelf.taken):
            paper.loan.settle()
            self.end(paper, Outcome.DELIVERED)
        # A part that was split off what it held still knows it.
        if shelf.papers and not any(p.loan.holder is shelf.box for p in self.papers):
            self.leaks += shelf.papers
            self.shelves[self.shelves.index(shelf)] = self.new_shelf()
            del shelf.box
            gc.collect()

    # -- turns ----------------------------------------------------------------------------------

    def note(self, turn: Turn, sends: list[tuple[int, int, int]], end: str) -> list[str]:
        """Note what a turn shall do; returns the state that its actions change."""
        state: list[str] = []

        def change(turn: Turn) -> None:
            state.append("changed")
            turn.on_undo(state.pop)

        for where, items, nbytes in sends:
            turn.act(change)
            turn.send(self.shelf(where).box, "event", items=items, nbytes=nbytes)
        if end == "raise":
            raise HandlerError
        if end == "action raises":
            turn.act(self.fail)
        return state

    @staticmethod
    def fail(_: Turn) -> None:
        raise HandlerError

    def sent(self, name: str, sends: list[tuple[int, int, int]]) -> None:
        """Note on paper what a turn that was committed has sent."""
        for where, items, nbytes in sends:
            self.own.borrow(name, items, nbytes)
            self.delivered(self.shelf(where), name, items, nbytes)

    def delivered(self, shelf: Shelf, name: str, items: int, nbytes: int) -> None:
        if shelf.closed:
            self.own.repay(name, items, nbytes, Outcome.DROPPED)
            return
        last = shelf.papers[-1] if shelf.papers else None
        if last is not None and last.name == name and last.bytes < JOIN_BYTES:
            last.items += items
            last.bytes += nbytes
        else:
            shelf.papers.append(Paper(name, items, nbytes))

    @rule(name=names, items=counts, nbytes=sizes, sends=deliveries, end=ends)
    def turn(
        self, name: str, items: int, nbytes: int, sends: list[tuple[int, int, int]], end: str
    ) -> None:
        if name not in self.accounts:
            return
        account = self.accounts[name]
        if not self.own.may_send(name):
            with pytest.raises(ClosedAccountError), account.turn():
                pass
            return
        state: list[str] = []
        try:
            with account.turn(items=items, nbytes=nbytes) as turn:
                state = self.note(turn, sends, end)
                self.own.borrow(name, items, nbytes)
                self.check()
        except HandlerError:
            assert end != "well"
            if end == "raise":
                self.own.borrow(name, items, nbytes)
            assert not state
            self.own.repay(name, items, nbytes, Outcome.REJECTED)
        else:
            assert end == "well"
            assert len(state) == len(sends)
            self.sent(name, sends)
            self.own.repay(name, items, nbytes, Outcome.DELIVERED)

    @rule(outer=names, inner=names, sends=deliveries, fails=st.booleans())
    def nested_turns(
        self, outer: str, inner: str, sends: list[tuple[int, int, int]], fails: bool
    ) -> None:
        if not (self.own.may_send(outer) and self.own.may_send(inner)):
            return
        try:
            with self.accounts[outer].turn(items=2) as turn:
                self.own.borrow(outer, 2, 0)
                self.note(turn, sends, "well")
                with self.accounts[inner].turn(nbytes=5) as within:
                    self.own.borrow(inner, 1, 5)
                    self.note(within, sends, "well")
                self.sent(inner, sends)
                self.own.repay(inner, 1, 5, Outcome.DELIVERED)
                self.check()
                if fails:
                    raise HandlerError
        except HandlerError:
            self.own.repay(outer, 2, 0, Outcome.REJECTED)
        else:
            self.sent(outer, sends)
            self.own.repay(outer, 2, 0, Outcome.DELIVERED)

    @precondition(lambda self: self.papers)
    @rule(pick=picks, sends=deliveries, then=deliveries, end=ends)
    def work(
        self,
        pick: int,
        sends: list[tuple[int, int, int]],
        then: list[tuple[int, int, int]],
        end: str,
    ) -> None:
        """Handle a loan: two turns, of which the second may fail (rules 2 to 4)."""
        paper = self.papers[pick % len(self.papers)]
        try:
            with paper.loan as events:
                assert events is paper.loan.item
                with paper.loan.turn() as turn:
                    self.note(turn, sends, "well")
                self.sent(paper.name, sends)
                with paper.loan.turn() as turn:
                    self.note(turn, then, end)
                self.sent(paper.name, then)
        except HandlerError:
            self.end(paper, Outcome.REJECTED)
        else:
            self.end(paper, Outcome.DELIVERED)

    @rule(name=names, where=st.sets(st.integers(0, 2)), items=counts, nbytes=sizes)
    def run(self, name: str, where: set[int], items: int, nbytes: int) -> None:
        if not self.own.may_send(name):
            return
        shelves = [self.shelves[i] for i in sorted(where)]
        commit_run(self.accounts[name], [shelf.box for shelf in shelves], "run", items, nbytes)
        each = len(shelves) + 1
        self.own.borrow(name, items * each, nbytes * each)
        for shelf in shelves:
            self.delivered(shelf, name, items, nbytes)
        self.own.repay(name, items, nbytes, Outcome.DELIVERED)

    # -- loans that nobody finishes -------------------------------------------------------------

    @precondition(lambda self: self.papers)
    @rule(pick=picks)
    def forget_loan(self, pick: int) -> None:
        paper = self.papers.pop(pick % len(self.papers))
        for shelf in self.shelves:
            if paper in shelf.taken:
                shelf.taken.remove(paper)
        paper.in_hand = None
        self.leaks.append(paper)

    @precondition(lambda self: self.papers)
    @rule(pick=picks, name=names)
    def forget_loan_and_go_on(self, pick: int, name: str) -> None:
        """The next turn finds it, before it borrows anything (rule 12)."""
        self.forget_loan(pick)
        if not self.own.may_send(name):
            return
        account = self.accounts[name]
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                with account.turn():
                    self.found_leaks(len(told))
                    self.own.borrow(name, 1, 0)
                    self.check()
            except ClosedAccountError:
                # That was all that this account still owed.
                self.found_leaks(len(told))
                assert not self.own.may_send(name)
            else:
                self.own.repay(name, 1, 0, Outcome.DELIVERED)

    def found_leaks(self, told: int) -> None:
        assert told == len(self.leaks)
        for paper in self.leaks:
            self.own.repay(paper.name, paper.items, paper.bytes, Outcome.LEAKED)
        self.leaks.clear()

    # -- after each step ------------------------------------------------------------------------

    @invariant()
    def the_books_balance(self) -> None:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            self.ledger.audit()
        assert all(issubclass(w.category, ResourceWarning) for w in told)
        self.found_leaks(len(told))
        assert not self.ledger.turns
        self.check()

    def own_room(self, name: str) -> tuple[int | None, int | None]:
        """What may still be borrowed, in items and bytes, by the limits and the debts on paper."""
        items: list[int] = []
        nbytes: list[int] = []
        for each in self.own.lineage(name):
            limit, (i, b) = self.limits[each], self.own.owes[each]
            if limit.items is not None:
                items.append(limit.items - i)
            if limit.bytes is not None:
                nbytes.append(limit.bytes - b)
        return min(items, default=None), min(nbytes, default=None)

    def check(self) -> None:
        """Both books agree; also in the middle of a turn."""
        ledger, own = self.ledger, self.own
        self.ledger.audit()
        assert set(ledger.accounts) == set(own.opens)
        for name, account in ledger.accounts.items():
            assert account is self.accounts[name]
            assert (account.debt_items, account.debt_bytes) == own.owes[name]
            assert (account.peak_items, account.peak_bytes) == own.peaks[name]
            assert account.opens == own.opens[name]
            assert account.limit == self.limits[name]
            for left, room in zip(self.own_room(name), account.room(), strict=True):
                assert room == left if left is not None else room > 1 << 61
        totals = ledger.statistics()
        states = [account.state for account in ledger.accounts.values()]
        assert totals.accounts == {state: states.count(state) for state in totals.accounts}
        assert (totals.borrowed_items, totals.borrowed_bytes) == own.borrowed
        for outcome in Outcome:
            i, b = own.repaid[outcome]
            assert (totals.repaid_items[outcome.label], totals.repaid_bytes[outcome.label]) == (
                i,
                b,
            )
        assert totals.leaked_loans >= bool(own.repaid[Outcome.LEAKED][0])
        if self.recording is not None:
            self.recording.agrees(ledger)
        roots = [owes for name, owes in own.owes.items() if PARENTS[name] is None]
        assert totals.debt_items == sum(items for items, _ in roots)
        assert totals.debt_bytes == sum(nbytes for _, nbytes in roots)
        matrix = ledger.matrix()
        assert sum(row.items for row in matrix) == totals.debt_items
        assert sum(row.bytes for row in matrix) == totals.debt_bytes

    def teardown(self) -> None:
        """At the end everything can be paid off, and nothing is left."""
        for paper in list(self.papers):
            paper.loan.settle()
            self.end(paper, Outcome.DELIVERED)
        for shelf in self.shelves:
            shelf.box.close()
            for paper in shelf.papers:
                self.end(paper, Outcome.DROPPED)
            shelf.papers.clear()
        for name in list(self.own.opens):
            while self.own.opens.get(name):
                self.accounts[name].close()
                self.own.close(name)
        self.the_books_balance()
        assert not self.ledger.accounts
        totals = self.ledger.statistics()
        assert totals.borrowed_items == sum(totals.repaid_items.values())
        assert totals.borrowed_bytes == sum(totals.repaid_bytes.values())


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.long
def test_books_at_length() -> None:
    case = Books.TestCase
    case.settings = settings(max_examples=600, stateful_step_count=60, deadline=None)
    case("runTest").runTest()
