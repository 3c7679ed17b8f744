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

#: More parts than this are joined before they are written: small ones cost more apart, and the
#: system takes no more than 1,024 at a time (IOV_MAX).
_MANY_PARTS: Final = 256

_SYNC_FILE_RANGE_WRITE: Final = 2

#: What is made: there are messages in it, in clear.
_FOLDER_MODE: Final = 0o700
_FILE_MODE: Final = 0o600


class File(Protocol):
    """One open file. Every method may raise `OSError`."""

    def write(self, parts: Sequence[bytes], offset: int) -> None:
        """Write all parts, one behind the other; after an error anything of it may be there."""
        ...

    def write_back(self, start: int, end: int) -> None:
        """Have the system begin to put these bytes on the disk, if it can; never raises.

        What was written is as little durable as before: `fsync` has less to wait for.
        """
        ...

    def pread(self, size: int, offset: int) -> bytes:
        """Read `size` bytes at `offset`; fewer at the end of the file. For any thread."""
        ...

    def size(self) -> int:
        """Return how long the file is."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file."""
        ...

    def fsync(self) -> None:
        """Return when all that was written is on the disk. After an error, nothing is known."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class Files(Protocol):
    """One directory. Names are relative to it; every method may raise `OSError`."""

    @property
    def where(self) -> str:
        """What people call the directory."""
        ...

    def prepare(self) -> None:
        """Make the directory unless it is there; nobody else can read one that is made."""
        ...

    def protect(self) -> bool:
        """See that others cannot read the directory; return whether they could.

        Raises:
            PermissionError: they can, and it is not ours to change that.
        """
        ...

    def lock(self, name: str) -> None:
        """Take the lock that file `name` is, making the file if needed.

        Raises:
            BlockingIOError: somebody else has it.
        """
        ...

    def unlock(self) -> None:
        """Give the lock back, if it was taken."""
        ...

    def list(self, folder: str = "") -> dict[str, int]:
        """Return the files with their sizes, subfolders apart."""
        ...

    def mkdir(self, folder: str) -> None:
        """Make a subfolder unless it is there."""
        ...

    def create(self, name: str) -> File:
        """Make a file, empty whatever was there, and open it."""
        ...

    def open(self, name: str, *, write: bool = False) -> File:
        """Open a file that is there."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename a file, in place of what is called `new`."""
        ...

    def unlink(self, name: str) -> None:
        """Remove a file."""
        ...

    def fsync_dir(self) -> None:
        """Return when all names in the directory are on the disk as they are now."""
        ...


@cache
def sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """Return the system's call of that name, which Python has not; None: there is none."""
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
        """See `File`."""
        if len(parts) > _MANY_PARTS:
            parts = (b"".join(parts),)
        size = sum(map(len, parts))
        written = os.pwritev(self._fd, parts, offset)
        if written < size:  # The disk is nearly full, or a signal came: the rest says which.
            view = memoryview(b"".join(parts))
            while written < size:
                written += os.pwrite(self._fd, view[written:], offset + written)

    def write_back(self, start: int, end: int) -> None:
        """See `File`."""
        call = sync_file_range()
        if call is not None:
            # An error is of no interest: so called it does not take from `fsync` what that is to
            # report [sync_file_range(2)].
            call(self._fd, start, end - start, _SYNC_FILE_RANGE_WRITE)

    def pread(self, size: int, offset: int) -> bytes:
        """See `File`."""
        data = os.pread(self._fd, size, offset)
        while len(data) < size:
            more = os.pread(self._fd, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def size(self) -> int:
        """See `File`."""
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        """See `File`."""
        os.ftruncate(self._fd, size)

    def fsync(self) -> None:
        """See `File`."""
        os.fsync(self._fd)

    def close(self) -> None:
        """See `File`."""
        os.close(self._fd)


class RealFiles:
    """A directory of the operating system."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._path = Path(directory)
        self._lock: int | None = None

    @property
    def where(self) -> str:
        """See `Files`."""
        return str(self._path)

    def prepare(self) -> None:
        """See `Files`."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.mkdir(mode=_FOLDER_MODE, exist_ok=True)

    def protect(self) -> bool:
        """See `Files`. One that only a group can read, too, is as somebody wants it."""
        mode = self._path.stat().st_mode
        if not mode & stat.S_IRWXO:
            return False
        if mode & stat.S_ISVTX:  # everybody's, as /tmp
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        for path in (*self._path.glob("*"), *self._path.glob("*/*")):
            if path.is_file() and not path.is_symlink():
                path.chmod(_FILE_MODE)
        self._path.chmod(_FOLDER_MODE)
        return True

    def lock(self, name: str) -> None:
        """See `Files`. The lock is the process's: it ends with it, however it ends."""
        fd = os.open(self._path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(fd)
            raise
        self._lock = fd

    def unlock(self) -> None:
        """See `Files`."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def list(self, folder: str = "") -> dict[str, int]:
        """See `Files`."""
        found: dict[str, int] = {}
        with os.scandir(self._path / folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_file():
                        found[entry.name] = entry.stat().st_size
        return found

    def mkdir(self, folder: str) -> None:
        """See `Files`."""
        (self._path / folder).mkdir(mode=_FOLDER_MODE, exist_ok=True)

    def create(self, name: str) -> RealFile:
        """See `Files`."""
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        return RealFile(os.open(self._path / name, flags, _FILE_MODE))

    def open(self, name: str, *, write: bool = False) -> RealFile:
        """See `Files`."""
        flags = (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC
        return RealFile(os.open(self._path / name, flags))

    def rename(self, old: str, new: str) -> None:
        """See `Files`."""
        (self._path / old).replace(self._path / new)

    def unlink(self, name: str) -> None:
        """See `Files`."""
        (self._path / name).unlink()

    def fsync_dir(self) -> None:
        """See `Files`."""
        fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
