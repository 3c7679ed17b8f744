"""CPU time is shared out fairly: with a clock that only moves when somebody works."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs
import pytest
import trio

from clearfunds.transports._scheduler import (
    LIGHT_ROUND_SECONDS,
    ROUND_SECONDS,
    SLICE_SECONDS,
    Scheduler,
    Work,
)


@attrs.define(eq=False)
class Client:
    """A connection: how long each of its steps takes, and when it wants one."""

    work: Work
    step: float
    every: float
    """Seconds between two steps that it wants; 0: it always wants one."""
    can_be_cut: bool
    due: float = 0.0
    queued: bool = False
    had: float = 0.0
    waits: list[float] = attrs.field(factory=list[float])


class Loop:
    """Rounds as Trio's: all who can go on do, one after another."""

    def __init__(self) -> None:
        self.now = 0.0
        self.scheduler = Scheduler(clock=lambda: self.now)
        self.clients: list[Client] = []
        self.ready: list[Client] = []
        self.longest = 0.0

    def client(
        self, step: float = 10 * SLICE_SECONDS, every: float = 0.0, *, can_be_cut: bool = True
    ) -> Client:
        client = Client(Work(self.scheduler), step, every, can_be_cut, due=self.now)
        self.clients.append(client)
        return client

    def round(self) -> None:
        began = self.now
        ready, self.ready = self.ready, []
        for client in ready:
            client.queued = False
            if client.work.go_on():
                self._work(client)
            else:
                self._queue(client)
        for client in self.clients:
            if client.queued or client in ready or client.due > self.now:
                continue
            if client.work.begin():
                self._work(client)
            else:
                self._queue(client)
        if self.scheduler.waiting:
            self.scheduler.next_round()
            self.scheduler.let_go_on()
        self.longest = max(self.longest, self.now - began)
        self.now += 1e-5

    def _queue(self, client: Client) -> None:
        client.queued = True
        self.scheduler.queue(client.work, self._go(client))

    def _go(self, client: Client) -> Callable[[], None]:
        return lambda: self.ready.append(client)

    def _work(self, client: Client) -> None:
        began = self.now
        end = began + client.step
        while self.now < end - 1e-9 and not (client.can_be_cut and client.work.is_over()):
            self.now = min(end, self.now + 1e-4)
        client.had += self.now - began
        client.work.end()
        if not client.every:
            client.waits.append(0.0)
            client.due = self.now
            if self.scheduler.contended:
                self._queue(client)
        while client.every and client.due <= began:
            # All that has come is handled at once.
            client.waits.append(began - client.due)
            client.due += client.every

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.round()


def test_without_contention_nobody_waits() -> None:
    loop = Loop()
    alone = loop.client()
    loop.run(1.0)
    assert loop.scheduler.waiting == 0
    assert alone.had == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize("flooding", [1, 8, 30])
def test_a_light_client_does_not_wait_for_heavy_ones(flooding: int) -> None:
    loop = Loop()
    light = loop.client(step=0.0001, every=0.005)
    loop.client()
    loop.run(0.1)
    for _ in range(flooding - 1):
        loop.client()
    loop.run(5.0)
    assert len(light.waits) > 1_000
    # A round under way, one of those who have come just now, and its own.
    assert max(light.waits) <= 3 * LIGHT_ROUND_SECONDS
    assert sorted(light.waits)[len(light.waits) * 99 // 100] <= 1.5 * LIGHT_ROUND_SECONDS
    assert loop.longest <= 2 * (LIGHT_ROUND_SECONDS + ROUND_SECONDS)


def test_a_client_that_was_busy_alone_does_not_pay_for_it_later() -> None:
    loop = Loop()
    old = loop.client()
    loop.run(2.0)
    others = [loop.client() for _ in range(9)]
    before = old.had
    loop.run(1.0)
    for client in others:
        assert client.had == pytest.approx(0.1, rel=0.2)
    assert old.had - before == pytest.approx(0.1, rel=0.2)


def test_who_has_asked_for_nothing_has_not_saved_anything_up() -> None:
    loop = Loop()
    others = [loop.client() for _ in range(9)]
    late = loop.client()
    late.due = 2.0
    loop.run(3.0)
    assert late.had == pytest.approx(0.1, rel=0.2)
    assert others[0].had == pytest.approx(2 / 9 + 0.1, rel=0.2)


def test_heavy_ones_get_the_same_however_long_their_steps_are() -> None:
    """A step that cannot be cut is paid for by waiting longer."""
    loop = Loop()
    cut = [loop.client() for _ in range(2)]
    long = loop.client(step=7 * SLICE_SECONDS, can_be_cut=False)
    loop.run(6.0)
    for client in (*cut, long):
        assert client.had == pytest.approx(2.0, rel=0.05)


def test_nobody_starves() -> None:
    """However many light ones there are, those that want much go on in each round."""
    loop = Loop()
    heavy = [loop.client() for _ in range(3)]
    for n in range(100):
        client = loop.client(step=0.0001, every=0.005)
        client.due = n * 0.00005
    loop.run(3.0)
    for client in heavy:
        assert client.had > 0.01
    for client in loop.clients[3:]:
        assert client.had > 0.01


def test_thousands_at_once_are_done_in_rounds() -> None:
    loop = Loop()
    for _ in range(2_000):
        loop.client(step=0.0001, every=1_000.0)
    loop.run(0.3)
    assert all(len(client.waits) == 1 for client in loop.clients)
    assert loop.longest <= 2 * (LIGHT_ROUND_SECONDS + ROUND_SECONDS)


def test_what_leaves_the_queue_is_not_called() -> None:
    scheduler = Scheduler(clock=lambda: 0.0)
    called: list[int] = []
    tickets = [
        scheduler.queue(Work(scheduler), lambda n=n: called.append(n))  # type: ignore[misc]
        for n in range(3)
    ]
    tickets[1].cancel()
    tickets[1].cancel()
    assert scheduler.waiting == 2
    scheduler.let_go_on()
    assert called == [0, 2]
    assert scheduler.waiting == 0


async def test_waiting_with_a_loop() -> None:
    done: list[str] = []

    async def busy(name: str, steps: int) -> None:
        work = Work(scheduler)
        for _ in range(steps):
            if not work.begin():
                await work.wait()
            end = scheduler.clock() + SLICE_SECONDS
            while scheduler.clock() < end:
                pass
            assert work.is_over()
            assert work.paused
            work.end()
            await trio.lowlevel.checkpoint()
        done.append(name)

    async with trio.open_nursery() as outer:
        scheduler = Scheduler(outer)
        async with trio.open_nursery() as nursery:
            for name in _names(5):
                nursery.start_soon(busy, name, 10)
        with trio.move_on_after(0.02) as scope:
            while True:  # who waits and is cancelled is not in the queue any more
                work = Work(scheduler)
                scheduler.used = 1.0
                if not work.begin():
                    scheduler.used = 1.0
                    await work.wait()
                work.end()
        assert scope.cancelled_caught
    assert sorted(done) == list(_names(5))
    assert scheduler.waiting == 0


def _names(count: int) -> Iterable[str]:
    return map(str, range(count))
