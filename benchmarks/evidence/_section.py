"""A section of docs/evidence.md: its interface."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from benchmarks.fanout import Cores
from benchmarks.many import before_others
from benchmarks.servers import AnyServer

NO_CELLS: Final[Mapping[str, Mapping[str, str]]] = {}


@attrs.frozen
class Setting:
    """The servers, cores and scale that a section measures with."""

    servers: tuple[AnyServer, ...]
    """Those found on this machine, the relay first."""

    cores: Cores
    """Where servers and generators run."""

    report: Callable[[str], None]
    """Takes a sentence about each finished step."""

    scale: float = 1.0
    """Below 1 runs are shorter and sizes are smaller, but never below what makes sense."""

    today: tuple[AnyServer, ...] = ()
    """Those compared under many publishers, the relay first."""

    def server(self, name: str) -> AnyServer | None:
        """Return the server of that name; None if it is not here."""
        return next((server for server in self.servers if server.name == name), None)


def undisturbed(
    measure: Callable[[Setting], dict[str, Any]],
) -> Callable[[Setting], dict[str, Any]]:
    """Have a section measured before other processes of the machine, if that is allowed.

    Only root may. The data say whether it was: see `about_nice`.
    """

    @functools.wraps(measure)
    def before(setting: Setting) -> dict[str, Any]:
        with contextlib.ExitStack() as stack:
            first = True
            try:
                stack.enter_context(before_others())
            except PermissionError:
                first = False
            return measure(setting) | {"before_others": first}

    return before


def about_nice(data: Mapping[str, Any]) -> str:
    """Return what a page adds to a sentence about a section that was measured `undisturbed`."""
    if not data.get("before_others"):
        return ""
    return " Servers and generator ran before the machine's other processes (nice -20)."


@attrs.frozen
class Claim:
    """A figure that must not be above a limit, and the measured value."""

    text: str
    """In words, limit included: "pipelined, nine subscribers: CPU per delivery, at most 0.8 x
    NATS's"."""

    found: float | None
    """None: not measured."""

    most: float
    form: str = ".2f"
    """How `found` is written."""

    @property
    def word(self) -> str:
        """The result: "held", "MISSED" or "not measured"."""
        if self.found is None:
            return "not measured"
        return "held" if self.found <= self.most else "MISSED"


@attrs.frozen
class Rendered:
    """A section as the page shows it."""

    text: str
    """Markdown, without the heading; it refers to figures as ``![...](evidence-NAME.svg)``."""

    figures: Mapping[str, Callable[[], Any]] = attrs.field(factory=dict[str, Callable[[], Any]])
    """The name of each figure, and the function that makes it (with matplotlib); it is saved as
    evidence-NAME.svg."""

    claims: tuple[Claim, ...] = ()

    beside: Mapping[str, Mapping[str, str]] = NO_CELLS
    """The cells of this section in the table "side by side": a column's heading -> a server's name
    -> a cell. Few words: the table has a row for each server and a column for each heading."""


@attrs.frozen
class Section:
    """How to measure something, and how to show it."""

    key: str
    """A letter, or a word for a section without a letter."""

    name: str
    """The name of its module, its data and its anchor; ``--only`` takes it."""

    title: str
    seconds: float
    """About how long it takes to measure at scale 1, on a quiet machine."""

    command: str
    """The command that measures this section alone."""

    measure: Callable[[Setting], dict[str, Any]]
    """Returns JSON: the measurements of each pass, so that they can be shown otherwise later.
    "skipped" is a list of sentences: what was left out, and why."""

    render: Callable[[dict[str, Any]], Rendered]
    """Shows the return value of `measure`, on this machine or another, now or in a year."""

    @property
    def heading(self) -> str:
        """The title, with the letter if it has one."""
        return f"{self.key}. {self.title}" if len(self.key) == 1 else self.title
