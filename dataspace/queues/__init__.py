"""Queues: holders with a memory of their own. No I/O.

Confirm: this message's debt has cleared, or is on disk. Ack: repay. Prefetch: the consumer's limit.
"""

from ._backing import Backing as Backing
from ._backing import BackingFactory as BackingFactory
from ._backing import BackingStatistics as BackingStatistics
from ._backing import Keeper as Keeper
from ._message import Death as Death
from ._message import DeathReason as DeathReason
from ._message import Message as Message
from ._rates import Rates as Rates
from ._shelf import Marks as Marks
from ._shelf import MemoryShelf as MemoryShelf
from ._shelf import Shelf as Shelf
