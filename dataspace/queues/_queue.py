"""A queue: a holder with a memory of its own, from which consumers are served in turn.

Rules of this file:
1. What is published is on its publisher's account until it is dealt with (acked, dropped, dead-
   lettered, ...) or at rest: durable on disk, and owed for by the queue's own account, whose limit
   is the disk budget (`_writer.py`, `_at_rest.py`).
2. A message is in exactly one place: arrived (of a commit that is not over), ready (the backing
   knows where), unacked (in a consumer's hands), or dying (on its way to be a dead letter).
3. Order is by number. Who comes back comes back to its place.
4. All that a queue does by itself it does in `work`, after a commit or an acknowledgement and
   never inside one: take in what has arrived, deliver, keep to the limits, publish dead letters.
   Callbacks of consumers may call the queue; what they cause is done when they have returned.
5. Nothing here awaits. Time passes by `tick`.

What happens when publishers wait on a queue that makes no progress (rule 11). First whoever has
deliveries and does not acknowledge them is cut off: its channel is closed, and what it had goes to
others. If nobody has any, a queue with a shelf pages out all it has, also what is transient: its
publishers are repaid as soon as that is durable. With the disk budget spent, or without a shelf but
made to refuse rather than to drop, it keeps what it has accepted and its publishers wait; the log
names it each time its patience runs out. Without a shelf, and made to drop its head, it drops what
is ready, as `written_off`, and counts it.

Source: AMQP 0-9-1 and RabbitMQ (rabbit_amqqueue_process.erl, rabbit_queue_consumers.erl).
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import attrs

from ...accounts import (
    DEFAULT_PATIENCE,
    Account,
    Holder,
    Ledger,
    LoanedItem,
    Outcome,
    StuckPolicy,
    Turn,
)
from .._dataspace import Dataspace
from .._events import Batch, Publication
from .._topics import TopicFilter
from ._at_rest import AtRest
from ._backing import Backing, BackingFactory
from ._binding import Binding
from ._channel import Channel, Delivery
from ._consumer import Consumer
from ._dead_letters import (
    Burial,
    DeadLetter,
    DeadLetterRoute,
    is_cycle,
    undertaker_of,
    with_death,
)
from ._errors import (
    QueueDeletedError,
    QueueInUseError,
    QueueLockedError,
    QueueNotEmptyError,
)
from ._message import DeathReason, Message
from ._prefetch import PrefetchWindow
from ._rates import Rates
from ._settings import Overflow, QueueSettings
from ._shelf import Marks, Shelf
from ._statistics import Counters, QueueStatistics
from ._steady import SteadyBacking
from ._stream import QueueStream
from ._writer import Writer

logger = logging.getLogger("clearfunds.dataspace")

HIGHEST_QOS = 2

MAX_ROUNDS = 100
"""How often in a row consumers may give back at once what they were given, before others go on."""

_NOTHING: Final = object()

_OUTCOMES = {
    DeathReason.REJECTED: Outcome.REJECTED,
    DeathReason.EXPIRED: Outcome.EXPIRED,
    DeathReason.MAX_LENGTH: Outcome.DROPPED,
    DeathReason.DELIVERY_LIMIT: Outcome.REJECTED,
}


def is_persistent(event: Any) -> bool:
    """Whether an event is to survive a restart, in a durable queue.

    A `Publication` is if it was published with QoS 1 or 2; any other event, unless it says
    otherwise by an attribute `persistent`.
    """
    if isinstance(event, Publication):
        return event.qos > 0
    return bool(getattr(event, "persistent", True))


class Queue(Holder):
    """Holds messages for consumers, who are served in turn.

    Args:
        ledger: The books.
        name: What people know it by.
        account: The queue's own. It pays for what is at rest, its limit is the disk budget, and for
            ending the bindings when the queue is deleted. It is the owner's to open and to close.
        settings: What it is like.
        shelf: What it sees of a disk; None: it is in RAM only.
        backing: Makes its policy of paging.
        dead_letter: Where dead letters go; see `dead_letter_to`. None: they are dropped.
        exclusive_to: Whose it is alone, if it is; see `check_access`.
        persistent: Which events are to survive a restart.
        ttl_of: How many seconds an event may wait, or None; the least of this and the setting
            counts. Not asked of dead letters, which have outlived it already.
        wall: The wall clock, for times that outlive the process.
        on_deleted: Called with the queue when it has been deleted, by whom or what ever.
        patience: See `Holder`.
        policy: See `Holder`, and above; by default a queue that refuses rather than drops is only
            named, if it has no shelf.

    Attributes:
        account: See above.
        settings: See above.
        shelf: See above.
        backing: Where its ready messages are.
        rates: How fast messages come and go.
        counters: What has happened to them.
        consumers: Who consumes.
        deleted: Whether it is no more.
    """

    __slots__ = (
        "_active", "_again", "_arrived", "_attached", "_bindings", "_burying", "_dead_letter",
        "_delivered_upto", "_due", "_durable", "_dying", "_exclusive_to", "_has_ttl", "_last_by",
        "_last_item", "_last_message", "_last_more", "_mark_ticket", "_next_seq", "_on_deleted",
        "_persistent", "_persists", "_ready_bytes", "_refuses", "_rest", "_returned",
        "_suspect_below", "_ttl_of", "_unacked", "_unacked_bytes", "_undertaker", "_unused_since",
        "_wall", "_wall_offset", "_working", "_writer", "account", "backing", "consumers",
        "counters", "deleted", "rates", "settings", "shelf",
    )  # fmt: skip

    kind = "queue"

    def __init__(
        self,
        ledger: Ledger,
        name: str,
        *,
        account: Account,
        settings: QueueSettings | None = None,
        shelf: Shelf | None = None,
        backing: BackingFactory = SteadyBacking,
        dead_letter: DeadLetterRoute | None = None,
        exclusive_to: object = None,
        persistent: Callable[[Any], bool] = is_persistent,
        ttl_of: Callable[[Any], float | None] | None = None,
        wall: Callable[[], float] = time.time,
        on_deleted: Callable[[Queue], object] | None = None,
        patience: float = DEFAULT_PATIENCE,
        policy: StuckPolicy | None = None,
    ) -> None:
        settings = QueueSettings() if settings is None else settings
        refuses = settings.overflow is not Overflow.DROP_HEAD
        if policy is None:
            keeps = refuses and shelf is None
            policy = StuckPolicy.WAIT if keeps else StuckPolicy.DISCONNECT
        super().__init__(ledger, name, patience=patience, policy=policy)
        now = self.progressed_at
        self.account = account
        self.settings = settings
        self.shelf = shelf
        self.rates = Rates(now)
        self.counters = Counters()
        self.consumers: dict[Consumer, None] = {}
        self.deleted = False
        self._rest = AtRest(account, self)
        self._writer = Writer(account, shelf, self.rates, self._lost)
        self.backing: Backing = backing(self._writer)
        self._persists = settings.durable and shelf is not None
        self._refuses = refuses
        self._persistent = persistent
        self._ttl_of = ttl_of
        self._has_ttl = settings.message_ttl is not None or ttl_of is not None
        self._dead_letter = dead_letter
        self._undertaker = undertaker_of(ledger)
        self._exclusive_to = exclusive_to
        self._on_deleted = on_deleted
        self._wall = wall
        self._wall_offset = wall() - now
        self._bindings: dict[Binding, None] = {}
        # Messages, wherever they are.
        self._next_seq = 1
        self._arrived: deque[Message] = deque()
        self._ready_bytes = 0
        self._unacked: dict[int, Delivery] = {}
        self._unacked_bytes = 0
        self._dying: deque[tuple[Message, DeathReason]] = deque()
        self._burying: dict[int, Message] = {}
        # What came back while consumers were being served: not to be given out at once again.
        self._returned: list[Message] = []
        # Of the last message of this commit: what it is, and which bindings it came by.
        self._last_item: Any = _NOTHING
        self._last_by: Binding | None = None
        self._last_message: Message | None = None
        self._last_more: set[Binding | None] = set()
        # Consumers with room, in the order in which they are served.
        self._active: deque[Consumer] = deque()
        self._working = self._again = False
        self._due = math.inf
        self._unused_since = now
        # Which messages may have been delivered, for after a restart.
        self._attached = False
        self._delivered_upto = 0
        self._mark_ticket = 0
        self._durable = 0
        self._suspect_below = 0

    def __repr__(self) -> str:
        state = "deleted" if self.deleted else f"{len(self)} ready, {len(self._unacked)} unacked"
        return f"<Queue {self.name}: {state}, {len(self.consumers)} consumers>"

    def __len__(self) -> int:
        """Return how many messages are ready."""
        return len(self.backing) + len(self._arrived) + len(self._returned)

    def __bool__(self) -> bool:
        """Return true: an empty queue is a queue, too."""
        return True

    # -- what comes in --------------------------------------------------------------------------

    def bind(
        self,
        turn: Turn,
        dataspace: Dataspace,
        pattern: object,
        *,
        tag: int | None = None,
        replay: bool = False,
    ) -> Binding:
        """Note that the queue is to get what matches `pattern`, from the commit of `turn` on.

        What matches several bindings is in the queue once, with the highest of their tags. For a
        `TopicFilter` the tag is the QoS that is granted: a publication with a higher one keeps its
        own, and one with QoS 0 carries no tag; with a tag of 0 everything is published as QoS 0.

        Args:
            turn: Its account pays for the observation.
            dataspace: Where to.
            pattern: A `TopicFilter`, or see `clearfunds.dataspace.compile_pattern`. What captures
                something is shown as the tuple of it, which is a message of its own.
            tag: See above.
            replay: For a `TopicFilter`: whether what is retained comes first.

        Raises:
            QueueDeletedError: If the queue is no more; and as `Dataspace.observe`.
        """
        self.check_exists()
        binding = Binding(self, tag, dataspace)
        if isinstance(pattern, TopicFilter):
            binding.observation = dataspace.observe(
                turn, pattern, self,
                acked=None if tag == 0 else binding,
                granted=HIGHEST_QOS if tag is None else tag,
                consumer=self, replay=replay,
            )  # fmt: skip
        else:
            binding.observation = dataspace.observe(turn, pattern, binding)
        turn.act(partial(self._bind, binding))
        return binding

    def unbind(self, turn: Turn, binding: Binding) -> None:
        """Note that a binding is to end at the commit of `turn`; what came by it stays."""
        if binding.observation is not None and binding.dataspace is not None:
            binding.dataspace.unobserve(turn, binding.observation)
        turn.act(partial(self._unbind, binding))

    def _bind(self, binding: Binding, turn: Turn) -> None:
        self._bindings[binding] = None
        turn.on_undo(partial(self._bindings.pop, binding, None))

    def _unbind(self, binding: Binding, turn: Turn) -> None:
        if binding in self._bindings:
            del self._bindings[binding]
            turn.on_undo(partial(self._bindings.setdefault, binding))

    def way_in(self, tag: int | None = None) -> Binding:
        """Return a way into the queue for observations of one's own, whose messages have `tag`."""
        return Binding(self, tag)

    @property
    def bindings(self) -> tuple[Binding, ...]:
        """What it is bound to."""
        return tuple(self._bindings)

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        """See `Holder.hold`: take custody of a message, or of a run of publications."""
        self.take_in(account, item, items, nbytes, now, None)

    def take_in(
        self,
        account: Account,
        item: Any,
        items: int,
        nbytes: int,
        now: float,
        by: Binding | None,
    ) -> None:
        """Take custody of what came by a binding. For `Binding`."""
        if self.deleted:
            account.repay(items, nbytes, Outcome.DROPPED, self)
            return
        if item is self._last_item and by is not self._last_by and by not in self._last_more:
            # The same message by another binding: it is here already.
            self._last_more.add(by)
            message = self._last_message
            tag = None if by is None else by.tag
            if message is not None and tag is not None:
                message.tag = tag if message.tag is None else max(tag, message.tag)
            account.repay(items, nbytes, Outcome.DELIVERED, self)
            return
        if type(item) is Batch:
            self._take_run(account, item, items, nbytes, now)
            return
        if items > 1:
            # A message is one item, whatever its publisher takes it for.
            account.repay(items - 1, 0, Outcome.DELIVERED, self)
        tag = None if by is None else by.tag
        self._last_message = self._take(account, item, nbytes, now, tag)
        if self._last_more:
            self._last_more = set()
        self._last_item = item
        self._last_by = by

    def _take_run(
        self, account: Account, batch: Batch, items: int, nbytes: int, now: float
    ) -> None:
        """Take a run apart: its messages are acknowledged one by one."""
        self._last_item = _NOTHING
        events = list(batch.events())
        sizes = [event.nbytes for event in events]
        framing = nbytes - sum(sizes)
        if len(events) != items or framing < 0:
            # Nobody charges so; but the books balance whatever a run says of itself.
            each = nbytes // len(events) if events else 0
            sizes = [each] * len(events)
            framing = nbytes - sum(sizes)
            if len(events) > items:
                account.borrow(len(events) - items, 0)
            elif len(events) < items:
                account.repay(items - len(events), 0, Outcome.DELIVERED, self)
            if not events:
                account.repay(0, nbytes, Outcome.DELIVERED, self)
                return
        share, rest = divmod(framing, len(events))
        for event, size in zip(events, sizes, strict=True):
            self._take(account, event, size + share + rest, now, None)
            rest = 0

    def _take(
        self, account: Account, event: Any, nbytes: int, now: float, tag: int | None
    ) -> Message | None:
        deaths = self._undertaker.deaths
        if deaths and is_cycle(self.name, deaths):
            self.counters.cycles += 1
            account.repay(1, nbytes, Outcome.DROPPED, self)
            return None
        if not self._arrived and not self._unacked and not len(self.backing):
            # A holder that held nothing was not failing to make progress.
            self.progressed_at = now
        persistent = self._persists and self._persistent(event)
        confirm = self.ledger.confirming
        if confirm is not None:
            if persistent or self._refuses:
                confirm.expect()
            else:
                confirm = None
        enqueued = now + self._wall_offset
        expires = None
        ttl = self.settings.message_ttl
        if self._ttl_of is not None and not deaths:
            own = self._ttl_of(event)
            if own is not None and (ttl is None or own < ttl):
                ttl = own
        if ttl is not None:
            expires = enqueued + ttl
        seq = self._next_seq
        self._next_seq = seq + 1
        loan = LoanedItem(account, [event], 1, nbytes, self, now, charged=True)
        message = Message(
            seq, event, nbytes, persistent, enqueued, expires, 0, 0, False, tag, deaths,
            loan, confirm,
        )  # fmt: skip
        self._arrived.append(message)
        self.rates.arrived += 1
        self.counters.published += 1
        return message

    def ready(self) -> None:
        """See `Holder.ready`: everything of a commit is here."""
        self._last_item = _NOTHING
        self.work()

    def _take_arrived(self) -> None:
        arrived = self._arrived
        while arrived:
            message = arrived[0]
            if self._active and not len(self.backing) and not self._returned:
                consumer = self._next_consumer()
                if consumer is not None and not self._is_late(message):
                    # Straight through: it was never ready.
                    if message.persistent and not consumer.no_ack:
                        self._writer.write_or_wait(message)
                    arrived.popleft()
                    self._release_if_transient(message)
                    self._deliver(consumer, message)
                    continue
            arrived.popleft()
            if self._refuses and self._must_refuse(message):
                self._refuse(message)
                continue
            if message.persistent:
                self._writer.write_or_wait(message)
            self._release_if_transient(message)
            self._ready_bytes += message.size
            self.backing.publish(message)

    @staticmethod
    def _release_if_transient(message: Message) -> None:
        confirm = message.confirm
        if confirm is not None and not message.persistent:
            message.confirm = None
            confirm.taken()

    def _must_refuse(self, message: Message) -> bool:
        settings = self.settings
        return (
            (settings.max_length is not None and len(self.backing) >= settings.max_length)
            or (
                settings.max_bytes is not None
                and self._ready_bytes + message.size > settings.max_bytes
            )
            or (message.persistent and self._writer.trouble is not None)
        )

    def _refuse(self, message: Message) -> None:
        self.counters.refused += 1
        confirm, message.confirm = message.confirm, None
        trouble = self._writer.trouble
        if confirm is not None:
            confirm.refused(f"queue {self.name} is full" if trouble is None else trouble)
        if self.settings.overflow is Overflow.REJECT_PUBLISH_DLX and trouble is None:
            self._die(message, DeathReason.MAX_LENGTH)
        else:
            self._finish(message, Outcome.DROPPED)

    # -- work -----------------------------------------------------------------------------------

    def work(self) -> None:
        """Do all that can be done now, unless it is being done. Called after every change."""
        if self._working:
            self._again = True
            return
        self._working = True
        rounds = MAX_ROUNDS
        try:
            self.rates.update(self.ledger.clock())
            while True:
                self._again = False
                if self._arrived:
                    self._take_arrived()
                self._pump()
                if not self._refuses:
                    self._keep_to_limits()
                if self._has_ttl:
                    self._expire()
                if self._dying:
                    self._bury()
                if self._returned:
                    self._put_back_returned()
                    rounds -= 1
                    if not rounds:
                        # Somebody gives back at once whatever it gets.
                        self._due = -math.inf
                        break
                elif not (self._again or self._arrived or self._dying):
                    break
        finally:
            self._working = False

    def _put_back_returned(self) -> None:
        returned, self._returned = self._returned, []
        self._put_back(returned)

    def _put_back(self, messages: list[Message]) -> None:
        for message in messages:
            self._ready_bytes += message.size
        self.backing.requeue(messages)

    def _next_consumer(self) -> Consumer | None:
        """Return whose turn it is, if anybody has room."""
        active = self._active
        while active:
            consumer = active[0]
            full = consumer.full_window()
            if full is None:
                return consumer
            active.popleft()
            full.waiting[consumer] = None
        return None

    def _pump(self) -> None:
        backing = self.backing
        while self._active and len(backing) and not self.deleted:
            consumer = self._next_consumer()
            if consumer is None or self._mark_is_awaited():
                return
            message = backing.fetch()
            if message is None:
                return
            self._has_left(message)
            if message.expires is not None and self._is_late(message):
                self._expired(message)
            else:
                self._deliver(consumer, message)

    def _has_left(self, message: Message) -> None:
        self.rates.left += 1
        self._ready_bytes = max(0, self._ready_bytes - message.size) if len(self.backing) else 0

    def _mark_is_awaited(self) -> bool:
        """Whether the next message has to wait until it is on record that it may be delivered.

        Else a crash could forget that somebody may have had it. It concerns what was written before
        a consumer came; what is written after that is durable later than the record.
        """
        if self._durable >= self._mark_ticket:
            return False
        message = self.backing.peek()
        return message is None or (
            message.ticket is not None and message.ticket < self._mark_ticket
        )

    def _deliver(self, consumer: Consumer, message: Message) -> None:
        active = self._active
        if active and active[0] is consumer:
            active.rotate(-1)
        channel = consumer.channel
        delivery = self._hand_out(message, channel, consumer)
        consumer.delivered += 1
        if not consumer.no_ack:
            if not consumer.outstanding:
                consumer.progressed_at = self.progressed_at
            consumer.outstanding += 1
            consumer.window.take(message.size)
            if channel.window is not None:
                channel.window.take(message.size)
            channel.add(delivery)
        try:
            consumer.callback(delivery)
        except Exception as exc:
            logger.exception("a consumer of queue %s failed; it gets nothing more", self.name)
            self._consumer_failed(consumer, delivery, f"its callback raised {exc!r}")
            return
        if consumer.no_ack:
            self._let_go(delivery)

    def _hand_out(self, message: Message, channel: Channel, consumer: Consumer | None) -> Delivery:
        """Make a delivery of a message that is in nobody's hands."""
        loan = message.loan
        if loan is None:
            loan = self._rest.take(message.event, message.size, self.progressed_at)
            message.loan = loan
        elif message.deliveries or not loan.item:
            loan.item = [message.event]
        counters = self.counters
        counters.delivered += 1
        counters.redelivered += message.redelivered
        seq = message.seq
        if seq >= self._delivered_upto:
            self._delivered_upto = seq + 1
        delivery = Delivery(channel.next_tag(), message, loan, self, channel, consumer)
        message.deliveries += 1
        message.pending = True
        self._unacked[seq] = delivery
        self._unacked_bytes += message.size
        if consumer is None or not consumer.no_ack:
            self.backing.pending(message)
            self.rates.pended += 1
        return delivery

    def _let_go(self, delivery: Delivery) -> None:
        """End a delivery that nobody acknowledges."""
        message = delivery.message
        if self._unacked.get(message.seq) is not delivery:
            return  # the queue was deleted meanwhile
        del self._unacked[message.seq]
        self._unacked_bytes -= message.size
        self.counters.acked += 1
        loan = delivery.loan
        if loan.items and loan.holder is self:
            loan.settle()
        self._close(message)

    def _consumer_failed(self, consumer: Consumer, delivery: Delivery, why: str) -> None:
        self.retire(consumer)
        if consumer.no_ack:
            self._let_go(delivery)
        elif delivery.channel.is_outstanding(delivery.tag):
            delivery.reject()
        self._notify(consumer, why)
        self.consumer_gone()

    # -- limits and time ------------------------------------------------------------------------

    def _is_late(self, message: Message) -> bool:
        return message.expires is not None and message.expires <= self._wall_now()

    def _wall_now(self) -> float:
        return self.ledger.clock() + self._wall_offset

    def _keep_to_limits(self) -> None:
        settings = self.settings
        length, nbytes = settings.max_length, settings.max_bytes
        if length is None and nbytes is None:
            return
        backing = self.backing
        while (length is not None and len(backing) > length) or (
            nbytes is not None and self._ready_bytes > nbytes
        ):
            message = backing.fetch()
            if message is None:
                return  # again when it has been read
            self._has_left(message)
            self.counters.dropped += 1
            self._die(message, DeathReason.MAX_LENGTH)

    def _expire(self) -> None:
        """Drop what has expired, from the head on, as far as all before it has."""
        backing = self.backing
        while len(backing):
            message = backing.peek()
            if message is None or not self._is_late(message):
                return
            message = backing.fetch()
            if message is None:
                return
            self._has_left(message)
            self._expired(message)

    def _expired(self, message: Message) -> None:
        self.counters.expired += 1
        self._die(message, DeathReason.EXPIRED)

    def tick(self, now: float) -> float:
        """Do what is due at `now`, and return when to come again; both on the ledger's clock.

        `math.inf` if nothing is due by time. What is due may change by all that happens meanwhile:
        see `deadline`.
        """
        if self.deleted:
            return math.inf
        self._due = math.inf
        self._wall_offset = self._wall() - self.ledger.clock()
        self.rates.update(now)
        due = self.backing.tick(now)
        if self._writer.short:
            # The disk budget may have been raised.
            self._relieve()
        self.work()
        if self._attached and not self.consumers and not self._unacked:
            self._detach()
        expires = self.settings.expires
        if expires is not None and not self.consumers and now >= self._unused_since + expires:
            self.delete()
            return math.inf
        if due is not None:
            self._due = min(self._due, due)
        return self.deadline()

    def deadline(self) -> float:
        """Return when `tick` is to be called next at the latest; `math.inf`: not by time."""
        due = self._due
        if self.settings.expires is not None and not self.consumers:
            due = min(due, self._unused_since + self.settings.expires)
        if self._has_ttl and len(self.backing):
            head = self.backing.peek()
            if head is not None and head.expires is not None:
                due = min(due, head.expires - self._wall_offset)
        return due

    def touch(self) -> None:
        """Note that it is in use: it has been declared once more, say."""
        self._unused_since = self.ledger.clock()

    # -- the ends of messages -------------------------------------------------------------------

    def _finish(self, message: Message, outcome: Outcome) -> None:
        """End a message that is in nobody's hands: repay, erase, confirm."""
        loan = message.loan
        if loan is None:
            self._rest.settle(message.size, outcome)
        elif loan.items:
            loan.settle(outcome=outcome)
        self._close(message)

    def _close(self, message: Message, *, erased: bool = False) -> None:
        """Erase a message whose loan has ended, unless it is, and confirm it."""
        message.finished = True
        message.pending = False
        message.loan = None
        if message.ticket is not None:
            message.event = None
            if not erased:
                assert self.shelf is not None
                self.shelf.done((message.seq,))
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
            self._dying.append((message, reason))

    def _bury(self) -> None:
        """Publish what has died, in turns that its account pays for."""
        while self._dying:
            message, reason = self._dying[0]
            now = self._wall_now()
            message.deaths = with_death(message.deaths, self.name, reason, now)
            if message.loan is None:
                message.loan = self._rest.take(message.event, message.size, self.ledger.clock())
            self._dying.popleft()
            self._burying[message.seq] = message
            self._publish_dead(message, reason)

    def _publish_dead(self, message: Message, reason: DeathReason) -> None:
        route, loan = self._dead_letter, message.loan
        assert route is not None
        assert loan is not None
        letter = DeadLetter(message.event, self.name, reason, message.deaths, message.size)
        burial = Burial(partial(self._buried, message, reason))
        undertaker = self._undertaker
        outer = undertaker.deaths
        turn = loan.turn()
        # What is safe here is erased when it is safe there.
        turn.confirm = burial if message.persistent else None
        undertaker.deaths = message.deaths
        try:
            with turn:
                route(turn, letter)
        except Exception:
            logger.exception("a dead letter of queue %s could not be published", self.name)
            self.counters.dead_letters_failed += 1
        else:
            self.counters.dead_lettered += 1
        finally:
            undertaker.deaths = outer
        burial.handed_over()

    def _buried(self, message: Message, reason: DeathReason, refused: str | None) -> None:
        self.counters.dead_letters_failed += refused is not None
        # It may have gone with the queue meanwhile.
        if self._burying.pop(message.seq, None) is not None:
            self._finish(message, _OUTCOMES[reason])

    # -- consumers ------------------------------------------------------------------------------

    def check_exists(self) -> None:
        """See whether the queue is still there.

        Raises:
            QueueDeletedError: If it was deleted.
        """
        if self.deleted:
            msg = f"queue {self.name} has been deleted; declare it again"
            raise QueueDeletedError(msg)

    def check_access(self, who: object) -> None:
        """See whether `who`, a connection, may use the queue.

        Raises:
            QueueLockedError: If it is exclusive to somebody else.
        """
        if self._exclusive_to is not None and self._exclusive_to is not who:
            msg = f"queue {self.name} is exclusive to another connection"
            raise QueueLockedError(msg)

    def consume(
        self,
        callback: Callable[[Delivery], object],
        *,
        window: PrefetchWindow | None = None,
        channel: Channel | None = None,
        no_ack: bool = False,
        exclusive: bool = False,
        on_cancelled: Callable[[str], object] | None = None,
    ) -> Consumer:
        """Push messages to `callback`, in turn with the other consumers; the first ones at once.

        The callback is called with each `Delivery`, outside of commits. It must not raise: if it
        does, the delivery has failed and the consumer gets nothing more. It may acknowledge,
        publish, and cancel.

        Args:
            callback: Whom to give each delivery.
            window: How much may be outstanding; by default any number. It is this consumer's own,
                unless it is given to several.
            channel: Where its deliveries are acknowledged; by default one of its own.
            no_ack: Whether deliveries are done with when they are made. The callback may give a
                `Delivery.loan` to another holder (an outlet); otherwise it ends as `delivered`
                when the callback returns.
            exclusive: Whether to be the only one.
            on_cancelled: Called with a sentence if the queue ends the consumer.

        Raises:
            QueueInUseError: If there is an exclusive consumer, or it wants to be one and is not
                the first.
            QueueDeletedError: If the queue, or the channel, is no more.
        """
        self.check_exists()
        if self.consumers and (exclusive or next(iter(self.consumers)).exclusive):
            msg = f"queue {self.name} has a consumer, and one of them wants to be the only one"
            raise QueueInUseError(msg)
        channel = Channel(f"of {self.name}") if channel is None else channel
        channel.check_open()
        window = PrefetchWindow() if window is None else window
        consumer = Consumer(
            self, callback, channel, window,
            no_ack=no_ack, exclusive=exclusive, on_cancelled=on_cancelled,
        )  # fmt: skip
        self._attach()
        self.consumers[consumer] = None
        channel.consumers[consumer] = None
        self._active.append(consumer)
        self.work()
        return consumer

    def consumer(
        self,
        *,
        prefetch: int = 1,
        prefetch_bytes: int = 0,
        channel: Channel | None = None,
        exclusive: bool = False,
    ) -> QueueStream:
        """Return deliveries to iterate over, of a consumer of their own.

        ::

            with queue.consumer(prefetch=10) as deliveries:
                async for delivery in deliveries:
                    with delivery as event:  # acked at the end of the block
                        ...

        Raises:
            QueueInUseError: As `consume`.
        """
        window = PrefetchWindow(prefetch, prefetch_bytes)
        return QueueStream(self, window, channel=channel, exclusive=exclusive)

    def get(self, channel: Channel, *, no_ack: bool = False) -> Delivery | None:
        """Take the first message, if there is one; prefetch windows do not matter.

        None: there is none, or `waiting` tells that it is not in RAM yet; then ask again later.
        From inside a consumer's callback there is never one. With `no_ack` it is done with at once.

        Raises:
            QueueDeletedError: If the queue, or the channel, is no more.
        """
        self.check_exists()
        channel.check_open()
        self.touch()
        self._attach()
        if self._working:
            # A consumer's callback asks: what has arrived is served in its order.
            return None
        self.work()
        while len(self.backing) and not self._mark_is_awaited():
            message = self.backing.fetch()
            if message is None:
                break
            self._has_left(message)
            if self._is_late(message):
                self._expired(message)
                continue
            delivery = self._hand_out(message, channel, None)
            if no_ack:
                self.backing.forget((message,))
                self._let_go(delivery)
            else:
                channel.add(delivery)
            return delivery
        self.work()
        return None

    @property
    def waiting(self) -> bool:
        """Whether messages are ready that cannot be delivered yet: they are being read."""
        return len(self.backing) > 0 and (self.backing.waiting or self._durable < self._mark_ticket)

    def resume(self, consumer: Consumer) -> None:
        """Put a consumer that has got room back in line. For windows."""
        if not consumer.cancelled:
            self._active.append(consumer)

    def retire(self, consumer: Consumer) -> None:
        """Take a consumer out of the line for good. For `Consumer` and `Channel`."""
        consumer.cancelled = True
        self.consumers.pop(consumer, None)
        consumer.channel.consumers.pop(consumer, None)
        consumer.window.waiting.pop(consumer, None)
        if consumer.channel.window is not None:
            consumer.channel.window.waiting.pop(consumer, None)
        if consumer in self._active:
            self._active.remove(consumer)

    def consumer_gone(self) -> None:
        """See what follows when a consumer has gone. For `Consumer` and `Channel`."""
        if self.consumers or self.deleted:
            return
        self.touch()
        self._detach()
        if self.settings.auto_delete:
            self.delete()

    def _notify(self, consumer: Consumer, why: str) -> None:
        if consumer.on_cancelled is not None:
            try:
                consumer.on_cancelled(why)
            except Exception:
                logger.exception("a consumer of queue %s did not take its end well", self.name)

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

    # -- acknowledgements -----------------------------------------------------------------------

    def _take_back(self, delivery: Delivery) -> list[Queue]:
        """Take a delivery out of its consumer's hands; return whose consumers have got room."""
        message = delivery.message
        del self._unacked[message.seq]
        self._unacked_bytes -= message.size
        self.rates.settled += 1
        consumer = delivery.consumer
        if consumer is None:
            return []
        consumer.outstanding -= 1
        window = consumer.window
        window.release(message.size)
        resumed = window.let_on() if window.waiting else []
        shared = delivery.channel.window
        if shared is not None:
            shared.release(message.size)
            if shared.waiting:
                resumed = resumed + shared.let_on()
        return [other.queue for other in resumed if other.queue is not self]

    def acked(self, delivery: Delivery) -> None:
        """End a delivery that was acknowledged. For `Channel`."""
        message = delivery.message
        if self._unacked.get(message.seq) is not delivery:
            return  # it went with the queue
        others = self._take_back(delivery)
        loan = delivery.loan
        if loan.items:
            loan.settle(outcome=Outcome.ACKED)
        self.counters.acked += 1
        self.backing.forget((message,))
        self._close(message)
        self.work()
        for queue in others:
            queue.work()

    def all_acked(self, deliveries: Sequence[Delivery]) -> None:
        """End several deliveries that were acknowledged. For `Channel`."""
        others: dict[Queue, None] = {}
        unacked = self._unacked
        deliveries = [d for d in deliveries if unacked.get(d.message.seq) is d]
        written = [d.message.seq for d in deliveries if d.message.ticket is not None]
        if written:
            assert self.shelf is not None
            self.shelf.done(written)
        self.backing.forget([delivery.message for delivery in deliveries])
        for delivery in deliveries:
            others.update(dict.fromkeys(self._take_back(delivery)))
            loan = delivery.loan
            if loan.items:
                loan.settle(outcome=Outcome.ACKED)
            self._close(delivery.message, erased=True)
        self.counters.acked += len(deliveries)
        self.work()
        for queue in others:
            queue.work()

    def requeued(self, deliveries: Sequence[Delivery], *, failed: bool) -> None:
        """Put deliveries back to their places; `failed` counts. For `Channel`."""
        others: dict[Queue, None] = {}
        limit = self.settings.delivery_limit
        back: list[Message] = []
        dead: list[Message] = []
        for delivery in deliveries:
            message = delivery.message
            if self._unacked.get(message.seq) is not delivery:
                continue
            others.update(dict.fromkeys(self._take_back(delivery)))
            message.pending = False
            message.redelivered = True
            message.failures += failed
            if failed and limit is not None and message.failures > limit:
                dead.append(message)
                continue
            if not delivery.loan.items:
                # Whoever had it has settled it: it is done.
                self.backing.forget((message,))
                self._close(message)
                continue
            if message.at_rest:
                self._rest.put_back(delivery.loan)
                message.loan = None
            back.append(message)
        self.counters.requeued += len(back)
        if dead:
            self.counters.failed += len(dead)
            self.backing.forget(dead)
            for message in dead:
                self._die(message, DeathReason.DELIVERY_LIMIT)
        if self._working:
            self._returned += back
        elif back:
            self._put_back(back)
        self.settled()
        self.work()
        for queue in others:
            queue.work()

    def rejected(self, deliveries: Sequence[Delivery]) -> None:
        """Dead-letter or drop what a consumer does not want back. For `Channel`."""
        others: dict[Queue, None] = {}
        gone: list[Message] = []
        for delivery in deliveries:
            message = delivery.message
            if self._unacked.get(message.seq) is delivery:
                others.update(dict.fromkeys(self._take_back(delivery)))
                message.pending = False
                gone.append(message)
        self.counters.rejected += len(gone)
        self.backing.forget(gone)
        for message in gone:
            self._die(message, DeathReason.REJECTED)
        self.work()
        for queue in others:
            queue.work()

    # -- the shelf ------------------------------------------------------------------------------

    def durable(self, ticket: int) -> None:
        """Note that what was written with `ticket`, and before, is durable. For the shelf's owner.

        Its publishers are repaid as `stored`, once this queue's account has borrowed for it.
        """
        if self.deleted:
            return
        self._durable = max(self._durable, ticket)
        for message in self._writer.durable(ticket):
            self._comes_to_rest(message)
        self.backing.durable(ticket)
        self.work()

    def _comes_to_rest(self, message: Message) -> None:
        loan = message.loan
        assert loan is not None
        message.at_rest = True
        self.counters.stored += 1
        if message.pending or message.seq in self._burying:
            # Somebody has this very loan in hand: it changes accounts where it is.
            if loan.items:
                publisher, items, nbytes = loan.account, loan.items, loan.bytes
                self.account.borrow(items, nbytes)
                self.settled()
                self.ages.add(self.progressed_at - loan.opened, items)
                loan.account = self.account
                publisher.repay(items, nbytes, Outcome.STORED, self)
        else:
            self._rest.add(1, loan.bytes)
            message.loan = None
            loan.settle(outcome=Outcome.STORED)
        confirm = message.confirm
        if confirm is not None:
            message.confirm = None
            confirm.taken()

    def paged_in(self, messages: Sequence[Message]) -> None:
        """Take what was read, in answer to `Shelf.want`. For the shelf's owner."""
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
        """Take over what the shelf has from before a restart. Before anything else; once.

        It is charged to the queue's account. Nothing is read until it is wanted.
        """
        assert self._next_seq == 1
        assert self.shelf is not None
        self._next_seq = max(next_seq, marks.delivered_upto, 1)
        self._suspect_below = self._next_seq if marks.attached else marks.delivered_upto
        self._delivered_upto = self._suspect_below
        if marks.attached:
            # Of what comes from now on nobody has had anything.
            self.shelf.mark(False, self._delivered_upto)
        self.counters.recovered = count
        if count:
            self._rest.add(count, nbytes)
            self._ready_bytes += nbytes
            self.backing.recovered(first_seq, next_seq, count)

    def shelf_trouble(self, trouble: str | None) -> None:
        """Note what is the matter with the disk; None: it works again. For the shelf's owner.

        Meanwhile nothing is written: what comes stays in RAM, unconfirmed, and its publishers pay;
        a queue that refuses rather than drops refuses what is persistent.
        """
        self._writer.trouble = trouble
        if trouble is not None:
            self._writer.short = True
        else:
            self._relieve()

    def _lost(self, count: int) -> None:
        self.counters.lost += count
        logger.error("queue %s: %d messages are not to be found on disk", self.name, count)
        gone = self._rest.settle_some(count, Outcome.LEAKED)
        self._ready_bytes = max(0, self._ready_bytes - gone) if len(self.backing) else 0

    # -- the end --------------------------------------------------------------------------------

    def purge(self) -> int:
        """Drop all that is ready; return how many messages that was. Nothing is dead-lettered."""
        arrived = list(self._arrived)
        self._arrived.clear()
        self._last_item = _NOTHING
        returned, self._returned = self._returned, []
        self.backing.forget(returned)
        count = len(self.backing) + len(arrived) + len(returned)
        here, on_disk = self.backing.purge()
        self._erase(on_disk)
        known = {message.seq for message in here}
        # Those on the shelf only may still be on their publishers' accounts.
        unsynced = [m for m in self._writer.messages() if m.seq in on_disk and m.seq not in known]
        for message in unsynced:
            if not message.pending and message.seq not in self._burying:
                self._finish_ready(message, erased=True)
        for message in (*arrived, *returned, *here):
            self._finish_ready(message, erased=message.seq in on_disk)
        # All that was at rest was ready.
        self._rest.settle_some(self._rest.items, Outcome.DROPPED)
        self._ready_bytes = 0
        self.counters.purged += count
        if self._writer.short:
            self._relieve()
        self.work()
        return count

    def _erase(self, seqs: Sequence[int]) -> None:
        """Erase what is ready of a stretch of the shelf, and nothing that is in use."""
        if not len(seqs):
            return
        assert self.shelf is not None
        used = [*self._unacked, *self._burying, *(message.seq for message, _ in self._dying)]
        used = [seq for seq in used if seq in seqs]
        if not used:
            self.shelf.done(seqs)
        else:
            kept = set(used)
            self.shelf.done([seq for seq in seqs if seq not in kept])

    def _finish_ready(self, message: Message, *, erased: bool) -> None:
        """End a message that is purged; what is at rest is settled by the one loan for all."""
        if message.loan is not None and message.loan.items:
            message.loan.settle(outcome=Outcome.DROPPED)
        self._close(message, erased=erased)

    def delete(self, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """End the queue with all that it has; return how many messages were ready.

        Consumers are told, bindings end (the queue's account pays), nothing is dead-lettered, what
        is delivered is `dropped` and may be acknowledged in vain. Idempotent.

        Raises:
            QueueInUseError: With `if_unused`, if it has consumers.
            QueueNotEmptyError: With `if_empty`, if something is ready.
        """
        if self.deleted:
            return 0
        if if_unused and self.consumers:
            msg = f"queue {self.name} has {len(self.consumers)} consumers"
            raise QueueInUseError(msg)
        if if_empty and len(self):
            msg = f"queue {self.name} has {len(self)} messages"
            raise QueueNotEmptyError(msg)
        bindings = [b for b in self._bindings if b.dataspace is not None]
        if bindings:
            with self.account.turn() as turn:
                for binding in bindings:
                    self.unbind(turn, binding)
        consumers = self._end_consumers()
        self.deleted = True
        count = self.purge()
        for message in [delivery.message for delivery in self._unacked.values()]:
            self._finish(message, Outcome.DROPPED)
        dying = [message for message, _ in self._dying] + list(self._burying.values())
        self._dying.clear()
        self._burying.clear()
        for message in dying:
            self._finish(message, Outcome.DROPPED)
        self._forget_unacked()
        self.ledger.unregister(self)
        for consumer in consumers:
            self._notify(consumer, f"queue {self.name} was deleted")
        if self._on_deleted is not None:
            self._on_deleted(self)
        return count

    def close(self) -> None:
        """End the queue in this process, and leave what is on its shelf: the process ends.

        What is at rest stays there, and what is owed for it ends as `stored`; what is in RAM only
        is `cancelled`, and not confirmed. Consumers are told. Idempotent.
        """
        if self.deleted:
            return
        consumers = self._end_consumers()
        self._detach()
        self.deleted = True
        rest = self._rest
        rest.settle_some(rest.items, Outcome.STORED)
        for loan in list(self.loans()):
            at_rest = loan.account is self.account
            loan.settle(outcome=Outcome.STORED if at_rest else Outcome.CANCELLED)
        self._arrived.clear()
        self._dying.clear()
        self._burying.clear()
        self._forget_unacked()
        self.ledger.unregister(self)
        for consumer in consumers:
            self._notify(consumer, f"queue {self.name} is closed")

    def _end_consumers(self) -> list[Consumer]:
        consumers = list(self.consumers)
        for consumer in consumers:
            self.retire(consumer)
        return consumers

    def _forget_unacked(self) -> None:
        """Let go of deliveries that are outstanding: their windows are their channels' business."""
        unacked = list(self._unacked.values())
        self._unacked.clear()
        self._unacked_bytes = 0
        others: dict[Queue, None] = {}
        for delivery in unacked:
            if delivery.consumer is None or delivery.consumer.no_ack:
                continue
            for window in (delivery.consumer.window, delivery.channel.window):
                if window is not None:
                    window.release(delivery.message.size)
                    others.update((consumer.queue, None) for consumer in window.let_on())
        for queue in others:
            queue.work()

    # -- a holder -------------------------------------------------------------------------------

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

    def give_up(self, why: str) -> None:
        """See `Holder.give_up`, and the head of this file: nobody is disconnected for a backlog."""
        stuck = [consumer for consumer in self.consumers if consumer.outstanding]
        for consumer in stuck:
            consumer.channel.close(failed=True)
            self._notify(consumer, why)
        if stuck:
            return
        if self.shelf is not None:
            for message in sorted(self.backing, key=lambda m: m.seq):
                if message.event is not None:
                    self._writer.write(message)
            self.backing.relieve()
            if self._writer.unsynced_items:
                self.settled()
                return
        if self.shelf is not None or self._refuses:
            logger.warning(
                "queue %s keeps what it has accepted; its publishers wait until consumers make "
                "room, or its disk budget is raised", self.name,
                extra={"event": "queue_full", "queue": self.name, "why": why},
            )  # fmt: skip
            self.settled()
            return
        while (first := self.backing.fetch()) is not None:
            self._has_left(first)
            self.counters.written_off += 1
            self._finish(first, Outcome.WRITTEN_OFF)

    def statistics(self) -> QueueStatistics:
        """Return the queue in numbers; costs time in proportion to what is unacked."""
        resting = [d.loan for d in self._unacked.values() if d.message.at_rest]
        rates = self.rates
        return QueueStatistics(
            name=self.name,
            ready=len(self),
            ready_bytes=self._ready_bytes + sum(message.size for message in self._arrived),
            unacked=len(self._unacked),
            unacked_bytes=self._unacked_bytes,
            disk_items=self._rest.items + len(resting),
            disk_bytes=self._rest.bytes + sum(loan.bytes for loan in resting),
            unsynced=self._writer.unsynced_items,
            unwritten=self._writer.unwritten,
            trouble=self._writer.trouble,
            consumers=len(self.consumers),
            consumers_full=len(self.consumers) - len(self._active),
            bindings=len(self._bindings),
            ingress=rates.ingress,
            egress=rates.egress,
            ack_egress=rates.ack_egress,
            backing=self.backing.statistics(),
            counters=attrs.evolve(self.counters),
        )
