"""The server for readers that take ranges, and for writers of batches: frames over TCP.

Their clients are in `clearfunds.ranges.client`.
"""

from ._entrance import Doorkeeper as Doorkeeper
from ._frames import FrameReader as FrameReader
from ._server import SubscriptionServer as SubscriptionServer
from ._session import SubscriptionSession as SubscriptionSession
from ._settings import SubscriptionSettings as SubscriptionSettings
