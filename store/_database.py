"""The database of a store: its tables, and connections to it.

A row of `run` has consecutive messages of one queue, up to `RUN_BYTES`: a row for each message
costs SQLite 2.6 times as much. Those of its messages that are done are bits in `finished`, until
all of them are and the row goes, or half of their bytes are and it is written again.

SQLite has no checksums of its own: each row has one, of all its columns (CRC-32).
"""

from __future__ import annotations

import functools
import sqlite3
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

PAGE_BYTES: Final = 16384
"""Measured: of 4 KiB, the default, a row of a run takes 17 pages."""

LOG_BYTES: Final = 16 << 20
"""Size of the write-ahead log from which it is copied into the database."""

_HEADER_BYTES: Final = 24

CACHE_BYTES: Final = 4 << 20
"""SQLite's own cache of the writer's connection; 16 MiB save no CPU."""

READER_CACHE_BYTES: Final = 1 << 20

IDLE_SECONDS: Final = 5.0
"""After so long without work the caches are given back."""

BUSY_SECONDS: Final = 5.0
"""How long to wait for another program that looks into the database; SQLite's shell has none."""

TABLES: Final = """
CREATE TABLE IF NOT EXISTS queue(
    id INTEGER PRIMARY KEY, name BLOB NOT NULL, meta BLOB NOT NULL, next INTEGER NOT NULL,
    checksum INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS value(
    key BLOB PRIMARY KEY, value BLOB NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS run(
    id INTEGER PRIMARY KEY, queue INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
    count INTEGER NOT NULL, size INTEGER NOT NULL, kind INTEGER NOT NULL,
    checksum INTEGER NOT NULL, columns BLOB NOT NULL, data BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS run_place ON run(queue, first);
CREATE TABLE IF NOT EXISTS finished(
    run INTEGER PRIMARY KEY, size INTEGER NOT NULL, mask BLOB NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS body(
    id INTEGER PRIMARY KEY, checksum INTEGER NOT NULL, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS reference(body INTEGER PRIMARY KEY, count INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS damaged(
    id INTEGER PRIMARY KEY, queue INTEGER NOT NULL, first INTEGER, last INTEGER, columns BLOB,
    data BLOB);
"""


RUN: Final = "SELECT queue, first, last, count, size, kind, columns, data, checksum FROM run"
"""For `whole_run`."""

RUNS_FROM: Final = """
    FROM run LEFT JOIN finished ON run = id
    WHERE queue = ?1 AND last >= ?2 AND first >= coalesce(
        (SELECT max(first) FROM run WHERE queue = ?1 AND first <= ?2), ?2)"""
"""The rows of a queue (?1) that have messages from a number (?2) on, with their done messages."""


_DEFINITIONS: Final = "the definitions of its tables are damaged"

_HEADER: Final = {0: (b"SQLite format 3\0",), 18: (b"\2\2", b"\1\1"), 21: (b"\x40\x20\x20",)}
"""The constants in the header of a database, by offset (sqlite.org/fileformat2.html, 1.3); the
second is 1, 1 until there is a write-ahead log."""


def has_sound_header(path: Path) -> bool:
    """Return whether the constants in the header are right; SQLite's errors for them mislead.

    No connection of this process may be open: closing a file gives up the locks on it.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    if not header:
        return True  # SQLite has yet to make it.
    return all(header[at : at + len(right[0])] in right for at, right in _HEADER.items())


def mend_header(path: Path) -> None:
    """Write the constants of the header.

    Raises:
        OSError: The disk refused.
    """
    with path.open("r+b") as file:
        for at, (right, *_) in _HEADER.items():
            file.seek(at)
            file.write(right)


def connect(path: Path, *, vfs: str | None = None) -> sqlite3.Connection:
    """Open a connection that any thread may use, one at a time.

    Raises:
        sqlite3.Error: It cannot be opened.
    """
    return _connect(path, f"mode=rw&vfs={vfs}" if vfs else "mode=rw")


def connect_to_look(path: Path) -> sqlite3.Connection:
    """Open a connection for reading to a database that nobody has open.

    Nothing is written, unless a process was killed and left a log: SQLite then makes an index of
    that beside it.

    Raises:
        sqlite3.Error: It cannot be opened.
    """
    log = path.with_name(path.name + "-wal")
    logged = log.exists() and log.stat().st_size
    return _connect(path, "mode=ro" if logged else "mode=ro&immutable=1")


def _connect(path: Path, how: str) -> sqlite3.Connection:
    db = sqlite3.connect(
        f"{path.absolute().as_uri()}?{how}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=BUSY_SECONDS,
    )
    # A name of a queue, and a key, is any text.
    db.text_factory = bytes
    return db


@functools.cache
def _definitions() -> list[tuple[int, str, str, str, str]]:
    db = sqlite3.connect(":memory:")
    try:
        db.executescript(TABLES)
        return db.execute("SELECT rowid, type, name, tbl_name, sql FROM sqlite_schema").fetchall()
    finally:
        db.close()


def check_definitions(db: sqlite3.Connection) -> None:
    """Check that the tables, if there are any, are defined as they were written.

    Raises:
        sqlite3.Error: They are not, or cannot be read.
    """
    try:
        found = db.execute(
            "SELECT rowid, CAST(type AS BLOB), CAST(name AS BLOB), CAST(tbl_name AS BLOB), "
            "CAST(sql AS BLOB) FROM sqlite_schema"
        ).fetchall()
    except UnicodeDecodeError as error:  # SQLite's error quotes them.
        raise corruption(_DEFINITIONS) from error
    right = [(row[0], *(word.encode() for word in row[1:])) for row in _definitions()]
    if found and found != right:
        raise corruption(_DEFINITIONS)


def mend_definitions(db: sqlite3.Connection) -> None:
    """Write the definitions of the tables anew.

    Raises:
        sqlite3.Error: Not even their rows can be found, or the disk refused.
    """
    db.execute("PRAGMA writable_schema=ON")
    db.executemany(
        "UPDATE sqlite_schema SET type = ?2, name = ?3, tbl_name = ?4, sql = ?5 WHERE rowid = ?1",
        _definitions(),
    )
    db.execute("DELETE FROM sqlite_schema WHERE rowid > ?", (len(_definitions()),))


def corruption(what: str) -> sqlite3.DatabaseError:
    """Return an error for a database that is not what was written."""
    error = sqlite3.DatabaseError(what)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def prepare(db: sqlite3.Connection, *, fsync: bool = True) -> None:
    """Set up a connection for writing, and make the tables.

    Args:
        db: The connection.
        fsync: Whether the end of a transaction waits for the disk.

    Raises:
        sqlite3.Error: The disk refused, or the file is damaged.
    """
    check_definitions(db)
    db.execute(f"PRAGMA page_size={PAGE_BYTES}")
    db.execute("PRAGMA auto_vacuum=INCREMENTAL")
    # Debian's SQLite has it on, which writes 20 times as much for an acknowledgement. FAST still
    # overwrites what is deleted inside a page that is written anyway.
    db.execute("PRAGMA secure_delete=FAST")
    db.execute("PRAGMA journal_mode=WAL")
    db.execute(f"PRAGMA synchronous={'FULL' if fsync else 'OFF'}")
    db.execute(f"PRAGMA wal_autocheckpoint={LOG_BYTES // PAGE_BYTES}")
    db.execute(f"PRAGMA journal_size_limit={2 * LOG_BYTES}")
    db.execute(f"PRAGMA cache_size=-{CACHE_BYTES >> 10}")
    db.executescript(f"BEGIN IMMEDIATE; {TABLES} COMMIT;")


def text(value: str) -> bytes:
    """Return any text as bytes, surrogates included."""
    return value.encode("utf-8", "surrogatepass")


def from_bytes(value: bytes) -> str:
    """Return the text of `text`."""
    return value.decode("utf-8", "surrogatepass")
