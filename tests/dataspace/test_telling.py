"""What an observer's patterns multiply is on the observer's account."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from clearfunds.accounts import NO_LIMIT, Account, Ledger, Limit
from clearfunds.dataspace import ANY, Dataspace, Mailbox, Pattern, Publication, capture, match
from clearfunds.dataspace._telling import PAID_BY_PUBLISHER
from tests.dataspace.conftest import Reading

PAYLOAD = bytes(1_000)


class Ending(Mailbox):
    """A mailbox that notes when it is given up."""

    __slots__ = ("ended",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.ended: list[str] = []

    def give_up(self, why: str) -> None:
        self.ended.append(why)
        super().give_up(why)


def observers(
    dataspace: Dataspace, owner: Account, mailbox: Mailbox, stack: ExitStack, count: int
) -> None:
    """Let a mailbox observe publications so many times."""
    pattern: Pattern = match(Publication, payload=capture(ANY))
    for _ in range(count):
        stack.enter_context(dataspace.observed(owner, pattern, mailbox))


@pytest.mark.parametrize("count", [1, 3, 7, 8, 50, 1_000])
def test_the_publisher_pays_for_a_few_and_the_observer_for_the_rest(count: int) -> None:
    ledger = Ledger()
    dataspace = Dataspace(ledger)
    publisher = ledger.open("publisher", limit=NO_LIMIT)
    observer = ledger.open("observer", limit=NO_LIMIT)
    with Mailbox(ledger, "box") as box, ExitStack() as stack:
        observers(dataspace, observer, box, stack, count)
        with publisher.turn() as turn:
            turn.publish(dataspace, Publication("t", PAYLOAD, qos=1))
        ledger.audit()
        assert publisher.debt_items + observer.debt_items == count
        assert publisher.debt_bytes <= PAID_BY_PUBLISHER * (len(PAYLOAD) + 1)
        assert publisher.debt_items == min(count, 7)
    ledger.audit()
    assert publisher.debt_items == observer.debt_items == 0


def test_each_observer_pays_for_its_own() -> None:
    ledger = Ledger()
    dataspace = Dataspace(ledger)
    publisher = ledger.open("publisher", limit=NO_LIMIT)
    with ExitStack() as stack:
        owners = [ledger.open(f"observer {n}", limit=NO_LIMIT) for n in range(3)]
        for n, (owner, count) in enumerate(zip(owners, (1, 30, 2), strict=True)):
            box = stack.enter_context(Mailbox(ledger, f"box {n}"))
            observers(dataspace, owner, box, stack, count)
        with publisher.turn() as turn:
            turn.publish(dataspace, Publication("t", PAYLOAD, qos=1))
        assert [owner.debt_items for owner in owners] == [0, 23, 0]
        assert publisher.debt_items == 1 + 7 + 2
        ledger.audit()


def test_who_observes_for_itself_pays_for_all() -> None:
    ledger = Ledger()
    dataspace = Dataspace(ledger)
    account = ledger.open("both", limit=NO_LIMIT)
    with Mailbox(ledger, "box") as box, ExitStack() as stack:
        observers(dataspace, account, box, stack, 30)
        with account.turn() as turn:
            turn.publish(dataspace, Publication("t", PAYLOAD, qos=1))
        assert account.debt_items == 30


def test_an_observer_that_may_not_owe_so_much_is_given_up_and_nobody_waits() -> None:
    ledger = Ledger()
    dataspace = Dataspace(ledger)
    publisher = ledger.open("publisher", limit=Limit(items=100))
    greedy = ledger.open("greedy", limit=Limit(items=None, bytes=20_000))
    other = ledger.open("other", limit=NO_LIMIT)
    with Ending(ledger, "greedy") as box, Ending(ledger, "other") as well, ExitStack() as stack:
        observers(dataspace, greedy, box, stack, 1_000)
        observers(dataspace, other, well, stack, 1)
        with publisher.turn() as turn:
            turn.publish(dataspace, Publication("t", PAYLOAD, qos=1))
        (why,) = box.ended
        assert "make more of what others publish than it may owe" in why
        assert not well.ended
        ledger.audit()
        # What it held is written off; the other one has its copy.
        assert (publisher.debt_items, greedy.debt_items) == (1, 0)
        assert publisher.funds_are_clear()


def test_it_is_the_same_for_what_is_asserted() -> None:
    ledger = Ledger()
    dataspace = Dataspace(ledger)
    speaker = ledger.open("speaker", limit=NO_LIMIT)
    observer = ledger.open("observer", limit=NO_LIMIT)
    with Mailbox(ledger, "box") as box, ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(dataspace.observed(observer, Reading, box))
        with dataspace.asserted(speaker, Reading("s" * 1_000, 1.0)):
            assert 0 < speaker.debt_items < 10
            assert speaker.debt_items + observer.debt_items == 200
            ledger.audit()
        assert speaker.debt_items + observer.debt_items == 400  # and that it has gone
        ledger.audit()


def test_a_turn_that_fails_charges_nobody() -> None:
    ledger = Ledger()
    dataspace = Dataspace(ledger)
    publisher = ledger.open("publisher", limit=NO_LIMIT)
    observer = ledger.open("observer", limit=NO_LIMIT)
    with Mailbox(ledger, "box") as box, ExitStack() as stack:
        observers(dataspace, observer, box, stack, 50)

        def fail() -> None:
            with publisher.turn() as turn:
                turn.publish(dataspace, Publication("t", PAYLOAD, qos=1))
                raise RuntimeError("no")

        with pytest.raises(RuntimeError):
            fail()
        assert publisher.debt_items == observer.debt_items == 0
        ledger.audit()
