"""The names of the files of a store."""

import re
from typing import Final

LOCK: Final = "clearfunds-store"
"""The file that makes a directory a store, and that a process locks while the store is open."""

QUARANTINE: Final = "quarantine"
TEMPORARY: Final = "snapshot.tmp"

_SEGMENT: Final = re.compile(r"segment-(\d{10})\.log")
_SNAPSHOT: Final = re.compile(r"snapshot-(\d{10})\.idx")


def segment_name(number: int) -> str:
    """Return the name of a segment's file."""
    return f"segment-{number:010d}.log"


def snapshot_name(number: int) -> str:
    """Return the name of the snapshot that covers everything before segment `number`."""
    return f"snapshot-{number:010d}.idx"


def segment_number(name: str) -> int | None:
    """Return the number of the segment that a file is, if it is one."""
    match = _SEGMENT.fullmatch(name)
    return int(match[1]) if match else None


def snapshot_number(name: str) -> int | None:
    """Return the number of the snapshot that a file is, if it is one."""
    match = _SNAPSHOT.fullmatch(name)
    return int(match[1]) if match else None
