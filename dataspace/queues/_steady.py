"""The default paging policy: RAM follows the consumers' rate, and the rest is on disk.

As RabbitMQ's classic queues v2 (rabbit_variable_queue.erl since 3.12):

    head in RAM | tail on disk | messages that could not be written

1. Up to `min(1 + floor(2 * egress rate), 2048)` messages at the head are in RAM: two seconds'
   worth. A message that comes when the head is full, or when there is a tail, is written and
   unloaded: of the tail only the first number and the count are known.
2. The tail is read in batches of that size; messages that have been read are never written back.
   Reading begins when the head is half empty, because here a read takes its time in another thread.
3. A message that cannot be written (no shelf, no disk budget, trouble) stays in RAM, behind the
   tail. Without a shelf nothing ever leaves the head.
4. Messages that come back by `requeue` come before the head. Beyond the number that may be in RAM
   their events are unloaded, if they are written, and read back one batch at a time.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence

from ._backing import Backing, BackingStatistics, Pager
from ._lines import Line, appended
from ._message import Message

MAX_IN_RAM = 2048
"""Messages at the head, however fast consumers are; as in classic queues v2."""

MAX_RAM_BYTES = 8 << 20
"""Most bytes at the head, and of one batch: messages of 1 MiB would otherwise make it 2 GiB. As
much as one publisher may owe by default."""

RATE_SECONDS = 2
"""How many seconds' worth of messages the head has; as in classic queues v2."""


class SteadyBacking(Backing):
    """Classic queues v2: the head in RAM, as much of it as consumers take in two seconds."""

    __slots__ = (
        "_after", "_asked", "_head", "_head_bytes", "_missing", "_paged_in", "_paged_out",
        "_pending_bytes", "_pending_count", "_reads", "_requeued", "_requeued_bytes",
        "_requeued_loaded", "_tail_count", "_tail_first", "_tail_next",
    )  # fmt: skip

    policy = "steady"

    def __init__(self, pager: Pager) -> None:
        super().__init__(pager)
        # By number; those that never came back from the shelf are finished, and passed over.
        self._requeued: list[tuple[int, Message]] = []
        self._requeued_loaded = 0
        self._requeued_bytes = 0
        self._missing: dict[int, Message] = {}
        self._head: deque[Message] = deque()
        self._after: Line[Message] = ()
        # Of the head and the messages behind the tail.
        self._head_bytes = 0
        self._tail_first = self._tail_next = self._tail_count = 0
        self._pending_count = self._pending_bytes = 0
        # The number from which the read under way was asked.
        self._asked = 0
        self._paged_out = self._paged_in = self._reads = 0

    def __repr__(self) -> str:
        return (
            f"<SteadyBacking: {len(self._requeued)} requeued, {len(self._head)} in RAM, "
            f"{self._tail_count} on disk, {len(self._after)} behind>"
        )

    @property
    def target(self) -> int:
        """Messages that may be at the head now."""
        return min(1 + int(RATE_SECONDS * self.pager.rates.egress), MAX_IN_RAM)

    # -- messages come and go -------------------------------------------------------------------

    def publish(self, message: Message) -> None:
        self.ready += 1
        head = self._head
        if not self._tail_count:
            has_room = not head or (len(head) < self.target and self._head_bytes < MAX_RAM_BYTES)
            if has_room or not self.pager.write(message):
                head.append(message)
                self._head_bytes += message.size
                return
        elif self._after or not self.pager.write(message):
            self._after = appended(self._after, message)
            self._head_bytes += message.size
            return
        self._extend_tail(message)

    def _extend_tail(self, message: Message) -> None:
        message.unload()
        self._paged_out += 1
        if not self._tail_count:
            self._tail_first = message.seq
        self._tail_next = message.seq + 1
        self._tail_count += 1

    def fetch(self) -> Message | None:
        requeued = self._first_requeued() if self._requeued else None
        if requeued is not None:
            if requeued.seq in self._missing:
                self._read()
                return None
            heapq.heappop(self._requeued)
            self.ready -= 1
            self._requeued_loaded -= 1
            self._requeued_bytes -= requeued.size
            return requeued
        head = self._head
        if not head:
            self._read()
            return None
        message = head.popleft()
        self.ready -= 1
        self._head_bytes -= message.size
        if self._tail_count and len(head) <= self.target // 2:
            self._read()
        return message

    def peek(self) -> Message | None:
        requeued = self._first_requeued()
        if requeued is not None:
            if requeued.seq in self._missing:
                self._read()
            return requeued
        if self._head:
            return self._head[0]
        self._read()
        return None

    def _first_requeued(self) -> Message | None:
        requeued = self._requeued
        while requeued:
            message = requeued[0][1]
            if not message.finished:
                return message
            heapq.heappop(requeued)
        return None

    def requeue(self, messages: Sequence[Message]) -> None:
        self.ready += len(messages)
        for message in messages:
            heapq.heappush(self._requeued, (message.seq, message))
            self._pending_count -= 1
            self._pending_bytes -= message.size
            self._requeued_loaded += 1
            self._requeued_bytes += message.size
            if message.event is None and message.written:
                self._miss(message)
        self._trim_requeued(messages)

    def _miss(self, message: Message) -> None:
        self._missing[message.seq] = message
        self._requeued_loaded -= 1
        self._requeued_bytes -= message.size

    def _trim_requeued(self, messages: Sequence[Message]) -> None:
        """Unload the events of the last requeued messages, if they are too many for RAM."""
        target = self.target
        if self._requeued_loaded <= target and self._requeued_bytes <= MAX_RAM_BYTES:
            return
        for message in sorted(messages, key=lambda m: -m.seq):
            if self._requeued_loaded <= target and self._requeued_bytes <= MAX_RAM_BYTES:
                return
            # The first one is wanted at once.
            first = self._first_requeued()
            if message.written and message.event is not None and message is not first:
                message.unload()
                self._paged_out += 1
                self._miss(message)

    def pending(self, message: Message) -> None:
        self._pending_count += 1
        self._pending_bytes += message.size

    def forget(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._pending_count -= 1
            self._pending_bytes -= message.size

    def purge(self) -> tuple[list[Message], Sequence[int]]:
        here = list(self)
        on_disk = range(self._tail_first, self._tail_next) if self._tail_count else range(0)
        self.ready = 0
        self._requeued.clear()
        self._requeued_loaded = self._requeued_bytes = 0
        self._missing.clear()
        self._head.clear()
        self._after = ()
        self._head_bytes = 0
        self._tail_count = 0
        return here, on_disk

    # -- reading --------------------------------------------------------------------------------

    def _read(self) -> None:
        """Ask for the next batch, unless a read is under way, or nothing is on disk."""
        if self.waiting:
            return
        target = self.target
        requeued = self._first_requeued()
        if requeued is not None:
            if requeued.seq not in self._missing:
                return
            # Those in between are perhaps delivered: missing numbers are rarely alone.
            first = requeued.seq
            count = min(target, len(self._missing))
        elif self._tail_count:
            first = self._tail_first
            count = max(1, min(target - len(self._head), self._tail_count))
        else:
            return
        shelf = self.pager.shelf
        assert shelf is not None
        self.waiting = True
        self._asked = first
        self._reads += 1
        shelf.want(first, count, MAX_RAM_BYTES)

    def paged_in(self, messages: Sequence[Message]) -> None:
        self.waiting = False
        asked = self._asked
        for message in messages:
            missing = self._missing.pop(message.seq, None)
            if missing is not None:
                missing.event = message.event
                self._requeued_loaded += 1
                self._requeued_bytes += missing.size
                self._paged_in += 1
            elif self._tail_count and self._tail_first <= message.seq < self._tail_next:
                self._append_from_tail(message)
        missing = self._missing.get(asked)
        if missing is not None:
            # It was asked for first, and is missing.
            del self._missing[asked]
            missing.finished = True
            self.ready -= 1
            self.pager.lost(1)
        elif not messages and self._tail_count and asked == self._tail_first:
            lost, self._tail_count = self._tail_count, 0
            self.ready -= lost
            self.pager.lost(lost)
        if not self._tail_count:
            self._join_after()

    def _append_from_tail(self, message: Message) -> None:
        event = message.event
        known = self.pager.unsynced(message.seq)
        if known is not None:
            message = known
            message.event = event
        self._head.append(message)
        self._head_bytes += message.size
        self._paged_in += 1
        self._tail_first = message.seq + 1
        self._tail_count -= 1

    def _join_after(self) -> None:
        """Append the messages behind the tail to the head, once there is no tail any more."""
        self._head.extend(self._after)
        self._after = ()

    def recovered(self, first_seq: int, next_seq: int, count: int) -> None:
        self._tail_first = first_seq
        self._tail_next = next_seq
        self._tail_count = self.ready = count

    def relieve(self) -> None:
        after = self._after
        if self._tail_count:
            while after and self.pager.write(after[0]):
                message = after.popleft()
                self._head_bytes -= message.size
                self._extend_tail(message)

    # -- looking --------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Message]:
        for _, message in self._requeued:
            if not message.finished:
                yield message
        yield from self._head
        yield from self._after

    @property
    def ram_count(self) -> int:
        return self._ready_in_ram + self._pending_count

    @property
    def _ready_in_ram(self) -> int:
        return self._requeued_loaded + len(self._head) + len(self._after)

    @property
    def ram_bytes(self) -> int:
        return self._requeued_bytes + self._head_bytes + self._pending_bytes

    def statistics(self) -> BackingStatistics:
        return BackingStatistics(
            policy=self.policy,
            ready=self.ready,
            ready_in_ram=self._ready_in_ram,
            pending_in_ram=self._pending_count,
            ram_bytes=self.ram_bytes,
            disk_only=self._tail_count,
            ram_target=None if self.pager.shelf is None else self.target,
            paged_out=self._paged_out,
            paged_in=self._paged_in,
            reads=self._reads,
        )
