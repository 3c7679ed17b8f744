"""Topic names and filters: legal, malformed, and beyond the limits of this process."""

import pytest

from clearfunds.transports.mqtt import TopicLimits
from clearfunds.transports.mqtt.codec._topics import (
    SharedFilter,
    filter_of,
    is_shared,
    shared_fault,
    shared_parts,
    topic_filter_fault,
    topic_name_fault,
)


@pytest.mark.parametrize(
    "topic", ["a", "/", "//", "a/b", "/a", "a/", " ", "$SYS/x", "é/\ufeff", "A"]
)
def test_legal_topic_names_are_legal_filters_too(topic: str) -> None:
    assert topic_name_fault(topic) is None
    assert topic_filter_fault(topic) is None


# The examples of sections 4.7.1.2 and 4.7.1.3.
@pytest.mark.parametrize(
    "topic_filter",
    [
        "#",
        "sport/tennis/#",
        "+",
        "+/tennis/#",
        "sport/+/player1",
        "/+",
        "+/+",
        "/#",
        "$SYS/#",
        "a//+",
    ],
)
def test_legal_filters(topic_filter: str) -> None:
    assert topic_filter_fault(topic_filter) is None
    assert topic_name_fault(topic_filter) is not None


@pytest.mark.parametrize(
    ("topic_filter", "statement"),
    [
        ("", "MQTT-4.7.3-1"),
        ("a\0", "MQTT-4.7.3-2"),
        ("sport/tennis#", "MQTT-4.7.1-2"),
        ("sport/tennis/#/ranking", "MQTT-4.7.1-2"),
        ("##", "MQTT-4.7.1-2"),
        ("+#", "MQTT-4.7.1-2"),
        ("sport+", "MQTT-4.7.1-3"),
        ("++", "MQTT-4.7.1-3"),
        ("+a/#", "MQTT-4.7.1-3"),
    ],
)
def test_malformed_filters(topic_filter: str, statement: str) -> None:
    fault = topic_filter_fault(topic_filter)
    assert fault is not None
    assert statement in fault


def test_limits_count_bytes_and_levels() -> None:
    limits = TopicLimits(max_length=8, max_levels=3)
    assert limits.name_fault("a/b/cdef") is None
    assert limits.name_fault("éééé") is None
    for topic, said in {
        "ééééa": "is 9 bytes long; at most 8",
        "a/b/c/d": "has 4 levels; at most 3",
        "////": "has 5 levels",
    }.items():
        for fault in (limits.name_fault(topic), limits.filter_fault(topic)):
            assert fault is not None
            assert said in fault


def test_the_default_limits_let_ordinary_topics_pass() -> None:
    limits = TopicLimits()
    assert limits.name_fault("flights/JFK/B6") is None
    assert limits.filter_fault("flights/+/#") is None
    assert limits.name_fault("t" * 4096) is None
    assert limits.name_fault("t" * 4097) is not None
    assert limits.name_fault("/" * 127) is None
    assert limits.name_fault("/" * 128) is not None


def test_shared_subscriptions_are_taken_apart() -> None:
    assert shared_parts("$share/group/a/#") == SharedFilter("group", "a/#")
    assert shared_parts("$share/g//a") == SharedFilter("g", "/a")
    assert [filter_of(text) for text in ("$share/g/a/#", "$share/g", "a")] == [
        "a/#",
        "$share/g",
        "a",
    ]
    assert TopicLimits().filter_fault("$share/group/a/#") is None
    assert "4099 bytes" in str(TopicLimits().filter_fault("$share/g/" + "a" * 4090))
    # As a name it is an ordinary one, and so is a filter that merely looks alike.
    assert TopicLimits().name_fault("$share/group/a") is None
    assert not is_shared("$shared/a")
    assert shared_parts("$shared/a") is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("$share/", "names no group"),
        ("$share//a", "names no group"),
        ("$share/g", "has no topic filter behind"),
        ("$share/g/", "has no topic filter behind"),
        ("$share/g+/a", "has a wildcard in the name of the group, 'g+'"),
        ("$share/#", "has a wildcard in the name of the group, '#'"),
        ("$share/g/a+", "has a '+' beside other characters"),
        ("$share/g/#/a", "has a '#' before its end"),
    ],
)
def test_shared_subscriptions_that_are_not_well_formed(text: str, why: str) -> None:
    assert why in str(shared_fault(text))
    assert shared_parts(text) is None
