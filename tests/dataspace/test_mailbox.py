"""A mailbox: taking loans, several consumers, cancellation, and its two ends."""

from __future__ import annotations

import gc
import random
from typing import Any, cast

import anyio
import anyio.lowlevel
import attrs
import pytest
import trio
import trio.testing

from clearfunds.accounts import (
    NO_LIMIT,
    Account,
    Ledger,
    Limit,
    LoanedItem,
    NotALoanError,
    Outcome,
    StuckPolicy,
    overdue,
    watch_patience,
)
from clearfunds.dataspace import Batch, GivenUpError, Mailbox, MailboxClosedError, Publication
from tests.dataspace.conftest import balance, told
from tests.loops import open_nursery, yields

LARGE = 64 << 10
"""Nothing joins a loan of this many bytes."""


def send(account: Account, mailbox: Mailbox, *items: object, nbytes: int = 1) -> None:
    with account.turn() as turn:
        for item in items:
            turn.send(mailbox, item, nbytes=nbytes)


def repaid(ledger: Ledger) -> dict[str, int]:
    """Return how many items ended with each outcome, the inputs of turns apart."""
    items = ledger.statistics().repaid_items
    return {outcome: n for outcome, n in items.items() if n and outcome != "delivered"}


# -- taking ---------------------------------------------------------------------------------------


def test_what_one_account_sends_in_a_row_is_one_loan(
    ledger: Ledger, account: Account, mailbox: Mailbox
) -> None:
    another = ledger.open("another")
    send(account, mailbox, "a", "b")
    send(account, mailbox, "c")
    send(another, mailbox, "d")
    send(account, mailbox, "e")
    loans = [mailbox.receive_nowait() for _ in range(3)]
    assert [(loan.account.name, loan.item, loan.items) for loan in loans] == [
        ("somebody", ["a", "b", "c"], 3),
        ("another", ["d"], 1),
        ("somebody", ["e"], 1),
    ]
    with pytest.raises(trio.WouldBlock):
        mailbox.receive_nowait()
    for loan in loans:
        loan.settle()


def test_what_was_taken_is_still_held(ledger: Ledger, account: Account, mailbox: Mailbox) -> None:
    send(account, mailbox, "a")
    loan = mailbox.receive_nowait()
    send(account, mailbox, "b")  # does not join what was taken
    assert loan.item == ["a"]
    assert ledger.holder_statistics(mailbox).items == 2
    assert repr(mailbox) == "<Mailbox inbox: 1 loans queued, 1 taken>"
    ledger.audit()
    with loan:
        pass
    assert ledger.holder_statistics(mailbox).items == 1
    assert repr(mailbox) == "<Mailbox inbox: 1 loans queued, 0 taken>"


async def test_receiving_is_a_checkpoint_even_when_something_is_there(
    account: Account, mailbox: Mailbox
) -> None:
    send(account, mailbox, "a")
    async with yields():
        loan = await mailbox.receive()
    loan.settle()


async def test_cancelled_before_it_takes_anything(account: Account, mailbox: Mailbox) -> None:
    send(account, mailbox, "a")
    with anyio.CancelScope() as scope:
        scope.cancel()
        await mailbox.receive()
    assert scope.cancelled_caught
    assert told(mailbox) == ["a"]


async def test_it_waits_for_the_next(account: Account, mailbox: Mailbox) -> None:
    received: list[str] = []

    async def consumer() -> None:
        async for loan in mailbox:
            with loan as events:
                received.extend(events)

    async with open_nursery() as nursery:
        nursery.start_soon(consumer)
        for letter in "abc":
            await anyio.wait_all_tasks_blocked()
            send(account, mailbox, letter)
            assert "".join(received) == "abc"[: len(received)]
        await anyio.wait_all_tasks_blocked()
        assert received == ["a", "b", "c"]
        assert account.debt_items == 0
        mailbox.close()  # the consumer ends, or the nursery would not
        nursery.cancel_scope.cancel()


def batch_of(*publications: Publication) -> Batch:
    return Batch(
        b"".join(p.payload for p in publications), len(publications), lambda raw: publications
    )


def test_batches_are_taken_apart_for_who_looks(
    ledger: Ledger, account: Account, mailbox: Mailbox
) -> None:
    one, two, three, four = (Publication("a", bytes([48 + n]) * 10) for n in range(4))
    with account.turn() as turn:
        for entry in (one, batch_of(two, three), four):
            items = entry.count if isinstance(entry, Batch) else 1
            turn.send(mailbox, entry, items=items, nbytes=10 * items)
    assert ledger.holder_statistics(mailbox).items == 4
    loan = mailbox.receive_nowait()
    assert loan.item == [one, two, three, four]
    assert (loan.items, loan.bytes) == (4, 40)
    loan.settle(3)
    assert (account.debt_items, account.debt_bytes) == (1, 10)
    loan.settle()


def test_taking_something_is_progress() -> None:
    now = 0.0
    ledger = Ledger(clock=lambda: now)
    account, mailbox = ledger.open("somebody"), Mailbox(ledger, "inbox")
    send(account, mailbox, "a", "b", nbytes=LARGE)
    now = 3.0
    assert ledger.holder_statistics(mailbox).idle_seconds == 3.0
    loan = mailbox.receive_nowait()
    now = 5.0
    assert ledger.holder_statistics(mailbox).idle_seconds == 2.0
    loan.settle()
    assert ledger.holder_statistics(mailbox).idle_seconds == 0.0
    assert ledger.holder_statistics(mailbox).oldest_seconds == 5.0
    assert told(mailbox) == ["b"]
    ledger.audit()


# -- several consumers ----------------------------------------------------------------------------


async def test_one_commit_with_several_loans_wakes_several_consumers(
    account: Account, mailbox: Mailbox
) -> None:
    """`ready` is called once for it and wakes one; that one wakes the next."""
    received: list[object] = []
    go_on = anyio.Event()

    async def consumer() -> None:
        with await mailbox.receive() as events:
            received.extend(events)
            await go_on.wait()

    async with open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(consumer)
        await anyio.wait_all_tasks_blocked()
        send(account, mailbox, 1, 2, 3, 4, nbytes=LARGE)
        assert len(mailbox.queue) == 4
        await anyio.wait_all_tasks_blocked()
        assert sorted(cast("list[int]", received)) == [1, 2, 3]
        assert told(mailbox) == [4]
        go_on.set()
        nursery.cancel_scope.cancel()


async def test_who_is_overtaken_waits_on_and_who_is_left_over_is_woken(
    account: Account, mailbox: Mailbox
) -> None:
    received: list[object] = []

    async def consumer() -> None:
        with await mailbox.receive() as events:
            received.extend(events)

    async with open_nursery() as nursery:
        nursery.start_soon(consumer)
        nursery.start_soon(consumer)
        await anyio.wait_all_tasks_blocked()
        send(account, mailbox, 1, nbytes=LARGE)
        assert told(mailbox) == [1]  # before the consumer that was woken for it could
        await anyio.wait_all_tasks_blocked()
        assert received == []
        send(account, mailbox, 2, 3, nbytes=LARGE)
        mailbox.receive_nowait().settle()  # takes 2, and wakes somebody for 3
        await anyio.wait_all_tasks_blocked()
        assert received == [3]
        send(account, mailbox, 4)
        nursery.cancel_scope.cancel()


async def test_a_cancelled_consumer_takes_no_wakeup_along(
    account: Account, mailbox: Mailbox
) -> None:
    received: list[object] = []
    scopes = [anyio.CancelScope() for _ in range(2)]

    async def consumer(scope: anyio.CancelScope) -> None:
        with scope, await mailbox.receive() as events:
            received.extend(events)

    async with open_nursery() as nursery:
        for scope in scopes:
            nursery.start_soon(consumer, scope)
            await anyio.wait_all_tasks_blocked()
        send(account, mailbox, 1)  # wakes the first
        scopes[0].cancel()  # which has not run yet
        await anyio.wait_all_tasks_blocked()
        # It had been told, so it takes it: a wait that is over is not cancelled.
        assert received == [1]
        assert not scopes[0].cancelled_caught
        send(account, mailbox, 2)
        await anyio.wait_all_tasks_blocked()
        assert received == [1, 2]
        nursery.cancel_scope.cancel()


@attrs.define(eq=False)
class CancelAt(trio.abc.Instrument):
    """Cancels a scope after so many steps of all tasks together."""

    step: int
    scope: anyio.CancelScope
    taken: int = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.taken += 1
        if self.taken == self.step:
            self.scope.cancel()


async def cancel_consumers(n: int, step: int) -> bool:
    """Let `n` consumers be cancelled after so many steps; whether they were, so late."""
    ledger = Ledger()
    mailbox = Mailbox(ledger, "inbox")
    accounts = [ledger.open(letter, limit=NO_LIMIT) for letter in "abc"]
    sent: list[str] = []
    received: list[str] = []
    finished: list[str] = []
    gone = anyio.Event()

    async def consumer() -> None:
        async for loan in mailbox:
            with loan as events:
                received.extend(events)
                await anyio.lowlevel.checkpoint()
                await anyio.lowlevel.checkpoint()
                finished.extend(events)

    async def publisher() -> None:
        for stretch in range(3):
            for account in accounts:
                sent.append(f"{account.name}{stretch}")
                send(account, mailbox, sent[-1])
            await anyio.lowlevel.checkpoint()
        while ledger.statistics().debt_items and not gone.is_set():
            await anyio.lowlevel.checkpoint()
        if not gone.is_set():
            mailbox.close()

    cancelling = CancelAt(step, anyio.CancelScope())
    trio.lowlevel.add_instrument(cancelling)
    async with open_nursery() as nursery:
        nursery.start_soon(publisher)
        with cancelling.scope:
            async with open_nursery() as inner:
                for _ in range(n):
                    inner.start_soon(consumer)
        gone.set()
        ledger.audit()
    trio.lowlevel.remove_instrument(cancelling)
    assert ledger.repaid_items[Outcome.CANCELLED] == len(received) - len(finished)
    received += told(mailbox)
    assert len(sent) == 9
    assert sorted(received) == sorted(sent)
    assert ledger.statistics().debt_items == 0
    assert set(repaid(ledger)) <= {"cancelled"}
    ledger.audit()
    return cancelling.scope.cancelled_caught


@pytest.mark.parametrize("consumers", [1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_cancellation_at_any_step_loses_nothing(
    consumers: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each event is received once or still there; what was being handled ends as cancelled."""
    caught = 0
    for step in range(1, 80):
        # Trio shuffles each batch of tasks with a generator of its own.
        monkeypatch.setattr("trio._core._run._r", random.Random(seed), raising=False)
        caught += trio.run(cancel_consumers, consumers, step)
    assert 20 < caught < 79  # from the first step to past the last


# -- loans that move ------------------------------------------------------------------------------


def test_a_loan_may_be_put_into_another_mailbox_and_back(
    ledger: Ledger, account: Account, mailbox: Mailbox, other: Mailbox
) -> None:
    """Each loan is in one place: the audit finds it once."""
    send(account, mailbox, "a")
    loan = mailbox.receive_nowait()
    other.put(loan)
    ledger.audit()
    assert [loan.items for loan in mailbox.loans()] == []
    assert other.receive_nowait() is loan
    ledger.audit()
    mailbox.put(loan)
    ledger.audit()
    assert mailbox.receive_nowait() is loan
    mailbox.put(loan)  # for another consumer of the same mailbox
    ledger.audit()
    assert told(mailbox) == ["a"]
    assert account.debt_items == 0


def test_giving_up_leaves_alone_what_has_moved_on(
    ledger: Ledger, account: Account, mailbox: Mailbox, other: Mailbox
) -> None:
    send(account, mailbox, "a")
    other.put(mailbox.receive_nowait())
    mailbox.give_up("it was slow")
    assert repaid(ledger) == {}
    assert told(other) == ["a"]


def test_what_was_taken_may_be_split(
    ledger: Ledger, account: Account, mailbox: Mailbox, other: Mailbox
) -> None:
    """For two workers, say."""
    send(account, mailbox, "a", "b", "c")
    loan = mailbox.receive_nowait()
    part = loan.split(1)
    ledger.audit()
    other.put(part)
    ledger.audit()
    assert told(other) == ["a"]
    with loan as events:
        assert events == ["b", "c"]
    assert account.debt_items == 0


@pytest.mark.rule(15)
def test_it_takes_nothing_but_loans(ledger: Ledger, account: Account, mailbox: Mailbox) -> None:
    """Rule 15."""
    with pytest.raises(NotALoanError, match="holds loans only"):
        mailbox.put(cast("LoanedItem[list[Any]]", "a"))
    loan = account.lend(["a"])
    loan.settle()
    with pytest.raises(NotALoanError, match="already settled"):
        mailbox.put(loan)
    loan = account.lend(["a"])
    mailbox.put(loan)
    assert told(mailbox) == ["a"]
    mailbox.close()
    mailbox.put(account.lend(["a"]))
    assert repaid(ledger) == {"dropped": 1}


@pytest.mark.rule(12)
def test_a_loan_that_was_taken_and_forgotten_is_seen(
    ledger: Ledger, account: Account, mailbox: Mailbox
) -> None:
    """Rule 12."""
    send(account, mailbox, "a", "b")
    mailbox.receive_nowait()
    gc.collect()
    with pytest.warns(ResourceWarning, match="somebody.*2 items.*inbox.*never settled"):
        ledger.audit()
    assert repaid(ledger) == {"leaked": 2}
    assert account.debt_items == 0


def test_a_mailbox_that_was_forgotten_is_seen(ledger: Ledger, account: Account) -> None:
    send(account, Mailbox(ledger, "forgotten"), "a")
    gc.collect()
    with pytest.warns(ResourceWarning, match="forgotten"):
        ledger.audit()
    assert repaid(ledger) == {"leaked": 1}


# -- its end --------------------------------------------------------------------------------------


def test_closing_drops_what_nobody_took(ledger: Ledger, account: Account, mailbox: Mailbox) -> None:
    send(account, mailbox, "a")
    loan = mailbox.receive_nowait()
    send(account, mailbox, "b", "c")
    with mailbox:
        pass
    assert repaid(ledger) == {"dropped": 2}
    assert account.debt_items == 1  # what was taken stays with whoever took it
    with pytest.raises(MailboxClosedError, match="inbox is closed"):
        mailbox.receive_nowait()
    send(account, mailbox, "d")  # whoever sends to it is not told off for it
    assert repaid(ledger) == {"dropped": 3}
    with loan as events:
        assert events == ["a"]
    mailbox.close()
    assert account.debt_items == 0


async def test_the_loop_ends_when_it_is_closed(account: Account, mailbox: Mailbox) -> None:
    ended: list[list[object]] = []

    async def consumer() -> None:
        received: list[object] = []
        async for loan in mailbox:
            with loan as events:
                received.extend(events)
        ended.append(received)

    async with open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(consumer)
        await anyio.wait_all_tasks_blocked()
        send(account, mailbox, "a")
        await anyio.wait_all_tasks_blocked()
        mailbox.close()
        await anyio.wait_all_tasks_blocked()
        assert sorted(map(len, ended)) == [0, 0, 1]
        with pytest.raises(MailboxClosedError):
            await mailbox.receive()
        nursery.cancel_scope.cancel()


async def test_all_consumers_learn_that_it_was_given_up(
    ledger: Ledger, account: Account, mailbox: Mailbox
) -> None:
    heard: list[str] = []

    async def consumer() -> None:
        try:
            async for loan in mailbox:
                loan.settle()
        except GivenUpError as exc:
            heard.append(str(exc))

    async with open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(consumer)
        await anyio.wait_all_tasks_blocked()
        mailbox.give_up("it made no progress")
        await anyio.wait_all_tasks_blocked()
        assert heard == ["mailbox inbox was closed: it made no progress"] * 2
        send(account, mailbox, "a")
        assert repaid(ledger) == {"dropped": 1}
        nursery.cancel_scope.cancel()


def test_giving_up_writes_off_what_is_queued_and_what_was_taken(
    ledger: Ledger, account: Account, mailbox: Mailbox
) -> None:
    send(account, mailbox, "a", "b")
    loan = mailbox.receive_nowait()
    send(account, mailbox, "c")
    with loan:
        mailbox.give_up("it made no progress")
        assert account.debt_items == 0
        assert repaid(ledger) == {"written_off": 3}
    assert repaid(ledger) == {"written_off": 3}  # not repaid again at the end of the block
    mailbox.close()
    with pytest.raises(GivenUpError):
        mailbox.receive_nowait()


@pytest.mark.rule(11)
@pytest.mark.parametrize("policy", [StuckPolicy.WAIT, StuckPolicy.DISCONNECT])
async def test_a_consumer_that_never_finishes(
    policy: StuckPolicy, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Rule 11: it is given up after its patience, or waited for; either way, the log names it."""
    ledger = Ledger(clock=anyio.current_time)
    account = ledger.open("publisher", limit=Limit(items=2, low_items=0))
    mailbox = Mailbox(ledger, "sleeper", patience=5.0, policy=policy)
    went_on: list[float] = []

    async def consumer() -> None:
        async for loan in mailbox:
            with loan:
                await anyio.sleep(12.5)

    async def disappointed_consumer() -> None:
        with pytest.raises(GivenUpError, match="publisher waits for"):
            await consumer()

    async def publisher() -> None:
        send(account, mailbox, "a", "b", "c")
        await anyio.wait_all_tasks_blocked()
        send(account, mailbox, "d")
        await account.ensure_clear_funds()
        went_on.append(anyio.current_time())

    async with open_nursery() as nursery:
        start = anyio.current_time()
        nursery.start_soon(watch_patience, ledger)
        nursery.start_soon(disappointed_consumer)
        nursery.start_soon(publisher)
        await anyio.sleep(11.75)
        if policy is StuckPolicy.WAIT:
            assert went_on == []
            assert [stuck.holder for stuck in overdue(ledger, anyio.current_time())] == [mailbox]
            assert repaid(ledger) == {}
            await anyio.sleep(14)  # two loans, 12.5 s each
            assert [moment - start for moment in went_on] == [25]
            mailbox.give_up("this is the end of the test; publisher waits for nothing any more")
        else:
            (moment,) = went_on
            assert 5 <= moment - start <= 6
            assert repaid(ledger) == {"written_off": 4}
        await anyio.sleep(14)
        nursery.cancel_scope.cancel()
    assert "mailbox sleeper made no progress" in caplog.text
    assert "publisher waits for" in caplog.text
    balance(ledger)
