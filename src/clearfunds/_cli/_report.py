"""`clearfunds report`: a journal as a page, tables and recommended limits."""

import re
import signal
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Final

from cyclopts import Group, Parameter, Token
from cyclopts.validators import Number
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from clearfunds.pipeline.journal import OnDamage
from clearfunds.pipeline.report import (
    DEFAULT_LOCAL_UP_TO,
    EngineName,
    Engines,
    PipelineError,
    Written,
    follow_report,
    write_report,
)

from ._errors import CommandFailedError
from ._printable import printable
from ._types import Count, Seconds, Size

_ENGINE: Final = Group("Engine", sort_key=5)

_FOLLOWED: Final = 900.0
"""Seconds of the journal in a report with --follow: its cost does not grow with the journal."""

_UNITS: Final = {
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86_400.0,
}


def _duration(_: object, tokens: Sequence[Token]) -> float:
    text = tokens[0].value
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([a-zµ]*)", text)
    if match is None or match[2] not in _UNITS:
        msg = f'"{text}" is not a length of time: a number of seconds, or of ms ("100ms").'
        raise ValueError(msg)
    return float(match[1]) * _UNITS[match[2]]


def _setting(_: object, tokens: Sequence[Token]) -> tuple[str, ...]:
    for token in tokens:
        name, equals, _value = token.value.partition("=")
        if not equals or not name.startswith("spark."):
            msg = f'"{token.value}" is not a setting of Spark: "spark.NAME=VALUE".'
            raise ValueError(msg)
    return tuple([token.value for token in tokens])


Duration = Annotated[float, Parameter(converter=_duration, validator=Number(gt=0))]


def report(
    directory: Annotated[
        str,
        Parameter(
            help="Journal: the directory of the relay's --journal, or a URL of it in a file "
            "system that Spark knows, such as s3a://BUCKET/journal or hdfs://HOST/journal."
        ),
    ],
    /,
    *,
    out: Annotated[
        Path,
        Parameter(help="Output directory, for report.html, limits.toml and tables/."),
    ] = Path("report"),
    target: Annotated[
        Duration,
        Parameter(
            help="Hold-time target for 99 of 100 deliveries, in seconds or with a unit: 100ms, "
            "0.5s."
        ),
    ] = 0.25,
    margin: Annotated[
        float,
        Parameter(
            validator=Number(gt=0, lte=1),
            help="Share of the target that a recommended limit uses.",
        ),
    ] = 0.8,
    last: Annotated[
        Duration | None,
        Parameter(
            help="Time range, in seconds or with a unit (15min), up to the last settlement. "
            "Without it: the whole journal, or with --follow 15 minutes."
        ),
    ] = None,
    follow: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Keep reading while the relay writes, and rewrite the report, until Ctrl-C.",
        ),
    ] = False,
    every: Annotated[
        Seconds,
        Parameter(validator=Number(gte=1), help="Report interval with --follow, in seconds."),
    ] = 10.0,
    damaged: Annotated[
        OnDamage,
        Parameter(
            help="What to do about damaged files of the journal. skip: leave them out; stderr and "
            "the page name them. fail: no report."
        ),
    ] = "skip",
    engine: Annotated[
        EngineName,
        Parameter(
            group=_ENGINE,
            help="What computes the report. local: DuckDB, in this process; spark: Spark, which "
            "needs Java; auto: local up to --local-up-to, if DuckDB is installed and the journal "
            "is on this machine.",
        ),
    ] = "auto",
    local_up_to: Annotated[
        Size,
        Parameter(
            group=_ENGINE,
            help="Size of the journal, or of the part that --last leaves, up to which auto takes "
            "the local engine, in bytes.",
        ),
    ] = DEFAULT_LOCAL_UP_TO,
    threads: Annotated[
        Count | None,
        Parameter(group=_ENGINE, help="Threads of the engine; by default, one per core."),
    ] = None,
    memory: Annotated[
        Size, Parameter(group=_ENGINE, help="Memory of the engine for data, in bytes.")
    ] = 1 << 30,
    spark_conf: Annotated[
        tuple[str, ...],
        Parameter(
            group=_ENGINE,
            negative=(),
            converter=_setting,
            help="A setting for Spark, as NAME=VALUE, such as spark.master=spark://HOST:7077; may "
            "be given more than once. Settings in SPARK_CONF_DIR hold, too.",
        ),
    ] = (),
) -> int:
    """Analyse a journal: debts, slow consumers, blocking, and limits that would have helped.

    Reads the journal of `clearfunds relay --journal`; the relay may be running. Writes
    report.html, a self-contained page; the same figures as Parquet, in tables/; and limits.toml,
    for `clearfunds relay --config`.

    Needs DuckDB: pip install "clearfunds[report]"; or PySpark and Java: "clearfunds[pipeline]".
    """
    engines = Engines(
        engine=engine,
        local_up_to=local_up_to,
        threads=threads,
        memory=memory,
        conf=dict(each.split("=", 1) for each in spark_conf),
    )
    try:
        if follow:
            with _until_interrupted() as stopped, _waiting() as note:

                def tell(written: Written) -> None:
                    if not written.again:
                        _tell(written)

                follow_report(
                    directory,
                    out,
                    target_ms=target * 1e3,
                    margin=margin,
                    last=_FOLLOWED if last is None else last,
                    every=every,
                    on_damage=damaged,
                    engines=engines,
                    progress=note,
                    written=tell,
                    stopped=stopped,
                )
            return 0
        with _progress() as step:
            written = write_report(
                directory,
                out,
                target_ms=target * 1e3,
                margin=margin,
                last=last,
                on_damage=damaged,
                engines=engines,
                progress=step,
            )
    except PipelineError as error:
        raise CommandFailedError(printable(str(error))) from error
    _tell(written)
    return 0


def _tell(written: Written) -> None:
    for each in written.damaged:
        print(f"clearfunds report: left out: {printable(str(each))}", file=sys.stderr)
    number = written.changes
    change = f"{number or 'no'} limit{'' if number == 1 else 's'} to change"
    rows = f"{written.settlements:,} settlements"
    print(f"{printable(str(written.page))}: {rows}, {change} ({written.engine})", flush=True)


@contextmanager
def _until_interrupted() -> Generator[threading.Event]:
    """Make Ctrl-C, and SIGTERM, set an event: the report ends in good order after this round."""
    stopped = threading.Event()

    def stop(_: int, __: FrameType | None) -> None:
        if stopped.is_set():  # The second signal ends it at once.
            raise KeyboardInterrupt
        stopped.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _progress() -> Generator[Callable[[str, int, int], None]]:
    """Show progress on stderr, if it is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f} of"))
    with Progress(
        *columns,
        TextColumn("{task.total:.0f}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as shown:
        task = shown.add_task("reading the journal", total=1)

        def note(what: str, done: int, total: int) -> None:
            shown.update(task, description=what, completed=done, total=total)

        yield note


@contextmanager
def _waiting() -> Generator[Callable[[str], None]]:
    """Show the present activity, or wait, in one line on stderr."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("reading the journal") as status:
        yield lambda what: status.update(what)
