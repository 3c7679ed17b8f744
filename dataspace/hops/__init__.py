"""Debt over hops: publications that go to another relay, and are owed for until it is done.

No I/O: a transport carries the shipments and receipts.
"""

from ._books import Comparison as Comparison
from ._books import HopBooks as HopBooks
from ._books import LandingBooks as LandingBooks
from ._books import compare as compare
from ._hop import Hop as Hop
from ._hop import above as above
from ._hop import share_of_window as share_of_window
from ._landing import IDLE_SECONDS as IDLE_SECONDS
from ._landing import LandedConfirm as LandedConfirm
from ._landing import Landing as Landing
from ._landing import Seen as Seen
from ._outbox import Sending as Sending
from ._remote_holder import PREFIX as PREFIX
from ._remote_holder import RemoteHolder as RemoteHolder
from ._remote_holder import via as via
from ._wait_paths import WaitPaths as WaitPaths
from ._wire import Held as Held
from ._wire import Identity as Identity
from ._wire import Parcel as Parcel
from ._wire import Path as Path
from ._wire import Ranges as Ranges
from ._wire import Receipt as Receipt
from ._wire import Shipment as Shipment
