"""A sink: the staged rows of one writer, and its committed batches.

Theory of operation. Batches have numbers, which only grow. Parts of one batch at a time are staged,
each by one connection: blocks of rows, and then a request that ends the part. The first row of a
newer batch discards the staged rows of an older one. `commit` decides, once: the parts it names are
the batch, in the order of the partitions, and all other parts are discarded. A decided batch is
published after that (`Publishing`), one batch after another; the next one is decided when that is
done. A `commit` of a decided batch, or of an older one, is answered with that.

With a log, blocks are written as they come (`BlockBuffer`). Until a block is durable, the writer's
account owes for it; then it is at rest: another account of the sink's borrows, and the writer's
loans end as `stored`. Without a log they are at rest at once, in RAM. Everything at rest is one
growing loan; the rows of a block are repaid, as `delivered`, when everybody has taken them.
Published rows are charged to the writer's account, like any publication.

So the writer's account never owes for rows that only its own commit could repay, however large a
batch is: their bytes have limits of their own, `SinkLimits.batch_bytes` and the room at rest. If
others take all of that room, the writer waits in debt; when the patience of this holder is over
(rule 11), staged and uncommitted rows are written off, and the writer is told.
"""

from __future__ import annotations

import enum
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import attrs

from ...accounts import Account, Holder, Ledger, LoanedItem, Outcome, Recipient
from ..wire import FencedError, ForgottenError, NotStagedError, PartKey, RefusedError
from ._buffer import BlockBuffer
from ._log import SinkLog
from ._part import Block, Part
from ._publishing import Publishing, RowConfirm
from ._settings import SinkLimits
from ._state import state_of, take_up

NONE = -1
"""Stands for the number of a batch that does not exist."""


class Decision(enum.Enum):
    """The result of a `commit`."""

    NOW = enum.auto()
    """It is decided now."""
    BEFORE = enum.auto()
    """It was decided before."""
    LATER = enum.auto()
    """The batch before it is still being published, or a write is not durable yet: ask again."""


@attrs.frozen(slots=True)
class SinkStatistics:
    """Statistics of a sink."""

    name: str
    generation: int
    """Number of times that its name was taken over."""
    last: int | None
    """The last committed batch."""
    staging: int | None
    """The batch with staged rows."""
    parts: int
    """Number of its parts."""
    staged_items: int
    """Its staged rows."""
    staged_bytes: int
    """Their bytes."""
    publishing: int | None
    """The batch that is being published."""
    rest_items: int
    """Rows at rest: staged, or decided and not yet taken."""
    rest_bytes: int
    """Their bytes."""
    committed: int
    """Batches decided, in this process."""
    published: int
    """Rows published, in this process."""
    discarded: int
    """Rows that were staged and discarded."""


class Sink(Holder):
    """The staged rows and committed batches of one writer; see the top of this module.

    Made by `Sinks`.

    Args:
        ledger: The books.
        name: The writer's name.
        account: The writer's account: for rows on their way to rest, and for their publication.
        rest: The sink's own account: for rows at rest.
        limits: Limits on its content.
        incarnation: Identifies this incarnation of it: 16 bytes.
        log: Its place on the disk; None: it keeps everything in RAM.
        confirm_of: Makes the confirm of a row.
        place_of: Returns the name of a recipient's place on disk, if it notes rows there.
        wall: Returns the time in seconds since 1970.

    Attributes:
        last: The last decided batch.
        batch: The batch with staged rows.
        batch_bytes: Their bytes.
        batch_cost: Bytes that they count for in `SinkLimits.batch_bytes`.
        parts: Its staged parts, by partition and attempt.
        publishing: The decided batch that is being published, if any.
        generation: Number of times that the name was taken over.
        committed_batches: Batches decided, in this process.
        published_rows: Rows published, in this process.
        discarded_rows: Rows that were staged and discarded.
        committed_at: The time of the last decision, by `wall`.
        on_change: Called after a decision, and after a publication.
        allows: Whether its batches may be published to a topic; None: to all. Called for each row
            at its publication.
        doomed: Whether it is to be forgotten when nothing is left to be published.
        closed: Whether it is closed.
    """

    __slots__ = (
        "_buffer", "_confirm_of", "_decided", "_log", "_touched_at", "_wall", "account", "allows",
        "batch", "batch_bytes", "batch_cost", "closed", "committed_at", "committed_batches",
        "discarded_rows", "doomed", "generation", "incarnation", "last", "limits", "on_change",
        "parts", "place_of", "published_rows", "publishing", "rest", "sink",
    )  # fmt: skip

    kind = "staging"

    def __init__(
        self,
        ledger: Ledger,
        name: str,
        *,
        account: Account,
        rest: Account,
        limits: SinkLimits,
        incarnation: bytes,
        log: SinkLog | None = None,
        confirm_of: Callable[[Publishing, Block, int, int], RowConfirm] = RowConfirm,
        place_of: Callable[[Recipient], str | None] = lambda _: None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(
            ledger, f"{self.kind}/{name}", patience=limits.patience, policy=limits.stuck
        )
        self.sink = name
        self.account = account
        self.rest = rest
        self.limits = limits
        self.incarnation = incarnation
        self.last = NONE
        self.batch = NONE
        self.batch_bytes = 0
        self.batch_cost = 0
        self.parts: dict[tuple[int, int], Part] = {}
        self.publishing: Publishing | None = None
        self.generation = 1
        self.committed_at = wall()
        self.on_change: Callable[[Sink], object] = lambda _: None
        self.doomed = False
        self.closed = False
        self.place_of = place_of
        self.allows: Callable[[str], bool] | None = None
        self._confirm_of = confirm_of
        self._log = log
        self._buffer = BlockBuffer(self, account, rest, log, limits.cache_bytes)
        self._wall = wall
        self._touched_at = ledger.clock()
        self._decided = 0
        self.committed_batches = 0
        self.published_rows = 0
        self.discarded_rows = 0

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self.parts)} parts of batch {self.batch}"
        return f"<Sink {self.sink}: {state}, {self.last} is committed>"

    # -- a holder -------------------------------------------------------------------------------

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        """See `Holder.hold`: a sink subscribes to nothing; it drops a stray event."""
        account.repay(items, nbytes, Outcome.DROPPED, self)

    def ready(self) -> None:
        """See `Holder.ready`: there is nothing to do."""

    def loans(self) -> Iterator[LoanedItem[Any]]:
        return self._buffer.loans()

    def give_up(self, why: str) -> None:
        """See `Holder.give_up`: staged and uncommitted rows are written off."""
        reason = (
            f"the staged rows of batch {self.batch} of writer {self.sink} were written off: the "
            f"disk has no room for them (--disk-limit); {why}"
        )
        for part in self.parts.values():
            if not part.failed:
                self._discard(part, Outcome.WRITTEN_OFF)
                part.failed = reason
        self._drop_from_log(self.parts.values())
        self.settled()

    # -- the writer -----------------------------------------------------------------------------

    def check(self, generation: int, incarnation: bytes | None = None) -> None:
        """Check that a writer with this generation is the present one.

        Raises:
            FencedError: The name was taken over since.
            ForgottenError: The writer belongs to an earlier incarnation of the sink.
        """
        if self.closed or (incarnation is not None and incarnation != self.incarnation):
            msg = (
                f"this writer {self.sink} is not remembered here: it was forgotten, or the relay "
                "has no store and was restarted; open it anew"
            )
            raise ForgottenError(msg)
        if generation != self.generation:
            msg = (
                f"another writer has taken over the name {self.sink}: generation {generation} has "
                f"ended, {self.generation} has it now"
            )
            raise FencedError(msg)

    def take_over(self) -> int:
        """Fence off the present writer; discard staged rows; return the new generation."""
        self.generation += 1
        self._clear()
        self.persist()
        return self.generation

    def _touch(self) -> None:
        self._touched_at = self.ledger.clock()

    # -- staging --------------------------------------------------------------------------------

    def stage(self, owner: object, key: PartKey, at: int, data: bytes, count: int) -> None:
        """Take a block of a part: `count` rows from its row `at` on. Row 0 begins the part anew.

        A block of a committed batch is ignored.

        Raises:
            RefusedError: It cannot be staged; nothing of the part is kept then.
        """
        part = self._part(owner, key, at == 0)
        if part is None:
            return
        if part.rows != at:
            self._fail(part, f"row {at} of {key} came instead of row {part.rows}")
        nbytes = len(data)
        cost = max(nbytes, self.limits.block_bytes)
        if self.batch_cost + cost > self.limits.batch_bytes:
            self._fail(
                part,
                f"writer {self.sink} has {self.batch_cost} bytes staged of batch {key.batch}, and "
                f"{self.limits.batch_bytes} are the limit (--sink-batch-limit): make batches "
                "smaller (Spark: maxOffsetsPerTrigger or maxBytesPerTrigger), or raise the limit",
            )
        if self._log is None and self.rest.room()[1] < nbytes:
            self._fail(
                part,
                f"all writers together have no room left for {nbytes} bytes of batch {key.batch} "
                f"of writer {self.sink} (--sink-batch-limit): a relay with a store (--store) has "
                "room on its disk",
            )
        if not self.batch_bytes and self._buffer.rest.loan is None:
            # An empty holder has no progress to make.
            self.progressed_at = self.ledger.clock()
        block = Block(at, count, nbytes, len(part.blocks) + 1, data)
        part.blocks.append(block)
        part.rows += count
        part.nbytes += nbytes
        part.crc = zlib.crc32(data, part.crc)
        part.cost += cost
        self.batch_bytes += nbytes
        self.batch_cost += cost
        self._touch()
        self._buffer.add(part, block)

    def _part(self, owner: object, key: PartKey, begins: bool) -> Part | None:
        """Return the part for a request; None if the request is ignored.

        Raises:
            RefusedError: It cannot be staged.
        """
        if not self._goes_to(key.batch):
            return None
        known = self.parts.get(key[1:])
        if known is not None and not begins:
            if known.failed:
                raise RefusedError(known.failed)
            if known.owner is not owner or known.complete:
                msg = (
                    f"{key} of writer {self.sink} is staged by another connection, or whole; "
                    "begin it anew, with its first row, or with another attempt"
                )
                raise RefusedError(msg)
            return known
        if not begins:
            msg = f"{key} of writer {self.sink} does not begin with its first row"
            raise RefusedError(msg)
        if known is not None:
            self._discard(known, Outcome.DROPPED)
        elif len(self.parts) >= self.limits.max_parts:
            msg = (
                f"{self.limits.max_parts} parts of batch {key.batch} of writer {self.sink} are "
                "staged, which is the limit (max_parts)"
            )
            raise RefusedError(msg)
        place = None if self._log is None else self._log.open_part(key)
        part = self.parts[key[1:]] = Part(key, owner, place)
        return part

    def _goes_to(self, batch: int) -> bool:
        """Whether a batch may be staged now; False if it is committed already."""
        if batch <= self.last:
            return False
        if batch < self.batch:
            msg = f"batch {batch} of writer {self.sink} is over: batch {self.batch} is being staged"
            raise RefusedError(msg)
        if batch > self.batch:
            self._clear()
            self.batch = batch
        return True

    def refuse_part(self, key: PartKey, why: str) -> NoReturn:
        """Refuse a part because of its content; nothing of it is kept.

        Raises:
            RefusedError: Always.
        """
        part = self.parts.get(key[1:]) if key.batch == self.batch else None
        if part is None:
            raise RefusedError(why)
        self._fail(part, why)

    def is_noted(self, key: PartKey) -> bool:
        """Whether a complete part has been handed to the log, if there is one."""
        if self._log is None or key.batch <= self.last:
            return True
        part = self.parts.get(key[1:])
        return part is not None and part.noted

    def _fail(self, part: Part, why: str) -> NoReturn:
        self._discard(part, Outcome.DROPPED)
        part.failed = why
        self._drop_from_log([part])
        raise RefusedError(why)

    def complete(self, owner: object, key: PartKey, rows: int, nbytes: int, crc: int) -> bool:
        """End a part; return whether its batch is committed already.

        Raises:
            RefusedError: Its content is not as announced.
        """
        if not self._goes_to(key.batch):
            return True
        known = self.parts.get(key[1:])
        if known is not None and known.complete and known.rows == rows and known.crc == crc:
            return False
        part = self._part(owner, key, rows == 0)
        assert part is not None
        if (part.rows, part.nbytes, part.crc) != (rows, nbytes, crc):
            self._fail(
                part,
                f"{key} of writer {self.sink} is torn: {rows} rows of {nbytes} bytes were sent, "
                f"{part.rows} of {part.nbytes} came, or their checksum differs; stage it anew",
            )
        part.complete = True
        self._touch()
        self._buffer.end_part(part)
        return False

    # -- the disk -------------------------------------------------------------------------------

    def write(self) -> None:
        """Hand unwritten blocks to the log, as far as there is room at rest."""
        self._buffer.write()

    def durable(self, ticket: int) -> None:
        """Everything up to this ticket of the log's is on disk: it is at rest from now on."""
        self._buffer.durable(ticket)
        publishing = self.publishing
        if publishing is not None and not publishing.durable and ticket >= self._decided:
            publishing.durable = True
            self.on_change(self)

    # -- discarding -----------------------------------------------------------------------------

    def _discard(self, part: Part, outcome: Outcome) -> None:
        """End the loans of a part; the caller frees its place in the log."""
        self.batch_bytes -= part.nbytes
        self.batch_cost -= part.cost
        self.discarded_rows += part.rows
        self._buffer.discard(part.blocks, outcome)
        part.blocks.clear()
        part.rows = part.nbytes = part.cost = part.crc = 0
        part.complete = part.noted = False

    def _drop_from_log(self, parts: Iterable[Part]) -> None:
        if self._log is None:
            return
        drop = [(part.key, part.place) for part in parts if part.place is not None]
        for part in parts:
            part.place = None
        if drop:
            self._log.settle(state_of(self), drop)

    def _clear(self) -> None:
        """Discard all rows that are staged and undecided."""
        parts = list(self.parts.values())
        self.parts.clear()
        for part in parts:
            self._discard(part, Outcome.DROPPED)
        self._drop_from_log(parts)
        self.batch = NONE

    def abort(self, batch: int) -> None:
        """Discard the staged rows of a batch; for any other batch do nothing."""
        if batch == self.batch:
            self._clear()

    def left_by(self, owner: object) -> None:
        """Discard the unfinished parts of a connection that has ended."""
        torn = [part for part in self.parts.values() if part.owner is owner and not part.complete]
        for part in torn:
            self._discard(part, Outcome.DROPPED)
            del self.parts[part.key[1:]]
        if torn:
            self._drop_from_log(torn)

    def left_alone(self, now: float) -> int:
        """Discard abandoned staged rows; return the number of parts."""
        if not self.account.funds_are_clear():
            self._touched_at = now  # The writer is throttled: it cannot go on.
        count = len(self.parts)
        if not count or now - self._touched_at <= self.limits.grace:
            return 0
        self._clear()
        return count

    def is_stuck(self, now: float) -> bool:
        """Whether blocks have waited for room at rest for longer than the patience."""
        return self._buffer.waits_for_room and now - self.progressed_at > self.patience

    # -- committing -----------------------------------------------------------------------------

    def commit(self, batch: int, pairs: Iterable[tuple[int, int]]) -> Decision:
        """Decide that a batch is these parts, as (partition, attempt).

        Raises:
            NotStagedError: A part is not staged, or not complete.
            RefusedError: They cannot be one batch.
        """
        if batch <= self.last:
            return Decision.BEFORE
        chosen: dict[int, Part] = {}
        for partition, attempt in pairs:
            if partition in chosen:
                msg = f"batch {batch} of writer {self.sink} has partition {partition} twice"
                raise RefusedError(msg)
            part = self.parts.get((partition, attempt)) if batch == self.batch else None
            if part is None or not part.complete:
                key = PartKey(batch, partition, attempt)
                why = "not staged here, or not any more" if part is None else "not whole"
                why = why if part is None or part.failed is None else part.failed
                raise NotStagedError(f"{key} of writer {self.sink} is {why}; stage it again")
            chosen[partition] = part
        self._touch()
        if self.publishing is not None:
            return Decision.LATER
        if self._log is not None and not all(part.noted for part in chosen.values()):
            return Decision.LATER
        parts = [chosen[partition] for partition in sorted(chosen)]
        others = [
            part for part in self.parts.values() if chosen.get(part.key.partition) is not part
        ]
        for part in others:
            self._discard(part, Outcome.DROPPED)
        self.parts.clear()
        self.batch = NONE
        self.batch_bytes = self.batch_cost = 0
        self.last = batch
        self.committed_at = self._wall()
        self.committed_batches += 1
        self.publishing = Publishing(self, batch, parts)
        self._decided = 0
        if self._log is None:
            self.publishing.durable = True
        else:
            drop = [(part.key, part.place) for part in others if part.place is not None]
            self._decided = self._log.settle(state_of(self), drop)
        self.on_change(self)
        return Decision.NOW

    def confirm_of(
        self, publishing: Publishing, block: Block, row: int, rows: int = 1
    ) -> RowConfirm:
        """Make the confirm of a row, or of several, `row` the last. For `Publishing`."""
        return self._confirm_of(publishing, block, row, rows)

    def block_over(self, part: Part, block: Block) -> None:
        """Repay a block: all its rows have been taken. For `Publishing`."""
        if self.closed:
            return
        block.over = True
        self._buffer.taken(part, block)

    def published(self, publishing: Publishing) -> None:
        """Note that everybody has taken all rows of a batch. For `Publishing`."""
        if publishing is not self.publishing or self.closed:
            return
        self.publishing = None
        if self._log is not None:
            drop = [(part.key, part.place) for part in publishing.parts if part.place is not None]
            self._log.settle(state_of(self), drop, publishing.marks)
        self.on_change(self)

    # -- its state for a restart ----------------------------------------------------------------

    def persist(self) -> None:
        """Write its state for a restart."""
        if self._log is not None:
            self._log.settle(state_of(self))

    def restore(
        self,
        state: bytes,
        parts: dict[PartKey, tuple[Part, int]],
        marks: dict[str, tuple[int, int]],
    ) -> list[Part]:
        """Restore a sink from its stored state and the disk. Only before anything else.

        Args:
            state: The result of `state_of`.
            parts: The complete parts, and the number of the first remaining block of each.
            marks: For places on disk: a batch, and the first of its rows that the place lacks.

        Returns:
            Parts that are not needed any more; the caller forgets them.

        Raises:
            ValueError: The state is invalid.
        """
        publishing = take_up(self, state)
        wanted = publishing or []
        missing = [key for key in wanted if key not in parts]
        if missing:
            msg = f"writer {self.sink}: {missing[0]} was committed, and is not in the store"
            raise ValueError(msg)
        staged = [key for key in parts if key.batch > self.last]
        self.batch = max((key.batch for key in staged), default=NONE)
        staged = [key for key in staged if key.batch == self.batch]
        taken_up: dict[PartKey, Part] = {}
        for key in (*wanted, *staged):
            part, first = parts.pop(key)
            taken_up[key] = part
            for block in part.blocks:
                block.ticket = 0
                if block.number < first:
                    block.over = True
                else:
                    self._buffer.lay_to_rest(block)
        for key in staged:
            self.parts[key[1:]] = taken_up[key]
            self.batch_bytes += taken_up[key].nbytes
            self.batch_cost += taken_up[key].nbytes
            taken_up[key].cost = taken_up[key].nbytes
        if publishing is not None:
            known = {place: upto for place, (batch, upto) in marks.items() if batch == self.last}
            chosen = [taken_up[key] for key in wanted]
            self.publishing = Publishing(self, self.last, chosen, known)
            self.publishing.durable = True
        return [part for part, _ in parts.values()]

    # -- its end --------------------------------------------------------------------------------

    @property
    def last_is_sure(self) -> bool:
        """Whether the last decision would survive a crash."""
        return self.publishing is None or self.publishing.durable

    @property
    def is_idle(self) -> bool:
        """Whether nothing is staged, and nothing is being published."""
        return self.publishing is None and not self.parts

    def forget(self) -> None:
        """End it with its staged rows. Only without a batch to publish; nothing is remembered."""
        assert self.publishing is None
        parts = list(self.parts.values())
        self.parts.clear()
        for part in parts:
            self._discard(part, Outcome.DROPPED)
        if self._log is not None:
            self._log.forget([(part.key, part.place) for part in parts if part.place is not None])
        self.close()

    def unpublished(self) -> str | None:
        """Return a sentence about committed rows that are lost with the process, if there are."""
        publishing = self.publishing
        if publishing is None or self._log is not None:
            return None
        rows = sum(
            block.count for part in publishing.parts for block in part.blocks if not block.over
        )
        what = "1 row was" if rows == 1 else f"{rows} rows were"
        return (
            f"batch {publishing.batch} of writer {self.sink}: {what} not published, or not "
            "delivered to every subscriber; the writer has no confirmation"
        )

    def close(self) -> None:
        """Close it; data on disk stays, loans in RAM are cancelled. Idempotent."""
        if self.closed:
            return
        self.closed = True
        self._buffer.close()
        self.parts.clear()
        self.publishing = None
        self.ledger.unregister(self)
        self.rest.close()
        self.account.close()

    def statistics(self) -> SinkStatistics:
        """Return its statistics."""
        return SinkStatistics(
            name=self.sink,
            generation=self.generation,
            last=None if self.last == NONE else self.last,
            staging=None if self.batch == NONE else self.batch,
            parts=len(self.parts),
            staged_items=sum(part.rows for part in self.parts.values()),
            staged_bytes=self.batch_bytes,
            publishing=None if self.publishing is None else self.publishing.batch,
            rest_items=self._buffer.rest.items,
            rest_bytes=self._buffer.rest.bytes,
            committed=self.committed_batches,
            published=self.published_rows,
            discarded=self.discarded_rows,
        )
