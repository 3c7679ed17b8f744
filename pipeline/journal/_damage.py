"""Damaged files: truncated, empty, foreign, or with other bytes than were written.

A file's name has the CRC-32 of its bytes, which finds each of these before any library parses the
file. A library alone would not do: DuckDB verifies no checksum of Parquet's, and returned wrong
rows for four of five flipped bits; Spark verifies those of pages if told to; and pyarrow, which
verifies them, too, ended the process on a flipped bit in a footer. Files without a checksum in
their names (of older versions, or foreign) are read once by pyarrow, which notices what their
format lets it notice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from . import _names
from ._tables import TABLES, arrow

if TYPE_CHECKING:
    from ._tables import Table

_MAGIC: Final = b"PAR1"
"""The first and the last bytes of a Parquet file."""

_THREADS: Final = 8
"""Threads that check: they wait for the disk half of the time."""


@attrs.frozen(order=True)
class Damage:
    """A file that cannot be read."""

    path: str
    why: str
    """The second half of a sentence: `is empty`."""

    def __str__(self) -> str:
        return f"{self.path} {self.why}"


def find_damage(files: Mapping[str, Iterable[str]]) -> list[Damage]:
    """Return the damaged files of those given by table, in order. Reads all of their bytes."""
    work = [(TABLES[table], path) for table, paths in files.items() for path in paths]
    with ThreadPoolExecutor(_THREADS) as pool:
        found = pool.map(why_damaged, *zip(*work, strict=True)) if work else ()
        return sorted(
            Damage(path, why) for (_, path), why in zip(work, found, strict=True) if why is not None
        )


def why_damaged(table: Table, path: str) -> str | None:
    """Return what is wrong with a file of a table, as `is empty`; None if nothing is."""
    try:
        with Path(path).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(4)
            file.seek(max(size - 4, 0))
            tail = file.read()
            file.seek(0)
            crc = partial(_names.checksum, file)
            return judge(table, path, size, (head, tail), crc, lambda: path)
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"


def judge(
    table: Table,
    path: str,
    size: int,
    ends: tuple[bytes, bytes],
    checksum: Callable[[], int],
    content: Callable[[], Any],
) -> str | None:
    """Return what is wrong with a file, as `why_damaged`.

    Args:
        table: The table that it is in.
        path: Its path or URL.
        size: Its size in bytes.
        ends: Its first four bytes and its last four.
        checksum: Returns the CRC-32 of its bytes.
        content: Returns what pyarrow can read it from: its path, or a `pyarrow.NativeFile`.
    """
    head, tail = ends
    if not size:
        return "is empty"
    if head != _MAGIC[: len(head)]:
        return "is no Parquet file"
    if size < 12 or tail != _MAGIC:
        return f"is truncated: it has {size:,} bytes, and not the end of a Parquet file"
    name = _names.parse(os.path.basename(path))
    if name is None or name.crc is None:
        return _unreadable(table, content())
    found = checksum()
    if found == name.crc:
        return None
    return f"is damaged: the checksum of its bytes is {found:08x}, and was {name.crc:08x}"


def _unreadable(table: Table, content: Any) -> str | None:
    """Read a file without a checksum in its name."""
    pa, parquet = arrow("pyarrow"), arrow("pyarrow.parquet")
    try:
        with parquet.ParquetFile(content, page_checksum_verification=True) as file:
            has = {field.name: field.type for field in file.schema_arrow}
            for field in table.schema:
                found = has.get(field.name)
                if found is None:
                    return f"is no file of {table.name}: it has no column {field.name}"
                if pa.types.is_dictionary(found):
                    found = found.value_type
                if found != field.type:
                    return (
                        f"is no file of {table.name}: its column {field.name} is {found}, not "
                        f"{field.type}"
                    )
            for batch in file.iter_batches(columns=table.schema.names):
                batch.validate()
    except (OSError, ValueError, pa.ArrowException) as error:
        first = str(error).strip().partition("\n")[0]
        return f"is damaged: {first}"
    return None
