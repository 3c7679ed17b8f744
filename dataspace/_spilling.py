"""Messages that a lagging mailbox has spilled to a queue, and their return (`StuckPolicy.SPILL`).

The queue is another holder, with a disk. New messages go there in the turn in which they come;
their publisher owes until they are on disk, and nobody waits for the consumer. They come back in
order, a window of them at a time, as the consumer makes room; the queue erases those that have been
received. When all have come back, the mailbox has caught up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..accounts import Account, LoanedItem, Outcome, UnfitPolicyError
from .queues import PrefetchWindow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._mailbox import Mailbox
    from .queues import Consumer, Delivery, Queue

SPILL_WINDOW: Final = 64
"""How many messages of a queue stand in the mailbox to be received: enough for one read from disk
to serve several."""


class Spilling:
    """One spell of spilling; made when the mailbox is relieved."""

    __slots__ = ("_account", "_consumer", "_copies", "_mailbox", "_queue")

    def __init__(self, mailbox: Mailbox, queue: Queue, account: Account) -> None:
        self._mailbox = mailbox
        self._queue = queue
        self._account = account
        self._consumer: Consumer | None = None
        # Messages that stand in the mailbox and are still in the queue.
        self._copies: dict[LoanedItem[Any], Delivery] = {}

    def put(self, account: Account, entry: Any, items: int, nbytes: int, now: float) -> None:
        """Put a message of `account` into the queue; it owes until the queue has it on disk."""
        self._queue.hold(account, entry, items, nbytes, now)

    def ready(self) -> None:
        """Let the queue finish its work after a commit, and read some messages back."""
        self._queue.ready()
        if self._consumer is None and not self._queue.deleted:
            self._consumer = self._queue.consume(
                self._come_back,
                window=PrefetchWindow(SPILL_WINDOW),
                exclusive=True,
                on_cancelled=self._ended,
            )
            self._consumer.on_channel_closed = self._ended

    def _come_back(self, delivery: Delivery) -> None:
        size = delivery.message.size
        loan = LoanedItem[list[Any]](self._account, [delivery.event], 1, size, self._mailbox)
        self._copies[loan] = delivery
        self._mailbox.append(loan)
        self._mailbox.ready()

    def received(self, loan: LoanedItem[Any]) -> None:
        """Note that the consumer has received this one: the queue needs it no more."""
        delivery = self._copies.pop(loan, None)
        if delivery is not None and delivery.tag in delivery.channel.unacked:
            delivery.ack()

    def waited_for(self) -> Iterator[LoanedItem[Any]]:
        """Yield the loans for which publishers wait: none, they wait for the queue."""
        return iter(())

    @property
    def is_over(self) -> bool:
        """Whether all messages have come back."""
        return not self._copies and not len(self._queue)

    def _ended(self, why: str) -> None:
        # The queue has all of them back, and gives them to its next consumer, unless it is deleted.
        self._consumer = None
        if not self._queue.deleted:
            self._take_back()

    def _take_back(self) -> None:
        copies = list(self._copies)
        self._copies.clear()
        for loan in copies:
            self._mailbox.queue.remove(loan)
            loan.settle(outcome=Outcome.CANCELLED)

    def end(self) -> None:
        """Consume no more; messages that have not been received stay in the queue."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.on_cancelled = consumer.on_channel_closed = None
            self._take_back()
            consumer.channel.close()


def check_spill(name: str, queue: Queue) -> None:
    """Check that a mailbox called `name` can spill to `queue`.

    Raises:
        UnfitPolicyError: If not.
    """
    if queue.shelf is None:
        why = f"queue {queue.name} has no shelf, so that publishers would wait on it instead"
    elif not queue.settings.durable:
        why = f"queue {queue.name} is not durable, so that publishers would wait on it instead"
    elif queue.settings.auto_delete:
        why = f"queue {queue.name} would delete itself when the mailbox has caught up"
    else:
        return
    msg = f"mailbox {name} cannot spill when it is stuck: {why}"
    raise UnfitPolicyError(msg)
