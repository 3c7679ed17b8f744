"""The options of `clearfunds top`, and its loop."""

from __future__ import annotations

import io
import signal
import sys
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, cast

import trio
from cyclopts import Group, Parameter
from cyclopts.validators import Number
from rich.live import Live

from .._errors import CommandFailedError
from .._page import DEFAULT_URL, URL_VARIABLE
from .._running import run_async
from .._types import Count, Seconds
from .._visitor_options import VisitorOptions
from ._choice import Choice, Sort
from ._keys import each_key_at_once, read_keys
from ._outputs import (
    Blocks,
    JsonLines,
    LiveScreen,
    Output,
    View,
    plain_console,
    terminal_console,
)
from ._source import Source, pause_after

if TYPE_CHECKING:
    from collections.abc import Callable

    from clearfunds.pages._top_json import TopPage

_TOP: Final = Group("Top", sort_key=1)

_ROWS_MAX: Final = 100
# The relay's maximum.

_SOON_SECONDS: Final = 0.2
# After a key that needs other rows; longer if updates cost the relay much.


def top(
    url: Annotated[
        str,
        Parameter(
            group=_TOP, env_var=URL_VARIABLE, help="URL of the relay's pages, as in its --http."
        ),
    ] = DEFAULT_URL,
    *,
    interval: Annotated[
        Seconds,
        Parameter(
            group=_TOP,
            help="Update interval, in seconds; longer if updates take more than 2 % of a core of "
            "the relay.",
        ),
    ] = 1.0,
    limit: Annotated[
        Count,
        Parameter(
            group=_TOP,
            help="Maximum rows of each table; a low terminal shows fewer.",
            validator=Number(gte=1, lte=_ROWS_MAX),
        ),
    ] = 20,
    sort: Annotated[
        Sort,
        Parameter(
            group=_TOP,
            help="Sort order, highest first. waiting: accounts by time blocked now, then by "
            "outstanding work; debt: accounts by outstanding work; waited: accounts by time "
            "blocked, now or before; held: holders by what they hold.",
        ),
    ] = "waiting",
    find: Annotated[
        str,
        Parameter(
            group=_TOP,
            help="Show only accounts and holders with this in their names: a part, or a pattern "
            "(* ? [ab]).",
        ),
    ] = "",
    once: Annotated[
        bool, Parameter(group=_TOP, negative=(), help="Print once and exit, for scripts.")
    ] = False,
    json: Annotated[
        bool,
        Parameter(
            group=_TOP, negative=(), help="Print each update as a JSON document in one line."
        ),
    ] = False,
    login: VisitorOptions = VisitorOptions(),  # noqa: B008  (frozen)
) -> int:
    """Monitor a relay: outstanding work, slow consumers, blocked publishers.

    In a terminal each update redraws the screen, until q, SIGINT (Ctrl-C) or SIGTERM; elsewhere
    each update is a block of text. The first line sums it up: the blocked account and the holder
    that blocks it, its debt and limit, the time so far, and what the relay will do and when. Keys:
    s sorts, / finds a name, ? explains. If the relay goes away, top waits for it; if it is not
    there in the beginning, that is an error.
    """
    source = Source.of(url, login)
    stdout: object = sys.stdout
    if isinstance(stdout, io.TextIOWrapper):
        # Peers choose the names: a letter that the encoding lacks must not end this.
        cast("io.TextIOWrapper", stdout).reconfigure(errors="backslashreplace")
    looks = Looks(source, limit, Choice(sort, find.strip()), None if once else interval)
    if once:
        run_async(_once, looks, json)
    else:
        run_async(_go_on, looks, interval, json)
    return 0


class Looks:
    """The source, the content and the form of updates."""

    def __init__(self, source: Source, limit: int, choice: Choice, interval: float | None) -> None:
        self.source = source
        self.limit = limit
        self.choice = choice
        self.view = View(source.url, limit, choice, interval)

    async def look(self) -> TopPage:
        """Fetch an update; see `Source.look`."""
        choice = self.choice
        choice.changed = trio.Event()
        return await self.source.look(self.limit, choice.sort, choice.name)

    def without_screen(self, *, json: bool) -> Output:
        """Return an output that does not redraw."""
        if json:
            return JsonLines(self.source.url)
        # FORCE_COLOR and similar variables must not turn a pipe into a terminal.
        console = terminal_console() if sys.stdout.isatty() else plain_console()
        return Blocks(self.view, console)


async def _once(looks: Looks, json: bool) -> None:
    looks.without_screen(json=json).show(await looks.look())


async def _go_on(looks: Looks, interval: float, json: bool) -> None:
    first = await looks.look()
    console = terminal_console()
    if json or not sys.stdout.isatty() or console.is_dumb_terminal:
        await _until_signal(looks, interval, looks.without_screen(json=json), first, None)
        return
    with (
        each_key_at_once() as keyboard,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        output = LiveScreen(looks.view, console, live, keys=keyboard is not None)
        await _until_signal(looks, interval, output, first, output.draw, keyboard)


async def _until_signal(
    looks: Looks,
    interval: float,
    output: Output,
    first: TopPage,
    draw: Callable[[], None] | None,
    keyboard: int | None = None,
) -> None:
    """Update and show, until a signal or a key ends it.

    A change of the terminal's size calls `draw`, and so does each key.
    """
    numbers = [signal.SIGINT, signal.SIGTERM, *([] if draw is None else [signal.SIGWINCH])]
    with trio.open_signal_receiver(*numbers) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_look_on, looks, interval, output, first)
            if keyboard is not None and draw is not None:
                end = nursery.cancel_scope.cancel
                nursery.start_soon(partial(_take_keys, keyboard, looks.choice, draw, end))
            async for number in signals:
                if number != signal.SIGWINCH:
                    nursery.cancel_scope.cancel()
                    return
                if draw is not None:
                    draw()


async def _take_keys(
    keyboard: int, choice: Choice, draw: Callable[[], None], end: Callable[[], object]
) -> None:
    async with aclosing(read_keys(keyboard)) as keys:
        async for key in keys:
            if choice.press(key):
                end()
                return
            draw()


async def _look_on(looks: Looks, interval: float, output: Output, page: TopPage) -> None:
    output.show(page)
    while True:
        seen = trio.current_time()
        due = seen + pause_after(page, interval)
        with trio.move_on_at(due):
            await looks.choice.changed.wait()
            await trio.sleep_until(seen + pause_after(page, _SOON_SECONDS))
        try:
            page = await looks.look()
        except CommandFailedError as error:
            output.trouble(str(error))
        else:
            output.show(page)
