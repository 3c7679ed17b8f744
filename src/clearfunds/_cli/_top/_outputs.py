"""Where looks go to: a live screen, blocks of plain text, or lines of JSON."""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Protocol

from rich.console import Console, Group, RenderableType
from rich.text import Text

from ._screen import Room, screen

if TYPE_CHECKING:
    from rich.live import Live

    from clearfunds.transports.http._top_json import TopPage

_PLAIN_WIDTH: Final = 100_000
# Where no terminal is, nothing is cut or folded: who reads it may search for a name.


class Output(Protocol):
    """What is told of each look."""

    def show(self, page: TopPage) -> None:
        """Show what has been seen."""

    def trouble(self, why: str) -> None:
        """Say why nothing has been seen."""


def plain_console() -> Console:
    """Return a console for pipes: no colours, whatever the environment says, and no width."""
    return Console(
        width=_PLAIN_WIDTH,
        color_system=None,
        force_terminal=False,
        markup=False,
        emoji=False,
        highlight=False,
    )


def terminal_console() -> Console:
    """Return a console for a terminal, if it is one."""
    return Console(markup=False, emoji=False, highlight=False)


def source_line(url: str, page: TopPage) -> str:
    """Say where a look is from, and of when."""
    when = datetime.fromtimestamp(page["time"], UTC)
    return f"{url} at {when:%H:%M:%S} UTC"


class _Complaints:
    """Says on stderr, once each time, that the relay is gone, and that it is back."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._gone = False

    def gone(self, why: str) -> None:
        if not self._gone:
            _complain(f"clearfunds top: {why}; trying again")
        self._gone = True

    def back(self) -> None:
        if self._gone:
            _complain(f"clearfunds top: {self._url} answers again")
        self._gone = False


def _complain(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class JsonLines:
    """A JSON document a line, as the relay has sent it."""

    def __init__(self, url: str) -> None:
        self._complaints = _Complaints(url)

    def show(self, page: TopPage) -> None:
        """See `Output.show`."""
        self._complaints.back()
        print(json.dumps(page, separators=(",", ":")), flush=True)

    def trouble(self, why: str) -> None:
        """See `Output.trouble`."""
        self._complaints.gone(why)


class Blocks:
    """Text, one block after the other; an empty line between them."""

    def __init__(self, url: str, console: Console, rows: int, *, holders_first: bool) -> None:
        self._url = url
        self._console = console
        self._complaints = _Complaints(url)
        self._rows = rows
        self._holders_first = holders_first
        self._shown = False

    def show(self, page: TopPage) -> None:
        """See `Output.show`."""
        self._complaints.back()
        width = self._console.width if self._console.is_terminal else None
        if self._shown:
            self._console.print()
        self._console.print(
            screen(
                page,
                source_line(self._url, page),
                Room(self._rows, width),
                holders_first=self._holders_first,
            )
        )
        self._console.file.flush()
        self._shown = True

    def trouble(self, why: str) -> None:
        """See `Output.trouble`."""
        self._complaints.gone(why)


class LiveScreen:
    """A screen that is drawn anew; what was seen last stays there while the relay is gone."""

    def __init__(
        self, url: str, console: Console, live: Live, rows: int, *, holders_first: bool
    ) -> None:
        self._url = url
        self._console = console
        self._live = live
        self._rows = rows
        self._holders_first = holders_first
        self._page: TopPage | None = None
        self._seen = 0.0
        self._why: str | None = None

    def show(self, page: TopPage) -> None:
        """See `Output.show`."""
        self._page, self._why, self._seen = page, None, time.monotonic()
        self.draw()

    def trouble(self, why: str) -> None:
        """See `Output.trouble`."""
        self._why = why
        self.draw()

    def draw(self) -> None:
        """Draw it for the terminal as it is now, which may have another size than before."""
        size = self._console.size
        height = size.height
        head: list[RenderableType] = []
        if self._why is not None:
            old = f"; what is below is {time.monotonic() - self._seen:.0f} s old"
            line = Text(f"{self._why}; trying again{old if self._page else ''}", "bold reverse")
            head.append(line)
            height -= 1 + len(line) // size.width
        if self._page is not None:
            head.append(
                screen(
                    self._page,
                    source_line(self._url, self._page),
                    Room(self._rows, size.width, height),
                    holders_first=self._holders_first,
                )
            )
        self._live.update(Group(*head), refresh=True)
