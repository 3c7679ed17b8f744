"""What can be said about a measurement, and what cannot."""

from pathlib import Path
from random import Random
from typing import Any

import pytest

from clearfunds.perf import (
    Profile,
    Scenario,
    ScenarioError,
    Sizes,
    Stall,
    parse_stalls,
    read_scenarios,
    scenarios_of,
)
from clearfunds.perf._scenario import server_of
from clearfunds.transports.mqtt import MqttAddress, without_password


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"uri": "http://127.0.0.1"}, "write mqtt://HOST:PORT"),
        ({"uri": "mqtt://127.0.0.1:x"}, "mqtt://127.0.0.1:x"),
        ({"uri": "mqtt://:secret@127.0.0.1"}, "is no address"),
        ({"publishers": 0, "subscribers": 0}, "nothing to do"),
        ({"publishers": -1}, "publishers is -1"),
        ({"publishers": 60_000}, "more than 50000"),
        ({"topic": "a/{subscriber}"}, "{subscriber}; known are {publisher} and {topic}"),
        ({"topic": "a/#"}, "#"),
        ({"topics": 3}, "no {topic} in"),
        ({"filter": "a/#/b"}, "#"),
        ({"filter": "a/{publisher}"}, "{publisher}; known are {subscriber} and {topic}"),
        ({"slow": 2}, "2 slow subscribers of 1"),
        ({"slow": 1}, "do nothing slowly"),
        ({"slow_delay": 1.0}, "but no slow ones"),
        ({"in_flight": 0}, "in_flight is 0"),
        ({"seconds": 0.0}, "more than 0 seconds"),
        ({"delay": -1.0}, "below 0"),
        ({"drain": float("nan")}, "drain is nan"),
        ({"ramp": float("inf")}, "ramp is inf"),
        ({"receive_buffer": 0}, "a receive_buffer of 0"),
        ({"receive_buffer": 1 << 31}, "there are 1 to 2147483647"),
        ({"ack_interval": -1.0}, "below 0"),
        ({"ack_every": 0}, "ack_every is 0"),
        ({"prefetch": 0, "qos": 1}, "a prefetch of 0; there are 1 to 65535"),
        ({"prefetch": 65_536, "qos": 1}, "a prefetch of 65536"),
        ({"prefetch": 10}, "has no effect with QoS 0"),
        ({"prefetch": 10, "qos": 1, "subscriber_qos": 0}, "and --subscriber-qos 1"),
        ({"prefetch": 10, "qos": 1, "mqtt": "3.1.1"}, "clearfunds relay --max-inflight"),
    ],
)
def test_what_cannot_be(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        Scenario(**given)
    assert said in str(caught.value)


def test_a_password_is_used_and_not_shown() -> None:
    uri = "mqtt://%C3%B6:a%40b@127.0.0.1:1884"
    assert server_of(uri) == MqttAddress("127.0.0.1", 1884, username="ö", password="a@b")
    assert without_password(uri) == "mqtt://%C3%B6:...@127.0.0.1:1884"
    for each in ("mqtt://me@host", "mqtt://host:1883", "mqtt://[::1]:1883", "me@host", "host:1"):
        assert without_password(each) == each
    with pytest.raises(ScenarioError) as caught:
        Scenario(uri="http://me:secret@host")
    assert "secret" not in str(caught.value)


def test_stalls() -> None:
    assert parse_stalls("1:2.5, 5:1") == (Stall(1.0, 2.5), Stall(5.0, 1.0))
    with pytest.raises(ScenarioError, match="AFTER:SECONDS"):
        parse_stalls("1")
    with pytest.raises(ScenarioError, match="before the one before it is over"):
        parse_stalls("1:5,3:1")


def test_sizes() -> None:
    assert Sizes.parse("200").mean == 200
    in_turn = Sizes.parse("100,300")
    assert [in_turn.of(n, Random(1)) for n in range(4)] == [100, 300, 100, 300]
    assert in_turn.mean == 200
    by_lot = Sizes.parse("24-1000")
    assert by_lot.mean == 512
    random = Random(1)
    found = [by_lot.of(n, random) for n in range(2_000)]
    assert 24 <= min(found) < 60
    assert 950 < max(found) <= 1000


@pytest.mark.parametrize(
    ("text", "said"),
    [("23", "too small"), ("100,5", "too small"), ("9-2", "too small"), ("200-100", "smaller"),
     ("big", "is not a size"), ("99999999", "up to")],
)  # fmt: skip
def test_what_is_no_size(text: str, said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        Sizes.parse(text)


def test_who_takes_what() -> None:
    scenario = Scenario(
        publishers=2, subscribers=3, topics=2, topic="p/{publisher}/{topic}", filter="p/+/{topic}"
    )
    everybody = frozenset({0, 1, 2})
    # A filter for each topic: two that match count once.
    assert scenario.routes().filters_of(1) == ["p/+/0", "p/+/1"]
    assert scenario.routes().takers(2, 3) == [[everybody] * 2] * 2
    each = Scenario(publishers=3, subscribers=2, filter="perf/{subscriber}").routes()
    assert each.takers(3, 2) == [[frozenset({0})], [frozenset({1})], [frozenset()]]
    assert Scenario(topic="a{publisher}/b").routes().filters_of(0) == ["+/b"]


def test_what_all_are_to_have_published_with_a_ramp() -> None:
    scenario = Scenario(publishers=2, rate=Profile.parse("10"), ramp=2.0, seconds=3.0)
    assert scenario.due(0.95) == 10
    assert scenario.due(1.95) == 20 + 10
    assert scenario.due(99) == scenario.due(3.0) == 30 + 20
    assert Scenario().due(5.0) is None


def test_a_file_with_lists_is_a_run_for_each(tmp_path: Path) -> None:
    file = tmp_path / "load.toml"
    file.write_text(
        '[[scenario]]\nname = "fan-out"\nsubscribers = [1, 10]\nrate = ["100", 200]\n'
        "[[scenario]]\nslow-stalls = '1:2'\nslow = 1\nsize = '50-60'\nreceive-buffer = '8KiB'\n"
        "[[scenario]]\nprefetch = [1, 100]\nqos = 1\nack-interval = 0.5\n"
        '[[scenario]]\nmqtt = ["3.1.1", 5]\n'
    )
    runs = read_scenarios(file)
    assert [run.name for run in runs] == [
        "fan-out: subscribers=1, rate=100",
        "fan-out: subscribers=1, rate=200",
        "fan-out: subscribers=10, rate=100",
        "fan-out: subscribers=10, rate=200",
        "perf",
        "perf: prefetch=1",
        "perf: prefetch=100",
        "perf: mqtt=3.1.1",
        "perf: mqtt=5",
    ]
    assert [run.version for run in runs[4:]] == ["3.1.1", "5", "5", "3.1.1", "5"]
    assert [run.prefetch for run in runs[4:]] == [None, 1, 100, None, None]
    assert (runs[5].ack_interval, runs[5].ack_every) == (0.5, None)
    assert runs[3].subscribers == 10
    assert runs[3].rate == Profile.parse("200")
    assert runs[4].slow_stalls == (Stall(1.0, 2.0),)
    assert runs[4].receive_buffer == 8192


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no [[scenario]] in it"),
        ("[[scenario", "load.toml"),
        ("x = 1\n[[scenario]]\n", "x is not known"),
        ("[[scenario]]\nsubscriber = 1\n", "did you mean subscribers?"),
        ("[[scenario]]\n[[scenario]]\nsubscribers = 'ten'\n", "scenario 2: subscribers = 'ten'"),
        ("[[scenario]]\nqos = 3\n", "there are 0, 1 and 2"),
        ("[[scenario]]\nclock = 'sun'\n", "monotonic"),
        ("[[scenario]]\nmqtt = '4'\n", 'there are "3.1.1" and "5"'),
        ("[[scenario]]\nprefetch = 'all'\n", "must be a number"),
        ("[[scenario]]\nsubscribers = []\n", "a run for each of its values"),
        ("[[scenario]]\npublishers = true\n", "publishers = True"),
        ("[[scenario]]\nrate = 'fast'\n", "is not RATE:SECONDS"),
        ("[[scenario]]\nreceive_buffer = 'large'\n", "receive_buffer: "),
        ("[[scenario]]\nreceive_buffer = -8\n", "is not a size"),
        ("scenario = [1]\n", "1 is no table"),
    ],
)
def test_what_is_no_file_of_scenarios(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "load.toml"
    file.write_text(text)
    with pytest.raises(ScenarioError) as caught:
        read_scenarios(file)
    assert said in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="No such file"):
        read_scenarios(tmp_path / "load.toml")


def test_too_many_runs() -> None:
    with pytest.raises(ScenarioError, match="more than 1000 runs"):
        scenarios_of({"subscribers": list(range(1, 101)), "publishers": list(range(1, 101))})


def test_a_server_has_two_spellings() -> None:
    for key in ("url", "uri"):
        (scenario,) = scenarios_of({key: "relay.example:1884"})
        assert server_of(scenario.uri) == MqttAddress("relay.example", 1884)
    with pytest.raises(ScenarioError, match="given twice"):
        scenarios_of({"url": "a", "uri": "b"})
    with pytest.raises(ScenarioError, match="is a Unix socket"):
        scenarios_of({"url": "mqtt+unix:///run/relay"})
