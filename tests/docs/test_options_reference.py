"""docs/options.md has each option of each command, as `--help` shows them, and no other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from clearfunds._cli import run
from clearfunds._cli._app import command_line
from clearfunds._cli._reloading import RELOADABLE_OPTIONS
from docs import options_reference as reference

PAGE: Final = Path(__file__).parents[2] / "docs/options.md"
OPTION: Final = re.compile(r"--[a-z][a-z0-9-]*")
ROW: Final = re.compile(
    r"^\| (`.+?`)(?:<br>`(.+?)`)? \| (.+?) \| (.+?) \| (.+?) \| (.+?) \| ([\d.]+) \| .* \|$"
)
OF_ALL: Final = {"--help", "--version", "--config"}


def sections() -> dict[str, list[re.Match[str]]]:
    """Return the rows of the page, by command."""
    found: dict[str, list[re.Match[str]]] = {}
    command = ""
    for line in PAGE.read_text("utf-8").splitlines():
        if line.startswith("## "):
            command = line.removeprefix("## clearfunds ")
        row = ROW.match(line)
        if row is not None:
            found.setdefault(command, []).append(row)
    return found


def options_of(rows: list[re.Match[str]]) -> set[str]:
    return {name for row in rows for name in OPTION.findall(row[1])}


def in_help(text: str) -> set[str]:
    """Return the options that a help has in the first column of its panels."""
    column = "\n".join(
        re.split(r"\s{2,}(?![-\[])", line.lstrip("│* "))[0]
        for line in text.splitlines()
        if line.startswith("│")
    )
    return set(OPTION.findall(column))


def test_it_is_current() -> None:
    assert PAGE.read_text("utf-8") == reference.reference(), (
        "python -m docs.options_reference > docs/options.md"
    )


@pytest.mark.parametrize("command", sorted(sections()))
def test_the_help_of_a_command_and_its_entries_have_the_same_options(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    assert run([*command.split(), "--help"]) == 0
    wanted = in_help(capsys.readouterr().out) - OF_ALL
    got = options_of(sections()[command]) - OF_ALL
    # A switch that is on has both forms in the page.
    assert {each for each in got if not each.startswith("--no-")} == {
        each for each in wanted if not each.startswith("--no-")
    }


def test_every_command_has_a_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    help_text = capsys.readouterr().out
    tops = {command.split()[0] for command in sections()}
    assert tops >= {name for name in command_line() if not name.startswith("-")}
    for name in tops:
        assert name in help_text


def test_an_entry_is_complete() -> None:
    for rows in sections().values():
        for row in rows:
            names, key, kind, default, *_, since = row.groups()
            assert kind != "-"
            assert default
            assert since in ("0.1.0", "0.2.0")
            # An argument has no name in the file.
            assert (key is None) == (not OPTION.search(names)), names


def test_what_may_change_while_the_relay_runs_is_marked() -> None:
    live = {row[2] for row in sections()["relay"] if row[6] == "yes"}
    assert live == set(RELOADABLE_OPTIONS)


def test_some_entries() -> None:
    """Those that a reader would look up: type, default and unit are as they are written."""
    relay = {row[2]: row for row in sections()["relay"]}
    assert relay["limit_bytes"].group(3, 4, 5, 6, 7) == (
        *("size, or `none`", "`8MiB`", "bytes"),
        *("yes", "0.1.0"),
    )
    assert relay["patience"].group(3, 4, 5) == ("number", "`20`", "seconds")
    assert relay["workers"].group(3, 4, 7) == ("whole number, 1 to 64", "`1`", "0.2.0")
    assert relay["passwords"][6] == "its file"
    assert relay["fair"].group(1, 4) == ("`--fair`, `--no-fair`", "on")
    assert relay["tenant"][3] == "list of tenants"


def test_the_first_version_had_no_options_that_are_unknown() -> None:
    """Those of 0.1.0 that have gone since are named here: users need a word in the changelog."""
    gone = {
        f"{command} {option}"
        for command, options in reference.FIRST.items()
        for option in options.split()
        if f"--{option}" not in options_of(sections()[command])
    }
    assert gone == {
        *(f"relay {name}" for name in ("credit", "flow", "paging")),
        *(f"relay credit-{name}" for name in ("queue-store", "reader-outlet", "reader-queue")),
    }


def test_check_finds_a_page_that_is_not_current(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "options.md"
    page.write_text("# Options\n", "utf-8")
    assert reference.main(["--check", str(page)]) == 1
    assert "not up to date" in capsys.readouterr().err
    assert reference.main(["--check", str(PAGE)]) == 0
