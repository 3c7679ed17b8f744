"""A NATS client on Trio, with JetStream and its keys with values.

No client of NATS runs on Trio: nats-py is for asyncio, natsio for asyncio and Python 3.13.
"""

from .client._client import NatsClient as NatsClient
from .client._client import NatsStatistics as NatsStatistics
from .client._errors import ConnectionLostError as ConnectionLostError
from .client._errors import LoginError as LoginError
from .client._errors import NoAnswerError as NoAnswerError
from .client._errors import NoRespondersError as NoRespondersError
from .client._errors import RefusedError as RefusedError
from .client._login import Login as Login
from .client._open import open_nats as open_nats
from .client._servers import NATS_PORT as NATS_PORT
from .client._subscription import Subscription as Subscription
from .codec._headers import Headers as Headers
from .codec._messages import Info as Info
from .codec._messages import Message as Message
from .codec._parser import Parser as Parser
from .jetstream._config import ConsumerConfig as ConsumerConfig
from .jetstream._config import ConsumerInfo as ConsumerInfo
from .jetstream._config import StreamConfig as StreamConfig
from .jetstream._config import StreamInfo as StreamInfo
from .jetstream._consuming import Messages as Messages
from .jetstream._consuming import fetch as fetch
from .jetstream._errors import JetStreamError as JetStreamError
from .jetstream._errors import NotFoundError as NotFoundError
from .jetstream._errors import StreamFullError as StreamFullError
from .jetstream._errors import WrongSequenceError as WrongSequenceError
from .jetstream._jetstream import JetStream as JetStream
from .jetstream._jetstream import PubAck as PubAck
from .jetstream._key_value import Entry as Entry
from .jetstream._key_value import KeyValue as KeyValue
from .jetstream._key_value import open_bucket as open_bucket
from .jetstream._message import Delivered as Delivered
from .jetstream._message import Stored as Stored
from .jetstream._ordered import OrderedMessages as OrderedMessages
