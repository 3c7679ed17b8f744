"""Queues: holders with a memory of their own. No I/O.

Confirm: this message's debt has cleared, or is on disk. Ack: repay. Prefetch: the consumer's limit.
"""

from ._ack_batcher import DEFAULT_DELAY as DEFAULT_DELAY
from ._ack_batcher import DEFAULT_EVERY as DEFAULT_EVERY
from ._ack_batcher import AckBatcher as AckBatcher
from ._ack_batcher import Acknowledgement as Acknowledgement
from ._ack_batcher import Verdict as Verdict
from ._backing import Backing as Backing
from ._backing import BackingFactory as BackingFactory
from ._backing import BackingStatistics as BackingStatistics
from ._backing import Pager as Pager
from ._binding import Binding as Binding
from ._channel import Channel as Channel
from ._channel import Delivery as Delivery
from ._coalesce import coalesce as coalesce
from ._confirms import Confirms as Confirms
from ._confirms import PublicationConfirm as PublicationConfirm
from ._confirms import PublisherConfirm as PublisherConfirm
from ._consumer import Consumer as Consumer
from ._dead_letters import DeadLetter as DeadLetter
from ._dead_letters import DeadLetterRoute as DeadLetterRoute
from ._dead_letters import dead_letter_to as dead_letter_to
from ._errors import QueueDeletedError as QueueDeletedError
from ._errors import QueueError as QueueError
from ._errors import QueueInUseError as QueueInUseError
from ._errors import QueueLockedError as QueueLockedError
from ._errors import QueueNotEmptyError as QueueNotEmptyError
from ._errors import UnknownTagError as UnknownTagError
from ._group import Group as Group
from ._group import Member as Member
from ._group import MemberStatistics as MemberStatistics
from ._message import Death as Death
from ._message import DeathReason as DeathReason
from ._message import Message as Message
from ._prefetch import PrefetchWindow as PrefetchWindow
from ._queue import Queue as Queue
from ._queue import is_exactly_once as is_exactly_once
from ._queue import is_persistent as is_persistent
from ._rates import Rates as Rates
from ._runs import Run as Run
from ._runs import RunQueue as RunQueue
from ._settings import DEFAULT_DELIVERY_LIMIT as DEFAULT_DELIVERY_LIMIT
from ._settings import Overflow as Overflow
from ._settings import QueueSettings as QueueSettings
from ._shelf import Marks as Marks
from ._shelf import MemoryShelf as MemoryShelf
from ._shelf import Shelf as Shelf
from ._shelf import ShelfUser as ShelfUser
from ._statistics import Counters as Counters
from ._statistics import QueueStatistics as QueueStatistics
from ._steady import SteadyBacking as SteadyBacking
from ._stream import QueueStream as QueueStream
from ._sums import QueueSums as QueueSums
from ._window import DEFAULT_WINDOW as DEFAULT_WINDOW
from ._window import InflightWindow as InflightWindow
