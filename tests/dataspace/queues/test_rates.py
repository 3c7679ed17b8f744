"""Moving averages with a half-life of five seconds."""

from __future__ import annotations

import pytest

from clearfunds.dataspace.queues import Rates
from tests.dataspace.queues.conftest import Bench, Worker


def test_half_of_a_steady_rate_is_known_after_five_seconds() -> None:
    rates = Rates(100.0)
    for tenth in range(1, 51):
        rates.arrived += 10
        rates.left += 5
        rates.pended += 2
        rates.settled += 1
        rates.update(100.0 + tenth / 10)
    found = (rates.ingress, rates.egress, rates.ack_ingress, rates.ack_egress)
    assert found == pytest.approx((50.0, 25.0, 10.0, 5.0))
    rates.update(110.0)
    assert rates.ingress == pytest.approx(25.0)
    assert "in 25.0/s" in repr(rates)


def test_how_often_one_looks_does_not_matter() -> None:
    seldom, often = Rates(0.0), Rates(0.0)
    for tenth in range(100):
        seldom.arrived += 3
        often.arrived += 3
        often.update((tenth + 1) / 10)
    seldom.update(10.0)
    assert seldom.ingress == pytest.approx(often.ingress)


def test_a_burst_is_no_rate() -> None:
    rates = Rates(0.0)
    rates.arrived = 1000
    rates.update(0.01)
    assert not rates.ingress
    assert rates.arrived == 1000


def test_what_a_queue_counts(bench: Bench) -> None:
    queue = bench.queue()
    worker = Worker(queue, 3)
    bench.publish(*"abcdef")
    worker.channel.ack(1)
    worker.channel.nack(2)
    rates = queue.rates
    # Three went straight through, one each was let in by an ack and by a nack.
    counted = (rates.arrived, rates.left, rates.pended, rates.settled)
    assert counted == (6, 5, 5, 2)
    bench.wait(5)
    assert queue.statistics().egress == pytest.approx(0.5)
    assert queue.statistics().ingress == pytest.approx(0.6)
