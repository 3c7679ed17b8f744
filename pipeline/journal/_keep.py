"""Deletion of a journal's oldest files, by age and by size.

Whole files, whole hours where possible, the oldest first, over all tables. Only files that a relay
has completed, and while nobody reads (`_lock.py`).
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import attrs

from . import _names
from ._compact import hours, is_ours
from ._lock import deleting
from ._tables import TABLES

_EMPTY_AFTER: Final = 2
"""An hour's folder is removed when it is so old: the relay may still put a file into newer ones."""


@attrs.define
class Deleted:
    """What a pass has deleted."""

    files: int = 0
    bytes: int = 0
    until: float | None = None
    """The end of the last hour of which files were deleted, in seconds since 1970."""
    waits: bool = False
    """Whether somebody read, so that nothing was deleted that should have been."""


@attrs.frozen(order=True)
class _Unit:
    """Files that are deleted together: those of an hour, or one of the present hour."""

    hour: int
    written: float
    paths: tuple[Path, ...] = attrs.field(order=False)
    bytes: int = attrs.field(order=False)


def delete_old(folder: Path, *, now: float, seconds: float | None, nbytes: int | None) -> Deleted:
    """Delete files that are older than `seconds`, and the oldest above `nbytes`. Blocks.

    Call it within `alone`.

    Args:
        folder: The journal.
        now: In seconds since 1970.
        seconds: Hours that ended so long ago are deleted; None: none.
        nbytes: The size of all complete files that may stay; None: any.

    Raises:
        OSError: A file cannot be deleted.
    """
    result = Deleted()
    present = int(now) // _names.SECONDS
    units = _units(folder, present)
    total = sum(unit.bytes for unit in units)
    chosen: list[_Unit] = []
    for unit in units:
        end = (unit.hour + 1) * _names.SECONDS
        too_old = seconds is not None and end + seconds <= now
        if not too_old and (nbytes is None or total <= nbytes):
            break
        chosen.append(unit)
        total -= unit.bytes
    if not chosen:
        return result
    with deleting(folder) as nobody_reads:
        if not nobody_reads:
            result.waits = True
            return result
        for unit in chosen:
            for path in unit.paths:
                path.unlink(missing_ok=True)
            result.files += len(unit.paths)
            result.bytes += unit.bytes
            result.until = (unit.hour + 1) * _names.SECONDS
    for table in TABLES:
        for hour, where in hours(folder, table):
            if hour > present - _EMPTY_AFTER:
                break
            with suppress(OSError):  # it is not empty
                where.rmdir()
                where.parent.rmdir()
    return result


def _units(folder: Path, present: int) -> list[_Unit]:
    by_hour: dict[int, list[tuple[Path, os.stat_result]]] = {}
    for table in TABLES:
        for hour, where in hours(folder, table):
            with suppress(FileNotFoundError), os.scandir(where) as entries:
                by_hour.setdefault(hour, []).extend(
                    (Path(entry.path), entry.stat()) for entry in entries if is_ours(entry.name)
                )
    units: list[_Unit] = []
    for hour, files in by_hour.items():
        if hour >= present:
            units += [_Unit(hour, s.st_mtime, (path,), s.st_size) for path, s in files]
        elif files:
            paths = tuple(path for path, _ in files)
            units.append(_Unit(hour, 0.0, paths, sum(s.st_size for _, s in files)))
    return sorted(units)
