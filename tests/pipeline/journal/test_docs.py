"""docs/ledger.md names every column, metric and option of the journal, as the code has them."""

from __future__ import annotations

from pathlib import Path

import attrs

from clearfunds._cli._journal_options import Journal
from clearfunds.pipeline.journal import TABLES, JournalCollector

TEXT = (Path(__file__).parents[3] / "docs" / "ledger.md").read_text("utf-8")
TYPES = {"string": "string", "int64": "int64", "float64": "double", "timestamp": "timestamp"}


def test_every_column_is_documented_as_the_code_has_it() -> None:
    for name, table in TABLES.items():
        about = table.about[0].lower() + table.about[1:]
        start = TEXT.index(f"`{name}`: {about}")
        section = TEXT[start:].split("\n\n", 2)[1]
        rows = [row.strip("| ").split(" | ", 2) for row in section.splitlines()[2:]]
        assert [row[0] for row in rows] == [f"`{column.name}`" for column in table.columns]
        for (_, kind, doc), column in zip(rows, table.columns, strict=True):
            assert kind.startswith(TYPES[column.type])
            assert kind.endswith("or null") == column.nullable
            assert doc == column.doc


def test_every_metric_is_documented() -> None:
    for metric in JournalCollector(None).collect():
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        assert f"| `{name}` | {metric.type}" in TEXT
        assert metric.documentation in TEXT


def test_every_option_is_documented_with_its_default() -> None:
    defaults = Journal()
    for field in attrs.fields(Journal):
        option = f"--{field.name.replace('_', '-')}"
        starts = f"| `{option}` ", f"| `{option} DIR` "
        (row,) = [line for line in TEXT.splitlines() if line.startswith(starts)]
        value = getattr(defaults, field.name)
        shown = {None: "none", (): "none", 128 << 20: "128MiB", "owner": "owner"}.get(
            value
        ) or f"{value:g}"
        assert row.split(" | ")[1] == shown
