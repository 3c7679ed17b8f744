"""A sink: the staged rows of one writer, and its committed batches.

Theory of operation. Batches have numbers, which only grow. Parts of one batch at a time are staged,
each by one connection: blocks of rows, and then a request that ends the part. The first row of a
newer batch discards the staged rows of an older one. `commit` decides, once: the parts it names are
the batch, in the order of the partitions, and all other parts are discarded. A decided batch is
published after that (`Publishing`), one batch after another; the next one is decided when that is
done. A `commit` of a decided batch, or of an older one, is answered with that.

With a log, blocks are written as they come. Until a block is durable, the writer's account owes for
it; then it is at rest: another account of the sink's borrows, and the writer's loans end as
`stored`. Without a log they are at rest at once, in RAM. Everything at rest is one growing loan;
the rows of a block are repaid, as `delivered`, when everybody has taken them. Published rows are
charged to the writer's account, like any publication.

So the writer's account never owes for rows that only its own commit could repay, however large a
batch is: their bytes have limits of their own, `SinkLimits.batch_bytes` and the room at rest. If
others take all of that room, the writer waits in debt; when the patience of this holder is over
(rule 11), staged and uncommitted rows are written off, and the writer is told.
"""

from __future__ import annotations

import enum
import json
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import attrs

from ...accounts import Account, Holder, Ledger, LoanAtRest, LoanedItem, Outcome, Recipient
from ._errors import FencedError, NotStagedError, OtherIncarnationError, RefusedError
from ._log import SinkLog
from ._part import Block, Part, PartKey
from ._publishing import Publishing, RowConfirm
from ._settings import SinkLimits

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
        "_cached_bytes", "_confirm_of", "_decided", "_in_rest", "_log", "_touched_at",
        "_unwritten", "_wall", "_writing", "_writing_bytes", "_writing_items", "account", "allows",
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
        confirm_of: Callable[[Publishing, Block, int], RowConfirm] = RowConfirm,
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
        self._wall = wall
        self._touched_at = ledger.clock()
        # Blocks without room at rest, with their parts; and those being written.
        self._unwritten: deque[tuple[Part, Block]] = deque()
        self._writing: deque[Block] = deque()
        self._writing_items = 0
        self._writing_bytes = 0
        self._in_rest = LoanAtRest(rest, self)
        self._cached_bytes = 0
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
        if self._in_rest.loan is not None:
            yield self._in_rest.loan
        for block in self._writing:
            if block.loan is not None:
                yield block.loan
        for _, block in self._unwritten:
            if block.loan is not None:
                yield block.loan

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
            OtherIncarnationError: The writer belongs to an earlier incarnation of the sink.
        """
        if self.closed or (incarnation is not None and incarnation != self.incarnation):
            msg = (
                f"this writer {self.sink} is not remembered here: it was forgotten, or the relay "
                "has no store and was restarted; open it anew"
            )
            raise OtherIncarnationError(msg)
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
        self.keep()
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
        if not self.batch_bytes and self._in_rest.loan is None:
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
        if self._log is None:
            self._lay_to_rest(block)
        else:
            block.loan = LoanedItem(self.account, None, count, nbytes, self)
            self._unwritten.append((part, block))
            self.write()

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
        self._end_part(part)
        return False

    def _end_part(self, part: Part) -> None:
        log = self._log
        if log is not None and all(block.ticket is not None for block in part.blocks):
            log.end_part(part.key, part.value())
            part.noted = True

    # -- the disk -------------------------------------------------------------------------------

    def write(self) -> None:
        """Hand unwritten blocks to the log, as far as there is room at rest."""
        log = self._log
        if log is None or self.closed:
            return
        unwritten = self._unwritten
        while unwritten:
            part, block = unwritten[0]
            if block.loan is not None:
                if not self._has_room(block):
                    return  # Until others make room, or the patience ends.
                assert part.place is not None
                assert block.data is not None
                block.ticket = log.put(part.place, block.number, block.first, block.data)
                self._writing.append(block)
                self._writing_items += block.count
                self._writing_bytes += block.nbytes
            unwritten.popleft()
            if part.complete and block is part.blocks[-1] and not part.failed:
                self._end_part(part)

    def _has_room(self, block: Block) -> bool:
        items, nbytes = self.rest.room()
        return (
            items - self._writing_items >= block.count
            and nbytes - self._writing_bytes >= block.nbytes
        )

    def durable(self, ticket: int) -> None:
        """Everything up to this ticket of the log's is on disk: it is at rest from now on."""
        writing = self._writing
        while writing and (writing[0].ticket or 0) <= ticket:
            block = writing.popleft()
            self._writing_items -= block.count
            self._writing_bytes -= block.nbytes
            loan, block.loan = block.loan, None
            if loan is None:
                continue
            if block.thrown_away is not None:
                loan.settle(outcome=block.thrown_away)
                continue
            self._lay_to_rest(block)
            loan.settle(outcome=Outcome.STORED)
            if self._cached_bytes + block.nbytes > self.limits.cache_bytes:
                block.data = None
            else:
                self._cached_bytes += block.nbytes
        publishing = self.publishing
        if publishing is not None and not publishing.durable and ticket >= self._decided:
            publishing.durable = True
            self.on_change(self)

    def _lay_to_rest(self, block: Block) -> None:
        block.at_rest = True
        block.since = self.ledger.clock()
        self._in_rest.add(block.count, block.nbytes, block.since)

    def _end_rest(self, block: Block, outcome: Outcome) -> None:
        self._leave_rest(block)
        self._settle_rest(block.count, block.nbytes, block.since, outcome)

    def _leave_rest(self, block: Block) -> None:
        block.at_rest = False
        if self._log is not None and block.data is not None:
            self._cached_bytes -= block.nbytes
        block.data = None

    def _settle_rest(self, items: int, nbytes: int, since: float, outcome: Outcome) -> None:
        loan = self._in_rest.loan
        assert loan is not None
        # Some of it may always be at rest, but not for as long as the loan exists.
        before, loan.opened = loan.opened, since
        self._in_rest.settle(items, nbytes, outcome)
        if outcome is not Outcome.DELIVERED:
            loan.opened = before  # Blocks end in order: the rest came no sooner.

    # -- discarding -----------------------------------------------------------------------------

    def _discard(self, part: Part, outcome: Outcome) -> None:
        """End the loans of a part; the caller frees its place in the log."""
        self.batch_bytes -= part.nbytes
        self.batch_cost -= part.cost
        self.discarded_rows += part.rows
        items = nbytes = 0
        since = 0.0
        for block in part.blocks:
            loan = block.loan
            if block.at_rest:
                since = since or block.since
                items += block.count
                nbytes += block.nbytes
                self._leave_rest(block)
            elif loan is not None:
                block.data = None
                if block.ticket is None:
                    block.loan = None
                    loan.settle(outcome=outcome)
                else:
                    # The log has it, in memory, until it is written: without this, a writer that
                    # stages and aborts faster than the disk would owe nothing for it.
                    block.thrown_away = outcome
        if items:
            # In one sum: there may be tens of thousands of blocks.
            self._settle_rest(items, nbytes, since, outcome)
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
            self._log.settle(self.state(), drop)

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
        waits = any(block.loan is not None for _, block in self._unwritten)
        return waits and now - self.progressed_at > self.patience

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
            self._decided = self._log.settle(self.state(), drop)
        self.on_change(self)
        return Decision.NOW

    def confirm_of(self, publishing: Publishing, block: Block, row: int) -> RowConfirm:
        """Make the confirm of a row. For `Publishing`."""
        self.published_rows += 1
        return self._confirm_of(publishing, block, row)

    def block_over(self, part: Part, block: Block) -> None:
        """Repay a block: all its rows have been taken. For `Publishing`."""
        if self.closed:
            return
        block.over = True
        if block.at_rest:
            self._end_rest(block, Outcome.DELIVERED)
        elif block.loan is not None:
            # Everybody had taken it before it was durable, though not before its decision was.
            loan, block.loan = block.loan, None
            loan.settle()
        if self._log is not None and part.place is not None:
            self._log.done(part.place, block.number)
            self.write()

    def published(self, publishing: Publishing) -> None:
        """Note that everybody has taken all rows of a batch. For `Publishing`."""
        if publishing is not self.publishing or self.closed:
            return
        self.publishing = None
        if self._log is not None:
            drop = [(part.key, part.place) for part in publishing.parts if part.place is not None]
            self._log.settle(self.state(), drop, publishing.marks)
        self.on_change(self)

    # -- its state for a restart ----------------------------------------------------------------

    def state(self) -> bytes:
        """Return its state for a restart, without the staged parts."""
        publishing = self.publishing
        parts = None if publishing is None else [part.key[1:] for part in publishing.parts]
        return json.dumps(
            {
                "incarnation": self.incarnation.hex(),
                "generation": self.generation,
                "last": self.last,
                "at": self.committed_at,
                "publishing": parts,
            },
            separators=(",", ":"),
        ).encode()

    def keep(self) -> None:
        """Write its state for a restart."""
        if self._log is not None:
            self._log.settle(self.state())

    def restore(
        self,
        state: bytes,
        parts: dict[PartKey, tuple[Part, int]],
        marks: dict[str, tuple[int, int]],
    ) -> list[Part]:
        """Restore a sink from `state` and the disk. Only before anything else.

        Args:
            state: The result of `state`.
            parts: The complete parts, and the number of the first remaining block of each.
            marks: For places on disk: a batch, and the first of its rows that the place lacks.

        Returns:
            Parts that are not needed any more; the caller forgets them.

        Raises:
            ValueError: The state is invalid.
        """
        try:
            found = json.loads(state)
            self.incarnation = bytes.fromhex(found["incarnation"])
            self.generation = int(found["generation"])
            self.last = int(found["last"])
            self.committed_at = float(found["at"])
            pairs = found["publishing"]
            wanted = [] if pairs is None else [PartKey(self.last, int(p), int(a)) for p, a in pairs]
        except (KeyError, TypeError, ValueError) as exc:
            msg = f"the stored state of writer {self.sink} is none: {exc!r}"
            raise ValueError(msg) from exc
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
                    self._lay_to_rest(block)
        for key in staged:
            self.parts[key[1:]] = taken_up[key]
            self.batch_bytes += taken_up[key].nbytes
            self.batch_cost += taken_up[key].nbytes
            taken_up[key].cost = taken_up[key].nbytes
        if pairs is not None:
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
        at_rest = Outcome.CANCELLED if self._log is None else Outcome.STORED
        for loan in list(self.loans()):
            # On disk, no account of this process owes for it any more.
            loan.settle(outcome=at_rest if loan is self._in_rest.loan else Outcome.CANCELLED)
        self._in_rest.loan = None
        self._writing.clear()
        self._unwritten.clear()
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
            rest_items=self._in_rest.items,
            rest_bytes=self._in_rest.bytes,
            committed=self.committed_batches,
            published=self.published_rows,
            discarded=self.discarded_rows,
        )
