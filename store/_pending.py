"""The queue between the owner and the writer: changes that are committed and not durable yet."""

from __future__ import annotations

import threading
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._changes import Changes


class PendingChanges:
    """Committed changes, in the order of their tickets. Use it under the lock.

    Attributes:
        lock: The store's lock.
        changes: The changes that are not durable.
        nbytes: Their size.
        ticket: The ticket of the last commit.
        oldest: The time since which a commit waits for the disk; None: none waits.
        hurried: Whether the owner asked for the disk as soon as possible.
        wake: Notified when the writer has something to do.
    """

    def __init__(self, write_bytes: int) -> None:
        self.lock = threading.RLock()
        self._write_bytes = write_bytes
        self.changes: deque[Changes] = deque()
        self.nbytes = 0
        self.ticket = 0
        self.oldest: float | None = None
        self.hurried = False
        self.wake = threading.Condition(self.lock)

    def add(self, changes: Changes) -> int:
        """Add changes that readers see already; return their ticket."""
        self.ticket += 1
        changes.ticket = self.ticket
        self.changes.append(changes)
        before = self.nbytes
        self.nbytes += changes.nbytes
        changes.since = monotonic()
        if self.oldest is None:
            self.oldest = changes.since
            self.wake.notify()
        elif before < self._write_bytes <= self.nbytes:
            self.wake.notify()
        return self.ticket

    def first(self, until: int, limit: int) -> list[Changes]:
        """Return the first changes, about `limit` bytes, up to a ticket; they stay here."""
        group: list[Changes] = []
        size = 0
        for changes in self.changes:
            size += changes.nbytes
            if changes.ticket > until or (group and size > limit):
                break
            group.append(changes)
        return group

    def durable(self, number: int) -> None:
        """Let go of the first changes: they are durable."""
        for _ in range(number):
            self.nbytes -= self.changes.popleft().nbytes
        self.oldest = self.changes[0].since if self.changes else None
