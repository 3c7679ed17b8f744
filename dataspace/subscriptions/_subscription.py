"""A subscription for a reader that fetches ranges, repeatedly if it likes, and then acknowledges.

Theory of operation. Every message gets a number, from 1 on, and is kept until it is acknowledged:
`low` is the first that is kept, `next` the first that has not come. The messages between them can
be fetched again and again, by several readers at once; delivery does not repay. `ack(upto)` moves
`low`. So the unpaid loans are the replay buffer, and a reader that does not acknowledge throttles
the publishers.

Messages are kept in chunks, column by column; in each chunk, each account has one loan. A chunk in
RAM is on its publishers' accounts. With a log (`SubscriptionLog`) chunks are written in order, and
when one is durable, it is at rest: the subscription's own account borrows, then the publishers'
loans end as `stored`. Everything at rest is one growing loan. Readers then see only messages at
rest: a number that they have seen must not stand for another message after a restart.

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
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import attrs

from ...accounts import Account, Holder, Ledger, LoanAtRest, LoanedItem, Outcome, StuckPolicy
from .._events import Batch, Publication
from ._block import cut_block, join_block, open_block
from ._chunk import CHUNK_BYTES, ROW_BYTES, Chunk, Tail
from ._errors import DataLossError, FencedError, OtherIncarnationError, OutOfRangeError
from ._lagging import Behind
from ._log import SubscriptionLog
from ._places import bytes_before, number_at, place_of
from ._settings import Start, SubscriptionLimits, SubscriptionOptions
from ._state import state_of, take_up


class Row(NamedTuple):
    """The parts of a message that are kept."""

    key: bytes
    """The topic of a publication."""
    value: bytes
    """Its payload."""


class Head(NamedTuple):
    """The messages that can be fetched: from `low` to before `next`."""

    low: int
    next: int


class AtRest(NamedTuple):
    """Messages that are only on disk: read them there, from `start` to before `end`."""

    start: int
    end: int


MakeRow: TypeAlias = Callable[[Any], Row]
"""Makes a row of an event; must not raise."""


def as_row(event: Any) -> Row:
    """Make a row of an event: a publication's topic and payload.

    For any other event: the name of its class and its `repr`; bytes and texts stay unchanged.
    """
    if isinstance(event, Publication):
        return Row(event.topic.encode(), event.payload)
    if isinstance(event, bytes):
        return Row(b"", event)
    if isinstance(event, str):
        return Row(b"", event.encode(errors="surrogatepass"))
    return Row(type(event).__name__.encode(), repr(event).encode(errors="backslashreplace"))


RunColumns: TypeAlias = Callable[[Batch], tuple[list[bytes], list[bytes]]]
"""Makes columns of a run: its keys, and its values; must not raise."""


def run_columns(run: Batch) -> tuple[list[bytes], list[bytes]]:
    """Return the topics and the payloads of a run of publications."""
    keys: list[bytes] = []
    values: list[bytes] = []
    topic, key = "", b""
    for publication in run.events():
        if publication.topic != topic:
            topic = publication.topic
            key = topic.encode()
        keys.append(key)
        values.append(publication.payload)
    return keys, values


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
        sealed_bytes: Bytes of the blocks of all chunks ever, without the tail.
        on_given_up: Called with it, and the reason, to disconnect its readers.
    """

    __slots__ = (
        "_acked", "_behind", "_cached_bytes", "_chunks", "_columns", "_dirty", "_fenced", "_log",
        "_lost", "_no_room_since", "_owners", "_rest", "_row", "_shut", "_tail", "_unwritten",
        "_urgent", "_wall", "_writing", "_writing_bytes", "_writing_items", "account",
        "away_since", "closed", "filters", "generation", "incarnation", "limits", "low", "next",
        "on_given_up", "options", "pin", "recovered", "sealed_bytes", "subscription",
        "unpaid_bytes", "unpaid_items", "visible",
    )  # fmt: skip

    kind = "subscription"
    policies = frozenset({StuckPolicy.WAIT, StuckPolicy.DISCONNECT, StuckPolicy.DROP_OLDEST})
    takes_responsibility = True

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
        self.low = 1
        self.next = 1
        # The first number that readers may not see yet; without a log, `next`.
        self.visible = 1
        self.generation = 0
        self.pin: tuple[Start, int] | None = None
        self.away_since: float | None = ledger.clock()
        self.closed = False
        self.unpaid_items = 0
        self.unpaid_bytes = 0
        self.recovered = 0
        self.sealed_bytes = 0
        self._log = log
        self._row = row
        self._columns = columns
        self._wall = wall
        self._tail = Tail(1)
        # All sealed ones, in order: first those at rest, then those being written, then those to
        # be written.
        self._chunks: deque[Chunk] = deque()
        self._writing: deque[Chunk] = deque()
        self._writing_items = 0
        self._writing_bytes = 0
        self._unwritten: deque[Chunk] = deque()
        self._rest = LoanAtRest(account, self)
        self._cached_bytes = 0
        self._dirty = False
        self._urgent = False
        self._owners = 0
        # The number from which it drops new messages: no reader came back within the grace, and
        # that is the policy.
        self._shut: int | None = None
        self._behind: Behind | None = None
        # The time since which a message has waited for room on disk.
        self._no_room_since: float | None = None
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
        if type(item) is not Batch and items != 1:
            # One row, even if it stands for several events.
            account.repay(items - 1, 0, Outcome.DELIVERED, self)
            items = 1
        # First: only this can fail, and then nothing has been taken.
        row = columns = None
        if type(item) is Batch:
            columns = self._columns(item)
        else:
            row = self._row(item)
        tail = self._tail
        code = None if account.tracing is not None else tail.code_of.get(account)
        owes = account
        if self._behind is not None and self._log is None:
            owes = self._behind.take(account, items, nbytes)
        if code is None:
            loan = LoanedItem(owes, None, items, nbytes, self, now, charged=True)
            code = tail.add_account(account, loan)
        else:
            loan = tail.loans[code]
            loan.items += items
            loan.bytes += nbytes
        if row is None:
            assert columns is not None
            self._add_run(tail, columns, code)
        else:
            key, value = row
            tail.times.append(self._wall())
            tail.codes.append(code)
            tail.key_lengths.append(len(key))
            tail.value_lengths.append(len(value))
            tail.keys += key
            tail.values += value
            tail.nbytes += len(key) + len(value) + ROW_BYTES
        self.next += items
        self.unpaid_items += items
        self.unpaid_bytes += nbytes
        if self._log is None:
            self.visible = self.next
        else:
            confirm = self.ledger.confirming
            if confirm is not None:
                confirm.expect()
                tail.confirms.append(confirm)
                if type(item) is Publication and item.qos == EXACTLY_ONCE:
                    self._urgent = True
        try:
            if self._log is not None:
                self._something_to_write()
            if tail.nbytes >= CHUNK_BYTES:
                self._seal()
            self._shed()
        except Exception as exc:  # noqa: BLE001 (whatever it is: it has been taken)
            self.ledger.faults.note(self, "taking what was published", exc)

    def _pass_over(self, items: int) -> None:
        first = self.low == self._shut
        self.low = self.next = self.visible = self._tail.first = self.next + items
        self._lost += items
        if first and self._log is not None:
            # Without it, a reader that had read up to here would not notice after a restart.
            self._log.done(self.low, self.low - 1, self.low)

    def _add_run(self, tail: Tail, columns: tuple[list[bytes], list[bytes]], code: int) -> None:
        keys, values = columns
        count = len(keys)
        tail.times.extend(array("q", (self._wall(),)) * count)
        tail.codes.extend(array("I", (code,)) * count)
        tail.key_lengths.extend(map(len, keys))
        tail.value_lengths.extend(map(len, values))
        before = len(tail.keys) + len(tail.values)
        tail.keys += b"".join(keys)
        tail.values += b"".join(values)
        tail.nbytes += len(tail.keys) + len(tail.values) - before + count * ROW_BYTES

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
        for chunk in self._chunks:
            for loan in chunk.loans:
                if loan.items:
                    yield loan
        yield from self._tail.loans

    def relieve(self, why: str, fields: Mapping[str, object] | None = None) -> None:
        """See `Holder.relieve`: it is behind until its reader has caught up."""
        if self.closed:
            return
        if self._behind is None:
            self._behind = Behind(self, why, fields)
            self.behind = True
            self.ledger.behind.add(self)
        if self._log is not None:
            self.write()  # `write` makes room.
            return
        if len(self._tail):
            self._seal()
        self._shed()
        for chunk in self._chunks:
            for loan in chunk.loans:
                self._behind.take_over(loan)

    def give_up(self, why: str) -> None:
        """See `Holder.give_up`: it is behind, and its readers are disconnected."""
        self.relieve(why)
        self.on_given_up(self, why)

    def _caught_up(self, why: str = "has caught up") -> None:
        spell, self._behind = self._behind, None
        self.behind = False
        self.ledger.behind.discard(self)
        if spell is not None:
            if self._log is None and len(self._tail):
                self._seal()  # New messages are their publishers' debt again.
            spell.end(why)

    def _drop_oldest(self, spell: Behind, count: int) -> None:
        before = self.owed()[1]
        self._release(self.low + count, Outcome.DROPPED)
        spell.dropped(count, before - self.owed()[1])

    # -- chunks ---------------------------------------------------------------------------------

    def _seal(self) -> None:
        tail = self._tail
        end = self.next
        block = join_block(tail, tail.first, end)
        chunk = Chunk(tail.first, end, block, self.sealed_bytes, len(block))
        self.sealed_bytes = chunk.upto
        chunk.loans = tail.loans
        chunk.confirms = tail.confirms
        self._chunks.append(chunk)
        if self._log is not None:
            self._unwritten.append(chunk)
        self._tail = Tail(end)

    def _shed(self) -> None:
        """Write the oldest off if there are too many."""
        spell = self._behind
        if spell is not None and self._log is None:
            while count := spell.excess(self.unpaid_items, self.unpaid_bytes):
                self._drop_oldest(spell, count)
        most_items, most_bytes = self.limits.max_items, self.limits.max_bytes
        while (most_items is not None and self.unpaid_items > most_items) or (
            most_bytes is not None and self.unpaid_bytes > most_bytes
        ):
            if not self._chunks:
                self._seal()
            self._release(self._chunks[0].end, Outcome.WRITTEN_OFF)

    def _release(self, upto: int, outcome: Outcome) -> None:
        """End the loans of everything below `upto`, and forget it."""
        if upto > self._tail.first:
            self._seal()
        before, now = self.low, upto
        count = now - before
        if count <= 0:
            return
        chunks = self._chunks
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
        if self._log is not None:
            self._log.done(before, upto - 1, upto)
            self._something_to_write()

    def _end_all(self, chunk: Chunk, outcome: Outcome) -> None:
        if chunk.at_rest:
            self._settle_rest(chunk, chunk.rest_items, outcome)
            if chunk.block is not None:
                self._cached_bytes -= len(chunk.block)
            return
        if self._writing and self._writing[0] is chunk:
            self._writing.popleft()
            self._no_longer_written(chunk)
        elif self._unwritten and self._unwritten[0] is chunk:
            self._unwritten.popleft()
        loans, chunk.loans = chunk.loans, []
        for loan in loans:
            if loan.items:
                self._settle(loan, loan.items, outcome)
        self._tell(chunk)

    def _end_part(self, chunk: Chunk, start: int, upto: int, outcome: Outcome) -> None:
        count = upto - start
        if chunk.at_rest:
            self._settle_rest(chunk, count, outcome)
            return
        if len(chunk.loans) == 1:
            self._settle(chunk.loans[0], count, outcome)
            return
        assert chunk.block is not None
        codes = open_block(chunk.block).codes[start - chunk.first : upto - chunk.first]
        for code, items in Counter(codes).items():
            self._settle(chunk.loans[code], items, outcome)

    def _settle(self, loan: LoanedItem[Any], items: int, outcome: Outcome) -> None:
        """Repay a part of a loan in RAM; its bytes in proportion, and the rest with the last."""
        before = loan.bytes
        loan.settle(items, outcome)
        self.unpaid_items -= items
        self.unpaid_bytes -= before - loan.bytes

    def _settle_rest(self, chunk: Chunk, items: int, outcome: Outcome) -> None:
        nbytes = chunk.rest_bytes
        if items < chunk.rest_items:
            nbytes = nbytes * items // chunk.rest_items
        chunk.rest_items -= items
        chunk.rest_bytes -= nbytes
        self._rest.settle(items, nbytes, outcome)

    @staticmethod
    def _tell(chunk: Chunk) -> None:
        confirms, chunk.confirms = chunk.confirms, []
        for confirm in confirms:
            confirm.taken()

    # -- the disk -------------------------------------------------------------------------------

    def _something_to_write(self) -> None:
        if not self._dirty and self._log is not None and (self._unwritten or len(self._tail)):
            self._dirty = True
            self._log.dirty()

    def write(self) -> None:
        """Hand unwritten messages to the log, as far as there is room on disk.

        For the log's owner, some time after `SubscriptionLog.dirty`: messages that came in between
        are written together.
        """
        log = self._log
        if log is None or self.closed:
            return
        self._dirty = False
        if len(self._tail) and not self._unwritten:
            self._seal()
        while self._unwritten:
            chunk = self._unwritten[0]
            block = chunk.block
            assert block is not None
            if not self._make_room(chunk.end - chunk.first, len(block)):
                if self._no_room_since is None:
                    self._no_room_since = self.ledger.clock()
                return  # Until acknowledgements make room.
            self._unwritten.popleft()
            chunk.ticket = log.put(chunk.end - 1, block, chunk.confirms)
            self._writing.append(chunk)
            self._writing_items += chunk.end - chunk.first
            self._writing_bytes += len(block)
            if not self._unwritten and len(self._tail):
                self._seal()
        self._no_room_since = None

    def waits_for_room(self, now: float) -> bool:
        """Whether messages have waited for room on disk for longer than its patience.

        A publisher with acknowledgements waits for these, and not for funds.
        """
        since = self._no_room_since
        return since is not None and self._behind is None and now - since > self.patience

    def _make_room(self, items: int, nbytes: int) -> bool:
        """Return whether there is room on disk; while it is behind, the oldest make some."""
        while not self._has_room(items, nbytes):
            rest, spell = self._rest, self._behind
            if rest.loan is None or spell is None:
                return False
            self._drop_oldest(spell, spell.room(rest, nbytes))
        return True

    def _has_room(self, items: int, nbytes: int) -> bool:
        if self._rest.loan is None and not self._writing:
            return True  # Otherwise one larger than the whole quota would wait for ever.
        room_items, room_bytes = self.account.room()
        return (
            room_items - self._writing_items >= items and room_bytes - self._writing_bytes >= nbytes
        )

    def _no_longer_written(self, chunk: Chunk) -> None:
        assert chunk.block is not None
        self._writing_items -= chunk.end - chunk.first
        self._writing_bytes -= len(chunk.block)

    def durable(self, ticket: int) -> None:
        """Everything up to this ticket of the log's is on disk: it is at rest from now on."""
        writing = self._writing
        while writing and (writing[0].ticket or 0) <= ticket:
            chunk = writing.popleft()
            self._no_longer_written(chunk)
            block = chunk.block
            assert block is not None
            self._lay_to_rest(chunk, chunk.end - chunk.first, len(block))
            loans, chunk.loans = chunk.loans, []
            for loan in loans:
                self._settle(loan, loan.items, Outcome.STORED)
            self.visible = chunk.end
            self._tell(chunk)
            if self._cached_bytes + len(block) > self.limits.cache_bytes:
                chunk.block = None
                self._join_what_is_on_disk(chunk)
            else:
                self._cached_bytes += len(block)

    def _join_what_is_on_disk(self, chunk: Chunk) -> None:
        """Join a chunk with the one before it, if both are only on disk.

        The bookkeeping in RAM for messages on disk has to be small, however small the records are.
        """
        place = place_of(self._chunks, chunk.first)
        if not place:
            return
        before = self._chunks[place - 1]
        if before.block is None and before.rest_bytes < JOINED_BYTES:
            before.end = chunk.end
            before.upto = chunk.upto
            before.rest_items += chunk.rest_items
            before.rest_bytes += chunk.rest_bytes
            del self._chunks[place]

    def _lay_to_rest(self, chunk: Chunk, items: int, nbytes: int) -> None:
        """Charge the subscription's own account for a chunk, before its publishers are repaid."""
        chunk.at_rest = True
        chunk.rest_items = items
        chunk.rest_bytes = nbytes
        self._rest.add(items, nbytes)

    def recover(self, low: int, following: int, nbytes: int) -> None:
        """Restore the messages from `low` to before `following`, found on disk.

        Only before anything else has come.
        """
        assert self.next == 1
        self.low = low
        self.next = self.visible = self._tail.first = max(low, following)
        self.recovered = self.next - low
        if self.recovered:
            chunk = Chunk(low, self.next, None, 0, nbytes)
            self.sealed_bytes = nbytes
            self._chunks.append(chunk)
            self._lay_to_rest(chunk, self.recovered, nbytes)

    # -- its state for a restart ----------------------------------------------------------------

    def state(self) -> bytes:
        """Return its state for a restart, without its messages and `low`."""
        return state_of(self)

    def keep(self) -> None:
        """Write its state to the log, if it has one."""
        if self._log is not None:
            self._log.keep(self.state())

    def restore(self, state: bytes) -> None:
        """Restore it from the result of `state`.

        Raises:
            ValueError: It is invalid.
        """
        take_up(self, state)

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
        self.keep()
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
            if self._log is not None:
                self._log.done(self.low, self.low - 1, self.low)

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
            self.keep()
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
        if self._behind is not None and self._behind.is_over():
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
        blocks: list[bytes] = []
        if start >= end:
            return blocks
        size = 0
        for place in range(place_of(self._chunks, start), len(self._chunks)):
            chunk = self._chunks[place]
            if chunk.first >= end:
                break
            block = chunk.block
            if block is None:
                if not blocks:
                    return AtRest(start, min(end, self._end_of_rest(place)))
                return blocks
            block = cut_block(block, start, end)
            if blocks and size + len(block) > max_bytes:
                return blocks
            blocks.append(block)
            size += len(block)
        tail = self._tail
        if end > tail.first and (not blocks or size + tail.nbytes <= max_bytes):
            blocks.append(join_block(tail, max(start, tail.first), end))
        return blocks

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
        chunks = self._chunks, self._tail, self.sealed_bytes
        place = place_of(self._chunks, start)
        most = max(0, max_bytes) + bytes_before(*chunks, place, start)
        low, high = place, len(self._chunks)
        while low < high:
            middle = (low + high) // 2
            if self._chunks[middle].upto <= most:
                low = middle + 1
            else:
                high = middle
        found = number_at(*chunks, low, most)
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

    def _end_of_rest(self, place: int) -> int:
        """Return the number after the last of the chunks from this one on that are only on disk.

        It looks at no more chunks than fit into one answer.
        """
        end = self._chunks[place].end
        for following in range(place + 1, min(place + MAX_BLOCKS, len(self._chunks))):
            chunk = self._chunks[following]
            if chunk.block is not None:
                break
            end = chunk.end
        return end

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
        log = self._log
        self._release(self.next, Outcome.DROPPED)
        if log is not None:
            log.drop()
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
        for chunk in self._chunks:
            chunk.loans.clear()
            chunk.confirms.clear()
        self._chunks.clear()
        self._writing.clear()
        self._unwritten.clear()
        self._tail = Tail(self.next)
        self.unpaid_items = self.unpaid_bytes = 0
        self.ledger.unregister(self)
        self.account.close()

    def statistics(self) -> SubscriptionStatistics:
        """Return its statistics."""
        away = 0.0 if self.away_since is None else self.ledger.clock() - self.away_since
        return SubscriptionStatistics(
            name=self.subscription,
            filters=self.filters,
            durable=self._log is not None,
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
"""MQTT's QoS 2."""

MAX_BLOCKS = 64
"""Chunks on disk in one answer, at most."""

JOINED_BYTES = 1 << 20
"""Chunks on disk are joined up to this size: 2.5 MB of RAM for 10 GiB. Within such a chunk, bytes
are repaid in proportion."""
