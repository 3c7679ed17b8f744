"""Runs of messages: what a queue does with one is what it does with its messages one by one."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from clearfunds.accounts import NO_LIMIT, Account, Ledger
from clearfunds.accounts._books import borrow_run
from clearfunds.accounts._turn import commit_run
from clearfunds.dataspace.exchanges import HostQueue, Message, MessageRun
from clearfunds.dataspace.exchanges._declared_queue import expiration_of
from clearfunds.dataspace.queues import (
    Channel,
    Delivery,
    MemoryShelf,
    PrefetchWindow,
    QueueSettings,
)


class Scene:
    """A publisher and a queue, whose consumers keep what they get."""

    def __init__(self, *, by_run: bool, durable: bool = False, **settings: Any) -> None:
        self.now = 100.0
        self.by_run = by_run
        self.ledger = Ledger(clock=lambda: self.now)
        self.publisher = self.ledger.open("publisher", limit=NO_LIMIT)
        self.shelf = MemoryShelf() if durable else None
        self.queue = HostQueue(
            self.ledger,
            "queue",
            account=self.ledger.open("disk", limit=NO_LIMIT),
            settings=QueueSettings(durable=durable, **settings),
            shelf=self.shelf,
            ttl_of=expiration_of,
            wall=lambda: 1.7e9 + self.now,
        )
        self.channel = Channel("channel")
        self.got: list[tuple[int, int, bytes]] = []
        """Consumer, tag and body of each delivery."""
        self.runs = 0

    def consume(self, number: int, prefetch: int, *, no_ack: bool, runs: bool) -> None:
        """Add a consumer."""

        def one(delivery: Delivery) -> None:
            self.got.append((number, delivery.tag, delivery.event.body))

        def run(account: Account, messages: MessageRun, tag: int) -> None:
            assert account is self.publisher
            self.runs += 1
            for place, body in enumerate(messages.bodies):
                self.got.append((number, tag + place, body))

        consumer = self.queue.consume(
            one, window=PrefetchWindow(prefetch), channel=self.channel, no_ack=no_ack
        )
        if runs and no_ack:
            consumer.take_run = run

    def publish(self, bodies: list[bytes], expiration: float | None, persistent: bool) -> None:
        """Publish messages that differ in their bodies alone."""
        first = Message("", "queue", b"", bodies[0], persistent, expiration)
        run = MessageRun(first, bodies)
        if self.by_run:
            borrow_run(self.publisher, run.count, run.nbytes, 1)
            if self.queue.hold_run(self.publisher, run, self.now):
                self.queue.ready()
        else:
            for message, size in zip(run.events(), run.sizes, strict=True):
                commit_run(self.publisher, [self.queue], message, 1, size)
            self.queue.ready()
        self.ledger.audit()

    def ack(self, count: int) -> None:
        """Acknowledge the first so many."""
        tags = sorted(self.channel.unacked)[:count]
        if tags:
            self.channel.ack(tags[-1], multiple=True)
        self.ledger.audit()

    def state(self) -> object:
        """All that can be seen from outside, but for peaks."""
        queue, publisher = self.queue, self.publisher
        return (
            self.got,
            attrs.astuple(queue.statistics().counters),
            len(queue),
            (publisher.debt_items, publisher.debt_bytes, publisher.borrowed_bytes),
            (self.ledger.borrowed_items, sum(self.ledger.repaid_items)),
            sorted(self.channel.unacked),
            list(queue.ages.counts),
            queue.consumers and [each.delivered for each in queue.consumers],
        )


steps = st.one_of(
    st.tuples(
        st.just("publish"),
        st.lists(st.binary(max_size=3), min_size=1, max_size=8),
        st.sampled_from([None, None, None, 5.0, 0.0]),
        st.booleans(),
    ),
    st.tuples(st.just("ack"), st.integers(1, 6)),
    st.tuples(st.just("wait"), st.sampled_from([0.5, 10.0])),
)


THREE = [b"1", b"22", b"333"]
SCRIPT: list[tuple[Any, ...]] = [
    ("publish", THREE, None, False), ("publish", THREE, 5.0, True), ("wait", 0.5), ("ack", 2),
    ("publish", THREE, None, True), ("wait", 10.0), ("ack", 6), ("publish", THREE, 0.0, False),
]  # fmt: skip


@pytest.mark.rule(1, 3, 8)
@example(consumers=[(0, True)], runs=True, durable=False, settings={}, script=SCRIPT)
@example(consumers=[(0, True)], runs=True, durable=True, settings={}, script=SCRIPT)
@example(consumers=[(2, False)], runs=False, durable=False, settings={}, script=SCRIPT)
@example(consumers=[(4, False)], runs=False, durable=True, settings={}, script=SCRIPT)
@example(consumers=[], runs=False, durable=False, settings={"message_ttl": 3.0}, script=SCRIPT)
@example(
    consumers=[(1, False), (3, False)],
    runs=False,
    durable=False,
    settings={"max_length": 3},
    script=SCRIPT,
)
@given(
    consumers=st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=2),
    runs=st.booleans(),
    durable=st.booleans(),
    settings=st.sampled_from([{}, {}, {"message_ttl": 3.0}, {"max_length": 3}]),
    script=st.lists(steps, max_size=12),
)
def test_a_run_is_its_messages(
    consumers: list[tuple[int, bool]],
    runs: bool,
    durable: bool,
    settings: dict[str, Any],
    script: list[tuple[Any, ...]],
) -> None:
    scenes = [Scene(by_run=by_run, durable=durable, **settings) for by_run in (True, False)]
    for scene in scenes:
        for number, (prefetch, no_ack) in enumerate(consumers):
            scene.consume(number, prefetch, no_ack=no_ack, runs=runs)
        for what, *args in script:
            if what == "publish":
                scene.publish(*args)
            elif what == "ack":
                scene.ack(*args)
            else:
                scene.now += args[0]
                scene.queue.tick(scene.now)
    first, second = [scene.state() for scene in scenes]
    assert first == second


def test_a_consumer_that_fails_with_a_run_gets_nothing_more() -> None:
    scene = Scene(by_run=True)
    told: list[str] = []

    def fails(account: Account, run: MessageRun, tag: int) -> None:
        del account, run, tag
        raise RuntimeError("no")

    consumer = scene.queue.consume(
        lambda delivery: None, channel=scene.channel, no_ack=True, on_cancelled=told.append
    )
    consumer.take_run = fails
    scene.publish([b"1", b"2"], None, False)
    assert told == ["its callback raised RuntimeError('no')"]
    assert not scene.queue.consumers
    scene.publish([b"3", b"4"], None, False)
    assert len(scene.queue) == 2


def test_a_run_for_a_queue_that_is_deleted() -> None:
    scene = Scene(by_run=True)
    scene.queue.delete()
    scene.publish([b"1", b"2"], None, False)
    assert scene.publisher.debt_items == 0


def test_a_queue_that_is_deleted_with_its_consumer_within_a_run() -> None:
    scene = Scene(by_run=True, auto_delete=True)
    got: list[int] = []

    def fails(delivery: Delivery) -> None:
        got.append(delivery.tag)
        if len(got) == 2:
            raise RuntimeError("no")

    scene.queue.consume(fails, channel=scene.channel)
    scene.publish([b"1", b"2", b"3", b"4"], None, False)
    assert got == [1, 2]
    assert scene.queue.deleted
    assert not len(scene.queue)
    assert scene.publisher.debt_items == 0
