"""Writers out of what Spark says: everything that can be wrong before a task runs is found here."""

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
    """Return what writes a stream.

    Args:
        given: The options.
        schema: The columns of the rows.
        overwrite: Whether each batch is the whole result (output mode `complete`): it is published
            as others are, as to Kafka.

    Raises:
        OptionError: If an option or a column cannot be so.
        MissingError: If there is no pyarrow.
    """
    arrow()
    options = stream_options(given)
    return StreamWriter(options, Columns.of(schema, options))


def batch_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """Return what writes one job's rows.

    Raises:
        OptionError: If an option or a column cannot be so, or the mode is `overwrite`.
        MissingError: If there is no pyarrow.
    """
    arrow()
    if overwrite:
        raise OptionError('what was published cannot be overwritten: write with .mode("append")')
    options = batch_options(given)
    return BatchWriter(options, Columns.of(schema, options))
