"""A broadcast with debt for your own server, under Trio and asyncio, in place of queues by hand.

A `Hub` takes events from publishers and gives them to the feeds of consumers: by topic, by class or
by pattern. Needs anyio, of the extra `streams`.
"""

from ._feed import Feed as Feed
from ._hub import DEFAULT_SPILL_BYTES as DEFAULT_SPILL_BYTES
from ._hub import Hub as Hub
from ._sending import Sink as Sink
from ._sending import sender_of as sender_of
