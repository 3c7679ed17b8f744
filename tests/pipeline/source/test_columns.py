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
from clearfunds.ranges.client import Block
from clearfunds.ranges.log import join_block
from clearfunds.ranges.log._chunk import Tail
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
        tail.times.append(when)
        tail.codes.append(code % accounts)
        tail.key_lengths.append(len(topic.encode()))
        tail.value_lengths.append(len(value))
        tail.keys += topic.encode()
        tail.values += value
    return Block(memoryview(bytearray(join_block(tail, first, first + len(messages)))))


@pytest.mark.parametrize("account", [True, False])
def test_the_schema_is_what_spark_derives(account: bool) -> None:
    derive: Any = getattr(pyspark.sql.pandas.types, "to_arrow_schema")  # noqa: B009
    assert derive(schema_of(account), timezone="UTC").equals(Columns(account).schema)


@settings(STEADY, max_examples=50)
@given(MESSAGES, st.integers(1, 2**60), st.integers(1, 3), st.booleans())
def test_every_row_is_there(
    messages: list[tuple[str, bytes, int, int]], first: int, accounts: int, account: bool
) -> None:
    columns = Columns(account)
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
        Columns(True)
    source = ClearFundsDataSource({"relay": "a:1", "subscription": "s"})
    with pytest.raises(MissingError, match="pyarrow is not installed"):
        source.schema()
