"""A queue: a holder with a memory of its own, which serves its consumers in turn.

It has three parts: the messages (`_contents.py`), the consumers (`_serving.py`), and here the
input, the timers and the end.

Nothing of it awaits. Time passes by `tick`.

When publishers wait on a queue that makes no progress (rule 11), the queue goes through these
steps. First it cuts off slow consumers that have deliveries and do not acknowledge them: it closes
their channels, and their messages go to others. If no consumer has any, a queue with a shelf pages
out all messages, transient ones included: its publishers are repaid as soon as that is durable.
With the disk budget spent, or without a shelf but made to refuse rather than to drop, it keeps the
messages that it has accepted and its publishers wait; the log names it each time its patience runs
out. Without a shelf, and made to drop its head, it drops the ready messages, as `written_off`, and
counts them, unless its class keeps them (`keeps_backlog`).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

import attrs

from ...accounts import (
    DEFAULT_PATIENCE,
    Account,
    Ledger,
    Outcome,
    StuckPolicy,
    Turn,
    lent,
)
from .._events import Batch, Publication
from .._topics import TopicFilter
from ._backing import BackingFactory
from ._binding import Binding
from ._channel import Channel
from ._consumer import Consumer
from ._dead_letters import Burial, DeadLetterRoute, is_cycle
from ._errors import QueueInUseError, QueueLockedError, QueueNotEmptyError
from ._lines import appended
from ._message import Message
from ._prefetch import PrefetchWindow
from ._serving import ServingQueue
from ._settings import Overflow, QueueSettings
from ._shelf import Shelf
from ._statistics import QueueStatistics
from ._steady import SteadyBacking
from ._stream import QueueStream

if TYPE_CHECKING:
    from .._dataspace import Dataspace

logger = logging.getLogger("clearfunds.dataspace")

HIGHEST_QOS = 2

_NOTHING: Final = object()


def is_persistent(event: Any) -> bool:
    """Whether an event must survive a restart, in a durable queue.

    A `Publication` must if it was published with QoS 1 or 2; any other event must, unless its
    attribute `persistent` says otherwise.
    """
    if isinstance(event, Publication):
        return event.qos > 0
    return bool(getattr(event, "persistent", True))


def is_exactly_once(event: Any) -> bool:
    """Whether an event has QoS 2, for `Queue.durable_first`.

    A client may take it only once, and so recognises it by its packet identifier, which derives
    from its number in the queue. If a crash lost a message that the client has received, the next
    message would get its number, and the client would take it for the same one.
    """
    return bool(getattr(event, "qos", 0) == HIGHEST_QOS)


class Queue(ServingQueue):
    """Holds messages for consumers and serves them in turn.

    Args:
        ledger: The ledger of its loans.
        name: Its name in logs and reports.
        account: The queue's own. It pays for messages at rest, its limit is the disk budget, and
            for ending the bindings when the queue is deleted. Its owner opens and closes it.
        settings: The queue's settings.
        shelf: The queue's part of a disk; None: it is in RAM only.
        backing: Makes its paging policy.
        dead_letter: The route for dead letters; see `dead_letter_to`. None: they are dropped.
        exclusive_to: The connection that may use it alone, if any; see `check_access`.
        persistent: Says which events must survive a restart. If it fails with one, that event must.
        ttl_of: Returns how many seconds an event may wait, or None; the least of this and the
            setting counts. Not called for dead letters, which have outlived it already. A
            `Publication` that `expires` sooner than both does so here, too, and is not delivered
            after that at all.
        wall: The wall clock, for times that outlive the process.
        on_deleted: Called with the queue whenever it has been deleted, for any reason.
        patience: See `Holder`.
        policy: See `Holder`, and above; by default a queue that refuses rather than drops is only
            named, if it has no shelf.

    Attributes:
        account: See above.
        settings: See above.
        shelf: See above.
        backing: Keeps its ready messages.
        rates: The rates at which messages come and go.
        counters: Counts of everything that has happened to them.
        consumers: Its consumers.
        durable_first: Says which events are delivered only when they are durable, so that a
            consumer never has one that a crash could undo; None, the initial value: none. It costs
            the time until they are durable.
        deleted: Whether it has been deleted.
    """

    __slots__ = (
        "_bindings", "_exclusive_to", "_last_by", "_last_item", "_last_message", "_last_more",
        "_on_deleted", "_persistent", "_ttl_of",
    )  # fmt: skip

    keeps_backlog: ClassVar[bool] = False
    """Whether messages that it has accepted are kept in RAM, too, however long publishers wait."""

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
        super().__init__(
            ledger, name, account=account, settings=settings, shelf=shelf, backing=backing,
            dead_letter=dead_letter, wall=wall, patience=patience, policy=policy,
        )  # fmt: skip
        self._begin_serving()
        self._exclusive_to = exclusive_to
        self._persistent = persistent
        self._ttl_of = ttl_of
        self._has_ttl = self._has_ttl or ttl_of is not None
        self._on_deleted = on_deleted
        self._bindings: dict[Binding, None] = {}
        # The last message of this commit, and the bindings by which it came.
        self._last_item: Any = _NOTHING
        self._last_message: Message | None = None
        self._last_by: Binding | None = None
        self._last_more: set[Binding | None] | None = None

    def __repr__(self) -> str:
        state = "deleted" if self.deleted else f"{len(self)} ready, {len(self._unacked)} unacked"
        return f"<Queue {self.name}: {state}, {len(self.consumers)} consumers>"

    # -- input -------------------------------------------------------------------------------------

    def bind(
        self,
        turn: Turn,
        dataspace: Dataspace,
        pattern: object,
        *,
        tag: int | None = None,
        replay: bool = False,
    ) -> Binding:
        """Bind the queue to `pattern`, from the commit of `turn` on.

        An event that matches several bindings is in the queue once, with the highest of their tags.
        For a `TopicFilter` the tag is the QoS that is granted: a publication with a higher one
        keeps its own, and one with QoS 0 carries no tag; with a tag of 0 everything is published as
        QoS 0.

        Args:
            turn: Its account pays for the observation.
            dataspace: The dataspace to observe.
            pattern: A `TopicFilter`, or see `clearfunds.dataspace.compile_pattern`. With captures,
                the tuple of them is a message of its own.
            tag: See above.
            replay: For a `TopicFilter`: whether retained publications come first.

        Raises:
            QueueDeletedError: If the queue is deleted, now or at the commit; and as
                `Dataspace.observe`.
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
        """End a binding at the commit of `turn`; messages that came by it stay."""
        if binding.observation is not None and binding.dataspace is not None:
            binding.dataspace.unobserve(turn, binding.observation)
        turn.act(partial(self._unbind, binding))

    def _bind(self, binding: Binding, turn: Turn) -> None:
        self.check_exists()
        self._bindings[binding] = None
        turn.on_undo(partial(self._bindings.pop, binding, None))

    def _unbind(self, binding: Binding, turn: Turn) -> None:
        if binding in self._bindings:
            del self._bindings[binding]
            turn.on_undo(partial(self._bindings.setdefault, binding))

    def way_in(self, tag: int | None = None) -> Binding:
        """Return a way into the queue for your own observations, whose messages have `tag`."""
        return Binding(self, tag)

    @property
    def bindings(self) -> tuple[Binding, ...]:
        """Its bindings."""
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
        """Take custody of an event that came by a binding. For `Binding`."""
        if self.deleted:
            account.repay(items, nbytes, Outcome.DROPPED, self)
            return
        more = self._last_more
        if item is self._last_item and by is not self._last_by and (more is None or by not in more):
            # The same message by another binding: it is here already.
            if more is None:
                self._last_more = {by}
            else:
                more.add(by)
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
            # A message is one item, whatever its publisher counts it as.
            account.repay(items - 1, 0, Outcome.DELIVERED, self)
        tag = None if by is None else by.tag
        self._last_message = self._take(account, item, nbytes, now, tag)
        self._last_more = None
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
            # Nobody charges so, but the ledger must balance whatever size a run claims.
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
        confirm = self.ledger.confirming
        deaths = confirm.deaths if type(confirm) is Burial else ()
        if deaths and is_cycle(self.name, deaths):
            self.counters.cycles += 1
            account.repay(1, nbytes, Outcome.DROPPED, self)
            return None
        if not self._arrived and not self._unacked and not self.backing.ready:
            # A holder that held nothing was not failing to make progress.
            self.progressed_at = now
        persistent = self._persists
        if persistent:
            try:
                persistent = self._persistent(event)
            except Exception:  # in the middle of a commit, which cannot fail any more
                logger.exception("queue %s: a message is taken to be persistent", self.name)
        if not (persistent or self._refuses):
            confirm = None
        enqueued = now + self._wall_offset
        expires = None
        ttl = self.settings.message_ttl
        if self._ttl_of is not None and not deaths:
            own = self._own_ttl(event)
            if own is not None and (ttl is None or own < ttl):
                ttl = own
        if ttl is not None:
            expires = enqueued + ttl
        if isinstance(event, Publication) and event.expires is not None:
            # By the same clock; a publication that expires does so even in a queue without a limit.
            self._has_ttl = True
            if expires is None or event.expires < expires:
                expires = event.expires
        seq = self._next_seq
        self._next_seq = seq + 1
        message = Message(
            seq, event, nbytes, persistent, enqueued, expires, 0, 0, False, tag, deaths,
            None, confirm,
        )  # fmt: skip
        self._arrived = appended(self._arrived, message)
        message.loan = lent(account, [event], 1, nbytes, self, now)
        if confirm is not None:
            confirm.expect()
        self.rates.arrived += 1
        self.counters.published += 1
        return message

    def _own_ttl(self, event: Any) -> float | None:
        assert self._ttl_of is not None
        try:
            return self._ttl_of(event)
        except Exception:
            logger.exception("queue %s: a message is taken to have no time to live", self.name)
            return None

    def ready(self) -> None:
        """See `Holder.ready`: all messages of a commit are here."""
        self._last_item = _NOTHING
        self.work()

    def configure(self, settings: QueueSettings) -> None:
        """Change the settings, except `durable`; they take effect at once.

        A message keeps the time to live that it came with.

        Raises:
            ValueError: If `durable` is another.
        """
        if settings.durable != self.settings.durable:
            msg = f"whether queue {self.name} is durable cannot be changed; make another one"
            raise ValueError(msg)
        self.settings = settings
        self._refuses = settings.overflow is not Overflow.DROP_HEAD
        self._has_ttl = self._has_ttl or settings.message_ttl is not None
        self.work()

    # -- consuming ---------------------------------------------------------------------------------

    def check_access(self, who: object) -> None:
        """Check that `who`, a connection, may use the queue.

        Raises:
            QueueLockedError: If it is exclusive to another one.
        """
        if self._exclusive_to is not None and self._exclusive_to is not who:
            msg = f"queue {self.name} is exclusive to another connection"
            raise QueueLockedError(msg)

    def consumer(
        self,
        *,
        prefetch: int = 1,
        prefetch_bytes: int = 0,
        channel: Channel | None = None,
        exclusive: bool = False,
    ) -> QueueStream:
        """Return an iterator over deliveries, with a consumer of its own.

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

    # -- time --------------------------------------------------------------------------------------

    def tick(self, now: float) -> float:
        """Do the work that is due at `now`; return when to call again, both on the ledger's clock.

        `math.inf` if nothing is due by time. Anything that happens meanwhile may change the time:
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
        if self._has_ttl and self.backing.ready:
            head = self.backing.peek()
            if head is not None and head.expires is not None:
                due = min(due, head.expires - self._wall_offset)
        return due

    # -- the end -----------------------------------------------------------------------------------

    def delete(self, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete the queue with all its messages; return how many were ready.

        Consumers are told, bindings end (the queue's account pays), nothing is dead-lettered.
        Unacked messages are `dropped`; a late acknowledgement of them has no effect. Idempotent.

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
        count = self._purge()
        for message in [delivery.message for delivery in self._unacked.values()]:
            self._finish(message, Outcome.DROPPED)
        dying = [message for message, _ in self._dying] + list(self._burying.values())
        self._dying = ()
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
        """End the queue in this process, and leave the messages on its shelf: the process ends.

        Messages at rest stay there, and their debt ends as `stored`; messages in RAM only are
        `cancelled`, and not confirmed. Consumers are told. Idempotent.
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
        if self._arrived:
            self._arrived.clear()
        self._returned.clear()
        self._dying = ()
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
        """Drop outstanding deliveries: their channels take care of their windows."""
        unacked = list(self._unacked.values())
        self._unacked.clear()
        self._unacked_bytes = 0
        others: dict[ServingQueue, None] = {}
        for delivery in unacked:
            if delivery.consumer is None or delivery.consumer.no_ack:
                continue
            for window in (delivery.consumer.window, delivery.channel.window):
                if window is not None:
                    window.release(delivery.message.size)
                    others.update((consumer.queue, None) for consumer in window.let_on())
        for queue in others:
            queue.work()

    def give_up(self, why: str) -> None:
        """See `Holder.give_up`, and the head of this file: a backlog disconnects no client."""
        # Also channels whose consumers were cancelled, and those of `get`.
        stuck = list(dict.fromkeys(delivery.channel for delivery in self._unacked.values()))
        for channel in stuck:
            ended = list(channel.consumers)
            channel.close(failed=True)
            for consumer in ended:
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
        if self.shelf is not None or self._refuses or self.keeps_backlog:
            logger.warning(
                "queue %s keeps what it has accepted; its publishers wait until consumers make "
                "room, or its disk budget is raised", self.name,
                extra={"event": "queue_full", "queue": self.name, "why": why},
            )  # fmt: skip
            self.settled()
            return
        while (first := self._fetch()) is not None:
            self.counters.written_off += 1
            self._finish(first, Outcome.WRITTEN_OFF)

    # -- looking -----------------------------------------------------------------------------------

    @property
    def is_short(self) -> bool:
        """Whether a message waits, unconfirmed, for room in the disk budget."""
        writer = self._writer
        return writer.short and writer.trouble is None and writer.unwritten > 0

    @property
    def next_seq(self) -> int:
        """The number of the next message."""
        return self._next_seq

    @property
    def unacked(self) -> int:
        """The number of messages that are delivered and not acknowledged."""
        return len(self._unacked)

    def statistics(self) -> QueueStatistics:
        """Return statistics of the queue; costs time in proportion to the unacked messages."""
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
