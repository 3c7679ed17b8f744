"""Atomic batches of changes: all or nothing is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from ._errors import StoreUsageError
from ._ranges import merged

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ._settings import StoreSettings

MAX_SEQ: Final = (1 << 63) - 2
"""The next number is SQLite's largest integer."""

MAX_BYTES: Final = 1 << 30
"""Largest `Changes`. SQLite takes a value of 1,000,000,000 bytes (SQLITE_MAX_LENGTH)."""

_MAX_SIZE: Final = 1 << 32

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
    """A body that several queues share and that is stored once, for the `Changes` that made it."""

    __slots__ = ("_size", "changes", "data", "ident")

    def __init__(self, changes: Changes | None, data: bytes, ident: int = 0) -> None:
        # None once they are committed: a cycle would keep all their bytes until the garbage
        # collector runs, and that is seldom.
        self.changes = changes
        self.data = data
        self._size = len(data)
        self.ident = ident
        """Its key in the database; 0: it has none yet."""

    def __len__(self) -> int:
        return self._size


class Puts:
    """Messages for one queue, in columns of equal length.

    Attributes:
        first: The lowest sequence number.
        last: The highest.
        size: Sum of `sizes`.
        shared: Whether any of the bodies is a `Body`.
    """

    __slots__ = ("bodies", "first", "headers", "last", "seqs", "shared", "size", "sizes")

    def __init__(self, first: int) -> None:
        self.first = first
        self.last = first - 1
        self.seqs: list[int] = []
        self.headers: list[bytes] = []
        self.bodies: list[bytes | Body] = []
        self.sizes: list[int] = []
        self.size = 0
        self.shared = False


class LostRun(NamedTuple):
    """A row of messages that is unreadable and is put aside."""

    row: int
    queue_id: int
    messages: int
    """Number of its messages that were not done."""
    size: int
    """Their size in bytes."""


class Changes:
    """One atomic batch: all of it survives, or nothing. Made by `Store.begin`.

    It keeps references to the bytes it is given, without copying them.
    """

    __slots__ = (
        *("_named", "_store", "bodies", "declared", "dones", "dropped", "lost", "nbytes", "puts"),
        *("sealed", "since", "ticket", "values"),
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
        self.lost: tuple[LostRun, ...] = ()
        self.ticket = 0
        self.nbytes = 0
        self.sealed = False
        self.since = 0.0
        """The time of the commit."""

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
        if self.sealed:
            raise StoreUsageError(_COMMITTED)
        puts = self.puts.get(queue_id)
        if puts is None:
            if not 0 <= seq <= MAX_SEQ:
                msg = f"sequence numbers go from 0 to 2**63 - 2, not {seq}"
                raise StoreUsageError(msg)
            puts = self.puts[queue_id] = Puts(seq)
        elif seq <= puts.last:
            msg = f"seq {seq} comes after {puts.last}: they only increase"
            raise StoreUsageError(msg)
        if type(body) is Body:
            if body.changes is not self:
                msg = "a shared body is for the Changes that made it; share it anew"
                raise StoreUsageError(msg)
            puts.shared = True
        if size is None:
            size = len(header) + len(body)
        elif not 0 <= size < _MAX_SIZE:
            msg = f"a message counts for 0 to 4 GiB, not for {size} bytes"
            raise StoreUsageError(msg)
        puts.last = seq
        puts.seqs.append(seq)
        puts.headers.append(header)
        puts.bodies.append(body)
        puts.sizes.append(size)

    def share(self, body: bytes) -> bytes | Body:
        """Return a body for `put` to several queues, so that it is stored once.

        Below `StoreSettings.embed_below` it is the body itself, of which each queue stores a copy.
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
        first, last = max(first, 0), min(last, MAX_SEQ)
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
        """Compute sizes, once all changes are here.

        Raises:
            StoreUsageError: It is too large, or was committed before.
        """
        if self.sealed:
            raise StoreUsageError(_COMMITTED)
        self.sealed = True
        nbytes = 64
        for puts in self.puts.values():
            puts.size = sum(puts.sizes)
            nbytes += sum(map(len, puts.headers)) + 12 * len(puts.seqs)
            if puts.shared:
                nbytes += sum(len(body) for body in puts.bodies if type(body) is not Body)
            else:
                nbytes += sum(map(len, puts.bodies))
        for body in self.bodies:
            body.changes = None
            nbytes += len(body)
        self.bodies = _NONE
        for name, meta in self.declared.values():
            nbytes += len(name) + len(meta)
        for key, value in self.values.items():
            nbytes += len(key) + len(value or b"")
        for queue_id, ranges in self.dones.items():
            if len(ranges) > 1:
                self.dones[queue_id] = merged(ranges)
            nbytes += 16 * len(ranges)
        if nbytes > MAX_BYTES:
            msg = f"{nbytes} bytes are more than fit into one batch, 1 GiB: commit less at a time"
            raise StoreUsageError(msg)
        self.nbytes = nbytes
