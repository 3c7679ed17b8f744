"""The frame of a page, and its sections and tables.

Arguments are HTML: text from a peer goes through `text` or `name` first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ._stylesheet import STYLE


def document(
    title: str,
    about: Iterable[str],
    body: str,
    *,
    subject: str = "",
    foot: str = "",
    refresh: float | None = None,
) -> str:
    """Return a page.

    Args:
        title: The heading.
        about: Lines below it.
        body: Between heading and foot.
        subject: Follows the heading in the browser's title.
        foot: Below the rest.
        refresh: Seconds until a newer page replaces this one; None: never.
    """
    again = "" if refresh is None else f'<meta http-equiv="refresh" content="{refresh:g}">'
    lines = "".join(f"<p>{line}</p>" for line in about)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
{again}<title>{title}{": " if subject else ""}{subject}</title>
<style>{STYLE}</style>
</head>
<body>
<header><h1>{title}</h1>{lines}</header>
<main>
{body}
</main>
{foot}
</body>
</html>
"""


def section(title: str, about: str, body: str, *, anchor: str = "") -> str:
    """Return a part of the page, with a sentence about it; `anchor` is for links to it."""
    place = f' id="{anchor}"' if anchor else ""
    return f'<section{place}><h2>{title}</h2><p class="about">{about}</p>{body}</section>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int]) -> str:
    """Return a table; `numbers` are the columns that are aligned to the right."""
    right = set(numbers)

    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(
            f'<{tag} class="n">{cell}</{tag}>' if place in right else f"<{tag}>{cell}</{tag}>"
            for place, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table><thead><tr>{cells("th", head)}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def bad(figure: str, really: bool = True) -> str:
    """Return a figure in the colour of trouble, if it `really` is."""
    return f'<span class="bad">{figure}</span>' if really else figure
