"""The server for readers that take ranges, and for writers of batches: frames over TCP.

Their clients are in `clearfunds.ranges.client`.
"""

from ._disk import StoreUnwillingError as StoreUnwillingError
from ._disk import SubscriptionDisk as SubscriptionDisk
from ._entrance import Doorkeeper as Doorkeeper
from ._frames import ErrorCode as ErrorCode
from ._frames import Frame as Frame
from ._frames import FrameReader as FrameReader
from ._frames import Kind as Kind
from ._frames import parse_request as parse_request
from ._server import SubscriptionServer as SubscriptionServer
from ._session import SubscriptionSession as SubscriptionSession
from ._settings import SubscriptionSettings as SubscriptionSettings
