"""The log of a store, and its sentences about disk errors: what failed, where, and what to do."""

import errno
import logging
import os
from typing import Final

logger: Final = logging.getLogger("clearfunds.store._store")
"""For an open store. The name is part of the log lines: it is the same in all of its modules."""

_ADVICE: Final = {
    errno.ENOSPC: "free some space there",
    errno.EDQUOT: "free some space there, or raise the quota",
    errno.EROFS: "the file system is read-only: see the system's log for why, and remount it",
    errno.EACCES: "give this process the right to write there",
    errno.EPERM: "give this process the right to write there",
    errno.EIO: "the disk fails: see the system's log, and think of a backup",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the system's limit of open files",
    errno.ENOENT: "the directory, or a file in it, is gone: was it moved or cleaned up?",
    errno.ENOTDIR: "something in that path is a file: give a directory, or one that is to be made",
    errno.EEXIST: "that is a file: give a directory, or one that is to be made",
}


def reason(error: OSError) -> str:
    """Return the operating system's message, without the file's name."""
    return error.strerror or (os.strerror(error.errno) if error.errno else str(error))


def trouble(error: OSError, doing: str, where: str) -> str:
    """Return the failure, the place and an advice in one sentence."""
    advice = _ADVICE.get(error.errno or 0, "see the system's log")
    return f"cannot {doing} the store in {where}: {reason(error)}; {advice}"
