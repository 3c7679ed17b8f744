"""Who pays for what a dataspace does; debt follows the cause through a chain of workers."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest

from clearfunds.accounts import Account, Ledger, Limit, Outcome
from clearfunds.dataspace import (
    ANY,
    Asserted,
    Dataspace,
    Mailbox,
    Observe,
    Publication,
    Retracted,
    TopicFilter,
    match,
)
from tests.dataspace.conftest import Reading, told
from tests.loops import open_nursery

ROOF = Reading("roof", 20.5)


@attrs.frozen
class Question:
    text: str
    hops: int = 0


@attrs.frozen
class Answer:
    text: str


@pytest.fixture
def owner(ledger: Ledger) -> Account:
    return ledger.open("owner")


@pytest.fixture
def observer(ledger: Ledger) -> Account:
    return ledger.open("observer")


def debts(ledger: Ledger) -> dict[str, int]:
    """Return who owes how many items."""
    ledger.audit()
    return {name: a.debt_items for name, a in ledger.accounts.items() if a.debt_items}


# -- who pays (rule 2) ----------------------------------------------------------------------------


def test_the_publisher_pays_for_its_message(
    dataspace: Dataspace, ledger: Ledger, owner: Account, observer: Account, mailbox: Mailbox
) -> None:
    with observer.turn() as turn:
        dataspace.observe(turn, Reading, mailbox)
        dataspace.observe(turn, TopicFilter("#"), mailbox)
    with owner.turn() as turn:
        turn.publish(dataspace, ROOF)
        turn.publish(dataspace, Publication("a", b"1"))
    assert debts(ledger) == {"owner": 2}
    told(mailbox)


def test_the_owner_pays_for_telling_that_it_asserts(
    dataspace: Dataspace, ledger: Ledger, owner: Account, observer: Account, mailbox: Mailbox
) -> None:
    with observer.turn() as turn:
        dataspace.observe(turn, Reading, mailbox)
    with dataspace.asserted(owner, ROOF):
        assert debts(ledger) == {"owner": 1}
    assert debts(ledger) == {"owner": 2}
    assert told(mailbox) == [Asserted(ROOF), Retracted(ROOF)]


def test_a_new_observer_pays_for_the_replay(
    dataspace: Dataspace, ledger: Ledger, owner: Account, observer: Account, mailbox: Mailbox
) -> None:
    """Of what stands and of what is retained, whoever put it there."""
    with owner.turn() as turn:
        for n in range(5):
            dataspace.assert_(turn, Reading("roof", n))
            turn.publish(dataspace, Publication(f"a/{n}", b"12345", retain=True))
    assert debts(ledger) == {}
    with observer.turn() as turn:
        dataspace.observe(turn, Reading, mailbox)
    assert debts(ledger) == {"observer": 5}
    with observer.turn() as turn:
        dataspace.observe(turn, TopicFilter("a/+"), mailbox)
    assert debts(ledger) == {"observer": 10}
    told(mailbox)
    with observer.turn() as turn:
        dataspace.observe(turn, TopicFilter("a/3"), mailbox)
    assert (observer.debt_items, observer.debt_bytes) == (1, 8)
    told(mailbox)


def test_who_retracts_pays_for_telling_so(
    dataspace: Dataspace, ledger: Ledger, owner: Account, observer: Account, mailbox: Mailbox
) -> None:
    """And the owner's quota is released, whoever that is."""
    with observer.turn() as turn:
        dataspace.observe(turn, Reading, mailbox)
    with owner.turn() as turn:
        assertion = dataspace.assert_(turn, ROOF)
    told(mailbox)
    assert owner.standing().items == 1
    janitor = ledger.open("janitor")
    with janitor.turn() as turn:
        dataspace.retract(turn, assertion)
    assert debts(ledger) == {"janitor": 1}
    assert owner.standing().items == 0
    assert janitor.standing().items == 0
    told(mailbox)


def test_who_observes_pays_for_telling_the_observers_of_observers(
    dataspace: Dataspace, ledger: Ledger, owner: Account, observer: Account, mailbox: Mailbox
) -> None:
    with owner.turn() as turn:
        dataspace.observe(turn, Observe, mailbox)
    told(mailbox)
    with dataspace.observed(observer, Reading, mailbox):
        assert debts(ledger) == {"observer": 1}
        assert observer.standing().items == 1
    assert debts(ledger) == {"observer": 2}
    assert (observer.standing().items, owner.standing().items) == (0, 1)
    told(mailbox)


def test_an_answer_to_an_assertion_is_on_its_owner(
    dataspace: Dataspace, ledger: Ledger, owner: Account, observer: Account, mailbox: Mailbox,
    other: Mailbox,
) -> None:  # fmt: skip
    """What is done on hearing that something is the case was caused by who says so."""
    with observer.turn() as turn:
        dataspace.observe(turn, Question, mailbox)
        dataspace.observe(turn, Answer, other)
    with owner.turn() as turn:
        dataspace.assert_(turn, Question("why?"))
    loan = mailbox.receive_nowait()
    with loan as (event,), loan.turn() as turn:
        answer = dataspace.assert_(turn, Answer(f"{event.value.text} because"))
    assert answer.owner is owner
    assert debts(ledger) == {"owner": 1}
    assert owner.standing().items == 2
    assert told(other) == [Asserted(Answer("why? because"))]


# -- chains (rules 2 and 3) -----------------------------------------------------------------------


@pytest.fixture
def course(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Everybody's debt after each time that it changed."""
    changes: list[tuple[str, int]] = []
    borrow, repay = Account.borrow, Account.repay

    def borrowing(account: Account, items: int, nbytes: int) -> None:
        borrow(account, items, nbytes)
        changes.append((account.name, account.debt_items))

    def repaying(account: Account, *args: Any, **more: Any) -> None:
        repay(account, *args, **more)
        changes.append((account.name, account.debt_items))

    monkeypatch.setattr(Account, "borrow", borrowing)
    monkeypatch.setattr(Account, "repay", repaying)
    return changes


@pytest.mark.parametrize("hops", [1, 2, 5])
def test_debt_stays_with_the_ultimate_cause_and_is_never_zero_in_between(
    dataspace: Dataspace,
    ledger: Ledger,
    owner: Account,
    observer: Account,
    course: list[tuple[str, int]],
    hops: int,
) -> None:
    mailboxes = [Mailbox(ledger, f"stage {n}") for n in range(hops + 1)]
    with observer.turn() as turn:
        for n, mailbox in enumerate(mailboxes):
            dataspace.observe(turn, match(Question, hops=n), mailbox)
    course.clear()
    with owner.turn("a question", nbytes=0) as turn:
        turn.publish(dataspace, Question("why?"))
    for stage in mailboxes[:-1]:
        (row,) = ledger.matrix()
        assert (row.account, row.holder, row.items) == ("owner", stage.name, 1)
        loan = stage.receive_nowait()
        assert loan.account is owner
        with loan as (question,), loan.turn() as turn:
            turn.publish(dataspace, attrs.evolve(question, hops=question.hops + 1))
        ledger.audit()
    assert told(mailboxes[-1]) == [Question("why?", hops)]
    # Its input, the first delivery, the input repaid; then a child before each parent; the end.
    assert [name for name, _ in course] == ["owner"] * len(course)
    assert [debt for _, debt in course] == [1, 2, 1, *[2, 1] * hops, 0]


@pytest.mark.rule(4)
def test_a_worker_that_fails_answers_nothing(
    dataspace: Dataspace, ledger: Ledger, owner: Account, mailbox: Mailbox, other: Mailbox
) -> None:
    """Rule 4: its loan ends as rejected, and nothing that it sent was ever sent."""
    with owner.turn() as turn:
        dataspace.observe(turn, Question, mailbox)
        dataspace.observe(turn, Answer, other)
        turn.publish(dataspace, Question("why?"))
    loan = mailbox.receive_nowait()
    with pytest.raises(ZeroDivisionError), loan, loan.turn() as turn:
        turn.publish(dataspace, Answer(str(1 / 0)))
    assert debts(ledger) == {}
    assert ledger.repaid_items[Outcome.REJECTED] == 1
    assert told(other) == []


def test_a_batch_of_questions_is_repaid_one_by_one(
    dataspace: Dataspace, ledger: Ledger, owner: Account, mailbox: Mailbox, other: Mailbox
) -> None:
    with owner.turn() as turn:
        dataspace.observe(turn, Question, mailbox)
        dataspace.observe(turn, Answer, other)
        for n in range(3):
            turn.publish(dataspace, Question(str(n)))
    course: list[int] = []
    loan = mailbox.receive_nowait()
    with loan as questions:
        for question in questions:
            with loan.turn() as turn:
                turn.publish(dataspace, Answer(question.text))
            course.append(owner.debt_items)
            loan.settle(1)
            course.append(owner.debt_items)
            ledger.audit()
    assert course == [4, 3] * 3
    assert told(other) == [Answer("0"), Answer("1"), Answer("2")]


@pytest.mark.rule(2, 5, 9)
async def test_publishers_wait_for_what_workers_do_on_their_behalf(
    dataspace: Dataspace, ledger: Ledger
) -> None:
    """Rules 2, 5 and 9: workers never wait; each publisher's debt is bounded by what it caused."""
    questions, answers = Mailbox(ledger, "questions"), Mailbox(ledger, "answers")
    staff = ledger.open("staff", limit=Limit(items=0))
    with staff.turn() as turn:
        dataspace.observe(turn, Question, questions)
        dataspace.observe(turn, Answer, answers)
    publishers = [ledger.open(f"publisher {n}", limit=Limit(items=6, low_items=3)) for n in "abc"]
    received: list[str] = []

    async def publish(account: Account) -> None:
        for n in range(20):
            await account.ensure_clear_funds()
            with account.turn(n) as turn:
                turn.publish(dataspace, Question(f"{account.name} {n}"))
            await anyio.lowlevel.checkpoint()

    async def work() -> None:
        async for loan in questions:
            with loan as events:
                for question in events:
                    await anyio.lowlevel.checkpoint()
                    with loan.turn() as turn:
                        for part in "xyz":
                            turn.publish(dataspace, Answer(f"{question.text}{part}"))

    async def read() -> None:
        async for loan in answers:
            with loan as events:
                await anyio.lowlevel.checkpoint()
                received.extend(answer.text for answer in events)
                assert all(answer.text.startswith(loan.account.name) for answer in events)
            ledger.audit()

    async with open_nursery() as workers:
        for task in (work, work, read):
            workers.start_soon(task)
        async with open_nursery() as sources:
            for account in publishers:
                sources.start_soon(publish, account)
        while any(account.debt_items for account in publishers):
            await anyio.lowlevel.checkpoint()
        questions.close()
        answers.close()
    assert sorted(received) == sorted(
        f"{account.name} {n}{part}" for account in publishers for n in range(20) for part in "xyz"
    )
    for account in publishers:
        assert account.waits > 0
        # At the limit it may still send one more; each question that it owes for may come to
        # three answers before it is repaid itself.
        assert account.peak_items <= 7 * (1 + 3)
        assert account.borrowed_items == 20 * (1 + 1 + 3)
    assert staff.borrowed_items == 1  # its own turn, nothing since
    assert debts(ledger) == {}


def test_observers_of_everything_are_paid_for_by_each_cause(
    dataspace: Dataspace, ledger: Ledger, owner: Account, observer: Account, mailbox: Mailbox
) -> None:
    with dataspace.observed(observer, ANY, mailbox):
        with owner.turn() as turn:
            turn.publish(dataspace, ROOF)
        with dataspace.asserted(owner, "here"):
            pass
        assert debts(ledger) == {"observer": 1, "owner": 3}
    assert [loan.account.name for loan in mailbox.queue] == ["observer", "owner", "observer"]
    told(mailbox)
