"""Limits of length and of time, and how a queue ends."""

from __future__ import annotations

import math

import pytest

from clearfunds.accounts import Limit, Outcome
from clearfunds.dataspace import Publication, TopicFilter
from clearfunds.dataspace.queues import (
    Channel,
    Delivery,
    Overflow,
    Queue,
    QueueDeletedError,
    QueueInUseError,
    QueueNotEmptyError,
    QueueSettings,
)
from tests.dataspace.queues.conftest import WALL, Bench, Worker

# -- length and bytes -----------------------------------------------------------------------------


def test_the_oldest_are_dropped(bench: Bench) -> None:
    queue = bench.queue(max_length=2)
    bench.publish(*"abcd")
    assert bench.repaid(Outcome.DROPPED) == 2
    assert queue.counters.dropped == 2
    assert Worker(queue).names == [*"cd"]


def test_bytes_are_limited(bench: Bench) -> None:
    queue = bench.queue(max_bytes=10)
    bench.publish("aaa", "bbb", "ccc")  # 4 bytes each
    assert queue.statistics().ready_bytes == 8
    bench.publish("x" * 20)
    assert not len(queue)


def test_what_goes_straight_to_a_consumer_is_never_too_much(bench: Bench) -> None:
    queue = bench.queue(max_length=0)
    worker = Worker(queue, 2)
    bench.publish(*"abc")
    assert worker.names == [*"ab"]
    assert queue.counters.dropped == 1


def test_what_comes_back_may_be_too_much(bench: Bench) -> None:
    queue = bench.queue(max_length=2)
    worker = Worker(queue, 2)
    bench.publish(*"abcd")
    worker.channel.close()
    assert Worker(queue).names == [*"cd"]


@pytest.mark.parametrize("overflow", [Overflow.REJECT_PUBLISH, Overflow.REJECT_PUBLISH_DLX])
def test_the_newest_are_refused(bench: Bench, overflow: Overflow) -> None:
    queue = bench.queue(max_length=2, overflow=overflow)
    accepted = [bench.publish(name) for name in "ab"]
    refused = bench.publish("c")
    assert [heard.answers for heard in accepted] == [["taken"], ["taken"]]
    assert refused.answers == ["queue queue is full"]
    assert all(heard.expected == 1 for heard in [*accepted, refused])
    assert queue.counters.refused == 1
    worker = Worker(queue)
    assert worker.names == [*"ab"]
    worker.channel.close()
    # What was accepted is not dropped, though it came back to a queue that is full.
    bench.publish("d")
    assert Worker(queue).names == [*"ab"]


# -- time -----------------------------------------------------------------------------------------


def test_messages_expire(bench: Bench) -> None:
    queue = bench.queue(message_ttl=5)
    bench.publish("a")
    bench.wait(3)
    bench.publish("b")
    assert queue.deadline() == 5
    bench.wait(1.9)
    assert len(queue) == 2
    bench.wait(0.1)
    assert bench.repaid(Outcome.EXPIRED) == 1
    assert queue.deadline() == 8
    assert Worker(queue).names == ["b"]
    assert queue.deadline() == math.inf


def test_what_has_expired_is_never_delivered(bench: Bench) -> None:
    """Though nobody has come by in time to drop it."""
    queue = bench.queue(message_ttl=5)
    bench.publish("a")
    bench.now += 6
    assert not Worker(queue).got
    assert queue.counters.expired == 1


def test_what_is_unacked_does_not_expire_and_what_comes_back_does(bench: Bench) -> None:
    queue = bench.queue(message_ttl=5)
    worker = Worker(queue)
    bench.publish(*"ab")
    bench.wait(10)
    worker.channel.ack(1)
    worker.channel.nack(2)
    assert queue.counters.expired == 1
    assert len(worker.got) == 2


def test_at_once_or_never(bench: Bench) -> None:
    queue = bench.queue(message_ttl=0)
    bench.publish("a")
    assert not len(queue)
    bench.now += 1
    worker = Worker(queue)
    bench.publish("b")
    assert queue.counters.expired == 1 + (not worker.got)


def test_events_may_say_how_long_they_keep(bench: Bench) -> None:
    queue = Queue(
        bench.ledger,
        "queue",
        account=bench.ledger.open("disk/queue", parent=bench.disk),
        settings=QueueSettings(message_ttl=10),
        ttl_of=lambda event: {b"short": 1, b"long": 100}.get(event.payload),
        wall=lambda: WALL + bench.now,
    )
    bench.queues.append(queue)
    with bench.publisher.turn() as turn:
        queue.bind(turn, bench.dataspace, TopicFilter("#"))
    bench.publish("short", "long", "none")
    bench.wait(2)
    assert len(queue) == 2
    bench.wait(9)
    assert not len(queue)


def test_a_message_that_would_expire_waits_behind_one_that_does_not(bench: Bench) -> None:
    """As in RabbitMQ: the head is looked at. It is not delivered late, for all that."""
    queue = Queue(
        bench.ledger,
        "queue",
        account=bench.ledger.open("disk/queue", parent=bench.disk),
        ttl_of=lambda event: 1 if event.payload == b"short" else None,
        wall=lambda: WALL + bench.now,
    )
    bench.queues.append(queue)
    with bench.publisher.turn() as turn:
        queue.bind(turn, bench.dataspace, TopicFilter("#"))
    bench.publish("for ever", "short")
    bench.wait(5)
    assert len(queue) == 2
    assert Worker(queue).names == ["for ever"]
    assert not len(queue)


def test_a_wall_clock_that_is_set_is_followed_at_the_next_tick(bench: Bench) -> None:
    offset = 0.0
    queue = Queue(
        bench.ledger,
        "queue",
        account=bench.ledger.open("disk/queue", parent=bench.disk),
        settings=QueueSettings(message_ttl=10),
        wall=lambda: WALL + bench.now + offset,
    )
    bench.queues.append(queue)
    with bench.publisher.turn() as turn:
        turn.send(queue, Publication("t", b"a"))
    offset = 100.0
    bench.wait(0)
    assert queue.counters.expired == 1


def test_a_queue_that_nobody_uses_expires(bench: Bench) -> None:
    deleted: list[Queue] = []
    queue = bench.queue(expires=10, on_deleted=deleted.append)
    bench.publish("a")
    bench.wait(9)
    queue.touch()
    assert queue.deadline() == 19
    bench.wait(9)
    queue.get(Channel())
    bench.wait(9)
    worker = Worker(queue)
    assert queue.deadline() == math.inf
    bench.wait(100)
    worker.consumer.cancel()
    bench.wait(9)
    assert not deleted
    bench.wait(1)
    assert deleted == [queue]
    bench.publish("b")
    assert not bench.publisher.debt_items


# -- the end --------------------------------------------------------------------------------------


def test_auto_delete_when_the_last_consumer_has_gone(bench: Bench) -> None:
    queue = bench.queue(auto_delete=True)
    bench.publish("a")
    assert not queue.deleted
    one, two = Worker(queue), Worker(queue)
    one.consumer.cancel()
    assert not queue.deleted
    two.channel.close()
    assert queue.deleted
    assert not one.ends
    assert not bench.publisher.debt_items
    assert bench.dataspace.statistics().subscriptions == 0


def test_purge(bench: Bench) -> None:
    queue = bench.queue()
    worker = Worker(queue, 1)
    bench.publish(*"abc")
    assert queue.purge() == 2
    assert queue.purge() == 0
    assert queue.counters.purged == 2
    assert bench.publisher.debt_items == 1
    worker.channel.nack(1)
    assert worker.names == [*"aa"]


def test_delete(bench: Bench) -> None:
    queue = bench.queue()
    worker = Worker(queue, 1)
    bench.publish(*"abc")
    with pytest.raises(QueueInUseError):
        queue.delete(if_unused=True)
    with pytest.raises(QueueNotEmptyError):
        queue.delete(if_empty=True)
    assert queue.delete() == 2
    assert queue.delete() == 0
    assert worker.ends == ["queue queue was deleted"]
    assert worker.consumer.cancelled
    assert not bench.publisher.debt_items
    assert not queue.bindings
    assert queue.name not in {holder.name for holder in bench.ledger.holders}
    worker.channel.ack(1)
    for act in (lambda: queue.consume(print), lambda: queue.get(Channel())):
        with pytest.raises(QueueDeletedError):
            act()
    assert queue.tick(bench.now) == math.inf
    # What was on its way to it is not lost without a count.
    dropped = bench.repaid(Outcome.DROPPED)
    with bench.publisher.turn() as turn:
        turn.send(queue, Publication("t", b"late"))
    assert bench.repaid(Outcome.DROPPED) == dropped + 1


def test_deleting_an_empty_and_unused_queue(bench: Bench) -> None:
    assert bench.queue().delete(if_unused=True, if_empty=True) == 0


def test_settings_may_change(bench: Bench) -> None:
    queue = bench.queue()
    bench.publish(*"abcd")
    queue.configure(QueueSettings(max_length=3))
    assert len(queue) == 3
    queue.configure(QueueSettings(max_length=3, overflow=Overflow.REJECT_PUBLISH, message_ttl=5))
    assert bench.publish("e").answers == ["queue queue is full"]
    assert Worker(queue, 1).names == ["b"]
    bench.publish("f")
    bench.wait(5)
    assert len(queue) == 3  # those without a time to live are before it
    with pytest.raises(ValueError, match="durable"):
        queue.configure(QueueSettings(durable=True))


@pytest.mark.parametrize(
    "wrong", [{"max_length": -1}, {"max_bytes": -1}, {"message_ttl": -1}, {"expires": 0}]
)
def test_settings_that_make_no_sense(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        QueueSettings(**wrong)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


def test_with_no_time_to_live_it_is_delivered_at_once_or_never(bench: Bench) -> None:
    queue = bench.queue(message_ttl=0)
    bench.publish("a")
    assert queue.counters.expired == 1
    worker = Worker(queue, 1)
    bench.publish(*"bc")
    assert worker.names == ["b"]
    assert queue.counters.expired == 2


def test_a_queue_may_be_closed_by_whom_it_serves(bench: Bench) -> None:
    queue, shelf = bench.durable()

    def close(delivery: Delivery) -> None:
        queue.configure(QueueSettings(durable=True, max_length=0))
        delivery.nack()
        queue.close()

    bench.publish(*"ab")
    shelf.sync()
    bench.publish("c", qos=0)
    queue.consume(close)
    shelf.settle()
    assert [message.seq for message in shelf.messages][:2] == [1, 2]
    assert queue.deleted
    bench.ledger.audit()
    assert not bench.disk.debt_items + bench.publisher.debt_items


def test_what_a_closed_queue_has_left_on_its_shelf_stays_there(bench: Bench) -> None:
    queue, shelf = bench.durable(budget=Limit(items=2, bytes=None), max_length=9)
    bench.publish(*"abc")
    shelf.sync()
    queue.close()
    assert not queue.purge()
    queue.configure(QueueSettings(durable=True, max_length=0))
    queue.shelf_trouble("it is full")
    queue.shelf_trouble(None)
    shelf.settle()
    assert len(shelf) == 2
    bench.ledger.audit()
