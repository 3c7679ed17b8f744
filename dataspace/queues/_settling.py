"""The part of a queue that ends deliveries: acknowledged, requeued, rejected.

Rules of this file:
1. Whatever a consumer says of several deliveries is done for all of them before the queue works
   again, and before any other queue that its windows held up.

Source: AMQP 0-9-1 and RabbitMQ (rabbit_amqqueue_process.erl, rabbit_queue_consumers.erl).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...accounts import LoanedItem, Outcome
from ...accounts._loan import settle_whole
from ._channel import Channel, Delivery
from ._contents import QueueContents
from ._message import DeathReason, Message

if TYPE_CHECKING:
    from ._consumer import Consumer
    from ._serving import ServingQueue


class SettlingQueue(QueueContents):
    """A queue whose deliveries come back; see `Queue` for the arguments."""

    __slots__ = ("_again", "_working")

    def _begin_settling(self) -> None:
        """Initialise this part of a queue. For the constructor."""
        self._working = self._again = False

    def _take_back(self, delivery: Delivery) -> list[ServingQueue]:
        """Take a delivery out of its consumer's hands; return other queues that can go on."""
        message = delivery.message
        del self._unacked[message.seq]
        self._unacked_bytes -= message.size
        self.rates.settled += 1
        consumer = delivery.consumer
        if consumer is None:
            return []
        consumer.outstanding -= 1
        consumer.progressed_at = self.ledger.clock()
        others: list[ServingQueue] = []
        for window in (consumer.window, delivery.channel.window):
            if window is not None:
                window.release(message.size)
                if window.waiting:
                    others += [each.queue for each in window.let_on() if each.queue is not self]
        return others

    def _take_all_back(self, deliveries: Sequence[Delivery]) -> dict[ServingQueue, None]:
        """Take deliveries out of their consumers' hands; as `_take_back`, with one look at each."""
        others: dict[ServingQueue, None] = {}
        now = self.ledger.clock()
        unacked = self._unacked
        nbytes = 0
        taken: dict[tuple[Consumer, Channel], tuple[int, int]] = {}
        for delivery in deliveries:
            message = delivery.message
            del unacked[message.seq]
            size = message.size
            nbytes += size
            if delivery.consumer is not None:
                key = delivery.consumer, delivery.channel
                items, its_bytes = taken.get(key, (0, 0))
                taken[key] = items + 1, its_bytes + size
        self._unacked_bytes -= nbytes
        self.rates.settled += len(deliveries)
        for (consumer, channel), (items, its_bytes) in taken.items():
            consumer.outstanding -= items
            consumer.progressed_at = now
            for window in (consumer.window, channel.window):
                if window is not None:
                    window.release(its_bytes, items)
                    if window.waiting:
                        for each in window.let_on():
                            if each.queue is not self:
                                others[each.queue] = None
        return others

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
        unacked = self._unacked
        mine: list[Delivery] = []
        messages: list[Message] = []
        loans: list[LoanedItem[list[Any]]] = []
        written: list[int] = []
        for delivery in deliveries:
            message = delivery.message
            if unacked.get(message.seq) is not delivery:
                continue
            # Or one of them might be written, into the room that those before it make.
            message.finished = True
            mine.append(delivery)
            messages.append(message)
            if delivery.loan.items:
                loans.append(delivery.loan)
            if message.ticket is not None:
                written.append(message.seq)
        if written:
            assert self.shelf is not None
            self.shelf.done(written)
        self.backing.forget(messages)
        others = self._take_all_back(mine)
        settle_whole(loans, Outcome.ACKED)
        for message in messages:
            if message.persistent or message.ticket is not None or message.confirm is not None:
                self._close(message, erased=True)
            else:
                message.pending = False
                message.loan = None
        if self._writer.short:
            self._relieve()
        self.counters.acked += len(mine)
        self.work()
        for queue in others:
            queue.work()

    def requeued(self, deliveries: Sequence[Delivery], *, failed: bool) -> None:
        """Put deliveries back to their places; `failed` counts. For `Channel`."""
        others: dict[ServingQueue, None] = {}
        limit = self.settings.delivery_limit
        back: list[Message] = []
        dead: list[Delivery] = []
        for delivery in deliveries:
            message = delivery.message
            if self._unacked.get(message.seq) is not delivery:
                continue
            others.update(dict.fromkeys(self._take_back(delivery)))
            message.pending = False
            message.redelivered = True
            message.failures += failed
            if failed and limit is not None and message.failures > limit:
                dead.append(delivery)
            elif delivery.loan.items:
                self._return_loan(delivery)
                back.append(message)
            else:
                # Its consumer has settled the loan: the message has ended.
                self.backing.forget((message,))
                self._close(message)
        self.counters.requeued += len(back)
        self.counters.failed += len(dead)
        self._come_back(back)
        self._condemn(dead, DeathReason.DELIVERY_LIMIT)
        self.settled()
        self.work()
        for queue in others:
            queue.work()

    def rejected(self, deliveries: Sequence[Delivery]) -> None:
        """Dead-letter or drop messages that a consumer rejected without requeue. For `Channel`."""
        others: dict[ServingQueue, None] = {}
        gone: list[Delivery] = []
        for delivery in deliveries:
            message = delivery.message
            if self._unacked.get(message.seq) is delivery:
                others.update(dict.fromkeys(self._take_back(delivery)))
                message.pending = False
                gone.append(delivery)
        self.counters.rejected += len(gone)
        self._condemn(gone, DeathReason.REJECTED)
        self.work()
        for queue in others:
            queue.work()

    def _return_loan(self, delivery: Delivery) -> None:
        message = delivery.message
        if message.at_rest:
            self._rest.put_back(delivery.loan)
            message.loan = None

    def _come_back(self, messages: list[Message]) -> None:
        if self._working:
            self._returned += messages
        elif messages:
            self._put_back(messages)

    def _condemn(self, deliveries: Sequence[Delivery], reason: DeathReason) -> None:
        """Let messages die that were in a consumer's hands.

        One whose event is not in RAM any more has to be read first, to be a dead letter: it waits
        for that in its place, counted among those that are ready.
        """
        doomed: list[Message] = []
        for delivery in deliveries:
            message = delivery.message
            here = message.event is not None or delivery.event is not None or not message.written
            if not here and self._dead_letter is not None and delivery.loan.items:
                self._return_loan(delivery)
                message.doomed = reason
                doomed.append(message)
                continue
            self.backing.forget((message,))
            if message.event is None:
                message.event = delivery.event
            if delivery.loan.items:
                self._die(message, reason)
            else:
                self._close(message)
        self._doomed += len(doomed)
        self._come_back(doomed)
