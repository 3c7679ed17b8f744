"""The queue between the owner and the writer: changes that are committed and not written yet."""

from __future__ import annotations

import threading
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ._changes import Changes

#: Approximate size of a batch: a larger one would leave the processor's cache between its encoding
#: and its write, which takes three times as long...
_BATCH_BYTES: Final = 128 << 10
#: ...but this is added for each queue in it, or their extents would be small and many.
_QUEUE_BYTES: Final = 8 << 10


class PendingChanges:
    """Committed changes, in the order of their tickets. Use it under the lock.

    Attributes:
        changes: The changes that no batch has yet.
        nbytes: Size of all changes that are not written, including those of a batch that is being
            written.
        ticket: The ticket of the last commit.
        commits: Number of commits.
        oldest: The time since which a commit waits for an fsync; None: none waits.
        hurried: Whether the owner asked for an fsync as soon as possible.
        asked_for: Whether the owner waits for the lock.
        wake: Notified when the writer has something to do.
    """

    def __init__(self, lock: threading.RLock, ticket: int, write_bytes: int) -> None:
        self._lock = lock
        self._write_bytes = write_bytes
        self.changes: deque[Changes] = deque()
        self.nbytes = 0
        self.ticket = ticket
        self.commits = 0
        self.oldest: float | None = None
        self.hurried = self.asked_for = False
        self.wake = threading.Condition(lock)

    def acquire(self) -> threading.RLock:
        """Take the lock before the writer takes it again: the writer delays the owner's loop."""
        if not self._lock.acquire(blocking=False):
            self.asked_for = True
            self._lock.acquire()
            self.asked_for = False
        return self._lock

    def add(self, changes: Changes) -> int:
        """Add changes that the index has already; return their ticket."""
        self.ticket += 1
        changes.ticket = self.ticket
        self.changes.append(changes)
        before = self.nbytes
        self.nbytes += changes.nbytes
        self.commits += 1
        changes.since = monotonic()
        if self.oldest is None:
            self.oldest = changes.since
            self.wake.notify()
        elif before < self._write_bytes <= self.nbytes:
            self.wake.notify()
        return self.ticket

    def take(self, until: int, limit: int) -> list[Changes]:
        """Take the next changes for a common batch of about `limit` bytes, up to a ticket."""
        # Rather one batch somewhat larger than a second one with little in it.
        slack = _BATCH_BYTES // 2 if self.nbytes < 3 * _BATCH_BYTES // 2 else 0
        group: list[Changes] = []
        queues: set[int] = set()
        size = 0
        while self.changes and self.changes[0].ticket <= until:
            changes = self.changes[0]
            size += changes.nbytes
            queues.update(changes.puts)
            if group and size > min(limit, _BATCH_BYTES + slack + _QUEUE_BYTES * len(queues)):
                break
            group.append(self.changes.popleft())
        return group

    def put_back(self, group: list[Changes]) -> None:
        """Put back the changes that were taken last, whose batch was not written."""
        self.changes.extendleft(reversed(group))

    def synced(self) -> None:
        """Note the time from which changes wait, after an fsync. It takes the lock itself."""
        with self._lock:
            self.oldest = self.changes[0].since if self.changes else None
