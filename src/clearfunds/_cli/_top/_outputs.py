"""Outputs for updates: a live screen, blocks of plain text, or lines of JSON."""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Protocol

import attrs
from rich.console import Console, Group, RenderableType
from rich.text import Text

from .._printable import printable
from ._choice import ORDERS
from ._screen import Room, help_screen, screen
from ._source import stretched

if TYPE_CHECKING:
    from rich.live import Live

    from clearfunds.pages._top_json import TopPage

    from ._choice import Choice

_PLAIN_WIDTH: Final = 100_000
# Without a terminal nothing is cut or folded: a reader may search for a name.


class Output(Protocol):
    """Receives each update."""

    def show(self, page: TopPage) -> None:
        """Show an update."""

    def trouble(self, why: str) -> None:
        """Report why there is no update."""


def plain_console() -> Console:
    """Return a console for pipes: without colours, whatever the environment says, or a width."""
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


@attrs.frozen
class View:
    """The content and the form of an update."""

    url: str
    rows: int
    """Maximum of each table."""
    choice: Choice
    """The order of rows, and which of them."""
    interval: float | None
    """Seconds between updates, as asked for; None with a single one."""

    def screen(
        self, page: TopPage, width: int | None, height: int | None = None, *, keys: bool = False
    ) -> RenderableType:
        """Return the whole screen; None: no limit of width or height."""
        choice = self.choice
        notes = [
            "? help, q quit" if keys else "",
            ORDERS[choice.sort] if keys else "",
            f'names with "{printable(choice.name)}"' if choice.name else "",
            "" if self.interval is None else stretched(page, self.interval) or "",
        ]
        note = "; ".join(filter(None, notes)) or None
        source, room = source_line(self.url, page), Room(self.rows, width, height)
        return screen(page, source, room, holders_first=choice.sort == "held", note=note)


def source_line(url: str, page: TopPage) -> str:
    """Return the source and the time of an update."""
    when = datetime.fromtimestamp(page["time"], UTC)
    return f"{url} at {when:%H:%M:%S} UTC"


class _Complaints:
    """Reports on stderr, once each time, that the relay is gone, and that it is back."""

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
    """A JSON document a line, as received from the relay."""

    def __init__(self, url: str) -> None:
        self._complaints = _Complaints(url)

    def show(self, page: TopPage) -> None:
        self._complaints.back()
        print(json.dumps(page, separators=(",", ":")), flush=True)

    def trouble(self, why: str) -> None:
        self._complaints.gone(why)


class Blocks:
    """Text, one block after the other, with an empty line between them."""

    def __init__(self, view: View, console: Console) -> None:
        self._view = view
        self._console = console
        self._complaints = _Complaints(view.url)
        self._shown = False

    def show(self, page: TopPage) -> None:
        self._complaints.back()
        width = self._console.width if self._console.is_terminal else None
        if self._shown:
            self._console.print()
        self._console.print(self._view.screen(page, width))
        self._console.file.flush()
        self._shown = True

    def trouble(self, why: str) -> None:
        self._complaints.gone(why)


class LiveScreen:
    """A screen that is redrawn; the last update stays on it while the relay is gone."""

    def __init__(self, view: View, console: Console, live: Live, *, keys: bool = False) -> None:
        self._view = view
        self._keys = keys
        self._console = console
        self._live = live
        self._page: TopPage | None = None
        self._seen = 0.0
        self._why: str | None = None

    def show(self, page: TopPage) -> None:
        self._page, self._why, self._seen = page, None, time.monotonic()
        self.draw()

    def trouble(self, why: str) -> None:
        self._why = why
        self.draw()

    def draw(self) -> None:
        """Draw it for the terminal's present size."""
        size = self._console.size
        height = size.height
        choice = self._view.choice
        if choice.helping:
            self._live.update(help_screen(size.width), refresh=True)
            return
        head: list[RenderableType] = []
        if choice.typing is not None:
            line = Text(
                f"Find: {printable(choice.typing)}\u2588  Enter finds, Esc goes back", "bold"
            )
            head.append(line)
            height -= 1 + len(line) // size.width
        if self._why is not None:
            old = f"; what is below is {time.monotonic() - self._seen:.0f} s old"
            line = Text(f"{self._why}; trying again{old if self._page else ''}", "bold reverse")
            head.append(line)
            height -= 1 + len(line) // size.width
        if self._page is not None:
            head.append(self._view.screen(self._page, size.width, height, keys=self._keys))
        self._live.update(Group(*head), refresh=True)
