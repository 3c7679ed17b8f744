"""The journal's tables as DataFrames: as they are now, or as streams that follow the journal.

Rules:
1. A table that is missing, or has no file yet, is empty and has its columns: the journal has just
   begun, or no reader ever waited.
2. Only complete files are read, by their names: `*.parquet` that is not hidden. Other files in
   these folders are ignored.
3. The columns are those that the journal declares, not those of the first file found.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import attrs
from pyspark.errors import AnalysisException, PySparkException
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

from .._arrow import arrow
from ..journal import TABLES
from ..journal._damage import Damage, judge
from ..journal._listing import Entries, Folder, folders, grouped, local, newest
from ..journal._place import find

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

    from ..journal._place import Place

_TYPES: Final[dict[str, DataType]] = {
    "string": StringType(),
    "int64": LongType(),
    "float64": DoubleType(),
    "timestamp": TimestampType(),
}

_SERVER: Final = re.compile("[^/]*:(//[^/]*)?")
"""The beginning of a URL: its scheme, and its server."""

#: `date=` and `hour=` are searched recursively, not used as columns: else Spark would take every
#: other folder in there for a partition.
_LOOKING: Final[dict[str, str]] = {"recursiveFileLookup": "true", "pathGlobFilter": "*.parquet"}

_OPTIONS: Final[dict[str, str]] = {
    **_LOOKING,
    # Spark's own default lets flipped bytes pass as rows.
    "parquet.page.verify-checksum.enabled": "true",
}


@attrs.frozen
class Tables:
    """The tables of a journal; `clearfunds.pipeline.journal.TABLES` describes their columns."""

    settlements: DataFrame
    """Loans that ended."""
    publications: DataFrame
    """Messages that came in and were handed on."""
    open_loans: DataFrame
    """Snapshots of open loans."""
    accounts: DataFrame
    """Snapshots of the accounts' statements."""
    stalls: DataFrame
    """Stretches of waits, each with its culprit."""
    limits: DataFrame
    """Changes of limits."""


def schema(table: str) -> StructType:
    """Return a table's columns as a Spark schema."""
    return StructType(
        [StructField(c.name, _TYPES[c.type], c.nullable) for c in TABLES[table].columns]
    )


def read(
    spark: SparkSession, folder: str | os.PathLike[str], *, since_ns: int | None = None
) -> Tables:
    """Return the tables as they are now; files that appear later are not in them.

    Args:
        spark: The session.
        folder: The relay's `--journal` folder, or its URL in a file system that Spark knows.
        since_ns: Only rows from this moment on, in nanoseconds since 1970, and of `accounts` the
            last snapshot in any case. Folders of earlier hours are not even listed. None: all.

    Raises:
        PipelineError: The folder does not exist, or holds no journal.
    """
    place = find(folder)
    return read_folders(spark, place, folders_of(spark, place, since_ns), since_ns)


def folders_of(
    spark: SparkSession, place: Place, since_ns: int | None = None
) -> dict[str, list[Folder]]:
    """Return the folders of each table that have rows of `since_ns` or later."""
    entries = local if place.folder is not None else remote(spark)
    if entries is None or (since_ns is None and place.folder is None):
        # Spark's workers list a whole journal faster than one process asks an object store.
        return {name: _listed(spark, place, name, since_ns) for name in TABLES}
    found = {name: folders(place, name, since_ns, entries) for name in TABLES}
    if not found["accounts"]:
        found["accounts"] = next(newest(place, "accounts", entries))
    return found


def read_folders(
    spark: SparkSession,
    place: Place,
    found: Mapping[str, Sequence[Folder]],
    since_ns: int | None = None,
) -> Tables:
    """Return the tables in these folders, as `read` does."""

    def table(name: str) -> DataFrame:
        columns = schema(name)
        if since_ns is None and found[name] and all(each.whole for each in found[name]):
            paths = [f"{place.url}/{name}"]
        else:
            paths = [
                path
                for each in found[name]
                for path in ([each.path] if each.whole and each.alone else each.paths)
            ]
        if not paths:
            nothing = [fn.lit(None).cast(c.dataType).alias(c.name) for c in columns]
            return spark.range(1).select(*nothing).where(fn.lit(False))
        reader = spark.read.schema(columns).options(**_OPTIONS)
        rows = reader.parquet(*map(_pattern, paths))
        if since_ns is None:
            return rows
        moment = fn.col(TABLES[name].moment)
        if name != "accounts":
            return rows.where(moment >= since_ns)
        last = rows.agg(fn.max("at_ns").alias("last_ns"))
        least = fn.least(fn.col("last_ns"), fn.lit(since_ns))
        return rows.join(fn.broadcast(last), moment >= least).drop("last_ns")

    return _tables(table)


def last_settled(spark: SparkSession, files: Sequence[str]) -> int | None:
    """Return the last `settled_ns` in files of settlements; None if they have no row."""
    reader = spark.read.schema(schema("settlements")).options(**_OPTIONS)
    (row,) = reader.parquet(*map(_pattern, files)).agg(fn.max("settled_ns").alias("last")).collect()
    found: int | None = row["last"]
    return found


def damaged(spark: SparkSession, table: str, some: Sequence[Folder]) -> list[Damage]:
    """Return the damaged files of those in some folders of a table, wherever Spark finds them.

    Spark's workers read all of their bytes; a file has to fit into the memory of one.
    """
    wanted = {_without_server(path): path for each in some for path in each.paths}
    if not wanted:
        return []
    places = [place for each in some for place in ([each.path] if each.alone else each.paths)]
    files = spark.read.format("binaryFile").options(**_LOOKING)
    content = fn.col("content")
    rows = files.load(list(map(_pattern, places))).select(
        "path",
        "length",
        fn.substring(content, 1, 4).alias("head"),
        fn.substring(content, -4, 4).alias("tail"),
        fn.crc32(content).alias("crc"),
    )
    found: list[Damage] = []
    for row in rows.collect():
        path = wanted.pop(_without_server(row["path"]), None)
        if path is None:
            continue  # a file that another one stands for
        ends, crc = (bytes(row["head"]), bytes(row["tail"])), partial(int, row["crc"])
        whole = partial(_content, files, path)
        why = judge(TABLES[table], path, row["length"], ends, crc, whole)
        if why is not None:
            found.append(Damage(path, why))
    # Spark passes over files that have no bytes.
    return found + [Damage(path, "is empty") for path in wanted.values()]


def _content(files: DataFrameReader, path: str) -> Any:
    (row,) = files.load(_pattern(path)).select("content").collect()
    return arrow().BufferReader(bytes(row["content"]))


def _without_server(url: str) -> str:
    return _SERVER.sub("", url)


def _listed(spark: SparkSession, place: Place, table: str, since_ns: int | None) -> list[Folder]:
    """Return the folders of a table, which Spark lists."""
    reader = spark.read.schema(schema(table)).options(**_OPTIONS)
    try:
        files = reader.parquet(_pattern(f"{place.url}/{table}")).inputFiles()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return []
    return grouped([unquote(file) for file in files], since_ns)


def remote(spark: SparkSession) -> Entries | None:
    """Return what lists a folder of a file system that Spark knows; None with Spark Connect."""
    try:
        context: Any = spark.sparkContext
    except PySparkException:
        return None
    java, conf = context._jvm, context._jsc.hadoopConfiguration()

    def entries(path: str) -> list[tuple[str, bool]]:
        where = java.org.apache.hadoop.fs.Path(path)
        system = where.getFileSystem(conf)
        if not system.exists(where):
            return []
        return [
            (each.getPath().getName(), bool(each.isDirectory()))
            for each in system.listStatus(where)
        ]

    return entries


def read_stream(
    spark: SparkSession,
    folder: str | os.PathLike[str],
    late: str = "1 minute",
    max_files: int | None = None,
) -> Tables:
    """Return the tables as streams: existing files first, then each file as it becomes complete.

    Each has a watermark on its first column, the moment of the row. A loan's row is written when
    the loan ends, so rows come in this order, except within the files of one moment. Results by
    interval (`every=`) come out once the watermark has passed their interval.

    Args:
        spark: The session.
        folder: As for `read`.
        late: The delay of the watermark, as a duration; results by interval ignore later rows.
        max_files: The most files of a table that one micro-batch takes; None: all.

    Raises:
        PipelineError: The folder does not exist, or holds no journal.
    """
    base = _pattern(find(folder).url)

    def table(name: str) -> DataFrame:
        columns = schema(name)
        # A path must exist; a pattern need not match anything yet.
        path = f"{base}/[{name[0]}]{name[1:]}"
        reader = spark.readStream.schema(columns).options(**_OPTIONS)
        if max_files is not None:
            reader = reader.option("maxFilesPerTrigger", max_files)
        return reader.parquet(path).withWatermark(columns[0].name, late)

    return _tables(table)


def _tables(table: Any) -> Tables:
    return Tables(**{field.name: table(field.name) for field in attrs.fields(Tables)})


def _pattern(path: str) -> str:
    """Return a path for Spark, which takes paths for patterns."""
    return re.sub(r"([\[\]{}*?\\])", r"\\\1", path)
