"""Spark's format `clearfunds`: a source, in `source/`, and a sink, in `sink/`.

Spark imports this module in every Python process that takes part in a query. So each method imports
the modules that only its side needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._errors import OptionError, plainly

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

    Spark finds it by itself where `pyspark_clearfunds` can be imported; elsewhere, register it with
    `spark.dataSource.register(ClearFundsDataSource)`.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name to give to `format(...)`."""
        return NAME

    @plainly
    def schema(self) -> StructType:
        """Return the columns of the source. Spark calls this first."""
        from ._arrow import arrow
        from .source._columns import schema_of
        from .source._options import chosen_columns

        chosen = chosen_columns(self.options)
        arrow()  # else Spark's own error would say so, without saying in which process
        return schema_of(chosen)

    @plainly
    def reader(self, schema: StructType) -> BatchReader:
        """Return the reader for `spark.read`."""
        from .source import BatchReader
        from .source._options import batch_options

        options = batch_options(self.options)
        self._check(schema)
        return BatchReader(options)

    @plainly
    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        """Return the reader for `spark.readStream`."""
        from .source import StreamReader
        from .source._options import stream_options

        options = stream_options(self.options)
        self._check(schema)
        return StreamReader(options)

    @plainly
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return the writer for `df.write`."""
        from .sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    @plainly
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        """Return the writer for `df.writeStream`."""
        from .sink import stream_writer

        return stream_writer(self.options, schema, overwrite)

    def _check(self, schema: StructType) -> None:
        """Check that a schema given by the user is that of the source."""
        own = [(field.name, field.dataType) for field in self.schema()]
        if [(field.name, field.dataType) for field in schema] != own:
            columns = ", ".join(f"{name} {kind.simpleString()}" for name, kind in own)
            msg = (
                f"the columns of this source are {columns}: leave `.schema(...)` out, and take "
                "values apart in a `select`, as with from_json"
            )
            raise OptionError(msg)
