"""Durable storage: queues of messages in an SQLite database, written by a thread of their own."""

from ._changes import Body as Body
from ._changes import Changes as Changes
from ._errors import Damage as Damage
from ._errors import StoreClosedError as StoreClosedError
from ._errors import StoreDiskError as StoreDiskError
from ._errors import StoreError as StoreError
from ._errors import StoreExposedError as StoreExposedError
from ._errors import StoreFormatError as StoreFormatError
from ._errors import StoreLockedError as StoreLockedError
from ._errors import StoreTakenError as StoreTakenError
from ._errors import StoreUsageError as StoreUsageError
from ._inspection import Inspection as Inspection
from ._inspection import Verification as Verification
from ._log_codec import decode_changes as decode_changes
from ._log_codec import encode_changes as encode_changes
from ._queue import Record as Record
from ._queue import StoredQueue as StoredQueue
from ._repair import repair as repair
from ._replay import Replay as Replay
from ._settings import StoreSettings as StoreSettings
from ._statistics import StoreStatistics as StoreStatistics
from ._store import Store as Store
