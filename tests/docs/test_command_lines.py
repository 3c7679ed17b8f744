"""Every command line of `clearfunds` that the docs show is one that it takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, Final

import pytest

from clearfunds._cli._app import command_line
from docs import options_reference

ROOT: Final = Path(__file__).parents[2]
FILES: Final = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "dashboards/README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
LINE: Final = re.compile(r"^(?:\$ )?(?:\w+=\S+ )*(clearfunds .*)$", re.MULTILINE)
INLINE: Final = re.compile(r"`(clearfunds [^`]+)`")
OPERATORS: Final = frozenset({"|", "||", "&", "&&", ">", ">>", "<", "2>", "2>&1"})
VARIABLE: Final = re.compile(r"\bCLEARFUNDS_[A-Z_]+\b")
NOT_OPTIONS: Final = {
    "CLEARFUNDS_CONFIG",
    "CLEARFUNDS_HTTP_PASSWORD",
    "CLEARFUNDS_HTTP_TOKEN",
    "CLEARFUNDS_URL",
}
"""Variables of several commands."""


def code_of(text: str) -> str:
    """Return the commands of a page: fenced ones, and indented ones."""
    found: list[str] = []
    language: str | None = None
    for line in text.splitlines():
        fence = re.match(r" *```(\w*)", line)
        if fence is not None:
            language = None if language is not None else fence[1]
        elif language in ("sh", "console"):
            found.append(line)
        elif language is None and line.startswith("    "):
            found.append(line.strip())
    return "\n".join(found).replace("\\\n", " ")


def commands_of(text: str) -> list[str]:
    """Return the arguments of each command, up to the first operator of the shell."""
    found: list[str] = []
    for line in LINE.findall(code_of(text)):
        words = shlex.split(line, comments=True)
        ends = [number for number, word in enumerate(words) if word in OPERATORS]
        found.append(shlex.join(words[1 : ends[0] if ends else None]))
    return found


def lines() -> list[Any]:
    return [
        pytest.param(line, id=f"{path.stem}: {line[:60]}")
        for path in FILES
        for line in dict.fromkeys(commands_of(path.read_text("utf-8")))
    ]


def test_it_finds_them() -> None:
    text = (
        "A page.\n\n    clearfunds top --once | head -1\n\n"
        "```sh\n$ clearfunds relay \\\n  --fair\n```\n"
    )
    assert commands_of(text) == ["top --once", "relay --fair"]
    assert len(lines()) > 40


@pytest.mark.parametrize("line", lines())
def test_a_command_line_is_taken(line: str) -> None:
    words = shlex.split(line)
    if "--config" in words:  # It is read before the command is looked at.
        at = words.index("--config")
        del words[at : at + 2]
    # Raises what the command would say.
    command_line().parse_args(words, exit_on_error=False, print_error=False)


def test_a_command_in_a_sentence_has_the_options_that_it_names() -> None:
    known: dict[str, set[str]] = {}
    for entry in options_reference.entries():
        known.setdefault(entry.command, {"--config", "--help"}).update(entry.names)
    for path in FILES:
        text = " ".join(path.read_text("utf-8").split())
        for line in INLINE.findall(text):
            command = max(
                (each for each in known if f"{line} ".startswith(f"clearfunds {each} ")),
                key=len,
                default=None,
            )
            options = set(re.findall(r"(?<= )--[a-z][a-z0-9-]*", line))
            if command is not None:
                assert options <= known[command], f"{path.name}: {line}"


def test_a_variable_is_that_of_an_option() -> None:
    known = {
        re.sub(r"[ _-]+", "_", f"CLEARFUNDS_{entry.command}_{name}".upper())
        for entry in options_reference.entries()
        for name in entry.names
    }
    for path in FILES:
        for name in VARIABLE.findall(path.read_text("utf-8")):
            assert name in known | NOT_OPTIONS, path.name
