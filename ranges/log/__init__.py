"""Acknowledged subscriptions for range readers: named, fenced, replayable. No I/O."""

from ._block import Columns as Columns
from ._block import block_range as block_range
from ._block import cut_block as cut_block
from ._block import join_block as join_block
from ._block import merge_blocks as merge_blocks
from ._log import SubscriptionLog as SubscriptionLog
from ._registry import Subscriptions as Subscriptions
from ._registry import SubscriptionsStatistics as SubscriptionsStatistics
from ._replay_buffer import AtRest as AtRest
from ._rows import Row as Row
from ._rows import as_row as as_row
from ._rows import run_columns as run_columns
from ._settings import DEFAULT_GRACE as DEFAULT_GRACE
from ._settings import SubscriptionLimits as SubscriptionLimits
from ._settings import SubscriptionOptions as SubscriptionOptions
from ._subscription import RangeSubscription as RangeSubscription
from ._subscription import SubscriptionStatistics as SubscriptionStatistics
