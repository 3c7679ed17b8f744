"""Completion in the shells that are there."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Clearfunds = Callable[..., subprocess.CompletedProcess[str]]

COMPLETED = [
    ("clearfunds rel", {"relay"}),
    ("clearfunds relay --lis", {"--listen", "--listener-connect-rate"}),
    ("clearfunds relay --profile ", {"balanced", "lossless", "live"}),
    ("clearfunds queues pur", {"purge"}),
    ("clearfunds perf --ur", {"--url", "--uri"}),
]

BASH = """
source "$1"
COMP_LINE=$2
read -ra COMP_WORDS <<< "$2"
[[ $2 == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_clearfunds
printf '%s\\n' "${COMPREPLY[@]}"
"""


def script(clearfunds: Clearfunds, shell: str, folder: Path) -> Path:
    """Write the script of a shell to a file."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is missing")
    made = clearfunds("completion", shell)
    assert (made.returncode, made.stderr) == (0, "")
    file = folder / f"clearfunds.{shell}"
    file.write_text(made.stdout)
    return file


@pytest.mark.parametrize(("line", "words"), COMPLETED)
def test_bash(line: str, words: set[str], clearfunds: Clearfunds, tmp_path: Path) -> None:
    file = script(clearfunds, "bash", tmp_path)
    done = subprocess.run(
        ["bash", "--norc", "-c", BASH, "bash", file, line],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert {word.strip() for word in done.stdout.split("\n") if word.strip()} == words


@pytest.mark.parametrize(("line", "words"), COMPLETED)
def test_fish(line: str, words: set[str], clearfunds: Clearfunds, tmp_path: Path) -> None:
    file = script(clearfunds, "fish", tmp_path)
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"source {file}; complete --do-complete '{line}'"],
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert {found.partition("\t")[0] for found in done.stdout.splitlines()} == words


def test_zsh_reads_its_script(clearfunds: Clearfunds, tmp_path: Path) -> None:
    file = script(clearfunds, "zsh", tmp_path)
    subprocess.run(["zsh", "-n", file], check=True)


def test_a_shell_that_is_not_known_is_a_usage_error(clearfunds: Clearfunds) -> None:
    run = clearfunds("completion", "nix")
    assert (run.returncode, run.stdout) == (2, "")
    assert 'Choose from: "bash", "zsh", "fish"' in run.stderr
