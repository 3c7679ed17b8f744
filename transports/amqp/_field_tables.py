"""Field tables: names and values of many types, as they stand in methods and in header frames.

A table is decoded in place, in time proportional to its bytes, and nested no deeper than
`MAX_DEPTH`; pamqp's own decoder copies the rest of the table for each of its values.

Types are RabbitMQ's, where they differ from the specification (section 4.2.1): `l` is signed, `s` a
short integer, `x` a byte array, `V` nothing. Names and texts are bytes to AMQP; where they are not
UTF-8 they have lone surrogates here (names), or stay bytes (values).

Source: rabbit_binary_parser.erl and rabbit_binary_generator.erl of RabbitMQ 3.10.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, cast

MAX_DEPTH: Final = 32
"""Tables and arrays within each other; as in a virtual host's arguments."""

NAMES: Final = "surrogateescape"
"""The way to have bytes that are no UTF-8 in a text, and back."""

_LONG: Final = struct.Struct(">I")
_SIGNED_LONG: Final = struct.Struct(">i")
_LONG_LONG: Final = struct.Struct(">q")
_UNSIGNED_LONG_LONG: Final = struct.Struct(">Q")
_DOUBLE: Final = struct.Struct(">d")

_FIXED: Final[dict[int, struct.Struct]] = {
    ord(tag): struct.Struct(f">{form}")
    for tag, form in {
        "b": "b", "B": "B", "s": "h", "u": "H", "I": "i", "i": "I", "l": "q", "L": "q",
        "f": "f", "d": "d",
    }.items()
}  # fmt: skip


class MalformedError(ValueError):
    """Bytes are no table, or no list of properties."""


def read_table(data: bytes, start: int, end: int, depth: int = MAX_DEPTH) -> dict[str, object]:
    """Return the table that is `data[start:end]`, without the length in front.

    Raises:
        MalformedError: If it is none.
    """
    if depth <= 0:
        raise MalformedError(f"tables and arrays are nested more than {MAX_DEPTH} deep")
    table: dict[str, object] = {}
    at = start
    while at < end:
        after = at + 1 + data[at]
        if after >= end:
            raise MalformedError("a table ends within a field")
        name = data[at + 1 : after].decode(errors=NAMES)
        table[name], at = _read_value(data, after, end, depth)
    return table


def _read_value(data: bytes, at: int, end: int, depth: int) -> tuple[object, int]:
    """Return the value at `at`, and the place behind it."""
    tag = data[at]
    at += 1
    form = _FIXED.get(tag)
    if form is not None:
        after = _within(at + form.size, end)
        return form.unpack_from(data, at)[0], after
    read = _READERS.get(tag)
    if read is None:
        raise MalformedError(f"a field has an unknown type, {chr(tag)!r}")
    return read(data, at, end, depth)


def _within(after: int, end: int) -> int:
    if after > end:
        raise MalformedError("a table ends within a field")
    return after


def _span(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return the start and the end of what has its length (u32) at `at`."""
    start = _within(at + 4, end)
    return start, _within(start + _LONG.unpack_from(data, at)[0], end)


def _read_text(data: bytes, at: int, end: int, _: int) -> tuple[object, int]:
    start, after = _span(data, at, end)
    raw = data[start:after]
    try:
        return raw.decode(), after
    except UnicodeDecodeError:
        return raw, after


def _read_bytes(data: bytes, at: int, end: int, _: int) -> tuple[object, int]:
    start, after = _span(data, at, end)
    return bytearray(data[start:after]), after


def _read_bool(data: bytes, at: int, end: int, _: int) -> tuple[object, int]:
    after = _within(at + 1, end)
    return data[at] != 0, after


def _read_nothing(_: bytes, at: int, __: int, ___: int) -> tuple[object, int]:
    return None, at


def _read_decimal(data: bytes, at: int, end: int, _: int) -> tuple[object, int]:
    after = _within(at + 5, end)
    return Decimal(_SIGNED_LONG.unpack_from(data, at + 1)[0]).scaleb(-data[at]), after


def _read_time(data: bytes, at: int, end: int, _: int) -> tuple[object, int]:
    after = _within(at + 8, end)
    seconds: int = _UNSIGNED_LONG_LONG.unpack_from(data, at)[0]
    try:
        return datetime.fromtimestamp(seconds, UTC), after
    except (OverflowError, ValueError, OSError):
        return seconds, after  # beyond the year 9999


def _read_array(data: bytes, at: int, end: int, depth: int) -> tuple[object, int]:
    at, after = _span(data, at, end)
    if depth <= 1:
        raise MalformedError(f"tables and arrays are nested more than {MAX_DEPTH} deep")
    values: list[object] = []
    while at < after:
        value, at = _read_value(data, at, after, depth - 1)
        values.append(value)
    return values, after


def _read_inner(data: bytes, at: int, end: int, depth: int) -> tuple[object, int]:
    start, after = _span(data, at, end)
    return read_table(data, start, after, depth - 1), after


_READERS: Final[dict[int, Callable[[bytes, int, int, int], tuple[object, int]]]] = {
    ord("S"): _read_text,
    ord("x"): _read_bytes,
    ord("t"): _read_bool,
    ord("V"): _read_nothing,
    ord("D"): _read_decimal,
    ord("T"): _read_time,
    ord("A"): _read_array,
    ord("F"): _read_inner,
}


def fields_of(data: bytes, start: int, end: int) -> dict[str, bytes]:
    """Return the fields of a table, each as it stands there: name, type and value.

    Raises:
        MalformedError: If it is no table.
    """
    fields: dict[str, bytes] = {}
    at = start
    while at < end:
        after = at + 1 + data[at]
        if after >= end:
            raise MalformedError("a table ends within a field")
        name = data[at + 1 : after].decode(errors=NAMES)
        _, behind = _read_value(data, after, end, MAX_DEPTH)
        fields[name] = data[at:behind]
        at = behind
    return fields


# -- writing ---------------------------------------------------------------------------------------


def write_table(table: Mapping[str, object]) -> bytes:
    """Return a table as bytes, its length in front. Whole numbers are signed and have 64 bits.

    Raises:
        ValueError: If a value has no type of AMQP's.
    """
    return _with_length(b"".join([write_field(name, value) for name, value in table.items()]))


def write_field(name: str, value: object) -> bytes:
    """Return one field of a table.

    Raises:
        ValueError: As `write_table`.
    """
    return short_string(name) + _write_value(value)


def short_string(text: str) -> bytes:
    """Return a text as a short string: at most 255 bytes.

    Raises:
        ValueError: If it is longer.
    """
    encoded = text.encode(errors=NAMES)
    return bytes((len(encoded),)) + encoded


def _with_length(data: bytes) -> bytes:
    return _LONG.pack(len(data)) + data


def _write_value(value: object) -> bytes:
    if value is None:
        return b"V"
    if isinstance(value, bool):
        return b"t\1" if value else b"t\0"
    if isinstance(value, int):
        if -(1 << 63) <= value < 1 << 63:
            return b"l" + _LONG_LONG.pack(value)
        return b"T" + _UNSIGNED_LONG_LONG.pack(value)  # only times are so large: see `_read_time`
    if isinstance(value, str):
        return b"S" + _with_length(value.encode(errors=NAMES))
    if isinstance(value, bytes):
        return b"S" + _with_length(value)
    if isinstance(value, bytearray):
        return b"x" + _with_length(bytes(value))
    if isinstance(value, float):
        return b"d" + _DOUBLE.pack(value)
    if isinstance(value, Decimal):
        return b"D" + _write_decimal(value)
    if isinstance(value, datetime):
        return b"T" + _UNSIGNED_LONG_LONG.pack(int(value.timestamp()))
    if isinstance(value, list | tuple):
        return b"A" + _with_length(b"".join(map(_write_value, cast("list[object]", value))))
    if isinstance(value, Mapping):
        return b"F" + write_table(cast("Mapping[str, Any]", value))
    msg = f"{value!r} has no type of a field table"
    raise ValueError(msg)


def _write_decimal(value: Decimal) -> bytes:
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int) or not -255 <= exponent <= 0:
        msg = f"{value} is no decimal of AMQP's, which has up to 255 places"
        raise ValueError(msg)
    return bytes((-exponent,)) + _SIGNED_LONG.pack(int(value.scaleb(-exponent)))
