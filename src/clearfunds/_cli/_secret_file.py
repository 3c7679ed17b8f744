"""Files with secrets in them, which are refused if others can read them."""

import os
import stat
from pathlib import Path
from typing import Final

from ._errors import UsageError

_OTHERS: Final = stat.S_IRWXO | stat.S_IWGRP
"""What nobody else may do. A group may read: Debian's ssl-cert, or the one that a relay runs in."""


def read_secret(file: Path) -> bytes:
    """Return what is in a file that only its owner, and perhaps its group, can read.

    Raises:
        UsageError: it cannot be read, or others can read or change it.
    """
    try:
        with file.open("rb") as opened:
            _refuse_others(file, os.fstat(opened.fileno()).st_mode)
            return opened.read()
    except OSError as error:
        msg = f"{file}: {error.strerror}"
        raise UsageError(msg) from error


def check_secret(file: Path) -> None:
    """See that only its owner, and perhaps its group, can read a file.

    Raises:
        UsageError: it is not there, or others can read or change it.
    """
    try:
        mode = file.stat().st_mode
    except OSError as error:
        msg = f"{file}: {error.strerror}"
        raise UsageError(msg) from error
    _refuse_others(file, mode)


def _refuse_others(file: Path, mode: int) -> None:
    # What is no file of its own, as a shell's <(...), has the mode of something else.
    if stat.S_ISREG(mode) and mode & _OTHERS:
        can = "read" if mode & stat.S_IROTH else "change"
        msg = f"others on this machine can {can} {file}, which has a secret in it: chmod 600 {file}"
        raise UsageError(msg)
