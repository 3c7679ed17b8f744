"""What is kept of a section: one file of JSON each, with when and on what it was measured."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, cast

import attrs


@attrs.frozen
class Record:
    """The file of a section."""

    about: dict[str, Any] | None = None
    """When, on what, with which versions, for how long; None if there is no data."""

    data: dict[str, Any] | None = None
    """What its `measure` returned."""

    trouble: dict[str, str] | None = None
    """Why it could not be measured since: "date" and "message"."""


def read(path: Path) -> Record:
    """Return what is kept there; an empty record if nothing is."""
    if not path.exists():
        return Record()
    found = json.loads(path.read_text())
    return Record(found.get("about"), found.get("data"), found.get("trouble"))


def write(path: Path, record: Record) -> None:
    """Keep ``record``; the old file is there until the new one is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.tmp")
    fresh.write_text(dumped(attrs.asdict(record, recurse=False)) + "\n")
    fresh.replace(path)


def dumped(value: Any, indent: str = "") -> str:
    """Return JSON in which a line is one row of what was measured, not one number.

    Numbers that JSON has no word for (a median of nothing) become null.
    """
    if isinstance(value, dict):
        items = [(json.dumps(str(name)) + ": ", each) for name, each in cast("Any", value).items()]
        brackets = "{}"
    elif isinstance(value, list | tuple):
        items = [("", each) for each in cast("Any", value)]
        brackets = "[]"
    else:
        return json.dumps(_finite(value))
    if not any(isinstance(each, dict | list | tuple) for _, each in items):
        return brackets[0] + ", ".join(f"{a}{dumped(each)}" for a, each in items) + brackets[1]
    deeper = indent + " "
    lines = ",\n".join(f"{deeper}{name}{dumped(each, deeper)}" for name, each in items)
    return f"{brackets[0]}\n{lines}\n{indent}{brackets[1]}"


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
