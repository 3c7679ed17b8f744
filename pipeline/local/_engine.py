"""A journal's questions, answered in this process by DuckDB."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from .._arrow import arrow
from .._errors import MissingError, PipelineError
from ..journal import TABLES
from ._limits import recommended_limits
from ._questions import STILL_OPEN, overview, queries

if TYPE_CHECKING:
    from collections.abc import Generator

    from ..journal import Table

MANY: Final = 64
"""A table with more files is copied to the temporary directory first. Each question reads its
tables once or twice, which costs half a millisecond a file and so, for a week of a file a minute,
more than the questions themselves."""

_TYPES: Final = {"string": "varchar", "int64": "bigint", "float64": "double"}


def duckdb() -> Any:
    """Return the module.

    Raises:
        MissingError: It is not installed.
    """
    try:
        return import_module("duckdb")
    except ImportError as error:
        msg = f"the local engine needs DuckDB ({error}): pip install 'clearfunds[report]'"
        raise MissingError(msg) from error


def check_local() -> None:
    """Check that the local engine can run here.

    Raises:
        MissingError: Something is not installed.
    """
    duckdb()
    arrow()


class LocalJournal:
    """The tables of a journal in DuckDB; made by `open_local`."""

    def __init__(self, connection: Any, since_ns: int | None) -> None:
        self._connection = connection
        self._since_ns = since_ns

    def overview(self) -> Any:
        """Return the report's table `overview`, without the interval, as a `pyarrow.Table`."""
        return self._ask(overview(self._since_ns))

    def answer(self, name: str, step_ns: int, target_ms: float, margin: float) -> Any:
        """Return another table of the report, as a `pyarrow.Table`.

        Raises:
            PipelineError: A file cannot be read.
        """
        if name == "recommended_limits":
            return self._ask(recommended_limits(target_ms, margin))
        return self._ask(queries(step_ns)[name])

    def _ask(self, query: str) -> Any:
        try:
            table = self._connection.execute(query).to_arrow_table()
        except duckdb().Error as error:
            first = str(error).strip().partition("\n")[0]
            raise PipelineError(f"the journal could not be read: {first}") from error
        if "at" not in table.column_names:
            return table
        pa = arrow()
        at = table.column("at").cast(pa.timestamp("us", tz="UTC"))
        return table.set_column(table.column_names.index("at"), "at", at)


@contextlib.contextmanager
def open_local(
    files: Mapping[str, Sequence[str]],
    since_ns: int | None = None,
    *,
    threads: int | None = None,
    memory: int | None = None,
) -> Generator[LocalJournal]:
    """Read a journal with DuckDB for the length of a block.

    Args:
        files: The files of each table; a table without any is empty.
        since_ns: As for `ledger.read`.
        threads: How many threads it may use; None: one for each core.
        memory: Bytes that it may use, above which it uses a temporary directory on disk; None:
            four fifths of the machine's.

    Raises:
        MissingError: DuckDB is not installed.
        PipelineError: A file cannot be read.
    """
    module = duckdb()
    with tempfile.TemporaryDirectory(prefix="clearfunds-report-") as scratch:
        settings: dict[str, Any] = {"temp_directory": scratch, "preserve_insertion_order": False}
        if threads is not None:
            settings["threads"] = threads
        if memory is not None:
            settings["memory_limit"] = f"{max(memory >> 20, 64)}MiB"
        connection = module.connect(":memory:", config=settings)
        try:
            connection.execute(f"attach '{_quoted(scratch)}/copies.duckdb' as copies")
            for table in TABLES.values():
                connection.execute(_view(table, files.get(table.name, ()), since_ns))
            for statement in _VIEWS:
                connection.execute(statement)
            yield LocalJournal(connection, since_ns)
        except module.Error as error:
            first = str(error).strip().partition("\n")[0]
            raise PipelineError(f"the journal could not be read: {first}") from error
        finally:
            connection.close()


def _view(table: Table, files: Sequence[str], since_ns: int | None) -> str:
    columns = [column for column in table.columns if column.type != "timestamp"]
    if not files:
        none = ", ".join(f"cast(null as {_TYPES[c.type]}) as {c.name}" for c in columns)
        return f"create view every_{table.name} as select {none} where false"
    names = ", ".join(c.name for c in columns)
    paths = ", ".join(f"'{_quoted(path)}'" for path in files)
    read = f"read_parquet([{paths}], hive_partitioning = false)"
    moment = table.moment
    rows = "" if since_ns is None else f" where {moment} >= {since_ns}"
    if since_ns is not None and table.name == "accounts":
        # The last snapshot in any case.
        rows = f" where at_ns >= least({since_ns}, (select max(at_ns) from {read}))"
    select = f"select {names} from {read}{rows}"
    if len(files) <= MANY:
        return f"create view every_{table.name} as {select}"
    return (
        f"create table copies.every_{table.name} as {select}; "
        f"create view every_{table.name} as select * from copies.every_{table.name}"
    )


def _quoted(path: str) -> str:
    return path.replace("'", "''")


_VIEWS: Final = (
    # Messages stored in a queue are owed for days, and no reader waits for them.
    (
        "create temp table resting as select distinct account from every_accounts "
        "where at_rest is not null"
    ),
    *(
        f"create view {name} as select * from every_{name} "
        "where account not in (select account from resting)"
        for name in ("settlements", "open_loans")
    ),
    *(
        f"create view {name} as select * from every_{name}"
        for name in ("publications", "accounts", "stalls", "limits")
    ),
    "create view delivered as select * from settlements where kind <> 'router'",
    "create temp table sources as select distinct account from publications",
    "create view published as select * from delivered semi join sources using (account)",
    f"create temp table still_open as select * from ({STILL_OPEN}) where items > 0 or bytes > 0",
)
