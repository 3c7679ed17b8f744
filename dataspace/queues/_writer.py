"""Writes of a queue to its shelf, within the disk budget.

Rules of this file:
1. Nothing is written unless the queue's account has room for it; room is reserved for writes that
   are not yet durable. (Each queue reserves for itself: where several share a parent's limit, they
   may overshoot it by what they write between two syncs.)
2. A persistent message that finds no room waits, unconfirmed and on its publisher's loan, and is
   written when acks have made some, first come first served. The exception is the first one of
   those that may not be delivered before they are durable: once a consumer has room for it, it does
   not wait (`write_now`), or no ack would ever make room.
3. A message that is larger than the whole budget never finds room. It does not wait, or those
   behind it would wait with it, for ever: the queue does without it, unless a consumer takes it at
   once.
4. A message that is written belongs to its publisher until the shelf says that it is durable.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable

from ...accounts import Account, Confirm
from ._lines import Line, appended
from ._message import Message
from ._rates import Rates
from ._shelf import Shelf

logger = logging.getLogger("clearfunds.dataspace")

COMPACT = 64
"""Most finished messages that may stand among those that wait for room."""


class Writer:
    """The keeper of a queue's backing: writes, within the budget, and knows what is not yet safe.

    Attributes:
        shelf: The shelf to write to, or None.
        rates: The queue's.
        short: Whether something had to stay in RAM for want of room, or because of trouble.
        trouble: The trouble with the disk, or None.
        unsynced_items: Messages that are written and not durable.
        unsynced_bytes: Their bytes.
        paged: Transient messages ever written.
    """

    __slots__ = (
        "_account", "_by_seq", "_finished", "_on_lost", "_unsynced", "_unwritten", "paged",
        "rates", "shelf", "short", "trouble", "unsynced_bytes", "unsynced_items",
    )  # fmt: skip

    def __init__(
        self,
        account: Account,
        shelf: Shelf | None,
        rates: Rates,
        on_lost: Callable[[int], None],
    ) -> None:
        self._account = account
        self.shelf = shelf
        self.rates = rates
        self._on_lost = on_lost
        self.short = False
        self.trouble: str | None = None
        self.unsynced_items = 0
        self.unsynced_bytes = 0
        self.paged = 0
        # In the order of their tickets, finished ones among them; and by number.
        self._unsynced: Line[Message] = ()
        self._by_seq: dict[int, Message] = {}
        self._unwritten: Line[Message] = ()
        self._finished = 0

    # -- for the backing ------------------------------------------------------------------------

    def write(self, message: Message) -> bool:
        """See `Pager.write`."""
        if message.ticket is not None:
            return True
        if self.shelf is None:
            return False
        # No message overtakes those that wait for room.
        if self._unwritten or not self._has_room(message.size):
            self.short = True
            return False
        return self._put(message)

    def unsynced(self, seq: int) -> Message | None:
        """See `Pager.unsynced`."""
        return self._by_seq.get(seq)

    def lost(self, count: int) -> None:
        """See `Pager.lost`."""
        self._on_lost(count)

    # -- for the queue --------------------------------------------------------------------------

    def write_or_wait(self, message: Message) -> bool:
        """Write a persistent message, as soon as there is room for it.

        It is persistent no more if the shelf cannot take it.

        Returns:
            Whether there can be room for it; if not, it is not written.
        """
        if not self.write(message) and message.persistent:
            if message.size > self.budget_bytes:
                return False
            self._unwritten = appended(self._unwritten, message)
        return True

    @property
    def wants(self) -> int:
        """The bytes that the first message waiting for room needs; 0: none waits."""
        return next((each.size for each in self._unwritten if not each.finished), 0)

    @property
    def budget_bytes(self) -> float:
        """The bytes that may be at rest: the least over the queue's account and those above."""
        return min([account.mark_bytes for account in self._account.limited], default=math.inf)

    def write_now(self, message: Message) -> None:
        """Write a message, and those that wait before it, whatever the budget says.

        With the disk in trouble nothing is written.
        """
        if message.ticket is not None or self.shelf is None or self.trouble is not None:
            return
        unwritten = self._unwritten
        while unwritten and unwritten[0].seq <= message.seq:
            first = unwritten.popleft()
            if not first.finished and first.ticket is None:
                self._put(first)
        if message.ticket is None:
            self._put(message)

    def write_waiting(self) -> bool:
        """Write messages that have waited for room, as far as there is some now.

        Returns:
            Whether there is room again for others.
        """
        unwritten = self._unwritten
        while unwritten:
            message = unwritten[0]
            if not message.finished and message.ticket is None:
                if self._has_room(message.size):
                    self._put(message)
                elif message.size <= self.budget_bytes:
                    return False
                # Else the budget was cut: its consumer will take the message from RAM.
            unwritten.popleft()
        self.short = self.trouble is not None
        return not self.short

    def finished_unwritten(self) -> None:
        """Note that a message that waits for room has ended; it need not be kept for long."""
        self._finished += 1
        if self._finished > COMPACT and 2 * self._finished > len(self._unwritten):
            self._finished = 0
            waiting = [m for m in self._unwritten if not m.finished and m.ticket is None]
            self._unwritten = deque(waiting)

    @property
    def unwritten(self) -> int:
        """The number of persistent messages that wait for room."""
        return sum(not m.finished and m.ticket is None for m in self._unwritten)

    def messages(self) -> list[Message]:
        """Return the messages that are written, not durable, and not finished."""
        return [message for message in self._unsynced if not message.finished]

    def durable(self, ticket: int) -> list[Message]:
        """Return, and forget, the messages that are durable now and not finished."""
        unsynced = self._unsynced
        found: list[Message] = []
        while unsynced:
            message = unsynced[0]
            assert message.ticket is not None
            if message.ticket > ticket:
                break
            unsynced.popleft()
            self._by_seq.pop(message.seq, None)
            self.unsynced_items -= 1
            self.unsynced_bytes -= message.size
            if not message.finished:
                found.append(message)
        if not unsynced:
            self._unsynced = ()
        return found

    def _has_room(self, nbytes: int) -> bool:
        if self.trouble is not None:
            return False
        items_left, bytes_left = self._account.room()
        return self.unsynced_items < items_left and self.unsynced_bytes + nbytes <= bytes_left

    @staticmethod
    def _keep_in_ram(message: Message) -> Confirm | None:
        """Make a message transient that the shelf did not take; return its confirm."""
        message.ram_only = True
        message.persistent = False
        confirm, message.confirm = message.confirm, None
        return confirm

    def _put(self, message: Message) -> bool:
        assert self.shelf is not None
        if message.ram_only:
            return False
        try:
            message.ticket = self.shelf.put(message)
        except ValueError as exc:
            logger.warning("a message stays in RAM, as if it were transient: %s", exc)
            confirm = self._keep_in_ram(message)
            if confirm is not None:
                confirm.taken()
            return False
        except Exception as exc:
            # Unexpected: its publisher hears that it is not safe, and the rest goes on.
            logger.exception(
                "%s: a message could not be written; it stays in RAM, and its publisher is told so",
                self._account.name,
            )
            confirm = self._keep_in_ram(message)
            if confirm is not None:
                confirm.refused(f"it could not be written: {exc!r}")
            return False
        self._unsynced = appended(self._unsynced, message)
        self._by_seq[message.seq] = message
        self.unsynced_items += 1
        self.unsynced_bytes += message.size
        self.paged += not message.persistent
        return True
