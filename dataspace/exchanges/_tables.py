"""Argument tables: as identity, as bytes for a keeper, and as RabbitMQ shows their values.

A table maps names to AMQP's values as Python has them: None, `bool`, `int`, `float`, `Decimal`,
`str`, `bytes`, `datetime`, lists, and tables.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, TypeAlias, cast

Table: TypeAlias = Mapping[str, object]

NO_ARGUMENTS: Final[Table] = {}

MAX_DEPTH: Final = 32
"""Limit on how deeply tables and arrays may be nested; a peer must not exhaust the stack."""

_INT32: Final = range(-(1 << 31), 1 << 31)


class TableError(ValueError):
    """A table is nested too deeply, or has a value of no type that AMQP knows."""


def encode_table(table: Table) -> str:
    """Return a table as text: JSON, sorted, with a tag at values that JSON lacks.

    Equal tables have equal texts.

    Raises:
        TableError: If it cannot be written.
    """
    if not table:
        return ""
    return json.dumps(_tagged(table, MAX_DEPTH), sort_keys=True, separators=(",", ":"))


def decode_table(text: str) -> dict[str, object]:
    """Return the table of a text.

    Raises:
        ValueError: If it is none.
    """
    if not text:
        return {}
    try:
        found = _untagged(json.loads(text))
        if not isinstance(found, dict):
            raise TypeError(f"a table is a mapping, not {text[:40]}")
    except (TypeError, AttributeError, ArithmeticError, RecursionError) as exc:
        msg = f"no table: {exc!r}"
        raise ValueError(msg) from exc
    return cast("dict[str, object]", found)


def _tagged(value: object, depth: int) -> object:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if depth <= 0:
        msg = f"tables and arrays are nested more than {MAX_DEPTH} deep"
        raise TableError(msg)
    if isinstance(value, bytes | bytearray):
        return {"b": value.hex()}
    if isinstance(value, Decimal):
        return {"d": str(value)}
    if isinstance(value, datetime):
        return {"t": value.isoformat()}
    if isinstance(value, list | tuple):
        return [_tagged(each, depth - 1) for each in cast("list[object]", value)]
    if isinstance(value, Mapping):
        pairs = cast("Table", value).items()
        return {"m": {str(name): _tagged(each, depth - 1) for name, each in pairs}}
    msg = f"{value!r} is no value of a table"
    raise TableError(msg)


def _untagged(value: Any) -> object:
    if isinstance(value, list):
        return [_untagged(each) for each in cast("list[object]", value)]
    if not isinstance(value, dict):
        return value
    ((tag, inner),) = cast("dict[str, Any]", value).items()
    if tag == "b":
        return bytes.fromhex(inner)
    if tag == "d":
        return Decimal(inner)
    if tag == "t":
        return datetime.fromisoformat(inner)
    if tag == "m":
        return {name: _untagged(each) for name, each in inner.items()}
    msg = f"unknown tag {tag!r}"
    raise ValueError(msg)


def value_key(value: object, depth: int = MAX_DEPTH) -> Hashable:
    """Return a key that is equal for values that are equal in AMQP, whatever their types.

    Numbers compare by value; a truth value is no number.
    """
    if isinstance(value, bool):
        return (bool, value)
    if depth <= 0:
        return None
    if isinstance(value, list | tuple):
        return (list, tuple([value_key(v, depth - 1) for v in cast("list[object]", value)]))
    if isinstance(value, Mapping):
        pairs = cast("Table", value).items()
        return (dict, frozenset((name, value_key(v, depth - 1)) for name, v in pairs))
    return bytes(value) if isinstance(value, bytearray) else value


def is_integer(value: object) -> bool:
    """Whether a value has one of AMQP's integer types."""
    return isinstance(value, int) and not isinstance(value, bool)


def type_name(value: object) -> str:
    """Return the type of a value by RabbitMQ's name; an integer has the smallest that fits."""
    if value is None:
        return "void"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "signedint" if value in _INT32 else "long"
    if isinstance(value, str | bytes | bytearray):
        return "longstr"
    for kind, name in (
        (float, "double"), (Decimal, "decimal"), (datetime, "timestamp"), (list, "array"),
    ):  # fmt: skip
        if isinstance(value, kind):
            return name
    return "table"


def shown(value: object) -> str:
    """Return a value as RabbitMQ's messages show it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return str(value)
