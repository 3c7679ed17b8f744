"""What a person at the terminal has chosen to see, and how keys change it."""

from __future__ import annotations

from typing import Final, Literal, get_args

import attrs
import trio

from ._keys import BACKSPACE, CLEAR, ENTER, ESCAPE

Sort = Literal["waiting", "debt", "waited", "held"]

SORTS: Final[tuple[Sort, ...]] = get_args(Sort)

ORDERS: Final[dict[Sort, str]] = {
    "waiting": "those that wait longest first, then by debt",
    "debt": "by debt",
    "waited": "by how long they have waited, now and before",
    "held": "holders first, by what they hold",
}
"""The orders, in the words of the live page."""

NAME_MAX: Final = 200
"""Characters of a part of a name."""


@attrs.define
class Choice:
    """The order of rows and the part of a name that they have.

    Attributes:
        changed: Set when rows of the relay are needed that are not there.
    """

    sort: Sort = "waiting"
    name: str = ""
    """Empty: all."""
    typing: str | None = None
    """A part of a name that is being typed."""
    helping: bool = False
    """Whether the help is shown."""
    changed: trio.Event = attrs.field(factory=trio.Event, eq=False)

    def press(self, key: str) -> bool:
        """Take a key; return whether it means the end."""
        if self.typing is not None:
            self._type(key, self.typing)
        elif key == "q":
            return True
        elif self.helping:
            self.helping = False
        else:
            self._do(key)
        return False

    def _do(self, key: str) -> None:
        if key in ("s", "S"):
            step = 1 if key == "s" else -1
            self.sort = SORTS[(SORTS.index(self.sort) + step) % len(SORTS)]
            self.changed.set()
        elif key == "/":
            self.typing = self.name
        elif key in ("?", "h"):
            self.helping = True
        elif key == ESCAPE:
            self._find("")

    def _type(self, key: str, text: str) -> None:
        if key == ENTER:
            self.typing = None
            self._find(text.strip())
        elif key == ESCAPE:
            self.typing = None
        elif key == BACKSPACE:
            self.typing = text[:-1]
        elif key == CLEAR:
            self.typing = ""
        elif len(key) == 1:
            self.typing = (text + key)[:NAME_MAX]

    def _find(self, name: str) -> None:
        if name != self.name:
            self.name = name
            self.changed.set()


HELP: Final = (
    ("q", "quit (Ctrl-C does, too)"),
    ("s, S", f"sort: {'; '.join(f'{each}: {words}' for each, words in ORDERS.items())}"),
    ("/", "find: a part of the names of accounts and holders, or a pattern (* ? [ab])"),
    ("Esc", "find no more"),
    ("?, h", "this help; any key leads back"),
)

LEGEND: Final = (
    ("account", "client; connection: whoever work is charged to"),
    ("debt", "outstanding work: what it caused that is not delivered or discarded yet"),
    ("limit", "high-water mark: with more debt an account is not read"),
    ("waits", "backpressure: it is not read until its debt is below the lower mark"),
    ("holder", "slow consumer, queue, send buffer: whatever has items charged to somebody"),
    ("waited on", "how many of its items accounts wait for"),
    ("no progress", "how long a holder has taken nothing"),
    ("next", "what happens to a holder when its patience ends, by its policy"),
)
