"""Virtual hosts of AMQP 0-9-1: exchanges, queues by name, bindings. No I/O.

The engine of the queues is `clearfunds.dataspace.queues`; the protocol is in transports/amqp.
"""

from ..queues import Keeper as Keeper
from ._arguments import QueueArguments as QueueArguments
from ._arguments import read_arguments as read_arguments
from ._declared_queue import DeclaredQueue as DeclaredQueue
from ._declared_queue import HostQueue as HostQueue
from ._declared_queue import QueueMaker as QueueMaker
from ._errors import HostError as HostError
from ._errors import Reason as Reason
from ._exchange import Binding as Binding
from ._exchange import Exchange as Exchange
from ._exchange import Kind as Kind
from ._host import HostStatistics as HostStatistics
from ._host import VirtualHost as VirtualHost
from ._keeping import PREFIX as PREFIX
from ._limits import HostLimits as HostLimits
from ._message import Message as Message
from ._message import MessageRun as MessageRun
from ._properties import PlainProperties as PlainProperties
from ._properties import Properties as Properties
from ._tables import Table as Table
from ._topic_bridge import AMQ_TOPIC as AMQ_TOPIC
from ._topic_bridge import TopicBridge as TopicBridge
from ._topic_bridge import filter_of as filter_of
from ._topic_bridge import key_of as key_of
from ._topic_bridge import topic_of as topic_of
from ._topic_patterns import TopicPatterns as TopicPatterns
from ._topic_patterns import pattern_matches as pattern_matches
