"""What stands before a queue: one pattern that it is bound to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...accounts import Account, Holder, Recipient

if TYPE_CHECKING:
    from .._dataspace import Dataspace, Observation
    from ._queue import Queue


class Binding(Recipient):
    """One way into a queue; made by `Queue.bind`, or `Queue.way_in` for observations of one's own.

    What comes in by several at once, as one publication does that matches several patterns, is in
    the queue once, with the highest of their tags.

    Attributes:
        queue: Where it leads.
        tag: Noted in the messages that come by it; for MQTT, the QoS that is granted.
        dataspace: Where it is bound; None if `Queue.way_in` made it.
        observation: Its observation there.
    """

    __slots__ = ("dataspace", "observation", "queue", "tag")

    def __init__(self, queue: Queue, tag: int | None, dataspace: Dataspace | None = None) -> None:
        self.queue = queue
        self.tag = tag
        self.dataspace = dataspace
        self.observation: Observation | None = None

    def __repr__(self) -> str:
        return f"<Binding of {self.queue.name}, tag {self.tag}>"

    @property
    def last_holder(self) -> Holder:
        """See `Recipient.last_holder`."""
        return self.queue

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        """See `Recipient.hold`."""
        self.queue.take_in(account, item, items, nbytes, now, self)

    def ready(self) -> None:
        """See `Recipient.ready`."""
        self.queue.ready()
