"""Making a report: once, or repeatedly while the relay writes its journal."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from clearfunds._html import day, duration, moment, percent

from .._arrow import arrow
from .._environment import check_spark, session
from .._errors import PipelineError
from ..journal._place import find
from ._book import Book
from ._limits import Advice, as_toml, by_pattern, pattern
from ._page import Report, page

if TYPE_CHECKING:
    import threading

    from pyspark.sql import DataFrame, SparkSession

PAGE: Final = "report.html"
LIMITS: Final = "limits.toml"
TABLES: Final = "tables"

_APP: Final = "clearfunds report"

_POLL_SECONDS: Final = 0.2
"""Seconds between two checks for the end of the query, or for `stopped`."""


@attrs.frozen
class Written:
    """A report that has been written."""

    page: Path
    settlements: int
    """The number of rows it was made from."""
    changes: int
    """The number of limits that should change."""
    again: bool = False
    """Whether it replaces a report of the same call."""


def write_report(
    folder: Path,
    out: Path,
    *,
    target_ms: float = 250.0,
    margin: float = 0.8,
    last: float | None = None,
    conf: Mapping[str, str] | None = None,
    progress: Callable[[str, int, int], None] = lambda _, __, ___: None,
) -> Written:
    """Write a report of a journal as it is now.

    Args:
        folder: The journal: the relay's `--journal` folder.
        out: The folder for `report.html`, `limits.toml` and `tables/NAME.parquet`; made if it is
            missing. Files of an earlier report are replaced, each atomically.
        target_ms: The target for the 99th percentile of hold times.
        margin: The share of the computed limit to recommend.
        last: Use only this many seconds up to the last settlement; None: all.
        conf: Settings for Spark.
        progress: Called with the step, the number of steps done, and that of all.

    Raises:
        PipelineError: There is no journal, it is empty, Spark is missing, or `out` cannot be
            written.
    """
    _check_folder(folder)
    if not _begun(folder):
        msg = (
            f"there is nothing in the journal {folder} yet: a relay writes it with "
            f"--journal {folder}, and closes its first files after some seconds"
        )
        raise PipelineError(msg)
    _make(out)
    progress("starting Spark", 0, 1)
    spark = session(_APP, **dict(conf or {}))
    try:
        return _write(spark, folder, out, _Wanted(target_ms, margin, last, None), progress)
    finally:
        spark.stop()


def follow_report(
    folder: Path,
    out: Path,
    *,
    target_ms: float = 250.0,
    margin: float = 0.8,
    last: float | None = None,
    every: float = 10.0,
    conf: Mapping[str, str] | None = None,
    progress: Callable[[str], None] = lambda _: None,
    written: Callable[[Written], None] = lambda _: None,
    stopped: threading.Event,
) -> None:
    """Write a report, and write it again as files are added to the journal, until `stopped` is set.

    A streaming query over the settlements finds new rows; every trigger that found some makes a
    new report. A report in progress when `stopped` is set is finished.

    Args:
        folder: The journal; it may still be empty.
        out: See `write_report`.
        target_ms: See `write_report`.
        margin: See `write_report`.
        last: See `write_report`.
        every: Least seconds from the beginning of one report to that of the next.
        conf: Settings for Spark.
        progress: Called with the step being done.
        written: Called with each report.
        stopped: Set by another thread, or by a signal handler, to end.

    Raises:
        PipelineError: As for `write_report`, except for an empty journal.
    """
    _check_folder(folder)
    _make(out)
    progress("starting Spark")
    spark = session(_APP, **dict(conf or {}))
    wanted = _Wanted(target_ms, margin, last, every)
    checkpoint = tempfile.mkdtemp(prefix="clearfunds-report-")
    failed: list[BaseException] = []
    made = 0

    def again(new: DataFrame, _: int) -> None:
        # Runs in a thread that Spark calls into; the waiting thread reports the errors.
        nonlocal made
        if stopped.is_set() or failed or new.isEmpty():
            return
        try:
            done = _write(spark, folder, out, wanted, lambda what, _, __: progress(what))
            written(attrs.evolve(done, again=made > 0))
            made += 1
            progress(f"{PAGE} is of {moment(time.time_ns())} UTC; waiting for more (Ctrl-C ends)")
        except BaseException as error:
            failed.append(error)
            raise

    try:
        from ..ledger import read_stream

        settlements = read_stream(spark, folder).settlements
        query = (
            settlements.writeStream.foreachBatch(again)
            .option("checkpointLocation", checkpoint)
            .trigger(processingTime=f"{every:g} seconds")
            .start()
        )
        progress("waiting for the journal's first file (Ctrl-C ends)")
        while query.isActive and not stopped.wait(_POLL_SECONDS):
            pass
        query.stop()
        if failed:
            raise failed[0]
        problem = query.exception()
        if problem is not None and not stopped.is_set():
            msg = f"the journal {folder} could not be read further: {str(problem).splitlines()[0]}"
            raise PipelineError(msg)
    finally:
        spark.stop()
        shutil.rmtree(checkpoint, ignore_errors=True)


@attrs.frozen
class _Wanted:
    """The arguments of a report."""

    target_ms: float
    margin: float
    last: float | None
    every: float | None


def _write(
    spark: SparkSession,
    folder: Path,
    out: Path,
    wanted: _Wanted,
    progress: Callable[[str, int, int], None],
) -> Written:
    # Imported here, and not above, since they need PySpark.
    from pyspark.errors import PySparkException

    from ._compute import compute

    py4j: Any = import_module("py4j.protocol")  # without types
    try:
        book = compute(
            spark,
            folder,
            target_ms=wanted.target_ms,
            margin=wanted.margin,
            last=wanted.last,
            note=progress,
        )
    except (PySparkException, py4j.Py4JError) as error:
        first = str(error).strip().partition("\n")[0]
        msg = f"the journal {folder} could not be read: {first}"
        raise PipelineError(msg) from error
    made = time.time_ns()
    advices = advise(book)
    toml = as_toml(
        advices,
        target_ms=wanted.target_ms,
        heading=_heading(made, wanted.target_ms, wanted.margin),
        kept=own_limits(book),
    )
    report = Report(
        source=str(folder),
        made_ns=made,
        target_ms=wanted.target_ms,
        book=book,
        advices=advices,
        toml=toml,
        refresh=wanted.every,
    )
    try:
        _save_tables(book, out / TABLES)
        _replace(out / LIMITS, toml)
        _replace(out / PAGE, page(report))
    except OSError as error:
        raise _unwritable(out, error) from error
    (overview,) = book.rows("overview")
    return Written(out / PAGE, int(overview["rows"]), len(by_pattern(advices)))


def advise(book: Book) -> list[Advice]:
    """Return the limits that should be lower, those with the longest holds first."""
    now = {row["account"]: row for row in book.rows("accounts_now")}
    found: list[Advice] = []
    for row in book.rows("recommended_limits"):
        if row["advice"] == "keep":
            continue
        known = now.get(row["account"], {})
        found.append(
            Advice(
                account=row["account"],
                holder=row["holder"],
                p99_ms=row["p99_ms"],
                items_per_s=row["items_per_s"],
                bytes_per_s=row["bytes_per_s"],
                limit_items=max(int(row["limit_items"]), 1),
                limit_bytes=max(int(row["limit_bytes"]), 1),
                now_items=known.get("limit_items"),
                now_bytes=known.get("limit_bytes"),
                floor=row["advice"] == "floor",
            )
        )
    return sorted(found, key=lambda each: (-each.p99_ms, each.account))


def own_limits(book: Book) -> dict[str, tuple[int | None, int | None]]:
    """Return the accounts whose limit is lower than the highest, with that limit."""
    rows = [row for row in book.rows("accounts_now") if pattern(row["account"]) is not None]

    def highest(unit: str) -> float:
        # No limit counts as the highest.
        limits = [row[unit] for row in rows]
        return max((math.inf if each is None else each for each in limits), default=0)

    most = {unit: highest(unit) for unit in ("limit_items", "limit_bytes")}
    return {
        row["account"]: (row["limit_items"], row["limit_bytes"])
        for row in sorted(rows, key=lambda row: str(row["account"]))
        if any(row[unit] is not None and row[unit] < most[unit] for unit in most)
    }


def _heading(made_ns: int, target_ms: float, margin: float) -> list[str]:
    wanted = duration(target_ms / 1e3)
    return [
        f"Made by `clearfunds report`, {day(made_ns)} {moment(made_ns)} UTC.",
        f"Limits that keep 99 of 100 deliveries within {wanted}: an account may owe as much as",
        f"its holders clear in {percent(margin)} of that time.",
        "Give this file to the relay: clearfunds relay --config limits.toml",
    ]


def _check_folder(folder: Path) -> None:
    find(folder)
    # Checked before a second is spent on starting Java.
    check_spark()


def _begun(folder: Path) -> bool:
    """Return whether a table has a file."""
    return any(
        not each.name.startswith((".", "_")) for each in folder.glob("*/date=*/hour=*/*.parquet")
    )


def _make(out: Path) -> None:
    try:
        (out / TABLES).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(out, error) from error


def _unwritable(out: Path, error: OSError) -> PipelineError:
    why = error.strerror or error
    return PipelineError(f"cannot write to {out}: {why}; give another directory with --out")


def _save_tables(book: Book, folder: Path) -> None:
    parquet: Any = arrow("pyarrow.parquet")
    for name, table in book.items():
        hidden = folder / f".{name}.parquet"
        parquet.write_table(table, str(hidden))
        os.replace(hidden, folder / f"{name}.parquet")


def _replace(path: Path, content: str) -> None:
    hidden = path.with_name(f".{path.name}")
    hidden.write_text(content, "utf-8")
    os.replace(hidden, path)
