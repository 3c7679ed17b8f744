"""Columns and rows as Spark hands them to a writer, without Spark."""

from __future__ import annotations

from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
)

from clearfunds.pipeline._arrow import arrow

HEADER = StructType().add("key", StringType()).add("value", BinaryType())

TYPES: dict[str, DataType] = {
    "headers": ArrayType(HEADER),
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "boolean": BooleanType(),
    "struct": StructType([StructField("a", IntegerType())]),
}


def schema_of(columns: str) -> StructType:
    """Return the schema of columns written as `topic string, value binary`."""
    named = [each.split() for each in columns.split(", ") if each]
    return StructType([StructField(name, TYPES[kind]) for name, kind in named])


def batch_of(columns: str, **values: list[Any]) -> Any:
    """Return a record batch, of Arrow's types that Spark makes of its own."""
    pa = arrow()
    kinds = {
        "string": pa.string(),
        "binary": pa.binary(),
        "int": pa.int32(),
        "boolean": pa.bool_(),
        "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    }
    named = [each.split() for each in columns.split(", ")]
    arrays = [pa.array(values[name], kinds[kind]) for name, kind in named]
    return pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in named])
