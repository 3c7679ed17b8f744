"""Batch writers: rows are staged, decided on once, and then published.

Nothing here does I/O; a `SinkLog` stands for the disk.
"""

from ._errors import FencedError as FencedError
from ._errors import NotStagedError as NotStagedError
from ._errors import OtherIncarnationError as OtherIncarnationError
from ._errors import RefusedError as RefusedError
from ._errors import SinkError as SinkError
from ._log import SinkLog as SinkLog
from ._part import Block as Block
from ._part import Part as Part
from ._part import PartKey as PartKey
from ._publishing import Publishing as Publishing
from ._publishing import RowConfirm as RowConfirm
from ._registry import Sinks as Sinks
from ._registry import SinksStatistics as SinksStatistics
from ._registry import usual_limit as usual_limit
from ._rows import MAX_ROWS as MAX_ROWS
from ._rows import Rows as Rows
from ._rows import encode_rows as encode_rows
from ._settings import DEFAULT_BATCH_LIMIT as DEFAULT_BATCH_LIMIT
from ._settings import DEFAULT_EXPIRY as DEFAULT_EXPIRY
from ._settings import DEFAULT_GRACE as DEFAULT_GRACE
from ._settings import SinkLimits as SinkLimits
from ._sink import Decision as Decision
from ._sink import Sink as Sink
from ._sink import SinkStatistics as SinkStatistics
