"""Taking a directory: check that it is a store, and lock it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ._errors import StoreExposedError, StoreFormatError, StoreLockedError
from ._names import LOCK
from ._recovery import MARK, is_ours

if TYPE_CHECKING:
    from ._files import Files

_logger = logging.getLogger(__name__)


def take(files: Files) -> None:
    """Make sure that the directory is a store, and lock it.

    Raises:
        StoreLockedError: Another process has it.
        StoreFormatError: It is something else.
        StoreExposedError: Others can read it, and this process may not change that.
        OSError: It cannot be read or written.
    """
    files.prepare()
    there = files.list()
    if LOCK not in there and there and not any(map(is_ours, there)):
        msg = (
            f"{files.where} is not a store: it has files, but none called {LOCK}; "
            "give an empty directory, or one that is not there yet"
        )
        raise StoreFormatError(msg)
    _protect(files)
    try:
        files.lock(LOCK)
    except BlockingIOError as error:
        msg = (
            f"the store in {files.where} is in use by another process; "
            "end that process, or give each relay its own directory"
        )
        raise StoreLockedError(msg) from error
    file = files.open(LOCK, write=True)
    try:
        mark = file.pread(4096, 0)
        if mark == MARK:
            return
        if mark and not MARK.startswith(mark) and mark.strip(b"\0"):
            msg = (
                f"{files.where} is not a store that this version can read: {LOCK} says "
                f"{mark[:60]!r}, not {MARK!r}; use the version of clearfunds that made it"
            )
            raise StoreFormatError(msg)
        file.write((MARK,), 0)
        file.fsync()
        files.fsync_dir()
    finally:
        file.close()


def _protect(files: Files) -> None:
    try:
        exposed = files.protect()
    except PermissionError as error:
        msg = (
            f"others on this machine can read {files.where}, which would hold messages: chmod 700 "
            f"{files.where}, or give a directory inside it, which the relay makes for itself alone"
        )
        raise StoreExposedError(msg) from error
    if exposed:
        _logger.warning(
            "others on this machine could read the store in %s; now they cannot (chmod 700)",
            files.where,
            extra={"event": "made_private", "folder": files.where},
        )
