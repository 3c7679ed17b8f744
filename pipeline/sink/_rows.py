"""Messages from Arrow record batches: the columns allowed, and their types.

Rule: invalid rows are refused before any row is sent; the error names the column, the row and the
remedy. Unknown columns are refused, too, and not ignored silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from ...ranges.client import (
    QOS,
    RETAIN,
    WITH_PROPERTIES,
    encode_properties,
    with_properties,
)
from .._errors import OptionError, PipelineError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from ._options import WriteOptions

_TEXTS: Final = ("string", "char", "varchar")
_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "topic": _TEXTS,
    "value": ("binary", *_TEXTS),
    "qos": ("tinyint", "smallint", "int", "bigint"),
    "retain": ("boolean",),
    "content_type": _TEXTS,
    "headers": (
        "array<struct<key:string,value:binary>>",
        "array<struct<key:string,value:string>>",
    ),
}
"""The columns allowed, and the types that they may have, in Spark's notation."""

_ADVICE: Final = {
    "topic": 'make it a string, as col("topic").cast("string")',
    "value": "make it a string or binary, as with cast, or with to_json(struct(...))",
    "qos": 'make it a whole number, as col("qos").cast("int")',
    "retain": 'make it a boolean, as col("retain").cast("boolean")',
    "content_type": 'make it a string, as col("content_type").cast("string")',
    "headers": "make it an array of structs of key and value, as Spark's Kafka source has it",
}


class Column(Protocol):
    """The part of `pyarrow.Array` that is used here."""

    @property
    def null_count(self) -> int:
        """How many rows are null in this column."""
        ...

    def to_pylist(self) -> list[Any]:
        """Return the values as Python objects."""
        ...


class RecordBatch(Protocol):
    """The part of `pyarrow.RecordBatch`, which is untyped, that is used here."""

    def column(self, i: int, /) -> Column:
        """Return one column."""
        ...


class RowError(PipelineError, ValueError):
    """A row that cannot be sent; no row of its batch was published."""


class Messages(NamedTuple):
    """Rows in order, column by column, as `Stager.write_columns` takes them."""

    topics: list[bytes]
    values: list[bytes]
    flags: list[int]


@dataclass(frozen=True)
class Columns:
    """The columns of a message in a record batch; None: no column, all rows have the same.

    Attributes:
        value: The index of the column of values.
        topic: The index of the column of topics.
        qos: The index of the column of QoS.
        retain: The index of the column of retain flags.
        content_type: The index of the column of content types.
        headers: The index of the column of user properties.
        same_topic: The topic of all rows.
        same_qos: The QoS of all rows.
        same_retain: The retain flag of all rows.
    """

    value: int
    topic: int | None
    qos: int | None
    retain: int | None
    content_type: int | None
    headers: int | None
    same_topic: bytes
    same_qos: int
    same_retain: bool

    @classmethod
    def of(cls, schema: StructType, options: WriteOptions) -> Columns:
        """Find the columns in the schema of a query's result.

        Args:
            schema: The schema, as Spark has it.
            options: The options, for rows without some column.

        Raises:
            OptionError: If a column is missing, of a wrong type, or unknown.
        """
        topic = options.topic
        places: dict[str, int] = {}
        unknown: list[str] = []
        for place, field in enumerate(schema.fields):
            name = field.name.lower()
            if name not in _TYPES or name in places:
                unknown.append(field.name)
                continue
            places[name] = place
            found = field.dataType.simpleString()
            if found not in _TYPES[name] and found.split("(")[0] not in _TYPES[name]:
                msg = f"the column {field.name} is of type {found}; {_ADVICE[name]}"
                raise OptionError(msg)
        if "value" not in places:
            given = ", ".join(schema.fieldNames()) or "none"
            msg = (
                f"there is no column value among those that are written ({given}): give the one "
                'that holds the messages that name, as .withColumnRenamed("body", "value")'
            )
            raise OptionError(msg)
        if "topic" in places and topic is not None:
            msg = (
                f"the option topic says {topic} for all rows, and there is a column topic, too: "
                'leave out the option, or the column with .drop("topic")'
            )
            raise OptionError(msg)
        if "topic" not in places and topic is None:
            msg = (
                "nothing says to which topic the rows go: write a column topic (a string), or "
                'give the option topic for all of them, as .option("topic", "plant/alarms")'
            )
            raise OptionError(msg)
        if unknown:
            names = ", ".join(unknown)
            kept = ", ".join(f'"{name}"' for name in _TYPES if name in places)
            msg = (
                f"the columns {names} mean nothing here: choose those that do with "
                f".select({kept}), or pack what you need into value with to_json(struct(...))"
            )
            raise OptionError(msg)
        return cls(
            places["value"],
            places.get("topic"),
            places.get("qos"),
            places.get("retain"),
            places.get("content_type"),
            places.get("headers"),
            (topic or "").encode(),
            options.qos,
            options.retain,
        )

    def messages(self, batch: RecordBatch, first: int) -> Messages:
        """Return the messages of a record batch.

        Args:
            batch: The rows.
            first: How many rows of the same task came before.

        Raises:
            RowError: If a value is null, or a QoS is invalid.
        """
        values = _entries("value", batch.column(self.value), first)
        if values and isinstance(values[0], str):
            values = [value.encode() for value in values]
        if self.topic is None:
            topics = [self.same_topic] * len(values)
        else:
            names = _entries("topic", batch.column(self.topic), first)
            topics = [name.encode() for name in names]
        flags = self._flags(batch, first, len(values))
        if self.content_type is not None or self.headers is not None:
            self._add_properties(batch, first, values, flags)
        return Messages(topics, values, flags)

    def _add_properties(
        self, batch: RecordBatch, first: int, values: list[bytes], flags: list[int]
    ) -> None:
        """Add content types and user properties to the values and flags of their rows."""
        rows = len(values)
        types: list[Any] = (
            [None] * rows
            if self.content_type is None
            else batch.column(self.content_type).to_pylist()
        )
        headers: list[Any] = (
            [None] * rows if self.headers is None else batch.column(self.headers).to_pylist()
        )
        for place, (content_type, user) in enumerate(zip(types, headers, strict=True)):
            if content_type is None and not user:
                continue
            try:
                pairs = [(each["key"], _as_text(each["value"])) for each in user or ()]
                properties = encode_properties(content_type, pairs)
            except (ValueError, TypeError, AttributeError) as exc:
                msg = (
                    f"the headers or the content_type of row {first + place} of its partition "
                    f"(counted from 0) are not texts of up to 65,535 bytes in UTF-8: {exc}"
                )
                raise RowError(msg) from exc
            values[place] = with_properties(properties, values[place])
            flags[place] |= WITH_PROPERTIES

    def _flags(self, batch: RecordBatch, first: int, rows: int) -> list[int]:
        qos, retain = self.same_qos, RETAIN if self.same_retain else 0
        if self.qos is None and self.retain is None:
            return [qos | retain] * rows
        flags = [qos] * rows if self.qos is None else _entries("qos", batch.column(self.qos), first)
        for place, each in enumerate(flags):
            if each not in QOS:
                row = first + place
                raise RowError(f"the qos of row {row} of its partition is {each}, not 0, 1 or 2")
        if self.retain is None:
            return [each | retain for each in flags]
        kept = _entries("retain", batch.column(self.retain), first)
        return [each | RETAIN if keep else each for each, keep in zip(flags, kept, strict=True)]


def _as_text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()


def _entries(name: str, column: Column, first: int) -> list[Any]:
    entries = column.to_pylist()
    if column.null_count:
        row = first + entries.index(None)
        msg = (
            f"the {name} of row {row} of its partition (counted from 0) is null: leave such rows "
            f'out with .where("{name} is not null"), or give them one with coalesce'
        )
        raise RowError(msg)
    return entries
