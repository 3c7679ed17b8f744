"""Batch writers: rows are staged, decided on once, and then published.

Nothing here does I/O; a `SinkLog` stands for the disk.
"""

from ._log import SinkLog as SinkLog
from ._part import Block as Block
from ._part import Part as Part
from ._publishing import Publishing as Publishing
from ._publishing import RowConfirm as RowConfirm
from ._registry import Sinks as Sinks
from ._registry import SinksStatistics as SinksStatistics
from ._registry import usual_limit as usual_limit
from ._settings import DEFAULT_BATCH_LIMIT as DEFAULT_BATCH_LIMIT
from ._settings import DEFAULT_EXPIRY as DEFAULT_EXPIRY
from ._settings import DEFAULT_GRACE as DEFAULT_GRACE
from ._settings import SinkLimits as SinkLimits
from ._sink import Decision as Decision
from ._sink import Sink as Sink
from ._sink import SinkStatistics as SinkStatistics
