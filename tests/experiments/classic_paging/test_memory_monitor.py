"""The memory monitor: what it asks for, and of whom."""

from __future__ import annotations

import gc
import math

import pytest

from experiments.classic_paging import MemoryMonitor

LIMIT = 1000


class Room:
    """A monitor, with its memory and its time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.used = 0
        self.short = False
        self.monitor = MemoryMonitor(
            clock=lambda: self.now,
            used=lambda: self.used,
            limit=LIMIT,
            disk_short=lambda: self.short,
        )


class Told:
    """A queue that notes what it is told without having asked."""

    def __init__(self, room: Room, seconds: float | None = None) -> None:
        self.targets: list[float] = []
        room.monitor.register(self)
        if seconds is not None:
            room.monitor.report(self, seconds)

    def set_duration_target(self, seconds: float) -> None:
        self.targets.append(seconds)


@pytest.fixture
def room() -> Room:
    return Room()


@pytest.mark.parametrize(
    ("used", "durations", "expected"),
    [
        (499, [10.0], math.inf),  # below half of the limit
        (500, [10.0], (10.0 + 1.0) / 1 / 0.5),
        (800, [10.0, 30.0], (40.0 + 1.0) / 2 / 0.8),
        (949, [10.0, 30.0], (40.0 + 1.0) / 2 / 0.949),
        (950, [10.0, 30.0], 40.0 / 2 / 0.95),  # nothing more on top
        (2000, [10.0, 30.0], 40.0 / 2 / 2.0),
        (800, [10.0, math.inf], (10.0 + 1.0) / 1 / 0.8),  # in one of them nothing moves
        (800, [math.inf], math.inf),
        (800, [], math.inf),
        (2000, [0.0], 0.0),
    ],
)
def test_the_target_is_the_average_the_less_the_more_is_used(
    room: Room, used: int, durations: list[float], expected: float
) -> None:
    queues = [Told(room, seconds) for seconds in durations]
    room.used = used
    room.monitor.update()
    assert room.monitor.target == pytest.approx(expected)
    assert len(queues) == len(durations)


def test_while_the_disk_is_short_nothing_is_paged(room: Room) -> None:
    told, average = Told(room, 10.0), Told(room, 4.0)
    room.used = 900
    room.short = True
    room.monitor.update()
    assert room.monitor.target == math.inf
    room.short = False
    room.monitor.update()
    assert told.targets == [pytest.approx(15.0 / 2 / 0.9)]
    assert average.targets == []


def test_a_target_is_pushed_only_when_it_falls_and_only_to_those_above_it(room: Room) -> None:
    slow, fast, idle = Told(room, 50.0), Told(room, 2.0), Told(room, math.inf)
    room.used = 800
    room.monitor.update()
    first = 53.0 / 2 / 0.8
    assert slow.targets == [pytest.approx(first)]
    assert fast.targets == []  # what it has lasts for less
    assert idle.targets == [pytest.approx(first)]
    room.used = 600  # it rises: who asks is told
    room.monitor.update()
    assert len(slow.targets) == 1
    assert room.monitor.report(slow, 50.0) == pytest.approx(53.0 / 2 / 0.6)
    room.used = 700  # it falls, but not below what the idle one was told last
    room.monitor.update()
    assert slow.targets[1:] == [pytest.approx(53.0 / 2 / 0.7)]
    assert len(idle.targets) == 1
    room.used = 0
    room.monitor.update()
    assert room.monitor.report(slow, 50.0) == math.inf
    assert room.monitor.statistics().pushes == 3


def test_who_reports_is_answered_and_not_told_besides(room: Room) -> None:
    slow, other = Told(room, 50.0), Told(room, 90.0)
    room.used = 900
    room.now = 2.5  # it is due
    answer = room.monitor.report(slow, 50.0)
    assert answer == pytest.approx(141.0 / 2 / 0.9)
    assert slow.targets == []
    assert other.targets == [answer]


def test_it_looks_every_two_and_a_half_seconds(room: Room) -> None:
    told = Told(room, 50.0)
    room.used = 900
    room.now = 2.4
    assert room.monitor.report(told, 50.0) == math.inf
    room.now = 2.5
    assert room.monitor.report(told, 50.0) < math.inf
    room.used = 0
    room.now = 4.9
    assert room.monitor.report(told, 50.0) < math.inf
    room.now = 5.0
    assert room.monitor.report(told, 50.0) == math.inf


def test_who_is_gone_counts_no_more(room: Room) -> None:
    told = Told(room, 10.0)
    gone = Told(room, 1000.0)
    room.used = 500
    room.monitor.update()
    assert room.monitor.target == pytest.approx(1011.0 / 2 / 0.5)
    del gone
    gc.collect()
    room.monitor.update()
    assert room.monitor.target == pytest.approx(11.0 / 0.5)
    statistics = room.monitor.statistics()
    assert (statistics.queues, statistics.moving) == (1, 1)
    assert (statistics.used, statistics.limit, statistics.ratio) == (500, 1000, 0.5)
    assert statistics.target_seconds == room.monitor.target
    assert told.targets == []


@pytest.mark.parametrize(("limit", "ratio"), [(0, 0.5), (-1, 0.5), (10, 0.0), (10, 1.1)])
def test_what_makes_no_sense_is_refused(limit: int, ratio: float) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        MemoryMonitor(clock=lambda: 0.0, used=lambda: 0, limit=limit, paging_ratio=ratio)
