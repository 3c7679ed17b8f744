"""The messages of a queue, wherever they are, and their debt.

Rules of this file:
1. A message is on its publisher's account until it has ended (acked, dropped, dead-lettered, ...)
   or is at rest: durable on disk, and owed for by the queue's own account, whose limit is the disk
   budget (`_writer.py`, `LoanAtRest`).
2. It is in exactly one place: arrived (not yet seen by `work`), ready (the backing knows where),
   unacked (in a consumer's hands), returned (by a consumer that is just being served), dying or
   being buried (on its way to be a dead letter).
3. Order is by number. A message that comes back takes its old place.
4. Its end is counted by kind, and its confirm answered once: when it is at rest, or when it ends.
"""

from __future__ import annotations

import abc
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

from ...accounts import (
    Account,
    Holder,
    Ledger,
    LoanAtRest,
    LoanedItem,
    Outcome,
    StuckPolicy,
    Symptoms,
    settle_whole,
)
from ...accounts._loan import JOIN_BYTES
from ._backing import Backing, BackingFactory
from ._channel import Delivery
from ._dead_letters import Burial, DeadLetter, DeadLetterRoute, with_death
from ._lines import Line, appended
from ._message import DeathReason, Message
from ._rates import Rates
from ._settings import Overflow, QueueSettings
from ._shelf import Marks, Shelf
from ._statistics import Counters
from ._writer import Writer

logger = logging.getLogger("clearfunds.dataspace")

_OUTCOMES = {
    DeathReason.REJECTED: Outcome.REJECTED,
    DeathReason.EXPIRED: Outcome.EXPIRED,
    DeathReason.MAX_LENGTH: Outcome.DROPPED,
    DeathReason.DELIVERY_LIMIT: Outcome.REJECTED,
}


class QueueContents(Holder):
    """The messages of a queue; see `Queue` for the arguments."""

    __slots__ = (
        "_arrived", "_attached", "_burying", "_dead_letter", "_delivered_upto", "_doomed",
        "_durable", "_dying", "_has_ttl", "_mark_ticket", "_next_seq", "_persists", "_ready_bytes",
        "_refuses", "_rest", "_returned", "_suspect_below", "_unacked", "_unacked_bytes", "_wall",
        "_wall_offset", "_writer", "account", "backing", "consumer_symptoms", "counters",
        "deleted", "rates", "settings", "shelf",
    )  # fmt: skip

    kind = "queue"
    takes_responsibility = True

    makes_room = True

    writer: ClassVar[type[Writer]] = Writer
    """The class that writes its messages to the shelf."""

    def __init__(
        self,
        ledger: Ledger,
        name: str,
        *,
        account: Account,
        settings: QueueSettings,
        shelf: Shelf | None,
        backing: BackingFactory,
        dead_letter: DeadLetterRoute | None,
        wall: Callable[[], float],
        patience: float,
        policy: StuckPolicy | None,
    ) -> None:
        refuses = settings.overflow is not Overflow.DROP_HEAD
        if policy is None:
            keeps = refuses and shelf is None
            policy = StuckPolicy.WAIT if keeps else StuckPolicy.DISCONNECT
        super().__init__(ledger, name, patience=patience, policy=policy)
        now = self.progressed_at
        self.account = account
        self.settings: QueueSettings = settings
        self.shelf = shelf
        self.rates = Rates(now)
        self.counters = Counters()
        self.deleted = False
        # Of the consumer that is served alone, if it can tell why it is slow.
        self.consumer_symptoms: Callable[[], Symptoms | None] | None = None
        self._rest = LoanAtRest(account, self)
        self._writer = self.writer(account, shelf, self.rates, self._lost)
        self.backing: Backing = backing(self._writer)
        self._persists = settings.durable and shelf is not None
        self._refuses: bool = refuses
        self._has_ttl: bool = settings.message_ttl is not None
        self._dead_letter = dead_letter
        self._wall = wall
        # Ages that outlive the process are on the wall clock, which costs a call; so only `tick`
        # reads it.
        self._wall_offset = wall() - now
        # Messages, wherever they are.
        self._next_seq = 1
        self._arrived: Line[Message] = ()
        self._ready_bytes: int = 0
        self._unacked: dict[int, Delivery] = {}
        self._unacked_bytes: int = 0
        self._dying: Line[tuple[Message, DeathReason]] = ()
        self._burying: dict[int, Message] = {}
        self._returned: list[Message] = []
        # The number of ready messages that will die as soon as they are read.
        self._doomed: int = 0
        # The messages that may have been delivered, for after a restart.
        self._attached = False
        self._delivered_upto = 0
        self._mark_ticket = 0
        self._durable = 0
        self._suspect_below = 0

    def __len__(self) -> int:
        """Return the number of ready messages."""
        return self.backing.ready + len(self._arrived) + len(self._returned)

    def __bool__(self) -> bool:
        """Return true: an empty queue is a queue, too."""
        return True

    @abc.abstractmethod
    def work(self) -> None:
        """Do all the work there is, unless it is being done. Called after every change."""

    # -- room, time and places ---------------------------------------------------------------------

    def _wall_now(self) -> float:
        return self.ledger.clock() + self._wall_offset

    def _is_late(self, message: Message) -> bool:
        return message.expires is not None and message.expires <= self._wall_now()

    def _has_left(self, message: Message) -> None:
        self.rates.left += 1
        self._ready_bytes = max(0, self._ready_bytes - message.size) if self.backing.ready else 0

    def _put_back(self, messages: list[Message]) -> None:
        for message in messages:
            self._ready_bytes += message.size
        self.backing.requeue(messages)

    def _keep_to_limits(self) -> None:
        settings = self.settings
        length, nbytes = settings.max_length, settings.max_bytes
        if length is None and nbytes is None:
            return
        backing = self.backing
        while (length is not None and backing.ready > length) or (
            nbytes is not None and self._ready_bytes > nbytes
        ):
            message = self._fetch()
            if message is None:
                return  # again when it has been read
            self.counters.dropped += 1
            self._die(message, DeathReason.MAX_LENGTH)

    def _expire(self) -> None:
        """Drop expired or doomed messages from the head on, up to the first that is neither."""
        backing = self.backing
        while backing.ready:
            message = backing.peek()
            if message is None or (message.doomed is None and not self._is_late(message)):
                return
            message = backing.fetch()
            if message is None:
                return
            self._has_left(message)
            if message.doomed is not None:
                self._execute(message, message.doomed)
            else:
                self._expired(message)

    def _fetch(self) -> Message | None:
        """Take the first message that is not doomed, if it is in RAM."""
        while (message := self.backing.fetch()) is not None:
            self._has_left(message)
            if message.doomed is None:
                return message
            self._execute(message, message.doomed)
        return None

    def _execute(self, message: Message, reason: DeathReason) -> None:
        """Let a doomed message die, now that its event is here."""
        message.doomed = None
        self._doomed -= 1
        self._die(message, reason)

    def _expired(self, message: Message) -> None:
        self.counters.expired += 1
        self._die(message, DeathReason.EXPIRED)

    # -- the ends of messages ----------------------------------------------------------------------

    def _finish(self, message: Message, outcome: Outcome) -> None:
        """End a message that no consumer has: repay, erase, confirm."""
        loan = message.loan
        if loan is None:
            self._rest.settle(1, message.size, outcome)
        elif loan.items:
            loan.settle(outcome=outcome)
        self._close(message)

    def _close(self, message: Message, *, erased: bool = False) -> None:
        """Erase a message whose loan has ended, unless it is erased, and confirm it."""
        message.finished = True
        message.pending = False
        message.loan = None
        if message.ticket is not None:
            message.event = None
            if not erased:
                assert self.shelf is not None
                self.shelf.done(range(message.seq, message.seq + 1))
        elif message.persistent:
            # It may stand among messages that wait for room on the disk.
            message.event = None
            if self._writer.short:
                self._writer.finished_unwritten()
        confirm = message.confirm
        if confirm is not None:
            message.confirm = None
            confirm.taken()
        if self._writer.short:
            self._relieve()

    def _relieve(self) -> None:
        if self._writer.write_waiting():
            self.backing.relieve()

    def _die(self, message: Message, reason: DeathReason) -> None:
        if self._dead_letter is None:
            self._finish(message, _OUTCOMES[reason])
        else:
            if message.loan is None:
                now = self.ledger.clock()
                message.loan = self._rest.take([message.event], 1, message.size, now)
            self._dying = appended(self._dying, (message, reason))

    def _bury(self) -> None:
        """Publish dead letters, in turns that their accounts pay for."""
        while self._dying:
            message, reason = self._dying[0]
            now = self._wall_now()
            message.deaths = with_death(message.deaths, self.name, reason, now)
            self._dying.popleft()
            self._burying[message.seq] = message
            self._publish_dead(message, reason)

    def _publish_dead(self, message: Message, reason: DeathReason) -> None:
        route, loan = self._dead_letter, message.loan
        assert route is not None
        assert loan is not None
        letter = DeadLetter(message.event, self.name, reason, message.deaths, message.size)
        turn = loan.turn()
        # A message that is safe here is erased when it is safe there.
        turn.confirm = burial = Burial(
            message.deaths, partial(self._buried, message, reason), waits=message.persistent
        )
        try:
            with turn:
                route(turn, letter)
        except Exception:
            logger.exception("a dead letter of queue %s could not be published", self.name)
            self.counters.dead_letters_failed += 1
        else:
            self.counters.dead_lettered += 1
        burial.handed_over()

    def _buried(self, message: Message, reason: DeathReason, refused: str | None) -> None:
        self.counters.dead_letters_failed += refused is not None
        # It may have gone with the queue meanwhile.
        if self._burying.pop(message.seq, None) is not None:
            self._finish(message, _OUTCOMES[reason])

    # -- the shelf ---------------------------------------------------------------------------------

    def durable(self, ticket: int) -> None:
        """Note that all writes up to `ticket` are durable. For the shelf's owner.

        Their publishers are repaid as `stored`, once this queue's account has borrowed for them.
        """
        if self.deleted:
            return
        self._durable = max(self._durable, ticket)
        messages = self._writer.durable(ticket)
        self._come_to_rest(messages)
        for message in messages:
            # A confirm of an earlier one may have led somebody to end the queue, and this one.
            confirm = message.confirm
            if confirm is not None:
                message.confirm = None
                confirm.taken()
        self.backing.durable(ticket)
        self.work()

    def _come_to_rest(self, messages: Sequence[Message]) -> None:
        """Charge messages to this queue's account: they are durable."""
        self.counters.stored += len(messages)
        resting: list[LoanedItem[Any]] = []
        nbytes = 0
        for message in messages:
            message.at_rest = True
            loan = message.loan
            assert loan is not None
            if message.pending or message.seq in self._burying:
                # A consumer has this very loan in hand: it changes accounts in place.
                if loan.items:
                    self.progressed_at = self.ledger.clock()
                    loan.transfer(self.account)
                continue
            message.loan = None
            resting.append(loan)
            nbytes += loan.bytes
            # Both owe for them until they are repaid, which is within the peaks of accounts above.
            if nbytes >= JOIN_BYTES:
                self._rest_of(resting, nbytes)
                resting, nbytes = [], 0
        if resting:
            self._rest_of(resting, nbytes)

    def _rest_of(self, loans: Sequence[LoanedItem[Any]], nbytes: int) -> None:
        self._rest.add(len(loans), nbytes)
        settle_whole(loans, Outcome.STORED)

    def paged_in(self, messages: Sequence[Message]) -> None:
        """Take the answer to `Shelf.want`. For the shelf's owner."""
        if self.deleted:
            return
        suspect_below = self._suspect_below
        for message in messages:
            if message.seq < suspect_below:
                message.redelivered = True
            if message.expires is not None:
                self._has_ttl = True
        self.backing.paged_in(messages)
        self.work()

    def recovered(
        self, first_seq: int, next_seq: int, count: int, nbytes: int, marks: Marks
    ) -> None:
        """Take over the messages on the shelf from before a restart. Before anything else; once.

        They are charged to the queue's account. Nothing is read until it is wanted.
        """
        assert self._next_seq == 1
        assert self.shelf is not None
        self._next_seq = max(next_seq, marks.delivered_upto, 1)
        self._suspect_below = self._next_seq if marks.attached else marks.delivered_upto
        self._delivered_upto = self._suspect_below
        if marks.attached:
            # No consumer has had any of the messages that come from now on.
            self.shelf.mark(False, self._delivered_upto)
        self.counters.recovered = count
        if count:
            self._rest.add(count, nbytes)
            self._ready_bytes += nbytes
            self.backing.recovered(first_seq, next_seq, count)

    def shelf_trouble(self, trouble: str | None) -> None:
        """Note trouble with the disk; None: it works again. For the shelf's owner.

        Meanwhile nothing is written: new messages stay in RAM, unconfirmed, and their publishers
        pay; a queue that refuses rather than drops refuses persistent ones.
        """
        if self.deleted:
            return
        self._writer.trouble = trouble
        if trouble is not None:
            self._writer.short = True
        else:
            self._relieve()
        self.work()

    def _lost(self, count: int) -> None:
        self.counters.lost += count
        logger.error("queue %s: %d messages are not to be found on disk", self.name, count)
        gone = self._rest.settle_some(count, Outcome.LEAKED)
        self._ready_bytes = max(0, self._ready_bytes - gone) if self.backing.ready else 0

    def _attach(self) -> None:
        if not self._attached and self._persists:
            assert self.shelf is not None
            self._attached = True
            self._mark_ticket = self.shelf.mark(True, self._delivered_upto)

    def _detach(self) -> None:
        if self._attached:
            assert self.shelf is not None
            self._attached = False
            self.shelf.mark(False, self._delivered_upto)

    def _mark_is_awaited(self) -> bool:
        """Whether the next message has to wait until the record of its delivery is durable.

        Else a crash could forget that a consumer may have had it. It concerns messages written
        before a consumer came; later ones are durable later than the record.
        """
        if self._durable >= self._mark_ticket or self._writer.trouble is not None:
            # With the disk in trouble there will be no record; consumers are served all the same.
            return False
        message = self.backing.peek()
        return message is None or (
            message.ticket is not None and message.ticket < self._mark_ticket
        )

    # -- everything at once ------------------------------------------------------------------------

    def _erase(self, seqs: Sequence[int]) -> None:
        """Erase the ready messages in a stretch of the shelf, and none that are in use."""
        if not len(seqs):
            return
        assert self.shelf is not None
        used = {seq for seq in self._in_use() if seq in seqs}
        self.shelf.done([seq for seq in seqs if seq not in used] if used else seqs)

    def _in_use(self) -> set[int]:
        dying = (message.seq for message, _ in self._dying)
        return {*self._unacked, *self._burying, *dying}

    def _finish_ready(self, message: Message, *, erased: bool) -> None:
        """End a message that is purged; those at rest are settled by the one loan for all."""
        if message.loan is not None and message.loan.items:
            message.loan.settle(outcome=Outcome.DROPPED)
        self._close(message, erased=erased)

    def purge(self) -> int:
        """Drop all ready messages; return their number. Nothing is dead-lettered.

        A deleted queue drops nothing: messages left on its shelf stay there.
        """
        return 0 if self.deleted else self._purge()

    def _purge(self) -> int:
        arrived = list(self._arrived)
        if self._arrived:
            self._arrived.clear()
        returned, self._returned = self._returned, []
        self.backing.forget(returned)
        count = self.backing.ready + len(arrived) + len(returned)
        here, on_disk = self.backing.purge()
        self._erase(on_disk)
        known = {message.seq for message in here}
        # Those on the shelf only may still be on their publishers' accounts.
        known |= self._in_use()
        for message in self._writer.messages():
            if message.seq in on_disk and message.seq not in known:
                self._finish_ready(message, erased=True)
        for message in (*arrived, *returned, *here):
            self._finish_ready(message, erased=message.seq in on_disk)
        # All messages at rest were ready.
        self._rest.settle_some(self._rest.items, Outcome.DROPPED)
        self._ready_bytes = self._doomed = 0
        self.counters.purged += count
        if self._writer.short:
            self._relieve()
        self.work()
        return count

    def symptoms(self) -> Symptoms | None:
        return None if self.consumer_symptoms is None else self.consumer_symptoms()

    def loans(self) -> Iterator[LoanedItem[Any]]:
        """See `Holder.loans`: of all messages, wherever they are."""
        if self._rest.loan is not None:
            yield self._rest.loan
        seen: set[int] = set()
        for message in self._messages():
            loan = message.loan
            if loan is not None and loan.items and loan.holder is self and message.seq not in seen:
                seen.add(message.seq)
                yield loan

    def _messages(self) -> Iterator[Message]:
        yield from self._arrived
        yield from self.backing
        yield from self._returned
        for delivery in self._unacked.values():
            yield delivery.message
        for message, _ in self._dying:
            yield message
        yield from self._burying.values()
        yield from self._writer.messages()
