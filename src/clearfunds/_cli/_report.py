"""`clearfunds report`: what a journal says, as a page, tables and limits."""

import re
import signal
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

from clearfunds.pipeline.report import PipelineError, Written, follow_report, write_report

from ._errors import CommandFailedError
from ._printable import printable
from ._types import Count, Seconds, Size

_SPARK: Final = Group("Spark", sort_key=5)

_FOLLOWED: Final = 900.0
"""Of so many seconds is a report that is followed: what it costs does not grow with the journal."""

_UNITS: Final = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "min": 60.0}


def _duration(_: object, tokens: Sequence[Token]) -> float:
    text = tokens[0].value
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([a-zµ]*)", text)
    if match is None or match[2] not in _UNITS:
        msg = f'"{text}" is not a length of time: a number of seconds, or of ms ("100ms").'
        raise ValueError(msg)
    return float(match[1]) * _UNITS[match[2]]


Duration = Annotated[float, Parameter(converter=_duration, validator=Number(gt=0))]


def report(
    directory: Annotated[Path, Parameter(help="Where the relay's journal is (--journal).")],
    /,
    *,
    out: Annotated[
        Path,
        Parameter(help="Directory to write to: report.html, limits.toml, tables/."),
    ] = Path("report"),
    target: Annotated[
        Duration,
        Parameter(help="For how long 99 of 100 deliveries are to be held at most: 100ms, 0.5s."),
    ] = 0.25,
    margin: Annotated[
        float,
        Parameter(
            validator=Number(gt=0, lte=1),
            help="Which part of what the target allows a recommended limit gives.",
        ),
    ] = 0.8,
    last: Annotated[
        Duration | None,
        Parameter(
            help="Only of the last so many seconds, up to the last settlement; 15min. Without it "
            "of all that is there, and with --follow of 15 minutes."
        ),
    ] = None,
    follow: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Read on while the relay writes, and rewrite the report, until Ctrl-C.",
        ),
    ] = False,
    every: Annotated[
        Seconds,
        Parameter(validator=Number(gte=1), help="With --follow, seconds from one to the next."),
    ] = 10.0,
    threads: Annotated[
        Count | None,
        Parameter(group=_SPARK, help="Threads that Spark works with; as many as there are cores."),
    ] = None,
    memory: Annotated[
        Size, Parameter(group=_SPARK, help="Memory that Spark may have for its data.")
    ] = 1 << 30,
) -> int:
    """Say who owed, who held and who blocked whom, and which limits would have helped.

    Reads what `clearfunds relay --journal` has written; the relay may be running. It writes
    report.html, a page that needs nothing else; the same figures as Parquet, in tables/; and
    limits.toml, for `clearfunds relay --config`.

    It needs PySpark and Java: pip install "clearfunds[pipeline]".
    """
    conf = {"spark.driver.memory": f"{max(memory >> 20, 1)}m"}
    if threads is not None:
        conf["spark.master"] = f"local[{threads}]"
    try:
        if follow:
            with _until_interrupted() as stopped, _waiting() as note:

                def tell(written: Written) -> None:
                    if not written.again:
                        print(_summary(written), flush=True)

                follow_report(
                    directory,
                    out,
                    target_ms=target * 1e3,
                    margin=margin,
                    last=_FOLLOWED if last is None else last,
                    every=every,
                    conf=conf,
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
                conf=conf,
                progress=step,
            )
    except PipelineError as error:
        raise CommandFailedError(printable(str(error))) from error
    print(_summary(written))
    return 0


def _summary(written: Written) -> str:
    number = written.changes
    change = f"{number or 'no'} limit{'' if number == 1 else 's'} to change"
    return f"{printable(str(written.page))}: {written.settlements:,} settlements, {change}"


@contextmanager
def _until_interrupted() -> Generator[threading.Event]:
    """Have Ctrl-C, and SIGTERM, set an event: who reads on ends at the next turn, in good order."""
    stopped = threading.Event()

    def stop(_: int, __: FrameType | None) -> None:
        if stopped.is_set():  # a second time: at once
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
    """Show progress on stderr, if somebody looks at it."""
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
        task = shown.add_task("starting Spark", total=1)

        def note(what: str, done: int, total: int) -> None:
            shown.update(task, description=what, completed=done, total=total)

        yield note


@contextmanager
def _waiting() -> Generator[Callable[[str], None]]:
    """Show what is being done, or waited for, in one line on stderr."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("starting Spark") as status:
        yield lambda what: status.update(what)
