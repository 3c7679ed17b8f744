"""Fair sharing of CPU time: no connection keeps the loop from the others.

Trio runs all tasks that can run, one after another, and only then looks at the sockets again: a
round. So everybody waits as long as a round takes. Here that is bounded: the work of a connection
is cut into steps of at most `SLICE_SECONDS` (the connection looks at the clock), and the steps of
one round into `ROUND_SECONDS`. Connections beyond that wait in a queue, whose head goes on in each
later round.

The queue is in the order of the CPU time that each connection has had (start-time fair queuing:
Goyal, Vin and Cheng, 1996). A connection saves up little of the time that it did not ask for. So a
connection that wants less than its fair share goes on at once or in the next round, however many
others want more; and those get the same share each, also where a step could not be cut.

Connections that have had less than those which wait need not queue as long as a round is not very
long (`LIGHT_ROUND_SECONDS`). Without contention nobody waits, and a step costs two looks at the
clock.

`Scheduler` and `Work` do no I/O: they call the next connection back.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from time import perf_counter
from typing import Final

import trio

SLICE_SECONDS: Final = 0.002
"""Most time of one connection's step before others have their turn: forty times the cost of
switching to them."""

ROUND_SECONDS: Final = 0.004
"""Most time of all steps before the sockets are looked at again: a tenth of what a person
notices."""

LEAST_SECONDS: Final = 0.000_05
"""Least expected time of a connection's step."""

UNKNOWN_SECONDS: Final = SLICE_SECONDS / 4
"""Expected time of its first step."""

SAVED_SECONDS: Final = 2 * SLICE_SECONDS
"""Most CPU time that a connection can save up by not asking for it: that of some dozens of messages
at once."""

MOST_SKIPPED: Final = 2
"""Rounds to wait for connections that may go on: they have had the time then."""

LIGHT_ROUND_SECONDS: Final = 2 * ROUND_SECONDS
"""When a round has taken that long, connections that have used little have to queue, too: there may
be thousands of them."""


class Work:
    """The CPU time of one connection's work.

    Attributes:
        clock: The scheduler's.
        paused: Whether the last step ended because its time was over.
    """

    __slots__ = (
        "_had", "_last", "_let_go", "_round", "_scheduler", "_surely", "_until", "clock",
        "paused",
    )  # fmt: skip

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.clock = scheduler.clock
        self.paused = False
        # The end of the present step; 0 between steps.
        self._until = 0.0
        # Its CPU time on the scheduler's virtual clock; and that of its last step.
        self._had = scheduler.virtual
        self._last = 0.0
        # The round of its last step.
        self._round = -1
        # Whether it may go on and has not finished its step; and whether in this round in any case.
        self._let_go = False
        self._surely = False

    def begin(self) -> bool:
        """Begin a step, unless one has begun; False if this connection has to `wait` first."""
        if self._until:
            return True
        scheduler = self._scheduler
        if self._round == scheduler.round:
            # Nobody has two steps in one. As `next_round`, without the call.
            scheduler.round += 1
            scheduler.used = 0.0
        virtual = scheduler.virtual
        had = self._had
        if had < virtual - SAVED_SECONDS:
            self._had = had = virtual - SAVED_SECONDS
        if scheduler.used >= ROUND_SECONDS or scheduler.contended:
            if had >= virtual or scheduler.is_long:
                return False
        elif had > virtual:
            scheduler.virtual = had
        self._until = self.clock() + SLICE_SECONDS
        self._round = scheduler.round
        self.paused = False
        return True

    def is_over(self) -> bool:
        """Whether the time of this step is over; notes that it was `paused` then."""
        if self.clock() < self._until:
            return False
        self.paused = True
        return True

    def end(self) -> None:
        """End the step, if there is one: charge its time to this connection."""
        until = self._until
        if not until:
            return
        self._until = 0.0
        scheduler = self._scheduler
        took = self.clock() - until + SLICE_SECONDS
        scheduler.used += took
        self._last = took
        self._had += took
        if self._let_go:
            self._let_go = False
            scheduler.under_way -= 1

    def charge(self, seconds: float) -> None:
        """Charge work that was done between two steps."""
        self._scheduler.used += seconds
        self._had += seconds

    async def keep_back(self) -> None:
        """Let others have their turn between two steps, if this has had more than its share."""
        if self._scheduler.contended and self._had >= self._scheduler.virtual:
            await self.wait()
            self.end()

    async def wait(self) -> None:
        """Wait for this connection's turn, and begin a step. A checkpoint.

        Cancellation: it has not begun.
        """
        task = trio.lowlevel.current_task()
        scheduler = self._scheduler
        going = False
        while not going:
            ticket = scheduler.queue(self, lambda: trio.lowlevel.reschedule(task))

            def give_up(_: Callable[[], object], ticket: Ticket = ticket) -> trio.lowlevel.Abort:
                ticket.cancel()
                return trio.lowlevel.Abort.SUCCEEDED

            await trio.lowlevel.wait_task_rescheduled(give_up)
            going = self.go_on()

    async def let_others(self) -> None:
        """Let others have their turn in the middle of work that goes on. A checkpoint.

        Cancellation: no step has begun.
        """
        self.end()
        if not self._scheduler.contended:
            await trio.lowlevel.checkpoint()
            if self.begin():
                return
        await self.wait()

    def let_go(self, *, surely: bool) -> None:
        """Allow it to go on in the next round; `surely`: however long the round gets."""
        self._let_go = True
        self._surely = surely
        self._scheduler.under_way += 1

    def go_on(self) -> bool:
        """Begin a step that was allowed; False if the others took longer than expected."""
        scheduler = self._scheduler
        if scheduler.is_long and not self._surely:
            self._let_go = False
            scheduler.under_way -= 1
            return False
        self.begin_now()
        return True

    def begin_now(self) -> None:
        """Begin a step without asking: this connection may go on, or the step is a short one."""
        scheduler = self._scheduler
        self._had = self.start
        self._until = scheduler.clock() + SLICE_SECONDS
        self._round = scheduler.round
        self.paused = False

    @property
    def start(self) -> float:
        """Its place in the queue, on the scheduler's virtual clock."""
        return max(self._had, self._scheduler.virtual - SAVED_SECONDS)

    @property
    def expected(self) -> float:
        """The expected time of its next step, in seconds: that of its last."""
        return max(self._last, LEAST_SECONDS) if self._last else UNKNOWN_SECONDS


class Ticket:
    """A place in the queue."""

    __slots__ = ("_scheduler", "go", "number", "start", "work")

    def __init__(
        self, scheduler: Scheduler, work: Work, go: Callable[[], object], number: int
    ) -> None:
        self._scheduler = scheduler
        self.work = work
        self.start = work.start
        self.number = number
        self.go: Callable[[], object] | None = go

    def __lt__(self, other: Ticket) -> bool:
        """Whether it comes before another: by virtual time, then first come first served."""
        return (self.start, self.number) < (other.start, other.number)

    def cancel(self) -> None:
        """Leave the queue."""
        if self.go is not None:
            self.go = None
            self._scheduler.waiting -= 1


class Scheduler:
    """Tells connections of one relay when to go on.

    Args:
        nursery: The nursery of the task that calls back, as long as somebody waits. None: the
            caller calls `next_round` and `let_go_on`.
        clock: Returns the time, in seconds.

    Attributes:
        clock: See above.
        round: The number of this round.
        used: The time of this round's steps so far, in seconds.
        virtual: The virtual clock: the CPU time of the connections that went on last.
        waiting: The number of connections that wait for their turn.
        under_way: The number of those that may go on and have not finished their step.
        contended: Whether several have waited for the same round: then all that have had their
            share queue.
    """

    __slots__ = (
        "_numbers", "_nursery", "_queue", "_runs", "_skipped", "clock", "contended", "round",
        "under_way", "used", "virtual", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        nursery: trio.Nursery | None = None,
        *,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.clock = clock
        self.round = 0
        self.used = 0.0
        self.virtual = 0.0
        self.waiting = 0
        self.under_way = 0
        self.contended = False
        self._skipped = 0
        self._nursery = nursery
        self._queue: list[Ticket] = []
        self._numbers = 0
        self._runs = False

    def queue(self, work: Work, go: Callable[[], object]) -> Ticket:
        """Queue; `go` is called when it is the turn of `work`, in a later round."""
        self._numbers += 1
        ticket = Ticket(self, work, go, self._numbers)
        heapq.heappush(self._queue, ticket)
        self.waiting += 1
        self.contended = True
        if self._nursery is not None and not self._runs:
            self._runs = True
            self._nursery.start_soon(self._run)
        return ticket

    def next_round(self) -> None:
        """Note that everybody has had the chance to do a step since this was called last."""
        self.round += 1
        self.used = 0.0

    @property
    def is_long(self) -> bool:
        """Whether this round is so long that every newcomer has to queue."""
        return self.used >= LIGHT_ROUND_SECONDS

    def let_go_on(self) -> None:
        """Let as many of the queue go on as fit into a round, at least one if any waits.

        Those allowed before have their step first: they may want another, and the order between
        them and the queue must be known.
        """
        if self.under_way and self._skipped < MOST_SKIPPED:
            self._skipped += 1
            return
        self._skipped = 0
        queue = self._queue
        self.contended = self.waiting > 1
        expected = 0.0
        while queue and expected < ROUND_SECONDS:
            ticket = heapq.heappop(queue)
            go = ticket.go
            if go is not None:
                ticket.cancel()
                self.virtual = max(self.virtual, ticket.start)
                ticket.work.let_go(surely=not expected)
                expected += ticket.work.expected
                go()

    async def _run(self) -> None:
        """Let the queue go on round by round, until it is empty."""
        try:
            while self._queue:
                self.next_round()
                self.let_go_on()
                await trio.lowlevel.checkpoint()
        finally:
            self._runs = False
