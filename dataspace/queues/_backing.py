"""The place of a queue's ready messages: RAM, disk, or some of each. The policy of paging.

RabbitMQ calls this the backing queue. Rules of this file:
1. A backing knows *where ready messages are* and nothing else. Accounts, confirms, consumers,
   limits and durability are the queue's business. Any two backings are indistinguishable from
   outside, except for the messages in RAM and when `fetch` has to wait.
2. Order is by `Message.seq`. Messages are delivered lowest first, so one that comes back has a
   lower one than every message that was never delivered: `requeue` never has to look into the
   middle of the messages on disk.
3. A message that was not written (`Pager.write`) is in RAM only and stays there. One that was may
   be unloaded at once: the shelf can be read before it is durable.
4. Nothing here awaits, and nothing is called back from inside a call: `Pager` and `Shelf` do not
   call the backing while it calls them, and neither do `paged_in` and the like come from inside
   `fetch`.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import attrs

from ._message import Message
from ._rates import Rates
from ._shelf import Shelf


class Pager(Protocol):
    """The services of a queue for its backing."""

    @property
    def shelf(self) -> Shelf | None:
        """The shelf to read from (`Shelf.want`); None: everything stays in RAM."""
        ...

    @property
    def rates(self) -> Rates:
        """The rates at which messages come and go; updated by the queue."""
        ...

    def write(self, message: Message) -> bool:
        """Write `message` to the shelf if need be, and return whether it is there.

        True if it was written before, or has been now (`message.ticket` is set; it can be unloaded
        and read back at once). False if there is no shelf, it is in trouble, or the disk budget is
        spent: then the message has to stay in RAM. The queue itself writes such a message later if
        it is persistent; a backing that wants to page others out tries again at `relieve`.
        """
        ...

    def unsynced(self, seq: int) -> Message | None:
        """Return the message that was written and is not durable yet, if there is one.

        A message that is read back (`Backing.paged_in`) is another object for the same message.
        This one has its loan and its confirm, so use this one: put the event into it.
        """
        ...

    def lost(self, count: int) -> None:
        """Note that `count` messages that should be on the shelf are missing there."""
        ...


@attrs.frozen(slots=True)
class BackingStatistics:
    """The places of a queue's messages."""

    policy: str
    """The backing's name, such as `steady`."""
    ready: int
    """Messages that wait for a consumer."""
    ready_in_ram: int
    """Those of them whose event is in RAM."""
    pending_in_ram: int
    """Messages that are delivered and unacknowledged, with their event in RAM."""
    ram_bytes: int
    """Bytes of both."""
    disk_only: int
    """Ready messages with no object in RAM."""
    ram_target: int | None
    """Messages that may be in RAM now, by the policy; None: any number."""
    paged_out: int
    """Messages ever paged out."""
    paged_in: int
    """Messages ever read back."""
    reads: int
    """Batches ever requested from the shelf."""


class Backing(abc.ABC):
    """The place of a queue's ready messages.

    The life of a message, as a backing sees it:

        publish -> [ready] -> fetch -> (dropped: the backing hears no more of it)
                                    -> pending -> forget
                                               -> requeue -> [ready] -> fetch ...
        pending alone, without publish: it was delivered as soon as it came, nothing was ready

    Persistent messages of a durable queue have been written, where the disk budget allowed it,
    before `publish` or `pending` is called with them; the backing has others written
    (`Pager.write`) when it wants them out of RAM.

    Args:
        pager: The queue.

    Attributes:
        ready: The number of ready messages, wherever they are; each backing counts its own.
        waiting: Whether a read is under way (`Shelf.want`, not yet answered by `paged_in`). There
            is one at a time.
    """

    __slots__ = ("pager", "ready", "waiting")

    policy = "backing"
    """A name for people and metrics."""

    def __init__(self, pager: Pager) -> None:
        self.pager = pager
        self.ready = 0
        self.waiting = False

    # -- messages come and go -------------------------------------------------------------------

    @abc.abstractmethod
    def publish(self, message: Message) -> None:
        """Put a new message, which has its event, behind all others."""

    @abc.abstractmethod
    def fetch(self) -> Message | None:
        """Take the first message, with its event in RAM.

        None when there is none, or when its event is not in RAM: then a read is under way
        (`waiting`), having been started at the latest by this call, and the queue asks again after
        `paged_in`. May start a read ahead in any case.
        """

    @abc.abstractmethod
    def peek(self) -> Message | None:
        """Return the message that `fetch` would, and leave it there; may start a read likewise.

        A message whose event is not in RAM may be returned if the object itself is there: the
        caller wants to know when it expires.
        """

    @abc.abstractmethod
    def requeue(self, messages: Sequence[Message]) -> None:
        """Put pending messages back to their places, by their `seq`. They are in any order.

        The event of one that was unloaded while it was pending is None: it has to be read back.
        """

    @abc.abstractmethod
    def pending(self, message: Message) -> None:
        """Note that a message, just fetched or never published here, is delivered and unacked.

        From now on it counts as RAM that the queue uses. The queue keeps it. A policy that pages
        out pending messages keeps track of it too, and may `Message.unload` it once it is written.
        """

    @abc.abstractmethod
    def forget(self, messages: Sequence[Message]) -> None:
        """Note that pending messages have ended: acked, dropped or dead-lettered."""

    @abc.abstractmethod
    def purge(self) -> tuple[list[Message], Sequence[int]]:
        """Drop all ready messages, and no pending ones.

        Returns:
            The messages that were here as objects, and the numbers (a `range`, perhaps with gaps)
            of those that are on the shelf only. The queue settles and erases them. An answer to a
            read that is under way is ignored when it comes.
        """

    # -- the shelf has something to say ---------------------------------------------------------

    @abc.abstractmethod
    def paged_in(self, messages: Sequence[Message]) -> None:
        """Take the answer to the read that is under way; `waiting` is false afterwards.

        The messages are in order of their `seq`: those from `first_seq` on that are not done, up to
        `count` and `nbytes` of them, at least one if there is one. No message means that there is
        none from `first_seq` on. They are as `Shelf` made them (`loan` None, `ticket` 0, `at_rest`
        true); for each, `Pager.unsynced` may know a better object. Messages that are pending,
        finished or not wanted any more may be among them, and are ignored. If some that should be
        there are not, `Pager.lost` gets their number.
        """

    @abc.abstractmethod
    def recovered(self, first_seq: int, next_seq: int, count: int) -> None:
        """Note the messages on the shelf from before a restart; called once, before anything else.

        `count` messages from `first_seq` to below `next_seq`, with gaps. Nothing is read until it
        is wanted.
        """

    def durable(self, ticket: int) -> None:  # noqa: B027 (most need not know)
        """Note that all writes up to this ticket are durable now.

        The queue has already settled its messages' loans. For policies that limit the writes that
        are under way.
        """

    def relieve(self) -> None:  # noqa: B027 (most need not know)
        """Note that `Pager.write` may succeed where it did not: the disk budget has room again.

        Messages that were kept in RAM because of it may have been written by the queue meanwhile.
        """

    def tick(self, now: float) -> float | None:
        """Do the work that is due at `now` on the ledger's clock; return when to call again.

        In seconds. None: this policy does nothing by time. `Queue.tick` calls it after updating the
        rates; it may call earlier than requested, and later.
        """
        del now
        return None

    # -- looking --------------------------------------------------------------------------------

    @abc.abstractmethod
    def __iter__(self) -> Iterator[Message]:
        """Yield the ready messages that are here as objects, in any order, each once.

        For `Queue.loans`: every ready message that has a loan is among them, or among those that
        `Pager.unsynced` knows.
        """

    @property
    @abc.abstractmethod
    def ram_count(self) -> int:
        """The number of messages, ready and pending, with their event in RAM."""

    @property
    @abc.abstractmethod
    def ram_bytes(self) -> int:
        """The bytes (`Message.size`) of these."""

    @abc.abstractmethod
    def statistics(self) -> BackingStatistics:
        """Return the same as statistics."""


BackingFactory = Callable[[Pager], Backing]
"""Makes a queue's backing: a policy of paging."""
