"""The part of a queue that serves its consumers.

Rules of this file:
1. `work` does everything that the queue does by itself, after a commit or an acknowledgement and
   never inside one: take in arrived messages, deliver, keep to the limits, publish dead letters.
   Callbacks of consumers may call the queue; the effects follow when they have returned.
2. Consumers with room stand in line and are served in turn. One without room stands at the window
   that is full, and joins the line at its end when there is room again.
3. A message that has to be durable before it is delivered (`durable_first`) holds up those behind
   it, so that order holds (head-of-line blocking, on purpose).
4. A message that arrives while nothing is ready and some consumer has room goes straight through:
   it is never in the backing, and limits do not concern it.

Source: AMQP 0-9-1 and RabbitMQ (rabbit_amqqueue_process.erl, rabbit_queue_consumers.erl).
"""

from __future__ import annotations

import abc
import logging
import math
from collections.abc import Callable
from typing import Any

from ...accounts import Outcome
from .._events import Publication
from ._channel import Channel, Delivery
from ._consumer import Consumer
from ._errors import QueueDeletedError, QueueInUseError
from ._lines import Line, appended
from ._message import DeathReason, Message
from ._prefetch import PrefetchWindow
from ._settings import Overflow
from ._settling import SettlingQueue

logger = logging.getLogger("clearfunds.dataspace")

MAX_ROUNDS = 100
"""How often in a row consumers may refuse deliveries at once, so that the message comes back into
the queue by itself or as its own dead letter, before others go on."""


class ServingQueue(SettlingQueue):
    """A queue's consumers; see `Queue` for the arguments."""

    __slots__ = (
        "_active", "_due", "_said_too_large", "_unused_since", "consumers", "durable_first",
    )  # fmt: skip

    def _begin_serving(self) -> None:
        """Initialise this part of a queue. For the constructor."""
        self.consumers: dict[Consumer, None] = {}
        self.durable_first: Callable[[Any], bool] | None = None
        # Consumers with room, in the order in which they are served.
        self._active: Line[Consumer] = ()
        self._begin_settling()
        self._said_too_large = False
        # The time when `tick` must run for the backing, or for the rest of a round.
        self._due = math.inf
        self._unused_since = self.progressed_at

    @abc.abstractmethod
    def delete(self, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete the queue with all its messages."""

    # -- work --------------------------------------------------------------------------------------

    def work(self) -> None:
        """Do all the work there is, unless it is being done. Called after every change."""
        if self._working:
            self._again = True
            return
        if self.deleted or not (
            self._arrived or self._dying or self._returned or self.backing.ready
        ):
            return
        self._working = True
        rounds = MAX_ROUNDS
        try:
            self.rates.update(self.ledger.clock())
            while True:
                self._again = False
                if not self._arrived or self._take_arrived():
                    if self._active:
                        self._pump()
                    if self.deleted:
                        break
                    if not self._refuses:
                        self._keep_to_limits()
                    if self._has_ttl or self._doomed:
                        self._expire()
                elif self.deleted:
                    break
                refused = bool(self._dying or self._returned)
                if self._dying:
                    self._bury()
                if self._returned:
                    self._put_back_returned()
                if refused:
                    rounds -= 1
                    if not rounds:
                        # Some consumer refuses at once everything that it gets.
                        self._due = -math.inf
                        break
                elif not (self._again or self._arrived):
                    break
        finally:
            self._working = False

    def _take_arrived(self) -> bool:
        """Deliver what has arrived, or make it ready; False if nothing is ready after that."""
        ready = False
        arrived = self._arrived
        while arrived:
            message = arrived[0]
            if (
                self._active
                and not self.backing.ready
                and not self._returned
                and not (message.expires is not None and self._came_late(message))
            ):
                consumer = self._next_consumer()
                if consumer is not None and not (
                    self._waits_for_disk(message) and self._is_written_first(message)
                ):
                    # Straight through: it was never ready, and so has not waited.
                    if message.persistent and not consumer.no_ack:
                        self._writer.write_or_wait(message)
                    elif not message.persistent:
                        self._release(message)
                    arrived.popleft()
                    self.rates.left += 1
                    self._deliver(consumer, message)
                    continue
            ready = True
            arrived.popleft()
            if self._refuses and self._must_refuse(message):
                self._refuse(message)
                continue
            if message.persistent and not self._writer.write_or_wait(message):
                self._do_without(message)
                continue
            if not message.persistent:
                self._release(message)
            self._ready_bytes += message.size
            self.backing.publish(message)
        if self._arrived is arrived:  # else others have come meanwhile
            self._arrived = ()
        return ready

    def _came_late(self, message: Message) -> bool:
        """Whether its event had expired before it came; one that may wait 0 s has not."""
        event = message.event
        return isinstance(event, Publication) and event.has_expired(self._wall_now())

    @staticmethod
    def _release(message: Message) -> None:
        """Confirm a transient message: nothing more is done for it than to keep it."""
        confirm = message.confirm
        if confirm is not None:
            message.confirm = None
            confirm.taken()

    def _must_refuse(self, message: Message) -> bool:
        settings = self.settings
        return (
            (settings.max_length is not None and self.backing.ready >= settings.max_length)
            or (
                settings.max_bytes is not None
                and self._ready_bytes + message.size > settings.max_bytes
            )
            or (message.persistent and self._writer.trouble is not None)
        )

    def _do_without(self, message: Message) -> None:
        """End a message that is larger than the whole disk budget."""
        budget = self._writer.budget_bytes
        why = (
            f"a message of {message.size} bytes is more than queue {self.name} may have on disk at "
            f"all, {budget}: publish smaller ones, or raise its disk budget"
        )
        log = logger.debug if self._said_too_large else logger.warning
        self._said_too_large = True
        log("%s", why, extra={"event": "too_large", "queue": self.name, "bytes": message.size,
                              "budget": budget})  # fmt: skip
        if self._refuses:
            self._refuse(message, why)
        else:
            self.counters.dropped += 1
            self._die(message, DeathReason.MAX_LENGTH)

    def _refuse(self, message: Message, why: str | None = None) -> None:
        self.counters.refused += 1
        confirm, message.confirm = message.confirm, None
        trouble = self._writer.trouble
        if confirm is not None:
            full = f"queue {self.name} is full"
            confirm.refused(why or (full if trouble is None else trouble))
        if self.settings.overflow is Overflow.REJECT_PUBLISH_DLX and trouble is None:
            self._die(message, DeathReason.MAX_LENGTH)
        else:
            self._finish(message, Outcome.DROPPED)

    def _put_back_returned(self) -> None:
        returned, self._returned = self._returned, []
        self._put_back(returned)

    def _next_consumer(self) -> Consumer | None:
        """Return the consumer whose turn it is, if any has room."""
        active = self._active
        while active:
            consumer = active[0]
            full = consumer.full_window()
            if full is None:
                return consumer
            active.popleft()
            full.waiting[consumer] = None
        return None

    def _is_written_first(self, message: Message) -> bool:
        """Write a message that has to be durable first; whether it will be."""
        self._writer.write_now(message)
        return message.persistent

    def _waits_for_disk(self, message: Message) -> bool:
        durable_first = self.durable_first
        if durable_first is None or not self._persists:
            return False
        if message.at_rest or not message.persistent:
            return False
        try:
            return durable_first(message.event)
        except Exception:
            logger.exception("queue %s: a message is delivered only when it is durable", self.name)
            return True

    def _head(self) -> Message | None:
        """Return the first message that is ready, if it may have to be durable first."""
        if self.durable_first is None:
            return None
        message = self.backing.peek()
        # A message that is not in RAM is written, and may still not be durable; so it is checked
        # again.
        return message if message is not None and message.event is not None else None

    def _head_must_wait(self) -> bool:
        message = self._head()
        return (
            message is not None
            and self._waits_for_disk(message)
            and self._is_written_first(message)
        )

    def _pump(self) -> None:
        backing = self.backing
        while self._active and backing.ready and not self.deleted:
            consumer = self._next_consumer()
            if (
                consumer is None
                or (self._durable < self._mark_ticket and self._mark_is_awaited())
                or (self.durable_first is not None and self._head_must_wait())
            ):
                return
            message = self._fetch()
            if message is None:
                return
            if message.expires is not None and self._is_late(message):
                self._expired(message)
            else:
                self._deliver(consumer, message)

    # -- deliveries --------------------------------------------------------------------------------

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
            channel.unacked[delivery.tag] = delivery
        try:
            consumer.callback(delivery)
        except Exception as exc:
            logger.exception("a consumer of queue %s failed; it gets nothing more", self.name)
            if self.ledger.faults.ends:
                self.ledger.faults.note(self._whose(consumer), "delivering to it", exc)
            self._consumer_failed(consumer, delivery, f"its callback raised {exc!r}")
            return
        if consumer.no_ack:
            self._let_go(delivery)

    def _whose(self, consumer: Consumer) -> object:
        """Return the party at fault if a consumer fails; see `Faults.note`."""
        del consumer
        return self

    def _hand_out(self, message: Message, channel: Channel, consumer: Consumer | None) -> Delivery:
        """Make a delivery of a message that no consumer has."""
        loan = message.loan
        if loan is None:
            loan = self._rest.take([message.event], 1, message.size, self.ledger.clock())
            message.loan = loan
        elif message.deliveries or not loan.item:
            loan.item = [message.event]
        counters = self.counters
        counters.delivered += 1
        counters.redelivered += message.redelivered
        seq = message.seq
        if seq >= self._delivered_upto:
            self._delivered_upto = seq + 1
        channel.last_tag += 1
        delivery = Delivery(channel.last_tag, message, loan, self, channel, consumer)
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
        elif delivery.tag in delivery.channel.unacked:
            delivery.reject()
        self._notify(consumer, why)
        self.consumer_gone()

    # -- consumers ---------------------------------------------------------------------------------

    def check_exists(self) -> None:
        """Check that the queue is still there.

        Raises:
            QueueDeletedError: If it was deleted.
        """
        if self.deleted:
            msg = f"queue {self.name} has been deleted; declare it again"
            raise QueueDeletedError(msg)

    def touch(self) -> None:
        """Note that it is in use: it has been declared once more, say."""
        self._unused_since = self.ledger.clock()

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
            callback: Called with each delivery.
            window: How much may be outstanding; by default any number. It is this consumer's own,
                unless it is given to several.
            channel: The channel of its acknowledgements; by default one of its own.
            no_ack: Whether deliveries are settled when they are made. The callback may give a
                `Delivery.loan` to another holder (an outlet); otherwise it ends as `delivered` when
                the callback returns.
            exclusive: Whether to be the only one.
            on_cancelled: Called with a sentence if the queue ends the consumer.

        Raises:
            QueueInUseError: If there is an exclusive consumer, or it wants to be one and is not the
                first.
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
        self._active = appended(self._active, consumer)
        self.work()
        return consumer

    def get(self, channel: Channel, *, no_ack: bool = False) -> Delivery | None:
        """Take the first message, if there is one; prefetch windows do not matter.

        None: there is none, or it is not in RAM yet (see `waiting`); then call again later. A
        consumer's callback always gets None. With `no_ack` the message is settled at once.

        Raises:
            QueueDeletedError: If the queue, or the channel, is no more.
        """
        self.check_exists()
        channel.check_open()
        self.touch()
        self._attach()
        if self._working:
            # Called by a consumer's callback: arrived messages are served in their order.
            return None
        self.work()
        while self.backing.ready and not self._mark_is_awaited() and not self._head_must_wait():
            message = self._fetch()
            if message is None:
                break
            if self._is_late(message):
                self._expired(message)
                continue
            delivery = self._hand_out(message, channel, None)
            if no_ack:
                self.backing.forget((message,))
                self._let_go(delivery)
            else:
                channel.unacked[delivery.tag] = delivery
            return delivery
        self.work()
        return None

    @property
    def waiting(self) -> bool:
        """Whether ready messages must wait for the disk before they can be delivered.

        They are being read; or the record of their delivery, or they themselves (`durable_first`),
        are not durable yet.
        """
        if not self.backing.ready:
            return False
        if self.backing.waiting or (
            self._durable < self._mark_ticket and self._writer.trouble is None
        ):
            return True
        head = self._head()
        return head is not None and self._waits_for_disk(head)

    def resume(self, consumer: Consumer) -> None:
        """Put a consumer that has room again back in line. For windows."""
        if not consumer.cancelled:
            self._active = appended(self._active, consumer)

    def retire(self, consumer: Consumer) -> None:
        """Take a consumer out of the line for good. For `Consumer` and `Channel`."""
        consumer.cancelled = True
        self.consumers.pop(consumer, None)
        if not self.consumers:
            self.consumers.clear()  # gives back the memory of its table
        consumer.channel.consumers.pop(consumer, None)
        consumer.window.waiting.pop(consumer, None)
        if consumer.channel.window is not None:
            consumer.channel.window.waiting.pop(consumer, None)
        if self._active and consumer in self._active:
            self._active.remove(consumer)
        if not self._active:
            self._active = ()

    def consumer_gone(self) -> None:
        """Handle the departure of a consumer. For `Consumer` and `Channel`."""
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
