"""What happens when publishers wait on a queue that makes no progress (rule 11)."""

from __future__ import annotations

import logging

import anyio
import pytest

from clearfunds.accounts import Limit, Outcome, StuckPolicy, overdue
from clearfunds.dataspace.queues import Channel, MemoryShelf, Overflow
from tests.dataspace.queues.conftest import Bench, Worker
from tests.loops import open_nursery

pytestmark = pytest.mark.rule(11)


def test_without_a_shelf_it_drops_what_is_ready(bench: Bench) -> None:
    queue = bench.queue()
    bench.publish(*"abc")
    queue.give_up("it made no progress")
    assert bench.repaid(Outcome.WRITTEN_OFF) == 3
    assert queue.counters.written_off == 3
    assert not queue.deleted
    bench.publish("d")
    assert len(queue) == 1


def test_who_does_not_acknowledge_is_cut_off_first(bench: Bench) -> None:
    queue = bench.queue()
    slow, other = Worker(queue, 1), Worker(queue)
    other.consumer.cancel()
    bench.publish(*"ab")
    queue.give_up("it made no progress")
    assert slow.ends == ["it made no progress"]
    assert slow.channel.closed
    assert len(queue) == 2
    assert bench.repaid(Outcome.WRITTEN_OFF) == 0
    assert other.ends == []
    good = Worker(queue)
    assert good.names == [*"ab"]
    assert good.got[0].message.failures == 1


def test_with_a_shelf_it_spills(bench: Bench) -> None:
    queue, shelf = bench.durable()
    bench.publish("a", qos=0)
    bench.now += 30
    queue.give_up("it made no progress")
    assert len(shelf) == 1
    assert queue.progressed_at == bench.now
    shelf.sync()
    assert (bench.publisher.debt_items, bench.disk.debt_items) == (0, 1)
    assert Worker(queue).names == []
    shelf.settle()
    assert len(queue) == 0


def test_with_the_disk_budget_spent_it_keeps_what_it_has(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    queue, shelf = bench.durable(budget=Limit(items=1, bytes=None))
    bench.publish(*"abc")
    shelf.settle()
    with caplog.at_level(logging.WARNING):
        queue.give_up("it made no progress")
    assert "keeps what it has accepted" in caplog.text
    assert len(queue) == 3
    assert bench.publisher.debt_items == 2


def test_a_queue_that_refuses_rather_than_drops_waits(bench: Bench) -> None:
    queue = bench.queue(overflow=Overflow.REJECT_PUBLISH)
    assert queue.policy is StuckPolicy.WAIT
    bench.publish("a")
    queue.give_up("whoever asks")
    assert len(queue) == 1
    assert bench.queue("drops").policy is StuckPolicy.DISCONNECT
    assert bench.queue("spills", shelf=MemoryShelf()).policy is StuckPolicy.DISCONNECT


async def test_a_publisher_that_waits_for_a_queue(bench: Bench) -> None:
    """From the first message too many until its patience is over, as the watch sees it."""
    queue = bench.queue()
    bench.publisher.limit = Limit(items=2, bytes=None)
    bench.publish(*"abc")
    async with open_nursery() as nursery:
        nursery.start_soon(bench.publisher.ensure_clear_funds)
        await anyio.wait_all_tasks_blocked()
        bench.now += 19
        assert not overdue(bench.ledger, bench.now)
        bench.now += 1
        (stuck,) = overdue(bench.ledger, bench.now)
        assert stuck.holder is queue
        queue.give_up(stuck.sentence())


async def test_a_queue_that_held_nothing_has_its_patience_from_then_on(bench: Bench) -> None:
    queue = bench.queue()
    bench.now += 100
    bench.publish("a")
    assert queue.progressed_at == bench.now
    bench.now += 5
    delivery = queue.get(Channel())
    assert delivery is not None
    delivery.ack()
    assert queue.progressed_at == bench.now


def test_whoever_got_something_or_has_left_with_it_is_cut_off(bench: Bench) -> None:
    queue = bench.queue()
    bench.publish(*"abc")
    getter = Channel("getter")
    assert queue.get(getter) is not None
    gone = Worker(queue, 1)
    gone.consumer.cancel()
    beside = Worker(bench.queue("other", topic=None), channel=getter)
    queue.give_up("it made no progress")
    bench.ledger.audit()
    assert getter.closed
    assert gone.channel.closed
    assert beside.ends == ["it made no progress"]
    assert len(queue) == 3
    assert not queue.counters.written_off
