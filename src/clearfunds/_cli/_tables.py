"""Tables of numbers for a terminal."""

from rich import box
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text


def table(title: str, *columns: tuple[str, int]) -> Table:
    """Return an empty table of columns with these widths, numbers (negative widths) to the right.

    Fixed widths, so that nothing jumps while numbers grow, and 80 columns are enough. A column of
    width 0 is as wide as its content.
    """
    found = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, show_edge=False
    )
    for heading, width in columns:
        justify: JustifyMethod = "right" if width < 0 else "left"
        found.add_column(heading, justify=justify, width=abs(width) or None, no_wrap=True)
    return found


def bar(debt: int, limit: int | None, width: int) -> Text:
    """Return the ratio of a debt to its limit as a bar; empty without a limit."""
    if not limit:
        return Text("")
    share = min(1.0, debt / limit)
    full = round(share * width)
    return Text.assemble(
        ("█" * full, "red" if share >= 1 else "yellow"), ("░" * (width - full), "dim")
    )
