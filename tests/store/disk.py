"""A disk below SQLite that forgets what was not synced, and fails when it is told to.

Theory of operation: a `FakeDisk` is a VFS of SQLite's whose files lie in a real directory. It notes
what is written, and what of that has been synced; the real fsync is never called. It keeps the
order of what happens to names, as the journal of a file system does: a file that is synced for the
first time makes durable what had happened to other names before.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import shutil
import sqlite3
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tests.store.vfs import DeadError, shim

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from tests.store.vfs import Real

_BLOCK = 4096
_OPEN_READONLY, _OPEN_READWRITE, _OPEN_CREATE = 1, 2, 4


class Disks(Protocol):
    """Makes disks; the fixture `disks`."""

    def __call__(self, seed: int = 0) -> FakeDisk:
        """Make a disk, for as long as the test lasts."""
        ...


def refuse(code: int, *operations: str) -> Callable[[str, str], None]:
    """Return a fault: these operations fail with that error."""

    def fault(operation: str, name: str) -> None:
        if operation in operations:
            raise OSError(code, os.strerror(code), name)

    return fault


class _Inode:
    """A file, whatever its name."""

    def __init__(self, content: bytes = b"") -> None:
        self.durable = bytearray(content)
        self.size = len(content)
        #: Since the last sync: (offset, bytes), or (size, None) for a truncation.
        self.since: list[tuple[int, bytes | None]] = []
        #: The open files that are not dead.
        self.handles = 0

    def write(self, data: bytes, offset: int) -> None:
        self.size = max(self.size, offset + len(data))
        self.since.append((offset, data))

    def truncate(self, size: int) -> None:
        self.size = size
        self.since.append((size, None))

    def sync(self) -> None:
        for offset, data in self.since:
            _apply(self.durable, offset, data)
        self.since.clear()

    def forget(self, chance: random.Random) -> None:
        """Keep what was synced, and of the rest what chance leaves: any of it, the last torn."""
        mode = chance.randrange(3)
        kept = len(self.since) if mode == 0 else chance.randint(0, len(self.since))
        for offset, data in self.since[:kept]:
            # Or the disk wrote what came later first.
            if mode != 2 or chance.random() < 0.5:
                _apply(self.durable, offset, data)
        if kept < len(self.since):
            offset, data = self.since[kept]
            if data is not None:
                _apply(self.durable, offset, data[: chance.randint(0, len(data))])
        self.since.clear()

    def reread(self, content: bytes) -> None:
        """Nobody has it open: what differs from the disk is to be written to it, in any order."""
        self.size = len(content)
        self.since.clear()
        if len(content) < len(self.durable):
            self.since.append((len(content), None))
        for offset in range(0, len(content), _BLOCK):
            block = content[offset : offset + _BLOCK]
            if block != bytes(self.durable[offset : offset + _BLOCK]):
                self.since.append((offset, block))


def _apply(target: bytearray, offset: int, data: bytes | None) -> None:
    if offset > len(target):
        target.extend(bytes(offset - len(target)))
    if data is None:
        del target[offset:]
    else:
        target[offset : offset + len(data)] = data


class FakeDisk:
    """A directory on such a disk: what SQLite does there with the VFS `name`.

    A call of SQLite that fails, fails as it does on a real disk (`sqlite_errorname`):

    - write: SQLITE_FULL for ENOSPC, else SQLITE_IOERR_WRITE; some of the bytes may be there,
    - sync: SQLITE_IOERR_FSYNC. Some of what was written is durable. The rest never will be, though
      the next sync succeeds, unless it is written again, or the process ends and another one opens
      the file (there a real kernel may go on lying),
    - open: SQLITE_CANTOPEN; but for EACCES and EROFS a file that is there is opened read-only,
    - read, truncate, delete: SQLITE_IOERR_READ, SQLITE_IOERR_TRUNCATE, SQLITE_IOERR_DELETE.

    Temporary files (without a name) are real files that none of this concerns.
    """

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.chance = random.Random(seed)
        #: Called before each operation, with its kind and the file's name; may raise an OSError.
        #: If it raises anything else the power is off until `kill` or `lose_power`.
        self.fault: Callable[[str, str], None] | None = None
        #: How many bytes there is room for; None: enough.
        self.room: int | None = None
        self.operations: list[tuple[str, str]] = []
        #: The exception that switched the power off, while it is.
        self.cut: BaseException | None = None
        self.off = False
        self.life = 0
        self.guard = threading.Lock()
        self.names: dict[str, _Inode] = {}
        #: The names as they were when they were durable, and after each change since.
        self.past: list[dict[str, _Inode]] = [{}]
        self._folder = folder.resolve()
        #: The directory. After `kill` and `lose_power` it is another one.
        self.directory = self._folder / "0"
        self.directory.mkdir(mode=0o700, parents=True)
        self._shim = shim()
        self.name, self._address = self._shim.register(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Unregister the VFS. Connections that are still open fail from now on."""
        with self.guard:
            self.off = True
        self._shim.unregister(self._address)

    @property
    def used(self) -> int:
        """Bytes that the files take."""
        return sum(inode.size for inode in self.names.values())

    # The two ways in which everything ends.

    def kill(self) -> None:
        """End the process: what was written stays. Connections of before are dead."""
        with self.guard:
            self._move()

    def lose_power(self) -> None:
        """Forget what was not synced, names included. Connections of before are dead."""
        with self.guard:
            known = {name for names in (*self.past, self.names) for name in names}
            self.names = self.chance.choice(self.past)
            self.past = [dict(self.names)]
            self._move()
            for name in known:
                (self.directory / name).unlink(missing_ok=True)
            for name, inode in self.names.items():
                inode.forget(self.chance)
                inode.size = len(inode.durable)
                (self.directory / name).write_bytes(inode.durable)

    def _move(self) -> None:
        self.life += 1
        for names in (*self.past, self.names):
            for inode in names.values():
                inode.handles = 0
        # A copy: its locks and its shared memory have nothing to do with those of before.
        before, self.directory = self.directory, self._folder / str(self.life)
        shutil.copytree(before, self.directory, ignore=shutil.ignore_patterns("*-shm"))
        shutil.rmtree(before)
        self.off, self.cut = False, None

    # For the VFS.

    def check(self, operation: str, name: str, life: int) -> None:
        self.alive(life)
        self.operations.append((operation, name))
        fault = self.fault
        if fault is not None:
            try:
                fault(operation, name)
            except OSError:
                raise
            except BaseException as cut:
                with self.guard:
                    self.cut, self.off = cut, True
                raise DeadError from cut

    def alive(self, life: int) -> None:
        if self.off or life != self.life:
            raise DeadError

    def relative(self, path: int) -> str:
        """Return the name of a file; one that is not in the directory is one of before."""
        found = Path(os.fsdecode(ctypes.string_at(path)))
        if not found.is_relative_to(self.directory):
            raise DeadError
        return found.relative_to(self.directory).as_posix()

    def open(self, path: int, address: int, flags: int, out: int | None) -> int:
        life, name = self.life, self.relative(path)
        real = self.directory / name
        try:
            self.check("open", name, life)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EROFS) or not real.exists():
                raise
            flags = flags & ~(_OPEN_READWRITE | _OPEN_CREATE) | _OPEN_READONLY
        with self.guard:
            self.alive(life)
            existed = real.exists()
            code = self._shim.open(path, address, flags, out)
            if code == sqlite3.SQLITE_OK:
                inode = self._inode(name, real if existed else None)
                inode.handles += 1
                self._shim.put_between(address, _File(self, name, inode))
        return code

    def _inode(self, name: str, real: Path | None) -> _Inode:
        inode = self.names.get(name)
        if real is None:
            inode = self.names[name] = _Inode()
            self.past.append(dict(self.names))
        elif inode is None:  # It was put there by other means.
            inode = self.names[name] = _Inode(real.read_bytes())
            for names in self.past:
                names[name] = inode
        elif not inode.handles:
            # Only then: a process that closes a file loses all its locks there (fcntl).
            inode.reread(real.read_bytes())
        return inode

    def delete(self, path: int, durably: bool) -> int:
        life, name = self.life, self.relative(path)
        self.check("delete", name, life)
        with self.guard:
            self.alive(life)
            code = self._shim.delete(path)
            if code == sqlite3.SQLITE_OK:
                self.names.pop(name, None)
                self.past.append(dict(self.names))
                if durably:
                    self.sync_names()
        return code

    def sync_names(self) -> None:
        self.past = [dict(self.names)]


class _File:
    """A file that SQLite has opened; `real` are the operating system's methods."""

    real: Real

    def __init__(self, disk: FakeDisk, name: str, inode: _Inode) -> None:
        self._disk = disk
        self._name = name
        self._inode = inode
        self._life = disk.life

    def close(self) -> None:
        with self._disk.guard:
            if self._life == self._disk.life:
                self._inode.handles -= 1

    def read(self, address: int, buffer: int, size: int, offset: int) -> int:
        self._disk.check("read", self._name, self._life)
        return self.real.read(address, buffer, size, offset)

    def write(self, address: int, buffer: int, size: int, offset: int) -> int:
        disk, inode = self._disk, self._inode
        kept, failure = size, None
        try:
            disk.check("write", self._name, self._life)
        except OSError as error:
            kept, failure = disk.chance.randint(0, size), error
        with disk.guard:
            disk.alive(self._life)
            if disk.room is not None:
                grown = max(0, offset + size - inode.size)
                missing = max(0, grown - max(0, disk.room - disk.used))
                kept = max(0, min(kept, size - missing))
            if kept:
                code = self.real.write(address, buffer, kept, offset)
                if code != sqlite3.SQLITE_OK:
                    return code
                inode.write(ctypes.string_at(buffer, kept), offset)
        if failure is not None:
            raise failure
        return sqlite3.SQLITE_OK if kept == size else sqlite3.SQLITE_FULL

    def truncate(self, address: int, size: int) -> int:
        self._disk.check("truncate", self._name, self._life)
        with self._disk.guard:
            self._disk.alive(self._life)
            code = self.real.truncate(address, size)
            if code == sqlite3.SQLITE_OK:
                self._inode.truncate(size)
        return code

    def sync(self) -> int:
        disk, inode = self._disk, self._inode
        failure = None
        try:
            disk.check("sync", self._name, self._life)
        except OSError as error:
            failure = error
        with disk.guard:
            disk.alive(self._life)
            if failure is not None:
                # What it keeps of that is clean for the kernel, and not written a second time.
                inode.forget(disk.chance)
                raise failure
            inode.sync()
            if disk.names.get(self._name) is inode is not disk.past[0].get(self._name):
                disk.sync_names()
        return sqlite3.SQLITE_OK
