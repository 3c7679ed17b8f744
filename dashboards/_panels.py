"""The kinds of panel in the dashboards, and the dashboard that puts rows of them together.

Each panel answers a question, which Grafana shows behind the (i) beside its title. Colours mean the
same everywhere: green is normal, orange is worth a look, red needs action.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    table,
    text,
    timeseries,
)
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heatmap_models
from grafana_foundation_sdk.models import prometheus as prometheus_models
from grafana_foundation_sdk.models import text as text_models

DATASOURCE: Final = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
HERE: Final = 'job=~"$job(-detailed)?",instance=~"$instance"'
"""The matchers of all queries, for the relays chosen. A job of its own scrapes detailed pages."""
FIRING: Final = 'ALERTS{alertname=~"Clearfunds.*",alertstate="firing",instance=~"$instance"}'
"""Our alerts that fire, not all of which have a job."""

GREEN, ORANGE, RED = "green", "orange", "red"

Panel = Builder[models.Panel]
_ReadyMade = stat.Panel | timeseries.Panel | bargauge.Panel | table.Panel | heatmap.Panel


def added(counter: str, span: str) -> str:
    """Return a query for the exact amount added to each counter in a span.

    `increase` extrapolates to the ends of its span, and makes 23 of 20. This query is the counter's
    value minus its least value in the span; after a restart of the relay, the amount since then.
    """
    return f"{counter} - min_over_time({counter}[{span}])"


def fullness(matchers: str = "") -> str:
    """Return a query for the used part of each queue's limit at rest, in items and in bytes."""
    where = f"{{{matchers}}}" if matchers else ""
    parts = [
        f"label_replace(clearfunds_detailed_queue_at_rest_{unit}{where}"
        f' / clearfunds_detailed_queue_limit_{unit}{where}, "unit", "{unit}", "", "")'
        for unit in ("messages", "bytes")
    ]
    return " or ".join(parts)


@attrs.frozen
class Query:
    """One target of a panel."""

    expr: str
    legend: str = ""
    """The names of the series, with `{{label}}` for a label."""


@attrs.frozen
class Row:
    """Panels under one heading, from left to right."""

    title: str
    panels: Sequence[Panel]


@attrs.frozen
class Board:
    """One dashboard, and the questions that its panels answer."""

    uid: str
    model: models.Dashboard
    answers: Sequence[tuple[str, str | None]]
    """(title, question) of each panel; the question is None for the heading of a row."""


def board(
    uid: str, title: str, description: str, rows: Sequence[Row], patterns: Sequence[str] = ()
) -> Board:
    """Put a dashboard together.

    Args:
        uid: The end of its address; must never change, or links break.
        title: Its name.
        description: Its purpose.
        rows: Its rows of panels.
        patterns: Names of text boxes for regular expressions over names.
    """
    builder = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags(["clearfunds"])
        .timezone("browser")
        .refresh("10s")
        .time("now-15m", "now")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .editable()
        .with_variable(
            dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus")
        )
        .with_variable(_several("job", "Job", "label_values(clearfunds_build_info, job)"))
        .with_variable(
            _several(
                "instance",
                "Relay",
                'label_values(clearfunds_build_info{job=~"$job"}, instance)',
            )
        )
        .with_variable(
            _values(
                "live",
                "Live page",
                f"label_values(clearfunds_build_info{{{HERE}}}, instance)",
            )
        )
        .annotation(
            dashboard.AnnotationQuery()
            .name("Alerts")
            .datasource(DATASOURCE)
            .enable(True)
            .icon_color(RED)
            .expr(FIRING)
        )
        .link(
            dashboard.DashboardLink("clearfunds")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags(["clearfunds"])
            .as_dropdown(False)
            .include_vars(True)
            .keep_time(True)
        )
        .link(
            dashboard.DashboardLink("Live page")
            .type(models.DashboardLinkType.LINK)
            .icon("external link")
            .tooltip("The relay's own page: who waits for whom now")
            .url(_LIVE)
            .target_blank(True)
        )
    )
    for name in patterns:
        builder.with_variable(
            dashboard.TextBoxVariable(name)
            .label(f"{name.capitalize()} (regular expression)")
            .default_value(".*")
        )
    for row in (*rows, Row("The live page", [_live()])):
        builder.with_row(dashboard.Row(row.title))
        for panel in row.panels:
            builder.with_panel(panel)
    built = builder.build()
    answers: list[tuple[str, str | None]] = []
    for panel_id, each in enumerate(built.panels or [], 1):
        each.id_val = panel_id
        answer = None if isinstance(each, models.RowPanel) else each.description
        answers.append((each.title or "", answer))
    return Board(uid, built, answers)


def _values(name: str, label: str, query: str) -> dashboard.QueryVariable:
    """Make a variable with the values that Prometheus has for a label."""
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(DATASOURCE)
        .query(query)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
    )


def _several(name: str, label: str, query: str) -> dashboard.QueryVariable:
    """Make such a variable of which several values may be chosen, and all are at first."""
    return (
        _values(name, label, query)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(models.VariableOption(text="All", value="$__all"))
    )


def quantiles(histogram: str) -> tuple[Query, ...]:
    """Return queries for the median and the 99th percentile of a histogram's observations."""
    return tuple(
        Query(
            f"histogram_quantile({part}, sum by (le)"
            f" (rate({histogram}_bucket{{{HERE}}}[$__rate_interval])))",
            legend,
        )
        for part, legend in ((0.5, "half of them, at most"), (0.99, "99 of 100, at most"))
    )


# -- kinds of panel -------------------------------------------------------------------------------


def number(
    title: str,
    answer: str,
    query: Query,
    *,
    unit: str = "short",
    orange: float | None = None,
    red: float | None = None,
    span: int = 3,
    name: bool = False,
) -> Panel:
    """One number, large; or, with `name`, the name of its series."""
    panel = (
        stat.Panel()
        .unit(unit)
        .span(span)
        .height(4)
        .no_value("none")
        .graph_mode(common_models.BigValueGraphMode.NONE)
        .color_mode(common_models.BigValueColorMode.BACKGROUND)
        .thresholds(_thresholds(orange, red))
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    )
    if name:
        panel.text_mode(common_models.BigValueTextMode.VALUE_AND_NAME)
    # An instant query: the culprit changes, and a range would show all past culprits at once.
    return _finish(panel, title, answer, [query], instant=True)


def lines(
    title: str,
    answer: str,
    *queries: Query,
    unit: str = "short",
    span: int = 8,
    stacked: bool = False,
    orange: float | None = None,
    red: float | None = None,
    maximum: float | None = None,
) -> Panel:
    """Lines over time."""
    panel = (
        timeseries.Panel()
        .unit(unit)
        .span(span)
        .height(8)
        .min(0)
        .fill_opacity(30 if stacked else 5)
        .show_points(common_models.VisibilityMode.NEVER)
        .legend(
            common.VizLegendOptions()
            .display_mode(common_models.LegendDisplayMode.TABLE)
            .placement(common_models.LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs(["lastNotNull", "max"])
        )
        .tooltip(
            common.VizTooltipOptions()
            .mode(common_models.TooltipDisplayMode.MULTI)
            .sort(common_models.SortOrder.DESCENDING)
        )
    )
    if stacked:
        panel.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL))
    if maximum is not None:
        panel.max(maximum)
    if orange is not None or red is not None:
        panel.thresholds(_thresholds(orange, red)).thresholds_style(
            common.GraphThresholdsStyleConfig().mode(common_models.GraphThresholdsStyleMode.DASHED)
        )
    return _finish(panel, title, answer, queries)


def bars(
    title: str,
    answer: str,
    query: Query,
    *,
    unit: str = "short",
    span: int = 12,
    orange: float | None = None,
    red: float | None = None,
    maximum: float | None = None,
) -> Panel:
    """A bar for the present value of each series."""
    panel = (
        bargauge.Panel()
        .unit(unit)
        .span(span)
        .height(8)
        .min(0)
        .no_value("none")
        .orientation(common_models.VizOrientation.HORIZONTAL)
        .display_mode(common_models.BarGaugeDisplayMode.BASIC)
        .thresholds(_thresholds(orange, red))
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    )
    if maximum is not None:
        panel.max(maximum)
    return _finish(panel, title, answer, [query], instant=True)


def rows_of(
    title: str,
    answer: str,
    keys: Sequence[str],
    columns: Mapping[str, tuple[str, str]],
    *,
    span: int = 12,
    coloured: str | None = None,
) -> Panel:
    """A table of present values: a row for each combination of the labels `keys`.

    Args:
        title: Its title.
        answer: The question that it answers.
        keys: The labels; each query must have these and no others.
        columns: (query, unit) of each column by its heading. The rows are sorted by the first.
        span: Its width, of 24.
        coloured: The column whose larger values are redder.
    """
    headings = list(columns)
    panel = (
        table.Panel()
        .span(span)
        .height(9)
        .no_value("")
        .sort_by([common.TableSortByFieldState().display_name(headings[0]).desc(True)])
        .with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
        .with_transformation(
            models.DataTransformerConfig(
                id_val="organize",
                options={
                    "excludeByName": {"Time": True},
                    # With one query, Grafana calls its values `Value`; with more, `Value #A`.
                    "renameByName": {
                        ("Value" if len(headings) == 1 else f"Value #{_ref(n)}"): heading
                        for n, heading in enumerate(headings)
                    }
                    | {key: key.capitalize() for key in keys},
                    "indexByName": {key: n for n, key in enumerate(keys)},
                },
            )
        )
    )
    for heading, (_, unit) in columns.items():
        properties = [models.DynamicConfigValue(id_val="unit", value=unit)]
        if heading == coloured:
            properties += _SHADES
        panel.override_by_name(heading, properties)
    queries = [Query(expr) for expr, _ in columns.values()]
    return _finish(panel, title, answer, queries, instant=True, as_table=True)


def matrix(
    title: str, answer: str, query: Query, *, row: str, column: str, unit: str, span: int = 24
) -> Panel:
    """A table with a row for each value of one label and a column for each value of another."""
    panel = (
        table.Panel()
        .unit(unit)
        .span(span)
        .height(10)
        .no_value("")
        .with_transformation(
            models.DataTransformerConfig(
                id_val="groupingToMatrix",
                options={
                    "rowField": row,
                    "columnField": column,
                    "valueField": "Value",
                    "emptyValue": "null",
                },
            )
        )
        .override_by_field_type("number", _SHADES)
    )
    return _finish(panel, title, answer, [query], instant=True, as_table=True)


def heat(title: str, answer: str, query: Query, *, unit: str, span: int = 12) -> Panel:
    """The buckets of a histogram over time."""
    panel = (
        heatmap.Panel()
        .span(span)
        .height(8)
        .calculate(False)
        .y_axis(heatmap.YAxisConfig().unit(unit))
        .color(
            heatmap.HeatmapColorOptions()
            .mode(heatmap_models.HeatmapColorMode.SCHEME)
            .scheme("Oranges")
            .scale(heatmap_models.HeatmapColorScale.EXPONENTIAL)
            .exponent(0.5)
            .steps(64)
        )
        .show_legend()
    )
    return _finish(panel, title, answer, [query], as_heatmap=True)


_LIVE: Final = "http://${live}/"


def _live() -> Panel:
    """Return a text with links to the live page."""
    return (
        text.Panel()
        .title("${live}")
        .description("Who waits for whom at this moment, and what happens next?")
        .span(24)
        .height(3)
        .mode(text_models.TextMode.MARKDOWN)
        .content(
            f"The relay's own page, a second old: [{_LIVE}]({_LIVE}), or with TLS"
            " [https://${live}/](https://${live}/). The address is the one that Prometheus scrapes."
        )
    )


# -- parts of them --------------------------------------------------------------------------------

_SHADES: Final = [
    models.DynamicConfigValue(
        id_val="custom.cellOptions", value={"type": "color-background", "mode": "basic"}
    ),
    models.DynamicConfigValue(id_val="color", value={"mode": "continuous-YlRd"}),
]


def _thresholds(orange: float | None, red: float | None) -> dashboard.ThresholdsConfig:
    steps = [models.Threshold(value=None, color=GREEN)]
    for value, color in ((orange, ORANGE), (red, RED)):
        if value is not None:
            steps.append(models.Threshold(value=value, color=color))
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)


def _finish(
    panel: _ReadyMade,
    title: str,
    answer: str,
    queries: Sequence[Query],
    *,
    instant: bool = False,
    as_table: bool = False,
    as_heatmap: bool = False,
) -> Panel:
    panel.title(title).description(answer).datasource(DATASOURCE)
    for n, query in enumerate(queries):
        target: Any = (
            prometheus.Dataquery()
            .ref_id(_ref(n))
            .datasource(DATASOURCE)
            .editor_mode(prometheus_models.QueryEditorMode.CODE)
            .expr(query.expr)
            .legend_format(query.legend or "__auto")
        )
        if instant:
            target.instant()
        else:
            target.range()
        if as_table:
            target.format(prometheus_models.PromQueryFormat.TABLE)
        if as_heatmap:
            target.format(prometheus_models.PromQueryFormat.HEATMAP)
        panel.with_target(target)
    return panel


def _ref(number: int) -> str:
    return chr(ord("A") + number)
