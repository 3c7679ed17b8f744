"""A mailbox: loans for one consumer in this process."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self

import trio

from ..accounts import (
    DEFAULT_PATIENCE,
    RETAIN_LIMIT,
    Account,
    Ledger,
    Limit,
    LoanedItem,
    LoanQueue,
    Outcome,
    Part,
    StuckPolicy,
)
from ..accounts._loop import Lot, TaskLot, checkpoint, running
from ._bag import identity
from ._errors import GivenUpError, MailboxClosedError
from ._events import Asserted, Batch, Retracted
from ._in_hand import InHand
from ._kinds import kind_of
from ._memory_spill import MemorySpill
from ._spilling import Spilling, check_spill

if TYPE_CHECKING:
    # Checkers bring it along; it is no dependency.
    from typing_extensions import TypeVar

    from .queues import Queue

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")

logger = logging.getLogger("clearfunds.dataspace")


def subject_of(event: Any) -> Hashable:
    """Return the subject that `event` is the latest of: its topic, if it has one, else its kind.

    The kind of an attrs class's instance is the class, that of a record its label. The subject of
    an `Asserted` or `Retracted` is the asserted value, not its kind.
    """
    if isinstance(event, (Asserted, Retracted)):
        return "assertion", identity(event.value)
    topic = getattr(event, "topic", None)
    return ("topic", topic) if isinstance(topic, str) else ("kind", kind_of(event))


class Mailbox(LoanQueue, Generic[T]):
    """A queue of loans for one consumer: each event is owed for until the consumer is done with it.

    ::

        async for loan in mailbox:
            with loan as events:  # one or more, all charged to one account
                for event in events:
                    ...

    The mailbox still holds a loan that has been taken and not settled. It has no bound of its own:
    backpressure on the accounts that fill it (rule 5) bounds it, and `patience`.

    A slow consumer that others wait for is handled by `policy` when its patience is over (rule 11;
    see `StuckPolicy`, and `clearfunds.accounts.watch_patience`, which has to run). A mailbox that
    is relieved is `lagging` until its consumer has taken all that was kept: at most
    `retain_limit`. An observer of assertions should not drop: `Asserted` and `Retracted` come in
    pairs.

    Closing it (or leaving its `with` block) drops the loans that nobody took.

    Args:
        ledger: The ledger of its loans.
        name: Its name in logs and reports.
        patience: Seconds without progress while others wait; 0: as soon as they do.
        policy: The policy for slow consumers, after that.
        retain_limit: How much it keeps while it is behind.
        key: For `StuckPolicy.CONFLATE`: returns the subject that an event is the latest of,
            something hashable. By default its topic, or its kind: see `subject_of`, which counts if
            this one fails.
        spill: For `StuckPolicy.SPILL`: the queue to spill to and to read back from, a durable queue
            with a shelf, for this mailbox alone. It should take everything for `persistent`;
            publishers owe for anything else until the queue pages it out. Messages that are there
            when the mailbox is closed stay there. None: it spills to memory, up to `retain_limit`;
            when that is used up, publishers wait again, and after 20 s it is disconnected.

    Attributes:
        dropped: Events missing between the loan that was received last and the one before it; 0
            unless the mailbox was behind.

    Raises:
        UnfitPolicyError: If an argument is missing that `policy` needs.
    """

    __slots__ = (
        "_gaps", "_given_up", "_key", "_lot", "_spill", "_spilling", "_taken", "_trailing_gap",
        "dropped",
    )  # fmt: skip

    kind = "mailbox"

    policies: ClassVar[frozenset[StuckPolicy]] = frozenset(StuckPolicy)

    def __init__(
        self,
        ledger: Ledger,
        name: str,
        *,
        patience: float = DEFAULT_PATIENCE,
        policy: StuckPolicy = StuckPolicy.DISCONNECT,
        retain_limit: Limit = RETAIN_LIMIT,
        key: Callable[[Any], Hashable] = subject_of,
        spill: Queue | None = None,
    ) -> None:
        self._spill = spill
        self._spilling: Spilling | MemorySpill | None = None
        super().__init__(ledger, name, patience=patience, policy=policy, retain_limit=retain_limit)
        self._key = key
        self._lot: TaskLot = Lot()
        self._taken = InHand()
        self._given_up: str | None = None
        # The number of events missing before each loan, and after the last one.
        self._gaps: dict[LoanedItem[Any], int] = {}
        self._trailing_gap = 0
        self.dropped = 0

    def __repr__(self) -> str:
        return f"<Mailbox {self.name}: {len(self.queue)} loans queued, {len(self.in_hand())} taken>"

    def ready(self) -> None:
        """See `Holder.ready`: wakes the consumer."""
        if self._spilling is not None:
            self._spilling.ready()
        if self.queue:
            self._lot.unpark()

    def check_policy(self, policy: StuckPolicy) -> None:
        super().check_policy(policy)
        if policy is StuckPolicy.SPILL and self._spill is not None:
            check_spill(self.name, self._spill)

    def loans(self) -> Iterator[LoanedItem[Any]]:
        """See `Holder.loans`: those that wait, and those taken and not settled."""
        yield from self.queue
        yield from self.in_hand()

    def waited_for(self) -> Iterator[LoanedItem[Any]]:
        """See `Holder.waited_for`: while it is behind, those that were not spilled."""
        if not self.lagging:
            return self.loans()
        spilling = self._spilling
        return iter(()) if spilling is None else spilling.waited_for()

    def in_hand(self) -> list[LoanedItem[Any]]:
        """Return the loans that have been taken and not settled."""
        # A loan that was put into another holder is held there now.
        return [loan for loan in self._taken if loan.holder is self]

    def put(self, loan: LoanedItem[list[Any]]) -> None:
        """See `LoanQueue.put`: a loan that was taken may be put back, or into another mailbox."""
        super().put(loan)
        self._taken.discard(loan)

    async def receive(self) -> LoanedItem[list[T]]:
        """Wait for the next loan and take it; its `item` is a list of events of one account.

        Several tasks may receive from one mailbox; each loan goes to one of them.

        Cancellation: always a checkpoint, before anything is taken, so no loan is ever lost.

        Raises:
            MailboxClosedError: When the mailbox is closed.
            GivenUpError: When it was closed because it made no progress (rule 11).
        """
        if self.queue or self.closed:
            await checkpoint()  # otherwise the wait is one
        while not self.queue:
            await self.arrival()
        return self.receive_nowait()

    def arrival(self) -> Awaitable[None]:
        """Return what waits for the next loan to come, where there is none; it may be gone again.

        Raises:
            MailboxClosedError: When the mailbox is closed; or `GivenUpError`, as `receive`.
        """
        if self.closed:
            self._raise_if_closed()
        if self.lagging:
            self._see_whether_caught_up()
        return self._lot.park()

    def bind(self) -> None:
        """Let only tasks of the loop that runs now receive from it: their waits cost less.

        Raises:
            NoLoopError: None does.
        """
        self._lot = running().lot()

    def receive_nowait(self) -> LoanedItem[list[T]]:
        """Take the next loan, if there is one.

        Raises:
            trio.WouldBlock: If there is none.
            MailboxClosedError: When the mailbox is closed.
        """
        if not self.queue:
            self._raise_if_closed()
            self._see_whether_caught_up()
            raise trio.WouldBlock
        loan = self.take()
        self._taken.add(loan)
        return loan

    def take(self) -> LoanedItem[list[T]]:
        """Take the next loan, for a subclass that knows itself which loans are in hand."""
        loan = self.queue.popleft()
        self.dropped = self._gaps.pop(loan, 0) if self._gaps else 0
        if self._trailing_gap and not self.lagging:
            # Nothing has come since.
            self.dropped, self._trailing_gap = self.dropped + self._trailing_gap, 0
        for entry in loan.item:
            if entry.__class__ is Batch:
                loan.item[:] = _explode(loan.item)
                break
        self.progressed_at = self.ledger.clock()
        if self.lagging:
            if self._spilling is not None:
                self._spilling.received(loan)
            self._see_whether_caught_up()
        if self.queue:
            # Another consumer may have been passed over while this one was being woken.
            self.ready()
        return loan

    # -- being behind ---------------------------------------------------------------------------

    def under_way(self) -> Iterator[LoanedItem[list[Any]]]:
        """See `LoanQueue.under_way`: the loans that have been taken."""
        yield from self.in_hand()

    def apart(self, entries: list[Any], items: int, nbytes: int) -> list[Part] | None:
        """See `LoanQueue.apart`: a batch counts as many parts as it has publications."""
        if any(isinstance(entry, Batch) for entry in entries):
            entries = list(_explode(entries))
        return super().apart(entries, items, nbytes)

    def key_of(self, entry: Any) -> Hashable:
        # Called in the middle of a commit, which cannot fail any more.
        try:
            key = self._key(entry)
            hash(key)
        except Exception:
            logger.exception("mailbox %s: its key function failed for an event", self.name)
            return subject_of(entry)
        return key

    def append(self, loan: LoanedItem[list[Any]]) -> None:
        super().append(loan)
        if self._trailing_gap and self.lagging:
            self._gaps[loan], self._trailing_gap = self._trailing_gap, 0

    def relieve(self, why: str, fields: Mapping[str, object] | None = None) -> None:
        # Events missing since the last time it was behind are missing before all that has come
        # since.
        gap = 0
        if not self.lagging:
            gap, self._trailing_gap = self._trailing_gap, 0
        super().relieve(why, fields)
        if gap:
            self.missed(gap, self.queue[0] if self.queue else None)
        if self._spilling is not None:
            self._spilling.ready()

    def spill(self, account: Account, entry: Any, items: int, nbytes: int, now: float) -> None:
        self._begin_to_spill().put(account, entry, items, nbytes, now)

    def spill_whole(self, loan: LoanedItem[list[Any]]) -> bool:
        spilling = self._begin_to_spill()
        if isinstance(spilling, Spilling):
            return False  # a queue has a message for each event
        spilling.take(loan)
        return True

    def spill_again(self) -> None:
        if self._spilling is not None:
            self._spilling.ready()

    def _begin_to_spill(self) -> Spilling | MemorySpill:
        if self._spilling is None:
            backlog = self.backlog
            assert backlog is not None
            self._spilling = (
                MemorySpill(self, backlog)
                if self._spill is None
                else Spilling(self, self._spill, backlog.account)
            )
        return self._spilling

    def _see_whether_caught_up(self) -> None:
        if self.lagging and not self.queue and (self._spilling is None or self._spilling.is_over):
            self.caught_up()

    def caught_up(self, why: str = "has caught up") -> None:
        spilling, self._spilling = self._spilling, None
        if spilling is not None:
            spilling.end()
        super().caught_up(why)

    def missed(
        self,
        items: int,
        before: LoanedItem[list[Any]] | None,
        gone: LoanedItem[list[Any]] | None = None,
    ) -> None:
        if gone is not None:
            items += self._gaps.pop(gone, 0)
        if before is None:
            self._trailing_gap += items
        else:
            self._gaps[before] = self._gaps.get(before, 0) + items

    def _raise_if_closed(self) -> None:
        if self._given_up is not None:
            raise GivenUpError(self._given_up)
        if self.closed:
            msg = f"mailbox {self.name} is closed"
            raise MailboxClosedError(msg)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> LoanedItem[list[T]]:
        try:
            return await self.receive()
        except GivenUpError:
            raise
        except MailboxClosedError:
            raise StopAsyncIteration from None

    def close(self) -> None:
        """Take nothing more: queued loans are repaid as `dropped`, consumers see the end.

        The consumers keep the loans that they have taken.
        """
        self._close(Outcome.DROPPED)

    def give_up(self, why: str) -> None:
        """See `Holder.give_up`: also writes off loans that were taken and are not settled."""
        self._given_up = f"mailbox {self.name} was closed: {why}"
        self._close(Outcome.WRITTEN_OFF)
        for loan in self.in_hand():
            loan.settle(outcome=Outcome.WRITTEN_OFF)

    def _close(self, outcome: Outcome) -> None:
        self.closed = True
        if self.lagging:
            self.caught_up("has ended")
        self.settle_all(outcome)
        self._gaps.clear()
        self._lot.unpark_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _explode(entries: list[Any]) -> Iterator[Any]:
    for entry in list(entries):
        if isinstance(entry, Batch):
            yield from entry.events()
        else:
            yield entry
