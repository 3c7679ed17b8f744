"""The shelves of a relay's queues, on its one store; and small values beside them.

Rules of this file:
1. Everything written between two rounds of the event loop is one batch: all of it survives a crash,
   or nothing. So a message and its packet identifier are both stored, or neither.
2. Only tasks that need a confirm wait for the disk: a writer's thread writes (`Store.run`), and
   reads run in threads.
3. Durability is reported to all queues in one step, and the confirms that they send leave at the
   end of that step.

A batch has a number: the ticket that a `StoreShelf` gives to its queue.
"""

from __future__ import annotations

import logging
import math
import struct
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from time import monotonic

import attrs
import trio

from ..accounts import Faults
from ..dataspace.queues import Marks, Message, Queue
from ..store import Body, Changes, Record, Store, StoreError, StoreSettings
from ._codec import UnstorableError, decode, encode
from ._idle import Rests, calls_from_threads
from ._log import Log
from ._owner import READING, TELLING, owner_of
from ._sending import Sending
from ._writes import Writes

logger = logging.getLogger("clearfunds.transports.queues")

_MARKS = struct.Struct(">?Q")
_MARKS_PREFIX = "queue/marks/"

COMMIT_BYTES = 64 << 20
"""Size at which a batch is closed: the store takes at most 1 GiB at once."""


READ_SECONDS = 0.2
"""A queue is read if something in it was acknowledged so recently. Its next messages will probably
be acknowledged before they are on the disk, which is as good as written: the store is not hurried
for them, unless its consumers are slower than `PROMPT_SECONDS`."""

PROMPT_SECONDS = 0.005
"""An acknowledgement that takes longer is not waited for: by then a disk has synced ten times."""

LOG_SECONDS = 5.0
"""A relay that ends waits so long for a log to take what it has: as `--grace`."""

LOOK_SECONDS = 0.01


@attrs.define(slots=True, eq=False)
class Batch:
    """Changes that are written together, and the callbacks for their durability."""

    number: int
    changes: Changes
    changed: bool = False
    nbytes: int = 0
    """Of large payloads and of values."""
    dropped: set[str] = attrs.field(factory=set[str])
    """Names of the queues that are erased."""
    users: set[StoreShelf] = attrs.field(factory=set["StoreShelf"])
    callbacks: list[tuple[Callable[[], object], object]] = attrs.field(
        factory=list[tuple[Callable[[], object], object]]
    )
    """Callbacks, each with its owner."""
    bodies: dict[int, tuple[bytes, bytes | Body]] = attrs.field(
        factory=dict[int, tuple[bytes, bytes | Body]]
    )
    """Payloads in it that several queues may share, by their `id`."""
    ticket: int = 0
    """The store's ticket."""
    began: float = 0.0
    """When the first change was made, in seconds of a monotonic clock."""
    is_urgent: bool = False
    """Whether it has a message that nobody is about to acknowledge: see `READ_SECONDS`."""


def _nobody(sentence: str | None) -> None:
    """Ignore a report of trouble."""
    del sentence


class Shelves:
    """Everything that one relay stores on disk. Made by `open_shelves`.

    Attributes:
        store: The store.
        log: Makes the store durable, if it does not do so itself.
        faults: Handles exceptions of a queue or a callback: one of many that a shared task calls.
        rests: Hurries the store when the event loop rests; None: a log makes it durable.
        trouble: A sentence about the present trouble with the disk, or None.
        on_trouble: Called with that whenever it changes.
        on_durable: Each is called with the ticket up to which everything is durable, when that has
            grown; for what is written to the same store in another way.
    """

    def __init__(
        self,
        store: Store,
        flusher: Sending,
        nursery: trio.Nursery,
        call_soon: Callable[[Callable[[], object]], object],
        log: Log | None = None,
    ) -> None:
        self.store = store
        self.log = log
        self.faults = Faults()
        self.trouble: str | None = None
        self.on_trouble: Callable[[str | None], object] = _nobody
        self.on_durable: list[Callable[[int], object]] = []
        self._flusher = flusher
        self._nursery = nursery
        self._call_soon = call_soon
        self._home = threading.get_ident()
        self._batch = Batch(1, Changes(store))
        self._under_way: deque[Batch] = deque()
        self._written = trio.Event()
        self.rests: Rests | None = None
        self._shelves: set[StoreShelf] = set()
        # From before the restart, of queues that have not been opened yet.
        self._marks = store.values(_MARKS_PREFIX)
        # By their source: the disk, or the log.
        self._troubles: dict[str, str] = {}
        store.on_durable = self._durable_in_thread
        store.on_trouble = self._trouble_in_thread

    # -- writing --------------------------------------------------------------------------------

    def shelf(self, name: str) -> StoreShelf:
        """Return the shelf of the queue `name`: the existing one, or a new one."""
        if name in self._batch.dropped:
            # Otherwise the erased shelf would be found again.
            self.commit()
        changes = self.change().changes
        known = self.store.queues.get(name)
        late = self.store.queues.get(LATE + name)
        if late is not None:
            changes.drop(late.id)
        shelf = StoreShelf(self, name, changes.declare(name) if known is None else known.id)
        if known is not None:
            shelf.last_seq = known.next_seq - 1
        self._shelves.add(shelf)
        return shelf

    def drop(self, shelf: StoreShelf) -> None:
        """Erase a shelf, with all its messages."""
        changes = self.change().changes
        for number in shelf.numbers():
            changes.drop(number)
        self.delete(_MARKS_PREFIX + shelf.name)
        self._batch.dropped.add(shelf.name)
        shelf.queue = None
        self._shelves.discard(shelf)

    def set(self, key: str, value: bytes) -> None:
        """Store a small value, in the same batch as everything else that is written now."""
        batch = self.change()
        batch.changes.set(key, value)
        batch.nbytes += len(value)

    def delete(self, key: str) -> None:
        """Forget a small value."""
        self.change().changes.delete(key)

    def when_durable(self, callback: Callable[[], object], whose: object = None) -> None:
        """Call back when everything written until now is durable; at once if it is.

        `whose` is the owner to end if the callback raises: see `clearfunds.accounts.Faults`.
        """
        if self._batch.changed:
            self._batch.callbacks.append((callback, whose))
        elif self._under_way:
            self._under_way[-1].callbacks.append((callback, whose))
        else:
            callback()

    def hurry(self) -> None:
        """Make everything written until now durable soon, not only at the next interval."""
        self.commit()
        self.store.hurry()

    def change(self) -> Batch:
        """Return the batch of everything that is written now; something is added to it."""
        batch = self._batch
        if not batch.changed:
            batch.changed = True
            batch.began = monotonic()
            if self.rests is None:
                self._written.set()
        return batch

    def shared(self, payload: bytes) -> bytes | Body:
        """Return a payload in a form that all its queues share."""
        known = self._batch.bodies.get(id(payload))
        if known is None:
            if self._batch.nbytes >= COMMIT_BYTES:
                # This is the first message of its turn: no turn is split.
                self.commit()
            batch = self._batch
            batch.nbytes += len(payload)
            # The entry keeps the payload, so that its `id` is not reused meanwhile.
            known = batch.bodies[id(payload)] = payload, batch.changes.share(payload)
        return known[1]

    def mark(self, shelf: StoreShelf, attached: bool, delivered_upto: int) -> int:
        """Write which messages may have been delivered; see `StoreShelf.mark`."""
        self.set(_MARKS_PREFIX + shelf.name, _MARKS.pack(attached, delivered_upto))
        self._batch.users.add(shelf)
        # The first delivery waits for this.
        self._nursery.start_soon(self._hurry_soon)
        return self._batch.number

    async def _hurry_soon(self) -> None:
        await trio.lowlevel.checkpoint()
        self.hurry()

    def commit(self) -> None:
        """Hand everything written until now to the store's thread."""
        batch = self._batch
        if not batch.changed:
            return
        batch.bodies.clear()
        batch.ticket = self.store.commit(batch.changes)
        self._under_way.append(batch)
        if self.rests is not None and (batch.is_urgent or batch.callbacks):
            self.rests.wait_for_disk()
        self._batch = Batch(batch.number + 1, Changes(self.store))

    def close(self) -> None:
        """Commit everything written; durability is no longer reported."""
        self.commit()
        for shelf in self._shelves:
            shelf.queue = None

    async def commit_each_round(self) -> None:
        """Commit writes once for each round of the event loop, until cancelled."""
        while True:
            await self._written.wait()
            # Every other task of this round runs before this one.
            self._written = trio.Event()
            self.commit()

    # -- reports of the store's thread ----------------------------------------------------------

    def _durable_in_thread(self, ticket: int) -> None:
        if threading.get_ident() == self._home:
            self._durable(ticket)
            return
        self._call_soon(partial(self._durable, ticket))

    def _trouble_in_thread(self, sentence: str | None) -> None:
        self._call_soon(partial(self.note_trouble, "disk", sentence))

    def note_trouble(self, source: str, sentence: str | None) -> None:
        """Take in a sentence about trouble with the disk or the log; None: it is over."""
        if sentence is None:
            self._troubles.pop(source, None)
            sentence = next(iter(self._troubles.values()), None)
        else:
            self._troubles[source] = sentence
        if sentence == self.trouble:
            return
        self.trouble = sentence
        self.on_trouble(sentence)
        with self._flusher.corked():
            for shelf in list(self._shelves):
                queue = shelf.queue
                if queue is not None:
                    self.faults.call(owner_of(queue), TELLING, queue.shelf_trouble, sentence)
        self._flusher.flush_now()
        if sentence is None:
            logger.warning("the store can be written to again", extra={"event": "store_ok"})
        else:
            logger.error(
                "%s; until then, only messages that are stored are confirmed",
                sentence,
                extra={"event": "store_trouble", "reason": sentence},
            )

    def _durable(self, ticket: int) -> None:
        self._flusher.corks += 1  # as `corked`, without its two calls for each batch
        try:
            while self._under_way and self._under_way[0].ticket <= ticket:
                batch = self._under_way.popleft()
                for shelf in batch.users:
                    queue = shelf.queue
                    if queue is not None:
                        try:
                            queue.durable(batch.number)
                        except Exception as exc:  # noqa: BLE001 (all queues share the loop)
                            self.faults.note(owner_of(queue), TELLING, exc)
                for callback, whose in batch.callbacks:
                    self.faults.call(whose, TELLING, callback)
            for tell in self.on_durable:
                self.faults.call(None, TELLING, tell, ticket)
        finally:
            self._flusher.corks -= 1
        self._flusher.flush_now()

    # -- reading --------------------------------------------------------------------------------

    def marks_of(self, name: str) -> Marks:
        """Return which messages of a queue may have been delivered before the restart."""
        value = self._marks.pop(_MARKS_PREFIX + name, None)
        if value is None:
            return Marks()
        try:
            return Marks(*_MARKS.unpack(value))
        except struct.error as exc:
            logger.error(
                "queue %s: it is not known what was delivered (%s); all may have been", name, exc,
                extra={"event": "unreadable", "queue": name},
            )  # fmt: skip
            return Marks(attached=True)

    def want(self, shelf: StoreShelf, first_seq: int, count: int, nbytes: int) -> None:
        """Read messages, see `StoreShelf.want`."""
        self._nursery.start_soon(self._read, shelf, first_seq, count, nbytes)

    async def _read(self, shelf: StoreShelf, first_seq: int, count: int, nbytes: int) -> None:
        self.commit()
        read = partial(shelf.read, self.store, first_seq, count, nbytes)
        failed = False
        while True:
            try:
                messages = await trio.to_thread.run_sync(read)
            except Exception as exc:  # noqa: BLE001 (all queues share the nursery)
                # The messages are not lost: the shelf asks for them again until it gets them.
                if not isinstance(exc, StoreError):
                    self.faults.note(owner_of(shelf.queue), READING, exc)
                elif not failed:
                    logger.error(
                        "queue %s waits: %s", shelf.name, exc,
                        extra={"event": "store_unreadable", "queue": shelf.name},
                    )  # fmt: skip
                failed = True
                await trio.sleep(self.store.settings.retry_interval)
            else:
                break
        with self._flusher.corked():
            queue = shelf.queue
            if queue is not None:
                self.faults.call(owner_of(queue), READING, queue.paged_in, messages)
        self._flusher.flush_now()


LATE = "#late/"
"""Before a queue's name: the queue of its messages that were written after later ones. A queue
of the store takes numbers in order only."""


class StoreShelf:
    """One queue's view of the store (`clearfunds.dataspace.queues.Shelf`).

    Persistent messages are written in the order of their numbers. Others may be paged out after
    later ones. They then have a place of their own, which only this object knows, and are gone
    after a restart: nothing more was promised.

    Attributes:
        name: The queue's name.
        queue: The queue to report to; its maker sets it.
        last_seq: The highest number that was written in order.
    """

    __slots__ = (
        "_done_at", "_last_late", "_late", "_late_number", "_number", "_shelves", "_timed", "_took",
        "last_seq", "name", "queue",
    )  # fmt: skip

    def __init__(self, shelves: Shelves, name: str, number: int) -> None:
        self._shelves = shelves
        self._number = number
        # The numbers in the store of messages that were written late.
        self._late: dict[int, int] = {}
        self._late_number: int | None = None
        self._last_late = 0
        self._done_at = -math.inf
        # A message whose acknowledgement is timed, with when it came; and how long the last took.
        self._timed: tuple[int, float] | None = None
        self._took = 0.0
        self.name = name
        self.queue: Queue | None = None
        self.last_seq = 0

    def __repr__(self) -> str:
        return f"<StoreShelf {self.name}>"

    def put(self, message: Message) -> int:
        header, payload = encode(message)
        shelves = self._shelves
        body: bytes | Body = payload
        if len(payload) >= shelves.store.settings.embed_below:
            body = shelves.shared(payload)
        batch = shelves.change()
        number, seq = self._number, message.seq
        if seq > self.last_seq:
            self.last_seq = seq
        else:
            number, seq = self._late_place(seq, batch.changes)
        batch.changes.put(number, seq, header, body, size=message.size)
        batch.users.add(self)
        if self._timed is None:
            self._timed = seq, batch.began
        took = max(self._took, batch.began - self._timed[1])
        if batch.began - self._done_at > READ_SECONDS or took > PROMPT_SECONDS:
            batch.is_urgent = True
        confirm = message.confirm
        if isinstance(confirm, Writes):
            message.confirm = confirm.written(self.name, shelves.set)
        return batch.number

    def _late_place(self, seq: int, changes: Changes) -> tuple[int, int]:
        """Return the place of a late message: the queue in the store, and the number there."""
        if self._late_number is None:
            self._late_number = changes.declare(LATE + self.name)
        self._last_late += 1
        self._late[seq] = self._last_late
        return self._late_number, self._last_late

    def done(self, seqs: Sequence[int]) -> None:
        batch = self._shelves.change()
        changes, self._done_at = batch.changes, batch.began
        if self._timed is not None and self._timed[0] in seqs:
            self._took = batch.began - self._timed[1]
            self._timed = None
        if self._late:
            assert self._late_number is not None
            for seq in self._late.keys() & set(seqs):
                changes.done(self._late_number, self._late.pop(seq))
        if isinstance(seqs, range) and seqs.step == 1:
            runs = [(seqs[0], seqs[-1])] if seqs else []
        else:
            runs = _runs(seqs)
        for first, last in runs:
            changes.done(self._number, first, last)

    def mark(self, attached: bool, delivered_upto: int) -> int:
        return self._shelves.mark(self, attached, delivered_upto)

    def want(self, first_seq: int, count: int, nbytes: int) -> None:
        self._shelves.want(self, first_seq, count, nbytes)

    def recover(self, queue: Queue) -> None:
        """Become the shelf of `queue`, and report the messages from before a restart."""
        self.queue = queue
        known = self._shelves.store.queues.get(self.name)
        marks = self._shelves.marks_of(self.name)
        if known is not None and (known.next_seq or marks != Marks()):
            first = self._shelves.store.first_live_seq(known.id)
            queue.recovered(
                known.next_seq if first is None else first,
                known.next_seq,
                known.live_count,
                known.live_bytes,
                marks,
            )
        if self._shelves.trouble is not None:
            queue.shelf_trouble(self._shelves.trouble)

    # -- for `Shelves` --------------------------------------------------------------------------

    def numbers(self) -> list[int]:
        """Return the ids of its queues in the store."""
        return [n for n in (self._number, self._late_number) if n is not None]

    def read(self, store: Store, first_seq: int, count: int, nbytes: int) -> list[Message]:
        """Read messages; blocks. For a thread."""
        while True:
            records = store.read(self._number, first_seq, count=count, nbytes=nbytes)
            messages = [self._decoded(record.seq, record) for record in records]
            if not records or any(message is not None for message in messages):
                break
            # None of these can be read; an empty result would mean that nothing follows.
            first_seq = records[-1].seq + 1
        late = sorted(seq for seq in list(self._late) if seq >= first_seq)
        if late:
            assert self._late_number is not None
            beyond = records[-1].seq if records else late[-1]
            for seq in late[:count]:
                place = self._late.get(seq)
                if seq > beyond or place is None:
                    continue
                found = store.read(self._late_number, place, count=1, nbytes=1)
                if found and found[0].seq == place:
                    messages.append(self._decoded(seq, found[0]))
        wanted: list[Message] = []
        size = 0
        for message in sorted((m for m in messages if m is not None), key=_seq_of):
            if len(wanted) >= count or size >= nbytes:
                break
            wanted.append(message)
            size += message.size
        return wanted

    def _decoded(self, seq: int, record: Record) -> Message | None:
        try:
            return decode(seq, record.header, record.body)
        except UnstorableError as exc:
            # Another version wrote these bytes. The queue will find that the message is gone.
            logger.error(
                "queue %s: %s", self.name, exc, extra={"event": "unreadable", "queue": self.name}
            )
            return None


def _seq_of(message: Message) -> int:
    return message.seq


def _runs(seqs: Sequence[int]) -> list[tuple[int, int]]:
    """Return the runs of consecutive numbers, as (first, last)."""
    runs: list[tuple[int, int]] = []
    for seq in sorted(seqs):
        if runs and seq <= runs[-1][1] + 1:
            runs[-1] = runs[-1][0], seq
        else:
            runs.append((seq, seq))
    return runs


@asynccontextmanager
async def open_shelves(
    directory: Path,
    settings: StoreSettings,
    flusher: Sending,
    *,
    vfs: str | None = None,
    log: Log | None = None,
) -> AsyncGenerator[Shelves]:
    """Open the store in `directory`, and let its thread write for as long as the block lasts.

    Args:
        directory: The store's directory.
        settings: The store's settings.
        flusher: Flushes the outlets of confirms that waited for durability.
        vfs: The name of a file system that SQLite knows, as for `Store.open`.
        log: Makes the store durable, if the settings have `logged`.

    Cancellation: committed changes are written and made durable at the end of the block; a log
    takes no more.

    Raises:
        StoreError: If it cannot be opened: see `Store.open`; if the log is lost: see `Log.run`.
    """
    store = await trio.to_thread.run_sync(partial(Store.open, directory, settings, vfs=vfs))
    limiter = trio.CapacityLimiter(1)
    with calls_from_threads() as call_soon:
        async with _closing(store), trio.open_nursery() as nursery:
            nursery.start_soon(partial(trio.to_thread.run_sync, store.run, limiter=limiter))
            async with trio.open_nursery() as reading:
                shelves = Shelves(store, flusher, reading, call_soon, log)
                if log is None:
                    shelves.rests = Rests(shelves.commit, store.hurry)
                    reading.start_soon(shelves.rests.watch)
                else:
                    reading.start_soon(shelves.commit_each_round)
                    reading.start_soon(log.run, store, partial(shelves.note_trouble, "log"))
                try:
                    yield shelves
                finally:
                    try:
                        shelves.close()
                        if log is not None:
                            await _all_logged(store, log)
                    finally:
                        # After any failure: otherwise the thread would be waited for, for ever.
                        store.stop()
                        reading.cancel_scope.cancel()


async def _all_logged(store: Store, log: Log) -> None:
    """Wait until the log has all changes, or takes none; say what it does not have."""
    try:
        with trio.move_on_after(LOG_SECONDS):
            while store.unlogged(1) and log.trouble is None:  # noqa: ASYNC110
                await trio.sleep(LOOK_SECONDS)
    finally:
        left = store.statistics().unlogged_bytes
        if left:
            logger.error(
                "%d bytes of changes are not stored, and nobody was told that they are: they end "
                "with this process",
                left,
                extra={"event": "not_stored", "bytes": left},
            )


@asynccontextmanager
async def _closing(store: Store) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(store.close)
