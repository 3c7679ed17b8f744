"""What a section of docs/evidence.md is, and what it gives and gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from benchmarks.fanout import Cores
from benchmarks.servers import AnyServer

NO_CELLS: Final[Mapping[str, Mapping[str, str]]] = {}


@attrs.frozen
class Setting:
    """What a section gets to measure with."""

    servers: tuple[AnyServer, ...]
    """Those found on this machine, the relay first."""

    cores: Cores
    """Where servers and generators run."""

    report: Callable[[str], None]
    """Takes a sentence about each finished step."""

    scale: float = 1.0
    """Below 1 runs are shorter and sizes are smaller, but never below what makes sense."""

    def server(self, name: str) -> AnyServer | None:
        """Return the server of that name; None if it is not here."""
        return next((server for server in self.servers if server.name == name), None)


@attrs.frozen
class Claim:
    """Something that has to hold, and what was found."""

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
        """What became of it: "held", "MISSED" or "not measured"."""
        if self.found is None:
            return "not measured"
        return "held" if self.found <= self.most else "MISSED"


@attrs.frozen
class Rendered:
    """A section as the page shows it."""

    text: str
    """Markdown, without the heading; it refers to figures as ``![...](evidence-NAME.svg)``."""

    figures: Mapping[str, Callable[[], Any]] = attrs.field(factory=dict[str, Callable[[], Any]])
    """From a name to what makes the figure (of matplotlib), saved as evidence-NAME.svg."""

    claims: tuple[Claim, ...] = ()

    beside: Mapping[str, Mapping[str, str]] = NO_CELLS
    """What the section has for the table "side by side": a column's heading -> a server's name -> a
    cell. Few words: the table has a row for each server and a column for each such heading."""


@attrs.frozen
class Section:
    """How to measure something, and how to show it."""

    key: str
    """A letter, or a word where there is none."""

    name: str
    """Of its module, its data, its anchor; what ``--only`` takes."""

    title: str
    seconds: float
    """About how long it takes to measure at scale 1, on a quiet machine."""

    command: str
    """How it is measured by itself."""

    measure: Callable[[Setting], dict[str, Any]]
    """Returns JSON: what was measured in each pass, so that it can be shown otherwise later. Under
    "skipped" a list of sentences about what was left out, and why."""

    render: Callable[[dict[str, Any]], Rendered]
    """Shows what `measure` returned, on this machine or another, now or in a year."""

    @property
    def heading(self) -> str:
        """The title, with the letter if there is one."""
        return f"{self.key}. {self.title}" if len(self.key) == 1 else self.title
