"""The journal's tables: their columns, said once; who reads them derives from here.

A table is a folder of Parquet files, `DIR/<table>/date=YYYY-MM-DD/hour=HH/part-*.parquet` in UTC.
A file is complete when its name does not begin with a dot or an underscore: readers that pass over
hidden files, as Spark and pyarrow's datasets do, never see half of one.

Moments are given twice: as a timestamp, for people and for windows; and in nanoseconds since 1970,
for arithmetic. They come from one clock that never goes back, and which is laid beside the wall
clock once, when the journal begins.
"""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import attrs

from .._errors import MissingError

if TYPE_CHECKING:
    from collections.abc import Mapping

Type: TypeAlias = Literal["string", "int64", "float64", "timestamp"]
"""`timestamp` is in microseconds and UTC."""


@attrs.frozen
class Column:
    """One column of a table."""

    name: str
    type: Type
    doc: str
    nullable: bool = False


@attrs.frozen(slots=False)
class Table:
    """One table of the journal."""

    name: str
    """Of its folder, too."""
    about: str
    columns: tuple[Column, ...]

    @cached_property
    def schema(self) -> Any:
        """As a `pyarrow.Schema`.

        Raises:
            MissingError: There is no pyarrow.
        """
        pa = arrow("pyarrow")
        types = {
            "string": pa.string(),
            "int64": pa.int64(),
            "float64": pa.float64(),
            "timestamp": pa.timestamp("us", tz="UTC"),
        }
        return pa.schema([pa.field(c.name, types[c.type], c.nullable) for c in self.columns])


def arrow(module: str) -> Any:
    """Return `pyarrow`, or a module of it.

    Raises:
        MissingError: It is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        msg = f"the journal needs pyarrow ({error}): pip install 'clearfunds[pipeline]'"
        raise MissingError(msg) from error


NO_HOLDER: Final = "(no holder)"
"""Who finished what had come into nobody's hands."""

NO_KIND: Final = "none"
"""The kind of `NO_HOLDER`."""


_WEIGHT: Final = Column(
    "weight",
    "float64",
    "How many rows this one stands for: 1 while every row is kept; while one in k is, k. Sums are "
    "those of items * weight and bytes * weight.",
)

SETTLEMENTS: Final = Table(
    "settlements",
    "One row for each loan that ended; for each part, where it ended in parts.",
    (
        Column("settled", "timestamp", "When it was repaid."),
        Column(
            "opened_ns",
            "int64",
            "When it was made: for a loan that later deliveries joined, the first of them.",
        ),
        Column("settled_ns", "int64", "When it was repaid."),
        Column("account", "string", "Who owed: the source that caused it, however many steps ago."),
        Column("parent", "string", "The account above that one.", nullable=True),
        Column("holder", "string", "In whose hands it ended, as a connection or a queue."),
        Column("kind", "string", "What sort of holder that is, as `outlet`."),
        Column("outcome", "string", "How it ended, as `delivered`, `dropped`, `written_off`."),
        Column("items", "int64", "Messages."),
        Column("bytes", "int64", "Their bytes."),
        _WEIGHT,
    ),
)

PUBLICATIONS: Final = Table(
    "publications",
    "One row for each message, or run of messages, that came in and was handed on.",
    (
        Column("at", "timestamp", "When it was handed on."),
        Column("at_ns", "int64", "When it was handed on."),
        Column("account", "string", "Who sent it."),
        Column("parent", "string", "The account above that one.", nullable=True),
        Column("topic", "string", "What it was about; of a run, its first message."),
        Column("items", "int64", "Messages that came in."),
        Column("bytes", "int64", "Their bytes."),
        Column("copies", "int64", "Messages that it became in holders' hands; 0: nobody's."),
        Column("copied_bytes", "int64", "Their bytes."),
        _WEIGHT,
    ),
)

OPEN_LOANS: Final = Table(
    "open_loans",
    "What was outstanding when a snapshot was taken: a row for each account and holder.",
    (
        Column("at", "timestamp", "When the snapshot was begun; all its rows have this moment."),
        Column("at_ns", "int64", "When the snapshot was begun."),
        Column("account", "string", "Who owes."),
        Column("holder", "string", "In whose hands it is."),
        Column("kind", "string", "What sort of holder that is."),
        Column("items", "int64", "Messages."),
        Column("bytes", "int64", "Their bytes."),
        Column("opened_ns", "int64", "When the oldest of the loans was made."),
    ),
)

ACCOUNTS: Final = Table(
    "accounts",
    "Every account's statement when a snapshot was taken.",
    (
        Column("at", "timestamp", "When the snapshot was begun; all its rows have this moment."),
        Column("at_ns", "int64", "When the snapshot was begun."),
        Column("account", "string", "Its name."),
        Column("parent", "string", "The account above it.", nullable=True),
        Column("state", "string", "`clear`, `owing`, `throttled` or `closing`."),
        Column("debt_items", "int64", "Messages it owes for, those below it included."),
        Column("debt_bytes", "int64", "Their bytes."),
        Column("peak_items", "int64", "The most that it ever owed for."),
        Column("peak_bytes", "int64", "The most that it ever owed for."),
        Column("limit_items", "int64", "Its limit; null: none.", nullable=True),
        Column("limit_bytes", "int64", "Its limit; null: none.", nullable=True),
        Column(
            "at_rest",
            "string",
            "Where what it owes for is at rest: `disk` or `ram`; null: on its way.",
            nullable=True,
        ),
    ),
)

STALLS: Final = Table(
    "stalls",
    "One row for each stretch of a reader's wait, when it is known who it was that was waited on.",
    (
        Column("ended", "timestamp", "When the stretch ended."),
        Column("began_ns", "int64", "When it began."),
        Column("ended_ns", "int64", "When it ended."),
        Column("account", "string", "Whose reader waited."),
        Column("at_account", "string", "Whose debt had to fall: that account, or one above it."),
        Column("culprit", "string", "The holder that was waited on, or what stands in its place."),
        Column("reason", "string", "`account`, `parent`, `alarm`, `share`, `rate` or `credit`."),
    ),
)

LIMITS: Final = Table(
    "limits",
    "One row for each time that an account's limit was changed.",
    (
        Column("at", "timestamp", "When it was changed."),
        Column("at_ns", "int64", "When it was changed."),
        Column("account", "string", "Its name."),
        Column("limit_items", "int64", "Messages it may owe for; null: any.", nullable=True),
        Column("limit_bytes", "int64", "Bytes it may owe for; null: any.", nullable=True),
        Column("low_items", "int64", "Where its readers go on again.", nullable=True),
        Column("low_bytes", "int64", "Where its readers go on again.", nullable=True),
    ),
)

TABLES: Final[Mapping[str, Table]] = {
    table.name: table for table in (SETTLEMENTS, PUBLICATIONS, OPEN_LOANS, ACCOUNTS, STALLS, LIMITS)
}
"""All of them, by name."""
