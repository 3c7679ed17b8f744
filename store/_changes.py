"""Atomic batches of changes: all or nothing is written."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from ._detail import Detail, detail_of
from ._errors import StoreUsageError
from ._intervals import Intervals
from ._records import MAX_LENGTH, alike, lengths, part, sums, together, total

if TYPE_CHECKING:
    from array import array
    from collections.abc import Mapping, Sequence

    from ._settings import StoreSettings


_MAX_SEQ: Final = (1 << 63) - 1

#: Nothing is ever added to it. One list more for each `Changes` makes the garbage collector run
#: sooner, and it then looks at all unwritten messages.
_NONE: Final[list[Any]] = []

_COMMITTED: Final = "these changes were committed before: begin new ones"


class _Declared(Protocol):
    """A queue that the store has."""

    @property
    def id(self) -> int: ...
    @property
    def meta(self) -> bytes: ...


class _Store(Protocol):
    """The part of a store that changes ask before their commit."""

    @property
    def settings(self) -> StoreSettings: ...
    @property
    def queues(self) -> Mapping[str, _Declared]: ...
    def next_queue_id(self) -> int: ...


class Body:
    """A body that several queues share and that is kept once, for the `Changes` that made it."""

    __slots__ = ("_size", "changes", "data", "ident")

    def __init__(self, changes: Changes, data: bytes) -> None:
        # None once they are committed: a cycle would keep all their bytes until the garbage
        # collector runs, and that is seldom.
        self.changes: Changes | None = changes
        self.data = data
        self._size = len(data)
        self.ident = 0  # Assigned when the changes are committed.

    def __len__(self) -> int:
        return self._size


class Puts:
    """Messages for one queue, in columns."""

    __slots__ = (
        *("bodies", "body_lengths", "count", "explicit", "first", "gaps", "header_lengths"),
        *("headers", "last", "nbytes", "seqs", "shared", "size", "sizes"),
    )

    def __init__(self, first: int = 0) -> None:
        self.first = first
        self.last = first - 1
        self.gaps: Sequence[int] = ()
        """The sequence numbers, if they are not all those from `first` to `last`."""
        self.headers: list[bytes] = []
        self.bodies: list[bytes | Body] = []
        self.explicit: dict[int, int] | None = None
        """Sizes of the messages whose size is not their length, by sequence number."""
        # Set when the messages are sealed.
        self.seqs: Sequence[int] = ()
        self.count = self.nbytes = self.size = 0
        self.shared = False
        self.header_lengths: int | array[int] = 0
        self.body_lengths: int | array[int] = 0
        self.sizes: int | array[int] = 0

    def skip_to(self, first: int, count: int) -> None:
        """Take `count` numbers from `first` on, after a gap, or where there has been one.

        Raises:
            StoreUsageError: They are not above the last, or the changes are committed.
        """
        if self.count:
            raise StoreUsageError(_COMMITTED)
        if first <= self.last:
            msg = f"seq {first} comes after {self.last}: they only increase"
            raise StoreUsageError(msg)
        if not self.gaps:
            self.gaps = list(range(self.first, self.last + 1))
        self.gaps = cast("list[int]", self.gaps)
        self.gaps += range(first, first + count)

    def count_up(self) -> None:
        """Update the last number: as long as there are no gaps, `put` does not."""
        if not self.gaps:
            self.last = self.first + len(self.headers) - 1

    def seal(self) -> None:
        """Compute sizes and numbers, once all messages are here."""
        self.seqs = self.gaps or range(self.first, self.first + len(self.headers))
        self.last = self.seqs[-1]
        self.count = len(self.seqs)
        self.gaps = (self.last,)  # Refuses what is put later, see `skip_to`.
        self.header_lengths = lengths(self.headers)
        self.body_lengths = lengths(self.bodies)
        self.sizes = sums(self.header_lengths, self.body_lengths, self.count)
        self.size = self.nbytes = total(self.sizes, self.count)
        if self.explicit:
            every = repeat(self.sizes) if isinstance(self.sizes, int) else self.sizes
            sizes = list(map(self.explicit.get, self.seqs, every))
            self.sizes = alike(sizes)
            self.size = sum(sizes)

    @classmethod
    def together(cls, several: Sequence[Puts]) -> Puts:
        """Join several that follow each other."""
        if len(several) == 1:
            return several[0]
        one = cls()
        counts = [some.count for some in several]
        for some in several:
            one.headers += some.headers
            one.bodies += some.bodies
        one.first, one.last, one.count = several[0].first, several[-1].last, sum(counts)
        if one.last - one.first == one.count - 1:
            one.seqs = range(one.first, one.last + 1)
        else:
            one.seqs = list(chain.from_iterable(some.seqs for some in several))
        one.header_lengths = together([some.header_lengths for some in several], counts)
        one.body_lengths = together([some.body_lengths for some in several], counts)
        one.sizes = together([some.sizes for some in several], counts)
        one.nbytes = sum(some.nbytes for some in several)
        one.shared = any(some.shared for some in several)
        for some in several:
            if some.explicit:
                one.explicit = one.explicit or {}
                one.explicit.update(some.explicit)
        return one

    def part(self, start: int, stop: int) -> Puts:
        """Return the messages from `start` up to `stop`."""
        if start == 0 and stop == self.count:
            return self
        some = Puts()
        some.seqs = self.seqs[start:stop]
        some.headers = self.headers[start:stop]
        some.bodies = self.bodies[start:stop]
        some.first, some.last, some.count = some.seqs[0], some.seqs[-1], stop - start
        some.header_lengths = part(self.header_lengths, start, stop)
        some.body_lengths = part(self.body_lengths, start, stop)
        some.sizes = part(self.sizes, start, stop)
        some.shared, some.explicit = self.shared, self.explicit
        return some

    def indices(self, low: int, high: int) -> tuple[int, int]:
        """Return the range of indices with numbers from `low` to `high`: from, up to."""
        if self.last - self.first == self.count - 1:
            start, stop = max(low - self.first, 0), min(high - self.first + 1, self.count)
        else:
            start, stop = bisect_left(self.seqs, low), bisect_right(self.seqs, high)
        return start, max(start, stop)

    @property
    def detail(self) -> Detail:
        """The sizes in the index's form."""
        # The index does not ask here for shared bodies: references count them.
        return detail_of(None, self.sizes, None)


class Changes:
    """One atomic batch: all of it survives, or nothing. Made by `Store.begin`.

    It keeps references to the bytes it is given, without copying them.
    """

    __slots__ = (
        *("_bodies", "_headers", "_named", "_next", "_queue", "_store", "bodies", "declared"),
        *("dones", "dropped", "nbytes", "puts", "sealed", "since", "ticket", "values"),
    )

    def __init__(self, store: _Store) -> None:
        self._store = store
        self.declared: dict[int, tuple[str, bytes]] = {}
        self._named: dict[str, int] = {}
        self.dropped: tuple[int, ...] = ()
        self.puts: dict[int, Puts] = {}
        self.dones: dict[int, list[tuple[int, int]]] = {}
        self.values: dict[str, bytes | None] = {}
        self.bodies: list[Body] = _NONE
        self.ticket = 0
        self.nbytes = 0
        self.sealed = False
        self.since = 0.0
        """The time of the commit."""
        # Of the last message: its queue, the next number, and its columns. Without a number (None),
        # the next message takes the slow path.
        self._queue = 0
        self._next: int | None = None
        self._headers: list[bytes] = _NONE
        self._bodies: list[bytes | Body] = _NONE

    def __bool__(self) -> bool:
        """Whether it has any change."""
        return bool(self.declared or self.dropped or self.puts or self.dones or self.values)

    def declare(self, name: str, meta: bytes = b"") -> int:
        """Declare a queue, and return its id, which is never reused.

        If a queue of that name exists, return its id and replace its `meta`.
        """
        known = self._named.get(name)
        if known is not None:
            self.declared[known] = (name, meta)
            return known
        queue = self._store.queues.get(name)
        if queue is not None and queue.id not in self.dropped:
            if queue.meta != meta:
                self.declared[queue.id] = (name, meta)
                self._named[name] = queue.id
            return queue.id
        ident = self._named[name] = self._store.next_queue_id()
        self.declared[ident] = (name, meta)
        return ident

    def drop(self, queue_id: int) -> None:
        """Remove a queue with all its messages."""
        self.dropped += (queue_id,)

    def put(
        self,
        queue_id: int,
        seq: int,
        header: bytes,
        body: bytes | Body,
        *,
        size: int | None = None,
    ) -> None:
        """Add a message to a queue.

        Args:
            queue_id: The queue.
            seq: Its sequence number: above all that this queue has had, gaps allowed.
            header: The part that belongs to this message in this queue.
            body: The part that queues may share (see `share`).
            size: Bytes that it counts for (`Record.nbytes`, `StoredQueue.live_bytes`); None:
                header and body together.

        Raises:
            StoreUsageError: `seq` is not above the last one here; `commit` compares it with the
                store's.
        """
        if (
            seq == self._next
            and queue_id == self._queue
            and size is None
            and type(body) is not Body
        ):
            # It follows the last one, as usual.
            self._next = seq + 1
            self._headers.append(header)
            self._bodies.append(body)
            return
        shared = False
        if type(body) is Body:
            if body.changes is not self:
                msg = "a shared body is for the Changes that made it; share it anew"
                raise StoreUsageError(msg)
            shared = True
        if size is not None and not 0 <= size < 1 << 32:
            msg = f"a message counts for 0 to 4 GiB, not for {size} bytes"
            raise StoreUsageError(msg)
        puts = self._puts(queue_id, seq)
        if puts.gaps or seq != puts.last + 1:
            puts.skip_to(seq, 1)
        puts.last = seq
        self._queue, self._next = queue_id, None if puts.gaps else seq + 1
        self._headers, self._bodies = puts.headers, puts.bodies
        puts.headers.append(header)
        puts.bodies.append(body)
        if shared:
            puts.shared = True
        if size is not None:
            if puts.explicit is None:
                puts.explicit = {}
            puts.explicit[seq] = size

    def _puts(self, queue_id: int, first: int) -> Puts:
        """Return the messages put to a queue, with an up-to-date `last`."""
        puts = self.puts.get(queue_id)
        if puts is not None:
            puts.count_up()
            return puts
        if self.sealed:
            raise StoreUsageError(_COMMITTED)
        if not 0 <= first <= _MAX_SEQ:
            msg = f"sequence numbers go from 0 to 2**63 - 1, not {first}"
            raise StoreUsageError(msg)
        puts = self.puts[queue_id] = Puts(first)
        return puts

    def put_run(
        self, queue_id: int, first: int, headers: Sequence[bytes], bodies: Sequence[bytes]
    ) -> None:
        """Add messages with the numbers from `first` on, cheaper than one by one.

        Raises:
            StoreUsageError: As `put`; or the numbers of headers and bodies differ.
        """
        if len(headers) != len(bodies):
            msg = f"{len(headers)} headers for {len(bodies)} bodies"
            raise StoreUsageError(msg)
        if not headers:
            return
        puts = self._puts(queue_id, first)
        self._next = None
        if puts.gaps or first != puts.last + 1:
            puts.skip_to(first, len(headers))
        puts.last = first + len(headers) - 1
        puts.headers += headers
        puts.bodies += bodies

    def share(self, body: bytes) -> bytes | Body:
        """Return a body for `put` to several queues, so that it is stored once.

        Below `StoreSettings.embed_below` it is the body itself, of which each queue keeps a copy.
        """
        if len(body) < self._store.settings.embed_below:
            return body
        made = Body(self, body)
        if not self.bodies:
            self.bodies = []
        self.bodies.append(made)
        return made

    def done(self, queue_id: int, first: int, last: int | None = None) -> None:
        """Remove the messages from `first` to `last` (None: only `first`) from a queue.

        Numbers without a message are ignored.
        """
        if last is None:
            last = first
        first, last = max(first, 0), min(last, _MAX_SEQ)
        if first > last:
            return
        ranges = self.dones.get(queue_id)
        if ranges is None:
            self.dones[queue_id] = [(first, last)]
            return
        before, end = ranges[-1]
        if first == end + 1:
            ranges[-1] = (before, last)
        else:
            ranges.append((first, last))

    def set(self, key: str, value: bytes) -> None:
        """Set a key."""
        self.values[key] = value

    def delete(self, key: str) -> None:
        """Remove a key, if it exists."""
        self.values[key] = None

    def seal(self) -> None:
        """Compute sizes and counts, once all changes are here.

        Raises:
            StoreUsageError: It is too large, or was committed before.
        """
        if self.sealed:
            raise StoreUsageError(_COMMITTED)
        self.sealed = True
        self._next = None
        nbytes = 64
        for puts in self.puts.values():
            puts.seal()
            nbytes += puts.nbytes + 12 * puts.count
        if self.bodies:
            used = {
                id(body)
                for puts in self.puts.values()
                if puts.shared
                for body in puts.bodies
                if type(body) is Body
            }
            for body in self.bodies:
                body.changes = None
            self.bodies = [body for body in self.bodies if id(body) in used]
        for name, meta in self.declared.values():
            nbytes += len(name) + len(meta)
        for key, value in self.values.items():
            nbytes += len(key) + len(value or b"")
        for queue_id, ranges in self.dones.items():
            if len(ranges) > 1:
                merged = Intervals()
                merged.add_all(sorted(ranges))
                self.dones[queue_id] = list(merged)
            nbytes += 16 * len(ranges)
        if nbytes > MAX_LENGTH:
            msg = f"{nbytes} bytes are more than fit into one batch, 1 GiB: commit less at a time"
            raise StoreUsageError(msg)
        self.nbytes = nbytes
