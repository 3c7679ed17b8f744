"""Long work in short stretches, so that the relay goes on meanwhile."""

from __future__ import annotations

from time import perf_counter
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

    __slots__ = ("_until", "pauses")

    def __init__(self) -> None:
        self.pauses = 0
        self._until = perf_counter() + STRETCH_SECONDS

    async def breathe(self) -> None:
        """Execute a checkpoint if the present stretch is over; otherwise return at once."""
        if perf_counter() >= self._until:
            await self.pause()

    async def pause(self) -> None:
        """Execute a checkpoint and begin a new stretch."""
        self.pauses += 1
        await trio.lowlevel.checkpoint()
        self._until = perf_counter() + STRETCH_SECONDS
