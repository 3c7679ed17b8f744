"""The files of a journal that a report reads: of a period, without damaged ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs

from .._errors import PipelineError
from ._damage import Damage, find_damage
from ._listing import Entries, Folder, folders, local, newest
from ._tables import TABLES, arrow

if TYPE_CHECKING:
    from ._place import Place

OnDamage: TypeAlias = Literal["skip", "fail"]
"""What to do about damaged files: leave them out, and say so; or read nothing at all."""

Check: TypeAlias = Callable[[str, Sequence[Folder]], Sequence[Damage]]
"""Returns the damaged files among those in some folders of a table."""

End: TypeAlias = Callable[[Sequence[str]], "int | None"]
"""Returns the last `settled_ns` in some files of settlements; None: they have no row."""


@attrs.frozen
class Selection:
    """Files to read, by table."""

    place: Place
    since_ns: int | None
    """Rows from this moment on, in nanoseconds since 1970, are wanted; None: all."""
    folders: Mapping[str, Sequence[Folder]]
    damaged: Sequence[Damage]
    """Files that are left out."""

    def files(self, table: str) -> list[str]:
        """Return the paths of a table's files."""
        return [path for folder in self.folders[table] for path in folder.paths]

    def size(self) -> int:
        """Return the bytes in all files; for a journal on this machine."""
        return sum(os.stat(path).st_size for name in self.folders for path in self.files(name))


def select(
    place: Place,
    last: float | None = None,
    on_damage: OnDamage = "skip",
    *,
    entries: Entries = local,
    end: End | None = None,
    check: Check | None = None,
) -> Selection:
    """Choose the files that a report reads.

    Args:
        place: The journal.
        last: Only the hours with this many seconds up to the last settlement; None: all.
        on_damage: What to do about damaged files.
        entries: Lists a folder.
        end: Finds the last settlement.
        check: Finds damage. These three are needed for a journal that is not on this machine.

    Raises:
        PipelineError: A file is damaged, and `on_damage` is `fail`; or a folder cannot be read.
        MissingError: pyarrow is not installed.
    """
    known: dict[str, Damage | None] = {}

    def sound(table: str, some: Iterable[Folder]) -> list[Folder]:
        found = list(some)
        unknown = [_without(each, known.keys()) for each in found]
        new = [each for each in unknown if each.names]
        known.update(dict.fromkeys(path for each in new for path in each.paths))
        known.update({damage.path: damage for damage in (check or _damaged)(table, new)})
        bad = {path for path, damage in known.items() if damage is not None}
        return [left for each in found if (left := _without(each, bad)).names]

    try:
        since_ns: int | None = None
        if last is not None:
            since_ns = 0
            for some in newest(place, "settlements", entries):
                files = [path for each in sound("settlements", some) for path in each.paths]
                latest = (end or _last_settled)(files) if files else None
                if latest is not None:
                    since_ns = latest - int(last * 1e9)
                    break
        chosen: dict[str, list[Folder]] = {}
        for name in TABLES:
            chosen[name] = sound(name, folders(place, name, since_ns, entries))
            if not chosen[name] and name == "accounts" and since_ns is not None:
                # The last snapshot, however old.
                chosen[name] = sound(name, next(newest(place, name, entries)))
    except OSError as error:
        msg = f"the journal {place.name} cannot be read: {error.strerror or error}"
        raise PipelineError(msg) from error
    damaged = sorted(damage for damage in known.values() if damage is not None)
    if damaged and on_damage == "fail":
        more = f" ({len(damaged) - 1} more are damaged)" if len(damaged) > 1 else ""
        raise PipelineError(
            f"{damaged[0]}{more}; remove it, or leave damaged files out with --damaged skip"
        )
    return Selection(place, since_ns, chosen, damaged)


def _damaged(table: str, some: Sequence[Folder]) -> list[Damage]:
    return find_damage({table: [path for each in some for path in each.paths]})


def _without(folder: Folder, paths: Collection[str]) -> Folder:
    names = tuple(n for n in folder.names if f"{folder.path}/{n}" not in paths)
    if len(names) == len(folder.names):
        return folder
    return attrs.evolve(folder, names=names, whole=False)


def _last_settled(files: Sequence[str]) -> int | None:
    parquet: Any = arrow("pyarrow.parquet")
    latest = [
        arrow("pyarrow.compute").max(parquet.read_table(path, columns=["settled_ns"])[0]).as_py()
        for path in files
    ]
    return max((each for each in latest if each is not None), default=None)
