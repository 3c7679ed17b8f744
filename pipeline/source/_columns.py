"""Spark columns from a relay's blocks, without a look at single rows.

A block comes as joined bytes and lengths. So an Arrow column is these bytes, unchanged, and the
running sum of the lengths.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...ranges.client import RETAIN, Block, parse_properties
from .._arrow import arrow
from ._options import Chosen

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

BATCH_ROWS = 10_000
"""Rows of one record batch for Spark, or a few more; as its `arrow.maxRecordsPerBatch`."""

BATCH_BYTES = 1 << 20
"""Bytes of one record batch, or a few more. A worker has this in memory, and two of the relay's
answers."""


def schema_of(chosen: Chosen) -> StructType:
    """Return the columns as a Spark schema.

    An object, not a DDL string: in one, the meaning of `TIMESTAMP` depends on a setting.
    """
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        BooleanType,
        IntegerType,
        LongType,
        StringType,
        StructType,
        TimestampType,
    )

    columns = StructType()
    columns.add("topic", StringType())
    columns.add("value", BinaryType())
    columns.add("offset", LongType())
    columns.add("timestamp", TimestampType())
    if chosen.account:
        columns.add("account", StringType())
    if chosen.incarnation:
        columns.add("incarnation", StringType())
    if chosen.headers:
        columns.add("qos", IntegerType())
        columns.add("retain", BooleanType())
        columns.add("content_type", StringType())
        # As of Spark's Kafka source.
        header = StructType().add("key", StringType()).add("value", BinaryType())
        columns.add("headers", ArrayType(header))
    return columns


class Columns:
    """Makes record batches of blocks.

    Args:
        chosen: The columns that rows may have, or not.
        incarnation: The life of the subscription, for its column.

    Raises:
        MissingError: If pyarrow is not installed here.
    """

    def __init__(self, chosen: Chosen, incarnation: str = "") -> None:
        self._arrow = pa = arrow()
        self._compute = arrow("pyarrow.compute")
        self._chosen = chosen
        self._incarnation = incarnation
        fields = [
            ("topic", pa.string()),
            ("value", pa.binary()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", "UTC")),
        ]
        if chosen.account:
            fields.append(("account", pa.string()))
        if chosen.incarnation:
            fields.append(("incarnation", pa.string()))
        header = pa.struct([("key", pa.string()), ("value", pa.binary())])
        self._headers = pa.list_(pa.field("element", header))
        if chosen.headers:
            fields += [("qos", pa.int32()), ("retain", pa.bool_())]
            fields += [("content_type", pa.string()), ("headers", self._headers)]
        # Must equal what Spark derives from `schema_of`: it compares the schema of the first batch.
        self.schema: Any = pa.schema(fields)
        self._zero = pa.array([0], pa.int32())

    def batch(self, block: Block) -> Any:
        """Return a block as a record batch; columns of variable length are views on its bytes."""
        pa = self._arrow
        rows = block.count
        columns = [
            self._bytes(pa.string(), block.key_lengths, block.keys),
            self._bytes(pa.binary(), block.value_lengths, block.values),
            self._compute.cumulative_sum(pa.repeat(1, rows), start=block.first - 1),
            pa.Array.from_buffers(
                pa.timestamp("us", "UTC"), rows, [None, pa.py_buffer(block.times)]
            ),
        ]
        if self._chosen.account:
            columns.append(self._accounts(block))
        if self._chosen.incarnation:
            columns.append(pa.repeat(self._incarnation, rows))
        if self._chosen.headers:
            columns += self._flags(block)
            columns += self._properties(block)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def join(self, batches: list[Any]) -> Any:
        """Return batches as one: each batch costs Spark as much as a thousand rows."""
        return batches[0] if len(batches) == 1 else self._arrow.concat_batches(batches)

    def _bytes(self, kind: Any, lengths: memoryview, joined: memoryview) -> Any:
        pa = self._arrow
        rows = len(lengths)
        # Lengths are unsigned on the wire, Arrow's offsets signed; both fit, as no block has 2 GiB.
        raw = pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(lengths)])
        ends = pa.concat_arrays([self._zero, self._compute.cumulative_sum(raw)])
        return pa.Array.from_buffers(kind, rows, [None, ends.buffers()[1], pa.py_buffer(joined)])

    def _flags(self, block: Block) -> list[Any]:
        """Return the columns `qos` and `retain`."""
        pa, compute = self._arrow, self._compute
        raw = block.flags if len(block.flags) else bytes(block.count)
        flags = pa.Array.from_buffers(pa.uint8(), block.count, [None, pa.py_buffer(raw)])
        qos = compute.bit_wise_and(flags, pa.scalar(3, pa.uint8()))
        retain = compute.bit_wise_and(flags, pa.scalar(RETAIN, pa.uint8()))
        return [qos.cast(pa.int32()), compute.not_equal(retain, pa.scalar(0, pa.uint8()))]

    def _properties(self, block: Block) -> list[Any]:
        """Return the columns `content_type` and `headers`; only these need a look at each row."""
        pa = self._arrow
        if not block.properties:
            return [pa.nulls(block.count, pa.string()), pa.nulls(block.count, self._headers)]
        types: list[str | None] = []
        headers: list[list[dict[str, Any]] | None] = []
        properties = bytes(block.properties)
        at = 0
        for length in block.property_lengths:
            found = parse_properties(properties[at : at + length])
            at += length
            types.append(found.content_type)
            headers.append(
                [{"key": name, "value": text.encode()} for name, text in found.user] or None
            )
        return [pa.array(types, pa.string()), pa.array(headers, self._headers)]

    def _accounts(self, block: Block) -> Any:
        pa = self._arrow
        if len(block.accounts) == 1:
            return pa.repeat(pa.scalar(block.accounts[0], pa.string()), block.count)
        codes = pa.Array.from_buffers(pa.uint32(), block.count, [None, pa.py_buffer(block.codes)])
        return pa.array(block.accounts, pa.string()).take(codes)
