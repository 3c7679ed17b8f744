"""Files with secrets, which are refused if others can read them."""

import os
import stat
from pathlib import Path
from typing import Final

from clearfunds.sockets import trouble_with_file

from ._errors import UsageError

_OTHERS: Final = stat.S_IRWXO | stat.S_IWGRP
"""Rights that others must not have. A group may read: Debian's ssl-cert, or the relay's group."""


def read_secret(file: Path) -> bytes:
    """Return the content of a file that only its owner, and perhaps its group, can read.

    Raises:
        UsageError: It cannot be read, or others can read or change it.
    """
    try:
        with file.open("rb") as opened:
            _refuse_others(file, os.fstat(opened.fileno()).st_mode)
            return opened.read()
    except OSError as error:
        raise UsageError(trouble_with_file(file, error)) from error


def check_secret(file: Path) -> None:
    """Check that only its owner, and perhaps its group, can read a file.

    Raises:
        UsageError: It does not exist, or others can read or change it.
    """
    try:
        mode = file.stat().st_mode
    except OSError as error:
        raise UsageError(trouble_with_file(file, error)) from error
    _refuse_others(file, mode)


def _refuse_others(file: Path, mode: int) -> None:
    # The mode of something other than a file, as a shell's <(...), has another meaning.
    if stat.S_ISREG(mode) and mode & _OTHERS:
        can = "read" if mode & stat.S_IROTH else "change"
        msg = f"others on this machine can {can} {file}, which has a secret in it: chmod 600 {file}"
        raise UsageError(msg)
