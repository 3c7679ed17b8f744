"""Taking a directory: is it a store, and does nobody else have it?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._errors import StoreFormatError, StoreLockedError
from ._names import LOCK
from ._recovery import MARK, is_ours

if TYPE_CHECKING:
    from ._files import Files


def take(files: Files) -> None:
    """Make sure that the directory is a store, and lock it.

    Raises:
        StoreLockedError: somebody else has it.
        StoreFormatError: it is something else.
        OSError: it cannot be read or written.
    """
    files.prepare()
    there = files.list()
    if LOCK not in there and there and not any(map(is_ours, there)):
        msg = (
            f"{files.where} is not a store: it has files, but none called {LOCK}; "
            "give an empty directory, or one that is not there yet"
        )
        raise StoreFormatError(msg)
    try:
        files.lock(LOCK)
    except BlockingIOError as error:
        msg = (
            f"the store in {files.where} is in use by another process; "
            "end that, or give each relay a directory of its own"
        )
        raise StoreLockedError(msg) from error
    file = files.open(LOCK, write=True)
    try:
        mark = file.pread(4096, 0)
        if mark == MARK:
            return
        if mark and not MARK.startswith(mark) and mark.strip(b"\0"):
            msg = (
                f"{files.where} is no store that this version can read: {LOCK} says "
                f"{mark[:60]!r}, not {MARK!r}; use the version of clearfunds that made it"
            )
            raise StoreFormatError(msg)
        file.write((MARK,), 0)
        file.fsync()
        files.fsync_dir()
    finally:
        file.close()
