"""How many seconds' worth of messages each queue may have in RAM, while memory is short.

As rabbit_memory_monitor.erl of RabbitMQ 3.8 has it. Every queue reports now and then for how long
what it has in RAM would last at the rate at which it comes and goes (its *duration*), and is told
for how long it should: the average of all, less the more memory is used. So a queue that is busy
keeps much, and one in which nothing moves is paged out first.

Rules of this file:
1. Pure: memory, its limit and the time are given.
2. Below `paging_ratio` of the limit there is no target. The limit is that of the memory alarm, so
   that paging has begun long before publishers are stopped.
3. A target that rises is heard of when a queue reports; one that falls is pushed at once, to those
   whose duration is above it.
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
"""The share of the limit below which the durations are asked to grow a little, as RabbitMQ's
SUM_INC_THRESHOLD: queues only page out, so what they report would never grow by itself."""

SUM_INCREASE_SECONDS: Final = 1.0
"""By how much, in all; as SUM_INC_AMOUNT."""

UPDATE_SECONDS: Final = 2.5
"""How often the target is looked at, as RabbitMQ's DEFAULT_UPDATE_INTERVAL."""

REPORT_SECONDS: Final = 5.0
"""How often queues report, as RAM_DURATION_UPDATE_INTERVAL."""


class Paging(Protocol):
    """A queue, as the monitor sees it. Known weakly: who is collected reports no more."""

    def set_duration_target(self, seconds: float) -> None:
        """Keep no more in RAM than would last for so long; infinite for any number."""
        ...


@attrs.define(slots=True)
class _Reporter:
    reported: float = math.inf
    sent: float = math.inf


@attrs.frozen(slots=True)
class MemoryMonitorStatistics:
    """How memory stands, and what is asked of queues."""

    used: int
    """Bytes in use, when it was last looked."""
    limit: int
    """Bytes that may be."""
    ratio: float
    """The first as a share of the second."""
    target_seconds: float
    """For how long what a queue has in RAM should last; infinite for any time."""
    queues: int
    """Queues that report."""
    moving: int
    """Those of them in which something moves."""
    pushes: int
    """How often a queue was told of a lower target without having asked."""


class MemoryMonitor:
    """The monitor of one process.

    Args:
        clock: Returns seconds that never go back.
        used: Returns the bytes of memory in use.
        limit: The bytes at which the memory alarm goes up.
        disk_short: Whether there is an alarm for the disk.
        paging_ratio: The share of the limit from which on queues page out.

    Attributes:
        target: For how many seconds what a queue has in RAM should last; infinite for any number.

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
        """Know a queue from now on, for as long as it lives."""
        self._reporters[queue] = _Reporter()

    def report(self, queue: Paging, seconds: float) -> float:
        """Take a queue's duration, infinite if nothing moves in it; return what it should be."""
        reporter = self._reporters[queue]
        reporter.reported = seconds
        # It is answered, so it need not be told.
        reporter.sent = -math.inf
        if self.clock() >= self._next:
            self.update()
        reporter.sent = self.target
        return self.target

    def update(self) -> None:
        """Look at memory, and tell the queues of it if they have to have less of it.

        Called by reports when it is due, and by whoever wants it sooner.
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
        """Return how memory stands."""
        return MemoryMonitorStatistics(
            used=self._last_used,
            limit=self._limit,
            ratio=self._last_used / self._limit,
            target_seconds=self.target,
            queues=len(self._reporters),
            moving=sum(each.reported < math.inf for each in self._reporters.values()),
            pushes=self._pushes,
        )
