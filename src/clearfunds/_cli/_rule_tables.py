"""Rules as tables of a file, in place of their short forms on the command line.

    [[relay.subscription_policy]]
    client = "dashboard-*"
    filter = "sensors/#"
    policy = "conflate"
    patience = 2

A table arrives as JSON (`_sources.py`). `none` stands for no limit, as TOML has no null.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, cast

from clearfunds.transports import parse_size

Reader = Callable[[object], Any]
"""Reads the value of a key. Raises ValueError, with what the value must be."""

_NONE: Final = "none"


def is_table(text: str) -> bool:
    """Whether a rule is a table, and not the short form."""
    return text.startswith("{")


def read_table(
    what: str, text: str, readers: Mapping[str, Reader], needed: Collection[str]
) -> dict[str, Any]:
    """Return the values of a table.

    Args:
        what: The kind of rule, for messages, as `a rate`.
        text: The table as JSON.
        readers: The keys that it may have.
        needed: Those that it must have.

    Raises:
        ValueError: It is no such table; the message says where, and what it must be.
    """
    try:
        table = cast("dict[str, object]", json.loads(text))
    except ValueError as error:
        msg = f'"{text}" begins with {{ and is not JSON: {error}.'
        raise ValueError(msg) from error
    found: dict[str, Any] = {}
    for written, value in table.items():
        key = written.replace("-", "_")
        if key not in readers:
            msg = f'{what} has the unknown key "{written}"; keys: {", ".join(readers)}.'
            raise ValueError(msg)
        try:
            found[key] = readers[key](value)
        except ValueError as error:
            msg = f"{what} has {key} = {json.dumps(value)}; it must be {error}."
            raise ValueError(msg) from error
    for key in needed:
        if key not in found:
            msg = f"{what} has no {key}: {text}."
            raise ValueError(msg)
    return found


def a_text(value: object) -> str:
    """Read a text."""
    if isinstance(value, str) and value:
        return value
    raise ValueError("a text")


def one_of(words: Collection[str]) -> Reader:
    """Return the reader of one of some words; `-` stands for `_`."""

    def read(value: object) -> str:
        word = value.replace("-", "_") if isinstance(value, str) else ""
        if word in words:
            return word
        raise ValueError(f"one of {', '.join(words)}")

    return read


def count_or_none(value: object) -> int | None:
    """Read a whole number, or `none`."""
    if value == _NONE:
        return None
    if isinstance(value, bool) or not re.fullmatch(r"[0-9][0-9_]*", str(value)):
        raise ValueError('a whole number, or "none" for no limit')
    return int(str(value))


def size_or_none(value: object) -> int | None:
    """Read a size, or `none`."""
    if value == _NONE:
        return None
    try:
        return parse_size("" if isinstance(value, bool) else str(value))
    except ValueError:
        raise ValueError('a size ("8MiB"), or "none" for no limit') from None


def number_or_none(value: object) -> float | None:
    """Read a number, or `none`."""
    if value == _NONE:
        return None
    try:
        return float("" if isinstance(value, bool) else str(value))
    except ValueError:
        raise ValueError('a number, or "none" for no limit') from None
