"""benchmarks/evidence/latency.py: what is made of the figures, and that they can be had."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from benchmarks.evidence import latency
from benchmarks.evidence._section import Setting
from benchmarks.fanout import Cores
from benchmarks.servers import MOSQUITTO, Relay


def sample(server: str, number: int, p99: float, **more: Any) -> dict[str, Any]:
    """Return a pass in which half of the deliveries took a tenth of `p99`."""
    return {
        "pass": number,
        "server": server,
        "mean": p99 / 5,
        "p50": p99 / 10,
        "p90": p99 / 2,
        "p99": p99,
        "p99.9": 2 * p99,
        "max": 3 * p99,
        "deliveries": 1000,
        "lost": 0,
        "unsent": 0,
        "server_share": 0.25,
        "publishers_waited": 0.0,
        "generator_late_p99": 0.4,
        "generator_turn_max": 30.0,
        "generator_share": 0.1,
        "kept_waiting": 0.01,
        "curve": [p99 / 10 + index for index in range(51)],
    } | more


def measured(**paces: list[dict[str, Any]]) -> dict[str, Any]:
    most = {"relay": 200_000.0, "mosquitto": 20_000.0, "amqtt": 1_500.0}
    return {
        "subscribers": 9,
        "payload": 200,
        "seconds": 2.0,
        "turns": 3,
        "most": most,
        "paces": [
            {"of": of, "rate": latency.half(most[of]), "samples": samples}
            for of, samples in paces.items()
        ],
        "skipped": [],
    }


def test_where_the_median_lies_is_known_by_order_from_six_passes_on() -> None:
    assert latency.bounds([5.0, 1.0, 4.0, 2.0, 3.0]) is None
    assert latency.bounds([6.0, 5.0, 1.0, 4.0, 2.0, 3.0]) == (1.0, 6.0)
    # 13: with two outside on either side 2 x (1 + 13 + 78) / 8192 = 2.2 % is left, with three 9 %.
    assert latency.bounds([float(n) for n in range(1, 14)]) == (3.0, 11.0)


def test_how_far_the_ratio_can_be_trusted_is_said() -> None:
    pytest.importorskip("matplotlib")
    passes = [
        sample(server, number, p99)
        for number in range(1, 8)
        for server, p99 in (("relay", 100.0 * number), ("mosquitto", 400.0))
    ]
    shown = latency.render(measured(amqtt=passes)).text.replace("\n", " ")
    assert "the relay 1.00 in the median of 7 passes, and between 0.25 and 1.75" in shown
    few = latency.render(measured(amqtt=passes[:10])).text
    assert "passes, and between" not in few.replace("\n", " ")


def test_half_of_the_most_has_two_digits_and_is_never_more() -> None:
    assert [latency.half(most) for most in (1_500, 1_234, 25_900, 30, 1.0, 0.0)] == [
        750, 610, 12_000, 15, 1.0, 0.0,
    ]  # fmt: skip


def test_a_curve_has_five_points_for_each_halving() -> None:
    parts = [latency.part_at(index) for index in range(11)]
    assert parts[:6] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5])
    assert parts[10] == pytest.approx(0.75)
    # The least of the passes decides how far it goes, and its last point, the most, is none of it.
    short, long = sample("relay", 1, 10.0, curve=[1.0] * 8), sample("relay", 2, 10.0)
    points = latency.curve([short, long, long])
    assert len(points) == 7
    assert points[6] == pytest.approx((0.55, 7.0))


def test_the_relay_is_held_against_its_peers_pass_by_pass() -> None:
    # Medians of each by itself would be 200 over 150; in the same pass it is never above.
    relay = [sample("relay", number, p99) for number, p99 in ((1, 100), (2, 200), (3, 300))]
    theirs = [sample("mosquitto", number, p99) for number, p99 in ((1, 125), (2, 250), (3, 300))]
    amqtt = [sample("amqtt", 2, 100.0)]
    awake = [sample("polling", number, p99) for number, p99 in ((1, 25), (2, 50), (3, 90))]
    shown = latency.render(measured(amqtt=[*relay, *awake, *theirs, *amqtt], mosquitto=relay))
    mosquitto_claim, awake_claim, amqtt_claim = shown.claims
    assert (awake_claim.found, awake_claim.word) == (0.2, "held")
    assert "the relay (--busy-poll 0.001): at most mosquitto's" in awake_claim.text
    assert "stays awake for a millisecond" in " ".join(shown.text.split())
    assert set(shown.beside["p50 and p99 at 750 messages/s, µs"]) == {"relay", "mosquitto", "amqtt"}
    assert (mosquitto_claim.found, mosquitto_claim.word) == (0.8, "held")
    assert (amqtt_claim.found, amqtt_claim.word) == (2.0, "MISSED")
    assert "at 750 messages/s" in mosquitto_claim.text
    assert "**At 10,000 messages a second**, half of what mosquitto takes" in shown.text
    assert "| the relay | 20 (10-30) | 200 (100-300) | 400 (200-600) |" in shown.text
    assert "| 0.80 (0.80-1.00) | 25% | 0.4 | 0 | 3 |" in shown.text
    assert "busy" not in shown.text.replace("--busy-poll", "")
    assert shown.beside["p50 and p99 at 750 messages/s, µs"]["relay"] == "20, 200"
    assert shown.figures["latency"]().axes


def test_what_makes_figures_doubtful_is_said() -> None:
    samples = [
        sample("relay", 1, 100.0, kept_waiting=0.5, lost=3, unsent=1, publishers_waited=0.25),
        sample("mosquitto", 1, 100.0, kept_waiting=0.5, generator_share=0.95),
    ]
    text = " ".join(latency.render(measured(amqtt=samples)).text.split())
    assert "**The machine was busy**" in text
    assert "The relay stopped the publisher for up to 25.0% of a pass." in text
    assert "With mosquitto the generator itself was at its limit." in text
    assert "| - | 25% | 0.4 | 4 | 1 |" in text


def test_without_peers_nothing_is_claimed() -> None:
    nothing = latency.render(measured())
    assert [claim.word for claim in nothing.claims] == ["not measured"] * 3
    alone = latency.render(measured(amqtt=[sample("relay", 1, 100.0)]))
    assert [claim.word for claim in alone.claims] == ["not measured"] * 3
    assert "stays awake" not in alone.text


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="the load generator needs Linux")
def test_real_servers_are_measured() -> None:
    if MOSQUITTO.missing():
        pytest.skip("there is no mosquitto")
    steps: list[str] = []
    servers = (Relay(), MOSQUITTO)
    data = latency.measure(Setting(servers, Cores.choose(), steps.append, scale=0.05))
    assert data["skipped"] == []
    assert {*data["most"]} == {"relay", "mosquitto"}
    (pace,) = data["paces"]
    assert pace["of"] == "mosquitto"
    assert {each["server"] for each in pace["samples"]} == {"relay", "polling", "mosquitto"}
    assert all(each["deliveries"] > 100 and each["lost"] == 0 for each in pace["samples"])
    assert all(claim.text for claim in latency.render(data).claims)
    assert len(steps) == 5
