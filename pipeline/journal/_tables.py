"""The journal's tables and their columns, defined once for the writer and all readers.

A table is a folder of Parquet files, `DIR/<table>/date=YYYY-MM-DD/hour=HH/part-*.parquet` in UTC.
A file is complete when its name does not begin with a dot or an underscore. So readers that skip
hidden files, as Spark and pyarrow's datasets do, never see an incomplete one.

Each moment is in two columns: a timestamp, for people and for windows; and nanoseconds since 1970,
for arithmetic. Both come from one monotonic clock, which is aligned with the wall clock once, when
the journal begins.
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


MOMENTS: Final = frozenset({"at_ns", "settled_ns", "ended_ns"})
"""Columns with the moment of a row."""


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
    """Its name, and that of its folder."""
    about: str
    columns: tuple[Column, ...]

    @property
    def moment(self) -> str:
        """The column, in nanoseconds, by which its rows are put into hours."""
        return [column.name for column in self.columns if column.name in MOMENTS][-1]

    @cached_property
    def schema(self) -> Any:
        """The columns as a `pyarrow.Schema`.

        Raises:
            MissingError: pyarrow is not installed.
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
"""The holder named in rows of loans that ended without one."""

NO_KIND: Final = "none"
"""The kind of `NO_HOLDER`."""


_WEIGHT: Final = Column(
    "weight",
    "float64",
    "How many rows this one counts for: 1 while every row is kept, k while one in k is kept. Sum "
    "items * weight and bytes * weight.",
)

SETTLEMENTS: Final = Table(
    "settlements",
    "One row for each loan that ended, or for each of its parts that ended.",
    (
        Column("settled", "timestamp", "When it was repaid."),
        Column(
            "opened_ns",
            "int64",
            "When it was made. If later deliveries joined the loan: when the first was made.",
        ),
        Column("settled_ns", "int64", "When it was repaid."),
        Column(
            "account",
            "string",
            "The account that owed: the source that caused it, however many steps ago.",
        ),
        Column("parent", "string", "The account above that one.", nullable=True),
        Column("holder", "string", "The holder in which it ended, as a connection or a queue."),
        Column("kind", "string", "The kind of the holder, as `outlet`."),
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
        Column("account", "string", "The account that sent it."),
        Column("parent", "string", "The account above that one.", nullable=True),
        Column("topic", "string", "Its topic; for a run, that of its first message."),
        Column("items", "int64", "Messages that came in."),
        Column("bytes", "int64", "Their bytes."),
        Column(
            "copies",
            "int64",
            "Copies that holders got, the write amplification; 0: no holder wanted it.",
        ),
        Column("copied_bytes", "int64", "Their bytes."),
        _WEIGHT,
    ),
)

OPEN_LOANS: Final = Table(
    "open_loans",
    "Outstanding loans when a snapshot was taken: a row for each account and holder.",
    (
        Column("at", "timestamp", "When the snapshot was begun; all its rows have this moment."),
        Column("at_ns", "int64", "When the snapshot was begun."),
        Column("account", "string", "The account that owes."),
        Column("holder", "string", "The holder of the loans."),
        Column("kind", "string", "The kind of the holder."),
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
        Column("debt_items", "int64", "Messages it owes for, with those of the accounts below it."),
        Column("debt_bytes", "int64", "Their bytes."),
        Column("peak_items", "int64", "The most that it ever owed for."),
        Column("peak_bytes", "int64", "The most that it ever owed for."),
        Column("limit_items", "int64", "Its limit; null: none.", nullable=True),
        Column("limit_bytes", "int64", "Its limit; null: none.", nullable=True),
        Column(
            "at_rest",
            "string",
            "Where its debt is stored: `disk` or `ram`; null: it is in flight.",
            nullable=True,
        ),
    ),
)

STALLS: Final = Table(
    "stalls",
    "One row for each stretch of a reader's wait, once its culprit is known.",
    (
        Column("ended", "timestamp", "When the stretch ended."),
        Column("began_ns", "int64", "When it began."),
        Column("ended_ns", "int64", "When it ended."),
        Column("account", "string", "The account whose reader waited."),
        Column(
            "at_account", "string", "The account whose debt had to fall: that one, or one above it."
        ),
        Column(
            "culprit", "string", "The holder that the reader waited on, or a name in place of one."
        ),
        Column("reason", "string", "`account`, `parent`, `alarm`, `share`, `rate` or `blocked`."),
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
        Column("low_items", "int64", "Its lower mark, at which its readers go on.", nullable=True),
        Column("low_bytes", "int64", "Its lower mark, at which its readers go on.", nullable=True),
    ),
)

TABLES: Final[Mapping[str, Table]] = {
    table.name: table for table in (SETTLEMENTS, PUBLICATIONS, OPEN_LOANS, ACCOUNTS, STALLS, LIMITS)
}
"""All tables, by name."""
