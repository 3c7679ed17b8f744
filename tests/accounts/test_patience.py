"""Rule 11: nobody waits for ever in silence."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from clearfunds.accounts import (
    NO_LIMIT,
    Account,
    Ledger,
    Limit,
    Outcome,
    StuckPolicy,
    overdue,
    watch_patience,
)
from tests.accounts.conftest import Box, balance, boxes, owed, publish

LOGGER = "clearfunds.accounts"


@pytest.fixture
def timed(autojump_clock: MockClock) -> Iterator[Ledger]:
    """A ledger on the loop's own clock, which jumps to whatever happens next.

    (A test has to name `autojump_clock` itself, or pytest-trio does not find it.)
    """
    ledger = Ledger(clock=autojump_clock.current_time)
    yield ledger
    balance(ledger)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    assert all(r.levelno == logging.WARNING and r.name == LOGGER for r in caplog.records)
    return [record.message for record in caplog.records]


# -- disconnect -----------------------------------------------------------------------------------


async def test_a_stuck_holder_is_given_up_and_the_rest_go_on(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    account = timed.open("publisher", limit=Limit(items=4, low_items=0))
    good, stuck = boxes(timed, 2)
    went_on: list[float] = []

    async def publisher() -> None:
        for _ in range(3):
            await account.ensure_clear_funds()
            went_on.append(trio.current_time())
            publish(account, [good, stuck], items=3, nbytes=30)

    async def worker() -> None:
        while True:
            with await good.receive():
                await trio.sleep(0.1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        nursery.start_soon(worker)
        begin = trio.current_time()
        with trio.fail_after(60):
            await publisher()
        await trio.sleep(0.2)
        nursery.cancel_scope.cancel()

    # The first goes through; the second waits for the patience, to within one look.
    assert went_on[0] == begin
    assert 20.0 <= went_on[1] - begin <= 20.5
    assert went_on[2] == pytest.approx(went_on[1] + 0.1) or went_on[2] == went_on[1]
    assert len(stuck.given_up) == 1
    assert not good.given_up
    (message,) = warnings_of(caplog)
    assert message == (
        "box O2 made no progress for 20.0 s (patience 20 s) and holds 3 items, 30 bytes that "
        "publisher waits for; giving it up, its debt is written off"
    )
    assert stuck.given_up == [message.partition(";")[0]]
    assert timed.statistics().repaid_items["written_off"] == 3
    assert timed.statistics().repaid_bytes["written_off"] == 30
    assert timed.statistics().repaid_items["dropped"] == 6
    assert owed(account) == (0, 0)
    statement = account.statistics()
    assert statement.blame["O2"] >= 19.5
    assert sum(statement.blame.values()) == pytest.approx(statement.waited_seconds)


async def test_the_log_names_all_who_wait(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    server = timed.open("server", limit=Limit(items=3, low_items=0))
    accounts = [timed.open(f"p{i:02}", limit=NO_LIMIT, parent=server) for i in range(25)]
    (box,) = boxes(timed, 1)
    publish(accounts[0], [box], items=4, nbytes=40)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        async with trio.open_nursery() as readers:
            for account in accounts[1:3]:
                readers.start_soon(account.ensure_clear_funds)
        nursery.cancel_scope.cancel()
    (message,) = warnings_of(caplog)
    # Whoever owes it, those are named who wait for it.
    assert "holds 4 items, 40 bytes that p01, p02 wait for" in message

    caplog.clear()
    (box,) = boxes(timed, 1, "again ")
    publish(accounts[0], [box], items=4)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        async with trio.open_nursery() as readers:
            for account in accounts:
                readers.start_soon(account.ensure_clear_funds)
        nursery.cancel_scope.cancel()
    (message,) = warnings_of(caplog)
    assert f"{', '.join(a.name for a in accounts[:20])} and 5 more wait for" in message


# -- wait -----------------------------------------------------------------------------------------


async def test_with_wait_it_is_waited_for_and_named_once_a_patience(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    account = timed.open("publisher", limit=Limit(items=0))
    box = Box(timed, "patient", patience=10.0, policy=StuckPolicy.WAIT)
    publish(account, [box], items=2)
    begin = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        async with trio.open_nursery() as readers:
            readers.start_soon(account.ensure_clear_funds)
            await trio.sleep(35)
            assert len(warnings_of(caplog)) == 3  # at 10, 20 and 30 s
            box.work()
            await trio.sleep(9)
            assert len(warnings_of(caplog)) == 3  # it made progress
            await trio.sleep(2)
            assert len(warnings_of(caplog)) == 4
            assert account.waiting == 1
            box.work()
        nursery.cancel_scope.cancel()
    assert trio.current_time() - begin == 46
    assert not box.given_up
    assert warnings_of(caplog)[0] == (
        "box patient made no progress for 10.0 s (patience 10 s) and holds 2 items, 0 bytes that "
        "publisher waits for; its policy is to wait"
    )
    assert account.statistics().blame == {"patient": 46.0}
    assert account.statistics().waited_seconds == 46.0


# -- who is not dealt with ------------------------------------------------------------------------


async def test_nobody_waits_nothing_happens(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    account = timed.open("publisher", limit=Limit(items=0))
    (box,) = boxes(timed, 1)
    publish(account, [box])
    with trio.move_on_after(1000):
        await watch_patience(timed)
    assert not caplog.records
    assert not box.given_up
    assert overdue(timed, trio.current_time()) == []
    box.work()


async def test_patience_begins_when_somebody_begins_to_wait(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    account = timed.open("publisher", limit=Limit(items=0))
    (box,) = boxes(timed, 1)
    publish(account, [box])
    await trio.sleep(1000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(account.ensure_clear_funds)
        await trio.sleep(19)
        assert overdue(timed, trio.current_time()) == []
        await trio.sleep(1)
        (stuck,) = overdue(timed, trio.current_time())
        assert (stuck.holder, stuck.waiting, stuck.items) == (box, ("publisher",), 1)
        assert stuck.idle_seconds == 20
        assert overdue(timed, trio.current_time(), []) == []
        box.work()


async def test_a_holder_that_makes_progress_may_take_its_time(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    account = timed.open("publisher", limit=Limit(items=0))
    (slow,) = boxes(timed, 1)
    publish(account, [slow], items=10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        async with trio.open_nursery() as readers:
            readers.start_soon(account.ensure_clear_funds)
            for _ in range(10):
                await trio.sleep(15)
                slow.work()
        nursery.cancel_scope.cancel()
    assert not slow.given_up
    assert not caplog.records
    assert account.statistics().waited_seconds == 150


async def test_who_holds_nothing_that_is_waited_for_is_left_alone(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    waiting = timed.open("waiting", limit=Limit(items=0))
    other = timed.open("other", limit=Limit(items=0))
    held, elsewhere, nothing = boxes(timed, 3)
    publish(waiting, [held])
    publish(other, [elsewhere], items=50)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(waiting.ensure_clear_funds)
        await trio.sleep(100)
        assert [s.holder for s in overdue(timed, trio.current_time())] == [held]
        held.work()
    elsewhere.work(50)
    assert not nothing.queue


async def test_what_is_counted_is_what_is_waited_for(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    """Not all that the holder has, and whoever in the family it is of (rule 13)."""
    tenant = timed.open("tenant", limit=Limit(items=5, low_items=0))
    a = timed.open("a", limit=Limit(items=0), parent=tenant)
    b = timed.open("b", limit=NO_LIMIT, parent=tenant)
    stranger = timed.open("stranger")
    (box,) = boxes(timed, 1)
    publish(a, [box], items=1, nbytes=1)
    publish(b, [box], items=7, nbytes=70)
    publish(stranger, [box], items=100)
    now = trio.current_time
    async with trio.open_nursery() as nursery:
        nursery.start_soon(a.ensure_clear_funds)  # at its own account
        await trio.sleep(10)
        nursery.start_soon(b.ensure_clear_funds)  # at the tenant's
        await trio.sleep(20)
        (stuck,) = overdue(timed, now())
        assert (stuck.waiting, stuck.items, stuck.bytes) == (("a", "b"), 8, 71)
        assert stuck.idle_seconds == 30  # since the first of them began
        box.close()


async def test_it_counts_from_the_first_of_several_readers(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    tenant = timed.open("tenant", limit=Limit(items=1, low_items=0))
    account: Account = timed.open("a", limit=Limit(items=3, low_items=0), parent=tenant)
    (box,) = boxes(timed, 1)
    publish(account, [box], items=2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(account.ensure_clear_funds)  # waits at the tenant's
        await trio.sleep(15)
        publish(account, [box], items=2)
        nursery.start_soon(account.ensure_clear_funds)  # waits at its own
        await trio.sleep(5)
        (stuck,) = overdue(timed, trio.current_time())
        assert (stuck.waiting, stuck.idle_seconds, stuck.items) == (("a",), 20, 4)
        box.close()


async def test_several_stuck_holders_at_once(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    account = timed.open("publisher", limit=Limit(items=2, low_items=0))
    peers = boxes(timed, 9)
    publish(account, peers)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        async with trio.open_nursery() as readers:
            readers.start_soon(account.ensure_clear_funds)
            await wait_all_tasks_blocked()
            for peer in peers[3:]:
                peer.work()
        nursery.cancel_scope.cancel()
    assert [bool(peer.given_up) for peer in peers] == [True] * 3 + [False] * 6
    assert len(warnings_of(caplog)) == 3
    assert timed.statistics().repaid_items["written_off"] == 3


async def test_what_leaked_is_not_waited_for_for_ever(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    """Rules 11 and 12: all who would take the next turn wait, so the watch has to look."""
    account = timed.open("publisher", limit=Limit(items=0))
    loans = [account.lend(""), account.lend("")]

    async def wait_for_them() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch_patience, timed)
            async with trio.open_nursery() as readers:
                readers.start_soon(account.ensure_clear_funds)
                await wait_all_tasks_blocked()
                loans.clear()
            nursery.cancel_scope.cancel()

    with trio.fail_after(1), pytest.warns(ResourceWarning, match="was never settled"):
        await wait_for_them()
    assert timed.statistics().leaked_loans == 2


async def test_who_is_about_to_wait_looks_for_leaks_first(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    account = timed.open("publisher", limit=Limit(items=0))
    account.lend("")
    with pytest.warns(ResourceWarning, match="was never settled"), trio.fail_after(1):
        await account.ensure_clear_funds()
    assert account.waits == 0


async def test_a_holder_that_cannot_be_given_up_does_not_end_the_watch(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    class Stubborn(Box):
        def give_up(self, why: str) -> None:
            raise OSError("it will not")

    ledger = Ledger(clock=trio.current_time)
    one, two = (ledger.open(name, limit=Limit(items=1)) for name in ("one", "two"))
    stubborn, other = Stubborn(ledger, "stubborn"), Box(ledger, "other")
    for account, box in ((one, stubborn), (two, other)):
        with account.turn() as turn:
            turn.send(box, "a")
            turn.send(box, "b")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_patience, ledger)
        nursery.start_soon(one.ensure_clear_funds)
        await two.ensure_clear_funds()
        assert "stubborn could not be given up" in caplog.text
        nursery.cancel_scope.cancel()
    stubborn.settle_all(Outcome.DROPPED)
    ledger.audit()
