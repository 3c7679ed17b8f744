"""What groups hand to one connection, to be acknowledged (shared subscriptions).

A group keeps it in its hands until it is acknowledged (`dataspace.queues.Group`); the connection
has a packet identifier for it, and the bytes go out with everything else of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ...accounts import Outcome
from ...dataspace.queues import Delivery, PrefetchWindow

if TYPE_CHECKING:
    from ...dataspace import Publication
    from ._framing import Framing


class Taker(Protocol):
    """Has packet identifiers for messages of a group: `Inflight`, or `PersistentInflight`."""

    def __len__(self) -> int:
        """Return how many publications are not acknowledged."""
        ...

    @property
    def room(self) -> PrefetchWindow:
        """The window that whatever is under way to the client is counted in."""
        ...

    def take(self, delivery: Delivery, publication: Publication, framing: Framing) -> None:
        """Send a publication that a group holds, as `framing` has it."""
        ...


def end(delivery: Delivery, outcome: Outcome = Outcome.ACKED) -> None:
    """End a delivery; its group may have given it to somebody else, or have ended."""
    if not delivery.channel.is_outstanding(delivery.tag):
        return
    if outcome is not Outcome.ACKED and delivery.loan.items:
        delivery.loan.settle(outcome=outcome)
    delivery.ack()


def drop(delivery: Delivery, outcome: Outcome) -> None:
    """End a delivery that is not to be sent: for its queue it is acknowledged."""
    counters = delivery.queue.counters
    if outcome is Outcome.EXPIRED:
        counters.expired += 1
    else:
        counters.dropped += 1
    # It is not the client who has done so.
    end(delivery, outcome)


def let_on(window: PrefetchWindow) -> None:
    """Let those go on who wait for room in a window, if there is some."""
    if window.waiting:
        for queue in {consumer.queue: None for consumer in window.let_on()}:
            queue.work()
