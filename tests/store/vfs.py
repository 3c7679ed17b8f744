"""A VFS between SQLite and the operating system: calls of its files and of names go to objects.

The functions are put, with `ctypes`, into the very libsqlite3 that Python's `sqlite3` uses. Each
VFS is a copy of the operating system's own; so is the table of methods of each file. What is not
replaced (locks, the shared memory of the WAL, sizes) is the real thing.
https://www.sqlite.org/vfs.html, https://www.sqlite.org/c3ref/io_methods.html
"""

from __future__ import annotations

import ctypes
import errno
import functools
import itertools
import sqlite3
import sys
import traceback
from ctypes import c_char_p, c_int, c_int64, c_void_p
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

#: The code by which SQLite knows that an operation failed.
_FAILED = {
    "read": sqlite3.SQLITE_IOERR_READ,
    "write": sqlite3.SQLITE_IOERR_WRITE,
    "truncate": sqlite3.SQLITE_IOERR_TRUNCATE,
    "sync": sqlite3.SQLITE_IOERR_FSYNC,
    "open": sqlite3.SQLITE_CANTOPEN,
    "delete": sqlite3.SQLITE_IOERR_DELETE,
    "close": sqlite3.SQLITE_IOERR_CLOSE,
}


class DeadError(Exception):
    """The power is off, or was since the file was opened."""


class Disk(Protocol):
    """A VFS as an object. Paths, files and `out` are addresses; returned are codes of SQLite.

    An OSError or a DeadError that a method raises becomes the code of its operation.
    """

    def open(self, path: int, address: int, flags: int, out: int | None) -> int: ...
    def delete(self, path: int, durably: bool) -> int: ...


class File(Protocol):
    """An open file as an object. `real` is set when it is opened."""

    real: Real

    def close(self) -> None: ...
    def read(self, address: int, buffer: int, size: int, offset: int) -> int: ...
    def write(self, address: int, buffer: int, size: int, offset: int) -> int: ...
    def truncate(self, address: int, size: int) -> int: ...
    def sync(self) -> int: ...


class _IoMethods(ctypes.Structure):
    """`sqlite3_io_methods` of version 2: without `xFetch` there is no memory-mapped file."""

    _fields_ = (
        ("version", c_int),
        ("close", c_void_p),
        ("read", c_void_p),
        ("write", c_void_p),
        ("truncate", c_void_p),
        ("sync", c_void_p),
        ("rest", c_void_p * 11),
    )


class _Vfs(ctypes.Structure):
    """`sqlite3_vfs` of version 3."""

    _fields_ = (
        ("version", c_int),
        ("file_size", c_int),
        ("longest_path", c_int),
        ("next", c_void_p),
        ("name", c_void_p),
        ("data", c_void_p),
        ("open", c_void_p),
        ("delete", c_void_p),
        ("rest", c_void_p * 14),
    )


_CLOSE = ctypes.CFUNCTYPE(c_int, c_void_p)
_READ = _WRITE = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
_TRUNCATE = ctypes.CFUNCTYPE(c_int, c_void_p, c_int64)
_SYNC = ctypes.CFUNCTYPE(c_int, c_void_p, c_int)
#: Paths are addresses: SQLite keeps the one that it gives, and looks behind its end.
_OPEN = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, c_void_p)
_DELETE = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_int)


class Real:
    """The methods that were in a table, and the table to have in its place."""

    def __init__(self, address: int, instead: dict[str, int]) -> None:
        self.table = _IoMethods()
        ctypes.memmove(ctypes.byref(self.table), address, ctypes.sizeof(_IoMethods))
        self.close: Callable[..., int] = _CLOSE(self.table.close)
        self.read: Callable[..., int] = _READ(self.table.read)
        self.write: Callable[..., int] = _WRITE(self.table.write)
        self.truncate: Callable[..., int] = _TRUNCATE(self.table.truncate)
        self.table.version = min(2, self.table.version)
        for name, function in instead.items():
            setattr(self.table, name, function)


class Shim:
    """The functions between SQLite and the operating system: one set for all disks.

    Nothing of it is ever freed, for a connection may live longer than its disk.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.sqlite3_vfs_find.argtypes = (c_char_p,)
        library.sqlite3_vfs_find.restype = c_void_p
        library.sqlite3_vfs_register.argtypes = (c_void_p, c_int)
        library.sqlite3_vfs_unregister.argtypes = (c_void_p,)
        self._vfs: int = library.sqlite3_vfs_find(None)
        vfs = _Vfs.from_address(self._vfs)
        assert vfs.version >= 3
        self._real_open: Callable[..., int] = _OPEN(vfs.open)
        self._real_delete: Callable[..., int] = _DELETE(vfs.delete)
        self._numbers = itertools.count()
        self._disks: dict[int, Disk] = {}
        self._files: dict[int, File] = {}
        self._tables: dict[int, Real] = {}
        self._callbacks = {
            "close": _CLOSE(_coded("close", self._close)),
            "read": _READ(_coded("read", self._read)),
            "write": _WRITE(_coded("write", self._write)),
            "truncate": _TRUNCATE(_coded("truncate", self._truncate)),
            "sync": _SYNC(_coded("sync", self._sync)),
        }
        self._vfs_callbacks = {
            "open": _OPEN(_coded("open", self._open)),
            "delete": _DELETE(_coded("delete", self._delete)),
        }
        self._registered: list[tuple[_Vfs, object]] = []
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))

    def register(self, disk: Disk) -> tuple[str, int]:
        """Return the name of a new VFS, and its address."""
        name = f"fake-disk-{next(self._numbers)}"
        vfs = _Vfs()
        ctypes.memmove(ctypes.byref(vfs), self._vfs, ctypes.sizeof(_Vfs))
        text = ctypes.create_string_buffer(name.encode())
        vfs.next = None
        vfs.name = ctypes.addressof(text)
        for each, callback in self._vfs_callbacks.items():
            setattr(vfs, each, _address(callback))
        self._registered.append((vfs, text))
        address = ctypes.addressof(vfs)
        self._disks[address] = disk
        code: int = self._library.sqlite3_vfs_register(address, 0)
        assert code == sqlite3.SQLITE_OK
        return name, address

    def unregister(self, address: int) -> None:
        if self._disks.pop(address, None) is not None:
            self._library.sqlite3_vfs_unregister(address)

    def open(self, path: int | None, address: int, flags: int, out: int | None) -> int:
        return self._real_open(self._vfs, path, address, flags, out)

    def delete(self, path: int) -> int:
        # The real directory need not be synced.
        return self._real_delete(self._vfs, path, 0)

    def put_between(self, address: int, file: File) -> None:
        """Have the calls for an open file go to this object."""
        methods = c_void_p.from_address(address)
        table = methods.value
        assert table is not None
        if table not in self._tables:
            instead = {name: _address(callback) for name, callback in self._callbacks.items()}
            self._tables[table] = Real(table, instead)
        file.real = self._tables[table]
        self._files[address] = file
        methods.value = ctypes.addressof(file.real.table)

    def _open(self, vfs: int, path: int | None, address: int, flags: int, out: int | None) -> int:
        if path is None:
            return self.open(path, address, flags, out)
        # So that a file that is not opened is not closed either.
        c_void_p.from_address(address).value = None
        return self._disk(vfs).open(path, address, flags, out)

    def _delete(self, vfs: int, path: int, durably: int) -> int:
        return self._disk(vfs).delete(path, bool(durably))

    def _disk(self, vfs: int) -> Disk:
        disk = self._disks.get(vfs)
        if disk is None:
            raise DeadError
        return disk

    def _close(self, address: int) -> int:
        file = self._files.pop(address)
        file.close()
        return file.real.close(address)

    def _read(self, address: int, buffer: int, size: int, offset: int) -> int:
        return self._files[address].read(address, buffer, size, offset)

    def _write(self, address: int, buffer: int, size: int, offset: int) -> int:
        return self._files[address].write(address, buffer, size, offset)

    def _truncate(self, address: int, size: int) -> int:
        return self._files[address].truncate(address, size)

    def _sync(self, address: int, flags: int) -> int:
        return self._files[address].sync()


def _address(callback: Any) -> int:
    return ctypes.cast(callback, c_void_p).value or 0


def _coded(operation: str, work: Callable[..., int]) -> Callable[..., int]:
    """Return what SQLite can call: its exceptions are codes."""

    def call(*arguments: int | None) -> int:
        try:
            return work(*arguments)
        except OSError as error:
            full = operation == "write" and error.errno in (errno.ENOSPC, errno.EDQUOT)
            return sqlite3.SQLITE_FULL if full else _FAILED[operation]
        except DeadError:
            return _FAILED[operation]
        except BaseException:  # noqa: BLE001 (SQLite would go on as if all were well)
            traceback.print_exc()
            return _FAILED[operation]

    return call


@functools.cache
def shim() -> Shim:
    # A search in the module's library is one in those that it is linked to, too.
    library = ctypes.CDLL(sys.modules["_sqlite3"].__file__)
    if not hasattr(library, "sqlite3_vfs_register"):
        pytest.skip("this Python's sqlite3 does not show its SQLite: it is linked statically")
    return Shim(library)
