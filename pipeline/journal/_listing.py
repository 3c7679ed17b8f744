"""The files of a journal's table, without those of hours that are not asked for.

An hour that is left out costs nothing: neither its files nor its folder are looked at. Files that
lie in no folder of an hour, as in a journal that was copied into one folder, are always listed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from . import _names

if TYPE_CHECKING:
    from ._place import Place

Entries: TypeAlias = Callable[[str], list[tuple[str, bool]]]
"""Lists a folder: the name of each entry, and whether it is a folder. Empty if it is not there."""

HOUR_NS: Final = _names.SECONDS * 10**9


@attrs.frozen
class Folder:
    """A folder with files of a table."""

    path: str
    """Its path or URL."""
    hour: int | None
    """The hour of its rows, counted from 1970; None: it is of no hour."""
    names: tuple[str, ...]
    """The files to read, in order."""
    whole: bool
    """Whether these are all of its files that readers would find."""
    alone: bool = True
    """Whether no folder is below it that readers would look into."""

    @property
    def paths(self) -> list[str]:
        """The paths of the files to read."""
        return [f"{self.path}/{name}" for name in self.names]


def local(path: str) -> list[tuple[str, bool]]:
    """List a folder of this machine."""
    try:
        with os.scandir(path) as entries:
            return [(entry.name, entry.is_dir()) for entry in entries]
    except FileNotFoundError:  # it may be deleted meanwhile
        return []


def folders(
    place: Place, table: str, since_ns: int | None = None, entries: Entries = local
) -> list[Folder]:
    """Return the folders of a table that have files with rows of `since_ns` or later, in order.

    Args:
        place: The journal.
        table: The table's name.
        since_ns: In nanoseconds since 1970; None: all.
        entries: Lists a folder.

    Raises:
        OSError: A folder cannot be read.
    """
    least = None if since_ns is None else since_ns // HOUR_NS
    return list(_walk(f"{place.url}/{table}", least, entries))


def grouped(paths: Iterable[str], since_ns: int | None = None) -> list[Folder]:
    """Return the folders of files that somebody else has listed, as `folders` does."""
    by_folder: dict[str, list[tuple[str, bool]]] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        by_folder.setdefault(folder, []).append((name, False))
    found: list[Folder] = []
    for folder, here in sorted(by_folder.items()):
        *_, date, last = ("", *folder.split("/"))
        first, number = _names.first_hour(date), _names.hour_of_day(last)
        hour = None if first is None or number is None else first + number
        if since_ns is None or hour is None or hour >= since_ns // HOUR_NS:
            # Nobody has looked for folders in it.
            found += [attrs.evolve(each, alone=False) for each in _files(folder, hour, here)]
    return found


def newest(place: Place, table: str, entries: Entries = local) -> Iterator[list[Folder]]:
    """Return folders of a table, the newest hour first, each with those that are of no hour.

    Raises:
        OSError: A folder cannot be read.
    """
    root = f"{place.url}/{table}"
    loose: list[Folder] = []
    hours: list[tuple[int, str]] = []
    dates: list[tuple[int, str]] = []
    here = entries(root)
    loose += _files(root, None, here)
    for name, path in _folders(root, here):
        first = _names.first_hour(name)
        if first is None:
            loose += _walk(path, None, entries)
        else:
            dates.append((first, path))
    for first, date in sorted(dates, reverse=True):
        hours.clear()
        for name, path in _folders(date, entries(date)):
            hour = _names.hour_of_day(name)
            if hour is not None:
                hours.append((first + hour, path))
        for hour, path in sorted(hours, reverse=True):
            found = list(_files(path, hour, entries(path)))
            if found:
                yield found + loose
    yield loose


def _walk(path: str, least: int | None, entries: Entries, hour: int | None = None,
          date: int | None = None) -> Iterator[Folder]:  # fmt: skip
    here = entries(path)
    yield from _files(path, hour, here)
    for name, below in _folders(path, here):
        first = _names.first_hour(name)
        if first is not None:
            if least is None or first + 23 >= least:
                yield from _walk(below, least, entries, None, first)
            continue
        number = _names.hour_of_day(name) if date is not None else None
        if number is None or date is None:
            yield from _walk(below, least, entries)
        elif least is None or date + number >= least:
            yield from _walk(below, least, entries, date + number)


def _folders(path: str, here: list[tuple[str, bool]]) -> list[tuple[str, str]]:
    return [
        (name, f"{path}/{name}")
        for name, is_folder in sorted(here)
        if is_folder and not name.startswith(_names.HIDDEN)
    ]


def _files(path: str, hour: int | None, here: list[tuple[str, bool]]) -> Iterator[Folder]:
    names = [name for name, is_folder in here if not is_folder]
    found = _names.current(names)
    if found:
        seen = [n for n in names if n.endswith(_names.SUFFIX) and not n.startswith(_names.HIDDEN)]
        below = _folders(path, here)
        yield Folder(path, hour, tuple(found), len(found) == len(seen), not below)
