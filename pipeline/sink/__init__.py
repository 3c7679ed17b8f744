"""A relay as a sink of Spark's: `df.writeStream.format("clearfunds")`, `df.write` likewise.

Each batch is published whole and exactly once; what its rows cause is debt of the writer's, so a
query is throttled by who reads what it publishes, like anyone.
"""

from ._batch import BatchWriter as BatchWriter
from ._making import batch_writer as batch_writer
from ._making import stream_writer as stream_writer
from ._options import WriteOptions as WriteOptions
from ._rows import Columns as Columns
from ._rows import RowError as RowError
from ._staging import Written as Written
from ._stream import StreamWriter as StreamWriter
