"""benchmarks/scaling.py: what it makes of its figures, and one short run; its section, too."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest

from benchmarks import scaling
from benchmarks.evidence.scaling import SECTION
from benchmarks.fanout import Cores
from benchmarks.scaling import (
    DIMENSIONS,
    LOADS,
    Dimension,
    Effort,
    Growth,
    Measuring,
    Sample,
    exponent,
    line,
    main,
    many_files,
    room,
)
from benchmarks.servers import Running

FOLDER = Path(__file__).parents[2] / "benchmarks"
NOBODY = Running({"mqtt": 1}, 1)


def test_growth() -> None:
    sizes = (10, 100, 1_000)
    assert exponent(sizes, (5.0, 5.0, 5.0)) == pytest.approx(0)
    assert exponent(sizes, (1.0, 10.0, 100.0)) == pytest.approx(1)
    assert exponent(sizes, (1.0, 10.0**0.5, 10.0)) == pytest.approx(0.5)


def samples(dimension: str, load: str, costs: dict[int, list[float]]) -> list[Sample]:
    """Return samples of these costs, the largest size first, as every other pass has it."""
    return [
        Sample(dimension, load, size, number, cost, 0.0)
        for size in sorted(costs, reverse=True)
        for number, cost in enumerate(costs[size])
    ]


def test_what_is_compared_is_of_the_same_pass() -> None:
    # The second pass was twice as dear for all sizes, as when the machine is busy.
    costs = {10: [1.0, 2.0, 1.0], 100: [1.1, 2.2, 1.1], 1_000: [1.2, 2.4, 1.5]}
    (growth,) = Growth.of(samples("topics", "pipelined", costs))
    assert growth.sizes == [10, 100, 1_000]
    assert growth.times(1_000) == pytest.approx([1.2, 1.2, 1.5])
    assert growth.times(1_000, than=100) == pytest.approx([1.2 / 1.1, 1.2 / 1.1, 1.5 / 1.1])
    assert growth.ratio == pytest.approx(1.2)
    assert growth.exponent == pytest.approx(exponent((10, 100, 1_000), (1.0, 1.1, 1.2)))
    assert line(growth) == (
        "| topics, pipelined | 1.000 (1.000-2.000) | 1.100 (1.100-2.200) | 1.500 (1.200-2.400) | "
        "1.20 (1.20-1.50) | +0.040 |"
    )


def test_dimensions_and_loads_are_kept_apart() -> None:
    found = Growth.of(
        samples("topics", "pipelined", {10: [1.0], 20: [2.0]})
        + samples("topics", "one in flight", {10: [9.0], 20: [9.0]})
        + samples("accounts", "pipelined", {10: [4.0], 20: [2.0]})
    )
    assert [(each.dimension, each.load, each.ratio) for each in found] == [
        ("topics", "pipelined", 2.0),
        ("topics", "one in flight", 1.0),
        ("accounts", "pipelined", 0.5),
    ]


def test_sizes() -> None:
    dimension = Dimension("anything", sizes=(10, 1_000, 10_000))
    assert dimension.within(10_000) == (10, 1_000, 10_000)
    assert dimension.within(500) == (10, 500)
    assert dimension.within(10) == (10,)
    assert Effort().is_enough
    assert not Effort(most=10).is_enough


def test_loads() -> None:
    by_name = {dimension.name: dimension for dimension in DIMENSIONS}
    load = LOADS["pipelined"]
    topics = by_name["topics"].load(load, 10_000, "pipelined")
    assert (topics.topics, topics.wildcard, topics.subscribers) == (10_000, True, 9)
    assert topics.warmup > load.warmup
    assert by_name["connections"].load(load, 10_000, "pipelined") == load
    for size in by_name["deliveries"].sizes:
        fanned = by_name["deliveries"].load(load, size, "pipelined")
        assert fanned.subscribers == size
        assert fanned.window * size <= scaling.MANY
    assert by_name["deliveries"].load(LOADS["one in flight"], 1_000, "one in flight").window == 1


def test_descriptors_are_allowed_for_a_while() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with many_files() as files:
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (files, files)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
    # This process has the clients of all sizes at the same time.
    assert room(20_000) >= 10_000
    assert room(2_100) * sum(scaling.SIZES) <= (2_100 - scaling.OTHER_FILES) * scaling.SIZES[-1]


class Disturbed(Measuring):
    """Finds in turn that it was kept waiting so long, and ten times that as the cost."""

    def __init__(self, *waits: float) -> None:
        super().__init__(Effort(), Cores(None, None), lambda text: None)
        self.waits = list(waits)

    def once(self, dimension: Dimension, name: str, size: int, running: Running) -> Sample:
        waited = self.waits.pop(0)
        return Sample(dimension.name, name, size, 0, waited * 10, waited)


def test_what_was_disturbed_is_measured_again() -> None:
    measuring = Disturbed(0.0, 0.01, 0.02, 0.4, 0.3, 0.5, 0.6)

    def next_cost() -> float:
        return measuring.quietly(DIMENSIONS[0], "pipelined", 10, NOBODY).cpu

    assert [next_cost() for _ in range(3)] == [0.0, 0.1, 0.2]
    assert next_cost() == 3.0  # the quieter one of 0.4 and 0.3
    # One of three may be done again, and that one has been.
    assert next_cost() == 5.0
    assert next_cost() == 6.0
    assert not measuring.waits


def data(cost: float) -> dict[str, Any]:
    """Return what the section measures, with 10,000 connections at that cost."""
    found = samples("connections", "pipelined", {10: [1.0, 1.0], 10_000: [cost, cost]})
    for name, most in (("deliveries", 0.5), ("raised", 0.1)):
        found += samples(name, "pipelined", {1: [0.2, 0.2], 1_000: [most, most]})
    return {
        "seconds": 0.5,
        "rounds": 1,
        "samples": [attrs.asdict(sample) for sample in found],
        "skipped": [],
    }


def test_the_section_says_whether_it_holds() -> None:
    written = json.loads(json.dumps(data(1.4)))
    rendered = SECTION.render(written)
    words = {claim.text: claim.word for claim in rendered.claims}
    assert len(words) == 7
    start = "CPU per delivery, pipelined, from"
    assert words[f"{start} 10 to 10,000 idle connections: at most 1.5 times"] == "held"
    assert words[f"{start} 1 to 1,000 subscribers to each message: at most 1 times"] == "MISSED"
    assert list(words.values()).count("not measured") == 4
    assert "| idle connections | pipelined | 10 | 10,000 | 1 | 1.4 | 1.40 (1.40-1.40) |" in (
        rendered.text
    )
    assert "50 messages at a time" in rendered.text
    missed = SECTION.render(data(1.6)).claims
    assert [claim.word for claim in missed if "idle" in claim.text and claim.found] == ["MISSED"]


def test_the_section_without_data() -> None:
    rendered = SECTION.render({"seconds": 0.5, "rounds": 2, "samples": [], "skipped": []})
    assert {claim.word for claim in rendered.claims} == {"not measured"}


def test_the_figure() -> None:
    pytest.importorskip("matplotlib")
    picture = SECTION.render(data(1.4)).figures["scaling"]()
    panels = [axis for axis in picture.axes if axis.axison]
    assert [axis.get_xlabel() for axis in panels] == [
        "idle connections",
        "subscribers to each message",
    ]
    assert [len(axis.lines) for axis in panels] == [1, 2]


@pytest.mark.long
@pytest.mark.skipif(shutil.which("cc") is None, reason="the load generator needs a C compiler")
def test_a_short_run(tmp_path: Path) -> None:
    file = tmp_path / "scaling.json"
    done = subprocess.run(
        [
            *(sys.executable, str(FOLDER / "scaling.py"), "--rounds", "1", "--passes", "1"),
            *("--seconds", "0.1", "--most", "100", "--json", str(file)),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(file.read_text())
    found = {(row["dimension"], row["load"], row["size"]) for row in rows}
    assert found == {
        (dimension.name, load, size)
        for dimension in DIMENSIONS
        for load in dimension.loads
        for size in dimension.within(100)
    }
    assert len(rows) == len(found)
    assert len(done.stdout.splitlines()) == 2 * len(DIMENSIONS) + sum(
        len(dimension.loads) for dimension in DIMENSIONS
    )


def test_one_size_is_nothing_to_compare(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["scaling.py", "--most", "10"])
    assert main() == 2
    assert "at least two sizes" in capsys.readouterr().err
