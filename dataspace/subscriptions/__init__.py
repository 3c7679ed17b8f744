"""Acked subscriptions for readers that take ranges: named, fenced, replayable. No I/O."""

from ._block import Columns as Columns
from ._block import block_range as block_range
from ._block import cut_block as cut_block
from ._block import join_block as join_block
from ._block import open_block as open_block
from ._errors import DataLossError as DataLossError
from ._errors import FencedError as FencedError
from ._errors import OtherIncarnationError as OtherIncarnationError
from ._errors import OutOfRangeError as OutOfRangeError
from ._errors import RefusedError as RefusedError
from ._errors import SubscriptionError as SubscriptionError
from ._log import SubscriptionLog as SubscriptionLog
from ._registry import Subscriptions as Subscriptions
from ._registry import SubscriptionsStatistics as SubscriptionsStatistics
from ._settings import DEFAULT_GRACE as DEFAULT_GRACE
from ._settings import AfterGrace as AfterGrace
from ._settings import Start as Start
from ._settings import SubscriptionLimits as SubscriptionLimits
from ._settings import SubscriptionOptions as SubscriptionOptions
from ._subscription import AtRest as AtRest
from ._subscription import Head as Head
from ._subscription import RangeSubscription as RangeSubscription
from ._subscription import Row as Row
from ._subscription import SubscriptionStatistics as SubscriptionStatistics
from ._subscription import as_row as as_row
from ._subscription import run_columns as run_columns
