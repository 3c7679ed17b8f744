"""Construction of writers, with all checks that are possible before a task runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .._arrow import arrow
from .._errors import OptionError
from ._batch import BatchWriter
from ._options import batch_options, stream_options
from ._rows import Columns
from ._stream import StreamWriter

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def stream_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """Return the writer of a stream.

    Args:
        given: The options.
        schema: The columns of the rows.
        overwrite: Whether each batch is the whole result (output mode `complete`): it is published
            like any other, as Spark's Kafka sink does.

    Raises:
        OptionError: If an option or a column is invalid.
        MissingError: If pyarrow is not installed.
    """
    arrow()
    options = stream_options(given)
    return StreamWriter(options, Columns.of(schema, options))


def batch_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """Return the writer of one job's rows.

    Raises:
        OptionError: If an option or a column is invalid, or the mode is `overwrite`.
        MissingError: If pyarrow is not installed.
    """
    arrow()
    if overwrite:
        raise OptionError('what was published cannot be overwritten: write with .mode("append")')
    options = batch_options(given)
    return BatchWriter(options, Columns.of(schema, options))
