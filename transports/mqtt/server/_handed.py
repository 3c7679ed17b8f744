"""Deliveries of groups to one connection, to be acknowledged (shared subscriptions).

The group holds a message until it is acknowledged (`dataspace.queues.Group`). The connection has a
packet identifier for it, and sends its bytes with the rest of its output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ....accounts import Outcome
from ....dataspace.queues import Delivery, PrefetchWindow

if TYPE_CHECKING:
    from ....dataspace import Publication
    from ._framing import Framing


class Taker(Protocol):
    """Assigns packet identifiers to messages of a group: `Inflight`, or `PersistentInflight`."""

    def __len__(self) -> int:
        """Return the number of unacknowledged publications."""
        ...

    @property
    def room(self) -> PrefetchWindow:
        """The client's in-flight window (prefetch)."""
        ...

    def take(self, delivery: Delivery, publication: Publication, framing: Framing) -> None:
        """Send a publication that a group holds, encoded by `framing`."""
        ...


def end(delivery: Delivery, outcome: Outcome = Outcome.ACKED) -> None:
    """End a delivery; does nothing if its group has given it to another member, or has ended."""
    if delivery.tag not in delivery.channel.unacked:
        return
    if outcome is not Outcome.ACKED and delivery.loan.items:
        delivery.loan.settle(outcome=outcome)
    delivery.channel.ack(delivery.tag)


def drop(delivery: Delivery, outcome: Outcome) -> None:
    """End a delivery that is not sent; its queue counts it as acknowledged."""
    counters = delivery.queue.counters
    if outcome is Outcome.EXPIRED:
        counters.expired += 1
    else:
        counters.dropped += 1
    # The loan says that the client did not acknowledge it.
    end(delivery, outcome)


def let_on(window: PrefetchWindow) -> None:
    """Let consumers go on that wait for room in a window, if it has room."""
    if window.waiting:
        for queue in {consumer.queue: None for consumer in window.let_on()}:
            queue.work()
