"""A queue that takes a whole run of messages in one step.

Rules of this file:
1. A run goes straight to a consumer with room if each of its messages would, one by one: nothing is
   before them, none has to be written, and none can be late. What finds no room any more arrives as
   any other message, and is served when the queue works next.
2. The books say the same as if the messages had come one by one, and so do the counters. What is
   added up is added once.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Protocol

from ...accounts import Account, Outcome
from ...accounts._loan import lent
from ._consumer import Consumer
from ._lines import Line
from ._message import Message
from ._queue import Queue

logger = logging.getLogger("clearfunds.dataspace")

BEHIND: Final = 256
"""Ready messages that say nothing yet: what one read of a publisher may bring."""

FAST: Final = 1_000.0
"""Messages a second of a consumer that waits for the relay rather than for its own work."""


class Run(Protocol):
    """Events that came together, from one publisher, to the same queues."""

    @property
    def count(self) -> int:
        """The number of events."""
        ...

    @property
    def nbytes(self) -> int:
        """The bytes that they are charged for together."""
        ...

    @property
    def sizes(self) -> Sequence[int]:
        """The bytes of each."""
        ...

    @property
    def expiration(self) -> float | None:
        """Seconds that each of them may wait; None: any time."""
        ...

    @property
    def persistent(self) -> bool:
        """Whether they must survive a restart, in a durable queue."""
        ...

    def events(self) -> Sequence[Any]:
        """Return them one by one."""
        ...


class RunQueue(Queue):
    """A queue that takes runs, too."""

    __slots__ = ()

    def answers_late(self, run_is_persistent: bool) -> bool:
        """Whether the confirms of messages may come later than the end of their turn."""
        return self._refuses or (self._persists and run_is_persistent)

    def lag(self) -> float:
        """Return how many seconds its consumers are behind, at their present rate.

        0.0: they are hardly behind, or are not fast: then a backlog is what the queue is for.
        """
        egress, ready = self.rates.egress, self.backing.ready
        if ready <= BEHIND or egress < FAST or not self.consumers:
            return 0.0
        return ready / egress

    def hold_run(self, account: Account, run: Run, now: float) -> bool:
        """Take custody of a run, charged to `account` already; nobody waits for its confirms.

        Returns:
            Whether something is left for `ready`.
        """
        if self.deleted:
            account.repay(run.count, run.nbytes, Outcome.DROPPED, self)
            return False
        if self._arrived and not self._working:
            # Those before it first, or it could not go straight.
            self.ledger.faults.call(self, "seeing to what was published", self.ready)
        taken = 0
        events: Sequence[Any] = ()
        if self._goes_straight(run):
            consumer = self._next_consumer()
            if consumer is not None:
                if consumer.no_ack and consumer.take_run is not None and len(self.consumers) == 1:
                    self._pass_on(account, run, consumer, now)
                    return False
                events = run.events()
                taken = self._deliver_some(account, events, run.sizes, now)
        if taken < run.count and self.deleted:
            # With a consumer that has failed just now.
            rest = run.count - taken, sum(run.sizes[taken:])
            account.repay(*rest, Outcome.DROPPED, self)
        elif taken < run.count:
            self._line_up(account, run, events or run.events(), taken, now)
            return True
        return bool(self._returned or self._dying or self._again)

    def _goes_straight(self, run: Run) -> bool:
        return not (
            not self._active
            or self._working
            or self._arrived
            or self.backing.ready
            or self._returned
            or self._dying
            or self.durable_first is not None
            or run.expiration is not None
            or self.settings.message_ttl is not None
            or (self._persists and run.persistent)
        )

    def _line_up(
        self, account: Account, run: Run, events: Sequence[Any], start: int, now: float
    ) -> None:
        """Let messages arrive, from one on; as `Queue._take`, for which they are all alike."""
        arrived: Line[Message] = self._arrived or deque()
        if not (arrived or self._unacked or self.backing.ready):
            self.progressed_at = now
        persistent = self._persists and run.persistent
        enqueued = now + self._wall_offset
        ttl, own = self.settings.message_ttl, run.expiration
        if own is not None and self._ttl_of is not None and (ttl is None or own < ttl):
            ttl = own
        expires = None if ttl is None else enqueued + ttl
        sizes = run.sizes
        seq = self._next_seq
        for place in range(start, run.count):
            event, size = events[place], sizes[place]
            message = Message(seq, event, size, persistent, enqueued, expires)
            message.loan = lent(account, [event], 1, size, self, now)
            arrived.append(message)  # type: ignore[union-attr]
            seq += 1
        self._arrived = arrived
        self._next_seq = seq
        self.rates.arrived += run.count - start
        self.counters.published += run.count - start

    def _pass_on(self, account: Account, run: Run, consumer: Consumer, now: float) -> None:
        """Give a run to the only consumer, which acknowledges nothing."""
        count = run.count
        counters, rates, channel = self.counters, self.rates, consumer.channel
        rates.update(now)
        self._next_seq += count
        self._delivered_upto = self._next_seq
        first_tag = channel.last_tag + 1
        channel.last_tag += count
        consumer.delivered += count
        counters.published += count
        counters.delivered += count
        counters.acked += count
        rates.arrived += count
        rates.left += count
        self._working = True
        failed: str | None = None
        try:
            assert consumer.take_run is not None
            consumer.take_run(account, run, first_tag)
        except Exception as exc:
            logger.exception("a consumer of queue %s failed; it gets nothing more", self.name)
            if self.ledger.faults.ends:
                self.ledger.faults.note(self._whose(consumer), "delivering to it", exc)
            failed = f"its callback raised {exc!r}"
        finally:
            self._working = False
        self.progressed_at = now
        self.ages.add(0.0, count)
        account.repay(count, run.nbytes, Outcome.DELIVERED, self, now)
        if failed is not None:
            self.retire(consumer)
            self._notify(consumer, failed)
            self.consumer_gone()

    def _deliver_some(
        self, account: Account, events: Sequence[Any], sizes: Sequence[int], now: float
    ) -> int:
        """Deliver as many messages as find room with consumers; return how many."""
        if not self._unacked:
            self.progressed_at = now
        rates = self.rates
        rates.update(now)
        enqueued = now + self._wall_offset
        taken = 0
        self._working = True
        self._again = False
        try:
            for event, size in zip(events, sizes, strict=True):
                consumer = self._next_consumer()
                if consumer is None or self.deleted:
                    break
                seq = self._next_seq
                self._next_seq = seq + 1
                message = Message(seq, event, size, False, enqueued)
                message.loan = lent(account, [event], 1, size, self, now)
                taken += 1
                self._deliver(consumer, message)
        finally:
            self._working = False
        self.counters.published += taken
        rates.arrived += taken
        rates.left += taken
        return taken
