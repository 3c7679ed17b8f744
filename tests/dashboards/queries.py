"""The queries of the dashboards and the rules, read off the files that are committed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import attrs
import promql_parser

from dashboards._files import FOLDER, generated
from dashboards._rules import ALERTS, RECORDINGS

RECORDED: Final = frozenset(recording.name for recording in RECORDINGS)
"""The series that the rules make; whatever they are made of is looked at in the rules."""

_LOOKED_UP: Final = re.compile(r"printf `([^`]*)`(?: \$labels\.\w+)+ \| query")


@attrs.frozen
class Asked:
    """One query and where it stands."""

    where: str
    expr: str
    """With Grafana's variables put in."""
    instant: bool = True
    legend: str = ""

    def __str__(self) -> str:
        return self.where


@attrs.frozen
class Selected:
    """One selector of a query."""

    metric: str
    labels: frozenset[str]
    """The labels that it looks at."""
    text: str


def dashboards() -> dict[str, dict[str, Any]]:
    """Return the committed dashboards by their file's name."""
    return {name: json.loads(text) for name, text in _committed().items()}


@cache
def _committed() -> dict[str, str]:
    names = [name for name in generated() if name.endswith(".json")]
    return {name: (FOLDER / name).read_text(encoding="utf-8") for name in names}


def put_in(text: str, *, interval: str = "4s", span: str = "30s") -> str:
    """Do for a query what Grafana does: put in the variables; one job is chosen, and all else."""
    text = text.replace("$__rate_interval", interval).replace("$__range", span)
    text = text.replace("$job", "clearfunds")
    text = re.sub(r"\$(instance|account|holder)\b", ".*", text)
    assert "$" not in text, text
    return text


def panel_queries() -> list[Asked]:
    """Return each target of each panel, and each mark that a dashboard shows."""
    found: list[Asked] = []
    for name, dashboard in dashboards().items():
        for panel in dashboard["panels"]:
            for target in panel.get("targets", ()):
                found.append(
                    Asked(
                        f"{name}: {panel['title']}, {target['refId']}",
                        put_in(target["expr"]),
                        bool(target.get("instant")),
                        target["legendFormat"],
                    )
                )
        for mark in dashboard["annotations"]["list"]:
            found.append(Asked(f"{name}: {mark['name']}", put_in(mark["expr"])))
    return found


def rule_queries() -> list[Asked]:
    """Return the expressions of the rules, and those that the texts of alerts ask for."""
    found = [Asked(recording.name, recording.expr) for recording in RECORDINGS]
    for alert in ALERTS:
        found.append(Asked(alert.name, alert.expr))
        for number, expr in enumerate(_LOOKED_UP.findall(alert.description)):
            # It is asked for one name; here for any.
            found.append(Asked(f"{alert.name}, asked {number}", expr.replace("=%q", '=~".*"')))
    return found


def selectors(expr: str) -> list[Selected]:
    """Return the selectors in a query.

    Raises:
        ValueError: It is not PromQL.
    """
    found: list[Selected] = []

    def visit(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.MatrixSelector):
            node = node.vector_selector
        if isinstance(node, promql_parser.VectorSelector):
            assert node.name is not None, expr
            labels = frozenset(matcher.name for matcher in node.matchers.matchers)
            found.append(Selected(node.name, labels - {"__name__"}, node.prettify()))

    promql_parser.walk(promql_parser.parse(expr), visit)
    return found


def grouping_labels(expr: str) -> frozenset[str]:
    """Return the labels that a query groups by, joins on, or takes over in a join."""
    lists: list[str] = re.findall(r"\b(?:by|on|ignoring|group_left|without)\s*\(([^()]*)\)", expr)
    return frozenset(label.strip() for each in lists for label in each.split(",") if label.strip())


def legend_labels(legend: str) -> frozenset[str]:
    """Return the labels that a legend shows."""
    return frozenset(re.findall(r"\{\{\s*(\w+)\s*\}\}", legend))


def functions(expr: str) -> Iterator[promql_parser.Call]:
    """Return the calls of functions in a query."""
    found: list[promql_parser.Call] = []

    def visit(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.Call):
            found.append(node)

    promql_parser.walk(promql_parser.parse(expr), visit)
    return iter(found)
