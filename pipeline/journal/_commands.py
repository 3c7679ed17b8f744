"""What can be done to a journal's files as a whole, also while a relay writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._errors import PipelineError
from ._compact import Compacted, alone, compact
from ._damage import Damage, find_damage
from ._listing import folders
from ._lock import reading
from ._place import Place, find
from ._tables import TABLES

if TYPE_CHECKING:
    import os
    from pathlib import Path


def compact_journal(folder: str | os.PathLike[str], *, before: float, max_bytes: int) -> Compacted:
    """Merge the small files of each hour that ended before a moment. Blocks.

    Args:
        folder: The journal.
        before: The moment, in seconds since 1970.
        max_bytes: The size of a merged file, about.

    Raises:
        OSError: The disk is full, or the like.
        PipelineError: There is no journal, or its relay is merging its files now.
    """
    here, _ = _here(folder)
    with alone(here) as nobody_else:
        if not nobody_else:
            msg = f"the relay is merging files in {here} itself: try again in a minute"
            raise PipelineError(msg)
        return compact(here, before=before, max_bytes=max_bytes)


def verify_journal(folder: str | os.PathLike[str]) -> tuple[int, list[Damage]]:
    """Check every file of a journal. Blocks.

    Returns:
        How many files there are, and those that are damaged.

    Raises:
        OSError: A folder cannot be read.
        PipelineError: There is no journal.
    """
    here, place = _here(folder)
    with reading(here):
        files = {
            table: [path for each in folders(place, table) for path in each.paths]
            for table in TABLES
        }
        return sum(map(len, files.values())), find_damage(files)


def _here(folder: str | os.PathLike[str]) -> tuple[Path, Place]:
    place = find(folder)
    if place.folder is None:
        raise PipelineError(f"{place.name} is not on this machine: work on the relay's own folder")
    return place.folder, place
