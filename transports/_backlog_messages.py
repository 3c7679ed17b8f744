"""Messages that a lagging connection keeps, by each policy that drops.

Rules of this file:
1. The kept messages are bounded in number and in bytes; but one frame is kept whatever its size.
2. They come out in the order in which they came; of one topic always, whatever the policy.
3. Nothing here owes: additions and drops are returned as numbers, to the owner of the debt.

Frames are whole packets of one protocol, several to a chunk: `Framing` knows where they begin.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Protocol

import attrs

from ..accounts import StuckPolicy

Frame = tuple[bytes | None, int, int, int]
"""A frame: its key (None: it has none), its start and end, and its number of messages. Equal keys
are one topic."""


class Framing(Protocol):
    """The frame structure of one protocol's packets."""

    def may_drop(self, chunk: bytes) -> bool:
        """Whether a chunk is messages, which may be dropped, and nothing else."""
        ...

    def frames(self, chunk: bytes, start: int = 0) -> Iterator[Frame]:
        """Yield each frame from `start` on; only for chunks that `may_drop`."""
        ...


@attrs.frozen(slots=True)
class Room:
    """A limit on kept messages."""

    items: int
    nbytes: int


@attrs.define(slots=True)
class Size:
    """A size in messages and bytes."""

    items: int = 0
    nbytes: int = 0

    def add(self, items: int, nbytes: int) -> None:
        """Grow."""
        self.items += items
        self.nbytes += nbytes


@attrs.define(slots=True, eq=False)
class _Chunk:
    number: int
    data: bytes
    items: int
    opened: float
    """The time of its publication."""
    start: int = 0
    """The start of the rest: the chunk is not copied for each message that it loses."""

    @property
    def nbytes(self) -> int:
        return len(self.data) - self.start


class PolicyMessages(Protocol):
    """Messages that are kept by one policy."""

    size: Size

    def add(
        self, number: int, chunk: bytes, items: int, opened: float, room: Room
    ) -> tuple[int, int]:
        """Keep as much as there is room for; return the (items, bytes) that are dropped for it.

        `number` is the chunk's place among all of them, `opened` the time of its publication.
        """
        ...

    def shrink(self, room: Room) -> tuple[int, int]:
        """Keep only as much as there is room for; as `add`."""
        ...

    def first(self) -> tuple[int, float] | None:
        """Return the number and the publication time of the first chunk; None: there is none."""
        ...

    def take(self) -> tuple[bytes, int]:
        """Take out the first chunk; return it and its number of messages."""
        ...


class _Line:
    """Chunks in order."""

    __slots__ = ("_chunks", "_framing", "size")

    def __init__(self, framing: Framing) -> None:
        self._framing = framing
        self._chunks: deque[_Chunk] = deque()
        self.size = Size()

    def first(self) -> tuple[int, float] | None:
        """See `PolicyMessages.first`."""
        return (self._chunks[0].number, self._chunks[0].opened) if self._chunks else None

    def take(self) -> tuple[bytes, int]:
        """See `PolicyMessages.take`."""
        chunk = self._chunks.popleft()
        self.size.add(-chunk.items, -chunk.nbytes)
        return chunk.data[chunk.start :], chunk.items

    def _append(self, number: int, data: bytes, items: int, opened: float) -> None:
        self._chunks.append(_Chunk(number, data, items, opened))
        self.size.add(items, len(data))


class NewestMessages(_Line):
    """The latest messages (`StuckPolicy.DROP_OLDEST`)."""

    __slots__ = ()

    def add(
        self, number: int, chunk: bytes, items: int, opened: float, room: Room
    ) -> tuple[int, int]:
        self._append(number, chunk, items, opened)
        return self.shrink(room)

    def shrink(self, room: Room) -> tuple[int, int]:
        dropped = Size()
        size, chunks = self.size, self._chunks
        while chunks and (size.items > room.items or size.nbytes > room.nbytes):
            head = chunks[0]
            rest = size.items - head.items
            if rest and (rest >= room.items or size.nbytes - head.nbytes >= room.nbytes):
                # Without all of it the limit is still reached.
                dropped.add(head.items, head.nbytes)
                size.add(-head.items, -head.nbytes)
                chunks.popleft()
            elif not self._shorten(head, room, dropped):
                break
        return dropped.items, dropped.nbytes

    def _shorten(self, head: _Chunk, room: Room, dropped: Size) -> bool:
        """Drop the first few of a chunk; False if the last of all messages is left."""
        size = self.size
        items = nbytes = 0
        for _, start, end, count in self._framing.frames(head.data, head.start):
            left = size.items - items
            if left <= count or (left <= room.items and size.nbytes - nbytes <= room.nbytes):
                break
            items += count
            nbytes += end - start
        if not items:
            return False
        dropped.add(items, nbytes)
        size.add(-items, -nbytes)
        head.items -= items
        head.start += nbytes
        if not head.items:
            self._chunks.popleft()
        return True


class OldestMessages(_Line):
    """The first messages (`StuckPolicy.DROP_NEWEST`)."""

    __slots__ = ()

    def add(
        self, number: int, chunk: bytes, items: int, opened: float, room: Room
    ) -> tuple[int, int]:
        size = self.size
        kept, nbytes = self._fitting(chunk, items, room, size)
        if kept:
            self._append(number, chunk if kept == items else chunk[:nbytes], kept, opened)
        return items - kept, len(chunk) - nbytes

    def _fitting(self, chunk: bytes, items: int, room: Room, size: Size) -> tuple[int, int]:
        """Return how many of a chunk's first messages there is room for, and their bytes."""
        if size.items + items <= room.items and size.nbytes + len(chunk) <= room.nbytes:
            return items, len(chunk)
        kept = nbytes = 0
        if size.items < room.items or not size.items:
            for _, start, end, count in self._framing.frames(chunk):
                some = size.items + kept
                if some and (
                    some + count > room.items or size.nbytes + nbytes + end - start > room.nbytes
                ):
                    break
                kept += count
                nbytes += end - start
        return kept, nbytes

    def shrink(self, room: Room) -> tuple[int, int]:
        dropped = Size()
        size, chunks = self.size, self._chunks
        while chunks and (size.items > room.items or size.nbytes > room.nbytes):
            tail = chunks.pop()
            size.add(-tail.items, -len(tail.data))
            kept, nbytes = self._fitting(tail.data, tail.items, room, size)
            dropped.add(tail.items - kept, len(tail.data) - nbytes)
            if kept:
                self._append(tail.number, tail.data[:nbytes], kept, tail.opened)
                break
        return dropped.items, dropped.nbytes


class LatestMessages:
    """The latest message on each topic (`StuckPolicy.CONFLATE`).

    Where there are more topics than there is room for, the topic without a new message for longest
    is dropped.
    """

    __slots__ = ("_by_key", "_framing", "size")

    def __init__(self, framing: Framing) -> None:
        self._framing = framing
        # In the order of their latest messages. The first of a dict is found by passing over all
        # that were taken out before it: with 10,000 topics that was 28 us for each.
        self._by_key: OrderedDict[bytes | None, _Chunk] = OrderedDict()
        self.size = Size()

    def add(
        self, number: int, chunk: bytes, items: int, opened: float, room: Room
    ) -> tuple[int, int]:
        """See `PolicyMessages.add`."""
        dropped = Size()
        by_key, size = self._by_key, self.size
        for key, start, end, count in self._framing.frames(chunk):
            old = by_key.pop(key, None)
            if old is not None:
                dropped.add(old.items, len(old.data))
                size.add(-old.items, -len(old.data))
            by_key[key] = _Chunk(number, chunk[start:end], count, opened)
            size.add(count, end - start)
        more, nbytes = self.shrink(room)
        return dropped.items + more, dropped.nbytes + nbytes

    def shrink(self, room: Room) -> tuple[int, int]:
        """See `PolicyMessages.shrink`."""
        dropped = Size()
        size = self.size
        by_key = self._by_key
        while len(by_key) > 1 and (size.items > room.items or size.nbytes > room.nbytes):
            _, old = by_key.popitem(last=False)
            dropped.add(old.items, len(old.data))
            size.add(-old.items, -len(old.data))
        return dropped.items, dropped.nbytes

    def first(self) -> tuple[int, float] | None:
        """See `PolicyMessages.first`."""
        for chunk in self._by_key.values():
            return chunk.number, chunk.opened
        return None

    def take(self) -> tuple[bytes, int]:
        """See `PolicyMessages.take`."""
        _, chunk = self._by_key.popitem(last=False)
        self.size.add(-chunk.items, -len(chunk.data))
        return chunk.data, chunk.items


MESSAGES_BY_POLICY: dict[StuckPolicy, type[NewestMessages | OldestMessages | LatestMessages]] = {
    StuckPolicy.DROP_OLDEST: NewestMessages,
    StuckPolicy.DROP_NEWEST: OldestMessages,
    StuckPolicy.CONFLATE: LatestMessages,
}
"""The way of keeping, by policy."""


class BacklogMessages:
    """Messages that one connection keeps, by all policies that drop.

    Each policy keeps as much as there is `room` for.
    """

    __slots__ = ("_by_policy", "_framing", "_number", "room")

    def __init__(self, framing: Framing, room: Room) -> None:
        self._framing = framing
        self.room = room
        self._by_policy: dict[StuckPolicy, PolicyMessages] = {}
        self._number = 0

    def __len__(self) -> int:
        """Return the number of messages."""
        return sum([messages.size.items for messages in self._by_policy.values()])

    @property
    def nbytes(self) -> int:
        """Their bytes."""
        return sum([messages.size.nbytes for messages in self._by_policy.values()])

    def is_full(self, policy: StuckPolicy) -> bool:
        """Whether a policy keeps as many messages as it may."""
        messages = self._by_policy.get(policy)
        return messages is not None and messages.size.items >= self.room.items

    def clear(self) -> None:
        """Keep nothing."""
        self._by_policy.clear()

    def add(
        self, policy: StuckPolicy, chunk: bytes, items: int, opened: float = 0.0
    ) -> tuple[int, int]:
        """Keep a chunk by the policy; return the (items, bytes) that are dropped.

        `opened` is the time of its publication.
        """
        messages = self._by_policy.get(policy)
        if messages is None:
            messages = self._by_policy[policy] = MESSAGES_BY_POLICY[policy](self._framing)
        self._number += 1
        return messages.add(self._number, chunk, items, opened, self.room)

    @property
    def opened(self) -> float | None:
        """The publication time of the next chunk; None: there is none."""
        first = self._first()
        found = None if first is None else first.first()
        return None if found is None else found[1]

    def _first(self) -> PolicyMessages | None:
        first: PolicyMessages | None = None
        lowest = self._number + 1
        for messages in self._by_policy.values():
            found = messages.first()
            if found is not None and found[0] < lowest:
                first, lowest = messages, found[0]
        return first

    def take(self, nbytes: int) -> tuple[list[bytes], int]:
        """Take out the first messages, about `nbytes`; return them and their number."""
        chunks: list[bytes] = []
        items = size = 0
        while size < nbytes:
            first = self._first()
            if first is None:
                break
            chunk, count = first.take()
            chunks.append(chunk)
            items += count
            size += len(chunk)
        return chunks, items
