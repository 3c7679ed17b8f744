"""Where a queue's ready messages are: in RAM, on disk, or some of each. The policy of paging.

RabbitMQ calls this the backing queue. Rules of this file:
1. A backing knows *where ready messages are* and nothing else. Accounts, confirms, consumers,
   limits and what is durable are the queue's business. Any two backings are indistinguishable from
   outside, but for what is in RAM and when `fetch` has to wait.
2. Order is by `Message.seq`. Messages are delivered lowest first, so one that comes back has a
   lower one than every message that was never delivered: `requeue` never has to look into the
   middle of what is on disk.
3. A message that was not written (`Keeper.write`) is in RAM only and stays there. One that was may
   be unloaded at once: the shelf can be read before it is durable.
4. Nothing here awaits, and nothing is called back from inside a call: `Keeper` and `Shelf` do not
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


class Keeper(Protocol):
    """What a backing may ask of its queue."""

    @property
    def shelf(self) -> Shelf | None:
        """What to read from (`Shelf.want`); None: everything stays in RAM."""
        ...

    @property
    def rates(self) -> Rates:
        """How fast messages come and go; updated by the queue."""
        ...

    def write(self, message: Message) -> bool:
        """See to it that `message` is on the shelf, and tell whether it is.

        True if it was written before, or has been now (`message.ticket` is set; it can be unloaded
        and read back at once). False if there is no shelf, it is in trouble, or the disk budget is
        spent: then the message has to stay in RAM. Such a one is written later by the queue itself
        if it is persistent; a backing that wants to page others out tries again at `relieve`.
        """
        ...

    def unsynced(self, seq: int) -> Message | None:
        """Return the message that was written and is not durable yet, if there is one.

        What is read back (`Backing.paged_in`) is another object for the same message; this one has
        its loan and its confirm, so it is what has to be used: put the event into it.
        """
        ...

    def lost(self, count: int) -> None:
        """Note that `count` messages that should be on the shelf are not to be found there."""
        ...


@attrs.frozen(slots=True)
class BackingStatistics:
    """Where a queue's messages are."""

    policy: str
    """The backing's name: `steady`, `classic`."""
    ready: int
    """Messages that wait for a consumer."""
    ready_in_ram: int
    """Those of them whose event is in RAM."""
    pending_in_ram: int
    """Messages that are delivered and unacknowledged, with their event in RAM."""
    ram_bytes: int
    """Bytes of both."""
    disk_only: int
    """Ready messages of which nothing is in RAM but that they are there."""
    ram_target: int | None
    """How many messages may be in RAM now, as far as the policy says; None: any number."""
    paged_out: int
    """Messages ever let go of, to be read back."""
    paged_in: int
    """Messages ever read back."""
    reads: int
    """Batches ever asked of the shelf."""


class Backing(abc.ABC):
    """Where a queue's ready messages are.

    The life of a message, as a backing sees it:

        publish -> [ready] -> fetch -> (dropped: the backing hears no more of it)
                                    -> pending -> forget
                                               -> requeue -> [ready] -> fetch ...
        pending alone, without publish: it was delivered as soon as it came, nothing was ready

    Persistent messages of a durable queue have been written, where the disk budget allowed it,
    before `publish` or `pending` is called with them; the others the backing has written
    (`Keeper.write`) when it wants them out of RAM.

    Args:
        keeper: The queue.

    Attributes:
        waiting: Whether a read is under way (`Shelf.want`, not yet answered by `paged_in`). There
            is one at a time.
    """

    __slots__ = ("keeper", "waiting")

    policy = "backing"
    """A name for people and metrics."""

    def __init__(self, keeper: Keeper) -> None:
        self.keeper = keeper
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
        """Return what `fetch` would, and leave it where it is; it may start a read as `fetch` does.

        A message whose event is not in RAM may be returned if the object itself is there: who
        peeks wants to know when it expires.
        """

    @abc.abstractmethod
    def requeue(self, messages: Sequence[Message]) -> None:
        """Put pending messages back to their places, by their `seq`. They are in any order.

        The event of one that was unloaded while it was pending is None: it has to be read back.
        """

    @abc.abstractmethod
    def pending(self, message: Message) -> None:
        """Note that a message, just fetched or never published here, is delivered and unacked.

        From now on it counts as RAM that the queue uses. The queue keeps it; a policy that pages
        out what is pending keeps track of it too, and may `Message.unload` it once it is written.
        """

    @abc.abstractmethod
    def forget(self, messages: Sequence[Message]) -> None:
        """Note that pending messages are done with: acked, dropped or dead-lettered."""

    @abc.abstractmethod
    def purge(self) -> tuple[list[Message], Sequence[int]]:
        """Drop all that is ready, and nothing that is pending.

        Returns:
            The messages that were here as objects, and the numbers (a `range`, perhaps with gaps)
            among which those were that are on the shelf only. The queue settles and erases them.
            An answer to a read that is under way is ignored when it comes.
        """

    # -- the shelf has something to say ---------------------------------------------------------

    @abc.abstractmethod
    def paged_in(self, messages: Sequence[Message]) -> None:
        """Take the answer to the read that is under way; `waiting` is false afterwards.

        In order of their `seq`; those from `first_seq` on that are not done, up to `count` and
        `nbytes` of them, at least one if there is one: no message means that there is none from
        `first_seq` on. They are as `Shelf` made them (`loan` None, `ticket` 0, `at_rest` true);
        for each, `Keeper.unsynced` may know a better object. Messages that are pending, finished or
        not wanted any more may be among them, and are ignored. If some that should be there are
        not, `Keeper.lost` is told how many.
        """

    @abc.abstractmethod
    def recovered(self, first_seq: int, next_seq: int, count: int) -> None:
        """Note what the shelf has from before a restart; called once, before anything else.

        `count` messages from `first_seq` to below `next_seq`, with gaps. Nothing is read until it
        is wanted.
        """

    def durable(self, ticket: int) -> None:  # noqa: B027 (most need not know)
        """Note that what was written with this ticket and those before is durable now.

        The queue has already settled its messages' loans. For policies that give the shelf credit.
        """

    def relieve(self) -> None:  # noqa: B027 (most need not know)
        """Note that `Keeper.write` may succeed where it did not: the disk budget has room again.

        Messages that were kept in RAM because of it may have been written by the queue meanwhile.
        """

    def tick(self, now: float) -> float | None:
        """Do what is due at `now`, in seconds of the ledger's clock, and tell when to come again.

        None: there is nothing that this policy does by time. `Queue.tick` calls it, having updated
        the rates; it may come earlier than it was told, and later.
        """
        del now
        return None

    # -- looking --------------------------------------------------------------------------------

    @abc.abstractmethod
    def __len__(self) -> int:
        """Return how many messages are ready, wherever they are."""

    @abc.abstractmethod
    def __iter__(self) -> Iterator[Message]:
        """Yield the ready messages that are here as objects, in any order, each once.

        For `Queue.loans`: every ready message that has a loan is among them, or among those that
        `Keeper.unsynced` knows.
        """

    @property
    @abc.abstractmethod
    def ram_count(self) -> int:
        """How many messages, ready and pending, have their event in RAM."""

    @property
    @abc.abstractmethod
    def ram_bytes(self) -> int:
        """Bytes (`Message.size`) of these."""

    @abc.abstractmethod
    def statistics(self) -> BackingStatistics:
        """Return the same in numbers."""


BackingFactory = Callable[[Keeper], Backing]
"""Makes a queue's backing: a policy of paging."""
