"""Field tables: what is written is read, what is malformed is refused, pamqp agrees."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import decode, encode

from clearfunds.transports.amqp._field_tables import (
    MAX_DEPTH,
    MalformedError,
    fields_of,
    read_table,
    short_string,
    write_field,
    write_table,
)

names = st.text(max_size=20)
times = st.datetimes(
    min_value=datetime(1970, 1, 2),
    max_value=datetime(2100, 1, 1),
    timezones=st.just(UTC),
).map(lambda time: time.replace(microsecond=0))
plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False),
    st.text(max_size=30),
    st.binary(max_size=30).map(bytearray),
    st.decimals(-1000, 1000, places=3),
    times,
)
values = st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)
tables = st.dictionaries(names, values, max_size=6)


def read(data: bytes) -> dict[str, object]:
    """Read a table with its length in front."""
    (length,) = struct.unpack_from(">I", data)
    assert length == len(data) - 4
    return read_table(data, 4, len(data))


@given(tables)
def test_what_is_written_is_read(table: dict[str, Any]) -> None:
    assert read(write_table(table)) == table


@given(tables)
def test_pamqp_reads_what_is_written(table: dict[str, Any]) -> None:
    written = write_table(table)
    consumed, found = decode.field_table(written)
    assert consumed == len(written)
    assert found == table


@given(st.dictionaries(st.text(max_size=20, alphabet="abc"), plain, max_size=6))
def test_what_pamqp_writes_is_read(table: dict[str, Any]) -> None:
    # It writes floats in single precision.
    rounded = {
        name: struct.unpack(">f", struct.pack(">f", 1.5))[0] if isinstance(value, float) else value
        for name, value in table.items()
    }
    assert read(encode.field_table(rounded)) == rounded


@given(tables)
def test_fields_as_they_stand_make_the_same_table(table: dict[str, Any]) -> None:
    written = write_table(table)
    fields = fields_of(written, 4, len(written))
    assert list(fields) == list(table)
    joined = b"".join(fields.values())
    assert read_table(joined, 0, len(joined)) == table


@given(tables, st.data())
def test_a_table_that_is_cut_off_is_refused_or_shorter(
    table: dict[str, Any], data: st.DataObject
) -> None:
    written = write_table(table)[4:]
    end = data.draw(st.integers(0, len(written)))
    try:
        found = read_table(written[:end], 0, end)
    except MalformedError:
        return
    assert len(found) <= len(table)


@given(st.binary(max_size=200))
def test_garbage_is_malformed_or_a_table(data: bytes) -> None:
    try:
        table = read_table(data, 0, len(data))
    except MalformedError:
        return
    # NaN differs from itself, and a name that repeats is there once.
    assert len(fields_of(data, 0, len(data))) == len(table)


@pytest.mark.parametrize(
    "tag",
    ["b", "B", "s", "u", "I", "i", "l", "L", "f", "d", "t", "V", "D", "T", "S", "x", "A", "F"],
)
def test_every_type_ends_within_its_table(tag: str) -> None:
    field = b"\1n" + tag.encode()
    sizes = {"b": 1, "B": 1, "t": 1, "s": 2, "u": 2, "D": 5, "l": 8, "L": 8, "d": 8, "T": 8, "V": 0}
    size = sizes.get(tag, 4)
    whole = field + bytes(size)
    assert "n" in read_table(whole, 0, len(whole))
    for end in range(1, len(whole)):
        with pytest.raises(MalformedError):
            read_table(whole[:end], 0, end)


def test_numbers_of_every_width() -> None:
    data = (
        b"\1bb\xff" + b"\1BB\xff" + b"\1ss\xff\xfe" + b"\1uu\xff\xfe" + b"\1II\xff\xff\xff\xfd"
        + b"\1ii\xff\xff\xff\xfd" + b"\1ll" + b"\xff" * 8 + b"\1LL" + b"\xff" * 8
        + b"\1dd" + struct.pack(">d", 0.1) + b"\1ff" + struct.pack(">f", 0.5)
        + b"\1DD\2\xff\xff\xff\x85"
    )  # fmt: skip
    assert read_table(data, 0, len(data)) == {
        "b": -1, "B": 255, "s": -2, "u": 65534, "I": -3, "i": 4294967293, "l": -1, "L": -1,
        "d": 0.1, "f": 0.5, "D": Decimal("-1.23"),
    }  # fmt: skip


def test_texts_that_are_no_text_stay_bytes() -> None:
    data = b"\1\xffS\0\0\0\2\xff\xfe"
    table = read_table(data, 0, len(data))
    assert table == {"\udcff": b"\xff\xfe"}
    assert write_field("\udcff", b"\xff\xfe") == data


def test_a_time_beyond_the_calendar_is_a_number() -> None:
    data = b"\1tT" + b"\xff" * 8
    assert read_table(data, 0, len(data)) == {"t": (1 << 64) - 1}
    assert write_field("t", (1 << 64) - 1) == data


def test_nesting_has_a_limit() -> None:
    table: dict[str, object] = {}
    for _ in range(MAX_DEPTH - 1):
        table = {"t": table}
    assert read(write_table(table)) == table
    with pytest.raises(MalformedError, match="nested"):
        read(write_table({"t": table}))
    deep = write_table({"a": 1})
    for _ in range(10_000):
        deep = b"A" + struct.pack(">I", len(deep)) + deep
    data = b"\1a" + deep
    with pytest.raises(MalformedError, match="nested"):
        read_table(data, 0, len(data))


def test_what_has_no_type_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="no type"):
        write_table({"a": object()})
    with pytest.raises(ValueError, match="decimal"):
        write_table({"a": Decimal("1e5")})
    with pytest.raises(ValueError, match="256"):
        short_string("x" * 256)
