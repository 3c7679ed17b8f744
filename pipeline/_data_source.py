"""What Spark knows as the format `clearfunds`: a source, in `source/`, and a sink, in `sink/`.

Spark imports this in every process of Python's that has to do with a query, so what only one side
needs is imported where it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._errors import OptionError

try:
    from pyspark.sql.datasource import DataSource
except ImportError as exc:
    from ._errors import MissingError

    raise MissingError(
        'PySpark 4.2 or newer is not installed here: pip install "clearfunds[pipeline]"'
    ) from exc

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from .sink import BatchWriter, StreamWriter
    from .source import BatchReader, StreamReader

NAME = "clearfunds"


class ClearFundsDataSource(DataSource):
    """The format `clearfunds`; see `docs/spark.md` for its options.

    Where `pyspark_clearfunds` can be imported, Spark finds it by itself; elsewhere it is made known
    by `spark.dataSource.register(ClearFundsDataSource)`.
    """

    @classmethod
    def name(cls) -> str:
        """Return what stands in `format(...)`."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns of what is read. It is what Spark asks for first."""
        from ._arrow import arrow
        from .source._columns import schema_of
        from .source._options import includes_account

        account = includes_account(self.options)
        arrow()  # or Spark would say it in its own words, which tell nobody where
        return schema_of(account)

    def reader(self, schema: StructType) -> BatchReader:
        """Return what `spark.read` reads with."""
        from .source import BatchReader
        from .source._options import batch_options

        options = batch_options(self.options)
        self._check(schema)
        return BatchReader(options)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        """Return what `spark.readStream` reads with."""
        from .source import StreamReader
        from .source._options import stream_options

        options = stream_options(self.options)
        self._check(schema)
        return StreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return what `df.write` writes with."""
        from .sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        """Return what `df.writeStream` writes with."""
        from .sink import stream_writer

        return stream_writer(self.options, schema, overwrite)

    def _check(self, schema: StructType) -> None:
        """See whether a schema that a user has given is the one there is."""
        own = [(field.name, field.dataType) for field in self.schema()]
        if [(field.name, field.dataType) for field in schema] != own:
            columns = ", ".join(f"{name} {kind.simpleString()}" for name, kind in own)
            msg = (
                f"the columns of this source are {columns}: leave `.schema(...)` out, and take "
                "values apart in a `select`, as with from_json"
            )
            raise OptionError(msg)
