"""A disk in memory that forgets what was not fsynced, and fails when it is told to."""

from __future__ import annotations

import errno
import os
import random
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class _Inode:
    """What a file is, whatever it is called."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = b""
        #: Since the last fsync: (offset, bytes), or (size, None) for a truncation.
        self.since: list[tuple[int, bytes | None]] = []
        #: What it was told to begin with, before an fsync: from, up to.
        self.begun: list[tuple[int, int]] = []

    def write(self, data: bytes, offset: int) -> None:
        _put(self.data, data, offset)
        self.since.append((offset, bytes(data)))

    def truncate(self, size: int) -> None:
        _cut(self.data, size)
        self.since.append((size, None))

    def fsync(self) -> None:
        self.durable = bytes(self.data)
        self.since.clear()

    def forget(self, chance: random.Random) -> None:
        """Keep what was fsynced, and of the rest what chance leaves: any of it, the last torn."""
        survivors = bytearray(self.durable)
        mode = chance.randrange(3)
        kept = len(self.since) if mode == 0 else chance.randint(0, len(self.since))
        for offset, data in self.since[:kept]:
            if mode == 2 and chance.random() < 0.5:
                continue  # The disk wrote what came later first.
            if data is None:
                _cut(survivors, offset)
            else:
                _put(survivors, data, offset)
        if kept < len(self.since):
            offset, data = self.since[kept]
            if data is not None:
                _put(survivors, data[: chance.randint(0, len(data))], offset)
        self.data = survivors
        self.fsync()


def _put(target: bytearray, data: bytes, offset: int) -> None:
    if offset > len(target):
        target.extend(bytes(offset - len(target)))
    target[offset : offset + len(data)] = data


def _cut(target: bytearray, size: int) -> None:
    if size < len(target):
        del target[size:]
    else:
        target.extend(bytes(size - len(target)))


class FakeFile:
    """An open file of a `FakeFiles`."""

    def __init__(self, disk: FakeFiles, name: str, inode: _Inode) -> None:
        self._disk = disk
        self._name = name
        self.inode = inode
        self.closed = False
        #: After a failed fsync, the next one says that all is well, and it is not.
        self.lies = False

    def write(self, parts: Sequence[bytes], offset: int) -> None:
        assert not self.closed
        data = b"".join(parts)
        try:
            room = self._disk.check("write", self._name, len(data))
        except OSError:
            cut = self._disk.chance.randint(0, len(data))
            self.inode.write(data[:cut], offset)
            raise
        if room < len(data):
            self.inode.write(data[:room], offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.inode.write(data, offset)

    def write_back(self, start: int, end: int) -> None:
        assert not self.closed
        # What of it is on the disk when the power fails is left to chance in any case.
        self.inode.begun.append((start, end))

    def pread(self, size: int, offset: int) -> bytes:
        assert not self.closed
        self._disk.check("pread", self._name)
        return bytes(self.inode.data[offset : offset + size])

    def size(self) -> int:
        return len(self.inode.data)

    def truncate(self, size: int) -> None:
        assert not self.closed
        self._disk.check("truncate", self._name)
        self.inode.truncate(size)

    def fsync(self) -> None:
        assert not self.closed
        try:
            self._disk.check("fsync", self._name)
        except OSError:
            self.lies = True
            raise
        if not self.lies:
            self.inode.fsync()

    def close(self) -> None:
        assert not self.closed
        self.closed = True


class FakeFiles:
    """A directory on such a disk. Names are durable when `fsync_dir` was called."""

    def __init__(self, seed: int = 0) -> None:
        self.chance = random.Random(seed)
        self.names: dict[str, _Inode] = {}
        self.durable_names: dict[str, _Inode] = {}
        self.locked = False
        #: Called before each operation, with what it is and on which file; may raise.
        self.fault: Callable[[str, str], None] | None = None
        #: How many bytes there is room for; None: enough.
        self.room: int | None = None
        self.operations: list[tuple[str, str]] = []
        self._guard = threading.Lock()

    where = "a disk in memory"

    def check(self, operation: str, name: str, size: int = 0) -> int:
        with self._guard:
            self.operations.append((operation, name))
        if self.fault is not None:
            self.fault(operation, name)
        if operation == "write" and self.room is not None:
            used = sum(len(inode.data) for inode in self.names.values())
            return max(0, min(size, self.room - used))
        return size

    # The two ways in which everything ends.

    def kill(self) -> None:
        """End the process: what was written stays."""
        self.locked = False

    def lose_power(self) -> None:
        """Forget what was not fsynced, names included."""
        self.locked = False
        for name, inode in list(self.names.items()):
            # A name that was not fsynced may be there, or not; in place of an old one or not.
            if self.durable_names.get(name) is not inode and self.chance.random() < 0.5:
                if name in self.durable_names:
                    self.names[name] = self.durable_names[name]
                else:
                    del self.names[name]
        for name, inode in self.durable_names.items():
            if name not in self.names and self.chance.random() < 0.5:
                self.names[name] = inode
        self.durable_names = dict(self.names)
        for inode in {id(inode): inode for inode in self.names.values()}.values():
            inode.forget(self.chance)

    # `Files`.

    def prepare(self) -> None:
        self.check("prepare", "")

    def protect(self) -> bool:
        self.check("protect", "")
        return False

    def lock(self, name: str) -> None:
        self.check("lock", name)
        if self.locked:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self.names.setdefault(name, _Inode())
        self.locked = True

    def unlock(self) -> None:
        self.locked = False

    def list(self, folder: str = "") -> dict[str, int]:
        self.check("list", folder)
        prefix = f"{folder}/" if folder else ""
        return {
            name.removeprefix(prefix): len(inode.data)
            for name, inode in self.names.items()
            if name.startswith(prefix) and "/" not in name.removeprefix(prefix)
        }

    def mkdir(self, folder: str) -> None:
        self.check("mkdir", folder)

    def create(self, name: str) -> FakeFile:
        self.check("create", name)
        inode = self.names.get(name)
        if inode is None:
            inode = self.names[name] = _Inode()
        else:
            inode.truncate(0)
        return FakeFile(self, name, inode)

    def open(self, name: str, *, write: bool = False) -> FakeFile:
        self.check("open", name)
        if name not in self.names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return FakeFile(self, name, self.names[name])

    def rename(self, old: str, new: str) -> None:
        self.check("rename", old)
        self.names[new] = self.names.pop(old)

    def unlink(self, name: str) -> None:
        self.check("unlink", name)
        if name not in self.names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        del self.names[name]

    def fsync_dir(self) -> None:
        self.check("fsync_dir", "")
        self.durable_names = dict(self.names)
