"""The books of credit between all processes: nothing is lost and nothing made, whoever comes and
goes; and who else is told of what is repaid.
"""  # noqa: D205

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from clearfunds.accounts import NO_LIMIT, Account, Ledger, LoanQueue, Outcome
from clearfunds.accounts._gate import gate_of
from experiments.credit_flow import Credit, CreditScheme, CreditSettings, hearing
from experiments.credit_flow._processes import OutletStation
from experiments.credit_flow._scheme import SWEEP_FROM


class Box(LoanQueue):
    """A holder with a station, that keeps what it gets until it is told to let go."""

    kind = "outlet"

    def __init__(self, scheme: CreditScheme, name: str) -> None:
        super().__init__(scheme.ledger, name)
        self.station = OutletStation(scheme, self, scheme.settings.reader_outlet)
        scheme.stations.add(self.station)

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        self.station.arrived(account, items)
        super().hold(account, item, items, nbytes, now)

    def ready(self) -> None:
        pass

    def give_up(self, why: str) -> None:
        raise AssertionError(why)

    def held_of(self, account: Account) -> int:
        return sum(loan.items for loan in self.queue if loan.account is account)

    def end(self) -> None:
        self.station.go_down()
        self.closed = True
        self.settle_all(Outcome.CANCELLED)
        self.ledger.unregister(self)


def send(account: Account, boxes: list[Box], items: int = 1) -> None:
    with account.turn(items=items, nbytes=0) as turn:
        for box in boxes:
            turn.send(box, b"", items=items, nbytes=0)


def blockers(account: Account) -> tuple[str, ...]:
    """By whom it is blocked now. (Asked for anew: it changes behind the checker's back.)"""
    return gate_of(account).blockers


@pytest.fixture
def scheme() -> Generator[CreditScheme]:
    found = CreditScheme(Ledger(), CreditSettings(reader_outlet=Credit(3, 2)))
    with hearing(found):
        yield found
    found.ledger.audit()


def test_two_of_one_name_that_block_have_both_to_stop(scheme: CreditScheme) -> None:
    """The outlet of a connection and what its client is to acknowledge are called alike."""
    account = scheme.ledger.open("pub", limit=NO_LIMIT)
    boxes = [Box(scheme, "sub"), Box(scheme, "sub")]
    send(account, boxes, 3)
    assert blockers(account) == ("sub",)
    boxes[0].queue[0].settle(2)
    assert blockers(account) == ("sub",)
    # It may be called something else meanwhile.
    boxes[1].name = "renamed"
    boxes[1].queue[0].settle(2)
    assert blockers(account) == ()
    for box in boxes:
        box.end()


def test_what_has_leaked_is_handled(scheme: CreditScheme) -> None:
    """Or its sender would wait for ever for what nobody has."""
    account = scheme.ledger.open("pub", limit=NO_LIMIT)
    box = Box(scheme, "sub")
    send(account, [box], 3)
    assert blockers(account) == ("sub",)
    box.queue.clear()
    with pytest.warns(ResourceWarning):
        scheme.ledger.drain()
    assert blockers(account) == ()
    box.end()


def test_a_reader_without_a_connection_is_forgotten_some_time(scheme: CreditScheme) -> None:
    box = Box(scheme, "sub")
    for number in range(10 * SWEEP_FROM):
        with scheme.ledger.open(f"writer-{number}", limit=NO_LIMIT) as account:
            send(account, [box])
            box.settle_all(Outcome.DELIVERED)
        assert len(scheme.readers) <= SWEEP_FROM
        assert len(box.station.senders) <= SWEEP_FROM
    assert scheme.statistics().kinds["reader"].sums.sent == 10 * SWEEP_FROM
    box.end()


class Told:
    """A recorder that counts what it is told of."""

    def __init__(self) -> None:
        self.items = 0

    def settled(self, account: Account, holder: Any, items: int, *rest: Any) -> None:
        self.items += items

    def delivered(self, account: Account, ended: Any) -> None:
        self.items += sum(each[1] for each in ended)

    def published(self, *told: Any) -> None:
        pass


def test_a_journal_is_told_as_well() -> None:
    ledger = Ledger()
    told: Any = Told()
    ledger.recorder = told
    scheme = CreditScheme(ledger, CreditSettings(reader_outlet=Credit(3, 2)))
    with hearing(scheme):
        account = ledger.open("pub", limit=NO_LIMIT)
        box = Box(scheme, "sub")
        send(account, [box], 3)
        assert gate_of(account).blockers
        account.repay(2, 0, Outcome.DELIVERED, box)
        box.queue[0].items -= 2
        assert not gate_of(account).blockers
        box.end()
    assert told.items == 3
    assert ledger.recorder is told


class Books(RuleBasedStateMachine):
    """Readers and stations that come and go, against what is in the holders' hands."""

    @initialize(
        credit=st.tuples(st.integers(1, 6), st.integers(1, 6)).map(
            lambda pair: Credit(max(pair), min(pair))
        )
    )
    def begin(self, credit: Credit) -> None:
        self.credit = credit
        self.ledger = Ledger()
        self.scheme = CreditScheme(self.ledger, CreditSettings(reader_outlet=credit))
        self.hearing: AbstractContextManager[None] = hearing(self.scheme)
        self.hearing.__enter__()
        self.boxes: list[Box] = [Box(self.scheme, f"box-{n}") for n in range(2)]
        self.open: dict[str, Account] = {}
        self.made = 0

    def teardown(self) -> None:
        if not hasattr(self, "scheme"):
            return
        for box in self.boxes:
            box.end()
        for account in self.open.values():
            self.scheme.leaves(account)
            account.close()
        assert not self.scheme.readers
        assert not self.scheme.stations
        self.ledger.audit()
        assert not self.ledger.accounts
        self.hearing.__exit__(None, None, None)

    @rule(name=st.sampled_from("abc"))
    def connect(self, name: str) -> None:
        if name not in self.open:
            self.open[name] = self.ledger.open(name, limit=NO_LIMIT)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def disconnect(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.open)))
        account = self.open.pop(name)
        self.scheme.leaves(account)
        account.close()

    @precondition(lambda self: self.open and self.boxes)
    @rule(data=st.data(), items=st.integers(1, 8))
    def publish(self, data: st.DataObject, items: int) -> None:
        account = self.open[data.draw(st.sampled_from(sorted(self.open)))]
        chosen = data.draw(st.lists(st.sampled_from(range(len(self.boxes))), unique=True))
        send(account, [self.boxes[n] for n in chosen], items)

    @precondition(lambda self: any(box.queue for box in self.boxes))
    @rule(data=st.data(), outcome=st.sampled_from(list(Outcome)), whole=st.booleans())
    def let_go(self, data: st.DataObject, outcome: Outcome, whole: bool) -> None:
        box = data.draw(st.sampled_from([box for box in self.boxes if box.queue]))
        loan = box.queue[data.draw(st.integers(0, len(box.queue) - 1))]
        loan.settle(None if whole else data.draw(st.integers(1, loan.items)), outcome)
        if not loan.items:
            box.queue.remove(loan)

    @rule()
    def subscribe(self) -> None:
        self.made += 1
        self.boxes.append(Box(self.scheme, f"new-{self.made}"))

    @precondition(lambda self: self.boxes)
    @rule(data=st.data())
    def unsubscribe(self, data: st.DataObject) -> None:
        self.boxes.pop(data.draw(st.integers(0, len(self.boxes) - 1))).end()

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "scheme"):
            return
        initial, more_after = self.credit.initial, self.credit.more_after
        for account, reader in self.scheme.readers.items():
            expected: set[str] = set()
            for station, left in reader.flow.credit_from.items():
                assert isinstance(station, OutletStation)
                assert reader in station.senders
                box = station.holder
                assert isinstance(box, Box)
                handled = more_after - station.flow.credit_to.get(reader, more_after)
                assert left + handled + box.held_of(account) == initial
                if left <= 0:
                    expected.add(box.name)
            assert set(gate_of(account).blockers) == expected
            assert account.debt_items or account.name in self.open
        for box in self.boxes:
            assert all(reader in self.scheme.readers.values() for reader in box.station.senders)
            assert set(box.station.flow.credit_to) <= box.station.senders
        self.ledger.audit()


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
