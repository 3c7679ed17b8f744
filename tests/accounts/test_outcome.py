"""Outcomes: why a loan ended, and how work ended that was left by an exception."""

from __future__ import annotations

import anyio
import pytest

from clearfunds.accounts import Ledger, Outcome
from clearfunds.accounts._outcome import outcome_of
from tests.accounts.conftest import Box, publish
from tests.loops import open_nursery


def test_outcomes_are_indexes_with_a_label() -> None:
    assert [int(outcome) for outcome in Outcome] == list(range(9))
    assert [outcome.label for outcome in Outcome] == [
        *("delivered", "acked", "rejected", "cancelled", "expired", "dropped", "stored"),
        *("written_off", "leaked"),
    ]


def test_an_error_rejects_and_nothing_delivers() -> None:
    assert outcome_of(None) is Outcome.DELIVERED
    assert outcome_of(ValueError()) is Outcome.REJECTED
    assert outcome_of(KeyboardInterrupt()) is Outcome.REJECTED
    assert outcome_of(ExceptionGroup("", [ValueError()])) is Outcome.REJECTED


async def test_a_cancellation_is_one_however_deep_in_groups() -> None:
    cancelled: list[BaseException] = []

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class() as exc:
            cancelled.append(exc)
            raise

    async with open_nursery() as nursery:
        nursery.start_soon(work)
        await anyio.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    alone = BaseExceptionGroup("", cancelled)
    assert outcome_of(cancelled[0]) is Outcome.CANCELLED
    assert outcome_of(alone) is Outcome.CANCELLED
    assert outcome_of(BaseExceptionGroup("", [alone, *cancelled])) is Outcome.CANCELLED
    both = BaseExceptionGroup("", [alone, ValueError()])
    assert outcome_of(both) is Outcome.REJECTED


@pytest.mark.rule(4)
async def test_turns_and_loans_agree_about_it(ledger: Ledger) -> None:
    """Rule 4, for a block that is cancelled while it has a nursery inside."""
    account = ledger.open("a")
    box = Box(ledger, "b")
    publish(account, [box])

    async def two_tasks() -> None:
        async with open_nursery() as nursery:
            nursery.start_soon(anyio.sleep_forever)
            nursery.start_soon(anyio.sleep_forever)

    with anyio.move_on_after(0), box.take():
        await two_tasks()
    with anyio.move_on_after(0), account.turn(items=3):
        await two_tasks()
    assert ledger.repaid_items[Outcome.CANCELLED] == 4
    assert ledger.repaid_items[Outcome.REJECTED] == 0
