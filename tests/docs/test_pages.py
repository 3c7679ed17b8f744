"""Pages about the relay have all that there is, and nothing that is not there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import promql_parser
import pytest

from clearfunds.accounts import Ledger
from clearfunds.pages import Pages
from dashboards import metrics_reference
from dashboards._rules import ALERTS
from docs import options_reference
from tests.dashboards.queries import selectors

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
OPTION: Final = re.compile(r"`(--[a-z][a-z0-9-]*)[ `]")

FOREIGN: Final = {
    # Of each command; of pytest, make and the benchmarks; of mosquitto, uvicorn and Spark.
    *("--help", "--version", "--config", "--check", "--only", "--pipelined", "--quick"),
    *("--credit-reader-outlet", "--credit-reader-queue", "--credit-queue-store"),
    *("--timeout-graceful-shutdown", "--py-files"),
}
"""Options of other programs that the docs name."""


def text_of(page: str) -> str:
    return (DOCS / page).read_text("utf-8")


def test_each_alert_has_a_section() -> None:
    sections = re.findall(r"^### (\w+)$", text_of("alerts.md"), re.MULTILINE)
    assert sorted(sections) == sorted(alert.name for alert in ALERTS)
    anchors = {f"docs/alerts.md#{section.lower()}" for section in sections}
    assert {alert.runbook for alert in ALERTS} == anchors


def test_no_page_names_an_alert_that_is_not_there() -> None:
    names = {alert.name for alert in ALERTS}
    for page in DOCS.glob("*.md"):
        for name in re.findall(r"\bClearfunds[A-Z]\w+", page.read_text("utf-8")):
            assert name in names, page.name


def health() -> list[tuple[str, ...]]:
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", text_of("health.md"), re.MULTILINE)
    return [(number, *(cell.strip() for cell in rest.split(" | "))) for number, rest in rows]


def test_health_has_a_dozen_figures() -> None:
    assert [row[0] for row in health()] == [str(number) for number in range(1, 13)]


@pytest.mark.parametrize("row", health(), ids=[row[1] for row in health()])
def test_a_figure_is_of_metrics_that_there_are(row: tuple[str, ...]) -> None:
    query = row[2].strip("`")
    promql_parser.parse(query)
    known = {entry.name for entry in metrics_reference.totals()}
    known |= {f"{name}_bucket" for name in known} | {"up"}
    assert {selected.metric for selected in selectors(query)} <= known


def test_a_threshold_is_that_of_its_alert() -> None:
    alerts = {alert.name: alert for alert in ALERTS}
    for row in health():
        alert = alerts.get(row[-1])
        found = re.search(r"> ([\d.]+)$", alert.expr) if alert is not None else None
        if found is not None and float(found[1]):
            number = float(found[1])
            assert {f"{number:g}", f"{number:.0%}".replace("%", " %")} & set(
                re.findall(r"[\d.]+(?: %)?", row[4])
            ), row


def test_each_page_of_the_relay_is_described() -> None:
    paths = set(re.findall(r"^\| `(/[^`?]*)", text_of("http.md"), re.MULTILINE))
    also = set(re.findall(r"`(/[a-z/.]+)`", text_of("http.md")))
    served = set(Pages(Ledger()).handlers())
    # These only some relays have: with AMQP, in a cluster.
    assert paths - {"/queues.json", "/hops.json"} <= served
    assert served <= paths | also


def test_every_option_that_a_page_names_is_there() -> None:
    known = {name for entry in options_reference.entries() for name in entry.names} | FOREIGN
    unknown = {
        f"{page.name}: {option}"
        for page in [*DOCS.glob("*.md"), ROOT / "README.md", ROOT / "dashboards/README.md"]
        for option in OPTION.findall(page.read_text("utf-8"))
        if option not in known
    }
    assert not unknown


def test_each_kind_of_file_is_an_option() -> None:
    known = {name for entry in options_reference.entries() for name in entry.names} | FOREIGN
    for row in re.findall(r"^\| \[.*?\) \| (.*?) \|", text_of("files.md"), re.MULTILINE):
        assert set(re.findall(r"`(--[\w-]+)`", row)) <= known


def test_a_default_that_sizing_names_is_the_default() -> None:
    defaults = {
        name: entry.default.strip("`")
        for entry in options_reference.entries()
        if entry.command == "relay"
        for name in entry.names
    }
    found = re.findall(r"`(--[\w-]+)` \(([^)]+)\)", text_of("sizing.md"))
    assert len(found) > 10
    for option, said in found:
        assert defaults[option] == re.sub(r"[, ]|(?<=\d) s$", "", said), option
