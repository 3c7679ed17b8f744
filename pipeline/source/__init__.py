"""A relay's subscription as a source of Spark's: `spark.readStream.format("clearfunds")`.

Whoever published a row owes for it until Spark has written down that the row's batch is done.
"""

from ._batch import BatchReader as BatchReader
from ._offset import Offset as Offset
from ._options import ReadOptions as ReadOptions
from ._stream import StreamReader as StreamReader
