"""What may be delivered only when it is durable: a crash undoes nothing that a consumer has had."""

from __future__ import annotations

import random

import pytest

from clearfunds.accounts import Limit
from clearfunds.dataspace import Publication
from clearfunds.dataspace.queues import Channel
from tests.dataspace.queues.conftest import Bench, Worker


def exactly_once(event: Publication) -> bool:
    return event.qos == 2


def test_it_is_delivered_once_it_is_durable_and_what_is_behind_it_after_it(bench: Bench) -> None:
    queue, shelf = bench.durable()
    queue.durable_first = exactly_once
    worker = Worker(queue)
    shelf.settle()
    bench.publish("1", qos=1)
    bench.publish("2", qos=2)
    bench.publish("3", qos=1)
    bench.publish("4", qos=2)
    assert worker.names == ["1"]
    shelf.settle()
    assert worker.names == ["1", "2", "3", "4"]
    assert all(delivery.message.at_rest for delivery in worker.got)
    # What is taken back was durable.
    worker.got[1].nack()
    assert worker.names[4:] == ["2"]


def test_get_waits_for_it_too(bench: Bench) -> None:
    queue, shelf = bench.durable()
    queue.durable_first = exactly_once
    channel = Channel()
    assert queue.get(channel) is None
    shelf.settle()
    bench.publish("1", qos=2)
    assert queue.get(channel) is None
    assert queue.waiting
    shelf.settle()
    assert not queue.waiting
    assert queue.get(channel) is not None
    assert not queue.waiting
    bench.publish("2", qos=1)
    assert not queue.waiting


def test_what_is_not_known_not_to_need_it_waits_for_it(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    queue, shelf = bench.durable()

    def of_two_minds(event: Publication) -> bool:
        if event.payload == b"2":
            raise KeyError(event.topic)
        return False

    queue.durable_first = of_two_minds
    worker = Worker(queue)
    shelf.settle()
    bench.publish(*"123")
    assert worker.names == ["1"]
    assert "KeyError: 't'" in caplog.text
    assert queue.waiting
    shelf.settle()
    assert worker.names == [*"123"]


def test_without_a_disk_it_does_not_matter(bench: Bench) -> None:
    queue = bench.queue()
    queue.durable_first = exactly_once
    worker = Worker(queue)
    bench.publish("1", qos=2)
    assert worker.names == ["1"]


def test_with_the_budget_spent_the_first_one_is_written_if_somebody_has_room_for_it(
    bench: Bench,
) -> None:
    queue, shelf = bench.durable(budget=Limit(items=1, bytes=None))
    queue.durable_first = exactly_once
    bench.publish("full", qos=1)
    shelf.settle()
    heard = [bench.publish(name, qos=2) for name in "1234"]
    assert len(shelf) == 1
    worker = Worker(queue, 2)
    shelf.settle()
    # One more than the budget at a time: room for two, of which one is there.
    assert worker.names == ["full", "1"]
    assert len(shelf) == 2
    worker.got[0].ack()
    worker.got[1].ack()
    shelf.settle()
    assert worker.names == ["full", "1", "2", "3"]
    for delivery in worker.got[2:]:
        delivery.ack()
    shelf.settle()
    assert worker.names == ["full", "1", "2", "3", "4"]
    assert all(each.answers == ["taken"] for each in heard)


def test_those_that_wait_for_room_before_it_are_written_with_it_in_order(bench: Bench) -> None:
    queue, shelf = bench.durable(budget=Limit(items=0, bytes=None))
    queue.durable_first = exactly_once
    worker = Worker(queue)
    shelf.settle()
    bench.publish("1", qos=1)
    assert (worker.names, len(shelf)) == (["1"], 0)
    bench.publish("2", qos=2)
    assert [message.seq for message in shelf.messages] == [1, 2]
    shelf.settle()
    assert worker.names == ["1", "2"]


def test_with_the_disk_in_trouble_it_is_not_delivered(bench: Bench) -> None:
    queue, shelf = bench.durable()
    queue.durable_first = exactly_once
    worker = Worker(queue)
    shelf.settle()
    queue.shelf_trouble("the disk is full")
    heard = bench.publish("1", qos=2)
    shelf.settle()
    assert worker.names == []
    queue.shelf_trouble(None)
    assert worker.names == []
    shelf.settle()
    assert (worker.names, heard.answers) == (["1"], ["taken"])


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_it_comes_in_order_and_was_durable(bench: Bench, seed: int) -> None:
    chance = random.Random(seed)
    queue, shelf = bench.durable(budget=Limit(items=chance.choice((3, 1_000)), bytes=None))
    queue.durable_first = exactly_once
    worker = Worker(queue, chance.choice((0, 1, 5)))
    names = [str(number) for number in range(150)]
    for name in names:
        bench.publish(name, qos=chance.choice((1, 2)))
        for delivery in worker.got:
            undone = delivery.event.qos == 2 and not delivery.message.at_rest
            assert not undone or delivery.message.finished
            if chance.random() < 0.3 and delivery.tag in worker.channel.unacked:
                delivery.ack()
        match chance.randrange(6):
            case 0:
                shelf.sync()
            case 1:
                shelf.answer()
            case 2:
                bench.wait(0.1)
            case 3:
                queue.shelf_trouble(chance.choice(("trouble", None, None)))
            case _:
                pass
    queue.shelf_trouble(None)
    for _ in range(1_000):
        shelf.settle()
        for delivery in worker.got:
            if delivery.tag in worker.channel.unacked:
                delivery.ack()
        if len(worker.names) == 150:
            break
    assert worker.names == names
