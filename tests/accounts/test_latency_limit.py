"""LatencyLimit: what is owed gets so old and no older, at whatever rate it is cleared.

Simulations on a mock clock: sources that always have more, one consumer whose pace changes, real
turns and loans. Ages are those of the messages themselves, kept apart from the books.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

import anyio
import attrs
import pytest
import trio
import trio.testing
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from clearfunds.accounts import (
    DEFAULT_FLOOR,
    LIMIT_STATES,
    NO_LIMIT,
    Account,
    FixedLimit,
    LatencyLimit,
    Ledger,
    Limit,
    LimitPolicy,
    LoanQueue,
    MovingLimit,
    Outcome,
    watch_limits,
)
from clearfunds.accounts._gate import gate_of
from tests.loops import open_nursery

TARGET = 1.0
HIGH = Limit(items=10_000_000, bytes=1 << 40)
"""A ceiling that is not in the way."""

Rate = Callable[[float], float]


@attrs.frozen
class Cleared:
    """Some messages that were cleared at one instant."""

    at: float
    age: float
    items: int
    account: str


class Consumer(LoanQueue):
    """Who clears what is owed, and knows how old each message is."""

    kind = "consumer"

    __slots__ = ("arrived", "cleared", "credit")

    def __init__(self, ledger: Ledger, name: str) -> None:
        super().__init__(ledger, name, patience=math.inf)
        self.arrived: deque[tuple[float, int]] = deque()
        self.cleared: list[Cleared] = []
        self.credit = 0.0

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        super().hold(account, item, items, nbytes, now)
        self.arrived.append((now, items))

    def ready(self) -> None:
        pass

    def give_up(self, why: str) -> None:
        raise AssertionError(why)

    def clear(self, items: float, now: float) -> None:
        """Be done with so many, or with what there is; what is not used now is lost."""
        self.credit += items
        while self.credit >= 1 and self.queue:
            loan = self.queue[0]
            some = int(min(loan.items, self.credit))
            self.credit -= some
            account = loan.account.name
            if some == loan.items:
                self.queue.popleft()
            loan.settle(some)
            self._note(some, account, now)
        if not self.queue:
            self.credit = 0.0

    def _note(self, items: int, account: str, now: float) -> None:
        while items:
            came, there = self.arrived.popleft()
            some = min(there, items)
            items -= some
            if some < there:
                self.arrived.appendleft((came, there - some))
            self.cleared.append(Cleared(now, now - came, some, account))


class Fast(Consumer):
    """One that is done with everything at once."""

    __slots__ = ()

    def ready(self) -> None:
        self.clear(math.inf, 0.0)
        self.cleared.clear()


@attrs.define
class World:
    """Sources, a consumer, and how they go."""

    rate: Rate
    """Items a second that the consumer clears, by the time."""
    policy: LimitPolicy
    lump: float | None = None
    """It clears what has come up to by then every so many seconds; None: in tiny steps."""
    sources: int = 1
    late: float = 0.0
    """When the second half of the sources begins."""
    fast: int = 0
    """How many more get everything, and are done with it at once."""
    size: Callable[[int], int] = lambda _: 100
    """Bytes of a message, by its turn's number."""
    target: float = TARGET
    most: int = 100_000
    """Of messages in one turn."""
    pause: Callable[[int], float] = lambda _: 0.0
    """For how long a source has nothing, by its turn's number."""
    seen: list[tuple[float, str, MovingLimit]] = attrs.field(
        factory=list[tuple[float, str, MovingLimit]]
    )
    limits: list[Limit] = attrs.field(factory=list[Limit])
    accounts: list[Account] = attrs.field(factory=list[Account])
    cleared: list[Cleared] = attrs.field(factory=list[Cleared])

    def run(self, seconds: float) -> World:
        clock = trio.testing.MockClock(autojump_threshold=0)
        with pytest.MonkeyPatch.context() as patch:
            # In which order Trio runs what is due at once is left to chance.
            patch.setattr("trio._core._run._r", Random(7))
            trio.run(self._main, seconds, clock=clock)
        return self

    async def _main(self, seconds: float) -> None:
        began = anyio.current_time()
        ledger = Ledger(clock=lambda: anyio.current_time() - began)
        consumer = Consumer(ledger, "consumer")
        self.cleared = consumer.cleared
        others = [Fast(ledger, f"fast {number}") for number in range(self.fast)]
        with anyio.move_on_after(seconds):
            async with open_nursery() as nursery:
                nursery.start_soon(watch_limits, ledger)
                nursery.start_soon(self._consume, ledger, consumer)
                for number in range(self.sources):
                    account = ledger.open(f"source {number}", limit=NO_LIMIT)
                    account.limit_by(self.policy)
                    self.accounts.append(account)
                    late = self.late if number >= self.sources / 2 else 0.0
                    nursery.start_soon(self._publish, account, (consumer, *others), late)
        ledger.audit()
        consumer.settle_all(Outcome.CANCELLED)
        ledger.audit()

    async def _consume(self, ledger: Ledger, consumer: Consumer) -> None:
        step = self.target / 32 if self.lump is None else self.lump
        while True:
            await anyio.sleep(step)
            now = ledger.clock()
            consumer.clear(self.rate(now) * step, now)
            for account in self.accounts:
                self._check(account, now)

    def _check(self, account: Account, now: float) -> None:
        # Nobody is left waiting for nothing; the limit stays between its bounds.
        assert not gate_of(account).throttled or account.debt_items
        limit = account.limit
        self.limits.append(limit)
        if isinstance(self.policy, LatencyLimit):
            assert account.control is not None
            seen = account.control.statistics()
            assert seen.state in LIMIT_STATES
            assert seen.age_seconds >= 0
            self.seen.append((now, account.name, seen))
            floor, ceiling = self.policy.floor, self.policy.ceiling
            for low, value, high in (
                (floor.items, limit.items, ceiling.items),
                (floor.bytes, limit.bytes, ceiling.bytes),
            ):
                assert low is not None
                assert value is None or value >= low
                assert high is None or (value is not None and value <= high)

    async def _publish(
        self, account: Account, consumers: tuple[Consumer, ...], late: float
    ) -> None:
        await anyio.sleep(late)
        turns = 0
        while True:
            await account.ensure_clear_funds()
            items, nbytes = account.room()
            size = self.size(turns)
            room = min(items // len(consumers), nbytes // (len(consumers) * size))
            batch = min(1 + max(0, room), self.most)
            with account.turn(items=batch, nbytes=batch * size) as turn:
                for consumer in consumers:
                    turn.send(consumer, None, items=batch, nbytes=batch * size)
            turns += 1
            await anyio.sleep(self.pause(turns))

    # -- what came of it --------------------------------------------------------------------------

    def throughput(self, since: float, until: float) -> float:
        return sum(c.items for c in self.cleared if since <= c.at < until) / (until - since)

    def age(self, since: float, until: float, part: float = 0.99) -> float:
        """Return the age, in targets, that such a part of what was cleared then did not exceed."""
        ages = sorted((c.age, c.items) for c in self.cleared if since <= c.at < until)
        left = part * sum(items for _, items in ages)
        for age, items in ages:
            left -= items
            if left <= 0:
                return age / self.target
        return 0.0

    def settled(self, since: float, until: float, best: float) -> float:
        """Return how many targets after `since` it is as it should be, and stays so.

        Of two targets each, 99 % of the ages are within 1.5 targets, and of four each the
        throughput is 0.9 of the best; but for a lump that may be cut off at the edge.
        """
        last = start = since
        quarter = self.target / 4
        lump = 0.0 if self.lump is None else self.lump * best
        while start < until:
            # Five lumps of 0.3 are more than 1.5.
            young = self.age(start, min(start + 8 * quarter, until)) <= 1.5 + 1e-6
            end = start + 16 * quarter
            enough = self.throughput(start, end) * 16 * quarter + lump >= 0.9 * best * 16 * quarter
            if not young or (end <= until and not enough):
                last = start + (quarter if young else 8 * quarter)
            start += quarter
        return (last - since) / self.target

    def fairness(self, since: float, until: float) -> float:
        """Return Jain's index of what the sources got done."""
        done = [
            sum(c.items for c in self.cleared if c.account == a.name and since <= c.at < until)
            for a in self.accounts
        ]
        return sum(done) ** 2 / (len(done) * sum(each**2 for each in done))


@cache
def best_fixed(rate: float, lump: float | None, fast: int = 0) -> float:
    """Return what the best of several fixed limits lets through at that rate, whatever the age."""
    found = 0.0
    for targets in (0.25, 1, 4):
        limit = Limit(items=int(rate * TARGET * targets) * (1 + fast), bytes=None)
        world = World(lambda _: rate, FixedLimit(limit), lump, fast=fast).run(14)
        found = max(found, world.throughput(4, 14))
    return found


def at(*phases: tuple[float, float]) -> Rate:
    """Return a rate that changes at once: (until when, how fast)."""

    def rate(now: float) -> float:
        return next((rate for until, rate in phases if now < until), phases[-1][1])

    return rate


LATENCY = LatencyLimit(TARGET, ceiling=HIGH)


def sometimes(*values: Any) -> list[Any]:
    """Return the first for each run, and the others for the long ones."""
    return [values[0], *(pytest.param(value, marks=pytest.mark.long) for value in values[1:])]


# -- the acceptance: 100-fold and back ------------------------------------------------------------


@pytest.mark.parametrize(
    "lump", [None, *sometimes(TARGET / 4, TARGET / 16, TARGET / 8, TARGET / 3, TARGET / 2)]
)
def test_in_steps_of_ten_up_and_down(lump: float | None) -> None:
    steps = [(40, 500), (75, 5_000), (110, 50_000), (145, 5_000), (180, 500)]
    world = World(at(*steps), LATENCY, lump).run(180)
    began = 0.0
    for until, rate in steps:
        best = best_fixed(rate, lump)
        assert best == pytest.approx(rate, rel=0.05)
        assert world.settled(began, until, best) <= 20
        assert world.age(began + 20, until) <= 1.5
        assert world.throughput(began + 20, until) >= 0.9 * best
        began = until


@pytest.mark.parametrize("lump", sometimes(None, TARGET / 4))
def test_a_hundredfold_at_one_blow_up_and_down(lump: float | None) -> None:
    world = World(at((30, 500), (60, 50_000), (210, 500)), LATENCY, lump).run(210)
    assert world.settled(30, 60, best_fixed(50_000, lump)) <= 20
    # What was borrowed before has to be cleared first: no limit changes that.
    old = [c for c in world.cleared if c.at >= 60 and c.at - c.age < 60]
    drained = max(c.at for c in old)
    assert sum(c.items for c in old) <= 50_000 * TARGET * 1.1
    # Nothing is let in meanwhile but what keeps the consumer busy.
    assert drained <= 60 + 110
    assert world.settled(drained, 210, 500) <= 20
    assert world.throughput(60, 210) >= 0.9 * 500


@pytest.mark.parametrize("seconds", sometimes(30.0, 10.0, 20.0))
def test_ramps(seconds: float) -> None:
    def rate(now: float) -> float:
        up = min(max(now - 20, 0) / seconds, 1)
        down = min(max(now - 80, 0) / seconds, 1)
        return 500 * math.pow(100, up - down)

    world = World(rate, LATENCY).run(150)
    ended = 20 + seconds
    assert world.settled(ended, 80, 50_000) <= 20
    assert world.settled(80 + seconds, 150, 500) <= 20
    # On the way up nothing is old; nor on the way down, where that is slower than ages grow.
    assert world.age(20, 80) <= 1.5
    if seconds >= 20:
        assert world.age(80, 110) <= 2


def test_with_one_slow_consumer_among_nine() -> None:
    # Eight repay at once, and each input does: that says nothing about the ninth.
    steps = [(30, 100), (60, 1_000), (90, 100)]
    world = World(at(*steps), LATENCY, fast=8).run(90)
    began = 0.0
    for until, rate in steps:
        best = best_fixed(rate, None, fast=8)
        assert world.settled(began, until, best) <= 20
        began = until


@pytest.mark.parametrize("lump", sometimes(None, TARGET / 4))
def test_a_shared_consumer(lump: float | None) -> None:
    steps = [(30, 2_000), (60, 20_000), (90, 2_000)]
    world = World(at(*steps), LATENCY, lump, sources=4).run(90)
    began = 0.0
    for until, rate in steps:
        assert world.settled(began, until, rate) <= 20
        began = until
    assert world.fairness(70, 90) >= 0.9


def test_who_comes_late_gets_a_share() -> None:
    world = World(lambda _: 10_000.0, LATENCY, sources=10, late=30.0).run(90)
    assert world.fairness(80, 90) >= 0.95
    assert world.age(50, 90) <= 1.5
    assert world.throughput(50, 90) >= 9_500


def test_bytes_are_what_is_scarce() -> None:
    # Of one turn each is 50 B long, of the next 5,000 B: items say little.
    def size(turn: int) -> int:
        return 5_000 if turn % 2 else 50

    world = World(at((40, 500), (80, 5_000), (120, 500)), LATENCY, size=size).run(120)
    for began, until, rate in ((0, 40, 500), (40, 80, 5_000), (80, 120, 500)):
        assert world.settled(began, until, rate) <= 20


@pytest.mark.parametrize("rate", [500, 50_000])
def test_where_bytes_alone_bind(rate: int) -> None:
    # The floor in items is more than is ever owed.
    policy = LatencyLimit(TARGET, floor=Limit(items=10**6, bytes=14_600), ceiling=HIGH)
    world = World(lambda _: rate, policy, size=lambda _: 1_000).run(40)
    assert world.settled(0, 40, rate) <= 20
    assert world.limits[-1].bytes == pytest.approx(1_000 * rate * TARGET, rel=0.2)


def test_sources_that_come_in_bursts() -> None:
    # Three turns, then nothing for two targets: little is lost of what is there to be done.
    world = World(lambda _: 5_000.0, LATENCY, pause=lambda turn: 0.0 if turn % 30 else 2.0)
    world.run(120)
    assert world.age(20, 120) <= 1.5


def test_a_rate_that_wobbles() -> None:
    world = World(lambda now: 3_000.0 if now % 2 < 1 else 1_000.0, LATENCY).run(60)
    assert world.age(20, 60) <= 1.5
    assert world.throughput(20, 60) >= 0.95 * 2_000


@pytest.mark.parametrize("target", sometimes(0.05, 0.005, 20.0))
def test_another_target_is_another_unit_of_time(target: float) -> None:
    steps = [(30 * target, 1_000 / target), (60 * target, 10_000 / target)]
    world = World(at(*steps), LatencyLimit(target, ceiling=HIGH), target=target)
    world.run(60 * target)
    assert world.settled(0, 30 * target, 1_000 / target) <= 20
    assert world.settled(30 * target, 60 * target, 10_000 / target) <= 20


@pytest.mark.parametrize("lump", [TARGET, 2 * TARGET])
def test_a_consumer_whose_lumps_are_longer_than_the_target_is_kept_busy(lump: float) -> None:
    # Its ages are its own; a lower limit would only make it idle.
    world = World(lambda _: 1_000.0, LATENCY, lump).run(80)
    assert world.throughput(40, 80) >= 0.9 * 1_000
    assert world.age(40, 80, part=0.9) <= 1.05 * lump / TARGET


# -- its states -----------------------------------------------------------------------------------


def states(world: World, since: float, until: float) -> set[str]:
    return {seen.state for now, _, seen in world.seen if since <= now < until}


def test_it_begins_at_the_floor_and_probes_until_it_tracks() -> None:
    world = World(lambda _: 5_000.0, LATENCY).run(30)
    limit = world.limits[0].items
    assert limit is not None
    assert limit <= 2 * 10
    assert states(world, 0, 3) == {"probing"}
    assert states(world, 20, 30) == {"tracking"}
    _, _, last = world.seen[-1]
    assert last.target_seconds == TARGET
    assert last.items_per_second == pytest.approx(5_000, rel=0.1)
    assert last.bytes_per_second == pytest.approx(500_000, rel=0.1)
    assert 0.4 <= last.age_seconds <= 1.1


def test_it_doubles_once_in_a_target_at_the_most() -> None:
    world = World(lambda _: 1e6, LATENCY).run(12)
    limits = [limit.items or 0 for limit in world.limits]
    a_target = 32
    for before, after in zip(limits, limits[a_target:], strict=False):
        assert after <= 2.2 * before


def test_it_drains_when_the_rate_falls_and_says_how_long_that_takes() -> None:
    world = World(at((30, 5_000), (80, 250)), LATENCY).run(80)
    draining = [seen for now, _, seen in world.seen if 32.5 <= now < 38]
    assert {seen.state for seen in draining} == {"draining"}
    # It is seen at once that what is owed takes longer.
    assert all(seen.age_seconds > 2 * TARGET for seen in draining)
    assert states(world, 70, 80) == {"tracking"}


async def test_the_age_stays_a_number_while_a_consumer_is_stuck() -> None:
    now = 0.0
    ledger = Ledger(clock=lambda: now)
    account = ledger.open("slow")
    account.limit_by(LatencyLimit(TARGET, ceiling=HIGH))
    consumer = Consumer(ledger, "consumer")

    def publish() -> None:
        with account.turn(items=200, nbytes=20_000) as turn:
            turn.send(consumer, None, items=200, nbytes=20_000)

    async with open_nursery() as nursery:
        for _ in range(4):
            publish()
            nursery.start_soon(account.ensure_clear_funds)
            await anyio.wait_all_tasks_blocked()
            now += TARGET
            consumer.clear(200, now)
            await anyio.wait_all_tasks_blocked()
        publish()
        nursery.start_soon(account.ensure_clear_funds)
        await anyio.wait_all_tasks_blocked()
        assert account.control is not None
        for targets in range(1, 2_000):
            now += TARGET
            seen = account.control.statistics()
            # No more than if each of the 200 took as long as the first has up to now.
            assert targets * TARGET <= seen.age_seconds <= 200.001 * targets * TARGET
            assert seen.items_per_second > 0
        nursery.cancel_scope.cancel()
    consumer.settle_all(Outcome.CANCELLED)
    ledger.audit()


def test_below_the_floor_and_above_the_ceiling() -> None:
    low = World(lambda _: 2.0, LatencyLimit(TARGET, ceiling=HIGH)).run(60)
    assert low.limits[-1].items == DEFAULT_FLOOR.items
    assert "floor" in states(low, 40, 60)
    assert low.throughput(20, 60) == pytest.approx(2.0, rel=0.1)
    policy = LatencyLimit(TARGET, ceiling=Limit(items=100, bytes=1 << 30))
    high = World(lambda _: 5_000.0, policy).run(30)
    assert high.limits[-1].items == 100
    assert states(high, 20, 30) == {"ceiling"}
    assert high.age(20, 30) <= 0.1


def test_where_nobody_waits_it_is_idle_and_out_of_the_way() -> None:
    # Sources that send 100 at a time, 50 times a target, to who is done with everything at once.
    world = World(lambda _: 1e9, LATENCY, most=100, pause=lambda _: 0.02).run(40)
    assert states(world, 20, 40) == {"idle"}
    assert world.throughput(20, 40) == pytest.approx(5_000, rel=0.02)
    # What is cleared in an eighth of a target fits.
    assert (world.limits[-1].items or 0) >= 5_000 / 8


async def test_a_limit_that_has_stopped_nobody_falls_to_twice_what_is_owed(
    mock_clock: trio.testing.MockClock,
) -> None:
    began = anyio.current_time()
    ledger = Ledger(clock=lambda: anyio.current_time() - began)
    account = ledger.open("source")
    account.limit_by(LatencyLimit(TARGET, floor=Limit(items=10, bytes=10)))
    control = account.control
    assert control is not None
    # It has been at 640 some time.
    for _ in range(6):
        account.borrow(1_000, 10)
        assert not account.funds_are_clear()
        async with open_nursery() as nursery:
            nursery.start_soon(account.ensure_clear_funds)
            await anyio.wait_all_tasks_blocked()
            mock_clock.jump(TARGET)
            account.repay(1_000, 10)
    assert (account.limit.items or 0) > 300
    account.borrow(20, 1)
    limits: list[int] = []
    for _ in range(8 * 8):
        mock_clock.jump(TARGET)
        control.tick(ledger.clock())
        limits.append(account.limit.items or 0)
    assert limits == sorted(limits, reverse=True)
    assert limits[-1] == 40
    assert control.statistics().state == "idle"
    assert limits[3] > 250  # not at once
    account.repay(20, 1)


# -- the rest of it -------------------------------------------------------------------------------


def test_what_it_may_be() -> None:
    with pytest.raises(ValueError, match="above 0 s, not 0"):
        LatencyLimit(0)
    with pytest.raises(ValueError, match="above 0 s, not inf"):
        LatencyLimit(math.inf)
    with pytest.raises(ValueError, match="floor of 10 items must not be above its ceiling 9"):
        LatencyLimit(1.0, ceiling=Limit(items=9))
    with pytest.raises(ValueError, match="floor of None bytes"):
        LatencyLimit(1.0, floor=Limit(items=1, bytes=None))
    ledger = Ledger()
    shared = ledger.open("tenant", shared=True)
    with pytest.raises(ValueError, match="tenant is shared"):
        shared.limit_by(LatencyLimit())


def test_a_fixed_limit_is_no_more_than_a_limit() -> None:
    ledger = Ledger()
    account = ledger.open("source")
    account.limit_by(FixedLimit(Limit(items=5)))
    assert account.limit == Limit(items=5)
    assert account.control is None
    account.limit_by(LatencyLimit(1.0))
    assert account.limit == Limit(items=10, bytes=14_600)
    account.limit_by(None)
    assert account.limit == Limit(items=10, bytes=14_600)
    assert account.control is None


async def test_the_new_limit_is_in_force_before_anybody_goes_on(
    mock_clock: trio.testing.MockClock,
) -> None:
    began = anyio.current_time()
    ledger = Ledger(clock=lambda: anyio.current_time() - began)
    account = ledger.open("source")
    account.limit_by(LatencyLimit(TARGET, floor=Limit(items=1, bytes=1), ceiling=HIGH))
    account.limit = Limit(items=1_000, bytes=None)
    account.borrow(1_001, 0)
    went_on: list[int] = []

    async def read() -> None:
        await account.ensure_clear_funds()
        went_on.append(account.debt_items)

    async with open_nursery() as nursery:
        nursery.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        while account.debt_items:
            # 10 in a target: what the limit of 1,000 would let go on at 500 is 50 targets' worth.
            mock_clock.jump(TARGET)
            account.repay(min(10, account.debt_items), 0)
            await anyio.wait_all_tasks_blocked()
    assert len(went_on) == 1
    assert went_on[0] <= 10


def plan() -> st.SearchStrategy[list[tuple[float, float]]]:
    rates = st.one_of(st.just(0.0), st.floats(math.log(20), math.log(3_000)).map(math.exp))
    return st.lists(st.tuples(st.floats(0.1, 8.0), rates), min_size=1, max_size=4)


@settings(
    max_examples=10,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(
    plan=plan(),
    lump=st.sampled_from([None, 0.1, 0.3, 1.7]),
    sources=st.integers(1, 3),
    fast=st.integers(0, 2),
    sizes=st.lists(st.integers(1, 20_000), min_size=1, max_size=3),
    floor=st.integers(1, 50),
)
@example([(5.783324648818312, 0.0)], 1.7, 1, 0, [19960, 1], 44)
@example([(5.32, 96.0), (5.32, 96.0), (0.55, 0.0), (5.32, 96.0)], 1.7, 1, 0, [2117, 1, 1354], 43)
@example([(2.00001, 0.0)], 1.7, 1, 0, [277, 13142], 32)
def test_it_is_never_out_of_bounds_never_stuck_and_the_same_each_time(
    plan: list[tuple[float, float]],
    lump: float | None,
    sources: int,
    fast: int,
    sizes: list[int],
    floor: int,
) -> None:
    until = 0.0
    phases: list[tuple[float, float]] = []
    for seconds, rate in plan:
        until += seconds
        phases.append((until, rate))
    phases.append((math.inf, 1_000.0))

    def world() -> World:
        # The bounds, and that nobody waits for nothing, are looked at after each step.
        return World(
            at(*phases),
            LatencyLimit(TARGET, floor=Limit(items=floor, bytes=1_000), ceiling=HIGH),
            lump=lump,
            sources=sources,
            fast=fast,
            size=lambda turn: sizes[turn % len(sizes)],
        )

    # No more is ever owed than a limit, which is what was cleared in a target, or in one go.
    drained = until + 3_000 * max(TARGET, lump or 0) * 3 / 1_000
    first = world().run(drained + 40)
    # Whatever has been, it finds its way: at a steady rate nearly all of that is used.
    # Not in lumps longer than the target: it follows what one of them clears, and goes on.
    enough = 0.8 if lump is None or lump <= TARGET / 2 else 0.25
    assert first.throughput(drained + 25, drained + 40) >= enough * 1_000
    second = world().run(drained + 40)
    assert first.limits == second.limits
    assert first.cleared == second.cleared


@pytest.mark.long
@pytest.mark.parametrize("base", [500.0, 5_000.0])
@pytest.mark.parametrize(
    ("lump", "sources"),
    [
        *((lump, 1) for lump in (None, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)),
        *((lump, 3) for lump in (None, 0.05, 0.1, 0.2, 0.3)),
        *((lump, 10) for lump in (None, 0.05, 0.1)),
    ],
)
@pytest.mark.parametrize("fast", [0, 4])
def test_a_hundredfold_and_back_whatever_the_shape(
    base: float, lump: float | None, sources: int, fast: int
) -> None:
    steps = [(60, base), (120, 10 * base), (180, 100 * base), (240, 10 * base), (300, base)]
    world = World(at(*steps), LATENCY, lump, sources=sources, fast=fast).run(300)
    began = 0.0
    for until, rate in steps:
        assert world.settled(began, until, best_fixed(rate, lump, fast)) <= 20
        began = until


@pytest.mark.parametrize(("accounts", "every"), [(1, 0.05), (1_000, 0.5)])
def test_more_accounts_are_looked_at_less_often(accounts: int, every: float) -> None:
    looks: list[float] = []

    class Looked:
        """Notes when it is looked at."""

        def tick(self, now: float) -> None:
            looks.append(now)

        def closed(self) -> None: ...

        def may_open(self) -> bool:
            return True

        def repaid(self) -> None: ...

        def statistics(self) -> MovingLimit:
            raise AssertionError

    async def main() -> None:
        began = anyio.current_time()
        ledger = Ledger(clock=lambda: anyio.current_time() - began)
        for number in range(accounts):
            ledger.open(f"source {number}").limit_by(LatencyLimit(1.0))
        ledger.accounts["source 0"].control = Looked()
        ledger.open("not moved")
        with anyio.move_on_after(2.01):
            await watch_limits(ledger)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert looks == pytest.approx([every * number for number in range(int(2.01 / every) + 1)])
