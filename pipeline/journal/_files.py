"""The files of one table: hidden at first, written in row groups, renamed when complete.

All functions here block, and run in a thread. A file that cannot be finished is removed, and its
rows are counted as lost. Rows that are in no file yet are kept and written later.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import attrs

from ._names import Name, checksum, folder_of
from ._readers import let_read, make_folder, open_private
from ._tables import TABLES, arrow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ._columns import Columns
    from ._readers import Readers
    from ._sample import Rows
    from ._settings import JournalSettings
    from ._tables import Table

ROW_GROUP: Final = 1 << 16
"""Rows written at a time: some megabytes of memory. Readers skip whole row groups."""

HIDDEN: Final = "."
"""The prefix of a file's name until the file is complete."""


def open_file(path: Path) -> IO[bytes]:
    """Create a file that does not exist."""
    return os.fdopen(open_private(path), "wb", buffering=1 << 20)


@attrs.define(slots=True)
class Written:
    """Counts of rows that were written or lost so far."""

    rows: int = 0
    """Rows in complete files."""
    bytes: int = 0
    """Bytes of complete files."""
    files: int = 0
    """Complete files."""
    lost: int = 0
    """Rows in files that could not be finished."""


def parquet_writer(file: IO[bytes], schema: Any, written: Any) -> Any:
    """Return the `pyarrow.parquet.ParquetWriter` for a file of a table.

    Args:
        file: The file.
        schema: The table's schema.
        written: The same with dictionaries for strings, as the batches have it.
    """
    whole = [f.name for f in schema if not str(f.type).startswith(("string", "double"))]
    deltas = [n for n in whole if n.endswith("_ns")] + [schema.field(0).name]
    return arrow("pyarrow.parquet").ParquetWriter(
        file,
        written,
        # Readers need no Arrow schema in the file.
        store_schema=False,
        compression="zstd",
        use_dictionary=[f.name for f in schema if f.name not in deltas],
        # A quarter of the bytes, and half of the time, of the plain encoding.
        column_encoding=dict.fromkeys(deltas, "DELTA_BINARY_PACKED"),
        # For readers that do not know of the checksum in the file's name.
        write_page_checksum=True,
    )


class Part:
    """A file that is being written.

    Attributes:
        path: Its path once it is complete; the name lacks the checksum until then.
    """

    def __init__(
        self,
        folder: Path,
        name: Name,
        hour: int,
        columns: Columns,
        open_: Callable[[Path], IO[bytes]],
        readers: Readers = "owner",
    ) -> None:
        self._name = name
        self.path = path = folder / str(name)
        self._readers: Readers = readers
        self.hour = hour
        self.rows = 0
        self._hidden = path.with_name(HIDDEN + path.name)
        self._pa = arrow("pyarrow")
        self._file = open_(self._hidden)
        try:
            self._writer = parquet_writer(self._file, columns.schema, columns.written)
        except BaseException:
            self._discard()
            raise

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._file.tell()

    def write(self, batches: Sequence[Any]) -> None:
        """Add a row group."""
        # With one dictionary for each column, Arrow uses it unchanged for the file's row group.
        table = self._pa.Table.from_batches(batches).unify_dictionaries()
        # Counted first: rows of a write that fails half-way are lost, too.
        self._writer.write_table(table, row_group_size=ROW_GROUP)
        self.rows += table.num_rows

    def complete(self) -> int:
        """Finish the file, make it visible, and return its size."""
        self._writer.close()
        self._file.flush()
        size = self._file.tell()
        os.fsync(self._file.fileno())
        self._file.close()
        with self._hidden.open("rb") as file:
            self.path = self.path.with_name(str(attrs.evolve(self._name, crc=checksum(file))))
        let_read(self._hidden, self._readers)
        self._hidden.rename(self.path)
        return size

    def abandon(self) -> None:
        """Remove the unfinished file."""
        self._writer.is_open = False  # else the writer tries to write its end when it is freed
        self._discard()

    def _discard(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self._hidden.unlink()


class TableFiles:
    """The files of one table.

    Args:
        folder: The journal's folder.
        table: The table.
        columns: Makes record batches of its rows.
        settings: When files are complete.
        run: The part of the file names that is unique to this run.
        open_: Opens a file.

    Attributes:
        written: Counts of rows that were written or lost so far.
    """

    def __init__(
        self,
        folder: Path,
        table: Table,
        columns: Columns,
        settings: JournalSettings,
        run: str,
        open_: Callable[[Path], IO[bytes]] = open_file,
    ) -> None:
        self._folder = folder
        self._name = table.name
        self._columns = columns
        self._settings = settings
        self._run = run
        self._open = open_
        self._number = 0
        self._part: Part | None = None
        self._due: float | None = None
        self._batches: list[tuple[int, Any]] = []
        self.written = Written()

    @property
    def waiting(self) -> int:
        """How many rows are in no complete file yet."""
        in_batches: int = sum([batch.num_rows for _, batch in self._batches])
        part = self._part  # read once: the thread may be completing it
        return in_batches if part is None else in_batches + part.rows

    def put(self, waiting: Iterable[Rows]) -> None:
        """Take rows for `work` to write. Invalid rows are lost, and are not tried again.

        Raises:
            Exception: Arrow cannot hold some value.
        """
        wrong: Exception | None = None
        for each in waiting:
            count = len(each)
            try:
                self._columns.pack(each)
            except Exception as exc:  # noqa: BLE001 (the other rows can be written)
                self.written.lost += count - len(each)
                wrong = exc
            weighed = self._columns.weighed
            self._batches += [(hour, weighed(batch, each.weight)) for hour, batch in each.batches]
        if wrong is not None:
            raise wrong

    def work(self, now: float, *, everything: bool = False) -> None:
        """Write full row groups, and complete the file if it is due at `now`.

        With `everything`, write all rows, and complete the file.

        Raises:
            OSError: If they cannot be written.
        """
        if self._due is None and self._batches:
            self._due = now + self._settings.roll_every
        due = everything or (self._due is not None and now >= self._due)
        try:
            while self._batches:
                hour = self._batches[0][0]
                ready = [batch for at, batch in self._batches if at == hour]
                last = len(ready) == len(self._batches)
                if last and not due and sum([batch.num_rows for batch in ready]) < ROW_GROUP:
                    break
                if self._part is None:
                    self._part = self._begin(hour)
                elif self._part.hour != hour:
                    self._complete()
                    continue
                self._part.write(ready)
                self._batches = [each for each in self._batches if each[0] != hour]
                if self._part.size >= self._settings.roll_bytes:
                    self._complete()
            if due:
                if self._part is not None:
                    self._complete()
                self._due = None
        except OSError:
            self._abandon()
            raise
        except Exception:
            # The values themselves cannot be written: another try would fail, too.
            self.written.lost += sum([batch.num_rows for _, batch in self._batches])
            self._batches.clear()
            self._abandon()
            raise

    def _begin(self, hour: int) -> Part:
        if not self._folder.is_dir():
            # If its disk is no longer mounted, making the folder would fill another disk.
            raise FileNotFoundError(errno.ENOENT, "the directory is gone", str(self._folder))
        where = self._folder
        for name in (self._name, *folder_of(hour)):
            where /= name
            make_folder(where, self._settings.readers)
        self._number += 1
        named = Name(self._run, self._number, self._number)
        return Part(where, named, hour, self._columns, self._open, self._settings.readers)

    def _complete(self) -> None:
        part = self._part
        assert part is not None
        size = part.complete()
        self._part = None
        written = self.written
        written.rows += part.rows
        written.bytes += size
        written.files += 1

    def _abandon(self) -> None:
        part, self._part = self._part, None
        if part is not None:
            self.written.lost += part.rows
            part.abandon()


def leftovers(folder: Path) -> list[Path]:
    """Return the files that an earlier run did not finish."""
    return [
        path
        for name in TABLES
        for path in (folder / name).glob(f"date=*/hour=*/{HIDDEN}part-*.parquet")
    ]
