"""Alarms: all who publish wait, whatever they owe, until the last alarm is over."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import pytest
import trio
import trio.testing
from anyio.abc import TaskGroup
from hypothesis import given
from hypothesis import strategies as st

from clearfunds.accounts import (
    DISK,
    MEMORY,
    NO_LIMIT,
    Account,
    Alarms,
    Ledger,
    Limit,
    SelfWaitError,
    Watermark,
    overdue,
    wait_for_graph,
    watch_slow_waits,
)
from clearfunds.testing import Clock
from tests.accounts.conftest import Box, publish
from tests.loops import open_nursery


class Place:
    """A server with two connections below it, a clock, and readers that note when they go on."""

    def __init__(self, *, server: Limit = NO_LIMIT) -> None:
        self.clock = Clock()
        self.ledger = Ledger(clock=self.clock)
        self.server = self.ledger.open("server", limit=server)
        self.alice = self.ledger.open("alice", limit=Limit(items=10), parent=self.server)
        self.bob = self.ledger.open("bob", limit=NO_LIMIT, parent=self.server)
        self.went_on: list[str] = []

    async def read(self, account: Account) -> None:
        await account.ensure_clear_funds()
        self.went_on.append(account.name)

    async def come(self, nursery: TaskGroup, *accounts: Account) -> None:
        for account in accounts:
            nursery.start_soon(self.read, account)
            await anyio.wait_all_tasks_blocked()

    async def pass_(self, seconds: float) -> None:
        self.clock.now += seconds
        await anyio.wait_all_tasks_blocked()


def waited(books: Account | Ledger) -> dict[str, float]:
    return {k: v for k, v in books.statistics().waited_by_reason.items() if v}


# -- halting an account -------------------------------------------------------------------------


@pytest.mark.parametrize("server", [NO_LIMIT, Limit(items=1000)])
async def test_readers_wait_until_the_last_alarm_is_over(server: Limit) -> None:
    place = Place(server=server)
    place.server.halt(MEMORY)
    place.server.halt(DISK)
    place.server.halt(DISK)
    assert not place.alice.funds_are_clear()
    assert not place.server.funds_are_clear()
    async with open_nursery() as nursery:
        await place.come(nursery, place.alice, place.bob)
        assert place.went_on == []
        place.server.resume(DISK)
        place.server.resume(DISK)
        await place.pass_(1)
        assert place.went_on == []
        assert place.server.statistics().alarms == (MEMORY,)
        place.server.resume(MEMORY)
    assert place.went_on == ["alice", "bob"]
    assert place.server.statistics().alarms == ()
    assert place.alice.funds_are_clear()
    assert not place.server.gated


async def test_an_account_opened_during_an_alarm_waits_as_well() -> None:
    place = Place()
    place.server.halt(MEMORY)
    carol = place.ledger.open("carol", limit=NO_LIMIT, parent=place.server)
    assert not carol.funds_are_clear()
    place.server.resume(MEMORY)
    assert carol.funds_are_clear()


async def test_who_owes_nothing_elsewhere_is_not_hindered() -> None:
    place = Place()
    disk = place.ledger.open("disk", limit=NO_LIMIT)
    place.server.halt(DISK)
    assert disk.funds_are_clear()
    place.alice.halt(DISK)
    place.server.resume(DISK)
    assert place.bob.funds_are_clear()
    assert not place.alice.funds_are_clear()


async def test_borrowing_and_repaying_go_on() -> None:
    place = Place()
    box = Box(place.ledger, "box")
    place.server.halt(MEMORY)
    publish(place.alice, [box], items=3)
    assert place.server.debt_items == 3
    box.work(3)
    assert place.server.debt_items == 0
    place.ledger.audit()


async def test_debt_and_alarms_are_looked_at_apart() -> None:
    place = Place()
    assert place.alice.debt_is_clear()
    place.server.halt(MEMORY)
    assert place.alice.debt_is_clear()
    assert not place.alice.funds_are_clear()
    place.alice.borrow(11, 0)
    assert not place.alice.debt_is_clear()
    place.alice.repay(11, 0)
    assert place.alice.debt_is_clear()


async def test_a_reader_goes_on_only_when_neither_debt_nor_alarm_is_in_its_way() -> None:
    for alarm_first in (True, False):
        place = Place()
        place.alice.borrow(11, 0)
        place.server.halt(MEMORY)
        async with open_nursery() as nursery:
            await place.come(nursery, place.alice)
            steps: list[Any] = [lambda p=place: p.server.resume(MEMORY)]
            steps.insert(0 if not alarm_first else 1, lambda p=place: p.alice.repay(11, 0))
            steps[0]()
            await place.pass_(1)
            assert place.went_on == []
            steps[1]()
        assert place.went_on == ["alice"]


async def test_a_cancelled_reader_leaves_nothing_behind() -> None:
    place = Place()
    place.server.halt(DISK)
    async with open_nursery() as nursery:
        await place.come(nursery, place.alice, place.bob)
        nursery.cancel_scope.cancel()
    assert place.server.waiting == place.alice.waiting == 0
    place.server.resume(DISK)
    assert not place.server.gated
    assert place.alice.funds_are_clear()


async def test_waiting_for_an_alarm_inside_a_turn_is_refused() -> None:
    place = Place()
    place.server.halt(MEMORY)
    with place.alice.turn(b""), pytest.raises(SelfWaitError):
        await place.alice.ensure_clear_funds()
    place.server.resume(MEMORY)


# -- what is counted ----------------------------------------------------------------------------


async def test_waits_for_an_alarm_are_counted_as_such() -> None:
    place = Place()
    place.server.halt(MEMORY)
    async with open_nursery() as nursery:
        await place.come(nursery, place.alice, place.bob)
        await place.pass_(3)
        assert waited(place.ledger) == {"alarm": 6.0}
        place.server.resume(MEMORY)
    await place.pass_(5)
    assert waited(place.ledger) == {"alarm": 6.0}
    assert waited(place.bob) == {"alarm": 3.0}
    statistics = place.ledger.statistics()
    assert statistics.waits_by_reason["alarm"] == statistics.waits == 2
    assert place.alice.statistics().blame == {"(alarm: memory)": 3.0}


async def test_a_wait_is_parted_where_an_alarm_goes_up_and_is_over() -> None:
    """Alice waits for her own debt, 1 s; for the server's, 2 s; for alarms, 4 + 8 s; then 16."""
    place = Place(server=Limit(items=20, low_items=20))
    box, cellar = Box(place.ledger, "box"), Box(place.ledger, "cellar")
    publish(place.alice, [box], items=11)
    publish(place.bob, [cellar], items=21)
    async with open_nursery() as nursery:
        await place.come(nursery, place.alice)
        await place.pass_(1)
        box.work(11)
        await place.pass_(0)
        await place.pass_(2)
        place.server.halt(DISK)
        await place.pass_(4)
        place.server.halt(MEMORY)
        await place.pass_(8)
        cellar.work(0)
        place.server.resume(DISK)
        place.server.resume(MEMORY)
        await place.pass_(16)
        assert place.went_on == []
        cellar.work(1)
    assert place.went_on == ["alice"]
    assert waited(place.alice) == {"account": 1.0, "parent": 18.0, "alarm": 12.0}
    assert place.alice.statistics().blame == {
        "box": 1.0,
        "(alarm: disk)": 4.0,
        "(alarm: disk, memory)": 8.0,
        "cellar": 16.0,
    }
    cellar.work(20)


async def test_who_repays_during_an_alarm_is_not_to_blame() -> None:
    place = Place()
    box = Box(place.ledger, "box")
    publish(place.bob, [box], items=4)
    place.server.halt(DISK)
    async with open_nursery() as nursery:
        await place.come(nursery, place.alice)
        for _ in range(4):
            await place.pass_(1)
            box.work(1)
        place.server.resume(DISK)
    assert place.server.statistics().blame == {"(alarm: disk)": 4.0}


@pytest.mark.rule(11)
async def test_repayments_are_waited_for_when_memory_is_short_and_not_when_the_disk_is() -> None:
    """Rule 11: a subscriber that takes nothing is given up only where that is a remedy."""
    for alarm, remedy in ((MEMORY, True), (DISK, False)):
        place = Place()
        box = Box(place.ledger, "box", patience=20)
        publish(place.bob, [box], items=4)
        place.server.halt(alarm)
        async with open_nursery() as nursery:
            await place.come(nursery, place.alice)
            await place.pass_(21)
            stuck = overdue(place.ledger, place.clock.now)
            assert [each.holder for each in stuck] == ([box] if remedy else [])
            waits = wait_for_graph(place.ledger)
            assert [each.waiting for each in waits] == ([("alice",)] if remedy else [])
            assert all(each.over_items == 0 for each in waits)
            place.server.resume(alarm)
        box.work(4)


async def test_a_slow_wait_for_an_alarm_is_told_of_as_one(
    caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    ledger = Ledger(clock=anyio.current_time)
    server = ledger.open("server", limit=NO_LIMIT)
    alice = ledger.open("alice", parent=server)
    server.halt(MEMORY)
    with caplog.at_level(logging.INFO, logger="clearfunds.accounts"):
        async with open_nursery() as nursery:
            nursery.start_soon(watch_slow_waits, ledger)
            await anyio.wait_all_tasks_blocked()
            nursery.start_soon(alice.ensure_clear_funds)
            await anyio.sleep(5)
            server.resume(MEMORY)
            await anyio.sleep(1)
            nursery.cancel_scope.cancel()
    began, ended = caplog.records
    assert "for an alarm (memory)" in began.getMessage()
    assert vars(began)["alarms"] == [MEMORY]
    assert "for which it waited on (alarm: memory) (5.0 s, 100%)" in ended.getMessage()
    assert [each.holder for each in ledger.incidents.latest()] == ["(alarm: memory)"]


# -- the marks ----------------------------------------------------------------------------------


def test_between_the_marks_nothing_changes() -> None:
    memory = Watermark(mark=600, clear=500)
    assert [memory.after(value, up=False) for value in (500, 600, 601)] == [False, False, True]
    assert [memory.after(value, up=True) for value in (601, 501, 500)] == [True, True, False]
    disk = Watermark(mark=50, clear=60)
    assert [disk.after(value, up=False) for value in (60, 50, 49)] == [False, False, True]
    assert [disk.after(value, up=True) for value in (49, 59, 60)] == [True, True, False]


@pytest.mark.parametrize(("mark", "clear"), [(5, 5), (-1, 5), (5, -1)])
def test_marks_that_make_no_sense_are_refused(mark: int, clear: int) -> None:
    with pytest.raises(ValueError, match=str(mark)):
        Watermark(mark, clear)


@given(
    st.sampled_from([Watermark(60, 50), Watermark(50, 60)]),
    st.lists(st.integers(30, 80), max_size=30),
)
def test_an_alarm_is_up_since_it_was_last_beyond_its_mark_and_not_back(
    watermark: Watermark, samples: list[int]
) -> None:
    clock = Clock()
    server = Ledger(clock=clock).open("server")
    alarms = Alarms(server, {MEMORY: watermark})
    up = False
    for value in samples:
        clock.now += 1
        beyond = value > 60 if watermark.against_much else value < 50
        back = value <= 50 if watermark.against_much else value >= 60
        changed = (beyond and not up) or (back and up)
        up = beyond or (up and not back)
        assert alarms.sample(MEMORY, value) == (up if changed else None)
        assert server.halted == ((MEMORY,) if up else ())
        assert alarms.up == ((MEMORY,) if up else ())
        assert server.ledger.alarms == {MEMORY: up}


def test_statistics_and_the_log_say_what_and_for_how_long(
    caplog: pytest.LogCaptureFixture,
) -> None:
    place = Place()
    alarms = Alarms(place.server, {MEMORY: Watermark(600, 500), DISK: Watermark(50, 60)})
    assert [each.value for each in alarms.statistics()] == [None, None]
    with caplog.at_level(logging.WARNING, logger="clearfunds.accounts"):
        alarms.sample(MEMORY, 601)
        place.clock.now += 2
        alarms.sample(DISK, 10)
        place.clock.now += 3
        alarms.sample(MEMORY, 400)
        assert set(place.server.halted) == {DISK}
        place.clock.now += 4
        alarms.sample(DISK, 61)
        alarms.sample(DISK, 55)
    assert place.server.halted == ()
    until = "; all who publish wait until it is"
    assert [record.getMessage() for record in caplog.records] == [
        f"alarm: memory is short: 601 bytes are in use, more than 600{until} 500",
        f"alarm: the disk is nearly full: 10 bytes are free, less than 50{until} 60",
        "alarm over after 5.0 s: 400 bytes are in use; the alarm of disk is still up",
        "alarm over after 7.0 s: 61 bytes are free; 0 that wait go on",
    ]
    assert {vars(record)["event"] for record in caplog.records} == {"alarm"}
    assert [vars(record)["up"] for record in caplog.records] == [True, True, False, False]
    memory, disk = alarms.statistics()
    assert (memory.kind, memory.up, memory.value, memory.raised) == (MEMORY, False, 400, 1)
    assert (memory.seconds, disk.seconds, disk.value) == (5.0, 7.0, 55)


def test_who_watches_no_more_leaves_no_alarm() -> None:
    place = Place()
    alarms = Alarms(place.server, {MEMORY: Watermark(600, 500)})
    alarms.sample(MEMORY, 700)
    alarms.clear_all()
    assert place.server.halted == ()
    assert alarms.up == ()
    assert place.ledger.alarms == {MEMORY: False}
