"""A message in a queue, traced: the queue holds it until it is acknowledged, or at rest on disk."""

from __future__ import annotations

from clearfunds.accounts import Outcome, Trace, Tracer
from clearfunds.dataspace import TopicFilter
from tests.dataspace.queues.conftest import Bench, Worker


def told(tracer: Tracer) -> Trace:
    (trace,) = tracer.rest()
    return trace


def test_it_is_the_queue_that_holds_it_until_the_ack(bench: Bench) -> None:
    queue = bench.queue()
    with bench.publisher.turn() as turn:  # twice, and yet in the queue once
        queue.bind(turn, bench.dataspace, TopicFilter("t"))
    worker = Worker(queue)
    with Tracer(bench.ledger, "publisher".__eq__) as tracer:
        bench.publish("a")
        bench.wait(2)
        (delivery,) = worker.got
        (notes,) = bench.ledger.traces
        (loan,) = notes.told(9).loans()
        assert (loan.holder, loan.kind, loan.label) == ("queue", queue.kind, "t")
        assert loan.left_items == 1
        assert loan.held[0].holder == "queue"
        worker.channel.ack(delivery.tag)
        trace = told(tracer)
    assert trace.complete
    assert trace.outcomes[Outcome.ACKED] == 1
