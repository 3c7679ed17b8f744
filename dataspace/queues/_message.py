"""A message in a queue: one event on its way to one of the queue's consumers."""

from __future__ import annotations

import enum
from typing import Any

import attrs

from ...accounts import Confirm, LoanedItem


class DeathReason(enum.StrEnum):
    """The reason why a message was dead-lettered, in the words of RabbitMQ's `x-death` header."""

    REJECTED = "rejected"
    """A consumer rejected or nacked it, without requeue."""
    EXPIRED = "expired"
    """It outlived its time to live."""
    MAX_LENGTH = "maxlen"
    """The queue was full, in messages or in bytes."""
    DELIVERY_LIMIT = "delivery_limit"
    """Its delivery has failed too often."""


@attrs.frozen(slots=True)
class Death:
    """The dead-lettering of a message by one queue for one reason, perhaps more than once."""

    queue: str
    """The queue's name."""
    reason: DeathReason
    """The reason, the last time."""
    time: float
    """The first time, in seconds of the wall clock."""
    count: int = 1
    """The number of times, by this queue and for this reason."""


@attrs.define(slots=True, eq=False)
class Message:
    """One event in one queue.

    There is one object for each message that RAM holds a record of; a message that is only on disk
    has none. Two objects are never the same message at the same time: a message that is read back
    before it is durable is the very object that was written (`Pager.unsynced`).
    """

    seq: int
    """Its place: from 1, increasing in the order of arrival; never used twice in one queue."""
    event: Any
    """The published event; None while it is on the shelf only (so None cannot be queued)."""
    size: int
    """Bytes that it is charged for; the same before and after it was on disk."""
    persistent: bool
    """Whether it must survive a restart, if the queue is durable."""
    enqueued: float
    """Its time of arrival, in seconds of the wall clock."""
    expires: float | None = None
    """The time when it is dropped, in seconds of the wall clock; None: never."""
    deliveries: int = 0
    """The number of times that this process gave it to a consumer."""
    failures: int = 0
    """The number of those that failed: rejected, or its consumer's channel was lost. Counts towards
    the delivery limit; not kept across restarts."""
    redelivered: bool = False
    """Whether some consumer may have had it before: it was requeued, or a restart lay between."""
    tag: int | None = None
    """The highest tag among the bindings that matched it; for MQTT, the QoS that is granted."""
    deaths: tuple[Death, ...] = ()
    """The queues that dead-lettered it, the latest first."""
    loan: LoanedItem[list[Any]] | None = None
    """Its publisher's loan, or one of the queue's own account while it is delivered and at rest.
    None while it is ready and at rest: the queue's one loan then covers it."""
    confirm: Confirm | None = None
    """The confirm to answer when it is on disk, or has ended."""
    ticket: int | None = None
    """The ticket of its write to the shelf: durable when the shelf has confirmed this ticket or a
    later one. None: it was not written. 0: it was read from the shelf, and had been durable
    before."""
    at_rest: bool = False
    """Whether it is durable, and charged to the queue's own account."""
    pending: bool = False
    """Whether it is delivered and not acknowledged."""
    doomed: DeathReason | None = None
    """The reason to dead-letter it as soon as its event has been read back."""
    ram_only: bool = False
    """Whether the shelf cannot take it: its event has no form as bytes."""
    finished: bool = False
    """Whether it has ended: acked, dropped, dead-lettered. Any remaining reference is dropped
    later."""

    @property
    def written(self) -> bool:
        """Whether it can be read back from the shelf, even if it is not durable yet."""
        return self.ticket is not None

    def unload(self) -> None:
        """Drop the event, which can be read back. For a `Backing`; only if it is `written`.

        While it is `pending`, the consumer's loan stays unchanged: the event may be on its way.
        """
        assert self.ticket is not None
        self.event = None
        loan = self.loan
        if loan is not None and not self.pending:
            loan.item = []
