"""What is to be written, all or nothing."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import chain
from typing import TYPE_CHECKING

from ._detail import Detail, detail_of
from ._errors import StoreUsageError
from ._intervals import Intervals
from ._records import MAX_LENGTH, alike, lengths, sums, total

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

    from ._store import Store


class Body:
    """A body for several queues, kept once; for the `Changes` that it was made by."""

    __slots__ = ("_size", "changes", "data", "ident")

    def __init__(self, changes: Changes, data: bytes) -> None:
        self.changes = changes
        self.data = data
        self._size = len(data)
        self.ident = 0  # Given when the changes are committed.

    def __len__(self) -> int:
        return self._size


class Puts:
    """Messages for one queue, in columns."""

    __slots__ = (
        *("body_lengths", "bodies", "count", "detail", "explicit", "first", "header_lengths"),
        *("headers", "last", "nbytes", "seqs", "shared", "sizes"),
    )

    def __init__(self) -> None:
        self.seqs: list[int] = []
        self.headers: list[bytes] = []
        self.bodies: list[bytes | Body] = []
        self.sizes: list[int | None] = []
        self.shared = False
        self.explicit = False
        # From here on: when they are sealed.
        self.first = self.last = self.count = self.nbytes = 0
        self.header_lengths: int | array[int] = 0
        self.body_lengths: int | array[int] = 0
        self.detail: Detail = 0

    def seal(self) -> None:
        """Work out what is known of them once they are complete."""
        seqs = self.seqs
        self.first, self.last, self.count = seqs[0], seqs[-1], len(seqs)
        self.header_lengths = lengths(self.headers)
        self.body_lengths = lengths(self.bodies)  # type: ignore[arg-type]
        sizes = sums(self.header_lengths, self.body_lengths, self.count)
        self.nbytes = total(sizes, self.count)
        if self.explicit:
            every = [sizes] * self.count if isinstance(sizes, int) else sizes
            sizes = alike(
                [
                    own if given is None else given
                    for own, given in zip(every, self.sizes, strict=True)
                ]
            )
        # Shared bodies are counted by what refers to them, so the index does not ask here.
        self.detail = detail_of(None, sizes, None)

    def indices(self, low: int, high: int) -> tuple[int, int]:
        """Return which of them have numbers from `low` to `high`: from, up to."""
        if self.last - self.first == self.count - 1:
            start, stop = max(low - self.first, 0), min(high - self.first + 1, self.count)
        else:
            start, stop = bisect_left(self.seqs, low), bisect_right(self.seqs, high)
        return start, max(start, stop)

    @property
    def item_sizes(self) -> int | array[int]:
        """What each counts for."""
        return self.detail if isinstance(self.detail, int) else self.detail.sizes


class Changes:
    """One atomic batch: all of it survives, or nothing. Made by `Store.begin`.

    It holds on to the bytes it is given, and does not copy them.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.declared: dict[int, tuple[str, bytes]] = {}
        self.dropped: list[int] = []
        self.puts: dict[int, Puts] = {}
        self.dones: dict[int, list[tuple[int, int]]] = {}
        self.values: dict[str, bytes | None] = {}
        self.bodies: list[Body] = []
        self.ticket = 0
        self.nbytes = 0

    def __bool__(self) -> bool:
        """Whether there is anything in it."""
        return bool(self.declared or self.dropped or self.puts or self.dones or self.values)

    def declare(self, name: str, meta: bytes = b"") -> int:
        """Make a queue, and return its id, which is never used again for another one.

        If there is a queue of that name, its id is returned, and `meta` takes the place of its.
        """
        for ident, (other, _) in self.declared.items():
            if other == name:
                self.declared[ident] = (name, meta)
                return ident
        queue = self._store.queues.get(name)
        if queue is not None and queue.id not in self.dropped:
            if queue.meta != meta:
                self.declared[queue.id] = (name, meta)
            return queue.id
        ident = self._store.next_queue_id()
        self.declared[ident] = (name, meta)
        return ident

    def drop(self, queue_id: int) -> None:
        """Remove a queue with all its messages."""
        self.dropped.append(queue_id)

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
            queue_id: Which queue.
            seq: Its sequence number: above all that this queue has had, gaps allowed.
            header: What belongs to this message in this queue.
            body: What may be shared with others (see `share`).
            size: What it counts for (`Record.nbytes`, `StoredQueue.live_bytes`), in bytes; None:
                header and body together.

        Raises:
            StoreUsageError: `seq` is not above the last one here; what stands in the store
                already is looked at by `commit`.
        """
        puts = self.puts.get(queue_id)
        if puts is None:
            puts = self.puts[queue_id] = Puts()
        elif seq <= puts.seqs[-1]:
            msg = f"seq {seq} comes after {puts.seqs[-1]}: they only increase"
            raise StoreUsageError(msg)
        puts.seqs.append(seq)
        puts.headers.append(header)
        puts.bodies.append(body)
        if type(body) is Body:
            if body.changes is not self:
                msg = "a shared body is for the Changes that made it; share it anew"
                raise StoreUsageError(msg)
            puts.shared = True
        if size is not None or puts.explicit:
            self._sized(puts, size)

    @staticmethod
    def _sized(puts: Puts, size: int | None) -> None:
        if size is not None and not 0 <= size < 1 << 32:
            msg = f"a message counts for 0 to 4 GiB, not for {size} bytes"
            raise StoreUsageError(msg)
        puts.explicit = True
        puts.sizes += [None] * (len(puts.seqs) - len(puts.sizes) - 1)
        puts.sizes.append(size)

    def put_run(
        self, queue_id: int, first: int, headers: Sequence[bytes], bodies: Sequence[bytes]
    ) -> None:
        """Add messages with the numbers from `first` on, at less cost than one by one."""
        if len(headers) != len(bodies):
            msg = f"{len(headers)} headers for {len(bodies)} bodies"
            raise StoreUsageError(msg)
        if not headers:
            return
        puts = self.puts.get(queue_id)
        if puts is None:
            puts = self.puts[queue_id] = Puts()
        elif first <= puts.seqs[-1]:
            msg = f"seq {first} comes after {puts.seqs[-1]}: they only increase"
            raise StoreUsageError(msg)
        puts.seqs += range(first, first + len(headers))
        puts.headers += headers
        puts.bodies += bodies
        if puts.explicit:
            puts.sizes += [None] * len(headers)

    def share(self, body: bytes) -> bytes | Body:
        """Return what to `put` to several queues so that `body` is kept once.

        Below `StoreSettings.embed_below` that is the body itself, which each queue then keeps.
        """
        if len(body) < self._store.settings.embed_below:
            return body
        made = Body(self, body)
        self.bodies.append(made)
        return made

    def done(self, queue_id: int, first: int, last: int | None = None) -> None:
        """Remove the messages from `first` to `last` (None: only `first`) from a queue.

        Those that are not there, or not any more, do not matter.
        """
        if last is None:
            last = first
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
        """Remove a key, if it is there."""
        self.values[key] = None

    def seal(self) -> None:
        """Work out what is known of it once it is complete.

        Raises:
            StoreUsageError: it is too large.
        """
        nbytes = 64
        for puts in self.puts.values():
            puts.seal()
            nbytes += puts.nbytes + 12 * puts.count
        if self.bodies:
            used = {
                id(body)
                for body in chain.from_iterable(
                    puts.bodies for puts in self.puts.values() if puts.shared
                )
                if type(body) is Body
            }
            self.bodies = [body for body in self.bodies if id(body) in used]
        for name, meta in self.declared.values():
            nbytes += len(name) + len(meta)
        for key, value in self.values.items():
            nbytes += len(key) + len(value or b"")
        for queue_id, ranges in self.dones.items():
            if len(ranges) > 1:
                merged = Intervals()
                for first, last in ranges:
                    if first <= last:
                        merged.add(first, last)
                self.dones[queue_id] = list(merged)
            nbytes += 16 * len(ranges)
        if nbytes > MAX_LENGTH:
            msg = f"{nbytes} bytes are more than fit into one batch, 1 GiB: commit less at a time"
            raise StoreUsageError(msg)
        self.nbytes = nbytes
