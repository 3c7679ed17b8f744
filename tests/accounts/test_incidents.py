"""What has happened lately: who was given up, whose waits are over, and that it stays little."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from trio.testing import MockClock

from clearfunds.accounts import (
    NO_LIMIT,
    Ledger,
    Limit,
    StuckPolicy,
    watch_patience,
    watch_slow_waits,
)
from clearfunds.accounts.watch._incidents import (
    LATEST,
    NAMED,
    TOGETHER_SECONDS,
    GivenUp,
    Incident,
    Incidents,
)
from tests.accounts.conftest import Box, balance, boxes, publish
from tests.loops import LoopClock, open_nursery


@pytest.fixture
def timed(autojump_clock: MockClock) -> Iterator[Ledger]:
    """A ledger on the loop's own clock, which jumps to whatever happens next."""
    ledger = Ledger(clock=LoopClock())
    yield ledger
    balance(ledger)


def only(ledger: Ledger) -> Incident:
    (incident,) = ledger.incidents.latest()
    return incident


async def test_who_was_given_up_whose_events_are_lost_and_who_had_waited(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    accounts = [timed.open(f"p{n}", limit=Limit(items=1)) for n in range(5)]
    (stuck,) = boxes(timed, 1)
    for number, account in enumerate(accounts, 2):
        publish(account, [stuck], items=number, nbytes=10 * number)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        nursery.start_soon(watch_slow_waits, timed)
        await wait_all_tasks_blocked()
        async with open_nursery() as readers:
            for account in accounts:
                readers.start_soon(account.ensure_clear_funds)
        nursery.cancel_scope.cancel()
    incident = only(timed)
    given_up = incident.given_up
    assert given_up is not None
    assert (incident.holder, given_up.kind) == (stuck.name, "box")
    assert (given_up.items, given_up.bytes) == (20, 200)
    assert (given_up.debtors, given_up.debtors_more) == (("p4", "p3", "p2"), 2)
    assert 20.0 <= given_up.idle_seconds <= 20.5
    assert given_up.ring == 0
    # Those who waited for it went on because of it: that is no incident of its own.
    assert (incident.waits, incident.cancelled) == (5, 0)
    assert 20.0 <= incident.seconds <= 20.5
    assert (len(incident.accounts), incident.accounts_more) == (NAMED, True)
    assert incident.at == pytest.approx(anyio.current_time(), abs=0.1)


async def test_a_wait_that_was_slow_is_told_with_its_culprit(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    account = timed.open("publisher", limit=Limit(items=4, low_items=0))
    quick, slow = boxes(timed, 2)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_slow_waits, timed)
        await wait_all_tasks_blocked()
        for seconds in (0.5, 3.0, 2.0):
            publish(account, [quick, slow], items=3)
            async with open_nursery() as readers:
                readers.start_soon(account.ensure_clear_funds)
                await anyio.sleep(0.1)
                quick.work(3)
                await anyio.sleep(seconds)
                slow.work(3)
        nursery.cancel_scope.cancel()
    incident = only(timed)
    # The first of them was not slow.
    assert (incident.holder, incident.given_up) == (slow.name, None)
    assert (incident.waits, incident.cancelled, incident.accounts) == (2, 0, ["publisher"])
    assert incident.seconds == pytest.approx(3.1)


async def test_who_leaves_while_nothing_is_repaid_has_waited_for_who_held_most(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    account = timed.open("publisher", limit=Limit(items=0))
    few, many = boxes(timed, 2)
    publish(account, [few])
    publish(account, [many], items=2)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_slow_waits, timed)
        await wait_all_tasks_blocked()
        with anyio.move_on_after(7):
            await account.ensure_clear_funds()
        nursery.cancel_scope.cancel()
    incident = only(timed)
    assert (incident.holder, incident.waits, incident.cancelled) == (many.name, 1, 1)
    assert incident.seconds == pytest.approx(7)
    for box in (few, many):
        box.work(len(box.queue))


async def test_those_that_the_log_only_counts_are_in_it_too(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    server = timed.open("server", limit=Limit(items=0))
    accounts = [timed.open(f"p{n}", limit=NO_LIMIT, parent=server) for n in range(50)]
    (box,) = boxes(timed, 1)
    publish(accounts[0], [box])
    async with open_nursery() as nursery:
        nursery.start_soon(watch_slow_waits, timed)
        await wait_all_tasks_blocked()
        async with open_nursery() as readers:
            for account in accounts:
                readers.start_soon(account.ensure_clear_funds)
            await anyio.sleep(3)
            box.work()
        assert timed.slow_waits is not None
        assert not timed.slow_waits.suspects
        nursery.cancel_scope.cancel()
    incident = only(timed)
    assert (incident.holder, incident.waits) == (box.name, 50)


async def test_a_ring_that_was_parted_is_told_as_one(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    a, b = (timed.open(name, limit=Limit(items=4)) for name in "ab")
    for_a, for_b = boxes(timed, 2)
    for_a.owner, for_b.owner = a, b
    publish(a, [for_b], items=5)
    publish(b, [for_a], items=5)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        async with open_nursery() as readers:
            for account in (a, b):
                readers.start_soon(account.ensure_clear_funds)
            await anyio.sleep(21)
            (left,) = (box for box in (for_a, for_b) if not box.given_up)
            left.work(5)
        nursery.cancel_scope.cancel()
    incident = only(timed)
    assert incident.given_up is not None
    assert (incident.given_up.ring, incident.given_up.items) == (2, 5)


async def test_who_may_take_for_ever_is_not_given_up(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    account = timed.open("publisher", limit=Limit(items=0))
    box = Box(timed, "patient", patience=2.0, policy=StuckPolicy.WAIT)
    publish(account, [box])
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        with anyio.move_on_after(9):
            await account.ensure_clear_funds()
        nursery.cancel_scope.cancel()
    assert timed.incidents.latest() == []
    box.work()


def test_it_is_bounded_and_one_sort_does_not_push_out_the_other() -> None:
    ledger = Ledger()
    incidents = Incidents()
    gone = Box(ledger, "gone")
    incidents.add_given_up(gone, GivenUp("box", 1, 1, ("p",), 0, 20.0, 0), 0.0)
    for number in range(1000):
        for name in ("p", "q"):
            incidents.add_wait(name, f"box {number}", 1.5, 100.0 + number, clear=True)
    latest = incidents.latest()
    assert [each.holder for each in latest] == [
        *(f"box {number}" for number in range(999, 999 - LATEST, -1)),
        "gone",
    ]
    assert all(each.waits == 2 for each in latest[:-1])
    # The same again, later, is something new.
    incidents.add_wait("p", "gone", 1.5, TOGETHER_SECONDS + 0.1, clear=True)
    assert [each.waits for each in incidents.latest() if each.holder == "gone"] == [1, 0]


def test_a_holder_of_the_same_name_as_before_is_told_of_apart_when_time_has_passed() -> None:
    incidents = Incidents()
    for when in (0.0, 9.0, 18.0, 28.5):
        incidents.add_wait("p", None, 1.0, when, clear=False)
    assert [(each.waits, each.cancelled, each.at) for each in incidents.latest()] == [
        (1, 1, 28.5),
        (3, 3, 18.0),
    ]
