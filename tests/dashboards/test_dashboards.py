"""The files are what the code makes, and ask for nothing that a relay does not have."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import promql_parser
import pytest
import trio
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client.parser import text_string_to_metric_families

from clearfunds.access import Tenant
from clearfunds.transports.mqtt import PubAck
from dashboards._files import FOLDER, generated, plain
from dashboards._rules import ALERTS, RECORDINGS
from tests.dashboards.queries import (
    RECORDED,
    Asked,
    dashboards,
    functions,
    grouping_labels,
    legend_labels,
    panel_queries,
    rule_queries,
    selectors,
)
from tests.relay.brokers import Broker
from tests.transports.peers import connected, fetch, running, until

ROOT: Final = Path(__file__).parents[2]
QUERIES: Final = [*panel_queries(), *rule_queries()]
TARGET_LABELS: Final = frozenset({"instance", "job"})
"""What Prometheus adds to each series."""
PROMETHEUS_OWN: Final = {
    "up": TARGET_LABELS,
    "scrape_duration_seconds": TARGET_LABELS,
    "scrape_samples_scraped": TARGET_LABELS,
    "ALERTS": TARGET_LABELS | {"alertname", "alertstate"},
}
"""What Prometheus makes itself."""
RECORDED_LABELS: Final = {
    name: frozenset(name.partition(":")[0].split("_")) | TARGET_LABELS for name in RECORDED
}
"""A recorded series says before its first colon which labels it has."""


# -- what a relay has -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exported() -> dict[str, frozenset[str]]:
    """The labels of each metric that a relay has, off the pages of one in which somebody waited."""
    with TemporaryDirectory() as store:
        return trio.run(_export, store)


async def _export(store: str) -> dict[str, frozenset[str]]:
    async with (
        running(
            http="127.0.0.1:0",
            limit_items=1,
            profile="lossless",
            store=store,
            fsync_interval=0.0,
            tenant=(Tenant(name="t", client=("pub*",), items=9, bytes=9_000),),
        ) as relay,
        connected(relay.port, "publisher") as publisher,
        connected(relay.port, "subscriber") as subscriber,
    ):
        await subscriber.subscribe("t", qos=1)
        for n in (1, 2, 3):
            await publisher.publish("t", b"x", qos=1, packet_id=n)
        # The first is acknowledged only when somebody waits for that, so that there is blame; the
        # others never, so that there is a loan to look at.
        first, _ = await subscriber.publications(2)
        await until(lambda: relay.statistics().waiting)
        await subscriber.send(PubAck(first.packet_id))
        await until(lambda: relay.account("publisher").statistics().blame)
        await until(relay.ledger.causes.known)
        http = relay.addresses.http
        assert http is not None
        async with Broker(relay.port, 20, "kept").visit(leave=True) as client:
            await client.subscribe("kept")
        text = await fetch(f"{http}/metrics")
        text += await fetch(
            f"{http}/metrics/detailed?family=account,holder,matrix,blame,queue,tenant"
        )
    found: dict[str, frozenset[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = frozenset(sample.labels) | TARGET_LABELS
            found[sample.name] = found.get(sample.name, frozenset()) | labels
    return found


# -- the files ------------------------------------------------------------------------------------


def test_the_committed_files_are_what_the_code_makes() -> None:
    for name, text in generated().items():
        assert (FOLDER / name).read_text(encoding="utf-8") == text, f"{name}: run make dashboards"


def test_check_says_what_is_stale(tmp_path: Path) -> None:
    copy = tmp_path / "dashboards"
    copy.mkdir()
    for path in FOLDER.iterdir():
        if path.is_file():
            (copy / path.name).write_bytes(path.read_bytes())

    def command(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "dashboards", *argv],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    fresh = command("--check")
    assert (fresh.returncode, fresh.stdout) == (0, "")
    rules = (copy / "clearfunds.rules.yml").read_text(encoding="utf-8")
    (copy / "clearfunds.rules.yml").write_text(rules.replace("0.1", "0.9"), encoding="utf-8")
    stale = command("--check")
    assert stale.returncode == 1
    assert "clearfunds.rules.yml" in stale.stdout
    assert "0.9" in (copy / "clearfunds.rules.yml").read_text(encoding="utf-8")
    assert command().returncode == 0
    assert (copy / "clearfunds.rules.yml").read_text(encoding="utf-8") == rules
    assert command("--chekc").returncode == 2


@pytest.mark.parametrize("name", dashboards())
def test_a_dashboard_survives_the_round_trip_through_grafanas_own_types(name: str) -> None:
    committed = dashboards()[name]
    assert plain(Dashboard.from_json(committed)) == committed


# -- the layout -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", dashboards())
def test_panels_have_ids_of_their_own_and_do_not_overlap(name: str) -> None:
    panels = dashboards()[name]["panels"]
    ids = [panel["id"] for panel in panels]
    assert len(set(ids)) == len(ids)
    places = [(panel["title"], panel["gridPos"]) for panel in panels]
    for title, place in places:
        assert place["w"] > 0, title
        assert place["h"] > 0, title
        assert place.get("x", 0) + place["w"] <= 24, title
    for (title, a), (other, b) in itertools.combinations(places, 2):
        assert _beside(a, b, "x", "w") or _beside(a, b, "y", "h"), f"{title} overlaps {other}"


def _beside(a: dict[str, int], b: dict[str, int], start: str, size: str) -> bool:
    first, second = a.get(start, 0), b.get(start, 0)
    return first + a[size] <= second or second + b[size] <= first


@pytest.mark.parametrize("name", dashboards())
def test_every_panel_says_what_it_answers_and_whom_it_asks(name: str) -> None:
    for panel in dashboards()[name]["panels"]:
        if panel["type"] == "row":
            continue
        assert panel["description"].split(".")[0].endswith("?") or "?" in panel["description"]
        if panel["type"] == "text":
            assert "datasource" not in panel
            continue
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)


def test_uids_and_titles_are_unique() -> None:
    for field in ("uid", "title"):
        values = [dashboard[field] for dashboard in dashboards().values()]
        assert len(set(values)) == len(values) == 4


# -- the queries ----------------------------------------------------------------------------------


@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_a_query_is_promql(query: Asked) -> None:
    promql_parser.parse(query.expr)


@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_a_query_asks_only_for_what_a_relay_has(
    query: Asked, exported: dict[str, frozenset[str]]
) -> None:
    known = exported | PROMETHEUS_OWN | RECORDED_LABELS
    have: frozenset[str] = frozenset()
    for selected in selectors(query.expr):
        assert selected.metric in known, f"no metric {selected.metric}"
        labels = known[selected.metric]
        assert selected.labels <= labels, f"{selected.metric} has only {sorted(labels)}"
        have |= labels
    assert have, "it asks for nothing"
    assert grouping_labels(query.expr) <= have
    assert legend_labels(query.legend) <= have


def test_what_is_asked_for_is_in_the_documentation() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `(\w+)`", text, re.MULTILINE))
    asked = {selected.metric for query in QUERIES for selected in selectors(query.expr)}
    ours = {name.removesuffix("_bucket") for name in asked if name.startswith("clearfunds_")}
    assert len(ours) > 40
    assert ours <= documented


@pytest.mark.parametrize("query", panel_queries(), ids=str)
def test_a_panel_looks_only_at_the_relays_that_are_chosen(query: Asked) -> None:
    for selected in selectors(query.expr):
        # Not every alert has a job.
        wanted = {"instance"} if selected.metric == "ALERTS" else {"job", "instance"}
        assert wanted <= selected.labels, selected.text


@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_counters_are_looked_at_as_rates_and_buckets_as_quantiles(query: Asked) -> None:
    for call in functions(query.expr):
        if call.func.name == "histogram_quantile":
            names = {selected.metric for selected in selectors(call.args[1].prettify())}
            assert all(name.endswith("_bucket") for name in names), query.expr
        if call.func.name in ("rate", "increase"):
            names = {selected.metric for selected in selectors(call.args[0].prettify())}
            assert all(name.endswith(("_total", "_bucket", "_sum", "_count")) for name in names), (
                query.expr
            )


@pytest.mark.parametrize("name", dashboards())
def test_jobs_relays_and_a_live_page_can_be_chosen(
    name: str, exported: dict[str, frozenset[str]]
) -> None:
    variables = {each["name"]: each for each in dashboards()[name]["templating"]["list"]}
    asked = {one: each["query"] for one, each in variables.items() if each["type"] == "query"}
    assert asked == {
        "job": "label_values(clearfunds_build_info, job)",
        "instance": 'label_values(clearfunds_build_info{job=~"$job"}, instance)',
        "live": "label_values(clearfunds_build_info"
        '{job=~"$job(-detailed)?",instance=~"$instance"}, instance)',
    }
    assert "clearfunds_build_info" in exported
    for several in ("job", "instance"):
        assert variables[several]["multi"]
        assert variables[several]["allValue"] == ".*"
    assert not variables["live"]["multi"]


@pytest.mark.parametrize("name", dashboards())
def test_a_link_and_a_row_lead_to_the_live_page(name: str) -> None:
    dashboard = dashboards()[name]
    links = [link["url"] for link in dashboard["links"] if link["type"] == "link"]
    assert links == ["http://${live}/"]
    row, panel = dashboard["panels"][-2:]
    assert (row["type"], row["title"]) == ("row", "The live page")
    assert panel["type"] == "text"
    assert "](http://${live}/)" in panel["options"]["content"]


# -- the rules ------------------------------------------------------------------------------------


def test_rules_have_names_of_their_own() -> None:
    names = [each.name for each in (*RECORDINGS, *ALERTS)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_uses_only_labels_that_its_expression_leaves(
    alert: Any, exported: dict[str, frozenset[str]]
) -> None:
    known = exported | PROMETHEUS_OWN | RECORDED_LABELS
    aggregated = alert.expr.startswith(("sum by", "max by", "(\n  sum by"))
    left = (
        grouping_labels(alert.expr)
        if aggregated
        else known[next(_metrics(alert.expr))] | TARGET_LABELS
    )
    used = set(_label_references(alert.summary + alert.description))
    assert used <= left, alert.name
    assert alert.severity in ("critical", "warning", "info")
    assert alert.description.endswith((".", "{{ end }}"))


def _metrics(expr: str) -> Iterator[str]:
    return (selected.metric for selected in selectors(expr))


def _label_references(template: str) -> list[str]:
    return re.findall(r"\$labels\.(\w+)", template)
