"""The log of a store, and its sentences about disk errors: what failed, where, and what to do."""

import errno
import logging
import os
import sqlite3
from typing import Final

logger: Final = logging.getLogger("clearfunds.store._store")
"""For an open store. The name is part of the log lines: it is the same in all of its modules."""

_FULL: Final = "free some space there"
_READ_ONLY: Final = "the file system is read-only: see the system's log for why, and remount it"
_RIGHTS: Final = "give this process the right to write there"
_FAILS: Final = "the disk fails: see the system's log, and think of a backup"

_REPAIR: Final = "end the relay, and run `clearfunds store repair` on the directory"

_ADVICE: Final = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: "free some space there, or raise the quota",
    errno.EROFS: _READ_ONLY,
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EIO: _FAILS,
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the system's limit of open files",
    errno.ENOENT: "the directory, or a file in it, is gone: was it moved or cleaned up?",
    errno.ENOTDIR: "something in that path is a file: give a directory, or one that is to be made",
    errno.EEXIST: "that is a file: give a directory, or one that is to be made",
}

_SQLITE_ADVICE: Final = {
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_CANTOPEN: "is the directory gone, or not this process's to write to?",
    sqlite3.SQLITE_PERM: _RIGHTS,
    sqlite3.SQLITE_IOERR: _FAILS,
    sqlite3.SQLITE_BUSY: "another program has it open: end that",
}
"""By SQLite's primary result code (sqlite.org/rescode.html)."""


CORRUPT: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
"""The structure is damaged; SQLITE_ERROR: a definition of a table is not what we wrote."""


def code_of(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code; 0: the error is Python's."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_corrupt(error: sqlite3.Error) -> bool:
    """Return whether the database's structure is damaged."""
    return code_of(error) in CORRUPT


def trouble(error: OSError | sqlite3.Error, doing: str, where: str) -> str:
    """Return the failure, the place and an advice in one sentence."""
    if isinstance(error, OSError):
        advice = _ADVICE.get(error.errno or 0)
        reason = error.strerror or (os.strerror(error.errno) if error.errno else str(error))
    else:
        advice = _REPAIR if is_corrupt(error) else _SQLITE_ADVICE.get(code_of(error))
        name = getattr(error, "sqlite_errorname", None)
        reason = f"{error} ({name})" if name else str(error)
    return f"cannot {doing} the store in {where}: {reason}; {advice or 'see the log of the system'}"
