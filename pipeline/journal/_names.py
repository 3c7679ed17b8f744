"""The names of a journal's files, which say what readers need to know before they open one.

    settlements/date=2026-11-21/hour=18/part-20261121T181502.512345-4711-000001.9a0c1f27.parquet

That is the run of a relay (its start and process), the number of the file in this run, and the
CRC-32 of all of its bytes (as in zip files and Ethernet). A file that compaction has made has two
numbers, `000001+000060`: it stands for the files of these numbers of the same run and hour. So a
single rename puts it in their place for readers that know this rule, however many are still there.

Older files have no checksum. Files with other names are read, too, but never merged or deleted.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import IO, Final

import attrs

SECONDS: Final = 3600
"""Seconds in an hour, the time that one folder holds."""

HIDDEN: Final = (".", "_")
"""Names that begin so are of no complete file."""

SUFFIX: Final = ".parquet"

_NAME: Final = re.compile(
    r"part-(?P<run>[0-9]{8}T[0-9]{6}\.[0-9]{6}-[0-9]+)-(?P<first>[0-9]{6,})(\+(?P<last>[0-9]{6,}))?"
    r"(\.(?P<crc>[0-9a-f]{8}))?\.parquet"
)
_DATE: Final = re.compile(r"date=([0-9]{4}-[0-9]{2}-[0-9]{2})")
_HOUR: Final = re.compile(r"hour=([0-9]{2})")


@attrs.frozen
class Name:
    """The parts of a file's name."""

    run: str
    """The run of a relay that wrote it."""
    first: int
    """Its number in that run; the first, if it stands for several files."""
    last: int
    crc: int | None = None
    """The CRC-32 of its bytes, if the name has it."""

    def __str__(self) -> str:
        numbers = f"{self.first:06}" + (f"+{self.last:06}" if self.last != self.first else "")
        crc = "" if self.crc is None else f".{self.crc:08x}"
        return f"part-{self.run}-{numbers}{crc}{SUFFIX}"

    def stands_for(self, other: Name) -> bool:
        """Whether it has been put in the place of that file, of the same folder."""
        return (
            self.run == other.run
            and self.first <= other.first
            and other.last <= self.last
            and (self.first, self.last) != (other.first, other.last)
        )


def parse(name: str) -> Name | None:
    """Return the parts of the name of a file that a relay wrote; None for any other file."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    first = int(match["first"])
    last = first if match["last"] is None else int(match["last"])
    return Name(match["run"], first, last, None if match["crc"] is None else int(match["crc"], 16))


def superseded(names: Mapping[str, Name | None]) -> set[str]:
    """Return the files of a folder in whose place another one has been put."""
    merged = [name for name in names.values() if name is not None and name.first != name.last]
    return {
        text
        for text, name in names.items()
        if name is not None and any(other.stands_for(name) for other in merged)
    }


def current(names: Iterable[str]) -> list[str]:
    """Return the files to read of those in a folder, in order: complete, and not superseded."""
    found = {
        name: parse(name)
        for name in sorted(names)
        if name.endswith(SUFFIX) and not name.startswith(HIDDEN)
    }
    old = superseded(found)
    return [name for name in found if name not in old]


def folder_of(hour: int) -> tuple[str, str]:
    """Return the names of the folders of an hour, counted from 1970: its date and itself."""
    at = datetime.fromtimestamp(hour * SECONDS, UTC)
    return f"date={at:%Y-%m-%d}", f"hour={at:%H}"


def first_hour(date: str) -> int | None:
    """Return the first hour of a folder `date=...`; None if it is no such folder."""
    match = _DATE.fullmatch(date)
    if match is None:
        return None
    try:
        at = datetime.fromisoformat(match[1]).replace(tzinfo=UTC)
    except ValueError:
        return None
    return int(at.timestamp()) // SECONDS


def hour_of_day(hour: str) -> int | None:
    """Return the number of a folder `hour=...`; None if it is no such folder."""
    match = _HOUR.fullmatch(hour)
    return int(match[1]) if match is not None and int(match[1]) < 24 else None


def checksum(file: IO[bytes]) -> int:
    """Return the CRC-32 of the rest of a file.

    Raises:
        OSError: It cannot be read.
    """
    crc = 0
    while block := file.read(1 << 20):
        crc = zlib.crc32(block, crc)
    return crc
