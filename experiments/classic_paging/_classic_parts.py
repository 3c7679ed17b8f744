"""Parts of the classic paging policy: its parameters, its delta, its credit with the store."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import attrs

from clearfunds.dataspace.queues._message import Message
from experiments.credit_flow import STORE_CREDIT, Credit, CreditFlow


def _positive(_: object, attribute: attrs.Attribute[Any], value: int) -> None:
    if value < 1:
        msg = f"{attribute.name} must be at least 1, not {value}"
        raise ValueError(msg)


@attrs.frozen(slots=True, kw_only=True)
class ClassicSettings:
    """The parameters of the classic paging policy; each with RabbitMQ's default."""

    credit: Credit = STORE_CREDIT
    """Messages that may be on their way to the shelf, and the number of durable ones after which
    more may be: msg_store_credit_disc_bound."""
    io_batch_size: int = attrs.field(default=4096, validator=_positive)
    """Unloaded messages beyond those permitted that may have an object in RAM, before these objects
    are dropped: msg_store_io_batch_size, since 3.5.5."""
    segment: int = attrs.field(default=16_384, validator=_positive)
    """Places in a segment of the queue's index: SEGMENT_ENTRY_COUNT."""
    embed_below: int = attrs.field(default=4096, validator=_positive)
    """Bytes from which on a message takes credit; smaller ones are in the index itself:
    queue_index_embed_msgs_below."""
    read_ahead: int = attrs.field(default=128, validator=_positive)
    """Least messages read at a time; more if consumers are fast. RabbitMQ reads one at a time and
    waits for it."""
    reduce_every: int = attrs.field(default=1000, validator=_positive)
    """Messages that come or come back between two checks whether there are too many in RAM:
    queue_explicit_gc_run_operation_threshold."""


class Delta:
    """A range of the queue with nothing in RAM.

    Attributes:
        start: The lowest number that may be in it.
        count: The number of messages in it.
        end: The lowest number above all of them.
    """

    __slots__ = ("count", "end", "start")

    def __init__(self, start: int = 0, count: int = 0, end: int = 0) -> None:
        self.start = start
        self.count = count
        self.end = end

    def __repr__(self) -> str:
        return f"<Delta: {self.count} in {self.start}..{self.end}>"

    def expand(self, seq: int) -> None:
        """Add one more, at either end."""
        if not self.count:
            self.start, self.end = seq, seq + 1
        elif seq < self.start:
            self.start = seq
        else:
            self.end = seq + 1
        self.count += 1

    def shrink(self, start: int, count: int) -> None:
        """Remove the first `count`; the rest begins at `start`."""
        self.start = start
        self.count -= count

    def clear(self) -> None:
        """Remove all."""
        self.start = self.count = self.end = 0


class StoreCredit:
    """The credit between a queue and its shelf: a limit on the writes on their way to the disk.

    It has both sides, since a shelf knows nothing of credit: durable messages count as handled.
    (RabbitMQ's store acknowledges messages that it has written to its file, before it is synced; a
    shelf reports only the sync.)

    Attributes:
        queue: The queue's side: whether it is blocked, by the store, and since when.
        store: The store's.
    """

    __slots__ = ("_credit", "_embed_below", "_under_way", "queue", "store")

    def __init__(self, settings: ClassicSettings, clock: Callable[[], float]) -> None:
        self._credit = settings.credit
        self._embed_below = settings.embed_below
        # The tickets of messages that have taken credit and are not durable.
        self._under_way: deque[int] = deque()
        # The queue grants credit to nobody: accounts do that.
        self.queue = CreditFlow[str]("queue", self._nobody, clock=clock)
        self.store = CreditFlow[str]("store", self._grant, clock=clock)

    def _grant(self, to: str, quantity: int) -> None:
        del to
        self.queue.handle_bump("store", quantity)

    def _nobody(self, to: str, quantity: int) -> None:
        """Tell nobody."""

    @property
    def blocked(self) -> bool:
        """Whether nothing more should be written for now."""
        return self.queue.blocked

    def wrote(self, message: Message) -> None:
        """Take credit for a message that has just been written, unless it is small."""
        if message.size >= self._embed_below and message.ticket is not None:
            self.queue.send("store", self._credit)
            self._under_way.append(message.ticket)

    def durable(self, ticket: int) -> None:
        """Give back the credit of all messages up to this ticket."""
        under_way = self._under_way
        while under_way and under_way[0] <= ticket:
            under_way.popleft()
            self.store.ack("queue", self._credit)
