"""Results as files: CSV, JSON, and the page."""

from __future__ import annotations

import csv
import json
import os
import platform
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

from ._errors import PerfError
from ._page import page
from ._result import Result


def machine() -> str:
    """Say on what machine this is, and when."""
    system = platform.uname()
    cores = len(os.sched_getaffinity(0))
    now = datetime.now(UTC)
    return (
        f"{now:%Y-%m-%d %H:%M} UTC, {system.system} {system.release}, {system.machine}, {cores} "
        f"cores, Python {platform.python_version()}"
    )


def as_csv(results: Sequence[Result]) -> str:
    """Return the seconds of all runs, a line each."""
    text = StringIO()
    writer: csv.DictWriter[str] | None = None
    for result in results:
        for sample in result.samples:
            row: dict[str, object] = {"scenario": result.scenario.name, **sample.fields()}
            if writer is None:
                writer = csv.DictWriter(text, list(row), lineterminator="\n")
                writer.writeheader()
            writer.writerow(row)
    return text.getvalue()


def as_json(results: Sequence[Result]) -> str:
    """Return all that was measured."""
    whole = {"machine": machine(), "runs": [result.as_json() for result in results]}
    return json.dumps(whole, indent=1) + "\n"


def write(
    results: Sequence[Result],
    *,
    csv_file: Path | None = None,
    json_file: Path | None = None,
    html_file: Path | None = None,
) -> list[Path]:
    """Write what is asked for; return the files.

    Raises:
        PerfError: One cannot be written.
    """
    made: list[Path] = []
    wanted: list[tuple[Path | None, Callable[[], str]]] = [
        (csv_file, lambda: as_csv(results)),
        (json_file, lambda: as_json(results)),
        (html_file, lambda: page(results, machine())),
    ]
    for path, content in wanted:
        if path is None:
            continue
        try:
            path.write_text(content(), "utf-8")
        except OSError as error:
            msg = f"{path} cannot be written: {error.strerror}"
            raise PerfError(msg) from error
        made.append(path)
    return made
