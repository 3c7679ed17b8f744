"""Consumers are served in turn, as far as their windows have room."""

from __future__ import annotations

import logging

import pytest

from clearfunds.accounts import LoanedItem, Outcome
from clearfunds.dataspace import Mailbox
from clearfunds.dataspace.queues import (
    Channel,
    Delivery,
    PrefetchWindow,
    QueueDeletedError,
    QueueInUseError,
    QueueLockedError,
)
from tests.dataspace.queues.conftest import Bench, Worker, name_of


def test_in_turn(bench: Bench) -> None:
    queue = bench.queue()
    workers = [Worker(queue) for _ in range(3)]
    bench.publish(*"abcdefg")
    assert [w.names for w in workers] == [["a", "d", "g"], ["b", "e"], ["c", "f"]]


def test_what_waited_is_served_in_order_when_somebody_comes(bench: Bench) -> None:
    queue = bench.queue()
    bench.publish(*"abc")
    bench.publish(*"de")
    assert len(queue) == 5
    worker = Worker(queue)
    assert worker.names == [*"abcde"]
    assert not len(queue)
    assert bench.publisher.debt_items == 5  # until they are acked


def test_who_has_no_room_is_passed_over_and_comes_back_at_the_end(bench: Bench) -> None:
    queue = bench.queue()
    small, large = Worker(queue, 1), Worker(queue)
    bench.publish(*"abcd")
    assert small.names == ["a"]
    assert large.names == [*"bcd"]
    small.channel.ack(1)
    bench.publish(*"ef")
    assert large.names == [*"bcde"]
    assert small.names == ["a", "f"]


@pytest.mark.parametrize(
    ("items", "nbytes", "expected"), [(2, 0, 2), (0, 5, 3), (4, 5, 3), (0, 0, 5)]
)
def test_both_limits_of_a_window(bench: Bench, items: int, nbytes: int, expected: int) -> None:
    queue = bench.queue()
    worker = Worker(queue, items, nbytes)
    bench.publish(*"abcde")  # 2 bytes each: a window of 5 has room for a third
    assert len(worker.got) == expected


def test_a_message_larger_than_the_window_is_not_stuck(bench: Bench) -> None:
    queue = bench.queue()
    worker = Worker(queue, 0, 10)
    bench.publish("x" * 100, "b")
    assert worker.names == ["x" * 100]
    worker.channel.ack(1)
    assert worker.names[1:] == ["b"]


def test_a_window_that_is_shared(bench: Bench) -> None:
    """Its own and the channel's: both have to have room, over all queues."""
    one, two = bench.queue("one", topic="one"), bench.queue("two", topic="two")
    channel = Channel("shared", window=PrefetchWindow(3))
    first, second = Worker(one, 2, channel=channel), Worker(two, 2, channel=channel)
    bench.publish(*"abcd", topic="one")
    bench.publish(*"vwxy", topic="two")
    assert first.names == [*"ab"]
    assert second.names == ["v"]
    channel.ack(first.got[0].tag)
    # One of both has got room; the first queue's own window would have had it, too.
    assert len(first.got) + len(second.got) == 4
    channel.ack(0, multiple=True)
    assert len(first.got) + len(second.got) == 7
    assert len({delivery.tag for delivery in [*first.got, *second.got]}) == 7
    assert channel.window is not None
    assert channel.window.used_items == len(channel) == 3


def test_an_ack_in_one_queue_lets_another_go_on(bench: Bench) -> None:
    one, two = bench.queue("one", topic="one"), bench.queue("two", topic="two")
    channel = Channel("shared", window=PrefetchWindow(1))
    first, second = Worker(one, channel=channel), Worker(two, channel=channel)
    bench.publish("a", topic="one")
    bench.publish("v", topic="two")
    assert not second.got
    channel.ack(1)
    assert second.names == ["v"]
    assert first.names == ["a"]


def test_a_queue_that_goes_gives_back_its_room(bench: Bench) -> None:
    one, two = bench.queue("one", topic="one"), bench.queue("two", topic="two")
    channel = Channel("shared", window=PrefetchWindow(1))
    Worker(one, channel=channel)
    second = Worker(two, channel=channel)
    bench.publish("a", topic="one")
    bench.publish("v", topic="two")
    one.delete()
    assert second.names == ["v"]
    channel.ack(1)  # in vain, and no error: it was delivered
    assert bench.publisher.debt_items == 1


def test_lowering_a_window_takes_effect_as_acks_arrive(bench: Bench) -> None:
    queue = bench.queue()
    worker = Worker(queue, 4)
    bench.publish(*"abcdefgh")
    worker.window.resize(2)
    worker.channel.ack(1)
    worker.channel.ack(2)
    assert len(worker.got) == 4
    worker.channel.ack(3)
    assert len(worker.got) == 5
    worker.window.resize(0)
    assert len(worker.got) == 8
    with pytest.raises(ValueError, match="at least 0"):
        worker.window.resize(-1)


def test_exclusive_consumers(bench: Bench) -> None:
    queue = bench.queue()
    worker = Worker(queue)
    with pytest.raises(QueueInUseError):
        Worker(queue, exclusive=True)
    worker.consumer.cancel()
    alone = Worker(queue, exclusive=True)
    with pytest.raises(QueueInUseError):
        Worker(queue)
    alone.channel.close()
    assert len(queue.consumers) == 0
    Worker(queue)


def test_a_cancelled_consumer_keeps_what_it_has(bench: Bench) -> None:
    queue = bench.queue()
    worker = Worker(queue)
    bench.publish(*"ab")
    worker.consumer.cancel()
    worker.consumer.cancel()
    bench.publish("c")
    assert worker.names == [*"ab"]
    worker.channel.ack(2, multiple=True)
    assert bench.publisher.debt_items == 1


def test_without_acknowledgement_it_is_done_with_when_it_is_made(bench: Bench) -> None:
    queue = bench.queue()
    worker = Worker(queue, no_ack=True)
    delivered = bench.repaid(Outcome.DELIVERED)
    bench.publish(*"abc")
    assert worker.names == [*"abc"]
    assert not bench.publisher.debt_items
    assert bench.repaid(Outcome.DELIVERED) == delivered + 3 + 1  # and the turn
    assert queue.counters.acked == 3
    assert not len(worker.channel)


def test_without_acknowledgement_the_loan_may_go_on(bench: Bench) -> None:
    queue = bench.queue()
    mailbox = Mailbox(bench.ledger, "mailbox")
    queue.consume(lambda delivery: mailbox.put(delivery.loan), no_ack=True)
    bench.publish(*"ab")
    assert bench.publisher.debt_items == 2
    bench.ledger.audit()
    loan: LoanedItem[list[object]] = mailbox.receive_nowait()
    loan.settle()
    mailbox.close()
    assert not bench.publisher.debt_items


def test_a_callback_may_acknowledge_and_publish(bench: Bench) -> None:
    queue = bench.queue()
    seen: list[str] = []

    def work(delivery: Delivery) -> None:
        seen.append(name_of(delivery))
        if len(seen) < 5:
            with delivery.turn() as turn:
                turn.publish(bench.dataspace, delivery.event)
        delivery.ack()

    queue.consume(work, window=PrefetchWindow(1))
    bench.publish("a")
    assert seen == ["a"] * 5
    assert not bench.publisher.debt_items


def test_a_callback_that_gives_back_at_once_does_not_go_on_for_ever(bench: Bench) -> None:
    queue = bench.queue()
    seen: list[str] = []

    def refuse(delivery: Delivery) -> None:
        seen.append(name_of(delivery))
        delivery.nack()

    consumer = queue.consume(refuse)
    bench.publish(*"ab")
    assert seen[:3] == ["a", "b", "a"]
    assert len(seen) < 1000
    assert queue.deadline() < bench.now  # it goes on with the next tick
    before = len(seen)
    bench.wait(0)
    assert len(seen) > before
    consumer.cancel()
    assert len(queue) == 2


def test_a_callback_that_raises_gets_nothing_more(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    queue = bench.queue()
    ends: list[str] = []

    def fail(delivery: Delivery) -> None:
        raise RuntimeError(name_of(delivery))

    queue.consume(fail, on_cancelled=ends.append)
    other = Worker(queue)
    with caplog.at_level(logging.ERROR):
        bench.publish(*"ab")
    assert "failed" in caplog.text
    assert other.names in ([*"ab"], [*"ba"])
    assert [d.redelivered for d in other.got if name_of(d) == "a"] == [True]
    assert len(ends) == 1
    assert "RuntimeError" in ends[0]


def test_get(bench: Bench) -> None:
    queue = bench.queue()
    channel = Channel("getter")
    assert queue.get(channel) is None
    bench.publish(*"ab")
    first = queue.get(channel)
    assert first is not None
    assert (name_of(first), first.tag, first.redelivered) == ("a", 1, False)
    second = queue.get(channel, no_ack=True)
    assert second is not None
    assert name_of(second) == "b"
    assert bench.publisher.debt_items == 1
    first.nack()
    again = queue.get(channel)
    assert again is not None
    assert again.redelivered
    assert again.tag == 3
    channel.close()
    with pytest.raises(QueueDeletedError):
        queue.get(channel)


def test_a_delivery_as_a_block(bench: Bench) -> None:
    queue = bench.queue(delivery_limit=1)
    worker = Worker(queue, 1)
    bench.publish("a")
    with worker.got[0] as event:
        assert event.payload == b"a"
    assert not bench.publisher.debt_items
    bench.publish("b")
    for count in (2, 3):
        with pytest.raises(ZeroDivisionError), worker.got[-1]:
            _ = 1 / 0
        assert len(worker.got) == min(count + 1, 3)
    assert queue.counters.failed == 1
    assert not bench.publisher.debt_items


def test_who_may_use_an_exclusive_queue(bench: Bench) -> None:
    queue = bench.queue()
    queue.check_access("anybody")
    me = object()
    from clearfunds.dataspace.queues import Queue

    mine = Queue(bench.ledger, "mine", account=bench.publisher, exclusive_to=me)
    mine.check_access(me)
    with pytest.raises(QueueLockedError):
        mine.check_access("somebody")
    mine.delete()


def test_statistics(bench: Bench) -> None:
    queue = bench.queue()
    worker = Worker(queue, 2)
    bench.publish(*"abcd")
    worker.channel.ack(1)
    numbers = queue.statistics()
    assert (numbers.ready, numbers.ready_bytes) == (1, 2)
    assert (numbers.unacked, numbers.unacked_bytes) == (2, 4)
    assert (numbers.consumers, numbers.consumers_full, numbers.bindings) == (1, 1, 1)
    assert numbers.counters.published == 4
    assert numbers.counters.delivered == 3
    assert numbers.backing.policy == "steady"
    assert repr(queue) == "<Queue queue: 1 ready, 2 unacked, 1 consumers>"
    assert "2 unacked" in repr(worker.consumer)
    for each in (worker.channel, worker.window, worker.got[0], queue.backing, queue.rates):
        assert repr(each).startswith("<")
