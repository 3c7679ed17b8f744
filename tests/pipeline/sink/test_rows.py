"""Which columns a writer takes, and what becomes of their rows."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import MapType, StringType, StructType

from clearfunds.pipeline._errors import OptionError
from clearfunds.pipeline.sink import Columns, RowError, WriteOptions
from clearfunds.ranges.client import (
    RETAIN,
    WITH_PROPERTIES,
    encode_properties,
    with_properties,
)
from tests.pipeline.sink.tables import batch_of, schema_of

OPTIONS = WriteOptions("127.0.0.1", 7700)
TO_ALARMS = WriteOptions("127.0.0.1", 7700, topic="alarms", qos=0, retain=True)


def rows(columns: str, options: WriteOptions = OPTIONS, **given: list[Any]) -> list[Any]:
    """Return what is made of a record batch before which a hundred rows came."""
    made = Columns.of(schema_of(columns), options).messages(batch_of(columns, **given), 100)
    return list(zip(*made, strict=True))


def test_a_topic_and_a_value() -> None:
    assert rows("topic string, value binary", topic=["a/b", "ü"], value=[b"\x00\xff", b""]) == [
        (b"a/b", b"\x00\xff", 1),
        ("ü".encode(), b"", 1),
    ]


def test_strings_are_sent_as_utf_8_wherever_their_column_stands() -> None:
    assert rows("value string, topic string", value=["grüß", ""], topic=["a", "b"]) == [
        (b"a", "grüß".encode(), 1),
        (b"b", b"", 1),
    ]


def test_one_topic_for_all_rows() -> None:
    assert rows("value string", TO_ALARMS, value=["x", "y"]) == [
        (b"alarms", b"x", RETAIN),
        (b"alarms", b"y", RETAIN),
    ]


def test_qos_and_retain_of_each_row_come_before_the_options() -> None:
    assert rows(
        "value string, qos int, retain boolean",
        TO_ALARMS,
        value=["x", "y"],
        qos=[2, 0],
        retain=[False, True],
    ) == [(b"alarms", b"x", 2), (b"alarms", b"y", RETAIN)]
    assert rows("value string, qos int", TO_ALARMS, value=["x"], qos=[2]) == [
        (b"alarms", b"x", 2 | RETAIN)
    ]
    assert rows("value string, retain boolean", TO_ALARMS, value=["x"], retain=[False]) == [
        (b"alarms", b"x", 0)
    ]


def test_no_rows() -> None:
    assert rows("topic string, value binary, qos int", topic=[], value=[], qos=[]) == []


def test_names_of_columns_are_of_any_case_as_spark_has_them() -> None:
    found = Columns.of(schema_of("Value string, TOPIC string"), OPTIONS)
    assert (found.value, found.topic, found.qos, found.retain) == (0, 1, None, None)


@pytest.mark.parametrize(
    ("schema", "options", "says"),
    [
        ("topic string", OPTIONS, "there is no column value among those that are written (topic)"),
        ("", TO_ALARMS, "there is no column value among those that are written (none)"),
        ("value string", OPTIONS, 'give the option topic for all of them, as .option("topic"'),
        (
            "topic string, value string",
            TO_ALARMS,
            "the option topic says alarms for all rows, and there is a column topic, too",
        ),
        (
            "topic string, value string, key binary, partition int",
            OPTIONS,
            'key, partition mean nothing here: choose those that do with .select("topic", "value")',
        ),
        ("value string, VALUE binary", TO_ALARMS, "the columns VALUE mean nothing here"),
        (
            "topic binary, value binary",
            OPTIONS,
            'the column topic is of type binary; make it a string, as col("topic").cast("string")',
        ),
        (
            "topic string, value struct",
            OPTIONS,
            "value is of type struct<a:int>; make it a string or binary, as with cast, or with to",
        ),
        (
            "value string, qos string",
            TO_ALARMS,
            "the column qos is of type string; make it a",
        ),
        ("value string, retain int", TO_ALARMS, "the column retain is of type int; make it a bool"),
    ],
)
def test_columns_that_cannot_be_written(schema: str, options: WriteOptions, says: str) -> None:
    with pytest.raises(OptionError) as caught:
        Columns.of(schema_of(schema), options)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "given", "says"),
    [
        ("value string", {"value": ["x", None]}, "the value of row 101 of its partition"),
        ("value string, qos int", {"value": ["x"], "qos": [None]}, "the qos of row 100"),
        ("value string, qos int", {"value": ["x", "y"], "qos": [1, 3]}, "the qos of row 101"),
        ("value string, retain boolean", {"value": ["x"], "retain": [None]}, "the retain of row"),
    ],
)
def test_rows_that_cannot_be_sent(schema: str, given: dict[str, list[Any]], says: str) -> None:
    with pytest.raises(RowError) as caught:
        rows(schema, TO_ALARMS, **given)
    assert says in str(caught.value)


def test_a_row_without_a_topic() -> None:
    with pytest.raises(
        RowError, match=r'row 101 of its .* \.where\("topic is not null"\), or give'
    ):
        rows("topic string, value string", topic=["a", None], value=["x", "y"])


def test_headers_and_content_types_are_properties() -> None:
    value, flags = b"x", RETAIN | WITH_PROPERTIES
    properties = encode_properties("text/plain", [("k", "v"), ("k", "w")])
    headers = [{"key": "k", "value": b"v"}, {"key": "k", "value": b"w"}]
    assert rows(
        "value string, content_type string, headers headers",
        TO_ALARMS,
        value=["x", "x", "x"],
        content_type=["text/plain", None, None],
        headers=[headers, None, []],
    ) == [
        (b"alarms", with_properties(properties, value), flags),
        (b"alarms", value, RETAIN),
        (b"alarms", value, RETAIN),
    ]


def test_headers_that_are_no_text() -> None:
    with pytest.raises(RowError, match="the headers or the content_type of row 100 of its"):
        rows(
            "value string, headers headers",
            TO_ALARMS,
            value=["x"],
            headers=[[{"key": "k", "value": b"\xff"}]],
        )
    with pytest.raises(OptionError, match=r"the column headers is of type map<string,string>; m"):
        Columns.of(StructType().add("headers", MapType(StringType(), StringType())), TO_ALARMS)
