"""A binding: one pattern whose events go into a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...accounts import Account, Holder, Recipient

if TYPE_CHECKING:
    from .._dataspace import Dataspace, Observation
    from ._queue import Queue


class Binding(Recipient):
    """One way into a queue; made by `Queue.bind`, or `Queue.way_in` for your own observations.

    An event that comes in by several at once, such as a publication that matches several patterns,
    is in the queue once, with the highest of their tags.

    Attributes:
        queue: The queue that it leads to.
        tag: Noted in the messages that come by it; for MQTT, the QoS that is granted.
        dataspace: The dataspace that it observes; None if `Queue.way_in` made it.
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
        return self.queue

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        self.queue.take_in(account, item, items, nbytes, now, self)

    def ready(self) -> None:
        self.queue.ready()
