"""The directory of a store: made if needed, private, and one process's at a time."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
from pathlib import Path
from typing import Final

from ._errors import StoreExposedError, StoreFormatError, StoreLockedError
from ._old_log import OLD_FILE

_logger = logging.getLogger(__name__)

LOCK: Final = "clearfunds-store"
"""The file that makes a directory a store, and that a process locks while the store is open."""

MARK: Final = b"clearfunds store, format 2: an SQLite database\n"
"""Its content."""

OLD_MARK: Final = b"clearfunds store, format 1\n"
"""The mark of version 0.1.0."""

OLD_FILES: Final = "format-1"
"""The folder to which an upgrade puts the store that was there before."""

DATABASE: Final = "messages.db"

_FOLDER_MODE: Final = 0o700  # It has messages in clear text.
_FILE_MODE: Final = 0o600


class Directory:
    """A directory that is locked from `take` or `look` on until `release`.

    Attributes:
        where: Its path.
        is_old: Whether it has a store of version 0.1.0, to be upgraded (`take`).
        has_old_files: Whether it has files of that version.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.where = Path(directory)
        self.is_old = self.has_old_files = False
        self._lock: int | None = None

    @property
    def database(self) -> Path:
        """The path of the database."""
        return self.where / DATABASE

    def log_bytes(self) -> int:
        """Return the size of the write-ahead log."""
        try:
            return self.where.joinpath(f"{DATABASE}-wal").stat().st_size
        except OSError:
            return 0

    def take(self, *, upgrades: bool = False) -> bool:
        """Make the directory a store if it is empty or not there, and lock it.

        Args:
            upgrades: Whether the caller upgrades a store of version 0.1.0 (`is_old`).

        Returns:
            whether it is well: False if its database is gone, or empty, and was not before.

        Raises:
            StoreLockedError: Another process has it.
            StoreFormatError: It is something else.
            StoreExposedError: Others can read it, and this process may not change that.
            OSError: It cannot be read or written.
        """
        self.where.parent.mkdir(parents=True, exist_ok=True)
        self.where.mkdir(mode=_FOLDER_MODE, exist_ok=True)
        there = os.listdir(self.where)
        if there and LOCK not in there:
            msg = (
                f"{self.where} is not a store: it has files, but none called {LOCK}; "
                "give an empty directory, or one that is not there yet"
            )
            raise StoreFormatError(msg)
        self._protect()
        mark = os.pread(self._locked(os.O_RDWR | os.O_CREAT), 4096, 0)
        self._check(mark, upgrades=upgrades)
        self.is_old = mark == OLD_MARK
        self.has_old_files = any(map(OLD_FILE.fullmatch, there))
        if self.is_old:
            return True
        has_data = DATABASE in there and self.database.stat().st_size > 0
        if DATABASE not in there:
            # SQLite gives its other files the mode of this one.
            os.close(os.open(self.database, os.O_RDWR | os.O_CREAT, _FILE_MODE))
        return has_data or mark != MARK

    def mark(self) -> None:
        """Note that the database has been made: from now on one that is missing is a loss.

        Raises:
            OSError: The disk refused.
        """
        assert self._lock is not None
        if os.pread(self._lock, len(MARK) + 1, 0) != MARK:
            self._sync()
            os.pwrite(self._lock, MARK, 0)
            os.fsync(self._lock)

    def look(self) -> None:
        """Lock a store that exists, changing nothing.

        Raises:
            StoreLockedError: A process has it open.
            StoreFormatError: It is no store, or of another version.
            OSError: It cannot be read.
        """
        if not (self.where / LOCK).exists():
            msg = f"{self.where} is not a store: it has no file {LOCK}; give a relay's --store"
            raise StoreFormatError(msg)
        self._check((self.where / LOCK).read_bytes()[:4096])
        try:
            self._locked(os.O_RDWR)
        except OSError as error:
            # On a read-only file system nobody writes.
            if error.errno not in (errno.EROFS, errno.EACCES):
                raise

    def release(self) -> None:
        """Release the lock, if it is held."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _locked(self, flags: int) -> int:
        """Open and lock the lock's file. The lock belongs to the process and ends with it."""
        lock = os.open(self.where / LOCK, flags | os.O_CLOEXEC, _FILE_MODE)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(lock)
            msg = (
                f"the store in {self.where} is in use by another process; "
                "end that process, or give each relay its own directory"
            )
            raise StoreLockedError(msg) from error
        except BaseException:
            os.close(lock)
            raise
        self._lock = lock
        return lock

    def _check(self, mark: bytes, *, upgrades: bool = False) -> None:
        if mark == OLD_MARK:
            if upgrades:
                return
            msg = (
                f"{self.where} is a store of version 0.1.0: start a relay with it once "
                f"(clearfunds relay --store {self.where}), which upgrades it"
            )
            raise StoreFormatError(msg)
        # A process that was killed may have left a part of it.
        if mark.strip(b"\0") and not MARK.startswith(mark.rstrip(b"\0")):
            msg = (
                f"{self.where} is not a store that this version can read: {LOCK} says "
                f"{_text(mark[:60])}, not {_text(MARK)}; use the version of clearfunds that made it"
            )
            raise StoreFormatError(msg)

    def _protect(self) -> None:
        """Make the directory unreadable for others; one that a group can read is left so."""
        mode = self.where.stat().st_mode
        if not mode & stat.S_IRWXO:
            return
        try:
            if mode & stat.S_ISVTX:  # Everybody's, as /tmp.
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
            for path in self.where.glob("*"):
                if path.is_file() and not path.is_symlink():
                    path.chmod(_FILE_MODE)
            self.where.chmod(_FOLDER_MODE)
        except PermissionError as error:
            msg = (
                f"others on this machine can read {self.where}, which would hold messages: "
                f"chmod 700 {self.where}, or give a directory inside it, which the relay makes for "
                "itself alone"
            )
            raise StoreExposedError(msg) from error
        _logger.warning(
            "others on this machine could read the store in %s; now they cannot (chmod 700)",
            self.where,
            extra={"event": "made_private", "folder": str(self.where)},
        )

    def _sync(self) -> None:
        folder = os.open(self.where, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _text(mark: bytes) -> str:
    return f'"{mark.decode("ascii", "backslashreplace").strip()}"'
