"""Latencies that processes hand to each other."""

import pytest

from clearfunds.perf import Latencies, Marks
from clearfunds.perf._latency import PERCENTILES


def test_percentiles() -> None:
    found = Latencies()
    assert found.percentile(99) is None
    assert found.most() is None
    found.add(range(1, 100_001))
    assert len(found) == 100_000
    assert found.percentile(50) == pytest.approx(0.05, rel=2e-3)
    assert found.percentile(99) == pytest.approx(0.099, rel=2e-3)
    assert found.most() == pytest.approx(0.1, rel=2e-3)


def test_handed_over_and_put_together() -> None:
    one, other = Latencies(), Latencies()
    one.add([1_000] * 10)
    other.add([9_000] * 90)
    both = Latencies(one.encode())
    both.merge(Latencies(other.encode()))
    assert len(both) == 100
    assert both.percentile(10) == pytest.approx(0.001, rel=2e-3)
    assert both.percentile(11) == pytest.approx(0.009, rel=2e-3)


def test_a_mean_is_of_what_was_added() -> None:
    found, other = Latencies(), Latencies()
    found.add([1, 2, 1_000_003])
    assert found.mean() == pytest.approx(1_000_006 / 3e6, rel=1e-12)
    other.add([9_999_999])
    told = Latencies.told(found.tell())
    told.merge(Latencies.told(other.tell()))
    assert told.mean() == pytest.approx(11_000_005 / 4e6, rel=1e-12)
    # Of others' histograms it is as good as these are.
    assert Latencies(found.encode()).mean() == pytest.approx(1_000_006 / 3e6, rel=2e-3)
    assert Latencies().mean() is None


def test_marks_are_those_of_the_latencies() -> None:
    found = Latencies()
    found.add(range(1, 10_000))
    marks = Marks.of(found)
    assert len(marks) == len(found)
    for percent in PERCENTILES:
        assert marks.percentile(percent) == found.percentile(percent)
    assert marks.most() == found.most()
    none = Marks.of(Latencies())
    assert (len(none), none.percentile(99), none.most()) == (0, None, None)


def test_what_is_out_of_range_is_at_its_ends() -> None:
    found = Latencies()
    found.add([-5, 0, 10**12])
    assert found.least() == pytest.approx(1e-6)
    assert found.most() == pytest.approx(3600, rel=2e-3)
