"""The place of a journal: a folder on this machine, or a URL in a file system that Spark knows.

All commands and functions that read a journal find it with `find`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import attrs

from .._errors import PipelineError
from ._tables import TABLES

if TYPE_CHECKING:
    import os


@attrs.frozen
class Place:
    """A journal that may be read."""

    name: str
    """As the user gave it."""
    url: str
    """Its path or URL, without a slash at the end."""
    folder: Path | None
    """Its folder on this machine; None: it is elsewhere, and only Spark can read it."""


def find(folder: str | os.PathLike[str]) -> Place:
    """Return the place of a journal. A folder on this machine is checked; a URL is not.

    Args:
        folder: The relay's `--journal` folder, or its URL, as `file:///...` or `s3a://...`.

    Raises:
        PipelineError: The folder does not exist, or holds no journal.
    """
    name = str(folder)
    url = urlsplit(name)
    if len(url.scheme) > 1 and url.scheme != "file":
        return Place(name, name.rstrip("/"), None)
    path = Path(unquote(url.path) if url.scheme == "file" else name)
    if not path.is_dir():
        there = "is a file, not a folder" if path.exists() else "is not there"
        msg = f"the journal {name} {there}; give the folder that `clearfunds relay --journal` has"
        raise PipelineError(msg)
    try:
        inside = [each.name for each in path.iterdir() if not each.name.startswith((".", "_"))]
    except OSError as error:
        msg = f"the journal {name} cannot be read: {error.strerror or error}"
        raise PipelineError(msg) from error
    if inside and not set(inside) & set(TABLES):
        msg = (
            f"there is no journal in {name}: none of its folders is one of "
            f"{', '.join(TABLES)}; give the folder that `clearfunds relay --journal` has"
        )
        raise PipelineError(msg)
    return Place(name, str(path.absolute()), path.absolute())
