"""A lock between readers of a journal and those who delete its files.

Readers share it for as long as they read, since they open a file some time after they have listed
it. Deletion takes it alone, for the moment in which files vanish, and never waits for it: if
somebody reads, it comes later. It is a `flock` of the folder itself, so that users who may only
read can take it; the kernel releases it however a process ends.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@contextmanager
def reading(folder: Path | None) -> Generator[None]:
    """Keep the files of a journal from being deleted for the length of a block.

    Waits for a deletion that is under way, some milliseconds. Does nothing for None, nor in file
    systems without such locks.
    """
    with ExitStack() as stack:
        if folder is not None:
            with suppress(OSError):
                fcntl.flock(stack.enter_context(_open(folder)), fcntl.LOCK_SH)
        yield


@contextmanager
def deleting(folder: Path) -> Generator[bool]:
    """Keep readers out for the length of a block, if nobody reads: the value says whether."""
    with _open(folder) as descriptor:
        yield take(descriptor)


def take(descriptor: int) -> bool:
    """Take the lock of an open file or folder, until it is closed, if nobody has it; whether so."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _open(folder: Path) -> Generator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
