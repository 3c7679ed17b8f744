"""The fenced blocks of the pages: to be run, and to be counted."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any, Final

import attrs

DOCS: Final = Path(__file__).parents[2] / "docs"
_BLOCK: Final = re.compile(r"^( *)```(\w+)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
_AST: Final = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


@attrs.frozen
class Block:
    """Code on a page; `number` counts the page's blocks of its language, from 1."""

    page: str
    language: str
    number: int
    code: str


def fenced(path: Path) -> list[tuple[str, str]]:
    """Return the language and the code of each fenced block of a file that names its language."""
    return [
        (language, textwrap.dedent(code))
        for _, language, code in _BLOCK.findall(path.read_text("utf-8"))
    ]


def blocks() -> list[Block]:
    """Return the blocks of all pages."""
    found: list[Block] = []
    for path in sorted(DOCS.glob("*.md")):
        counts: dict[str, int] = {}
        for language, code in fenced(path):
            counts[language] = counts.get(language, 0) + 1
            found.append(Block(path.name, language, counts[language], code))
    return found


def code_of(
    page: str, number: int = 1, *, language: str = "python", changes: dict[str, str] | None = None
) -> str:
    """Return a block's code, changed in places, each of which has to be there."""
    (code,) = [
        each.code
        for each in blocks()
        if (each.page, each.language, each.number) == (page, language, number)
    ]
    for place, instead in (changes or {}).items():
        assert place in code, f"{page} has no {place!r}"
        code = code.replace(place, instead)
    return code


async def execute(code: str, names: dict[str, Any]) -> None:
    """Run code that may await, with such names; those that it makes are added to them."""
    done = eval(compile(code, "block", "exec", _AST, dont_inherit=True), names)
    if inspect.isawaitable(done):
        await done
