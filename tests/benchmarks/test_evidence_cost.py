"""benchmarks/counterfactual.py and the section "cost": that they count, and what they say."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from benchmarks import fanout, profiling
from benchmarks.counterfactual import WAYS, Cost, Counter, measure
from benchmarks.evidence import cost
from benchmarks.evidence._section import Setting
from benchmarks.fanout import Cores
from benchmarks.profiling import Place
from benchmarks.servers import Relay


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("burst", [1, 3])
async def test_every_way_delivers_each_message_to_each_consumer_once(way: str, burst: int) -> None:
    counter = Counter()
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            publish = await WAYS[way](4, counter, nursery)
            for bursts in (1, 2):
                await publish(burst)
                await counter.until(4 * burst * bursts)
                await trio.testing.wait_all_tasks_blocked()
                assert counter.count == 4 * burst * bursts
            nursery.cancel_scope.cancel()


async def test_a_way_is_measured() -> None:
    found = await measure("runs", 2, 5, repeats=3, seconds=0.001)
    assert (found.way, found.consumers, found.burst) == ("runs", 2, 5)
    assert len(found.samples) == 3
    assert min(found.samples) <= found.median <= max(found.samples)
    assert found.median > 0


def test_what_hands_over_and_sends_at_once_keeps_books() -> None:
    assert Place("transports/_direct_send.py", "commit_and_send").is_bookkeeping
    assert Place("transports/_outlet.py", "Outlet.hold").is_bookkeeping
    assert not Place("transports/mqtt/server/_session.py", "MqttSession.run").is_bookkeeping


def profile(regime: str) -> dict[str, Any]:
    places = [
        ["trio/_core/_run.py", "unrolled_run", False, 80],
        ["transports/mqtt/server/_runs.py", "find_run", False, 100],
        ["accounts/_account.py", "Account.repay", True, 14],
        ["transports/_outlet.py", "Outlet.hold", True, 6],
    ]
    return {"regime": regime, "user": 0.5, "places": places}


def test_a_profile_is_of_the_relays_cpu_time() -> None:
    found = cost.shares_of(profile("one-9"))
    assert found.samples == 200
    assert (found.kernel, found.bookkeeping, found.rest) == pytest.approx((0.5, 0.05, 0.45))
    assert [name for name, _ in found.places] == [
        "`Account.repay` (accounts/_account.py)",
        "`Outlet.hold` (transports/_outlet.py)",
    ]
    assert [part for _, part in found.others] == pytest.approx([0.25, 0.2])


def test_ratios_are_within_a_pass() -> None:
    def sample(number: int, option: str, cpu: float) -> dict[str, Any]:
        return {"pass": number, "regime": "one-9", "option": option, "cpu": cpu}

    options = [
        *(sample(1, "plain", 1.0), sample(1, "journal", 1.5)),
        *(sample(2, "journal", 4.0), sample(2, "plain", 2.0)),
        sample(3, "journal", 9.0),
    ]
    assert cost.ratios(options, "one-9", "journal") == [1.5, 2.0]
    assert cost.ratios(options, "pipelined-9", "journal") == []


def data() -> dict[str, Any]:
    ways = [
        Cost(way, consumers, burst, (per, per, 2 * per))
        for burst in (1, 50)
        for consumers in (1, 9, 100)
        for way, per in zip(WAYS, (4.0, 1.0, 2.0, 0.3, 0.2), strict=True)
        if burst > 1 or way not in {"runs", "lists"}
    ]
    return {
        "profiles": [profile("pipelined-9"), profile("one-9")],
        "options": [
            {"pass": 1, "regime": regime, "option": option, "cpu": cpu}
            for regime in ("pipelined-9", "one-9")
            for option, cpu in (("plain", 0.1), ("scraped", 0.12), ("traces", 0.1))
        ],
        "operations": [
            {"name": "empty loop", "ns": [9.0]},
            {"name": cost.LOOK, "ns": [90.0, 99.0]},
        ],
        "ways": [
            {"way": w.way, "consumers": w.consumers, "burst": w.burst, "samples": list(w.samples)}
            for w in ways
        ],
        "memory": {"account": 779.0, "loan": 192.0, "joined": 8.6},
        "idle": {"connections": 1_500, "connected": 13.0, "subscribed": 14.5},
        "skipped": [],
    }


def test_the_section_says_what_was_found() -> None:
    pytest.importorskip("matplotlib")
    shown = cost.render(json.loads(json.dumps(data())))
    assert "| one-9 | 5.0% | 50.0% | 45.0% |" in shown.text
    assert "bookkeeping is 5 ns with pipelined-9 and 5 ns with one-9" in shown.text
    assert "costs 4.0 to 4.0 times what a plain queue does" in shown.text
    assert "| 50 | 9 | 4.00 (4.00-8.00) | 1.00 (1.00-2.00) |" in shown.text
    assert "| 0.120 | 1.20 | 0.120 | 1.20 |" in shown.text
    assert "fetched every second" in shown.text
    assert "an idle connection of the relay (1,500) | 13 KiB |" in shown.text
    assert [claim.word for claim in shown.claims] == ["held", "held", "MISSED"]
    (make,) = shown.figures.values()
    assert len(make().axes) == 3


def test_without_the_relay_the_rest_is_shown() -> None:
    shown = cost.render({**data(), "profiles": [], "options": [], "idle": None})
    assert "--profile" not in shown.text
    assert [claim.word for claim in shown.claims] == ["not measured", "held", "not measured"]


def test_a_profile_that_fails_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def profile(*_: object) -> profiling.Profile:
        raise profiling.ProfileError("no samples were taken")

    monkeypatch.setattr(fanout, "profile", profile)
    skipped: list[str] = []
    setting = Setting((), Cores.choose(), skipped.append)
    assert cost.profiles(Relay(), setting, skipped) == []
    assert skipped == [
        "The profile of pipelined-9 failed: no samples were taken.",
        "The profile of one-9 failed: no samples were taken.",
    ]


def test_memory() -> None:
    found = cost.memory(0.05)
    assert 200 < found["account"] < 5_000
    assert 100 < found["loan"] < 1_000
    assert 0 < found["joined"] < 50


@pytest.mark.long
def test_a_short_run_of_the_section() -> None:
    said: list[str] = []
    setting = Setting((Relay(),), Cores.choose(), said.append, 0.05)
    found = json.loads(json.dumps(cost.measure(setting)))
    shown = cost.render(found)
    names = {each["option"] for each in found["options"]}
    assert {"plain", "scraped"} <= names
    assert len(found["ways"]) == 24
    assert found["idle"]["connections"] == 100
    assert "| burst | N |" in shown.text
