"""The books as tables, as wide and as high as the terminal allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
from rich.console import Group, RenderableType
from rich.text import Text

from clearfunds.accounts.watch._durations import duration

from .._printable import printable
from .._tables import bar, table
from ._choice import HELP, LEGEND
from ._top_words import (
    alarm_sentence,
    count,
    first_line,
    incident_sentence,
    one_of,
    ring_sentence,
    size,
    totals,
    what_next,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.table import Table

    from clearfunds.pages._survey import HolderRow
    from clearfunds.pages._top_json import TopPage

_BAR: Final = 8

_WIDE: Final = 110
# Columns that a terminal needs for all of ours; a narrower one shows fewer.

_NAME_MIN: Final = 12

_NEXT: Final = 22
# As long as "cut off in 59 min 59 s".

_WAITS_SHARE: Final = 4
# Share of the lines for the table of waits: a fourth.

_LEVELS: Final = 2
# Rows for accounts above others: the server's, and one more.

_INCIDENTS: Final = 3
# Lines for recent incidents; one on a terminal that is not `_HIGH`.

_HIGH: Final = 30

_FRAME_LINES: Final = 5
# An empty line, a title, the heading, its rule; and a line with the number of omitted rows.


@attrs.frozen
class Room:
    """The room for the tables."""

    rows: int
    """Maximum of each table."""
    width: int | None = None
    """Columns; None: no limit."""
    height: int | None = None
    """Lines; None: no limit."""


def screen(
    page: TopPage, source: str, room: Room, *, holders_first: bool, note: str | None = None
) -> RenderableType:
    """Return the whole screen: the sentence, the totals, the tables.

    Args:
        page: The update.
        source: Its source and time.
        room: The room for it.
        holders_first: Whether holders come before accounts.
        note: An additional remark on the updates.
    """
    waits = bool(page["waits"])
    head = [
        Text(first_line(page), "bold red" if waits else "green"),
        Text(f"{source}: {totals(page)}", "dim"),
        *([Text(note, "dim")] if note else []),
        *([Text(alarm_sentence(page["alarms"]), "bold red")] if page["alarms"] else []),
        *[Text(f"{printable(each)}.", "bold red") for each in page["troubles"]],
        *[Text(ring_sentence(ring), "red") for ring in page["rings"]],
        # A relay of an older version has none.
        *[Text(f"{printable(each['sentence'])}.", "yellow") for each in page.get("forecasts", ())],
        *_incidents(page, room),
    ]
    many, few = _rows(page, room, _lines(head, room))
    tables = [_accounts(page, room, many), _holders(page, room, many)]
    if holders_first:
        tables.reverse()
    if waits:
        tables.insert(0, _waits(page, room, few))
    return Group(*head, *[each for rows in tables for each in rows])


def help_screen(width: int) -> RenderableType:
    """Return what the keys do, and what the words mean."""
    found: list[RenderableType] = []
    for title, rows in (("Keys", HELP), ("Words, and the usual ones", LEGEND)):
        longest = max(len(key) for key, _ in rows)
        explained = table(title, ("", longest + 2), ("", max(_NAME_MIN, width - longest - 4)))
        explained.title_style = "bold"
        explained.show_header = False
        explained.columns[1].no_wrap = False
        for key, words in rows:
            explained.add_row(Text(key, "bold"), words)
        found += [explained, Text("")]
    return Group(*found)


def _incidents(page: TopPage, room: Room) -> list[Text]:
    """Return recent incidents, as far as there is room; disconnections first."""
    most = _INCIDENTS if room.height is None or room.height >= _HIGH else 1
    every = sorted(page["incidents"], key=lambda each: not each["given_up"])[:most]
    return [
        Text(incident_sentence(each), "yellow" if each["given_up"] else "dim") for each in every
    ]


def _lines(head: list[Text], room: Room) -> int:
    if room.width is None:
        return len(head)
    return sum(1 + len(each) // room.width for each in head)


def _rows(page: TopPage, room: Room, used: int) -> tuple[int, int]:
    """Return the number of rows for the tables, and for the table of waits."""
    if room.height is None:
        return room.rows, room.rows
    there = len(page["waits"])
    left = room.height - used - (3 if there else 2) * _FRAME_LINES - _LEVELS
    few = max(1, min(there, left // _WAITS_SHARE))
    if there:
        left -= few
    return max(1, min(room.rows, left // 2)), min(room.rows, few)


def _more(number: int) -> Iterable[RenderableType]:
    if number > 0:
        yield Text(f"and {number:,} more", "dim")


def _names(room: Room, columns: int, *widths: int) -> int:
    """Return the width of each of `columns` names beside columns of these widths."""
    if room.width is None:
        return 0
    between = len(widths) + columns
    return max(_NAME_MIN, (room.width - sum(map(abs, widths)) - between) // columns)


def _fit(name: str, width: int) -> str:
    """Cut a name in its middle: the ends of clients' names differ."""
    name = printable(name)
    if width <= 0 or len(name) <= width:
        return name
    head = width // 3
    return f"{name[:head]}…{name[head + 1 - width :]}"


def _waits(page: TopPage, room: Room, rows: int) -> list[RenderableType]:
    width = _names(room, 2, 9, 11, 11, _NEXT)
    found = _table(
        "Who waits on whom",
        *(("waits", width), ("on", width)),
        *(("items", -9), ("for", -11), ("no progress", -11), ("next", _NEXT)),
    )
    for wait in page["waits"][:rows]:
        who = one_of(wait["waiting"][:1], wait["count"])
        on = wait["on"][0] if wait["on"] else None
        number = len(wait["on"]) + wait["on_more"] - 1
        others = f" +{number:,}" if number > 0 else ""
        found.add_row(
            Text(_fit(who, width)),
            Text("" if on is None else _fit(on["name"], width - len(others)) + others, "bold"),
            "" if on is None else count(on["here_items"]),
            duration(wait["seconds"]),
            "" if on is None else duration(on["idle_seconds"]),
            "" if on is None else _next(on),
        )
    left_out = page["more"]["waits"] + max(0, len(page["waits"]) - rows)
    return [Text(""), found, *_more(left_out)]


def _next(holder: HolderRow) -> Text:
    text = what_next(holder)
    return Text(text, "red" if text.startswith(("cut off", "ended")) else "")


def _accounts(page: TopPage, room: Room, rows: int) -> list[RenderableType]:
    wide = room.width is None or room.width >= _WIDE
    fixed = [("debt", -9), ("limit", -9), ("", _BAR), ("bytes", -11), ("limit", -11)]
    if room.width is None:
        del fixed[2]  # A bar is for eyes.
    elif not wide:
        del fixed[2:]
    fixed += [("state", 9), ("waits", -11), ("in all", -11)]
    width = _names(room, 1, *(size for _, size in fixed))
    found = _table("Who owes", ("account", width), *fixed)
    shown = page["accounts"][:rows]
    # Accounts above others come last, beside the count: their debt is that of the others.
    for account in [*shown, *page["levels"][:_LEVELS]]:
        throttled = account["state"] == "throttled"
        cells: list[RenderableType] = [
            Text(_fit(account["name"], width)),
            count(account["debt_items"]),
            "-" if account["limit_items"] is None else count(account["limit_items"]),
        ]
        if wide and room.width is not None:
            cells.append(bar(account["debt_items"], account["limit_items"], _BAR))
        if wide:
            cells += [
                size(account["debt_bytes"]),
                "-" if account["limit_bytes"] is None else size(account["limit_bytes"]),
            ]
        cells += [
            Text(account["state"], "bold red" if throttled else "green"),
            duration(account["waiting_seconds"]) if account["waiting"] else "",
            duration(account["waited_seconds"]) if account["waited_seconds"] else "",
        ]
        found.add_row(*cells)
    left_out = page["more"]["accounts"] + len(page["accounts"]) - len(shown)
    return [Text(""), found, *_more(left_out)]


def _holders(page: TopPage, room: Room, rows: int) -> list[RenderableType]:
    wide = room.width is None or room.width >= _WIDE
    fixed = [("items", -9), ("bytes", -11), ("waited on", -9), ("oldest", -11)]
    if not wide:
        del fixed[1], fixed[2]
    fixed += [("no progress", -11), ("next", _NEXT)]
    width = _names(room, 1, *(size for _, size in fixed))
    found = _table("Who holds", ("holder", width), *fixed)
    for holder in page["holders"][:rows]:
        cells: list[RenderableType] = [
            Text(_fit(holder["name"], width)),
            count(holder["items"]),
            *([size(holder["bytes"])] if wide else []),
            count(holder["waited_items"]) if holder["waited_items"] else "",
            *([duration(holder["oldest_seconds"])] if wide else []),
            duration(holder["idle_seconds"]),
            _next(holder),
        ]
        found.add_row(*cells)
    left_out = page["more"]["holders"] + max(0, len(page["holders"]) - rows)
    return [Text(""), found, *_more(left_out)]


def _table(title: str, *columns: tuple[str, int]) -> Table:
    found = table(title, *columns)
    found.title_style = "bold"
    return found
