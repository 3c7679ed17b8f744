"""A subscription for a reader that fetches ranges, repeatedly if it likes, and then acknowledges.

Theory of operation. Every message gets a number, from 1 on, and is kept until it is acknowledged:
`low` is the first that is kept, `next` the first that has not come. The messages between them can
be fetched again and again, by several readers at once; delivery does not repay. `ack(upto)` moves
`low`. So the unpaid loans are the replay buffer, and a reader that does not acknowledge throttles
the publishers.

Messages are kept in chunks, column by column; in each chunk, each account has one loan
(`ReplayBuffer`). A chunk in RAM is on its publishers' accounts. With a log chunks are written in
order (`WriteBehind`), and when one is durable, it is at rest: the subscription's own account
borrows, then the publishers' loans end as `stored`. Everything at rest is one growing loan. Readers
then see only messages at rest: a number that they have seen must not stand for another message
after a restart.

A generation fences readers: each attachment has the next one, and requests with an older one are
refused.

Rule 11 here. A reader may be slow: a job of some seconds between two acknowledgements is what the
subscription is there to make publishers wait for. When accounts have waited on it for longer than
its patience, the slow-consumer policy applies: with `wait` the log names both sides; with
`drop_oldest` it lags from then on (`_lagging.py`); with `disconnect` it lags, too, and its reader
is disconnected (`on_given_up`). That holds with a reader and without. A reader that is away has its
grace to come back besides, whether anybody waits or not; then `after_grace` applies. Messages at
rest make nobody wait.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

from ...accounts import Account, Holder, Ledger, LoanAtRest, LoanedItem, Outcome, StuckPolicy, lent
from ...dataspace._events import Batch, ColumnRun, Publication
from ..wire import (
    DataLossError,
    FencedError,
    Head,
    OpenBlock,
    OtherIncarnationError,
    OutOfRangeError,
    Start,
)
from ._chunk import CHUNK_BYTES, Chunk
from ._lagging import LaggingSpell
from ._log import SubscriptionLog
from ._replay_buffer import AtRest, ReplayBuffer
from ._rows import MakeRow, RunColumns, as_row, run_columns
from ._settings import SubscriptionLimits, SubscriptionOptions
from ._state import state_of
from ._write_behind import WriteBehind


def nobody(*_: object) -> None:
    """Do nothing: no callback was set."""


def wall_us() -> int:
    """Return the time in microseconds since 1970."""
    return time.time_ns() // 1000


@attrs.frozen(slots=True)
class SubscriptionStatistics:
    """Statistics of a subscription."""

    name: str
    filters: tuple[str, ...]
    """Its topic filters."""
    durable: bool
    """Whether its messages go to disk."""
    generation: int
    """Number of attachments."""
    attached: bool
    """Whether a reader is attached."""
    away_seconds: float
    """Seconds without a reader; 0 with one."""
    low: int
    """The first number that is kept."""
    next: int
    """The first number that cannot be fetched yet."""
    unpaid_items: int
    """Messages in RAM, on their publishers' accounts; while it is behind, on its own."""
    unpaid_bytes: int
    """Their bytes."""
    rest_items: int
    """Messages on disk, on the subscription's own account."""
    rest_bytes: int
    """Their bytes."""
    recovered: int
    """Messages found on disk at the start."""
    acked: int
    """Messages ever acknowledged."""
    lost: int
    """Messages ever given up: dropped, or written off."""
    fenced: int
    """Requests ever refused because of an older generation."""


class RangeSubscription(Holder):
    """One named subscription; see the top of this module.

    Made by `Subscriptions`, which binds it to topic filters. For topic filters it takes runs of
    publications unchanged; events that a pattern observes become rows by `row`.

    Args:
        ledger: The books.
        name: Its name for readers.
        account: Its own account: for messages at rest.
        options: Its options.
        limits: Limits on its content.
        incarnation: Identifies this incarnation of it: 16 bytes.
        log: Its place on the disk; None: it keeps everything in RAM.
        row: Makes rows of events that are no runs.
        columns: Makes columns of runs of publications.
        wall: Returns the time in microseconds since 1970.

    Attributes:
        low: The first number that is kept.
        next: The first number that has not come.
        generation: That of the newest attachment.
        pin: Where a first reader begins: the word, and the number.
        filters: Its topic filters.
        closed: Whether it accepts nothing more.
        unpaid_items: Messages on their publishers' accounts.
        unpaid_bytes: Their bytes.
        recovered: Messages found on disk at the start.
        on_given_up: Called with it, and the reason, to disconnect its readers.
    """

    __slots__ = (
        "_acked", "_buffer", "_columns", "_disk", "_fenced", "_lagging", "_lost", "_owners",
        "_rest", "_row", "_shut", "_urgent", "_wall", "account", "away_since", "closed", "filters",
        "generation", "incarnation", "limits", "low", "next", "on_given_up", "options", "pin",
        "recovered", "subscription", "unpaid_bytes", "unpaid_items", "visible",
    )  # fmt: skip

    kind = "subscription"
    policies = frozenset({StuckPolicy.WAIT, StuckPolicy.DISCONNECT, StuckPolicy.DROP_OLDEST})
    takes_responsibility = True
    takes_columns = True

    def __init__(
        self,
        ledger: Ledger,
        name: str,
        *,
        account: Account,
        options: SubscriptionOptions,
        limits: SubscriptionLimits,
        incarnation: bytes,
        log: SubscriptionLog | None = None,
        row: MakeRow = as_row,
        columns: RunColumns = run_columns,
        wall: Callable[[], int] = wall_us,
    ) -> None:
        super().__init__(
            ledger,
            f"{self.kind}/{name}",
            patience=limits.patience,
            policy=limits.stuck,
        )
        self.subscription = name
        self.account = account
        self.options = options
        self.limits = limits
        self.incarnation = incarnation
        self.filters: tuple[str, ...] = ()
        self.low: int = 1
        self.next: int = 1
        # The first number that readers may not see yet; without a log, `next`.
        self.visible: int = 1
        self.generation = 0
        self.pin: tuple[Start, int] | None = None
        self.away_since: float | None = ledger.clock()
        self.closed = False
        self.unpaid_items = 0
        self.unpaid_bytes = 0
        self.recovered = 0
        self._row = row
        self._columns = columns
        self._wall = wall
        self._buffer = ReplayBuffer()
        self._rest = LoanAtRest(account, self)
        self._disk = None if log is None else WriteBehind(self, self._rest, log)
        self._urgent = False
        self._owners = 0
        # The number from which it drops new messages: no reader came back within the grace, and
        # that is the policy.
        self._shut: int | None = None
        self._lagging: LaggingSpell | None = None
        self.on_given_up: Callable[[RangeSubscription, str], object] = nobody
        self._acked = 0
        self._lost = 0
        self._fenced = 0

    def __repr__(self) -> str:
        state = "closed" if self.closed else "attached" if self.attached else "away"
        return f"<RangeSubscription {self.subscription}: {state}, {self.low}..{self.next}>"

    # -- a holder -------------------------------------------------------------------------------

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        """See `Holder.hold`: an event gets the next number, a run the next ones."""
        if self.closed or self._shut is not None:
            if self._shut is not None:
                self._pass_over(items)
            account.repay(items, nbytes, Outcome.DROPPED, self)
            return
        if self.low == self.next:
            # An empty holder has no progress to make.
            self.progressed_at = now
        if type(item) not in _RUNS and items != 1:
            # One row, even if it stands for several events.
            account.repay(items - 1, 0, Outcome.DELIVERED, self)
            items = 1
        # First: only this can fail, and then nothing has been taken.
        row = columns = run = None
        if type(item) is Batch:
            columns = self._columns(item)
        elif type(item) is ColumnRun:
            run = item
        else:
            row = self._row(item)
        tail, disk = self._buffer.tail, self._disk
        code = None if account.tracing is not None else tail.code_of.get(account)
        owes = account
        if self._lagging is not None and disk is None:
            owes = self._lagging.take(account, items, nbytes)
        if code is None:
            loan = lent(owes, None, items, nbytes, self, now)
            code = tail.add_account(account, loan)
        else:
            loan = tail.loans[code]
            loan.items += items
            loan.bytes += nbytes
        if row is not None:
            tail.add_row(row, code, self._wall())
        elif run is not None:
            tail.add_columns(run, code, self._wall())
        else:
            assert columns is not None
            tail.add_run(columns, code, self._wall())
        self.next += items
        self.unpaid_items += items
        self.unpaid_bytes += nbytes
        if disk is None:
            self.visible = self.next
        else:
            confirm = self.ledger.confirming
            if confirm is not None:
                confirm.expect()
                tail.confirms.append(confirm)
                if type(item) is Publication and item.qos == EXACTLY_ONCE:
                    self._urgent = True
        try:
            if disk is not None and not disk.dirty:
                disk.wake()
            if tail.nbytes >= CHUNK_BYTES:
                self.seal_tail()
            self._shed()
        except Exception as exc:  # noqa: BLE001 (whatever it is: it has been taken)
            self.ledger.faults.note(self, "taking what was published", exc)

    def _pass_over(self, items: int) -> None:
        first = self.low == self._shut
        self.low = self.next = self.visible = self._buffer.tail.first = self.next + items
        self._lost += items
        if first and self._disk is not None:
            # Without it, a reader that had read up to here would not notice after a restart.
            self._disk.log.done(self.low, self.low - 1, self.low)

    def ready(self) -> None:
        """See `Holder.ready`: readers ask, so there is nothing to do for them.

        It writes exactly-once messages now. Their packet identifiers may be stored after the
        commit; on disk an identifier without its message would be wrong: the publisher would send
        the message once more, and it would count as a duplicate.
        """
        if self._urgent:
            self._urgent = False
            self.write()

    def loans(self) -> Iterator[LoanedItem[Any]]:
        if self._rest.loan is not None:
            yield self._rest.loan
        yield from self._buffer.loans()

    def relieve(self, why: str, fields: Mapping[str, object] | None = None) -> None:
        """See `Holder.relieve`: it is behind until its reader has caught up."""
        if self.closed:
            return
        if self._lagging is None:
            self._lagging = LaggingSpell(self, why, fields)
            self.lagging = True
            self.ledger.lagging.add(self)
        if self._disk is not None:
            self.write()  # `write` makes room.
            return
        self.seal_tail()
        self._shed()
        for loan in self._buffer.loans():
            self._lagging.take_over(loan)

    def give_up(self, why: str) -> None:
        """See `Holder.give_up`: it is behind, and its readers are disconnected."""
        self.relieve(why)
        self.on_given_up(self, why)

    def _caught_up(self, why: str = "has caught up") -> None:
        spell, self._lagging = self._lagging, None
        self.lagging = False
        self.ledger.lagging.discard(self)
        if spell is not None:
            if self._disk is None:
                self.seal_tail()  # New messages are their publishers' debt again.
            spell.end(why)

    def _drop_oldest(self, spell: LaggingSpell, count: int) -> None:
        before = self.owed()[1]
        self._release(self.low + count, Outcome.DROPPED)
        spell.dropped(count, before - self.owed()[1])

    # -- chunks ---------------------------------------------------------------------------------

    def seal_tail(self) -> None:
        """Seal the growing chunk, if it has messages. For `WriteBehind`."""
        if len(self._buffer.tail):
            chunk = self._buffer.seal(self.next)
            if self._disk is not None:
                self._disk.unwritten.append(chunk)

    def _shed(self) -> None:
        """Write the oldest off if there are too many."""
        spell = self._lagging
        if spell is not None and self._disk is None:
            while count := spell.excess(self.unpaid_items, self.unpaid_bytes):
                self._drop_oldest(spell, count)
        most_items, most_bytes = self.limits.max_items, self.limits.max_bytes
        while (most_items is not None and self.unpaid_items > most_items) or (
            most_bytes is not None and self.unpaid_bytes > most_bytes
        ):
            if not self._buffer.chunks:
                self.seal_tail()
            self._release(self._buffer.chunks[0].end, Outcome.WRITTEN_OFF)

    def _release(self, upto: int, outcome: Outcome) -> None:
        """End the loans of everything below `upto`, and forget it."""
        if upto > self._buffer.tail.first:
            self.seal_tail()
        before = self.low
        count = upto - before
        if count <= 0:
            return
        chunks = self._buffer.chunks
        while chunks and chunks[0].first < upto:
            chunk = chunks[0]
            if chunk.end > upto:
                self._end_part(chunk, max(chunk.first, before), upto, outcome)
                break
            chunks.popleft()
            self._end_all(chunk, outcome)
        self.low = upto
        if self.visible < upto:
            self.visible = upto
        if outcome is Outcome.ACKED:
            self._acked += count
        else:
            self._lost += count
        disk = self._disk
        if disk is not None:
            disk.log.done(before, upto - 1, upto)
            if not disk.dirty and (disk.unwritten or len(self._buffer.tail)):
                disk.wake()

    def _end_all(self, chunk: Chunk, outcome: Outcome) -> None:
        if self._disk is not None:
            self._disk.forget(chunk, outcome)
        if not chunk.at_rest:
            self._settle_all(chunk, outcome)
            chunk.confirm()

    def _settle_all(self, chunk: Chunk, outcome: Outcome) -> None:
        loans, chunk.loans = chunk.loans, []
        for loan in loans:
            if loan.items:
                self._settle(loan, loan.items, outcome)

    def _end_part(self, chunk: Chunk, start: int, upto: int, outcome: Outcome) -> None:
        count = upto - start
        if chunk.at_rest:
            assert self._disk is not None
            self._disk.settle(chunk, count, outcome)
            return
        if len(chunk.loans) == 1:
            self._settle(chunk.loans[0], count, outcome)
            return
        assert chunk.block is not None
        codes = OpenBlock(chunk.block).codes[start - chunk.first : upto - chunk.first]
        for code, items in Counter(codes).items():
            self._settle(chunk.loans[code], items, outcome)

    def _settle(self, loan: LoanedItem[Any], items: int, outcome: Outcome) -> None:
        """Repay a part of a loan in RAM; its bytes in proportion, and the rest with the last."""
        before = loan.bytes
        loan.settle(items, outcome)
        self.unpaid_items -= items
        self.unpaid_bytes -= before - loan.bytes

    # -- the disk -------------------------------------------------------------------------------

    def write(self) -> None:
        """Hand unwritten messages to the log, as far as there is room on disk.

        For the log's owner, some time after `SubscriptionLog.dirty`: messages that came in between
        are written together.
        """
        if self._disk is not None and not self.closed:
            self._disk.write()

    def waits_for_room(self, now: float) -> bool:
        """Whether messages have waited for room on disk for longer than its patience.

        A publisher with acknowledgements waits for these, and not for funds.
        """
        since = None if self._disk is None else self._disk.no_room_since
        return since is not None and self._lagging is None and now - since > self.patience

    def make_room(self, nbytes: int) -> bool:
        """Drop the oldest at rest, if it is behind; return whether it is. For `WriteBehind`."""
        spell = self._lagging
        if spell is None:
            return False
        self._drop_oldest(spell, spell.room(self._rest, nbytes))
        return True

    def durable(self, ticket: int) -> None:
        """Everything up to this ticket of the log's is on disk: it is at rest from now on."""
        disk = self._disk
        while disk is not None and (chunk := disk.next_durable(ticket)) is not None:
            self._settle_all(chunk, Outcome.STORED)
            self.visible = chunk.end
            chunk.confirm()
            if not disk.keeps_in_ram(chunk):
                self._buffer.join_on_disk(chunk)

    def recover(self, low: int, following: int, nbytes: int) -> None:
        """Restore the messages from `low` to before `following`, found on disk.

        Only before anything else has come.
        """
        assert self.next == 1
        self.low = low
        self.next = self.visible = self._buffer.tail.first = max(low, following)
        self.recovered = self.next - low
        if self.recovered:
            assert self._disk is not None
            self._disk.lay_to_rest(self._buffer.recover(low, self.next, nbytes))

    def persist(self) -> None:
        """Write its state for a restart to the log, if it has one."""
        if self._disk is not None:
            self._disk.log.persist(state_of(self))

    # -- its readers ----------------------------------------------------------------------------

    @property
    def attached(self) -> bool:
        """Whether a reader is attached."""
        return self._owners > 0

    def attach(self) -> int:
        """Attach a reader, fencing off the present one; return the new generation."""
        self.generation += 1
        self._owners = 1
        self._somebody_came()
        self.persist()
        return self.generation

    def resume(self, generation: int, incarnation: bytes) -> None:
        """Let an attached reader go on, over another connection.

        Raises:
            FencedError: Another has attached since.
            OtherIncarnationError: It was attached to an earlier incarnation.
        """
        self.check(generation, incarnation)
        self._owners += 1
        self._somebody_came()

    def _somebody_came(self) -> None:
        self.away_since = None
        if self._shut is not None:
            self._shut = None
            if self._disk is not None:
                self._disk.log.done(self.low, self.low - 1, self.low)

    def detach(self, generation: int) -> None:
        """Note that a connection that attached or resumed with a generation has ended."""
        if generation == self.generation and self._owners:
            self._owners -= 1
            if not self._owners:
                self.away_since = self.ledger.clock()

    def check(self, generation: int, incarnation: bytes | None = None) -> None:
        """Check that the reader with this generation is the present one.

        Raises:
            FencedError: Another has attached since.
            OtherIncarnationError: It belongs to an earlier incarnation of the subscription.
        """
        if incarnation is not None and incarnation != self.incarnation:
            msg = (
                f"subscription {self.subscription} was made anew since: these numbers now stand "
                "for other messages; the unacknowledged ones are lost"
            )
            raise OtherIncarnationError(msg)
        if generation != self.generation:
            self._fenced += 1
            if generation > self.generation:
                msg = (
                    f"subscription {self.subscription} has had {self.generation} attachments; "
                    f"there is no generation {generation}"
                )
                raise OutOfRangeError(msg)
            msg = (
                f"another reader has attached to subscription {self.subscription}: generation "
                f"{generation} has ended, {self.generation} has it now"
            )
            raise FencedError(msg)
        if self.away_since is not None:
            self.away_since = self.ledger.clock()  # A reader is still there, and asks.

    def start(self, where: Start) -> int:
        """Return where a first reader begins; always the same for one word.

        The first request decides it. It moves beyond acknowledged messages.
        """
        if self.pin is None or self.pin[0] is not where:
            self.pin = (where, self.low if where is Start.EARLIEST else self.visible)
            self.persist()
        return max(self.pin[1], self.low)

    def head(self) -> Head:
        """Return the range that can be fetched."""
        return Head(self.low, self.visible)

    @property
    def rest_bytes(self) -> int:
        """Bytes at rest."""
        return self._rest.bytes

    def owed(self) -> tuple[int, int]:
        """Return the number of unacknowledged messages (consumer lag), and their bytes."""
        rest = self._rest
        return self.unpaid_items + rest.items, self.unpaid_bytes + rest.bytes

    def ack(self, upto: int) -> Head:
        """Repay everything below `upto`; already acknowledged messages are skipped.

        Raises:
            OutOfRangeError: It is beyond the last message that can be fetched.
        """
        if upto > self.visible:
            msg = (
                f"{upto} cannot be acknowledged: subscription {self.subscription} has messages up "
                f"to {self.visible - 1}"
            )
            raise OutOfRangeError(msg)
        self._release(upto, Outcome.ACKED)
        if self._lagging is not None and self._lagging.is_over():
            self._caught_up()
        return self.head()

    def fetch(self, start: int, end: int, max_bytes: int = 1 << 20) -> list[bytes] | AtRest:
        """Return blocks with the messages from `start` on, to before `end` at most.

        As many as exist and `max_bytes` allows, but at least one block, if there is any. The same
        range may be fetched again. Messages that are only on disk have to be read there.

        Raises:
            DataLossError: `start` is gone.
            OutOfRangeError: It is beyond the last message, or `end` is before it.
        """
        self.check_range(start, end)
        end = min(end, self.visible)
        return self._buffer.fetch(start, end, max_bytes) if start < end else []

    def reach(self, start: int, max_bytes: int) -> int:
        """Return the number before which the messages from `start` on have at most `max_bytes`.

        At least one message, if there is any. A message counts with its key, its value and
        `ROW_BYTES`. Those that are only on disk count with their chunk's average.

        Raises:
            DataLossError: `start` is gone.
            OutOfRangeError: It is beyond the last message.
        """
        self.check_range(start, start)
        if start >= self.visible:
            return self.visible
        found = self._buffer.reach(start, max_bytes)
        return min(max(found, start + 1), self.visible)

    def check_range(self, start: int, end: int) -> None:
        """Check that a range can be requested; it raises as `fetch`."""
        if end < start:
            msg = f"a range ends where it starts or later, not at {end} before {start}"
            raise OutOfRangeError(msg)
        if start < self.low:
            msg = (
                f"messages {start} to {self.low - 1} of subscription {self.subscription} are not "
                "there any more: they were acknowledged, or given up"
            )
            raise DataLossError(msg)
        if start > self.visible:
            msg = (
                f"there is no message {start} yet in subscription {self.subscription}: the next is "
                f"{self.visible}"
            )
            raise OutOfRangeError(msg)

    # -- its end --------------------------------------------------------------------------------

    def grace_is_over(self, now: float) -> bool:
        """Whether its reader has been away for too long, and `after_grace` is not applied yet."""
        return (
            self.away_since is not None
            and self._shut is None
            and now - self.away_since > self.options.grace
        )

    def shut(self) -> None:
        """Write off its messages; drop new ones until a reader attaches."""
        self._release(self.next, Outcome.WRITTEN_OFF)
        self._caught_up("is left alone")
        self._shut = self.low

    def forget(self) -> None:
        """End it with all it has: its messages are dropped, and its log."""
        self._release(self.next, Outcome.DROPPED)
        if self._disk is not None:
            self._disk.log.drop()
        self.close()

    def close(self) -> None:
        """Close it; data on disk stays, loans in RAM only are cancelled. Idempotent.

        Write everything unwritten before.
        """
        if self.closed:
            return
        self.closed = True
        self._caught_up("has ended")
        self.on_given_up = nobody
        for loan in list(self.loans()):
            # At rest, no account of this process owes for it any more.
            loan.settle(outcome=Outcome.STORED if loan is self._rest.loan else Outcome.CANCELLED)
        self._rest.loan = None
        self._buffer.clear(self.next)
        if self._disk is not None:
            self._disk.clear()
        self.unpaid_items = self.unpaid_bytes = 0
        self.ledger.unregister(self)
        self.account.close()

    def statistics(self) -> SubscriptionStatistics:
        """Return its statistics."""
        away = 0.0 if self.away_since is None else self.ledger.clock() - self.away_since
        return SubscriptionStatistics(
            name=self.subscription,
            filters=self.filters,
            durable=self._disk is not None,
            generation=self.generation,
            attached=self.attached,
            away_seconds=away,
            low=self.low,
            next=self.visible,
            unpaid_items=self.unpaid_items,
            unpaid_bytes=self.unpaid_bytes,
            rest_items=self._rest.items,
            rest_bytes=self._rest.bytes,
            recovered=self.recovered,
            acked=self._acked,
            lost=self._lost,
            fenced=self._fenced,
        )


EXACTLY_ONCE = 2

_RUNS = frozenset({Batch, ColumnRun})
"""Items that stand for several messages."""
"""MQTT's QoS 2."""
