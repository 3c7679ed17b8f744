"""What the demo publishes, to whom, and how it judges what came."""

from __future__ import annotations

import json

import pytest

from clearfunds._cli._demo._flights import INTERESTS, SLOW, Flight, Interest, load_flights
from clearfunds._cli._demo._receipts import Receipts


@pytest.fixture(scope="module")
def flights() -> list[Flight]:
    return load_flights()


def test_a_month_and_a_day(flights: list[Flight]) -> None:
    assert len(flights) == 27_004
    first_day = load_flights(days=1)
    assert len(first_day) == 842
    assert first_day == [f for f in flights if json.loads(f.payload)["day"] == 1]


def test_a_row_becomes_a_message(flights: list[Flight]) -> None:
    first = flights[0]
    assert first.topic == "flights/EWR/UA"
    row = json.loads(first.payload)
    assert len(row) == 19
    assert row["dep_time"] == 517
    assert row["tailnum"] == "N14228"
    assert row["time_hour"] == "2013-01-01T10:00:00Z"
    cancelled = [row for f in flights if (row := json.loads(f.payload))["dep_time"] is None]
    assert len(cancelled) == 521


def test_nine_interests_cover_what_their_filters_say(flights: list[Flight]) -> None:
    assert len({interest.name for interest in INTERESTS}) == 9
    assert SLOW in {interest.name for interest in INTERESTS}
    expected = {
        "flights/#": 27_004,
        "flights/EWR/+": 9_893,
        "flights/JFK/+": 9_161,
        "flights/LGA/+": 7_950,
        "flights/+/UA": 4_637,
        "flights/+/B6": 4_427,
        "flights/+/DL": 3_690,
        "flights/+/AA": 2_794,
        "flights/JFK/B6": 3_327,
    }
    assert {i.topic_filter: len(i.select(flights)) for i in INTERESTS} == expected


def _flight(topic: str, payload: bytes) -> Flight:
    _, origin, carrier = topic.split("/")
    return Flight(origin, carrier, topic, payload)


TWO_TOPICS = [
    _flight("flights/EWR/UA", b"1"),
    _flight("flights/JFK/UA", b"2"),
    _flight("flights/EWR/UA", b"3"),
    _flight("flights/EWR/UA", b"4"),
]


def test_all_in_order_is_complete() -> None:
    receipts = Receipts(TWO_TOPICS)
    # Order counts within a topic only.
    for index in (1, 0, 2, 3):
        assert not receipts.complete
        receipts.take(TWO_TOPICS[index].topic, TWO_TOPICS[index].payload)
    assert receipts.complete
    assert (receipts.delivered, receipts.lost, receipts.unexpected) == (4, 0, 0)
    assert receipts.first_fault is None


@pytest.mark.parametrize(
    ("came", "delivered", "lost", "unexpected"),
    [
        ([("flights/EWR/UA", b"3"), ("flights/EWR/UA", b"4")], 2, 2, 0),  # a gap at the start
        ([("flights/EWR/UA", b"3"), ("flights/EWR/UA", b"1")], 1, 3, 1),  # out of order
        ([("flights/EWR/UA", b"1"), ("flights/EWR/UA", b"1")], 1, 3, 1),  # twice
        ([("flights/EWR/UA", b"x")], 0, 4, 1),  # altered
        ([("flights/LGA/UA", b"1")], 0, 4, 1),  # not asked for
        ([("flights/JFK/UA", b"1")], 0, 4, 1),  # on another's topic
    ],
)
def test_whatever_is_wrong_is_counted(
    came: list[tuple[str, bytes]], delivered: int, lost: int, unexpected: int
) -> None:
    receipts = Receipts(TWO_TOPICS)
    for topic, payload in came:
        receipts.take(topic, payload)
    assert (receipts.delivered, receipts.lost, receipts.unexpected) == (delivered, lost, unexpected)
    assert receipts.first_fault is not None
    assert came[-1][0] in receipts.first_fault


def test_an_interest_judges_by_the_row_and_not_by_the_topic() -> None:
    mislabelled = Flight("EWR", "UA", "flights/JFK/UA", b"")
    assert Interest("kennedy", origin="JFK").select([mislabelled]) == []
