"""Build the documentation as a site, in build/docs; any warning is an error."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from sphinx.cmd.build import build_main

from ._site import ROOT, write_site

SOURCE: Final = "docs-source"
"""Beside the site, so that its pages can be looked at."""


def _date_of_sources() -> str | None:
    """Return the seconds of the last commit; None outside a clone, or without git."""
    try:
        found = subprocess.run(
            ["git", "log", "-1", "--format=%ct"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return None
    return found.stdout.strip() or None


def main(arguments: list[str]) -> int:
    """Build the site into a folder, build/docs unless one is given; return the exit status."""
    if len(arguments) > 1 or any(each.startswith("-") for each in arguments):
        print("usage: python -m docs [FOLDER]", file=sys.stderr)
        return 2
    site = Path(arguments[0]) if arguments else ROOT / "build/docs"
    pages = site.parent / SOURCE
    write_site(pages)
    # Pages have the date of what they describe, and the same sources make the same site.
    date = _date_of_sources()
    if date is not None:
        os.environ.setdefault("SOURCE_DATE_EPOCH", date)
    # What is between two builds lies beside the site, which is to be copied as it is.
    folders = ["-c", str(ROOT / "docs"), "-d", str(site.parent / "docs-state")]
    options = ["-W", "--keep-going", "-n", "-q", "-j", "auto", "-b", "html"]
    # Sphinx makes millions of nodes, which stay: to look for garbage among them took two fifths
    # of the CPU time.
    gc.disable()
    status = build_main([*options, *folders, str(pages), str(site)])
    if status == 0:
        print(f"{site / 'index.html'}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
