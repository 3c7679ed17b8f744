"""Deliveries, and the channel on which their tags are acknowledged."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

from ...accounts import LoanedItem, Outcome, Turn
from ...accounts._outcome import outcome_of
from ._errors import QueueDeletedError, UnknownTagError
from ._prefetch import PrefetchWindow

if TYPE_CHECKING:
    from ._consumer import Consumer
    from ._message import Message
    from ._serving import ServingQueue

DENSE = 4
"""A `multiple` ack looks at the tags one by one if at least one in this many is outstanding."""


class Delivery:
    """One message in the hands of one consumer, until it is acknowledged.

    As a context manager it is acked at the end of the block; if the block raises, it is rejected
    into the queue, which counts towards the delivery limit; if it is cancelled, it is requeued::

        with delivery as event:
            with delivery.turn() as turn:  # the ultimate cause pays
                turn.publish(dataspace, answer(event))

    Attributes:
        tag: Its delivery tag: from 1, increasing, by channel.
        message: The message.
        event: The published event. A consumer that holds many and needs it no more may set it to
            None, so that it can be paged out.
        redelivered: Whether some consumer may have had it before.
        loan: The loan of its one message, held by the queue. An outlet can forward it. With
            `no_ack` it may be given to another holder.
        queue: The queue that it came from.
        consumer: The consumer that has it; None after `Queue.get`.
        channel: The channel to acknowledge it on.
    """

    __slots__ = (
        "_entered", "channel", "consumer", "event", "loan", "message", "queue", "redelivered",
        "tag",
    )  # fmt: skip

    def __init__(
        self,
        tag: int,
        message: Message,
        loan: LoanedItem[list[Any]],
        queue: ServingQueue,
        channel: Channel,
        consumer: Consumer | None,
    ) -> None:
        self.tag = tag
        self.message = message
        self.event: Any = message.event
        self.redelivered = message.redelivered
        self.loan = loan
        self.queue = queue
        self.channel = channel
        self.consumer = consumer

    def __repr__(self) -> str:
        again = ", redelivered" if self.redelivered else ""
        return f"<Delivery {self.tag} of {self.queue.name}: message {self.message.seq}{again}>"

    def ack(self) -> None:
        """Acknowledge it. See `Channel.ack`."""
        self.channel.ack(self.tag)

    def nack(self, *, requeue: bool = True) -> None:
        """Return it unprocessed. See `Channel.nack`."""
        self.channel.nack(self.tag, requeue=requeue)

    def reject(self, *, requeue: bool = True) -> None:
        """Return it as failed. See `Channel.reject`."""
        self.channel.reject(self.tag, requeue=requeue)

    def turn(self) -> Turn:
        """Return a turn that the ultimate cause of this message pays for (rule 2)."""
        return self.loan.turn()

    def __enter__(self) -> Any:
        # The loan changes accounts in place when the message comes to rest meanwhile.
        account = self.loan.account
        self._entered = account, account.ledger.enter(account)
        return self.event

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        account, task = self._entered
        account.ledger.leave(account, task)
        if self.tag not in self.channel.unacked:
            return  # it was acknowledged in the block, or the channel has gone
        if exc is None:
            self.ack()
        elif outcome_of(exc) is Outcome.CANCELLED:
            self.nack()
        else:
            self.reject()


class Channel:
    """Delivery tags of one consumer, or of several on one connection.

    Tags are integers from 1. `multiple` means a tag and all outstanding ones below it, and the tag
    itself has to be outstanding; 0 with `multiple` means all outstanding ones.

    Source: RabbitMQ's rabbit_channel.erl, `collect_acks`.

    Args:
        name: Its name for operators.
        window: Shared by all consumers on this channel, beside the windows of their own; as
            basic.qos with the global flag in RabbitMQ. `Queue.get` needs no room, and takes none.

    Attributes:
        consumers: The consumers on it.
        closed: Whether it is closed.
        last_tag: The tag of the last delivery; queues draw the next.
        unacked: The outstanding deliveries, by tag: those that may be acknowledged.
    """

    __slots__ = ("_lowest", "closed", "consumers", "last_tag", "name", "unacked", "window")

    def __init__(self, name: str = "", *, window: PrefetchWindow | None = None) -> None:
        self.name = name
        self.window = window
        self.consumers: dict[Consumer, None] = {}
        self.closed = False
        self.unacked: dict[int, Delivery] = {}
        self.last_tag = 0
        # No outstanding tag is below this one: a `multiple` ack need not look further.
        self._lowest = 1

    def __repr__(self) -> str:
        return f"<Channel {self.name}: {len(self.unacked)} unacked>"

    def __len__(self) -> int:
        """Return the number of outstanding deliveries."""
        return len(self.unacked)

    def __bool__(self) -> bool:
        """Return true: a channel on which nothing is outstanding is a channel, too."""
        return True

    def outstanding(self) -> list[Delivery]:
        """Return the unacknowledged deliveries, in order."""
        return [self.unacked[tag] for tag in sorted(self.unacked)]

    # -- for consumers --------------------------------------------------------------------------

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        """Acknowledge a delivery: its debt is repaid as `acked`, and it is erased.

        Raises:
            UnknownTagError: If `tag` is not outstanding. Nothing is acknowledged then.
        """
        if not multiple:
            delivery = self.unacked.pop(tag, None)
            if delivery is None:
                raise self._unknown(tag)
            delivery.queue.acked(delivery)
            return
        found = self._take_up_to(tag)
        if len(found) == 1:
            found[0].queue.acked(found[0])
            return
        for queue, deliveries in self._by_queue(found):
            queue.all_acked(deliveries)

    def nack(self, tag: int, *, multiple: bool = False, requeue: bool = True) -> None:
        """Return a delivery: it goes back to its place, or is dead-lettered or dropped.

        This does not count towards the delivery limit; `reject` does.

        Raises:
            UnknownTagError: If `tag` is not outstanding.
        """
        self._refuse(self._take(tag, multiple=multiple), requeue=requeue, failed=False)

    def reject(self, tag: int, *, requeue: bool = True) -> None:
        """Return a failed delivery: as `nack`, but it counts towards the delivery limit.

        Raises:
            UnknownTagError: If `tag` is not outstanding.
        """
        self._refuse(self._take(tag, multiple=False), requeue=requeue, failed=True)

    def recover(self) -> None:
        """Put all outstanding messages back into their queues."""
        self._refuse(self._take_up_to(0), requeue=True, failed=False)

    def close(self, *, failed: bool = False) -> None:
        """End all consumers on it, and put all outstanding messages back into their queues.

        With `failed`, these deliveries count towards the delivery limit, as those to a consumer
        whose connection has broken do in RabbitMQ's quorum queues. Idempotent.
        """
        if self.closed:
            return
        self.closed = True
        deliveries = self._take_up_to(0)
        # Leave the line first, or the queue would give it back the messages that it returns.
        consumers = list(self.consumers)
        for consumer in consumers:
            consumer.queue.retire(consumer)
        self._refuse(deliveries, requeue=True, failed=failed)
        for consumer in consumers:
            if consumer.on_channel_closed is not None:
                consumer.on_channel_closed(f"channel {self.name} is closed")
            consumer.queue.consumer_gone()

    def _take(self, tag: int, *, multiple: bool) -> list[Delivery]:
        if multiple:
            return self._take_up_to(tag)
        delivery = self.unacked.pop(tag, None)
        if delivery is None:
            raise self._unknown(tag)
        return [delivery]

    def _take_up_to(self, tag: int) -> list[Delivery]:
        unacked = self.unacked
        if not tag:
            tag = self.last_tag
        elif tag not in unacked:
            raise self._unknown(tag)
        if tag - self._lowest < DENSE * (len(unacked) + 1):
            tags = [each for each in range(self._lowest, tag + 1) if each in unacked]
        else:
            # Millions were acknowledged one by one since.
            tags = sorted(each for each in unacked if each <= tag)
        self._lowest = max(self._lowest, tag + 1)
        return [unacked.pop(each) for each in tags]

    def _unknown(self, tag: int) -> UnknownTagError:
        if self.closed:
            return UnknownTagError(f"channel {self.name} is closed; nothing is outstanding on it")
        state = "was settled before" if 0 < tag <= self.last_tag else "was never delivered"
        return UnknownTagError(f"unknown delivery tag {tag} on channel {self.name}: it {state}")

    @staticmethod
    def _by_queue(deliveries: list[Delivery]) -> list[tuple[ServingQueue, list[Delivery]]]:
        queues: dict[ServingQueue, list[Delivery]] = {}
        for delivery in deliveries:
            queues.setdefault(delivery.queue, []).append(delivery)
        return list(queues.items())

    def _refuse(self, deliveries: list[Delivery], *, requeue: bool, failed: bool) -> None:
        for queue, those in self._by_queue(deliveries):
            if requeue:
                queue.requeued(those, failed=failed)
            else:
                queue.rejected(those)

    # -- for queues -----------------------------------------------------------------------------

    def check_open(self) -> None:
        """Check that the channel is open for deliveries.

        Raises:
            QueueDeletedError: If it is closed.
        """
        if self.closed:
            msg = f"channel {self.name} is closed; open another one"
            raise QueueDeletedError(msg)
