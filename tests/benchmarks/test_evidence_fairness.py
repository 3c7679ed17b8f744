"""benchmarks/fairness.py and its section: what they count and say; and short runs of it."""

from __future__ import annotations

import json
import math
from typing import Any

import attrs
import pytest

from benchmarks.evidence import fairness as section
from benchmarks.evidence._section import Setting
from benchmarks.fairness import (
    CONNECTIONS,
    EQUALS,
    LARGE,
    OVER,
    PACE,
    WIRES,
    Bucket,
    Due,
    Found,
    Got,
    Incoming,
    Parser,
    cases,
    everybody,
    jain,
    kept,
    measure,
    off,
    part_of,
    percentile,
    weighted,
)
from benchmarks.fanout import Cores
from benchmarks.servers import MOSQUITTO, RABBITMQ, Relay, ServerError


def test_jains_index() -> None:
    assert jain([3, 3, 3]) == 1
    assert jain([1, 0, 0, 0]) == 0.25
    assert jain([1, 2]) == pytest.approx(0.9)
    assert math.isnan(jain([0, 0]))


def test_percentiles() -> None:
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile(list(range(1, 101)), 0.99) == 99
    assert math.isnan(percentile([], 0.5))


def test_all_together_want_more_than_there_is_and_each_more_than_its_part() -> None:
    publishers = everybody()
    greedy = [each for each in publishers if each.kind != "innocent"]
    wanted = [each.rate * each.connections * each.payload for each in greedy]
    assert sum(wanted) == pytest.approx(OVER * PACE)
    assert len(greedy) == EQUALS + 2
    assert min(wanted) > PACE / len(greedy)
    equal = wanted[0]
    assert wanted[-2:] == pytest.approx([CONNECTIONS * equal, LARGE * equal])
    (innocent,) = [each for each in publishers if each.kind == "innocent"]
    assert innocent.rate * innocent.payload < PACE / len(greedy) / 100
    for each in weighted():
        assert each.rate * each.connections * each.payload == pytest.approx(PACE)


def test_the_relay_is_measured_as_it_comes_in_order_and_with_tenants() -> None:
    found = list(cases([Relay(options=("--log-level=error",)), MOSQUITTO, RABBITMQ]))
    assert [(case.label, case.what) for case in found] == [
        ("relay", "greedy"),
        ("relay, --no-fair", "greedy"),
        ("relay, tenants", "greedy"),
        ("relay, weights", "weights"),
        ("mosquitto", "greedy"),
        ("rabbitmq", "greedy"),
    ]
    assert [case.pace / PACE for case in found] == [1, 1, 1, 0.25, 1, 0.125]
    for case in found:
        wanted = sum(each.rate * each.connections * each.payload for each in case.publishers)
        assert wanted == pytest.approx(3 * case.pace, rel=0.01)
    options = [case.server.options for case in found if isinstance(case.server, Relay)]
    assert options[0] == ("--log-level=error",)
    assert options[1] == ("--log-level=error", "--no-fair", "--unsent-bytes", "none")
    assert "--tenant=equal-8,client=equal-8.*,weight=1" in options[2]
    assert len(options[2]) == 2 + EQUALS + 3
    assert options[3][-1] == "--tenant=weight-4,client=weight-4.*,weight=4"


@pytest.mark.parametrize("protocol", WIRES)
@pytest.mark.parametrize("cut", [1, 7, 50, 1 << 20])
def test_what_comes_is_counted_by_publisher_however_it_is_cut(protocol: str, cut: int) -> None:
    wire = WIRES[protocol]
    incoming: list[Incoming] = []
    heads: dict[bytes, Incoming] = {}
    stream = b""
    for letter, size, count, due in (("a", 20, 3, None), ("b", 200, 2, None), ("c", 30, 2, Due)):
        frame = wire.delivered(wire.topic.format(letter), size)
        whole = len(frame.before) + size + len(frame.after)
        one = Incoming(len(frame.before), whole, None if due is None else due(10.0, 2.0))
        heads[frame.before] = one
        incoming.append(one)
        for number in range(count):
            stream += frame.before + (b"%012d" % number).ljust(size, b"P") + frame.after
        stream += wire.ping
    parser = Parser(heads, wire.ping)
    pings = sum(parser.took(stream[at : at + cut], 11.0) for at in range(0, len(stream), cut))
    # A ping is shorter than a head, and so it is looked at with what comes next.
    pings += parser.took(next(iter(heads)), 11.0)
    assert [each.messages for each in incoming] == [3, 2, 2]
    assert pings == (3 if wire.ping else 0)
    assert incoming[2].delays == [1.0, 0.5]
    assert incoming[2].newest == 1
    parser.again(b"")
    with pytest.raises(ServerError, match="cannot make sense"):
        parser.took(b"?" * 60, 12.0)


def test_a_publisher_catches_up_with_nothing() -> None:
    bucket = Bucket(100.0, 50.0, 0.0)
    assert bucket.look(0.25) == 25
    bucket.take(15)
    assert bucket.look(0.5) == 35
    assert bucket.look(60.0) == 50


# -- what is shown --------------------------------------------------------------------------------


def found(label: str = "relay", *, each: int = 100, cuts: int = 0, **more: Any) -> Found:
    def got(name: str, kind: str, delivered: int, ever: int = 200) -> Got:
        payload = {"large": 1000, "innocent": 10}.get(kind, 100)
        return Got(name, kind, 1.0, 1, payload, 100.0, delivered, delivered, 200, ever)

    made: dict[str, Any] = {
        "server": label.partition(",")[0],
        "label": label,
        "what": "greedy",
        "options": (),
        "seconds": 2.0,
        "settled": 3.0,
        "pace": 80e6,
        "read": 79e6,
        "generator_share": 0.2,
        "cuts": cuts,
        "drained": True,
        "publishers": (
            *(got(f"equal-{n}", "equal", each) for n in range(1, 9)),
            got("many", "many", each * 10, 200 if not cuts else 50),
            got("large", "large", 10),
            got("innocent", "innocent", 96),
        ),
        "delays": (0.25, 0.5),
        "arrivals": tuple(number / 48 for number in range(96)),
    }
    return Found(**(made | more))


def by_weight(*delivered: int) -> Found:
    publishers = tuple(
        Got(f"weight-{weight}", "weighted", weight, 2, 10, 9.0, n, n, n, n)
        for weight, n in zip((1.0, 2.0, 4.0), delivered, strict=True)
    )
    return found("relay, weights", what="weights", publishers=publishers)


def test_parts() -> None:
    one = found()
    total = 8 * 10_000 + 100_000 + 10_000 + 960
    assert part_of(one, "many") == pytest.approx(100_000 / total)
    assert part_of(one, "equal") == pytest.approx(80_000 / total)
    assert kept(one) == pytest.approx(0.96, abs=0.01)
    assert off(by_weight(10, 20, 40)) == pytest.approx(0)
    assert off(by_weight(10, 20, 30)) == pytest.approx(1 / 6)
    assert math.isnan(off(by_weight(0, 0, 0)))


def test_what_the_innocent_one_keeps_does_not_hang_on_when_it_is_counted() -> None:
    """Where what is kept for the subscriber is now more, now less, and on the whole the same."""
    for phase in range(8):
        due = [number / 100 - 2.0 + phase / 40 for number in range(700)]
        lag = [1.0 + 0.1 * math.sin(2 * math.pi * at / 0.25) for at in due]
        arrivals = [at + late for at, late in zip(due, lag, strict=True)]
        one = found(
            seconds=4.0, arrivals=tuple(at for at in arrivals if 0 <= at < 4.0),
            publishers=(Got("innocent", "innocent", 1.0, 1, 10, 400.0, 400, 400, 400, 400),),
        )  # fmt: skip
        assert kept(one) == pytest.approx(1.0, abs=0.02)
        # And where it gets ever more, that is seen.
        slower = [at for at in arrivals if 0 <= at < 4.0][::2]
        assert kept(attrs.evolve(one, arrivals=tuple(slower))) == pytest.approx(0.5, abs=0.02)


def rendered(*runs: Found) -> Any:
    data = json.loads(json.dumps({"runs": [attrs.asdict(each) for each in runs], "skipped": []}))
    assert [Found.from_json(each) for each in data["runs"]] == list(runs)
    return section.render(data)


def test_the_section_says_what_was_found() -> None:
    pytest.importorskip("matplotlib")
    runs = (
        found(delays=(0.01, 0.02)), found("relay, --no-fair"), found("relay, tenants"),
        by_weight(10, 20, 44), found("redis", cuts=3),
    )  # fmt: skip
    shown = rendered(*runs)
    assert (
        "| the relay | 79, 80 | 0.0000 | 5.2% | 52.4% | 5.2% | 96.0% | 10 ms, 20 ms |" in shown.text
    )
    assert "Some of what was sent was lost by Redis." in shown.text
    assert "| the relay, first in, first out | 79, 80 |" in shown.text
    assert "Nothing was lost by the relay, the relay, first in, first out" in shown.text
    assert "by Redis 3 times in 5 s" in shown.text
    assert "| 4 | 57.1% | 59.5% | +4.1% |" in shown.text
    words = [claim.word for claim in shown.claims]
    assert words == ["held", "held", "MISSED", "held", "held", "held", "held"]
    assert shown.beside["one innocent beside greedy ones gets"]["redis"] == "96% of its rate"
    (make,) = shown.figures.values()
    assert len(make().axes) == 8


def test_what_is_missing_is_not_measured_and_nothing_delivered_does_not_hold() -> None:
    shown = rendered()
    assert {claim.word for claim in shown.claims} == {"not measured"}
    assert shown.figures == {}
    nothing = [attrs.evolve(each, delivered=0, delivered_ever=0) for each in found().publishers]
    shown = rendered(found(publishers=tuple(nothing), delays=(), arrivals=()), by_weight(0, 0, 0))
    words = [claim.word for claim in shown.claims]
    assert words == [
        *("MISSED", "not measured", "MISSED", "MISSED", "not measured"),
        *("not measured", "not measured"),
    ]


@pytest.mark.long
def test_a_relay_shares_out_a_slow_subscriber() -> None:
    """Slow enough for any machine that this is tested on: with tenants everybody has its part."""
    case = next(each for each in cases([Relay()], 5e6) if each.label == "relay, tenants")
    one = measure(
        case.server,
        case.publishers,
        label=case.label,
        seconds=4.0,
        cores=Cores.choose(),
        pace=case.pace,
        settling=12.0,
    )
    assert one.drained
    assert one.cuts == 0
    assert all(each.delivered_ever == each.sent_ever > 0 for each in one.publishers)
    assert 0.8 < one.read / one.pace < 1.1
    assert jain([each.nbytes for each in one.of("equal")]) > 0.95
    assert 0.05 < part_of(one, "many") < 0.2
    assert one.delays


@pytest.mark.long
@pytest.mark.skipif(MOSQUITTO.missing() is not None, reason="mosquitto is not installed")
def test_a_short_run_of_the_section() -> None:
    said: list[str] = []
    setting = Setting((Relay(), MOSQUITTO), Cores.choose(), said.append, 0.05)
    data = json.loads(json.dumps(section.measure(setting)))
    assert data["skipped"] == []
    assert len(data["runs"]) == len(said) == 4
    shown = section.render(data)
    assert all(claim.word != "not measured" for claim in shown.claims)
