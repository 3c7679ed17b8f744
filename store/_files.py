"""The files of a store's directory, behind an interface that tests can make fail."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: More parts than this are joined before the write: many small ones are slower, and the system
#: takes at most 1,024 at a time (IOV_MAX).
_MANY_PARTS: Final = 256

_SYNC_FILE_RANGE_WRITE: Final = 2

#: Mode of new folders: they have messages in clear text.
_FOLDER_MODE: Final = 0o700
_FILE_MODE: Final = 0o600


class File(Protocol):
    """One open file. Every method may raise `OSError`."""

    def write(self, parts: Sequence[bytes], offset: int) -> None:
        """Write all parts, one behind the other; after an error any part of it may be there."""
        ...

    def write_back(self, start: int, end: int) -> None:
        """Let the system begin to put these bytes on the disk, if it can; never raises.

        The bytes do not become durable by it: `fsync` has less to wait for.
        """
        ...

    def pread(self, size: int, offset: int) -> bytes:
        """Read `size` bytes at `offset`; fewer at the end of the file. For any thread."""
        ...

    def size(self) -> int:
        """Return the length of the file."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""
        ...

    def fsync(self) -> None:
        """Block until everything written is on the disk. After an error nothing is certain."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


class Files(Protocol):
    """One directory. Names are relative to it; every method may raise `OSError`."""

    @property
    def where(self) -> str:
        """The directory's name for people."""
        ...

    def prepare(self) -> None:
        """Make the directory if needed; nobody else can read a directory made here."""
        ...

    def protect(self) -> bool:
        """Make the directory unreadable for others; return whether they could read it.

        Raises:
            PermissionError: They can, and this process may not change that.
        """
        ...

    def lock(self, name: str) -> None:
        """Lock file `name`, making it if needed.

        Raises:
            BlockingIOError: Another process holds the lock.
        """
        ...

    def unlock(self) -> None:
        """Release the lock, if it is held."""
        ...

    def list(self, folder: str = "") -> dict[str, int]:
        """Return the files with their sizes, without subfolders."""
        ...

    def mkdir(self, folder: str) -> None:
        """Make a subfolder if needed."""
        ...

    def create(self, name: str) -> File:
        """Make a file, or empty an old one, and open it."""
        ...

    def open(self, name: str, *, write: bool = False) -> File:
        """Open an existing file."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename a file; it replaces a file called `new`."""
        ...

    def unlink(self, name: str) -> None:
        """Remove a file."""
        ...

    def fsync_dir(self) -> None:
        """Block until all names in the directory are on the disk."""
        ...


@cache
def sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """Return the system call of that name, which Python lacks; None: the system lacks it, too."""
    try:
        import ctypes

        call = ctypes.CDLL(None).sync_file_range
    except (ImportError, OSError, AttributeError):  # Another system, or another C library.
        return None
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return call


class RealFile:
    """An open file of the operating system."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, parts: Sequence[bytes], offset: int) -> None:
        if len(parts) > _MANY_PARTS:
            parts = (b"".join(parts),)
        size = sum(map(len, parts))
        written = os.pwritev(self._fd, parts, offset)
        if written < size:  # The disk is nearly full, or a signal came: the rest shows which.
            view = memoryview(b"".join(parts))
            while written < size:
                written += os.pwrite(self._fd, view[written:], offset + written)

    def write_back(self, start: int, end: int) -> None:
        call = sync_file_range()
        if call is not None:
            # Ignore errors: with these flags it does not take errors away from `fsync`
            # [sync_file_range(2)].
            call(self._fd, start, end - start, _SYNC_FILE_RANGE_WRITE)

    def pread(self, size: int, offset: int) -> bytes:
        data = os.pread(self._fd, size, offset)
        while len(data) < size:
            more = os.pread(self._fd, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def fsync(self) -> None:
        os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


class RealFiles:
    """A directory of the operating system."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._path = Path(directory)
        self._lock: int | None = None

    @property
    def where(self) -> str:
        return str(self._path)

    def prepare(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.mkdir(mode=_FOLDER_MODE, exist_ok=True)

    def protect(self) -> bool:
        """See `Files`. A directory that a group can read is left so: somebody wants it."""
        mode = self._path.stat().st_mode
        if not mode & stat.S_IRWXO:
            return False
        if mode & stat.S_ISVTX:  # Everybody's, as /tmp.
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        for path in (*self._path.glob("*"), *self._path.glob("*/*")):
            if path.is_file() and not path.is_symlink():
                path.chmod(_FILE_MODE)
        self._path.chmod(_FOLDER_MODE)
        return True

    def lock(self, name: str) -> None:
        """See `Files`. The lock belongs to the process and always ends with it."""
        fd = os.open(self._path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(fd)
            raise
        self._lock = fd

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def list(self, folder: str = "") -> dict[str, int]:
        found: dict[str, int] = {}
        with os.scandir(self._path / folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_file():
                        found[entry.name] = entry.stat().st_size
        return found

    def mkdir(self, folder: str) -> None:
        (self._path / folder).mkdir(mode=_FOLDER_MODE, exist_ok=True)

    def create(self, name: str) -> RealFile:
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        return RealFile(os.open(self._path / name, flags, _FILE_MODE))

    def open(self, name: str, *, write: bool = False) -> RealFile:
        flags = (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC
        return RealFile(os.open(self._path / name, flags))

    def rename(self, old: str, new: str) -> None:
        (self._path / old).replace(self._path / new)

    def unlink(self, name: str) -> None:
        (self._path / name).unlink()

    def fsync_dir(self) -> None:
        fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
