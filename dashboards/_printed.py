"""Pages that code makes: printed, or compared with a file."""

import sys
from collections.abc import Sequence
from pathlib import Path


def print_or_check(text: str, arguments: Sequence[str], module: str, usage: str) -> int:
    """Print a page, or with `--check FILE` compare it with a file; return the exit status.

    Args:
        text: The page.
        arguments: The command line, without the program.
        module: The module that makes it, for the advice.
        usage: Printed if the command line is another one (status 2).
    """
    if not arguments:
        sys.stdout.write(text)
        return 0
    if len(arguments) != 2 or arguments[0] != "--check":
        sys.stderr.write(usage)
        return 2
    path = Path(arguments[1])
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return 0
    sys.stderr.write(f"{path} is not up to date; write it again: python -m {module} > {path}\n")
    return 1
