"""Expositions of several relays, merged into one."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from clearfunds._cli._cluster._exposition import merge, sum_of

ONE = """\
# HELP a_total Things.
# TYPE a_total counter
a_total 1.0
# HELP h Seconds.
# TYPE h histogram
h_bucket{le="1.0"} 1.0
h_bucket{le="+Inf"} 2.0
h_count 2.0
h_sum 3.5
# HELP items Items.
# TYPE items gauge
items{relay="relay-2",place="a,relay=\\"x\\"} b"} 5.0
"""
TWO = """\
# HELP a_total Things, in other words.
# TYPE a_total counter
a_total 2.0
# HELP b More.
# TYPE b gauge
b{x="y"} NaN
"""


def test_each_sample_names_its_relay_and_each_metric_stands_once() -> None:
    assert merge({"r1": ONE, "r2": TWO, "r3": None}) == (
        "# HELP clearfunds_cluster_relay_up Whether the relay has answered: 1, else 0.\n"
        "# TYPE clearfunds_cluster_relay_up gauge\n"
        'clearfunds_cluster_relay_up{relay="r1"} 1\n'
        'clearfunds_cluster_relay_up{relay="r2"} 1\n'
        'clearfunds_cluster_relay_up{relay="r3"} 0\n'
        "# HELP a_total Things.\n"
        "# TYPE a_total counter\n"
        'a_total{relay="r1"} 1.0\n'
        'a_total{relay="r2"} 2.0\n'
        "# HELP h Seconds.\n"
        "# TYPE h histogram\n"
        'h_bucket{relay="r1",le="1.0"} 1.0\n'
        'h_bucket{relay="r1",le="+Inf"} 2.0\n'
        'h_count{relay="r1"} 2.0\n'
        'h_sum{relay="r1"} 3.5\n'
        "# HELP items Items.\n"
        "# TYPE items gauge\n"
        'items{relay="r1",exported_relay="relay-2",place="a,relay=\\"x\\"} b"} 5.0\n'
        "# HELP b More.\n"
        "# TYPE b gauge\n"
        'b{relay="r2",x="y"} NaN\n'
    )


def test_prometheus_reads_it() -> None:
    families = list(text_string_to_metric_families(merge({"r1": ONE, "r2": TWO})))
    assert [each.name for each in families] == [
        "clearfunds_cluster_relay_up",
        "a",
        "h",
        "items",
        "b",
    ]
    (sample,) = families[3].samples
    assert sample.labels == {
        "relay": "r1", "exported_relay": "relay-2", "place": 'a,relay="x"} b'
    }  # fmt: skip


@pytest.mark.parametrize("line", ["a", "a{", 'a{b="c} 1', "<html>", '{x="y"} 1', "# HELP", "\0 1"])
def test_a_line_that_is_no_sample_is_left_out(line: str) -> None:
    assert merge({"r1": f"{line}\na 1\n"}).endswith('{relay="r1"} 1\na{relay="r1"} 1\n')


def test_samples_without_a_head_stand_by_their_name() -> None:
    assert merge({"r1": "# TYPE a gauge\na 1\nabc 2\n", "r2": "abc 3\n"}).endswith(
        '# TYPE a gauge\na{relay="r1"} 1\nabc{relay="r1"} 2\nabc{relay="r2"} 3\n'
    )


def test_a_metric_is_summed_over_its_labels() -> None:
    assert sum_of("c", 'c{t="mqtt"} 1.0\nc{t="x"} 2.0\nc_total 9.0\n# c 7\n') == 3
    assert sum_of("c", "") == 0
