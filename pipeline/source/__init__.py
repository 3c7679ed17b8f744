"""A relay's subscription as a Spark source: `spark.readStream.format("clearfunds")`.

Rows are charged to their publisher until Spark has recorded their batch as done.
"""

from ._batch import BatchReader as BatchReader
from ._offset import Offset as Offset
from ._options import ReadOptions as ReadOptions
from ._stream import StreamReader as StreamReader
