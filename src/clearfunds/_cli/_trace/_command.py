"""The options of `clearfunds trace`, and its output."""

from __future__ import annotations

import io
import json as json_module
import sys
from functools import partial
from typing import Annotated, Final, cast

from cyclopts import Group, Parameter
from cyclopts.validators import Number
from rich.text import Text

from .._errors import CommandFailedError
from .._page import DEFAULT_URL, URL_VARIABLE
from .._running import run_async
from .._top._outputs import plain_console, terminal_console
from .._top._source import Source
from .._types import Count, Seconds
from .._visitor_options import VisitorOptions
from ._source import TracePage, fetch_traces
from ._tree import trace_tree, waiting_lines

_TRACE: Final = Group("Trace", sort_key=1)

_WAIT_MAX: Final = 60.0
_EVENTS_MAX: Final = 20
_LOANS_MAX: Final = 1000
# The relay's maximum.


def trace(
    account: Annotated[
        str,
        Parameter(
            group=_TRACE,
            help="Account to trace: its name, as in `clearfunds top`, or a pattern (`*`: any "
            "text, `?`: any character).",
        ),
    ],
    *,
    url: Annotated[
        str,
        Parameter(
            group=_TRACE, env_var=URL_VARIABLE, help="URL of the relay's pages, as in its --http."
        ),
    ] = DEFAULT_URL,
    events: Annotated[
        Count,
        Parameter(
            group=_TRACE,
            help="Number of packets, or bursts of packets, to trace.",
            validator=Number(gte=1, lte=_EVENTS_MAX),
        ),
    ] = 1,
    wait: Annotated[
        Seconds,
        Parameter(
            group=_TRACE,
            help="Timeout, in seconds, for the packets to come and for everything they cause to "
            "end.",
            validator=Number(gt=0, lte=_WAIT_MAX),
        ),
    ] = 10.0,
    holder: Annotated[
        str | None,
        Parameter(
            group=_TRACE,
            help="Trace only loans to this holder: a name or a pattern.",
        ),
    ] = None,
    loans: Annotated[
        Count,
        Parameter(
            group=_TRACE,
            help="Number of loans to show of each event: those outstanding, then the slowest.",
            validator=Number(gte=1, lte=_LOANS_MAX),
        ),
    ] = 20,
    json: Annotated[
        bool,
        Parameter(group=_TRACE, negative=(), help="Print the relay's answer as JSON in one line."),
    ] = False,
    login: VisitorOptions = VisitorOptions(),  # noqa: B008  (frozen)
) -> int:
    """Trace an account's next event, from its packet through its loans to their outcomes.

    Prints a tree: the packet's turn (transaction), its loans (in-flight messages) and their
    holders, how and when each loan ended, and the turns that handling it caused. Times count from
    when the packet was charged. The slowest loan is marked; loans that do not end within --wait
    are shown with their holders. A throttled account sends no events; then the output names the
    holders that block it.
    """
    source = Source.of(url, login)
    stdout: object = sys.stdout
    if isinstance(stdout, io.TextIOWrapper):
        # As for `clearfunds top`: peers choose the names.
        cast("io.TextIOWrapper", stdout).reconfigure(errors="backslashreplace")
    if sys.stderr.isatty():
        print(f"waiting for {account}, for {wait:g} s at most", file=sys.stderr)
    page = run_async(
        partial(
            fetch_traces,
            source,
            account,
            wait=wait,
            events=events,
            loans=loans,
            holder=holder,
        )
    )
    if json:
        print(json_module.dumps(page))
    else:
        _show(page)
    if not page["traces"]:
        msg = f"nothing came from {account} within {wait:g} s"
        if page["waits"]:
            msg += ": it waits itself, see above" if not json else ": it waits itself"
        raise CommandFailedError(msg)
    return 0


def _show(page: TracePage) -> None:
    # FORCE_COLOR and similar variables must not turn a pipe into a terminal.
    console = terminal_console() if sys.stdout.isatty() else plain_console()
    for number, each in enumerate(page["traces"]):
        if number:
            console.print(Text(""))
        console.print(trace_tree(each))
    for line in waiting_lines(page["waits"], page["waits_more"]):
        console.print(line)
