"""A relay as a Spark sink: `df.writeStream.format("clearfunds")`, and `df.write` likewise.

Each batch is published as a whole and exactly once. Its rows are charged to the writer, so slow
consumers throttle a query (backpressure) as they do any publisher.
"""

from ._batch import BatchWriter as BatchWriter
from ._making import batch_writer as batch_writer
from ._making import stream_writer as stream_writer
from ._options import WriteOptions as WriteOptions
from ._rows import Columns as Columns
from ._rows import RowError as RowError
from ._staging import Written as Written
from ._stream import StreamWriter as StreamWriter
