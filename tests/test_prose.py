"""The prose that people read is plain English, and has the field's words.

A clause that hangs on a preposition ("of what", "for whom") has to be read twice. Measured so, the
READMEs of svcs, h11 and httpcore have none in a thousand words, and Trio's documentation 0.3.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
DOCS: Final = sorted((ROOT / "docs").glob("*.md"))

PREPOSITIONS: Final = (
    "about|above|after|against|among|around|as|at|before|behind|below|beside|besides|between|"
    "beyond|by|despite|for|from|in|inside|into|like|near|of|off|on|onto|out|outside|over|per|than|"
    "through|to|toward|towards|under|until|up|upon|via|with|within|without"
)
HEADLESS: Final = re.compile(
    rf"\b(?:{PREPOSITIONS})\s+(?:who|whom|what|whoever|whatever)\b", re.IGNORECASE
)

MOST_IN_DOCS: Final = 0.5
"""In a thousand words."""


def prose(text: str) -> str:
    """Return a page without what is no prose of ours: code, and where links lead."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`]*`", "", text)
    return re.sub(r"\]\([^)]*\)", "]", text)


def headless(text: str) -> list[str]:
    """Return the prepositions with a clause in place of a noun."""
    return [" ".join(found.split()) for found in HEADLESS.findall(prose(text))]


def words(text: str) -> int:
    return len(re.findall(r"[A-Za-z]+", prose(text)))


def test_it_finds_them() -> None:
    text = (
        "It is charged to who caused it, and of\nwhat it owes `of what` counts.\n```\nto who\n```\n"
    )
    assert headless(text) == ["to who", "of what"]
    assert words(text) == 13


def test_the_readme_has_none() -> None:
    assert headless((ROOT / "README.md").read_text("utf-8")) == []


def test_the_docs_have_next_to_none() -> None:
    texts = {page.name: page.read_text("utf-8") for page in DOCS}
    found = {name: headless(text) for name, text in texts.items() if headless(text)}
    allowed = MOST_IN_DOCS * sum(map(words, texts.values())) / 1_000
    assert sum(map(len, found.values())) <= allowed, found


def terms() -> list[str]:
    """Return the field's terms that the glossary explains ours by."""
    glossary = (ROOT / "docs/glossary.md").read_text("utf-8")
    rows = re.findall(r"^\| [^|]+ \| ([^|]+) \|", glossary, re.MULTILINE)
    return [term.strip() for row in rows[2:] for term in row.split(";")]


@pytest.mark.parametrize("term", terms())
def test_who_searches_for_a_term_of_the_field_finds_it(term: str) -> None:
    pages = [ROOT / "README.md", *(page for page in DOCS if page.name != "glossary.md")]
    assert any(term.lower() in " ".join(page.read_text().lower().split()) for page in pages), term


if __name__ == "__main__":
    for page in [ROOT / "README.md", *DOCS]:
        text = page.read_text("utf-8")
        count = len(headless(text))
        print(f"{page.name:24} {words(text):6,} words {count:4} {1000 * count / words(text):5.1f}")
