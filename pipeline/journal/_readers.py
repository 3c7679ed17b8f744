"""Permissions of a journal: only its owner may read it, or its group, too.

A journal shows which account publishes what to whom. Files made here are unreadable for other
users, whatever the umask is.
"""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path
from typing import Final, Literal

from .._errors import PipelineError

logger = logging.getLogger("clearfunds.journal")

Readers = Literal["owner", "group"]

_FOLDERS: Final[dict[Readers, int]] = {"owner": 0o700, "group": 0o2750}
"""With the bit 02000, new files belong to the folder's group, not to that of the relay's user."""

_FILES: Final[dict[Readers, int]] = {"owner": 0o600, "group": 0o640}


def make_folder(folder: Path, readers: Readers) -> bool:
    """Make a folder if it is missing, and return whether it was.

    Raises:
        OSError: It cannot be made.
    """
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if not folder.is_dir():
            raise
        return False
    if readers == "group":  # whatever the umask is
        folder.chmod(_FOLDERS[readers])
    return True


def let_read(file: Path, readers: Readers) -> None:
    """Let `readers` read a file that only its owner can read."""
    if readers == "group":
        file.chmod(_FILES[readers])


def take_folder(folder: Path, readers: Readers, known: frozenset[str]) -> None:
    """Make the journal's folder, or make sure that other users cannot read an existing one.

    Args:
        folder: The folder.
        readers: The users that may read it.
        known: The names in a journal's folder. The permissions of a folder with other files in it
            are not changed.

    Raises:
        OSError: It cannot be made.
        PipelineError: Other users can read it, and the relay must not change that.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    if make_folder(folder, readers):
        return
    mode = folder.stat().st_mode
    wanted = _FOLDERS[readers]
    if mode & stat.S_IRWXO:
        ours = not mode & stat.S_ISVTX and {entry.name for entry in folder.iterdir()} <= known
        try:
            if not ours:
                raise PermissionError
            folder.chmod(wanted)
        except PermissionError:
            msg = (
                f"others on this machine can read {folder}, the journal's directory: chmod "
                f"{wanted:o} {folder}, or name a directory in it, which only the relay may read"
            )
            raise PipelineError(msg) from None
        logger.warning(
            "others on this machine could read the journal in %s; now they cannot (chmod %o)",
            folder,
            wanted,
            extra={"event": "made_private", "folder": str(folder)},
        )
    elif readers == "group" and mode & wanted != wanted:
        folder.chmod(wanted)


def open_private(path: Path) -> int:
    """Create a new file that only its owner can read; return its descriptor."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
