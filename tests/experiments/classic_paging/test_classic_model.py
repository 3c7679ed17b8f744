"""The classic policy against the model, and beside the default one: from outside they are alike."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from clearfunds.dataspace.queues import Backing, MemoryShelf, Overflow, SteadyBacking
from experiments.classic_paging import ClassicBacking, ClassicSettings, classic
from experiments.credit_flow import Credit
from tests.dataspace.queues.model import QueueMachine
from tests.dataspace.queues.paging import Desk

TINY = ClassicSettings(
    credit=Credit(6, 2), io_batch_size=2, segment=4, embed_below=12, reduce_every=3, read_ahead=3
)
"""With which twenty messages are many."""

SLOW = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)

TARGETS = st.sampled_from([None, 0, 0, 1, 4, 10])


# -- the queue ----------------------------------------------------------------------------------


class ClassicMachine(QueueMachine):
    """With a target that comes and goes, and a disk that is there more often."""

    @initialize(
        with_shelf=st.sampled_from([True, True, True, True, False]),
        durable=st.booleans(),
        max_length=st.sampled_from([None, None, None, 20]),
        max_bytes=st.none(),
        overflow=st.sampled_from(list(Overflow)),
        ttl=st.sampled_from([None, None, None, 8.0]),
        delivery_limit=st.sampled_from([None, 2]),
        most=TARGETS,
    )
    def begin(
        self,
        with_shelf: bool,
        durable: bool,
        max_length: int | None,
        max_bytes: int | None,
        overflow: Overflow,
        ttl: float | None,
        delivery_limit: int | None,
        most: int | None,
    ) -> None:
        super().begin(with_shelf, durable, max_length, max_bytes, overflow, ttl, delivery_limit)
        self.press(most)

    @property
    def backing(self) -> ClassicBacking:
        backing = self.queue.backing
        assert isinstance(backing, ClassicBacking)
        return backing

    @rule(most=TARGETS)
    def press(self, most: int | None) -> None:
        """What the monitor has said comes to so many messages."""
        self.backing.target = most

    @precondition(lambda self: not self.refuses)
    @rule(n=st.integers(5, 25), qos=st.integers(0, 1))
    def flood(self, n: int, qos: int) -> None:
        self.publish_several([20] * n, qos)

    def look(self) -> None:
        self.backing.check()


ClassicMachine.factory = staticmethod(classic(settings=TINY))
TestClassic = ClassicMachine.TestCase
TestClassic.settings = settings(
    deadline=None,
    max_examples=40,
    stateful_step_count=50,
    suppress_health_check=SLOW,
)


class ClassicMachineForLong(ClassicMachine):
    """The same, for as long as takes minutes."""


TestClassicForLong = pytest.mark.long(ClassicMachineForLong.TestCase)
TestClassicForLong.settings = settings(
    deadline=None,
    max_examples=1500,
    stateful_step_count=50,
    suppress_health_check=SLOW,
    # Explaining a failure takes longer than finding and shrinking it.
    phases=[phase for phase in Phase if phase is not Phase.explain],
)


# -- both, side by side -------------------------------------------------------------------------


def tiny(desk: Desk) -> Backing:
    return ClassicBacking(desk, settings=TINY, clock=lambda: 0.0)


class SideBySide(RuleBasedStateMachine):
    """The same happens to both; with each of them the disk is as slow as it likes."""

    @initialize(with_shelf=st.sampled_from([True, True, True, False]))
    def begin(self, with_shelf: bool) -> None:
        self.desks = [
            Desk(factory, MemoryShelf() if with_shelf else None)
            for factory in (SteadyBacking, tiny)
        ]
        self.persists = with_shelf

    @property
    def classic(self) -> ClassicBacking:
        backing = self.desks[1].backing
        assert isinstance(backing, ClassicBacking)
        return backing

    def both(self, do: Callable[[Desk], object]) -> object:
        """Do the same to both; what comes of it has to be the same."""
        steady, classic = (do(desk) for desk in self.desks)
        assert steady == classic
        return steady

    @rule(n=st.integers(1, 20), size=st.sampled_from([0, 5, 20]), persistent=st.booleans())
    def publish(self, n: int, size: int, persistent: bool) -> None:
        self.both(lambda desk: desk.publish(n, size, persistent=persistent))

    @rule(n=st.integers(1, 12))
    def take(self, n: int) -> None:
        self.both(lambda desk: desk.take(n))

    @rule()
    def drop(self) -> None:
        def do(desk: Desk) -> int | None:
            message = desk.fetch()
            if message is None:
                return None
            desk.finish([message])
            return message.seq

        self.both(do)

    @rule(size=st.sampled_from([0, 20]), persistent=st.booleans())
    def deliver_at_once(self, size: int, persistent: bool) -> None:
        if not self.classic.ready:
            self.both(lambda desk: desk.deliver(desk.new(size, persistent=persistent)))

    @rule()
    def peek(self) -> None:
        # One may not have it yet, and both have the same if they have it.
        seen = [desk.backing.peek() for desk in self.desks]
        assert len({message.seq for message in seen if message is not None}) <= 1

    @rule(n=st.integers(1, 6))
    def fetch_what_is_there(self, n: int) -> None:
        """Take from either what it has without waiting, and the rest of it later."""
        for _ in range(n):
            seen = [desk.fetch_now() for desk in self.desks]
            for i, desk in enumerate(self.desks):
                if seen[i] is None:
                    seen[i] = desk.fetch()
            numbers = [message.seq for message in seen if message is not None]
            assert len(numbers) in (0, 2)
            assert len(set(numbers)) <= 1
            for desk, message in zip(self.desks, seen, strict=True):
                if message is not None:
                    desk.deliver(message)

    def chosen(self, data: st.DataObject) -> list[int]:
        pending = sorted(self.desks[0].pending)
        return data.draw(st.lists(st.sampled_from(pending), unique=True, min_size=1))

    @precondition(lambda self: self.desks[0].pending)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        seqs = self.chosen(data)
        self.both(lambda desk: desk.ack(seqs))

    @precondition(lambda self: self.desks[0].pending)
    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        seqs = self.chosen(data)
        self.both(lambda desk: desk.requeue(seqs))

    @rule()
    def purge(self) -> None:
        for desk in self.desks:
            desk.purge()

    @rule(most=TARGETS)
    def press(self, most: int | None) -> None:
        self.classic.target = most

    @rule(seconds=st.sampled_from([0.0, 5.0, 100.0]))
    def ask_for_less(self, seconds: float) -> None:
        self.classic.set_duration_target(seconds)

    @rule(n=st.integers(0, 50))
    def flow(self, n: int) -> None:
        for desk in self.desks:
            rates = desk.rates
            rates.left, rates.pended, rates.arrived = n, n // 2, 10
            rates.update(rates.at + 1.0)
            desk.backing.tick(rates.at)

    @precondition(lambda self: self.persists)
    @rule(who=st.integers(0, 1))
    def answer(self, who: int) -> None:
        shelf = self.desks[who].shelf
        assert shelf is not None
        shelf.answer()

    @precondition(lambda self: self.persists)
    @rule(who=st.integers(0, 1), upto=st.integers(0, 3))
    def sync(self, who: int, upto: int) -> None:
        shelf = self.desks[who].shelf
        assert shelf is not None
        shelf.sync(shelf.last_ticket - upto)

    @precondition(lambda self: self.persists)
    @rule(full=st.booleans())
    def budget(self, full: bool) -> None:
        for desk in self.desks:
            desk.full = full
            if not full:
                desk.backing.relieve()

    @precondition(lambda self: self.persists)
    @rule()
    def restart(self) -> None:
        """Both stop in order, after all that is ready has been written."""
        desks: list[Desk] = []
        for desk, factory in zip(self.desks, (SteadyBacking, tiny), strict=True):
            shelf = desk.shelf
            assert shelf is not None
            desk.full = False
            known = [*desk.backing, *desk.pending.values()]
            for message in sorted(known, key=lambda message: message.seq):
                if message.persistent:
                    desk.write(message)
            shelf.done([m.seq for m in known if not m.persistent and m.written])
            transient = [m.seq for m in shelf.messages if not m.persistent]
            shelf.done(transient)
            shelf.sync()
            desks.append(Desk(factory, shelf.crash()))
        self.desks = desks
        self.desks[0].next_seq = self.desks[1].next_seq = max(d.next_seq for d in desks)

    @invariant()
    def alike(self) -> None:
        if not hasattr(self, "desks"):
            return
        steady, classic = self.desks
        assert steady.backing.ready == classic.backing.ready
        assert sorted(steady.pending) == sorted(classic.pending)
        assert not steady.lost_count
        assert not classic.lost_count
        self.classic.check()
        for desk in self.desks:
            statistics = desk.backing.statistics()
            assert statistics.ready == desk.backing.ready
            assert desk.backing.ram_count == statistics.ready_in_ram + statistics.pending_in_ram

    def teardown(self) -> None:
        if hasattr(self, "desks"):
            self.take(10_000)
            assert not self.classic.ready


TestSideBySide = SideBySide.TestCase
TestSideBySide.settings = settings(
    deadline=None, max_examples=60, stateful_step_count=50, suppress_health_check=SLOW
)
