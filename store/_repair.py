"""Repair of a store: what is readable is kept, what is not is put aside and named."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from ._database import (
    RUN,
    connect,
    connect_to_look,
    corruption,
    mend_definitions,
    mend_header,
    prepare,
)
from ._directory import Directory
from ._errors import Damage, StoreDiskError
from ._inspection import Inspection
from ._rows import SHARED, Columns, CorruptRowError, whole_run
from ._sentences import CORRUPT, code_of, is_corrupt, trouble
from ._store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ._inspection import Progress

_KEYS: Final = {
    "queue": "id",
    "value": "key",
    "run": "id",
    "finished": "run",
    "body": "id",
    "damaged": "id",
}
"""The tables to copy, with their keys. References are counted anew."""

_UNREADABLE: Final = (*CORRUPT, sqlite3.SQLITE_IOERR)


def repair(
    directory: str | os.PathLike[str], progress: Progress | None = None
) -> tuple[Damage, ...]:
    """Repair a store that nobody has open; return what could not be read.

    If the structure of the database is damaged, its readable rows are copied to a new one, and the
    old one is put aside. Then every message is read; unreadable rows are put aside in the table
    `damaged`, and their messages count as done. Last, free room is given back.

    Raises:
        StoreError: See `Store.open`.
    """
    damages: list[Damage] = []
    try:
        with Inspection(directory, progress) as inspection:
            damages += inspection.faults()
    except StoreDiskError as error:
        if not (isinstance(error.__cause__, sqlite3.Error) and is_corrupt(error.__cause__)):
            raise
        damages.append(Damage("the database", str(error)))
    if damages:
        damages += salvage(directory)
    store = Store.open(directory)
    try:
        for queue in list(store.queues.values()):
            at = read = 0
            total = queue.live_count
            while records := store.read(queue.id, at, count=1000, nbytes=1 << 20):
                at = records[-1].seq + 1
                read += len(records)
                if progress is not None:
                    progress(f"reading {queue.name}", read, total)
        store.compact()
        return (*damages, *store.damages)
    finally:
        store.close()


def salvage(directory: str | os.PathLike[str]) -> list[Damage]:
    """Copy the readable rows of a damaged database to a new one; return what could not be read.

    Raises:
        StoreDiskError: The disk refused.
    """
    place = Directory(directory)
    made = place.where / "messages.new"
    damages: list[Damage] = []
    try:
        place.look()
        made.unlink(missing_ok=True)
        os.close(os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        new = connect(made)
        try:
            prepare(new)
            # What cannot be mended stays as it was, beside the new database.
            mended = place.where / "messages.old"
            _copy_mended(place.database, mended)
            old = connect_to_look(mended)
            try:
                new.execute("BEGIN")
                for table, key in _KEYS.items():
                    _copy(old, new, table, key, damages)
                _count_references(new)
                new.execute("COMMIT")
            finally:
                old.close()
                for path in _with_log(mended):
                    path.unlink(missing_ok=True)
            new.execute("PRAGMA journal_mode=DELETE")  # Nothing is left outside the one file.
        finally:
            new.close()
        _replace(place.database, made)
    except (OSError, sqlite3.Error) as error:
        raise StoreDiskError(trouble(error, "repair", str(place.where))) from error
    finally:
        place.release()
    return damages


def _copy(
    old: sqlite3.Connection,
    new: sqlite3.Connection,
    table: str,
    key: str,
    damages: list[Damage],
) -> None:
    """Copy the rows of a table from both ends, up to where they cannot be read."""
    last = first = None
    # By their names: the names in the old database may be damaged, too.
    columns = [row[1].decode() for row in new.execute(f"PRAGMA table_info({table})")]
    names = f"{key}, {', '.join(columns)}"
    try:
        for row_key, row in _rows(old, names, table, key, None):
            _insert(new, table, row)
            last = row_key
        return
    except sqlite3.DatabaseError as error:
        _check_unreadable(error)
        what = str(error)
    try:
        for row_key, row in _rows(old, names, table, key, last, backwards=True):
            _insert(new, table, row)
            first = row_key
    except sqlite3.DatabaseError as error:
        _check_unreadable(error)
    between = f"after {last!r} and before {first!r}" if first or last else "any"
    damages.append(Damage(f"table {table}", f"{what}; rows that cannot be read: {between}"))


def _check_unreadable(error: sqlite3.DatabaseError) -> None:
    """Raise an error again that does not come from reading the old database."""
    if code_of(error) not in _UNREADABLE:
        raise error


def _insert(new: sqlite3.Connection, table: str, row: tuple[Any, ...]) -> None:
    # Without what is not there where something has to be: such a row is damaged.
    new.execute(f"INSERT OR IGNORE INTO {table} VALUES ({', '.join('?' * len(row))})", row)


def _rows(
    old: sqlite3.Connection,
    names: str,
    table: str,
    key: str,
    after: Any,
    *,
    backwards: bool = False,
) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield the rows with their keys, each by a query of its own: an error concerns one only."""
    order, beyond = ("DESC", "<") if backwards else ("ASC", ">")
    at: Any = None if backwards else after
    while True:
        conditions: list[str] = []
        given: dict[str, Any] = {"at": at, "after": after}
        if at is not None:
            conditions.append(f"{key} {beyond} :at")
        if backwards and after is not None:
            conditions.append(f"{key} > :after")
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        query = f"SELECT {names} FROM {table} NOT INDEXED {where} ORDER BY {key} {order} LIMIT 1"
        found = old.execute(query, given).fetchone()
        if found is None:
            return
        if found[0] is None or (at is not None and not _follows(at, found[0], backwards)):
            # It would go round for ever.
            raise corruption("the keys are out of order")
        at = found[0]
        yield at, found[1:]


def _follows(one: Any, other: Any, backwards: bool) -> bool:
    """Return whether a key comes after another in the order of a walk."""
    if type(one) is not type(other):
        return False
    return bool(other < one if backwards else other > one)


def _count_references(new: sqlite3.Connection) -> None:
    """Count anew how many messages have each shared body, and remove those that none has."""
    counts: Counter[int] = Counter()
    for row in new.execute(f"{RUN} WHERE kind & {SHARED}"):
        try:
            _, first, _, count, _, kind, columns, _ = whole_run(row)
            counts.update(filter(None, Columns(first, count, kind, columns).keys or ()))
        except CorruptRowError:
            continue
    new.executemany("INSERT INTO reference VALUES (?, ?)", counts.items())
    new.execute("DELETE FROM body WHERE id NOT IN (SELECT body FROM reference)")


def _with_log(database: Path) -> list[Path]:
    """Return the files of a database: itself, and those of its write-ahead log."""
    return [database.with_name(database.name + end) for end in ("", "-wal", "-shm")]


def _copy_mended(database: Path, copy: Path) -> None:
    """Copy a database, with its log, and mend the header of the copy and its definitions."""
    for path, target in zip(_with_log(database)[:2], _with_log(copy)[:2], strict=True):
        target.unlink(missing_ok=True)
        if path.exists():
            shutil.copyfile(path, target)
            target.chmod(0o600)
    mend_header(copy)
    db = connect(copy)
    try:
        mend_definitions(db)
    except sqlite3.DatabaseError as error:
        _check_unreadable(error)
    finally:
        db.close()


def _replace(database: Path, made: Path) -> None:
    """Put a new database in the place of the damaged one, which stays beside it."""
    number = 1
    while (aside := database.with_name(f"{database.name}.damaged-{number}")).exists():
        number += 1
    # The database last: without it there is nothing to put aside.
    for path, target in reversed(list(zip(_with_log(database), _with_log(aside), strict=True))):
        if path.exists():
            path.rename(target)
    made.rename(database)
    folder = os.open(database.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
