"""Target for the messages that each queue has in RAM, in seconds, while memory is short.

As in rabbit_memory_monitor.erl of RabbitMQ 3.8. Every queue reports now and then for how long its
messages in RAM would last at the rate at which they come and go (its *duration*). It learns for how
long they should last: the average of all, less the more memory is used. So a queue that is busy
keeps much, and one in which nothing moves is paged out first.

Rules of this file:
1. Pure: memory, its limit and the time are given.
2. Below `paging_ratio` of the limit there is no target. The limit is that of the memory alarm, so
   that paging has begun long before publishers are stopped.
3. A queue learns of a higher target when it reports; a lower one is pushed at once, to queues whose
   duration is above it.
4. While the disk is short there is no target either: paging would fill it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, Protocol
from weakref import WeakKeyDictionary

import attrs

PAGING_RATIO: Final = 0.5
"""As RabbitMQ's vm_memory_high_watermark_paging_ratio."""

SUM_INCREASE_BELOW: Final = 0.95
"""The share of the limit below which the durations may grow a little, as RabbitMQ's
SUM_INC_THRESHOLD: queues only page out, so their reports would never grow by themselves."""

SUM_INCREASE_SECONDS: Final = 1.0
"""The sum of that growth; as SUM_INC_AMOUNT."""

UPDATE_SECONDS: Final = 2.5
"""The interval of target updates, as RabbitMQ's DEFAULT_UPDATE_INTERVAL."""

REPORT_SECONDS: Final = 5.0
"""The interval of queues' reports, as RAM_DURATION_UPDATE_INTERVAL."""


class Paging(Protocol):
    """A queue, as the monitor sees it. Known weakly: a collected one reports no more."""

    def set_duration_target(self, seconds: float) -> None:
        """Keep no more in RAM than would last for so long; infinite for any number."""
        ...


@attrs.define(slots=True)
class _Reporter:
    reported: float = math.inf
    sent: float = math.inf


@attrs.frozen(slots=True)
class MemoryMonitorStatistics:
    """The state of memory, and the target for queues."""

    used: int
    """Bytes in use, at the last update."""
    limit: int
    """Bytes that may be in use."""
    ratio: float
    """The first as a share of the second."""
    target_seconds: float
    """For how long a queue's messages in RAM should last; infinite for any time."""
    queues: int
    """Queues that report."""
    moving: int
    """Those of them in which something moves."""
    pushes: int
    """The number of times that a queue was sent a lower target without having asked."""


class MemoryMonitor:
    """The memory monitor of one process.

    Args:
        clock: Returns seconds that never go back.
        used: Returns the bytes of memory in use.
        limit: The bytes at which the memory alarm goes up.
        disk_short: Whether there is an alarm for the disk.
        paging_ratio: The share of the limit from which on queues page out.

    Attributes:
        target: For how many seconds a queue's messages in RAM should last; infinite for any number.

    Raises:
        ValueError: If the limit is not positive, or the ratio not above 0 and at most 1.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        used: Callable[[], int],
        limit: int,
        disk_short: Callable[[], bool] | None = None,
        paging_ratio: float = PAGING_RATIO,
    ) -> None:
        if limit <= 0:
            msg = f"the limit of memory must be above 0, not {limit}"
            raise ValueError(msg)
        if not 0.0 < paging_ratio <= 1.0:
            msg = f"paging_ratio must be above 0 and at most 1, not {paging_ratio}"
            raise ValueError(msg)
        self.clock = clock
        self.target = math.inf
        self._used = used
        self._limit = limit
        self._disk_short = disk_short
        self._paging_ratio = paging_ratio
        self._reporters: WeakKeyDictionary[Paging, _Reporter] = WeakKeyDictionary()
        self._last_used = 0
        self._next = clock()
        self._pushes = 0

    def register(self, queue: Paging) -> None:
        """Register a queue, for as long as it lives."""
        self._reporters[queue] = _Reporter()

    def report(self, queue: Paging, seconds: float) -> float:
        """Take a queue's duration, infinite if nothing moves in it; return its target."""
        reporter = self._reporters[queue]
        reporter.reported = seconds
        # The return value tells it, so it needs no push.
        reporter.sent = -math.inf
        if self.clock() >= self._next:
            self.update()
        reporter.sent = self.target
        return self.target

    def update(self) -> None:
        """Check memory, and tell the queues if they must keep less in RAM.

        Called by reports when it is due; call it to check sooner.
        """
        self._next = self.clock() + UPDATE_SECONDS
        before = self.target
        self.target = target = self._desired()
        if target >= before:
            return
        for queue, reporter in list(self._reporters.items()):
            lowest = min(reporter.reported, reporter.sent)
            if target < lowest:
                reporter.sent = target
                self._pushes += 1
                queue.set_duration_target(target)

    def _desired(self) -> float:
        used = self._last_used = self._used()
        if self._disk_short is not None and self._disk_short():
            return math.inf
        ratio = used / self._limit
        durations = [each.reported for each in self._reporters.values()]
        durations = [each for each in durations if each < math.inf]
        if ratio < self._paging_ratio or not durations:
            return math.inf
        total = sum(durations)
        if ratio < SUM_INCREASE_BELOW:
            total += SUM_INCREASE_SECONDS
        return total / len(durations) / ratio

    def statistics(self) -> MemoryMonitorStatistics:
        """Return the state of memory."""
        return MemoryMonitorStatistics(
            used=self._last_used,
            limit=self._limit,
            ratio=self._last_used / self._limit,
            target_seconds=self.target,
            queues=len(self._reporters),
            moving=sum(each.reported < math.inf for each in self._reporters.values()),
            pushes=self._pushes,
        )
