"""Publications that expire by themselves (MQTT 5), in queues."""

from __future__ import annotations

import attrs
import pytest

from clearfunds.accounts import Outcome
from clearfunds.dataspace import Publication
from clearfunds.dataspace.queues import Channel, MemoryShelf, dead_letter_to
from tests.dataspace.queues.conftest import WALL, Bench, Worker


def publish(bench: Bench, name: str, after: float | None, qos: int = 1) -> None:
    expires = None if after is None else WALL + bench.now + after
    publication = Publication("t", name.encode(), qos, properties=b"p", expires=expires)
    with bench.publisher.turn(publication) as turn:
        turn.publish(bench.dataspace, publication)
    bench.ledger.audit()


@pytest.mark.parametrize("durable", [False, True])
def test_it_expires_and_is_not_delivered_after_that(bench: Bench, durable: bool) -> None:
    queue = bench.durable()[0] if durable else bench.queue()
    publish(bench, "soon", 5)
    publish(bench, "late", 50)
    publish(bench, "never", None)
    assert queue.deadline() == bench.now + 5
    bench.wait(5)
    assert queue.counters.expired == 1
    assert bench.repaid(Outcome.EXPIRED) == 1
    bench.wait(45)
    worker = Worker(queue)
    if durable:
        for each in bench.queues:
            assert isinstance(each.shelf, MemoryShelf)
            each.shelf.settle()
    assert worker.fresh() == ["never"]
    worker.channel.ack(0, multiple=True)


def test_behind_what_does_not_expire_it_is_not_delivered_either(bench: Bench) -> None:
    queue = bench.queue()
    publish(bench, "never", None)
    publish(bench, "soon", 5)
    bench.wait(10)
    channel = Channel()
    delivery = queue.get(channel)
    assert delivery is not None
    assert delivery.event.payload == b"never"
    assert queue.get(channel) is None
    assert queue.counters.expired == 1
    delivery.ack()


@pytest.mark.parametrize(("ttl", "after", "expired"), [(3, 5, 3), (8, 5, 5)])
def test_the_sooner_of_both_counts(bench: Bench, ttl: float, after: float, expired: float) -> None:
    queue = bench.queue(message_ttl=ttl)
    publish(bench, "m", after)
    bench.wait(expired - 1)
    assert len(queue) == 1
    bench.wait(1)
    assert len(queue) == 0


def test_what_has_expired_before_it_came_goes_to_nobody(bench: Bench) -> None:
    queue = bench.queue()
    worker = Worker(queue)
    publish(bench, "over", -1)
    publish(bench, "m", 5)
    assert worker.names == ["m"]
    assert queue.counters.expired == 1
    worker.channel.ack(0, multiple=True)


def test_one_that_may_wait_for_no_time_is_delivered_at_once(bench: Bench) -> None:
    worker = Worker(bench.queue(message_ttl=0))
    publish(bench, "m", 5)
    assert worker.names == ["m"]
    worker.channel.ack(0, multiple=True)


def test_after_a_restart_it_expires_all_the_same(bench: Bench) -> None:
    queue, shelf = bench.durable()
    publish(bench, "soon", 5)
    publish(bench, "late", 500)
    shelf.settle()
    found = shelf.crash()
    queue.delete()
    bench.now += 100
    again = bench.queue("again", topic=None, shelf=found, durable=True)
    bench.wait(0)
    worker = Worker(again)
    found.settle()
    assert worker.names == ["late"]
    assert worker.got[0].event.properties == b"p"
    assert again.counters.expired == 1
    worker.channel.ack(0, multiple=True)


def test_as_a_dead_letter_it_does_not_expire_again(bench: Bench) -> None:
    bench.queue("dead", topic="dead")
    queue = bench.queue(topic="t", dead_letter=dead_letter_to(bench.dataspace, "dead"))
    publish(bench, "m", 5)
    bench.wait(10)
    assert queue.counters.expired == 1
    bench.wait(100)
    worker = Worker(bench.queues[0])
    (delivery,) = worker.got
    assert delivery.event == attrs.evolve(Publication("dead", b"m", 1), properties=b"p")
    delivery.ack()
