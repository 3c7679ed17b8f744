"""Watching memory and the disk: what is measured, and that who publishes waits."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from clearfunds.accounts import DISK, MEMORY, NO_LIMIT, Alarms, Ledger, Watermark
from clearfunds.relay._alarms import (
    AlarmSettings,
    disk_free,
    memory_limit,
    watch_alarms,
    watermarks,
)
from clearfunds.relay._memory import (
    TRIM_BYTES,
    TRIM_OFTEN_SECONDS,
    TRIM_SECONDS,
    MemoryInUse,
    give_back,
    memory_used,
)


class Machine:
    """What would be measured."""

    used = 0
    """What is resident."""
    freed = 0
    """How much of it goes when it is given back."""
    limit = 1000
    free = 10**9
    broken: OSError | None = None

    def used_now(self) -> int:
        if self.broken is not None:
            raise self.broken
        return self.used

    def give_back(self) -> None:
        self.used -= self.freed
        self.freed = 0

    def limit_now(self) -> int:
        return self.limit

    def free_now(self, directory: str | os.PathLike[str]) -> int:
        assert str(directory) == "/store"
        return self.free


async def watched(
    nursery: trio.Nursery,
    machine: Machine,
    ledger: Ledger,
    settings: AlarmSettings | None = None,
    *,
    trims: bool = True,
) -> Alarms:
    async def start(task_status: trio.TaskStatus[Alarms]) -> None:
        await watch_alarms(
            ledger.open("server", limit=NO_LIMIT),
            settings,
            "/store",
            used=machine.used_now,
            trim=machine.give_back if trims else None,
            limit=machine.limit_now,
            free=machine.free_now,
            task_status=task_status,
        )

    alarms: Alarms = await nursery.start(start)
    return alarms


async def until(there: Callable[[], bool]) -> None:
    """Wait for what a thread has to find out first."""
    with trio.fail_after(30):
        while not there():  # noqa: ASYNC110 (a thread is waited for)
            await trio.sleep(0.002)


async def test_readers_wait_while_either_is_short() -> None:
    machine, ledger = Machine(), Ledger()
    async with trio.open_nursery() as nursery:
        alarms = await watched(nursery, machine, ledger, AlarmSettings(seconds=0.002))
        alice = ledger.open("alice", parent=ledger.accounts["server"])
        await until(lambda: None not in [each.value for each in alarms.statistics()])
        assert alice.funds_are_clear()
        machine.used = 601
        await until(lambda: alarms.up == (MEMORY,))
        assert not alice.funds_are_clear()
        machine.free = 49_999_999
        await until(lambda: alarms.up == (MEMORY, DISK))
        machine.used = 570
        await until(lambda: alarms.up == (DISK,))
        assert not alice.funds_are_clear()
        machine.free = 52_500_000
        await until(alice.funds_are_clear)
        machine.used = 601
        await until(lambda: alarms.up == (MEMORY,))
        nursery.cancel_scope.cancel()
    # Whoever stops watching leaves nobody waiting.
    assert alice.funds_are_clear()
    assert ledger.alarms == {MEMORY: False, DISK: False}


async def test_a_disk_that_does_not_answer_keeps_nothing_else_from_being_measured(
    autojump_clock: trio.testing.MockClock,
) -> None:
    asked, answer = threading.Event(), threading.Event()

    def free(directory: str | os.PathLike[str]) -> int:
        asked.set()
        answer.wait(10)
        return 10**9

    machine, ledger = Machine(), Ledger(clock=trio.current_time)
    autojump_clock.autojump_threshold = 0.01
    server = ledger.open("server", limit=NO_LIMIT)
    try:
        async with trio.open_nursery() as nursery:

            async def start(task_status: trio.TaskStatus[Alarms]) -> None:
                await watch_alarms(
                    server,
                    directory="/store",
                    used=machine.used_now,
                    trim=None,  # a thread that the clock does not wait for
                    limit=machine.limit_now,
                    free=free,
                    task_status=task_status,
                )

            alarms = await nursery.start(start)
            await trio.to_thread.run_sync(asked.wait, 10)
            machine.used = 700
            await trio.sleep(3)
            assert alarms.up == (MEMORY,)
            assert [each.value for each in alarms.statistics()] == [700, None]
            nursery.cancel_scope.cancel()
    finally:
        answer.set()


async def test_what_cannot_be_measured_is_said_once_and_changes_nothing(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    machine, ledger = Machine(), Ledger(clock=trio.current_time)
    machine.used = 700
    with caplog.at_level(logging.WARNING, logger="clearfunds.relay"):
        async with trio.open_nursery() as nursery:
            # A thread is nothing that the clock would wait for.
            settings = AlarmSettings(disk_free=None)
            alarms = await watched(nursery, machine, ledger, settings, trims=False)
            await trio.sleep(1.5)
            machine.broken = OSError(5, "Input/output error")
            await trio.sleep(5)
            assert alarms.up == (MEMORY,)
            machine.broken = None
            await trio.sleep(1)
            machine.broken = OSError(5, "Input/output error")
            await trio.sleep(5)
            nursery.cancel_scope.cancel()
    mine = [each for each in caplog.records if vars(each).get("event") == "alarm_unknown"]
    assert [record.getMessage() for record in mine] == [
        "the alarm of memory stays as it is: it cannot be measured: Input/output error"
    ] * 2


async def test_with_nothing_to_watch_it_stays_until_it_is_cancelled(
    autojump_clock: trio.testing.MockClock,
) -> None:
    machine, ledger = Machine(), Ledger(clock=trio.current_time)
    with trio.move_on_after(5) as scope:
        async with trio.open_nursery() as nursery:
            nothing = AlarmSettings(memory=None, disk_free=None)
            alarms = await watched(nursery, machine, ledger, nothing)
            assert alarms.statistics() == ()
    assert scope.cancelled_caught


# -- the marks ----------------------------------------------------------------------------------


def test_the_marks_are_shares_or_bytes() -> None:
    assert watermarks(AlarmSettings(), 10_000, disk=True) == {
        MEMORY: Watermark(6000, 5700),
        DISK: Watermark(50_000_000, 52_500_000),
    }
    assert watermarks(AlarmSettings(memory=1.0), 10_000, disk=False) == {
        MEMORY: Watermark(10_000, 9500)
    }
    settings = AlarmSettings(memory=3000, disk_free=7)
    assert watermarks(settings, 10_000, disk=True) == {
        MEMORY: Watermark(3000, 2850),
        DISK: Watermark(7, 8),
    }
    assert watermarks(AlarmSettings(memory=None, disk_free=None), 10, disk=True) == {}


@pytest.mark.parametrize("wrong", [{"memory": 0}, {"disk_free": 0}, {"seconds": 0}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be above 0"):
        AlarmSettings(**wrong)


async def test_memory_that_is_free_raises_no_alarm() -> None:
    machine, ledger = Machine(), Ledger()
    async with trio.open_nursery() as nursery:
        alarms = await watched(nursery, machine, ledger, AlarmSettings(seconds=0.002))
        machine.freed = 100
        machine.used = 650
        await until(lambda: alarms.statistics()[0].value == 550)
        assert not alarms.up
        assert alarms.statistics()[0].raised == 0
        nursery.cancel_scope.cancel()


async def test_free_memory_is_given_back_now_and_then_while_much_is_in_use() -> None:
    now, trims, used = [0.0], [0], [100]

    def trim() -> None:
        trims[0] += 1
        used[0] -= 10

    memory = MemoryInUse(100, used=lambda: used[0], trim=trim, clock=lambda: now[0])
    assert await memory.measure() == 100
    assert trims == [0]
    used[0] = 150
    assert await memory.measure() == 140
    assert await memory.measure() == 140
    assert trims == [1]
    now[0] = TRIM_SECONDS
    assert await memory.measure() == 130
    assert trims == [2]


async def test_what_a_burst_took_is_given_back_far_from_an_alarm() -> None:
    now, trims, used = [0.0], [0], [100]

    def trim() -> None:
        trims[0] += 1

    memory = MemoryInUse(1 << 40, used=lambda: used[0], trim=trim, clock=lambda: now[0])
    for seconds, size, expected in (
        (0.0, 100, 0),
        (100.0, 100 + TRIM_BYTES, 0),
        (101.0, 101 + TRIM_BYTES, 1),
        (100.5 + TRIM_OFTEN_SECONDS, 101 + TRIM_BYTES, 1),
        (101.0 + TRIM_OFTEN_SECONDS, 101 + TRIM_BYTES, 2),
    ):
        now[0], used[0] = seconds, size
        assert await memory.measure() == size
        assert trims == [expected]


def test_what_the_allocator_keeps_is_given_back() -> None:
    give_back()
    # Between them are objects that stay: what is free is in the middle of the heap.
    blocks = [bytearray(os.urandom(1)) * 60_000 for _ in range(2_000)]
    stay = blocks[::20]
    before = memory_used()
    del blocks
    give_back()
    assert before - memory_used() > 80 << 20
    assert len(stay) == 100


# -- what is measured ---------------------------------------------------------------------------


def test_the_memory_of_this_process_is_measured() -> None:
    before = memory_used()
    block = bytearray(os.urandom(1)) * (64 << 20)
    after = memory_used()
    assert before > 1 << 20
    assert after - before > 32 << 20
    assert len(block) == 64 << 20


def test_this_machine_says_how_much_there_may_be() -> None:
    assert memory_used() < memory_limit()


def test_the_disk_says_what_is_free(tmp_path: Path) -> None:
    assert disk_free(tmp_path) >= 0
    with pytest.raises(OSError, match="No such file"):
        disk_free(tmp_path / "gone")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal:       1000 kB\nMemFree:        1 kB\n")
    return proc


@pytest.mark.parametrize(
    ("of_group", "files", "expected"),
    [
        ("", {}, 1_024_000),  # no control groups
        ("0::/a/b\n", {}, 1_024_000),  # and none mounted
        ("0::/a/b\n", {"a/b/memory.max": "5000\n"}, 5000),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "7000\n"}, 7000),
        ("0::/a/b\n", {"a/b/memory.max": "8000\n", "a/memory.max": "7000\n"}, 7000),
        ("0::/a/b\n", {"a/b/memory.max": "9000000\n"}, 1_024_000),
        ("0::/elsewhere\n", {"memory.max": "6000\n"}, 6000),  # seen from inside a container
        ("0::/\n", {"memory.max": "6000\n"}, 6000),
        (
            "9:cpu,memory:/x\n3:pids:/x\n",
            {"memory/x/memory.limit_in_bytes": "4000\n", "x/memory.max": "1\n"},
            4000,
        ),
        ("9:memory:/x\n", {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, 1_024_000),
    ],
)
def test_a_control_group_may_allow_less_than_the_machine_has(
    proc: Path, tmp_path: Path, of_group: str, files: dict[str, str], expected: int
) -> None:
    (proc / "self/cgroup").write_text(of_group)
    cgroups = tmp_path / "cgroup"
    for name, text in files.items():
        (cgroups / name).parent.mkdir(parents=True, exist_ok=True)
        (cgroups / name).write_text(text)
    assert memory_limit(proc, cgroups) == expected


def test_a_machine_that_does_not_say_what_it_has_is_an_error(proc: Path) -> None:
    (proc / "meminfo").write_text("nothing\n")
    with pytest.raises(OSError, match="does not say MemTotal"):
        memory_limit(proc)
