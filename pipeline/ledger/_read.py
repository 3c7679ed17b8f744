"""The journal's tables as DataFrames: what is there, or what is written while it is read.

Rules:
1. A table that is missing, or has no file yet, is empty and has its columns: a journal has just
   been begun, or nobody ever stood still.
2. Only complete files are read, by their names: `*.parquet` that is not hidden. What else lies in
   these folders is passed over.
3. The columns are those that the journal declares, not those of whichever file comes first.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import attrs
from pyspark.errors import AnalysisException
from pyspark.sql import functions as fn
from pyspark.sql.types import (
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from .._errors import PipelineError
from ..journal import TABLES

if TYPE_CHECKING:
    import os

    from pyspark.sql import DataFrame, SparkSession

_TYPES: Final[dict[str, DataType]] = {
    "string": StringType(),
    "int64": LongType(),
    "float64": DoubleType(),
    "timestamp": TimestampType(),
}

#: `date=` and `hour=` are looked through, not taken for columns: whatever else lies in there would
#: have to be such a folder, too.
_OPTIONS: Final[dict[str, str]] = {"recursiveFileLookup": "true", "pathGlobFilter": "*.parquet"}


@attrs.frozen
class Tables:
    """The tables of a journal; `clearfunds.pipeline.journal.TABLES` says what is in each."""

    settlements: DataFrame
    """Loans that ended."""
    publications: DataFrame
    """What came in and was handed on."""
    open_loans: DataFrame
    """Snapshots of what was outstanding."""
    accounts: DataFrame
    """Snapshots of the accounts' statements."""
    stalls: DataFrame
    """Stretches of waits, each blamed on somebody."""
    limits: DataFrame
    """Changes of limits."""


def schema(table: str) -> StructType:
    """Return the columns of a table of the journal, as Spark has them."""
    return StructType(
        [StructField(c.name, _TYPES[c.type], c.nullable) for c in TABLES[table].columns]
    )


def read(spark: SparkSession, folder: str | os.PathLike[str]) -> Tables:
    """Return the tables as they are now; files that appear later are not in them.

    Args:
        spark: The session.
        folder: What the relay was given as `--journal`; or a URL of a file system Spark knows.

    Raises:
        PipelineError: There is no such folder, or what is in it is no journal.
    """
    base = _base(folder)

    def table(name: str) -> DataFrame:
        columns = schema(name)
        reader = spark.read.schema(columns).options(**_OPTIONS)
        try:
            return reader.parquet(f"{base}/{name}")
        except AnalysisException as error:
            if error.getCondition() != "PATH_NOT_FOUND":
                raise
            nothing = [fn.lit(None).cast(c.dataType).alias(c.name) for c in columns]
            return spark.range(1).select(*nothing).where(fn.lit(False))

    return _tables(table)


def read_stream(
    spark: SparkSession,
    folder: str | os.PathLike[str],
    late: str = "1 minute",
    max_files: int | None = None,
) -> Tables:
    """Return the tables as streams: what is there, then each file as it becomes complete.

    Each has a watermark on its first column, the moment that a row was written for: a loan is told
    of when it ends, so that this is the order in which rows come, but for the files of one moment.
    Results by interval (`every=`) come out once the watermark has passed their interval.

    Args:
        spark: The session.
        folder: As for `read`.
        late: How far apart rows may be that come one after the other; what comes later than that
            is passed over by results by interval.
        max_files: How many files of a table one micro-batch takes at most; None: all there are.

    Raises:
        PipelineError: There is no such folder, or what is in it is no journal.
    """
    base = _base(folder)

    def table(name: str) -> DataFrame:
        columns = schema(name)
        # A pattern need not match anything yet, where a path has to be there.
        path = f"{base}/[{name[0]}]{name[1:]}"
        reader = spark.readStream.schema(columns).options(**_OPTIONS)
        if max_files is not None:
            reader = reader.option("maxFilesPerTrigger", max_files)
        return reader.parquet(path).withWatermark(columns[0].name, late)

    return _tables(table)


def _tables(table: Any) -> Tables:
    return Tables(**{field.name: table(field.name) for field in attrs.fields(Tables)})


def _base(folder: str | os.PathLike[str]) -> str:
    """Look at the folder, if it is one of this machine, and return what Spark is to be told."""
    name = str(folder)
    url = urlsplit(name)
    if len(url.scheme) > 1 and url.scheme != "file":
        return name.rstrip("/")
    path = Path(unquote(url.path) if url.scheme == "file" else name)
    if not path.is_dir():
        there = "is a file, not a folder" if path.exists() else "is not there"
        msg = f"the journal {name} {there}; give the folder that `clearfunds relay --journal` has"
        raise PipelineError(msg)
    inside = [each.name for each in path.iterdir() if not each.name.startswith((".", "_"))]
    if inside and not set(inside) & set(TABLES):
        msg = (
            f"there is no journal in {name}: none of its folders is one of "
            f"{', '.join(TABLES)}; give the folder that `clearfunds relay --journal` has"
        )
        raise PipelineError(msg)
    # Spark takes paths for patterns.
    return re.sub(r"([\[\]{}*?\\])", r"\\\1", str(path.absolute()))
