"""A journal of many small files, each row in the folder of its hour, as a relay writes it."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

from clearfunds.pipeline._arrow import arrow
from clearfunds.pipeline.journal import TABLES
from clearfunds.pipeline.journal._names import Name
from clearfunds.pipeline.journal._place import find
from clearfunds.pipeline.journal._selection import select

SECOND = 10**9
BEGIN = 1_760_000_400 * SECOND
"""An hour begins."""

RUN = "20251009T090000.000000-4711"


def settlements(count: int, begin: int = BEGIN, step: int = SECOND) -> Any:
    """Return settlements, one each `step`."""
    rows = [
        {
            "settled": (begin + number * step) // 1000,
            "opened_ns": begin + number * step - SECOND // 10,
            "settled_ns": begin + number * step,
            "account": f"account {number % 5}",
            "parent": None if number % 3 else "server",
            "holder": f"holder {number % 7}",
            "kind": "outlet",
            "outcome": "delivered",
            "items": number,
            "bytes": 10 * number,
            "weight": 1.0,
        }
        for number in range(count)
    ]
    return arrow().Table.from_pylist(rows, schema=TABLES["settlements"].schema)


def write_file(table: Any, into: Path, number: int, run: str = RUN) -> Path:
    """Write one file under the name that a relay gives it."""
    into.mkdir(parents=True, exist_ok=True)
    hidden = into / ".file"
    arrow("pyarrow.parquet").write_table(table, hidden, compression="zstd")
    hidden.chmod(0o640)
    crc = zlib.crc32(hidden.read_bytes())
    moment = table[0][0].as_py().timestamp()
    os.utime(hidden, (moment, moment))
    return hidden.rename(into / str(Name(run, number, number, crc)))


def write_small(
    folder: Path, count: int = 60, pieces: int = 6, begin: int = BEGIN, run: str = RUN
) -> list[Path]:
    """Write settlements of one hour into many files."""
    from clearfunds.pipeline.journal._names import folder_of

    into = folder.joinpath("settlements", *folder_of(begin // (3600 * SECOND)))
    table = settlements(count, begin)
    size = -(-count // pieces)
    return [
        write_file(table.slice(at, size), into, number, run)
        for number, at in enumerate(range(0, count, size), 1)
    ]


def seen(folder: Path) -> list[int]:
    """Return what a reader finds: the items of all settlements, in order."""
    found: list[int] = []
    for path in select(find(folder)).files("settlements"):
        found += arrow("pyarrow.parquet").ParquetFile(path).read()["items"].to_pylist()
    return sorted(found)


def there(folder: Path) -> list[str]:
    """Return the names of all files in the folders of hours.

    With `os.walk`, as a relay may delete a folder while this looks: `Path.glob` raises then.
    """
    return sorted(
        name
        for at, _, files in os.walk(folder)
        if Path(at).match("*/date=*/hour=*")
        for name in files
    )
