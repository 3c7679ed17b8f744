"""Compaction: the many small files of an hour become few.

A relay closes a file of each table every minute. Reading a week of these costs more for their
number than for their bytes. So once an hour has been over for a while, the files of each run of
the relay in it are merged, up to a size.

Safe at any moment. The merged file is written under a hidden name and synced. One rename makes it
visible, and its name says which files it stands for (`_names.py`): from then on readers that know
this rule read it alone. Then the files are deleted. Both steps happen while nobody reads
(`_lock.py`), so nobody has listed files that vanish, and other readers see both for some
milliseconds at most. Whatever a kill leaves is put right by the next compaction: a hidden file is
deleted, and so are files in whose place another one stands, if that one is undamaged.

Streams. A stream takes a file that it has not seen for new rows. Spark's takes none that is seven
days older than the newest it has seen (`maxFileAge`), except at its beginning. So the merged file
is dated back: its time is that of the newest file that it stands for, less seven days. A stream
that has seen those passes over it, one that begins reads it, and files stay in order. A stream that
was away so long that an hour was merged of which it had seen a part reads that part again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Generator, Iterator
from itertools import groupby
from pathlib import Path
from typing import IO, Any, Final

import attrs

from .._errors import PipelineError
from . import _names
from ._damage import Damage, why_damaged
from ._files import HIDDEN, ROW_GROUP, parquet_writer
from ._listing import local
from ._lock import deleting, take
from ._names import Name
from ._readers import open_private
from ._tables import TABLES, Table, arrow

logger = logging.getLogger("clearfunds.journal")

LOCK: Final = ".compacting"
"""In the journal's folder: locked by the one who compacts, or deletes what is too old."""

MERGING: Final = "_"
"""The prefix of a merged file's name until it is complete."""

DATED_BACK: Final = 7 * 86_400 + 1
"""Seconds: a little more than the default of Spark's `maxFileAge`."""

PATIENCE: Final = 60.0
"""Seconds to wait until nobody reads; after that the hour's turn comes with the next pass."""

_POLL: Final = 0.1


@attrs.define
class Compacted:
    """The work of a compaction."""

    files: int = 0
    """Files that were merged."""
    into: int = 0
    """The files that they became."""
    bytes: int = 0
    """The bytes that they had."""
    bytes_after: int = 0
    damaged: list[Damage] = attrs.field(factory=list[Damage])
    """Files that cannot be read, and were left where they are."""
    waits: int = 0
    """Merges that were put off, since somebody read all the time."""


@contextlib.contextmanager
def alone(folder: Path) -> Generator[bool]:
    """Be the only one who merges or deletes files of a journal: the value says whether.

    Raises:
        OSError: The folder cannot be written.
    """
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield take(descriptor)
    finally:
        os.close(descriptor)


def hours(folder: Path, table: str) -> Iterator[tuple[int, Path]]:
    """Return the folders of a table's hours, the oldest first."""
    found: list[tuple[int, Path]] = []
    for date, is_folder in local(str(folder / table)):
        first = _names.first_hour(date) if is_folder else None
        if first is None:
            continue
        for name, is_hour in local(str(folder / table / date)):
            hour = _names.hour_of_day(name) if is_hour else None
            if hour is not None:
                found.append((first + hour, folder / table / date / name))
    yield from sorted(found)


def compact(
    folder: Path,
    *,
    before: float,
    max_bytes: int,
    done: set[Path] | None = None,
    stopped: Callable[[], bool] = lambda: False,
    patience: float = PATIENCE,
) -> Compacted:
    """Merge the small files of each hour that ended before a moment. Blocks.

    Call it within `alone`.

    Args:
        folder: The journal.
        before: The moment, in seconds since 1970.
        max_bytes: The size of a merged file, about.
        done: Folders of hours that need no look; those of this call are added.
        stopped: Asked often; when it returns true, the work ends in good order.
        patience: Seconds to wait until nobody reads the journal, for each merged file.

    Raises:
        OSError: The disk is full, or the like.
        MissingError: pyarrow is not installed.
    """
    arrow("pyarrow.parquet")
    result = Compacted()
    there: set[Path] = set()
    for table in TABLES.values():
        for hour, where in hours(folder, table.name):
            there.add(where)
            if (hour + 1) * _names.SECONDS > before or stopped():
                break
            if done is None or where not in done:
                waits = result.waits
                _compact_hour(folder, table, where, max_bytes, result, stopped, patience)
                if done is not None and result.waits == waits and not stopped():
                    done.add(where)
    if done is not None and not stopped():
        done &= there  # hours that have been deleted are forgotten
    return result


def _compact_hour(
    folder: Path,
    table: Table,
    where: Path,
    max_bytes: int,
    result: Compacted,
    stopped: Callable[[], bool],
    patience: float,
) -> None:
    if not _tidy(folder, table, where):
        result.waits += 1
        return
    for group in _groups(table, where, max_bytes, result):
        if stopped():
            return
        merged = _merge(table, where, group, stopped)
        if merged is None:
            return
        hidden, name, size = merged
        until = time.monotonic() + patience
        while not _swap(folder, where, hidden, name, [path for path, _, _ in group]):
            if stopped() or time.monotonic() >= until:
                hidden.unlink()
                result.waits += 1
                return
            time.sleep(_POLL)
        result.files += len(group)
        result.into += 1
        result.bytes += sum(nbytes for _, _, nbytes in group)
        result.bytes_after += size


def _tidy(folder: Path, table: Table, where: Path) -> bool:
    """Put right what a kill has left; return whether it is."""
    names = {name: _names.parse(name) for name, _ in local(str(where))}
    for text in names:
        if text.startswith(MERGING) and _names.parse(text.removeprefix(MERGING)) is not None:
            (where / text).unlink(missing_ok=True)
    if not _names.superseded(names):
        return True
    for text, name in names.items():
        if name is not None and name.first != name.last:
            why = why_damaged(table, str(where / text))
            if why is not None and any(name.stands_for(o) for o in names.values() if o is not None):
                # The files that it was made of are still there, and are whole.
                logger.warning(
                    "a merged file of the journal is damaged, and made again: %s %s",
                    where / text,
                    why,
                    extra={"event": "journal_damaged", "path": str(where / text), "reason": why},
                )
                (where / text).unlink()
                return _tidy(folder, table, where)
    with deleting(folder) as nobody_reads:
        if nobody_reads:
            for text in _names.superseded(names):
                (where / text).unlink(missing_ok=True)
    return nobody_reads


_File = tuple[Path, Name, int]


def _groups(table: Table, where: Path, max_bytes: int, result: Compacted) -> Iterator[list[_File]]:
    """Return the files to merge, each time two or more of one run, in order."""
    found: list[_File] = []
    for text in _names.current(name for name, is_folder in local(str(where)) if not is_folder):
        name = _names.parse(text)
        if name is not None:
            found.append((where / text, name, (where / text).stat().st_size))
    found.sort(key=lambda each: (each[1].run, each[1].first))
    for _, files in groupby(found, key=lambda each: each[1].run):
        group: list[_File] = []
        size = 0
        for each in files:
            path, _, nbytes = each
            why = why_damaged(table, str(path)) if nbytes < max_bytes else None
            if why is not None:
                result.damaged.append(Damage(str(path), why))
            if why is not None or size + nbytes > max_bytes:
                # The merged file would stand for this one, too.
                if len(group) > 1:
                    yield group
                group, size = [], 0
            if why is None:
                group.append(each)
                size += nbytes
        if len(group) > 1:
            yield group


def _merge(
    table: Table, where: Path, group: list[_File], stopped: Callable[[], bool]
) -> tuple[Path, str, int] | None:
    """Write a hidden file with the rows of a group; return its path, later name and size.

    None if it was stopped.
    """
    first, last = group[0][1], group[-1][1]
    hidden = where / f"{MERGING}{Name(first.run, first.first, last.last)}"
    with contextlib.ExitStack() as undo:
        undo.callback(lambda: hidden.unlink(missing_ok=True))
        with os.fdopen(open_private(hidden), "w+b", buffering=1 << 20) as file:
            if not _write(table, file, [path for path, _, _ in group], stopped):
                return None
            file.flush()
            size = file.tell()
            file.seek(0)
            crc = _names.checksum(file)
            kept = group[0][0].stat()
            os.fchmod(file.fileno(), kept.st_mode & 0o777)
            with contextlib.suppress(PermissionError):  # root may compact a relay's journal
                os.fchown(file.fileno(), kept.st_uid, kept.st_gid)
            newest = max(path.stat().st_mtime for path, _, _ in group)
            os.utime(file.fileno(), (newest, newest - DATED_BACK))
            os.fsync(file.fileno())
        undo.pop_all()
    return hidden, str(Name(first.run, first.first, last.last, crc)), size


def _write(table: Table, file: IO[bytes], paths: list[Path], stopped: Callable[[], bool]) -> bool:
    pa, parquet = arrow("pyarrow"), arrow("pyarrow.parquet")
    strings = [column.name for column in table.columns if column.type == "string"]
    encoded = pa.dictionary(pa.int32(), pa.string())
    schema = pa.schema([f.with_type(encoded) if f.name in strings else f for f in table.schema])
    waiting: list[Any] = []
    rows = read = written = 0

    def write_out() -> None:
        nonlocal waiting, rows, written
        whole = pa.Table.from_batches(waiting, schema).unify_dictionaries()
        writer.write_table(whole, row_group_size=ROW_GROUP)
        written += whole.num_rows
        waiting, rows = [], 0

    with parquet_writer(file, table.schema, schema) as writer:
        for path in paths:
            if stopped():
                return False
            with parquet.ParquetFile(path, read_dictionary=strings) as source:
                read += source.metadata.num_rows
                for batch in source.iter_batches(
                    ROW_GROUP, columns=schema.names, use_threads=False
                ):
                    waiting.append(batch.cast(schema) if batch.schema != schema else batch)
                    rows += batch.num_rows
                    if rows >= ROW_GROUP:
                        write_out()
        if waiting:
            write_out()
    if read != written:
        msg = f"{written} rows were merged of {read}, in the folder of {paths[0]}"
        raise PipelineError(msg)
    return True


def _swap(folder: Path, where: Path, hidden: Path, name: str, replaced: list[Path]) -> bool:
    """Put a merged file in the place of others, unless somebody reads; return whether."""
    with deleting(folder) as nobody_reads:
        if nobody_reads:
            hidden.rename(where / name)
            descriptor = os.open(where, os.O_RDONLY)
            try:
                os.fsync(descriptor)  # before the others go
            finally:
                os.close(descriptor)
            for path in replaced:
                path.unlink(missing_ok=True)
    return nobody_reads


def is_ours(name: str) -> bool:
    """Whether a relay wrote a file of that name, and completed it."""
    return not name.startswith((HIDDEN, MERGING)) and _names.parse(name) is not None
