"""What a queue gives up is published once more; in a turn that its own account pays for."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from clearfunds.accounts import Account, Outcome, Turn
from clearfunds.dataspace import ANY, Publication, TopicFilter, capture
from clearfunds.dataspace.queues import (
    DeadLetter,
    Death,
    DeathReason,
    Delivery,
    MemoryShelf,
    Overflow,
    Queue,
    dead_letter_to,
)
from clearfunds.dataspace.queues._dead_letters import is_cycle, with_death
from tests.dataspace.queues.conftest import WALL, Bench, Worker, name_of


def pair(bench: Bench, **settings: Any) -> tuple[Queue, Queue]:
    """Make a queue, and one where its dead letters go."""
    queue = bench.queue(topic="t", dead_letter=dead_letter_to(bench.dataspace, "dead"), **settings)
    return queue, bench.queue("dead", topic="dead")


def test_rejected(bench: Bench) -> None:
    queue, dead = pair(bench)
    worker = Worker(queue)
    bench.publish(*"abc")
    worker.channel.nack(2, multiple=True, requeue=False)
    worker.channel.reject(3, requeue=False)
    letters = Worker(dead)
    assert letters.names == [*"abc"]
    assert letters.got[0].event.topic == "dead"
    assert letters.got[0].message.deaths == (Death("queue", DeathReason.REJECTED, WALL),)
    assert not letters.got[0].redelivered
    assert queue.counters.dead_lettered == 3
    # Whoever caused it pays, from the first queue to the last.
    assert bench.publisher.debt_items == 3
    letters.channel.ack(0, multiple=True)
    assert not bench.publisher.debt_items


def test_expired(bench: Bench) -> None:
    queue, dead = pair(bench, message_ttl=1)
    bench.publish("a")
    bench.wait(1)
    assert not len(queue)
    (letter,) = Worker(dead).got
    assert letter.message.deaths[0].reason is DeathReason.EXPIRED
    assert letter.message.deaths[0].time == WALL + 1


def test_too_long(bench: Bench) -> None:
    _, dead = pair(bench, max_length=1)
    bench.publish(*"abc")
    letters = Worker(dead)
    assert letters.names == [*"ab"]
    assert letters.got[0].message.deaths[0].reason is DeathReason.MAX_LENGTH


def test_refused(bench: Bench) -> None:
    queue, dead = pair(bench, max_length=1, overflow=Overflow.REJECT_PUBLISH_DLX)
    bench.publish("a")
    assert bench.publish("b").answers == ["queue queue is full"]
    assert Worker(dead).names == ["b"]
    assert Worker(queue).names == ["a"]


def test_refused_and_not_dead_lettered(bench: Bench) -> None:
    _, dead = pair(bench, max_length=1, overflow=Overflow.REJECT_PUBLISH)
    bench.publish(*"ab")
    assert not len(dead)


def test_failed_too_often(bench: Bench) -> None:
    queue, dead = pair(bench, delivery_limit=0)
    worker = Worker(queue)
    bench.publish("a")
    worker.got[0].reject(requeue=True)
    (letter,) = Worker(dead).got
    assert letter.message.deaths[0].reason is DeathReason.DELIVERY_LIMIT


def test_nothing_is_dead_lettered_when_a_queue_is_purged_or_deleted(bench: Bench) -> None:
    queue, dead = pair(bench)
    bench.publish(*"ab")
    queue.purge()
    bench.publish("c")
    queue.delete()
    assert not len(dead)


def test_other_events_are_told_of(bench: Bench) -> None:
    """Who has no topic is published as the letter that tells of it."""
    queue = bench.queue(topic=None, dead_letter=dead_letter_to(bench.dataspace))
    graves = bench.queue("graves", topic=None)
    with bench.publisher.turn() as turn:
        queue.bind(turn, bench.dataspace, ("reading", ANY))
        graves.bind(turn, bench.dataspace, capture(DeadLetter))
    with bench.publisher.turn() as turn:
        turn.publish(bench.dataspace, ("reading", 7))
    worker = Worker(queue)
    worker.got[0].reject(requeue=False)
    (grave,) = Worker(graves).got
    (letter,) = grave.event
    assert letter.event == ("reading", 7)
    assert letter.queue == "queue"


# -- cycles ---------------------------------------------------------------------------------------


def test_a_cycle_is_broken(bench: Bench) -> None:
    """Round and round by itself: it is dropped, and counted, when it comes back."""
    queue = bench.queue(topic="t", message_ttl=1, dead_letter=dead_letter_to(bench.dataspace))
    bench.publish("a")
    bench.wait(1)
    assert not len(queue)
    assert queue.counters.cycles == 1
    assert not bench.publisher.debt_items


def test_a_cycle_of_two(bench: Bench) -> None:
    one = bench.queue(
        "one", topic="one", message_ttl=1, dead_letter=dead_letter_to(bench.dataspace, "two")
    )
    two = bench.queue(
        "two", topic="two", message_ttl=1, dead_letter=dead_letter_to(bench.dataspace, "one")
    )
    bench.publish("a", topic="one")
    bench.wait(1)
    assert len(two) == 1
    bench.wait(1)
    assert (len(one), len(two)) == (0, 0)
    assert one.counters.cycles == 1


def test_a_cycle_through_a_consumer_is_none(bench: Bench) -> None:
    """It was rejected: it may come back as often as somebody rejects it."""
    queue = bench.queue(topic="t", dead_letter=dead_letter_to(bench.dataspace))
    worker = Worker(queue, 1)
    bench.publish("a")
    for _ in range(3):
        worker.got[-1].nack(requeue=False)
    assert worker.names == ["a"] * 4
    (death,) = worker.got[-1].message.deaths
    assert death.count == 3
    assert queue.counters.cycles == 0
    assert worker.got[-1].message.failures == 0


def test_two_bindings_and_a_cycle(bench: Bench) -> None:
    queue = bench.queue(topic="t", message_ttl=1, dead_letter=dead_letter_to(bench.dataspace))
    with bench.publisher.turn() as turn:
        queue.bind(turn, bench.dataspace, Publication, tag=3)
    bench.publish("a")
    assert len(queue) == 1
    bench.wait(1)
    assert queue.counters.cycles == 1
    assert not bench.publisher.debt_items


def test_what_a_cycle_is() -> None:
    expired, rejected = DeathReason.EXPIRED, DeathReason.REJECTED
    deaths = with_death((), "a", expired, 1.0)
    deaths = with_death(deaths, "b", rejected, 2.0)
    assert not is_cycle("a", deaths)
    deaths = with_death(deaths, "c", expired, 3.0)
    assert not is_cycle("a", deaths)
    assert not is_cycle("b", deaths)
    assert is_cycle("c", deaths)
    deaths = with_death(deaths, "a", expired, 4.0)
    assert deaths[0] == Death("a", expired, 1.0, 2)
    assert [death.queue for death in deaths] == ["a", "c", "b"]
    assert is_cycle("a", deaths)
    assert is_cycle("c", deaths)
    assert not is_cycle("c", ())


def test_an_ordinary_publication_has_no_deaths(bench: Bench) -> None:
    """Also one that is caused by a dead letter, or published in the same breath."""
    queue, dead = pair(bench, message_ttl=1)
    caused: list[Any] = []

    def echo(delivery: Any) -> None:
        with delivery.turn() as turn:
            turn.publish(bench.dataspace, Publication("t", b"caused"))
        caused.append(delivery)
        delivery.ack()

    dead.consume(echo)
    bench.publish("a")
    bench.wait(1)
    (delivery,) = Worker(queue).got
    assert name_of(delivery) == "caused"
    assert not delivery.message.deaths


# -- what can go wrong ----------------------------------------------------------------------------


def test_a_route_that_raises(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    def fail(turn: Turn, letter: DeadLetter) -> None:
        raise RuntimeError

    queue = bench.queue(dead_letter=fail)
    worker = Worker(queue)
    bench.publish("a")
    with caplog.at_level(logging.ERROR):
        worker.got[0].reject(requeue=False)
    assert "could not be published" in caplog.text
    assert queue.counters.dead_letters_failed == 1
    assert not bench.publisher.debt_items


def at_rest(bench: Bench, shelf: MemoryShelf) -> Account:
    shelf.settle()
    assert not bench.publisher.debt_items
    return bench.disk


def test_a_dead_letter_of_what_is_at_rest_is_the_queues_own(bench: Bench) -> None:
    queue, shelf = bench.durable(topic="t", dead_letter=dead_letter_to(bench.dataspace, "dead"))
    dead = bench.queue("dead", topic="dead")
    bench.publish(*"ab")
    disk = at_rest(bench, shelf)
    worker = Worker(queue)
    shelf.settle()
    worker.channel.nack(0, multiple=True, requeue=False)
    assert len(dead) == 2
    assert disk.debt_items == queue.account.debt_items == 2
    assert not len(shelf)
    Worker(dead).channel.ack(2, multiple=True)
    assert not disk.debt_items


def test_it_is_erased_here_when_it_is_safe_there(bench: Bench) -> None:
    queue, shelf = bench.durable(topic="t", dead_letter=dead_letter_to(bench.dataspace, "dead"))
    dead, dead_shelf = bench.durable("dead", topic="dead")
    heard = bench.publish("a")
    shelf.settle()
    assert heard.answers == ["taken"]
    worker = Worker(queue)
    shelf.settle()
    worker.got[0].reject(requeue=False)
    bench.ledger.audit()
    assert len(dead) == 1
    assert len(shelf) == 1
    assert bench.disk.debt_items == 2  # here and there
    dead_shelf.settle()
    assert len(shelf) == 0
    assert len(dead_shelf) == 1
    assert bench.disk.debt_items == 1
    assert bench.repaid(Outcome.STORED) == 2


def test_what_is_dying_may_come_to_rest(bench: Bench) -> None:
    queue, shelf = bench.durable(topic="t", dead_letter=dead_letter_to(bench.dataspace, "dead"))
    _, dead_shelf = bench.durable("dead", topic="dead")
    worker = Worker(queue)
    heard = bench.publish("a")
    worker.channel.nack(1, requeue=False)
    assert bench.publisher.debt_items == 2
    shelf.sync()
    bench.ledger.audit()
    assert heard.answers == ["taken"]
    assert (bench.publisher.debt_items, bench.disk.debt_items) == (1, 1)
    dead_shelf.settle()
    assert (bench.publisher.debt_items, bench.disk.debt_items) == (0, 1)


def test_a_queue_that_is_deleted_while_it_buries(bench: Bench) -> None:
    queue, shelf = bench.durable(topic="t", dead_letter=dead_letter_to(bench.dataspace, "dead"))
    _, dead_shelf = bench.durable("dead", topic="dead")
    worker = Worker(queue)
    heard = bench.publish("a")
    worker.got[0].reject(requeue=False)
    queue.delete()
    bench.ledger.audit()
    assert heard.answers == ["taken"]
    dead_shelf.settle()
    shelf.settle()
    assert bench.disk.debt_items == 1


def test_a_dead_letter_that_is_refused(bench: Bench) -> None:
    queue, shelf = bench.durable(topic="t", dead_letter=dead_letter_to(bench.dataspace, "dead"))
    bench.durable("dead", topic="dead", max_length=0, overflow=Overflow.REJECT_PUBLISH)
    bench.publish("a")
    shelf.settle()
    worker = Worker(queue)
    shelf.settle()
    worker.got[0].reject(requeue=False)
    assert queue.counters.dead_letters_failed == 1
    assert not bench.disk.debt_items
    assert not len(shelf)


@pytest.mark.parametrize("let_go", [False, True])
def test_a_dead_letter_whose_event_was_paged_out_is_read_first(bench: Bench, let_go: bool) -> None:
    """As policies may that page out what is unacknowledged."""
    queue, shelf = bench.durable(topic="t", dead_letter=dead_letter_to(bench.dataspace, "dead"))
    dead = bench.queue("dead", topic="dead")
    worker = Worker(queue, 3)
    bench.publish(*"abcd")
    shelf.settle()
    for delivery in worker.got:
        delivery.message.unload()
        if let_go:
            delivery.event = None
    worker.consumer.cancel()
    worker.channel.nack(2, requeue=False)
    bench.ledger.audit()
    assert len(dead) == (not let_go)
    worker.channel.nack(1)
    shelf.settle()
    bench.ledger.audit()
    assert len(dead) == (not let_go)  # one that is not doomed is before it
    other = Worker(queue)
    shelf.settle()
    assert other.names == [*"ad"]
    letters = Worker(dead)
    assert letters.names == ["b"]
    assert letters.got[0].message.deaths[0].reason is DeathReason.REJECTED
    assert queue.counters.rejected == 1


def test_purging_what_is_doomed(bench: Bench) -> None:
    queue, shelf = bench.durable(topic="t", dead_letter=dead_letter_to(bench.dataspace, "dead"))
    worker = Worker(queue)
    bench.publish(*"ab")
    shelf.settle()
    for delivery in worker.got:
        delivery.message.unload()
        delivery.event = None
    worker.consumer.cancel()
    worker.channel.nack(0, multiple=True, requeue=False)
    assert len(queue) == 2
    assert queue.purge() == 2
    shelf.settle()
    assert not bench.disk.debt_items
    bench.publish("c")
    other = Worker(queue)
    shelf.settle()
    assert other.names == ["c"]


def test_publishing_with_a_topic_filter_bound_twice(bench: Bench) -> None:
    queue, dead = pair(bench)
    with bench.publisher.turn() as turn:
        dead.bind(turn, bench.dataspace, TopicFilter("#"))
    worker = Worker(queue)
    bench.publish("a")
    worker.got[0].reject(requeue=False)
    assert len(dead) == 2  # the message itself, which `#` matches too, and the dead letter


def test_who_always_rejects_its_own_dead_letters_does_not_hold_up_others(bench: Bench) -> None:
    queue = bench.queue(topic="t", dead_letter=dead_letter_to(bench.dataspace, "t"))
    seen: list[Delivery] = []

    def reject(delivery: Delivery) -> None:
        seen.append(delivery)
        assert len(seen) < 1000
        delivery.reject(requeue=False)

    queue.consume(reject)
    bench.publish("a", topic="t")
    first = len(seen)
    assert first > 1
    assert queue.deadline() <= bench.now
    bench.wait(1)
    assert len(seen) > first
