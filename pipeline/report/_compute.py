"""The figures of a report, by the engine that it was given: Spark, or the local one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias

from ._book import Book

Note: TypeAlias = Callable[[str, int, int], None]

TABLES: Final = (
    *("overview", "outcomes", "debt_over_time", "debt_total", "peak_debt", "accounts_now"),
    *("hold_percentiles", "blame", "stall_time", "fan_out", "fairness", "tenants"),
    "recommended_limits",
)
"""The tables, in the order of computation; each is a file in the report's `tables`."""

_POINTS: Final = 240
"""Most moments of debt over time; the picture is not wider."""

_STEPS_MS: Final = (
    *(100, 200, 500, 1_000, 2_000, 5_000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000),
    *(600_000, 900_000, 1_800_000, 3_600_000, 7_200_000, 14_400_000, 43_200_000, 86_400_000),
)


class Engine(Protocol):
    """Answers a report's questions about one journal, each with a `pyarrow.Table`."""

    def overview(self) -> Any:
        """Return the table `overview`, without the interval: one row."""

    def answer(self, name: str, step_ns: int, target_ms: float, margin: float) -> Any:
        """Return another table."""


def compute(
    engine: Engine, *, target_ms: float, margin: float, note: Note = lambda _, __, ___: None
) -> Book:
    """Compute all tables.

    Args:
        engine: What computes them.
        target_ms: The target for the 99th percentile of hold times.
        margin: The share of the computed limit to recommend.
        note: Called with the table being computed, the number of tables done, and that of all.
    """
    total = len(TABLES)
    note("reading the journal", 0, total)
    overview = engine.overview()
    (row,) = overview.to_pylist()
    step_ns = _step_ms(row) * 10**6
    tables: dict[str, Any] = {"overview": overview.append_column("step_ns", [[step_ns]])}
    for name in TABLES[1:]:
        note(name.replace("_", " "), len(tables), total)
        if row["rows"]:
            tables[name] = engine.answer(name, step_ns, target_ms, margin)
    note("writing", total, total)
    return Book(tables)


def _step_ms(overview: dict[str, Any]) -> int:
    """Return the interval of debt over time."""
    span_ms = (overview["ended_ns"] - overview["began_ns"]) / 1e6
    return next((step for step in _STEPS_MS if span_ms / step <= _POINTS), _STEPS_MS[-1])
