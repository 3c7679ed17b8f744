"""Long work in short stretches, so that the relay goes on meanwhile."""

from __future__ import annotations

from time import perf_counter, thread_time
from typing import Final

import trio

STRETCH_SECONDS: Final = 0.001
# A fifth of the 5 ms that no page may hold the loop for: pages are made side by side, and the
# relay may be slower than the machine this was measured on.


class Pace:
    """Tells a long piece of work when to let others go on.

    By time and not by number, because what a step costs depends on the machine and on the ledger.

    Attributes:
        pauses: How often others were let go on. What was read without a pause in between was read
            at one instant.
    """

    __slots__ = ("_began", "_busy", "_until", "pauses")

    def __init__(self) -> None:
        self.pauses = 0
        self._busy = 0.0
        self._began = thread_time()
        self._until = perf_counter() + STRETCH_SECONDS

    @property
    def busy_seconds(self) -> float:
        """CPU time of all stretches so far, without what others did in the pauses."""
        return self._busy + thread_time() - self._began

    async def breathe(self) -> None:
        """Execute a checkpoint if the present stretch is over; otherwise return at once."""
        if perf_counter() >= self._until:
            await self.pause()

    async def pause(self) -> None:
        """Execute a checkpoint and begin a new stretch."""
        self.pauses += 1
        self._busy += thread_time() - self._began
        await trio.lowlevel.checkpoint()
        self._began = thread_time()
        self._until = perf_counter() + STRETCH_SECONDS
