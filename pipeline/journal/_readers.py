"""Who on this machine may read a journal: its owner, or its group, too.

It says who publishes what to whom. Whatever the umask is, nobody else can read what is made here.
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
"""What is made in a folder with the bit 02000 is its group's, not that of the relay's user."""

_FILES: Final[dict[Readers, int]] = {"owner": 0o600, "group": 0o640}


def make_folder(folder: Path, readers: Readers) -> bool:
    """Make a folder, and return whether it was not there.

    Raises:
        OSError: It cannot be made.
    """
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if not folder.is_dir():
            raise
        return False
    if readers == "group":  # not left to the umask
        folder.chmod(_FOLDERS[readers])
    return True


def let_read(file: Path, readers: Readers) -> None:
    """Let those read a file that only its owner can."""
    if readers == "group":
        file.chmod(_FILES[readers])


def take_folder(folder: Path, readers: Readers, known: frozenset[str]) -> None:
    """Make the journal's folder, or see that others cannot read the one that there is.

    Args:
        folder: Which.
        readers: Who may.
        known: What a journal has in its folder. One with something else in it is left as it is.

    Raises:
        OSError: It cannot be made.
        PipelineError: Others can read it, and it is not the relay's to change that.
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
                f"others on this machine can read {folder}, where the journal is to be: chmod "
                f"{wanted:o} {folder}, or name a directory in it, which is made for the relay alone"
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
    """Make a file that is not there, for nobody else to read; return its descriptor."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
