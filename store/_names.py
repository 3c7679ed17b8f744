"""What the files of a store are called."""

import re
from typing import Final

LOCK: Final = "clearfunds-store"
"""The file that makes a directory a store, and that is locked by whoever has it open."""

QUARANTINE: Final = "quarantine"
TEMPORARY: Final = "snapshot.tmp"

_SEGMENT: Final = re.compile(r"segment-(\d{10})\.log")
_SNAPSHOT: Final = re.compile(r"snapshot-(\d{10})\.idx")


def segment_name(number: int) -> str:
    """Return the file of a segment."""
    return f"segment-{number:010d}.log"


def snapshot_name(number: int) -> str:
    """Return the file of the snapshot that has all before segment `number`."""
    return f"snapshot-{number:010d}.idx"


def segment_number(name: str) -> int | None:
    """Return which segment a file is, if it is one."""
    match = _SEGMENT.fullmatch(name)
    return int(match[1]) if match else None


def snapshot_number(name: str) -> int | None:
    """Return which snapshot a file is, if it is one."""
    match = _SNAPSHOT.fullmatch(name)
    return int(match[1]) if match else None
