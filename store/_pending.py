"""The queue between the owner and the writer: changes that are committed and not durable yet."""

from __future__ import annotations

import threading
from collections import deque
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

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
        held: Changes after those, which a log has to have first.
        held_bytes: Their size.
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
        self.held: deque[Changes] = deque()
        self.held_bytes = 0
        # Tickets of the last changes of each `release`.
        self._ends: deque[int] = deque()

    def add(self, changes: Changes, *, hold: bool = False) -> int:
        """Add changes that readers see already; return their ticket.

        Args:
            changes: They.
            hold: Whether to keep them back until `release`.
        """
        self.ticket += 1
        changes.ticket = self.ticket
        if hold:
            self.held.append(changes)
            self.held_bytes += changes.nbytes
        else:
            self._append(changes)
        return self.ticket

    def release(self, ticket: int) -> None:
        """Let go of held changes up to a ticket: they may be written."""
        self._ends.append(ticket)
        while self.held and self.held[0].ticket <= ticket:
            changes = self.held.popleft()
            self.held_bytes -= changes.nbytes
            self._append(changes)

    def _append(self, changes: Changes) -> None:
        self.changes.append(changes)
        before = self.nbytes
        self.nbytes += changes.nbytes
        changes.since = monotonic()
        if self.oldest is None:
            self.oldest = changes.since
            self.wake.notify()
        elif before < self._write_bytes <= self.nbytes:
            self.wake.notify()

    def first(self, until: int, limit: int) -> list[Changes]:
        """Return the first changes, about `limit` bytes, up to a ticket; they stay here.

        Changes that were released at once stay together, whatever their size and `until`: only the
        last of them has their place in the log.
        """
        group = _first(self.changes, until, limit)
        if group:
            last = group[-1].ticket
            end = next((end for end in self._ends if end >= last), last)
            group += islice(self.changes, len(group), len(group) + end - last)
        return group

    def first_held(self, limit: int) -> list[Changes]:
        """Return the first held changes, about `limit` bytes; they stay here."""
        return _first(self.held, self.ticket, limit)

    def durable(self, number: int) -> None:
        """Let go of the first changes: they are durable."""
        for _ in range(number):
            changes = self.changes.popleft()
            self.nbytes -= changes.nbytes
            if self._ends and self._ends[0] == changes.ticket:
                self._ends.popleft()
        self.oldest = self.changes[0].since if self.changes else None


def _first(changes: Iterable[Changes], until: int, limit: int) -> list[Changes]:
    group: list[Changes] = []
    size = 0
    for each in changes:
        size += each.nbytes
        if each.ticket > until or (group and size > limit):
            break
        group.append(each)
    return group
