"""A message in a queue: one event on its way to one of the queue's consumers."""

from __future__ import annotations

import enum
from typing import Any

import attrs

from ...accounts import Confirm, LoanedItem


class DeathReason(enum.StrEnum):
    """Why a message was dead-lettered; the words are those of RabbitMQ's `x-death` header."""

    REJECTED = "rejected"
    """A consumer rejected it, or nacked it, and did not want it back in the queue."""
    EXPIRED = "expired"
    """It outlived its time to live."""
    MAX_LENGTH = "maxlen"
    """The queue was full, in messages or in bytes."""
    DELIVERY_LIMIT = "delivery_limit"
    """Its delivery has failed too often."""


@attrs.frozen(slots=True)
class Death:
    """That a message was dead-lettered by one queue for one reason, perhaps more than once."""

    queue: str
    """The queue's name."""
    reason: DeathReason
    """Why, the last time."""
    time: float
    """When it first was, in seconds of the wall clock."""
    count: int = 1
    """How often, by this queue and for this reason."""


@attrs.define(slots=True, eq=False)
class Message:
    """One event in one queue.

    There is one object for each message that is known in RAM by itself; what is only on disk has
    none. Two objects are never the same message at the same time: what is read back while it is not
    yet durable is the very object that was written (`Keeper.unsynced`).
    """

    seq: int
    """Its place: from 1, increasing in the order of arrival; never used twice in one queue."""
    event: Any
    """What was published; None while it is on the shelf only (so None cannot be queued)."""
    size: int
    """Bytes that it is charged for; the same before and after it was on disk."""
    persistent: bool
    """Whether it is to survive a restart, if the queue is durable."""
    enqueued: float
    """When it came, in seconds of the wall clock."""
    expires: float | None = None
    """When it is dropped, in seconds of the wall clock; None: never."""
    deliveries: int = 0
    """How often it was given to a consumer by this process."""
    failures: int = 0
    """How often that failed: rejected, or its consumer's channel was lost. Counts towards the
    delivery limit; not kept across restarts."""
    redelivered: bool = False
    """Whether some consumer may have had it before: it was requeued, or a restart lay between."""
    tag: int | None = None
    """The highest tag among the bindings that matched it; for MQTT, the QoS that is granted."""
    deaths: tuple[Death, ...] = ()
    """Which queues it was dead-lettered by, the latest first."""
    loan: LoanedItem[list[Any]] | None = None
    """Its publisher's loan, or while it is delivered and at rest, one of the queue's own account.
    None while it is ready and at rest: it is one of those that the queue's one loan covers."""
    confirm: Confirm | None = None
    """Who waits to hear that it is on disk, or dealt with."""
    ticket: int | None = None
    """Of its writing to the shelf: durable when the shelf has said so of this ticket or a later
    one. None: it was not written. 0: it was read from the shelf, and had been durable before."""
    at_rest: bool = False
    """Whether it is durable, and charged to the queue's own account."""
    pending: bool = False
    """Whether it is delivered and not acknowledged."""
    doomed: DeathReason | None = None
    """Why it is to be dead-lettered as soon as its event has been read back."""
    ram_only: bool = False
    """Whether the shelf cannot take it: its event has no form as bytes."""
    finished: bool = False
    """Whether it is done with: acked, dropped, dead-lettered. Whoever still knows it forgets it."""

    @property
    def written(self) -> bool:
        """Whether it can be read back from the shelf, even if it is not durable yet."""
        return self.ticket is not None

    def unload(self) -> None:
        """Let go of the event, which can be read back. For a `Backing`; only if it is `written`.

        While it is `pending`, what was lent to the consumer stays as it is: it may be on its way.
        """
        assert self.ticket is not None
        self.event = None
        loan = self.loan
        if loan is not None and not self.pending:
            loan.item = []
