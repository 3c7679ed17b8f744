"""What stands between the store and what is kept in it: queues, readers' logs, writers' batches."""

from ._codec import UnstorableError as UnstorableError
from ._codec import decode as decode
from ._codec import encode as encode
from ._log import Log as Log
from ._ram_shelves import RamShelf as RamShelf
from ._ram_shelves import RamShelves as RamShelves
from ._ram_shelves import open_ram_shelves as open_ram_shelves
from ._range_disk import SubscriptionDisk as SubscriptionDisk
from ._shelves import Shelves as Shelves
from ._shelves import StoreShelf as StoreShelf
from ._shelves import open_shelves as open_shelves
from ._sink_disk import SinkDisk as SinkDisk
