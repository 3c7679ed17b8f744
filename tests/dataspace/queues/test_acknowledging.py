"""Acks, nacks and rejects, single and multiple; and what comes back."""

from __future__ import annotations

import pytest
import trio

from clearfunds.accounts import Limit, Outcome
from clearfunds.dataspace.queues import Channel, Delivery, UnknownTagError
from tests.dataspace.queues.conftest import Bench, Worker


def test_single(bench: Bench) -> None:
    worker = Worker(bench.queue())
    bench.publish(*"abc")
    worker.channel.ack(2)
    assert bench.publisher.debt_items == 2
    assert bench.repaid(Outcome.ACKED) == 1
    assert [delivery.tag for delivery in worker.channel.outstanding()] == [1, 3]


def test_multiple_is_the_tag_and_all_below(bench: Bench) -> None:
    worker = Worker(bench.queue())
    bench.publish(*"abcdef")
    worker.channel.ack(2)
    worker.channel.ack(4, multiple=True)
    assert [delivery.tag for delivery in worker.channel.outstanding()] == [5, 6]
    assert bench.repaid(Outcome.ACKED) == 4
    worker.channel.ack(0, multiple=True)
    assert not len(worker.channel)
    worker.channel.ack(0, multiple=True)  # all of none


def test_multiple_after_many_single_ones(bench: Bench) -> None:
    worker = Worker(bench.queue())
    bench.publish(*["x"] * 500)
    for tag in range(1, 501):
        if tag % 100:
            worker.channel.ack(tag)
    worker.channel.ack(300, multiple=True)
    assert [delivery.tag for delivery in worker.channel.outstanding()] == [400, 500]
    worker.channel.nack(0, multiple=True)
    assert len(worker.got) == 502


@pytest.mark.parametrize("multiple", [False, True])
@pytest.mark.parametrize("tag", [1, 3, 4, 99, -1])
def test_a_tag_that_is_not_outstanding(bench: Bench, tag: int, multiple: bool) -> None:
    """Also with `multiple` the tag itself has to be; and nothing happens then."""
    worker = Worker(bench.queue())
    bench.publish(*"abc")
    worker.channel.ack(1)
    worker.channel.ack(3)
    for act in (worker.channel.ack, worker.channel.nack):
        with pytest.raises(UnknownTagError, match=str(tag)):
            act(tag, multiple=multiple)
    with pytest.raises(UnknownTagError):
        worker.channel.reject(tag)
    assert [delivery.tag for delivery in worker.channel.outstanding()] == [2]


def test_0_without_multiple(bench: Bench) -> None:
    worker = Worker(bench.queue())
    bench.publish("a")
    with pytest.raises(UnknownTagError):
        worker.channel.ack(0)


def test_tags_are_the_channels(bench: Bench) -> None:
    one, two = bench.queue("one", topic="one"), bench.queue("two", topic="two")
    channel = Channel("both")
    for queue in (one, two):
        Worker(queue, channel=channel)
    bench.publish("a", topic="one")
    bench.publish("b", topic="two")
    bench.publish("c", topic="one")
    assert [delivery.queue.name for delivery in channel.outstanding()] == ["one", "two", "one"]
    channel.ack(2, multiple=True)
    assert [delivery.tag for delivery in channel.outstanding()] == [3]


def test_requeued_to_the_original_place(bench: Bench) -> None:
    queue = bench.queue()
    worker = Worker(queue, 4)
    bench.publish(*"abcdef")
    assert worker.fresh() == [*"abcd"]
    worker.channel.ack(1)
    assert worker.fresh() == ["e"]
    worker.consumer.cancel()
    for tag in (4, 2, 5):
        worker.channel.nack(tag)
    other = Worker(queue)
    assert other.names == [*"bdef"]
    assert [delivery.redelivered for delivery in other.got] == [True, True, True, False]
    worker.channel.nack(3)
    assert other.names == [*"bdefc"]


def test_nack_and_reject_without_requeueing(bench: Bench) -> None:
    queue = bench.queue()
    worker = Worker(queue)
    bench.publish(*"abcd")
    rejected = bench.repaid(Outcome.REJECTED)
    worker.channel.nack(2, multiple=True, requeue=False)
    worker.channel.reject(3, requeue=False)
    assert bench.repaid(Outcome.REJECTED) == rejected + 3
    assert queue.counters.rejected == 3
    assert len(worker.got) == 4


def test_recover(bench: Bench) -> None:
    worker = Worker(bench.queue())
    bench.publish(*"ab")
    worker.channel.recover()
    assert worker.names == [*"abab"]
    assert [delivery.tag for delivery in worker.channel.outstanding()] == [3, 4]


def test_closing_a_channel_puts_back_what_it_had(bench: Bench) -> None:
    queue = bench.queue()
    worker, other = Worker(queue, 2), Worker(queue, 1)
    bench.publish(*"abcd")
    worker.channel.close()
    worker.channel.close()
    assert len(queue) == 3
    assert other.names == ["b"]
    other.channel.ack(1)
    assert other.names == ["b", "a"]
    assert other.got[1].redelivered
    with pytest.raises(UnknownTagError, match="closed"):
        worker.channel.ack(1)


def test_the_delivery_limit_counts_failures(bench: Bench) -> None:
    """A reject counts, and a consumer that breaks down; a nack and an orderly end do not."""
    queue = bench.queue(delivery_limit=2)
    worker = Worker(queue)
    bench.publish("a")
    for _ in range(5):
        worker.got[-1].nack()
    worker.got[-1].reject()
    worker.channel.close()
    worker = Worker(queue)
    worker.channel.close(failed=True)
    worker = Worker(queue)
    assert worker.got[-1].message.failures == 2
    assert worker.got[-1].message.deliveries == 9
    worker.got[-1].reject()
    assert not len(queue)
    assert len(worker.got) == 1
    assert queue.counters.failed == 1
    assert not bench.publisher.debt_items


def test_a_delivery_whose_loan_somebody_has_settled_is_done(bench: Bench) -> None:
    queue = bench.queue()
    worker = Worker(queue)
    bench.publish(*"ab")
    for delivery in worker.got:
        with delivery.loan:
            pass
    worker.channel.ack(1)
    worker.channel.nack(2)
    assert not len(queue)
    assert not len(worker.channel)


def test_a_delivery_may_come_to_rest_while_it_is_worked_on(bench: Bench) -> None:
    async def main() -> None:
        queue, shelf = bench.durable()
        worker = Worker(queue)
        bench.publish("a")
        with worker.got[0]:
            assert bench.ledger.inside
            shelf.sync()
            assert worker.got[0].loan.account is queue.account
        # This task is in no block any more, and may wait for its publisher's debt.
        assert not bench.ledger.inside
        bench.ledger.audit()

    trio.run(main)


def test_an_ack_of_many_writes_none_of_them_into_the_room_that_others_make(bench: Bench) -> None:
    queue, shelf = bench.durable(budget=Limit(items=1, bytes=None))
    worker = Worker(queue)
    bench.publish(*"ab")
    shelf.sync()
    assert queue.statistics().unwritten == 1
    worker.channel.ack(0, multiple=True)
    assert not queue.statistics().unwritten
    shelf.settle()
    assert not shelf.messages  # or a restart would deliver what was acked


def test_a_consumer_has_progressed_when_something_of_its_was_settled(bench: Bench) -> None:
    queue = bench.queue()
    worker, other = Worker(queue), Worker(queue)
    bench.wait(1)
    bench.publish(*"abcdefgh")
    assert worker.consumer.progressed_at == other.consumer.progressed_at == 1
    for end in (Delivery.ack, Delivery.nack, Delivery.reject):
        bench.wait(1)
        end(worker.got.pop(0))
        assert worker.consumer.progressed_at == bench.now
        assert other.consumer.progressed_at < bench.now
    bench.wait(1)
    worker.channel.ack(0, multiple=True)
    assert worker.consumer.progressed_at == bench.now
