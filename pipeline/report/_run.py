"""Making a report: once, or repeatedly while the relay writes its journal."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import attrs

from clearfunds._html import day, duration, moment, percent, size

from .._arrow import arrow
from .._environment import check_spark, session
from .._errors import MissingError, PipelineError
from .._java import explained
from ..journal._listing import newest
from ..journal._lock import reading
from ..journal._place import Place, find
from ..journal._selection import OnDamage, Selection, select
from ._book import Book
from ._compute import Engine, compute
from ._limits import Advice, as_toml, by_pattern, pattern
from ._page import Report, page

if TYPE_CHECKING:
    import threading
    from collections.abc import Generator

    from pyspark.sql import SparkSession

    from ..journal import Damage
    from ..journal._listing import Entries

PAGE: Final = "report.html"
LIMITS: Final = "limits.toml"
TABLES: Final = "tables"

_APP: Final = "clearfunds report"

EngineName: TypeAlias = Literal["auto", "spark", "local"]
"""What computes a report. `local`: DuckDB, in this process. `auto`: that one for journals of at
most `DEFAULT_LOCAL_UP_TO` bytes on this machine, and else Spark."""

DEFAULT_LOCAL_UP_TO: Final = 2 << 30
"""Bytes of Parquet up to which `auto` takes the local engine: some 150 million settlements, for
which it needs minutes. Above that it sorts on disk, and Spark's other machines are worth a start
of ten seconds."""


@attrs.frozen(kw_only=True)
class Engines:
    """The choice of an engine, and limits on it."""

    engine: EngineName = "auto"
    local_up_to: int = DEFAULT_LOCAL_UP_TO
    """Bytes of Parquet up to which `auto` takes the local engine."""
    threads: int | None = None
    """Threads; None: one for each core."""
    memory: int = 1 << 30
    """Bytes for data."""
    conf: Mapping[str, str] = attrs.field(factory=dict[str, str])
    """Other settings for Spark."""

    def spark(self) -> dict[str, str]:
        """Return the settings for Spark."""
        conf = {"spark.driver.memory": f"{max(self.memory >> 20, 1)}m"}
        if self.threads is not None:
            conf["spark.master"] = f"local[{self.threads}]"
        return {**conf, **self.conf}


@attrs.frozen
class Written:
    """A report that has been written."""

    page: Path
    settlements: int
    """The number of rows it was made from."""
    changes: int
    """The number of limits that should change."""
    engine: str
    """The engine that computed it: `DuckDB` or `Spark`."""
    damaged: Sequence[Damage] = ()
    """Files of the journal that were left out."""
    again: bool = False
    """Whether it replaces a report of the same call."""


@attrs.frozen
class _Wanted:
    """The arguments of a report."""

    target_ms: float
    margin: float
    last: float | None
    every: float | None
    on_damage: OnDamage


def write_report(
    folder: Path | str,
    out: Path,
    *,
    target_ms: float = 250.0,
    margin: float = 0.8,
    last: float | None = None,
    on_damage: OnDamage = "skip",
    engines: Engines | None = None,
    progress: Callable[[str, int, int], None] = lambda _, __, ___: None,
) -> Written:
    """Write a report of a journal as it is now.

    Args:
        folder: The journal: the relay's `--journal` folder, or a URL of it.
        out: The folder for `report.html`, `limits.toml` and `tables/NAME.parquet`; made if it is
            missing. Files of an earlier report are replaced, each atomically.
        target_ms: The target for the 99th percentile of hold times.
        margin: The share of the computed limit to recommend.
        last: Use only this many seconds up to the last settlement; None: all.
        on_damage: `skip`: leave damaged files out; the page and the result name them. `fail`:
            raise an error.
        engines: The choice of an engine.
        progress: Called with the step, the number of steps done, and that of all.

    Raises:
        PipelineError: There is no journal, it is empty or damaged, an engine is missing, or `out`
            cannot be written.
    """
    place = find(folder)
    maker = _Maker(place, out, _Wanted(target_ms, margin, last, None, on_damage), engines)
    with maker:
        return maker.make(progress)


def follow_report(
    folder: Path | str,
    out: Path,
    *,
    target_ms: float = 250.0,
    margin: float = 0.8,
    last: float | None = None,
    every: float = 10.0,
    on_damage: OnDamage = "skip",
    engines: Engines | None = None,
    progress: Callable[[str], None] = lambda _: None,
    written: Callable[[Written], None] = lambda _: None,
    stopped: threading.Event,
) -> None:
    """Write a report, and write it again as files are added to the journal, until `stopped` is set.

    A report in progress when `stopped` is set is finished.

    Args:
        folder: The journal; it may still be empty.
        out: See `write_report`.
        target_ms: See `write_report`.
        margin: See `write_report`.
        last: See `write_report`.
        every: Least seconds from the beginning of one report to that of the next.
        on_damage: See `write_report`.
        engines: See `write_report`. The first report decides for `auto`.
        progress: Called with the step being done.
        written: Called with each report.
        stopped: Set by another thread, or by a signal handler, to end.

    Raises:
        PipelineError: As for `write_report`, except for an empty journal.
    """
    place = find(folder)
    maker = _Maker(place, out, _Wanted(target_ms, margin, last, every, on_damage), engines)
    seen: object = None
    made = 0
    with maker:
        while not stopped.is_set():
            began = time.monotonic()
            latest = maker.latest()
            if latest and latest != seen:
                done = maker.make(lambda what, _, __: progress(what))
                written(attrs.evolve(done, again=made > 0))
                made += 1
                seen = latest
                now = moment(time.time_ns())
                progress(f"{PAGE} is of {now} UTC; waiting for more (Ctrl-C ends)")
            elif not latest:
                progress("waiting for the journal's first file (Ctrl-C ends)")
            stopped.wait(max(began + every - time.monotonic(), 0.0))


class _Maker:
    """Makes reports of one journal, with one engine; a context that ends Spark if it ran."""

    def __init__(self, place: Place, out: Path, wanted: _Wanted, engines: Engines | None) -> None:
        self._place = place
        self._out = out
        self._wanted = wanted
        self._engines = Engines() if engines is None else engines
        self._chosen: Literal["spark", "local"] | None = None
        self._spark: SparkSession | None = None
        if self._engines.engine == "spark" or place.folder is None:
            if self._engines.engine == "local":
                msg = (
                    f"the local engine reads journals on this machine, not {place.name}: leave "
                    "--engine out, and Spark reads it"
                )
                raise PipelineError(msg)
            # Checked before a second is spent on starting Java.
            check_spark()
            self._chosen = "spark"
        elif self._engines.engine == "local":
            from ..local import check_local

            check_local()
            self._chosen = "local"

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        if self._spark is not None:
            self._spark.stop()

    def latest(self) -> object:
        """Return what changes when files are added; something false while there are none."""
        with explained(self._place.name):
            return next(newest(self._place, "settlements", *self._entries()))

    def make(self, progress: Callable[[str, int, int], None]) -> Written:
        """Write a report."""
        # A journal's files stay in their places while it is read.
        with explained(self._place.name), reading(self._place.folder):
            progress("checking the journal's files", 0, 1)
            selection = self._select()
            self._choose(selection)
            _make(self._out)
            with self._opened(selection, progress) as engine:
                return self._write(engine, selection, progress)

    def _select(self) -> Selection:
        from_spark: dict[str, Any] = {}
        if self._place.folder is None:
            from ..ledger._read import damaged, last_settled, remote

            spark = self._session()
            from_spark["entries"] = remote(spark)
            from_spark["end"] = partial(last_settled, spark)
            from_spark["check"] = partial(damaged, spark)
        wanted = self._wanted
        selection = select(self._place, wanted.last, wanted.on_damage, **from_spark)
        if any(selection.folders.values()):
            return selection
        if selection.damaged:
            msg = f"there is nothing to read in the journal {self._place.name}: "
            raise PipelineError(msg + str(selection.damaged[0]))
        msg = (
            f"there is nothing in the journal {self._place.name} yet: a relay writes it with "
            f"--journal {self._place.name}, and closes its first files after some seconds"
        )
        raise PipelineError(msg)

    def _choose(self, selection: Selection) -> None:
        if self._chosen is not None:
            return
        here = find_spec("duckdb") is not None
        nbytes, most = selection.size(), self._engines.local_up_to
        self._chosen = "local" if here and nbytes <= most else "spark"
        if self._chosen == "local":
            return
        try:
            check_spark()
        except MissingError as error:
            other = (
                f"; or --engine local, for its {size(nbytes)} (by itself up to {size(most)})"
                if here
                else '; or the local engine: pip install "clearfunds[report]"'
            )
            raise MissingError(f"{error}{other}") from error

    def _session(self) -> SparkSession:
        if self._spark is None:
            self._spark = session(_APP, **self._engines.spark())
        return self._spark

    def _entries(self) -> tuple[Entries, ...]:
        if self._place.folder is not None:
            return ()
        from ..ledger._read import remote

        entries = remote(self._session())
        return () if entries is None else (entries,)

    @contextlib.contextmanager
    def _opened(
        self, selection: Selection, progress: Callable[[str, int, int], None]
    ) -> Generator[Engine]:
        """Open the journal with the engine."""
        if self._chosen == "local":
            from ..local import open_local

            files = {name: selection.files(name) for name in selection.folders}
            memory, threads = self._engines.memory, self._engines.threads
            with open_local(files, selection.since_ns, threads=threads, memory=memory) as opened:
                yield opened
            return
        if self._spark is None:
            progress("starting Spark", 0, 1)
        spark = self._session()
        # Imported here, and not above, since they need PySpark.
        from ..ledger._read import read_folders
        from ._spark import spark_journal

        tables = read_folders(spark, self._place, selection.folders, selection.since_ns)
        yield spark_journal(tables, selection.since_ns)

    def _write(
        self, engine: Engine, selection: Selection, progress: Callable[[str, int, int], None]
    ) -> Written:
        wanted, out = self._wanted, self._out
        book = compute(engine, target_ms=wanted.target_ms, margin=wanted.margin, note=progress)
        made = time.time_ns()
        advices = advise(book)
        toml = as_toml(
            advices,
            target_ms=wanted.target_ms,
            heading=_heading(made, wanted.target_ms, wanted.margin),
            kept=own_limits(book),
        )
        name = "DuckDB" if self._chosen == "local" else "Spark"
        report = Report(
            source=self._place.name,
            made_ns=made,
            target_ms=wanted.target_ms,
            book=book,
            advices=advices,
            toml=toml,
            refresh=wanted.every,
            engine=name,
            damaged=[str(each) for each in selection.damaged],
        )
        try:
            _save_tables(book, out / TABLES)
            _replace(out / LIMITS, toml)
            _replace(out / PAGE, page(report))
        except OSError as error:
            raise _unwritable(out, error) from error
        (overview,) = book.rows("overview")
        rows, changes = int(overview["rows"]), len(by_pattern(advices))
        return Written(out / PAGE, rows, changes, name, selection.damaged)


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
