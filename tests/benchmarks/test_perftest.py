"""What the reports of RabbitMQ's PerfTest say, and what is made of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.perftest import (
    BUDGETS,
    DATA,
    LOADS,
    ROOT,
    PerfTestError,
    Result,
    Second,
    check,
    parse,
    row,
    summed,
    table,
)
from benchmarks.perftest_plots import draw

BY_NAME = {each.name: each for each in LOADS}


def second(at: float, sent: int, received: int, cpu: float, rss: int = 0) -> Second:
    return Second(at, sent, received, (2_000, 5_000), None, cpu, rss)


def test_a_line_of_its_output_is_read() -> None:
    line = (
        b"id: test-1, time 4.001 s, sent: 35200 msg/s, confirmed: 35199 msg/s, nacked: 0 msg/s, "
        b"received: 35205 msg/s, min/median/75th/95th/99th consumer latency: "
        b"400/2800/3500/6000/7500 \xc2\xb5s, confirm latency: 300/2600/3000/5000/5800 \xc2\xb5s"
    )
    found = parse(line, 1.5, 99)
    assert found == Second(4.001, 35_200, 35_205, (2_800, 7_500), (2_600, 5_800), 1.5, 99)
    assert parse(b"id: test-1, starting producer #0, channel #0", 1.5, 99) is None


def test_the_first_seconds_do_not_count() -> None:
    seconds = [second(at, at * 100, at * 100, at / 10, at) for at in range(1, 7)]
    result = summed(BY_NAME["confirm 100"], "relay", 0, 1, seconds)
    assert result.received == result.sent == (400 + 500 + 600) / 3
    assert result.cpu == pytest.approx(1e6 * 0.3 / 1_500)
    assert result.latency_ms == (2.0, 5.0)
    assert (result.rss_before, result.rss) == (1, 6)


def test_a_publisher_that_is_not_read_has_few_reports_and_still_a_result() -> None:
    seconds = [second(1, 70_000, 0, 0.9, 80), second(2, 900, 0, 1.0, 90), second(12, 0, 0, 1.1, 95)]
    result = summed(BY_NAME["stalled"], "relay", 0, 40, seconds)
    assert (result.sent, result.received, result.cpu, result.rss) == (0.0, 0.0, None, 95)
    assert "stalled" in row(result)


def test_a_run_that_never_began_is_an_error() -> None:
    with pytest.raises(PerfTestError, match="reported 1 times only"):
        summed(BY_NAME["stalled"], "relay", 0, 40, [second(12, 0, 0, 1.1, 95)])


def result(load: str, server: str, number: int, rate: float, cpu: float, growth: int) -> Result:
    return Result(
        load, load.split()[0], 0, server, number, rate, rate, cpu, None, None, 100, 100 + growth, []
    )


def test_budgets_are_judged_by_the_median_of_the_passes(capsys: pytest.CaptureFixture[str]) -> None:
    good = [
        each
        for number in range(3)
        for load in {budget.load for budget in BUDGETS}
        for each in (
            # One pass in three is disturbed.
            result(load, "relay", number, 250 if number else 10, 4.0 if number else 90.0, 10),
            result(load, "rabbitmq", number, 100, 10.0, 100),
        )
    ]
    assert check(good)
    assert "MISSED" not in capsys.readouterr().out
    worse = [each for each in good if each.load != "autoack"]
    for number in range(3):
        worse += [
            result("autoack", "relay", number, 150, 4.0, 10),
            result("autoack", "rabbitmq", number, 100, 10.0, 100),
        ]
    assert not check(worse)
    assert "autoack: rate 1.50 x RabbitMQ's (1.50, 1.50, 1.50); at least 2: MISSED" in (
        capsys.readouterr().out
    )
    assert "| autoack | relay | 150 |" in table(worse)


def test_the_pictures_in_the_docs_are_those_of_the_data(tmp_path: Path) -> None:
    draw(json.loads(DATA.read_text()), tmp_path)
    for name in ("perftest-sweeps.svg", "perftest-memory.svg"):
        drawn, shown = (texts_of(path / name) for path in (tmp_path, ROOT / "docs"))
        assert "RabbitMQ" in shown
        assert drawn == shown, f"{name}: python -m benchmarks.perftest --plot"


def texts_of(picture: Path) -> list[str]:
    """Return the texts of a picture: they follow from the data, whatever draws the lines."""
    return re.findall(r"<text[^>]*>([^<]*)", picture.read_text())
