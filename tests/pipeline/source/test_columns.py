"""Columns of Spark's have what the relay's blocks have."""

from __future__ import annotations

import datetime
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark")

import pyspark.sql.pandas.types

from clearfunds.pipeline._data_source import ClearFundsDataSource
from clearfunds.pipeline._errors import MissingError
from clearfunds.pipeline.source._columns import Columns, schema_of
from clearfunds.pipeline.source._options import Chosen
from clearfunds.ranges.client import RETAIN, Block, encode_properties
from clearfunds.ranges.log import join_block
from clearfunds.ranges.log._block import merge_blocks
from clearfunds.ranges.log._chunk import Tail
from clearfunds.ranges.log._rows import Row
from tests.dataspace.conftest import STEADY

MESSAGES = st.lists(
    st.tuples(
        st.text(max_size=20), st.binary(max_size=40), st.integers(0, 2**50), st.integers(0, 2)
    ),
    min_size=1,
    max_size=40,
)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def block_of(messages: list[tuple[str, bytes, int, int]], first: int, accounts: int) -> Block:
    tail = Tail(first)
    tail.names = [b"mqtt/%d" % number for number in range(accounts)]
    for topic, value, when, code in messages:
        tail.add_row(Row(topic.encode(), value), code % accounts, when)
    return Block(memoryview(bytearray(join_block(tail, first, first + len(messages)))))


@pytest.mark.parametrize(
    "chosen", [Chosen(), Chosen(account=False), Chosen(True, True, True), Chosen(headers=True)]
)
def test_the_schema_is_what_spark_derives(chosen: Chosen) -> None:
    derive: Any = getattr(pyspark.sql.pandas.types, "to_arrow_schema")  # noqa: B009
    assert derive(schema_of(chosen), timezone="UTC").equals(Columns(chosen).schema)


def test_flags_and_properties_are_columns() -> None:
    rows = [
        Row(b"a", b"1", 1),
        Row(b"b", b"2", 2 | RETAIN, encode_properties("text/plain", [("k", "v"), ("k", "ü")])),
        Row(b"c", b"3", 0, encode_properties(None, [("only", "")])),
        Row(b"d", b"4"),
    ]
    tail = Tail(5)
    tail.names = [b"mqtt/1"]
    for row in rows:
        tail.add_row(row, 0, 7)
    blocks = [join_block(tail, 5, 9), join_block(tail, 5, 6), join_block(tail, 8, 9)]
    blocks += merge_blocks([join_block(tail, n, n + 1) for n in range(5, 9)])
    columns = Columns(Chosen(False, True, True), "af")
    batch = columns.join([columns.batch(Block(memoryview(block))) for block in blocks])
    batch.validate(full=True)
    shown = [
        (each["offset"], each["qos"], each["retain"], each["content_type"], each["headers"])
        for each in batch.to_pylist()
    ]
    k = {"key": "k", "value": b"v"}
    all_of_them = [
        (5, 1, False, None, None),
        (6, 2, True, "text/plain", [k, {"key": "k", "value": "ü".encode()}]),
        (7, 0, False, None, [{"key": "only", "value": b""}]),
        (8, 0, False, None, None),
    ]
    assert shown == [*all_of_them, all_of_them[0], all_of_them[3], *all_of_them]
    assert set(batch.column("incarnation").to_pylist()) == {"af"}
    read = list(Block(memoryview(blocks[0])).rows())
    assert [(row.qos, row.retain, row.properties) for row in read] == [
        (row.flags & 3, bool(row.flags & RETAIN), row.properties) for row in rows
    ]


@settings(STEADY, max_examples=50)
@given(MESSAGES, st.integers(1, 2**60), st.integers(1, 3), st.booleans())
def test_every_row_is_there(
    messages: list[tuple[str, bytes, int, int]], first: int, accounts: int, account: bool
) -> None:
    columns = Columns(Chosen(account))
    blocks = [block_of(messages, first, accounts), block_of(messages[:1], first + 100, accounts)]
    batch = columns.join([columns.batch(block) for block in blocks])
    batch.validate(full=True)
    numbered = [*enumerate(messages, first), (first + 100, messages[0])]
    wanted = [
        {
            "topic": topic,
            "value": value,
            "offset": number,
            "timestamp": EPOCH + datetime.timedelta(microseconds=when),
            "account": f"mqtt/{code % accounts}",
        }
        for number, (topic, value, when, code) in numbered
    ]
    if not account:
        for row in wanted:
            del row["account"]
    assert batch.to_pylist() == wanted


def test_no_pyarrow_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingError, match=r"pyarrow is not installed for .*workers too: pip"):
        Columns(Chosen())
    source = ClearFundsDataSource({"relay": "a:1", "subscription": "s"})
    with pytest.raises(MissingError, match="pyarrow is not installed"):
        source.schema()
