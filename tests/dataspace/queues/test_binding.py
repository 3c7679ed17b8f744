"""What comes in: by several bindings, as runs, and not at all."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from clearfunds.accounts import Outcome, commit_run
from clearfunds.dataspace import ANY, Batch, Publication, TopicFilter, capture
from clearfunds.dataspace.queues import (
    MemoryShelf,
    Queue,
    QueueDeletedError,
    QueueSettings,
    is_persistent,
)
from tests.dataspace.queues.conftest import Bench, Worker


def test_once_however_many_bindings_match(bench: Bench) -> None:
    queue = bench.queue(topic=None)
    with bench.publisher.turn() as turn:
        for topic_filter in ("a/#", "a/+", "a/b", "other"):
            queue.bind(turn, bench.dataspace, TopicFilter(topic_filter))
        queue.bind(turn, bench.dataspace, Publication)
        queue.bind(turn, bench.dataspace, Publication)
    for qos in (0, 1):
        bench.publish("x", "y", qos=qos, topic="a/b")
    assert len(queue) == 4
    assert bench.publisher.debt_items == 4
    assert Worker(queue).names == [*"xyxy"]


def test_the_same_event_twice_is_two_messages(bench: Bench) -> None:
    queue = bench.queue(topic="#")
    with bench.publisher.turn() as turn:
        queue.bind(turn, bench.dataspace, Publication)
    event = Publication("t", b"x", 1)
    with bench.publisher.turn() as turn:
        turn.publish(bench.dataspace, event)
        turn.publish(bench.dataspace, event)
    assert len(queue) == 2
    with bench.publisher.turn() as turn:
        turn.publish(bench.dataspace, event)
    assert len(queue) == 3
    assert bench.publisher.debt_items == 3


def test_the_highest_tag_counts(bench: Bench) -> None:
    queue = bench.queue(topic=None)
    with bench.publisher.turn() as turn:
        queue.bind(turn, bench.dataspace, TopicFilter("a/#"), tag=1)
        queue.bind(turn, bench.dataspace, TopicFilter("a/b"), tag=2)
        queue.bind(turn, bench.dataspace, TopicFilter("c"), tag=1)
        queue.bind(turn, bench.dataspace, TopicFilter("d"), tag=0)
        queue.bind(turn, bench.dataspace, Publication, tag=-1)
    worker = Worker(queue)
    for topic in ("a/x", "a/b", "c", "d", "e"):
        bench.publish("x", qos=2, topic=topic)
    assert [delivery.message.tag for delivery in worker.got[:3]] == [1, 2, 1]
    # What is granted QoS 0 comes as a publication with QoS 0, beside the pattern's own.
    assert [(d.event.topic, d.event.qos, d.message.tag) for d in worker.got[3:]] == [
        ("d", 0, None),
        ("d", 2, -1),
        ("e", 2, -1),
    ]


def test_captures_are_messages_of_their_own(bench: Bench) -> None:
    queue = bench.queue(topic=None)
    with bench.publisher.turn() as turn:
        queue.bind(turn, bench.dataspace, ("reading", capture()))
        queue.bind(turn, bench.dataspace, ("reading", ANY))
    with bench.publisher.turn() as turn:
        turn.publish(bench.dataspace, ("reading", 7))
    assert sorted(map(repr, (d.event for d in Worker(queue).got))) == ["('reading', 7)", "(7,)"]


def test_ways_in_for_observations_of_ones_own(bench: Bench) -> None:
    queue = bench.queue(topic=None)
    with bench.publisher.turn() as turn:
        bench.dataspace.observe(turn, ("x", ANY), queue.way_in(1))
        bench.dataspace.observe(turn, (ANY, 2), queue.way_in(5))
    with bench.publisher.turn() as turn:
        turn.publish(bench.dataspace, ("x", 2))
        turn.publish(bench.dataspace, ("x", 3))
        turn.publish(bench.dataspace, ("y", 2))
    worker = Worker(queue)
    assert [(d.event, d.message.tag) for d in worker.got] == [
        (("x", 2), 5),
        (("x", 3), 1),
        (("y", 2), 5),
    ]
    assert not queue.bindings


def test_unbinding(bench: Bench) -> None:
    queue = bench.queue(topic=None)
    with bench.publisher.turn() as turn:
        one = queue.bind(turn, bench.dataspace, TopicFilter("a"))
        queue.bind(turn, bench.dataspace, ("x", ANY))
    with bench.publisher.turn() as turn:
        queue.unbind(turn, one)
    bench.publish("gone", topic="a")
    assert len(queue) == 0
    assert len(queue.bindings) == 1
    assert repr(queue.bindings[0]) == "<Binding of queue, tag None>"


def test_a_turn_that_fails_binds_nothing_and_unbinds_nothing(bench: Bench) -> None:
    queue = bench.queue(topic="a")

    def fail(turn: object) -> None:
        raise RuntimeError

    turn = bench.publisher.turn().__enter__()
    queue.bind(turn, bench.dataspace, TopicFilter("b"))
    queue.unbind(turn, queue.bindings[0])
    turn.act(fail)
    with pytest.raises(RuntimeError):
        turn.__exit__(None, None, None)
    assert len(queue.bindings) == 1
    bench.publish("x", topic="b")
    bench.publish("y", topic="a")
    assert Worker(queue).names == ["y"]


def test_a_deleted_queue_is_bound_to_nothing(bench: Bench) -> None:
    queue = bench.queue()
    queue.delete()
    with pytest.raises(QueueDeletedError), bench.publisher.turn() as turn:
        queue.bind(turn, bench.dataspace, TopicFilter("a"))


def test_retained_messages_come_first_if_wanted(bench: Bench) -> None:
    with bench.publisher.turn() as turn:
        turn.publish(bench.dataspace, Publication("a", b"kept", 1, retain=True))
    queue = bench.queue(topic=None)
    with bench.publisher.turn() as turn:
        queue.bind(turn, bench.dataspace, TopicFilter("a"))
    assert len(queue) == 0
    other = bench.queue("other", topic=None)
    with bench.publisher.turn() as turn:
        other.bind(turn, bench.dataspace, TopicFilter("a"), tag=1, replay=True)
    (delivery,) = Worker(other).got
    assert delivery.event.retain
    assert delivery.message.tag == 1


def run_of(payloads: Iterable[bytes]) -> Batch:
    """Return a run, with two bytes of framing for each publication."""
    events = [Publication("t", payload) for payload in payloads]
    raw = b"".join(b"--t" + event.payload for event in events)
    return Batch(raw, len(events), lambda _: events)


def test_a_run_is_taken_apart(bench: Bench) -> None:
    queue = bench.queue()
    batch = run_of([b"a", b"", b"x" * 100])
    commit_run(bench.publisher, [queue], batch, batch.count, batch.nbytes)
    bench.ledger.audit()
    queue.ready()
    assert bench.publisher.debt_items == 3
    assert bench.publisher.debt_bytes == batch.nbytes
    worker = Worker(queue)
    assert [delivery.loan.bytes for delivery in worker.got] == [4, 3, 103]
    worker.channel.ack(2)
    assert bench.publisher.debt_bytes == batch.nbytes - 3


@pytest.mark.parametrize(("items", "nbytes"), [(2, 5), (3, 1), (5, 100), (1, 0)])
def test_a_run_that_is_charged_oddly(bench: Bench, items: int, nbytes: int) -> None:
    """The books balance all the same."""
    queue = bench.queue()
    with bench.publisher.turn() as turn:
        turn.send(queue, run_of([b"aa", b"b", b"c"]), items=items, nbytes=nbytes)
    bench.ledger.audit()
    assert len(queue) == bench.publisher.debt_items == 3
    assert bench.publisher.debt_bytes == nbytes


def test_an_empty_run(bench: Bench) -> None:
    queue = bench.queue()
    with bench.publisher.turn() as turn:
        turn.send(queue, run_of([]), items=1, nbytes=4)
    assert not len(queue)
    assert not bench.publisher.debt_bytes


def test_a_message_is_one_item(bench: Bench) -> None:
    queue = bench.queue()
    with bench.publisher.turn() as turn:
        turn.send(queue, ("whatever",), items=7, nbytes=20)
    assert bench.publisher.debt_items == 1
    assert bench.publisher.debt_bytes == 20
    assert bench.repaid(Outcome.DROPPED) == 0


def test_what_is_persistent() -> None:
    class Event:
        persistent = False

    assert not is_persistent(Publication("t", b""))
    assert is_persistent(Publication("t", b"", 1))
    assert is_persistent(("a", 1))
    assert not is_persistent(Event())


def test_of_a_queue_that_is_gone_by_the_commit(bench: Bench) -> None:
    queue = bench.queue(topic=None)
    turn = bench.publisher.turn()
    turn.__enter__()
    queue.bind(turn, bench.dataspace, TopicFilter("#"))
    queue.delete()
    with pytest.raises(QueueDeletedError):
        turn.__exit__(None, None, None)
    assert not queue.bindings
    assert not bench.dataspace.statistics().subscriptions


def test_an_owner_that_cannot_tell_does_not_break_a_commit(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(event: object) -> bool:
        raise RuntimeError(event)

    shelf = MemoryShelf()
    queue = Queue(
        bench.ledger, "queue", account=bench.ledger.open("disk/queue", parent=bench.disk),
        settings=QueueSettings(durable=True), shelf=shelf, persistent=fail, ttl_of=fail,
    )  # fmt: skip
    shelf.recover(queue)
    bench.queues.append(queue)
    with bench.publisher.turn() as turn:
        turn.send(queue, "x")
    bench.ledger.audit()
    assert len(shelf) == 1
    assert len(caplog.records) == 2
