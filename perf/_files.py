"""Results as files: CSV, JSON, and the page."""

from __future__ import annotations

import csv
import errno
import json
import os
import platform
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

from ..sockets import trouble_with_file
from ._errors import PerfError, ScenarioError
from ._page import page
from ._result import Result


def machine() -> str:
    """Return the machine, the software and the time, in a line."""
    system = platform.uname()
    cores = len(os.sched_getaffinity(0))
    now = datetime.now(UTC)
    return (
        f"{now:%Y-%m-%d %H:%M} UTC, {system.system} {system.release}, {system.machine}, {cores} "
        f"cores, Python {platform.python_version()}"
    )


def as_csv(results: Sequence[Result]) -> str:
    """Return the seconds of all runs, one line each."""
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
    """Return all measurements."""
    whole = {"machine": machine(), "runs": [result.as_json() for result in results]}
    return json.dumps(whole, indent=1) + "\n"


def check_files(files: Sequence[Path | None]) -> None:
    """Check that the files can be written, before the measurement.

    Raises:
        ScenarioError: A file is given twice.
        PerfError: A file cannot be written.
    """
    wanted = [path for path in files if path is not None]
    for place, path in enumerate(wanted):
        if any(path.absolute() == other.absolute() for other in wanted[:place]):
            msg = f"{path} is given twice: one would be written over the other"
            raise ScenarioError(msg)
        why = None
        if path.is_dir():
            why = errno.EISDIR
        elif not path.exists() and not path.parent.is_dir():
            why = errno.ENOENT
        elif not os.access(path if path.exists() else path.parent, os.W_OK):
            why = errno.EACCES
        if why is not None:
            msg = f"cannot write {trouble_with_file(path, OSError(why, os.strerror(why)))}"
            raise PerfError(msg)


def write(
    results: Sequence[Result],
    *,
    csv_file: Path | None = None,
    json_file: Path | None = None,
    html_file: Path | None = None,
) -> list[Path]:
    """Write the results to the files asked for; return the files.

    Raises:
        PerfError: A file cannot be written; the others are written.
    """
    made: list[Path] = []
    wrong: list[str] = []
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
            wrong.append(f"cannot write {trouble_with_file(path, error)}")
        else:
            made.append(path)
    if wrong:
        raise PerfError("; ".join(wrong))
    return made
